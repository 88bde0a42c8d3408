/* `hocket topo`: the machine as a graph, from this machine, a file or one line; its ranks; saved, drawn, printed. */
#include "topo.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "hocket/hocket.h"
#include "tools.h"

static const char help_text[] =
    "usage: hocket topo [--load FILE | --synthetic LINE | --job] [OPTIONS]\n\n"
    "Shows a machine: racks, hosts, packages, NUMA nodes, L3 caches, cores, GPUs, NICs, and what joins them, with bandwidth\n"
    "and latency where known and where they come from. Without an option: this machine, as far as this process may use it.\n\n"
    "  -l, --load FILE       from a file written by --save or by hand\n"
    "  -s, --synthetic LINE  from one line: KIND:COUNT words from the outside in, each count per part around; gpu, nvswitch and\n"
    "                        nic per host; @BANDWIDTH,LATENCY for the link of each, e.g.\n"
    "                          \"host:64 package:2 numa:4 l3:2 core:8 nic:2@25GB/s,2us\"\n"
    "                          \"package:2 numa:1 gpu:8 nvswitch:1@450GB/s nic:8@50GB/s\"\n"
    "                        kinds: rack, host, package, numa, l3, core, pu; gpu, nvswitch, nic\n"
    "  -J, --job             the machines of a job and where its ranks are, as `hocket run -n 8 hocket topo --job`: each rank\n"
    "                        tells what it may use of its host, rank 0 shows it\n"
    "  -o, --save FILE       write it as text; - for standard output\n"
    "  -S, --svg FILE        draw it\n"
    "  -n, --ranks N         N ranks, spread evenly: their levels, ring and tree\n"
    "  -b, --by KIND         what a rank gets: core, l3, numa, package, host or gpu; default core, where there is one\n"
    "  -r, --root R          root of the tree; default 0\n"
    "  -f, --full            every part, parts that look alike too\n"
    "  -j, --json            as JSON\n"
    "  -h, --help            this text\n\n"
    "bandwidth: bytes per second of one direction, decimal (GB/s = 10^9); latency: of the link alone\n";

struct topo_request {
    const char *load, *synthetic, *save, *svg, *by;
    bool job, json;
};

/* One option; returns -1 to go on, else the exit code. */
static int take_option(int c, struct topo_request *request, struct topo_view *view)
{
    long number;

    switch (c) {
    case 'l':
        request->load = optarg;
        return -1;
    case 's':
        request->synthetic = optarg;
        return -1;
    case 'J':
        request->job = true;
        return -1;
    case 'o':
        request->save = optarg;
        return -1;
    case 'S':
        request->svg = optarg;
        return -1;
    case 'n':
        if (!hkt_tool_parse_int(optarg, 1, HKT_RANKS_MAX, &number))
            return hkt_tool_usage("topo", "-n %s: the number of ranks is 1 to %d", optarg, HKT_RANKS_MAX);
        view->nranks = (int)number;
        return -1;
    case 'b':
        request->by = optarg;
        return -1;
    case 'r':
        if (!hkt_tool_parse_int(optarg, 0, HKT_RANKS_MAX - 1, &number))
            return hkt_tool_usage("topo", "--root %s: give a rank", optarg);
        view->root = (int)number;
        return -1;
    case 'f':
        view->full = true;
        return -1;
    default: /* 'j' */
        request->json = true;
        return -1;
    }
}

static int read_options(int argc, char **argv, struct topo_request *request, struct topo_view *view)
{
    static const struct option options[] = {
        { "load", required_argument, NULL, 'l' },
        { "synthetic", required_argument, NULL, 's' },
        { "job", no_argument, NULL, 'J' },
        { "save", required_argument, NULL, 'o' },
        { "svg", required_argument, NULL, 'S' },
        { "ranks", required_argument, NULL, 'n' },
        { "by", required_argument, NULL, 'b' },
        { "root", required_argument, NULL, 'r' },
        { "full", no_argument, NULL, 'f' },
        { "json", no_argument, NULL, 'j' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };

    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":l:s:Jo:S:n:b:r:fjh", options, NULL)) != -1;) {
        if (c == 'h') {
            fputs(help_text, stdout);
            return TOOL_OK;
        }
        if (c == ':')
            return hkt_tool_usage("topo", "%s needs a value", argv[optind - 1]);
        if (c == '?')
            return hkt_tool_usage("topo", "there is no option %s", argv[optind - 1]);
        const int code = take_option(c, request, view);

        if (code >= 0)
            return code;
    }
    if (optind < argc)
        return hkt_tool_usage("topo", "\"%s\" is one argument too many", argv[optind]);
    if (request->load != NULL && request->synthetic != NULL)
        return hkt_tool_usage("topo", "either --load or --synthetic");
    if (request->job && (request->load != NULL || request->synthetic != NULL || view->nranks > 0 || request->by != NULL))
        return hkt_tool_usage("topo", "--job shows the ranks where they are: without --load, --synthetic, --ranks, --by");
    if (view->nranks == 0 && request->by != NULL)
        return hkt_tool_usage("topo", "--by says what each of --ranks N gets");
    if (!request->job && view->root > 0 && view->root >= view->nranks)
        return hkt_tool_usage("topo", "root %d is no rank of %d", view->root, view->nranks);
    return -1;
}

static int get_machine(const struct topo_request *request, struct topo_view *view, struct hkt_topo **out_topo)
{
    enum hkt_status rc;

    if (request->load != NULL) {
        snprintf(view->source, sizeof view->source, "from %s", request->load);
        rc = hkt_topo_load(request->load, out_topo);
    } else if (request->synthetic != NULL) {
        snprintf(view->source, sizeof view->source, "described: %s", request->synthetic);
        rc = hkt_topo_synthetic(request->synthetic, out_topo);
    } else {
        const char *version = hkt_topo_hwloc_version();
        const double quota = hkt_cpu_quota("");

        snprintf(view->source, sizeof view->source, "this machine, read %s %s",
                 version[0] != '\0' ? "with hwloc" : "from", version[0] != '\0' ? version : "/sys");
        if (quota > 0)
            snprintf(view->source + strlen(view->source), sizeof view->source - strlen(view->source),
                     "; the quota of its cgroup: %.4g CPUs", quota);
        rc = hkt_topo_detect(out_topo);
    }
    if (rc == HKT_OK)
        return -1;
    if (rc == HKT_ERR_INVALID)
        return hkt_tool_usage("topo", "%s", hkt_last_error());
    hkt_tool_say("topo", "%s", hkt_last_error());
    return TOOL_FAILED;
}

/* Of all ranks of the job; -1: go on, on rank 0. The others have done their part. */
static int get_job(struct topo_view *view, struct hkt_topo **out_topo)
{
    struct hkt_comm *comm = NULL;
    enum hkt_status rc = hkt_comm_init_env(&comm, NULL);
    int code = -1;

    if (rc == HKT_OK) {
        view->nranks = hkt_comm_size(comm);
        view->nodes = calloc((size_t)view->nranks, sizeof *view->nodes);
        rc = hkt_comm_topo(comm, out_topo, view->nodes);
    }
    if (rc < 0) {
        hkt_tool_say("topo", "--job: %s", hkt_last_error());
        code = TOOL_FAILED;
    } else if (view->nodes == NULL) {
        hkt_tool_say("topo", "no memory for %d ranks", view->nranks);
        code = TOOL_FAILED;
    } else if (hkt_comm_rank(comm) > 0) {
        code = TOOL_OK;
    } else if (view->root >= view->nranks) {
        code = hkt_tool_usage("topo", "root %d is no rank of %d", view->root, view->nranks);
    }
    (void)hkt_comm_destroy(comm);
    snprintf(view->source, sizeof view->source, "the machines of a job of %d ranks", view->nranks);
    return code;
}

/* Puts them where asked. */
static int deal_ranks(const struct topo_request *request, struct topo_view *view)
{
    view->dealt = true;
    view->by = hkt_tool_count(view->topo, HKT_TOPO_CORE) > 0 ? HKT_TOPO_CORE : HKT_TOPO_GPU;
    if (request->by != NULL && hkt_topo_kind_parse(request->by, &view->by) != HKT_OK)
        return hkt_tool_usage("topo", "--by: %s", hkt_last_error());
    view->nodes = calloc((size_t)view->nranks, sizeof *view->nodes);
    if (view->nodes == NULL) {
        hkt_tool_say("topo", "no memory for %d ranks", view->nranks);
        return TOOL_FAILED;
    }
    if (hkt_topo_deal(view->topo, view->nranks, view->by, HKT_TOPO_SPREAD, view->nodes) != HKT_OK)
        return hkt_tool_usage("topo", "%s", hkt_last_error());
    return -1;
}

static int order_ranks(struct topo_view *view)
{
    view->parents = calloc((size_t)view->nranks, sizeof *view->parents);
    if (view->parents == NULL) {
        hkt_tool_say("topo", "no memory for %d ranks", view->nranks);
        return TOOL_FAILED;
    }
    if (hkt_topo_order_create(view->topo, view->nodes, view->nranks, &view->order) == HKT_OK
        && hkt_topo_order_tree(view->order, view->root, view->parents) == HKT_OK)
        return -1;
    hkt_tool_say("topo", "%s", hkt_last_error());
    return TOOL_FAILED;
}

/* Save or draw; returns -1 to go on, else the exit code. */
static int write_file(const struct topo_view *view, const char *path, bool drawn)
{
    const bool is_stdout = strcmp(path, "-") == 0;
    FILE *file = is_stdout ? stdout : fopen(path, "w");
    bool ok = file != NULL;

    if (ok)
        ok = drawn ? topo_svg(view, file) : hkt_topo_save(view->topo, file) == HKT_OK;
    if (file != NULL && (is_stdout ? fflush(file) : fclose(file)) != 0)
        ok = false;
    if (ok)
        return -1;
    hkt_tool_say("topo", "%s cannot be written: %s", path, strerror(errno));
    return TOOL_FAILED;
}

static int show(const struct topo_request *request, struct topo_view *view)
{
    int code = view->nranks > 0 && !request->job ? deal_ranks(request, view) : -1;
    const bool on_stdout = (request->save != NULL && strcmp(request->save, "-") == 0)
                           || (request->svg != NULL && strcmp(request->svg, "-") == 0);

    if (code < 0 && view->nranks > 0)
        code = order_ranks(view);
    if (code < 0 && request->save != NULL)
        code = write_file(view, request->save, false);
    if (code < 0 && request->svg != NULL)
        code = write_file(view, request->svg, true);
    if (code >= 0)
        return code;
    if (on_stdout && !request->json)
        return TOOL_OK;
    return request->json ? topo_json(view) : topo_text(view);
}

int hkt_tool_topo(int argc, char **argv)
{
    struct topo_request request = { 0 };
    struct topo_view view = { 0 };
    struct hkt_topo *topo = NULL;
    int code = read_options(argc, argv, &request, &view);

    if (code < 0)
        code = request.job ? get_job(&view, &topo) : get_machine(&request, &view, &topo);
    if (code < 0) {
        view.topo = topo;
        code = show(&request, &view);
    }
    hkt_topo_order_destroy(view.order);
    hkt_topo_destroy(topo);
    free(view.nodes);
    free(view.parents);
    return code;
}
