/* Devices, ports and GIDs: what this host has, which of it verbs uses, and why not the rest. A port is judged by what its
 * driver says; whether it reaches a peer is found out later (verbs.c, verbs_link.c).
 *
 * GIDs. A RoCE port has one GID per address of its network interface and RoCE version. RoCE v2 travels in UDP and is routed,
 * v1 is bare Ethernet; IPv4 GIDs are what administrators see and route, link-local ones end at the first router. Hence the
 * order of hkt__verbs_gid_choose. An InfiniBand port has one GID as a rule, of its subnet; its LID is what counts. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "transport/verbs.h"

#define GIDS_MAX 256

void hkt__verbs_port_name(const struct hkt__verbs_port *port, char *out_text, size_t bytes)
{
    snprintf(out_text, bytes, "%.48s:%d", port->device, port->port);
}

bool hkt__verbs_is_listed(const char *list, const char *device, int port)
{
    const bool is_inverted = list[0] == '^';
    bool is_listed = false;

    if (list[0] == '\0')
        return true;
    for (const char *item = list + is_inverted; *item != '\0';) {
        const size_t bytes = strcspn(item, ","), name = strcspn(item, ",:");
        bool is_meant = strlen(device) == name && memcmp(device, item, name) == 0;

        if (name < bytes) {
            char text[16];

            snprintf(text, sizeof text, "%d", port);
            is_meant &= strlen(text) == bytes - name - 1 && memcmp(text, item + name + 1, bytes - name - 1) == 0;
        }
        is_listed |= is_meant;
        item += bytes + (item[bytes] == ',');
    }
    return is_listed != is_inverted;
}

/* ---- GIDs ---- */

static bool is_ipv4(const union ibv_gid *gid)
{
    static const unsigned char mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

    return memcmp(gid->raw, mapped, sizeof mapped) == 0;
}

static bool is_link_local(const union ibv_gid *gid)
{
    if (is_ipv4(gid))
        return gid->raw[12] == 169 && gid->raw[13] == 254;
    return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

static bool is_empty(const union ibv_gid *gid)
{
    static const union ibv_gid none;

    return memcmp(gid->raw, none.raw, sizeof none.raw) == 0;
}

/** The larger the better; InfiniBand GIDs are all the same. */
static int gid_worth(const struct ibv_gid_entry *entry)
{
    int worth = 0;

    if (entry->gid_type == IBV_GID_TYPE_IB)
        return 1;
    worth += entry->gid_type == IBV_GID_TYPE_ROCE_V2 ? 8 : 0;
    worth += is_link_local(&entry->gid) ? 0 : 4;
    worth += is_ipv4(&entry->gid) ? 2 : 0;
    return worth + 1;
}

int hkt__verbs_gid_choose(const struct ibv_gid_entry *entries, int count, int port, int want)
{
    int best = -1;

    for (int i = 0; i < count; i++) {
        if ((int)entries[i].port_num != port || is_empty(&entries[i].gid))
            continue;
        if (want >= 0) {
            if ((int)entries[i].gid_index == want)
                return i;
            continue;
        }
        if (best < 0 || gid_worth(&entries[i]) > gid_worth(&entries[best]))
            best = i;
    }
    return best;
}

void hkt__verbs_gid_text(const struct ibv_gid_entry *entry, char *out_text, size_t bytes)
{
    static const char *const types[] = {[IBV_GID_TYPE_IB] = "InfiniBand", [IBV_GID_TYPE_ROCE_V1] = "RoCE v1",
                                        [IBV_GID_TYPE_ROCE_V2] = "RoCE v2"};
    const bool is_known = entry->gid_type < sizeof types / sizeof types[0];
    char address[INET6_ADDRSTRLEN] = "?";

    if (is_ipv4(&entry->gid))
        inet_ntop(AF_INET, entry->gid.raw + 12, address, sizeof address);
    else
        inet_ntop(AF_INET6, entry->gid.raw, address, sizeof address);
    snprintf(out_text, bytes, "%s, %s", address, is_known ? types[entry->gid_type] : "a type unknown here");
}

/** "0 (fe80::1, RoCE v2), 1 (192.0.2.1, RoCE v2)": what may be asked for. */
static void list_gids(const struct ibv_gid_entry *entries, int count, int port, char *out_text, size_t bytes)
{
    size_t used = 0;

    out_text[0] = '\0';
    for (int i = 0; i < count && used < bytes; i++) {
        char text[80];

        if ((int)entries[i].port_num != port || is_empty(&entries[i].gid))
            continue;
        hkt__verbs_gid_text(&entries[i], text, sizeof text);
        const int n = snprintf(out_text + used, bytes - used, "%s%u (%s)", used > 0 ? ", " : "", entries[i].gid_index, text);

        used += n > 0 ? (size_t)n : 0;
    }
}

static void choose_gid(struct ibv_context *context, struct hkt__verbs_port *port, int want)
{
    struct ibv_gid_entry entries[GIDS_MAX];
    const ssize_t found = ibv_query_gid_table(context, entries, GIDS_MAX, 0);
    const int count = found > 0 ? (int)found : 0;
    const int chosen = hkt__verbs_gid_choose(entries, count, port->port, want);
    char text[sizeof port->gid_text - 16];

    if (chosen < 0 && want >= 0) {
        char there[160];

        list_gids(entries, count, port->port, there, sizeof there);
        snprintf(port->why, sizeof port->why, "it has no GID %d (HOCKET_IB_GID_INDEX); it has %s", want,
                 there[0] != '\0' ? there : "none");
        return;
    }
    if (chosen < 0) {
        snprintf(port->why, sizeof port->why, "it has no GID: give its network interface an address");
        return;
    }
    port->gid_index = (int)entries[chosen].gid_index;
    port->gid = entries[chosen].gid;
    hkt__verbs_gid_text(&entries[chosen], text, sizeof text);
    snprintf(port->gid_text, sizeof port->gid_text, "GID %d: %s", port->gid_index, text);
}

/* ---- ports ---- */

/** Megabits per second of one lane by the numbers of the InfiniBand specification (PortInfo: LinkSpeedActive). */
static uint32_t lane_mbits(unsigned speed)
{
    switch (speed) {
    case 1: return 2500;
    case 2: return 5000;
    case 4:
    case 8: return 10000;
    case 16: return 14000;
    case 32: return 25000;
    case 64: return 50000;
    case 128: return 100000;
    default: return 2500;
    }
}

static uint32_t port_mbits(const struct ibv_port_attr *attr)
{
    static const unsigned char lanes[] = {[1] = 1, [2] = 4, [4] = 8, [8] = 12, [16] = 2};
    const unsigned width = attr->active_width < sizeof lanes ? lanes[attr->active_width] : 0;

    return lane_mbits(attr->active_speed) * (width > 0 ? width : 1);
}

static void judge_port(struct ibv_context *context, const struct hkt__settings *settings, struct hkt__verbs_port *port)
{
    struct ibv_port_attr attr;

    if (ibv_query_port(context, port->port, &attr) != 0) {
        snprintf(port->why, sizeof port->why, "its state cannot be read: %s", strerror(errno));
        return;
    }
    port->is_roce = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
    port->lid = attr.lid;
    port->mtu = (uint8_t)attr.active_mtu;
    port->mbits = port_mbits(&attr);
    /* RFC 5040 has writes without immediate only, and such a device connects queue pairs in rdma_cm alone: a transport of other
     * frames and another opening. */
    if (context->device->transport_type == IBV_TRANSPORT_IWARP) {
        snprintf(port->why, sizeof port->why, "iWARP: it has no RDMA write with immediate, and connects by rdma_cm alone; tcp goes "
                 "over its network");
        return;
    }
    if (context->device->transport_type != IBV_TRANSPORT_IB) {
        snprintf(port->why, sizeof port->why, "it is no InfiniBand or RoCE adapter: use tcp over it");
        return;
    }
    if (attr.state != IBV_PORT_ACTIVE) {
        snprintf(port->why, sizeof port->why, "the port is %s: %s", ibv_port_state_str(attr.state),
                 port->is_roce ? "look at its network interface (ip link)" : "look at the cable and the subnet manager");
        return;
    }
    choose_gid(context, port, (int)settings->ib_gid_index);
}

enum hkt_status hkt__verbs_device_open(const char *name, struct ibv_context **out_context)
{
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    struct ibv_context *context = NULL;

    errno = ENODEV;
    for (int i = 0; devices != NULL && i < count; i++)
        if (strcmp(ibv_get_device_name(devices[i]), name) == 0) {
            context = ibv_open_device(devices[i]);
            break;
        }
    const int sys_errno = errno;

    if (devices != NULL)
        ibv_free_device_list(devices);
    if (context != NULL) {
        *out_context = context;
        return HKT_OK;
    }
    errno = sys_errno;
    if (sys_errno == EACCES || sys_errno == EPERM)
        return hkt__fail_sys(HKT_ERR_UNSUPPORTED, "it cannot be opened: this process may not read and write "
                             "/dev/infiniband/uverbs*; give its user that right (udev, group rdma), and containers the "
                             "folder /dev/infiniband (docker run --device=/dev/infiniband)");
    return hkt__fail_sys(HKT_ERR_SYSTEM, "it cannot be opened");
}

/** All ports of one device. */
static void list_device(struct ibv_device *device, const struct hkt__settings *settings, struct hkt__verbs_port *ports, int max,
                        int *count)
{
    struct hkt__verbs_port port = {.port = 1};
    struct ibv_context *context = NULL;
    struct ibv_device_attr attr = {.phys_port_cnt = 1};

    snprintf(port.device, sizeof port.device, "%s", ibv_get_device_name(device));
    if (hkt__verbs_device_open(port.device, &context) != HKT_OK)
        snprintf(port.why, sizeof port.why, "%s", hkt_last_error());
    else if (ibv_query_device(context, &attr) != 0)
        snprintf(port.why, sizeof port.why, "it does not answer: %s", strerror(errno));
    for (int i = 1; i <= attr.phys_port_cnt && *count < max; i++) {
        if (!hkt__verbs_is_listed(settings->ib_devices, port.device, i))
            continue;
        ports[*count] = port;
        ports[*count].port = (uint8_t)i;
        if (port.why[0] == '\0')
            judge_port(context, settings, &ports[*count]);
        (*count)++;
    }
    if (context != NULL)
        ibv_close_device(context);
}

enum hkt_status hkt__verbs_ports_list(const struct hkt__settings *settings, struct hkt__verbs_port *out_ports, int max,
                                      int *out_count)
{
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);

    *out_count = 0;
    if (devices == NULL || count == 0) {
        if (devices != NULL)
            ibv_free_device_list(devices);
        return hkt__fail(HKT_ERR_UNSUPPORTED, "there is no RDMA device (/sys/class/infiniband is empty): needed are an "
                         "adapter, its kernel module, and its user driver (Debian: ibverbs-providers)");
    }
    for (int i = 0; i < count; i++)
        list_device(devices[i], settings, out_ports, max, out_count);
    ibv_free_device_list(devices);
    if (*out_count == 0)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "HOCKET_IB_DEVICES=%s allows none of the %d RDMA devices here",
                         settings->ib_devices, count);
    return HKT_OK;
}
