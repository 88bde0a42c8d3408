/* `hocket doctor`: network interfaces and RDMA devices, as /sys shows them. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doctor.h"

/** Call visit for each entry of a folder below root; returns how many there were. */
static int each(const char *root, const char *path, void (*visit)(void *arg, const char *name), void *arg)
{
    char full[512];

    snprintf(full, sizeof full, "%s%s", root, path);
    DIR *dir = opendir(full);
    const struct dirent *entry;
    int count = 0;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        count++;
        if (visit != NULL)
            visit(arg, entry->d_name);
    }
    if (dir != NULL)
        closedir(dir);
    return count;
}

static long read_long(const char *root, const char *path)
{
    char text[64];

    return hkt_doctor_read(root, path, text, sizeof text) ? strtol(text, NULL, 10) : -1;
}

bool hkt_doctor_has_rdma(const char *root)
{
    return each(root, "/sys/class/infiniband", NULL, NULL) > 0;
}

struct look {
    struct doctor_report *report;
    const char *root;
    const char *device;          /* RDMA device whose ports are looked at */
    char folder[320];            /* of the port whose GIDs are looked at */
    int nup;                     /* interfaces */
    int ngids, nv2_ipv4;
};

static void look_at_interface(void *arg, const char *name)
{
    struct look *look = arg;
    char path[320], state[32] = "";

    if (strcmp(name, "lo") == 0)
        return;
    snprintf(path, sizeof path, "/sys/class/net/%.64s/operstate", name);
    if (!hkt_doctor_read(look->root, path, state, sizeof state) || strcmp(state, "down") == 0)
        return; /* many machines have interfaces that nobody uses */
    look->nup++;
    snprintf(path, sizeof path, "/sys/class/net/%.64s/mtu", name);
    const long mtu = read_long(look->root, path);

    snprintf(path, sizeof path, "/sys/class/net/%.64s/speed", name);
    const long mbits = read_long(look->root, path);

    if (mbits <= 0)
        hkt_doctor_add(look->report, "interface", DOCTOR_OK, "", "%.64s: %s, MTU %ld, speed not told", name, state, mtu);
    else
        hkt_doctor_add(look->report, "interface", mbits >= 10000 && mtu < 9000 ? DOCTOR_WARN : DOCTOR_OK,
                       "ip link set INTERFACE mtu 9000, on all hosts and switches: small packets cost fast links processor time",
                       "%.64s: %s, MTU %ld, %ld Mbit/s", name, state, mtu, mbits);
}

void hkt_doctor_network(struct doctor_report *report, const char *root)
{
    struct look look = {.report = report, .root = root};

    (void)each(root, "/sys/class/net", look_at_interface, &look);
    if (look.nup == 0)
        hkt_doctor_add(report, "interface", DOCTOR_WARN, "ip link set INTERFACE up, and give it an address",
                       "none is up: only ranks of this host can meet");
}

static void look_at_gid(void *arg, const char *name)
{
    struct look *look = arg;
    char path[512], gid[64], type[64] = "";

    snprintf(path, sizeof path, "%.320s/gids/%.16s", look->folder, name);
    if (!hkt_doctor_read(look->root, path, gid, sizeof gid) || strspn(gid, "0:") == strlen(gid))
        return;
    look->ngids++;
    snprintf(path, sizeof path, "%.320s/gid_attrs/types/%.16s", look->folder, name);
    (void)hkt_doctor_read(look->root, path, type, sizeof type);
    look->nv2_ipv4 += strcmp(type, "RoCE v2") == 0 && strncmp(gid, "0000:0000:0000:0000:0000:ffff:", 30) == 0;
}

static void look_at_gids(struct look *look, const char *port)
{
    char path[512];

    look->ngids = look->nv2_ipv4 = 0;
    snprintf(path, sizeof path, "%.320s/gids", look->folder);
    (void)each(look->root, path, look_at_gid, look);
    hkt_doctor_add(look->report, "GIDs", look->ngids == 0 ? DOCTOR_FAIL : look->nv2_ipv4 == 0 ? DOCTOR_WARN : DOCTOR_OK,
                   "give the port's network interface an IPv4 address: RoCE v2 over IPv4 crosses routers, others may not",
                   "%.64s:%.8s: %d, of which %d are RoCE v2 over IPv4", look->device, port, look->ngids, look->nv2_ipv4);
}

static void look_at_port(void *arg, const char *port)
{
    struct look *look = arg;
    char path[512], state[32] = "", rate[64] = "", layer[32] = "";

    snprintf(look->folder, sizeof look->folder, "/sys/class/infiniband/%.64s/ports/%.8s", look->device, port);
    snprintf(path, sizeof path, "%s/state", look->folder);
    (void)hkt_doctor_read(look->root, path, state, sizeof state);
    snprintf(path, sizeof path, "%s/rate", look->folder);
    (void)hkt_doctor_read(look->root, path, rate, sizeof rate);
    snprintf(path, sizeof path, "%s/link_layer", look->folder);
    (void)hkt_doctor_read(look->root, path, layer, sizeof layer);
    hkt_doctor_add(look->report, "RDMA port", strstr(state, "ACTIVE") != NULL ? DOCTOR_OK : DOCTOR_WARN,
                   "bring the link up: cable, switch, subnet manager (InfiniBand) or `ip link set INTERFACE up` (RoCE)",
                   "%.64s:%.8s: %s, %s, %s", look->device, port, layer, state, rate);
    if (strcmp(layer, "Ethernet") == 0)
        look_at_gids(look, port);
}

static void look_at_device(void *arg, const char *name)
{
    struct look *look = arg;
    char path[320];

    look->device = name;
    snprintf(path, sizeof path, "/sys/class/infiniband/%.64s/ports", name);
    (void)each(look->root, path, look_at_port, look);
}

static void look_at_access(void *arg, const char *name)
{
    struct look *look = arg;
    char path[512];

    if (strncmp(name, "uverbs", 6) != 0)
        return;
    look->nup++;
    snprintf(path, sizeof path, "%s/dev/infiniband/%.64s", look->root, name);
    if (access(path, R_OK | W_OK) != 0)
        hkt_doctor_add(look->report, "RDMA access", DOCTOR_FAIL, "chmod 666 it by a udev rule (package rdma-core has one), or "
                       "--device /dev/infiniband for containers", "/dev/infiniband/%.64s may not be opened", name);
}

void hkt_doctor_rdma(struct doctor_report *report, const char *root)
{
    struct look look = {.report = report, .root = root};

    if (each(root, "/sys/class/infiniband", look_at_device, &look) == 0) {
        hkt_doctor_add(report, "RDMA", DOCTOR_OK, "", "no device");
        return;
    }
    (void)each(root, "/dev/infiniband", look_at_access, &look);
    if (look.nup == 0)
        hkt_doctor_add(report, "RDMA access", DOCTOR_FAIL, "modprobe ib_uverbs; --device /dev/infiniband for containers",
                       "there are devices, but no /dev/infiniband/uverbs*");
}
