/* `hocket run --bind`: which CPUs each rank gets. Decided once, in the launcher, from the machine as this process may use it;
 * a rank takes its set just before the exec. */
#include <stdlib.h>
#include <string.h>

#include "hocket/topo.h"
#include "run.h"
#include "tools.h"

static void cpus_of(const struct hkt_topo *topo, int node, cpu_set_t *out_cpus)
{
    const int end = hkt_topo_node_get(topo, node)->end;

    CPU_ZERO(out_cpus);
    for (int i = node; i < end; i++)
        if (hkt_topo_node_get(topo, i)->kind == HKT_TOPO_PU)
            CPU_SET((size_t)hkt_topo_node_get(topo, i)->index, out_cpus);
}

/** "0-3,8". */
static void list_cpus(const cpu_set_t *cpus, char *out_text, size_t bytes)
{
    size_t used = 0;

    out_text[0] = '\0';
    for (int cpu = 0; cpu < CPU_SETSIZE && used + 16 < bytes; cpu++) {
        int last = cpu;

        if (!CPU_ISSET(cpu, cpus))
            continue;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, cpus))
            last++;
        used += (size_t)snprintf(out_text + used, bytes - used, last > cpu ? "%s%d-%d" : "%s%d", used > 0 ? "," : "",
                                 cpu, last);
        cpu = last;
    }
}

static void show(const struct run_opts *opts, const struct hkt_topo *topo, const int *nodes)
{
    for (int r = 0; r < opts->nranks; r++) {
        const struct hkt_topo_node *node = hkt_topo_node_get(topo, nodes[r]);
        char cpus[256];

        list_cpus(&opts->cpus[r], cpus, sizeof cpus);
        hkt_tool_say("run", "rank %d: %s %d, cpus %s", r, hkt_topo_kind_name(node->kind), node->index, cpus);
    }
}

/* Returns -1 to go on, else the exit code. */
static int deal(struct run_opts *opts, const struct hkt_topo *topo, int *nodes)
{
    /* Cores one after the other, so that ranks share a cache; parts with several cores evenly, so that all memory is used. */
    const int cores = hkt_tool_count(topo, HKT_TOPO_CORE);
    const enum hkt_topo_deal how = opts->nranks > cores ? HKT_TOPO_SHARE
                                   : opts->bind == HKT_TOPO_CORE ? HKT_TOPO_COMPACT : HKT_TOPO_SPREAD;

    if (hkt_topo_deal(topo, opts->nranks, (enum hkt_topo_kind)opts->bind, how, nodes) != HKT_OK) {
        hkt_tool_say("run", "--bind %s: %s that this process may use; use --bind none",
                     hkt_topo_kind_name((enum hkt_topo_kind)opts->bind), hkt_last_error());
        return TOOL_USAGE;
    }
    if (how == HKT_TOPO_SHARE)
        hkt_tool_say("run", "--bind %s: %d ranks share %d core%s", hkt_topo_kind_name((enum hkt_topo_kind)opts->bind),
                     opts->nranks, cores, cores == 1 ? "" : "s");
    for (int r = 0; r < opts->nranks; r++)
        cpus_of(topo, nodes[r], &opts->cpus[r]);
    if (opts->verbose)
        show(opts, topo, nodes);
    return -1;
}

/* What all ranks inherit. */
static void show_unbound(void)
{
    cpu_set_t cpus;
    char text[256];

    if (sched_getaffinity(0, sizeof cpus, &cpus) != 0)
        return;
    list_cpus(&cpus, text, sizeof text);
    hkt_tool_say("run", "ranks are not bound: cpus %s", text);
}

int run_bind(struct run_opts *opts)
{
    if (opts->bind == RUN_BIND_NONE) {
        if (opts->verbose)
            show_unbound();
        return -1;
    }
    struct hkt_topo *topo = NULL;
    int *nodes = calloc((size_t)opts->nranks, sizeof *nodes), code;

    opts->cpus = calloc((size_t)opts->nranks, sizeof *opts->cpus);
    if (nodes == NULL || opts->cpus == NULL) {
        hkt_tool_say("run", "no memory to bind %d ranks", opts->nranks);
        code = TOOL_FAILED;
    } else if (hkt_topo_detect(&topo) != HKT_OK) {
        hkt_tool_say("run", "--bind: %s", hkt_last_error());
        code = TOOL_FAILED;
    } else {
        code = deal(opts, topo, nodes);
    }
    hkt_topo_destroy(topo);
    free(nodes);
    return code;
}

bool run_bind_parse(const char *text, int *out_kind)
{
    static const enum hkt_topo_kind kinds[] = { HKT_TOPO_CORE, HKT_TOPO_L3, HKT_TOPO_NUMA, HKT_TOPO_PACKAGE };

    if (strcmp(text, "none") == 0) {
        *out_kind = RUN_BIND_NONE;
        return true;
    }
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(text, hkt_topo_kind_name(kinds[i])) == 0) {
            *out_kind = (int)kinds[i];
            return true;
        }
    }
    return false;
}
