/* This machine as a graph: ask a source for its parts, leave out what this process may not use, put one host in a net. */
#include "topology/detect.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/siphash.h"
#include "topology/sysfs.h"

uint64_t hkt__topo_host_id(void)
{
    static const unsigned char key[16] = "hocket host key";
    char text[512] = "";
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    size_t used = 0;

    if (file != NULL) {
        used = fread(text, 1, 64, file);
        fclose(file);
    }
    /* The host name tells containers of one kernel apart, which cannot reach each other's memory. */
    gethostname(text + used, sizeof text - used - 1);
    return hkt__siphash(key, text, strlen(text));
}

/** CPUs this thread may use. A machine with more than CPU_SETSIZE of them is asked with a larger set. */
static void own_cpus(cpu_set_t *out_cpus)
{
    cpu_set_t wide[16];

    memset(wide, 0, sizeof wide);
    if (sched_getaffinity(0, sizeof wide, wide) == 0)
        *out_cpus = wide[0];
    else
        memset(out_cpus, 0xff, sizeof *out_cpus);
}

/** The parts, and which CPUs of them may be used. */
static enum hkt_status read_items(const struct hkt__topo_detect_opts *opts, struct hkt__topo_items *items,
                                  cpu_set_t *out_allowed)
{
    const bool has_hwloc = hkt__topo_hwloc_version()[0] != '\0';
    bool here = true;
    enum hkt_status rc;

    own_cpus(out_allowed);
    if (opts->allowed != NULL)
        *out_allowed = *opts->allowed;
    if (opts->reader == HKT__TOPO_READ_HWLOC || (opts->reader == HKT__TOPO_READ_ANY && has_hwloc))
        rc = hkt__topo_hwloc_items(opts->devices, items, &here);
    else
        rc = hkt__topo_sysfs_items(opts->sysfs != NULL ? opts->sysfs : "/sys", out_allowed, items);
    if (!here && opts->allowed == NULL)
        memset(out_allowed, 0xff, sizeof *out_allowed);
    return rc;
}

/** The host reaches the net with what its NICs carry together, where that is known. */
static void link_host(struct hkt__topo_draft *draft, int32_t host, const struct hkt__topo_items *items)
{
    struct hkt_topo_link link = { .a = 0, .b = host, .kind = HKT_TOPO_NETWORK, .source = HKT_TOPO_SYSFS };

    for (int32_t i = 0; i < items->count; i++)
        link.bytes_per_s += items->list[i].node >= 0 ? items->list[i].net_bytes_per_s : 0;
    if (link.bytes_per_s != 0)
        hkt__topo_draft_link(draft, &link);
}

static enum hkt_status build(struct hkt__topo_draft *draft, struct hkt__topo_items *items, const cpu_set_t *allowed)
{
    const struct hkt_topo_node net = { .kind = HKT_TOPO_NET, .parent = -1 };
    struct hkt_topo_node host = { .kind = HKT_TOPO_HOST, .id = hkt__topo_host_id() };

    gethostname(host.name, sizeof host.name - 1);
    host.parent = hkt__topo_draft_add(draft, &net);
    const int32_t id = hkt__topo_draft_add(draft, &host);

    if (id < 0)
        return hkt__topo_draft_status(draft);
    const enum hkt_status rc = hkt__topo_nest(draft, id, items, allowed);

    if (rc < 0)
        return rc;
    link_host(draft, id, items);
    hkt__topo_draft_assume(draft);
    return hkt__topo_draft_status(draft);
}

enum hkt_status hkt__topo_detect(const struct hkt__topo_detect_opts *opts, struct hkt_topo **out_topo)
{
    struct hkt__topo_items items = { 0 };
    struct hkt__topo_draft *draft = NULL;
    cpu_set_t allowed;
    enum hkt_status rc = read_items(opts, &items, &allowed);

    if (rc < 0)
        goto free_items;
    draft = hkt__topo_draft_create();
    rc = draft != NULL ? build(draft, &items, &allowed) : HKT_ERR_NOMEM;
    if (rc == HKT_OK) {
        rc = hkt__topo_draft_finish(draft, out_topo);
        draft = NULL;
    }

free_items:
    hkt__topo_draft_destroy(draft);
    hkt__topo_items_free(&items);
    return rc < 0 ? hkt__error_context(rc, "the topology of this machine") : rc;
}

enum hkt_status hkt_topo_detect(struct hkt_topo **out_topo)
{
    const struct hkt__topo_detect_opts opts = { .devices = true };

    return hkt__topo_detect(&opts, out_topo);
}

const char *hkt_topo_hwloc_version(void)
{
    return hkt__topo_hwloc_version();
}
