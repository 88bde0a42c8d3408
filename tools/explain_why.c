/* `hocket explain --why`: which algorithm would be chosen, what each candidate should cost, and the bound; on this machine, or
 * on machines that are only described. */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <unistd.h>

#include "explain.h"
#include "hocket/hocket.h"
#include "tools.h"
#include "topo.h"

#define CANDIDATES_MAX 64
#define NEARLY 0.025 /* what counts as hardly more, where that is most (cost/select.c) */

/** The machines that are asked about, and the ranks on them. */
struct machines {
    struct hkt_topo *topo;           /* NULL: none were named */
    int *nodes;
    struct hkt_topo_order *order;
    char hierarchy[256];
};

static int print_json(const struct machines *machines, const struct hkt_candidate *candidates, int count,
                      const struct hkt_bound *bound)
{
    cJSON *root = cJSON_CreateObject(), *list = cJSON_CreateArray();

    if (machines->topo != NULL)
        cJSON_AddStringToObject(root, "hierarchy", machines->hierarchy);

    cJSON_AddBoolToObject(root, "tuned", count > 0 && candidates[0].tuned);
    cJSON_AddNumberToObject(root, "bound_us", bound->time_us);
    cJSON_AddStringToObject(root, "bound", bound->text);
    cJSON_AddItemToObject(root, "candidates", list);
    for (int i = 0; i < count; i++) {
        cJSON *row = cJSON_CreateObject();

        cJSON_AddStringToObject(row, "algorithm", candidates[i].algo);
        cJSON_AddBoolToObject(row, "chosen", candidates[i].chosen);
        cJSON_AddBoolToObject(row, "forced", candidates[i].forced);
        if (candidates[i].unfit[0] == '\0') {
            cJSON_AddNumberToObject(row, "predicted_us", candidates[i].predicted_us);
            cJSON_AddNumberToObject(row, "slices", candidates[i].slices);
            cJSON_AddNumberToObject(row, "slice_bytes", (double)candidates[i].slice_bytes);
            cJSON_AddNumberToObject(row, "lanes", candidates[i].lanes);
        } else {
            cJSON_AddStringToObject(row, "unfit", candidates[i].unfit);
        }
        if (candidates[i].measured_us > 0)
            cJSON_AddNumberToObject(row, "measured_us", candidates[i].measured_us);
        cJSON_AddItemToArray(list, row);
    }
    return hkt_tool_print_json("explain", root);
}

/** The price that makes up most of a prediction. */
static void print_largest_term(const struct hkt_candidate *candidate)
{
    struct hkt_price price;
    int largest = 0;

    for (int i = 1; i < HKT_PRICE_COUNT; i++)
        if (candidate->terms_us[i] > candidate->terms_us[largest])
            largest = i;
    if (hkt_price_get(largest, &price) == HKT_OK && candidate->predicted_us > 0)
        printf("  most of it %s (%.0f %%)", price.name, 100 * candidate->terms_us[largest] / candidate->predicted_us);
}

/** Why it was chosen, when `least_us` is the least that any candidate should take; some are set apart for larger vectors. */
static const char *reason_of(const struct hkt_candidate *chosen, double least_us)
{
    if (chosen->predicted_us <= least_us)
        return "the least";
    return chosen->predicted_us <= least_us * (1 + NEARLY) ? "hardly more than the least, and preferred"
                                                         : "the least of those for vectors of this size";
}

static void print_candidate(const struct hkt_candidate *candidate, double least_us)
{
    if (candidate->unfit[0] != '\0') {
        printf("  %-22s %15s  %s\n", candidate->algo, "-", candidate->unfit);
        return;
    }
    printf("  %-22s %12.2f us", candidate->algo, candidate->predicted_us);
    print_largest_term(candidate);
    printf("  %d slice%s, %d lane%s", candidate->slices, candidate->slices > 1 ? "s" : "", candidate->lanes, candidate->lanes > 1 ? "s" : "");
    if (candidate->forced)
        printf("  chosen: forced (HOCKET_ALGO)");
    else if (candidate->measured_us > 0)
        printf("  chosen: the fastest of those measured near this size, %.2f us", candidate->measured_us);
    else if (candidate->chosen)
        printf("  chosen: %s", reason_of(candidate, least_us));
    putchar('\n');
}

static void print_text(const struct explain_why *request, const struct machines *machines,
                       const struct hkt_candidate *candidates, int count, const struct hkt_bound *bound)
{
    const struct hkt_choice_query *choice = &request->choice;
    const bool is_tuned = count > 0 && candidates[0].tuned;

    printf("%s of %zu bytes over %d ranks, %s, %g ranks per core%s%s; %s\n", hkt_coll_name(choice->coll), choice->bytes,
           choice->nranks, choice->transport, choice->crowd, choice->in_place ? ", in place" : "",
           choice->registered ? ", registered buffers" : "",
           is_tuned ? "prices measured by hocket tune" : "default prices");
    if (!is_tuned && machines->topo == NULL && access(hkt_tune_path(), R_OK) == 0)
        printf("%s has no table for %d ranks of this machine over %s\n", hkt_tune_path(), choice->nranks, choice->transport);
    if (machines->topo != NULL)
        printf("on %s: %s\n", request->machines, machines->hierarchy);
    for (int i = 0; i < count; i++)
        print_candidate(&candidates[i],
                        candidates[count < 2 || candidates[1].unfit[0] != '\0' ? 0 : 1].predicted_us);
    printf("  %-22s %12.2f us  %s\n", "bound", bound->time_us, bound->text);
}

/** Read the machines and put ranks on them; returns -1 to go on, else the exit code. */
static int get_machines(const struct explain_why *request, struct machines *machines)
{
    const int nranks = request->choice.nranks;
    const bool is_file = access(request->machines, R_OK) == 0;
    const enum hkt_topo_deal deal = request->choice.crowd > 1 ? HKT_TOPO_SHARE : HKT_TOPO_SPREAD;
    enum hkt_topo_kind by;

    if ((is_file ? hkt_topo_load(request->machines, &machines->topo)
                 : hkt_topo_synthetic(request->machines, &machines->topo)) != HKT_OK)
        return is_file ? hkt_tool_usage("explain", "--topo: %s", hkt_last_error())
                       : hkt_tool_usage("explain", "--topo: no file \"%s\", and as a line: %s", request->machines,
                                        hkt_last_error());
    by = hkt_tool_count(machines->topo, HKT_TOPO_CORE) > 0 ? HKT_TOPO_CORE : HKT_TOPO_GPU;
    if (request->by != NULL && hkt_topo_kind_parse(request->by, &by) != HKT_OK)
        return hkt_tool_usage("explain", "--by: %s", hkt_last_error());
    machines->nodes = calloc((size_t)nranks, sizeof *machines->nodes);
    if (machines->nodes == NULL) {
        hkt_tool_say("explain", "no memory for %d ranks", nranks);
        return TOOL_FAILED;
    }
    if (hkt_topo_deal(machines->topo, nranks, by, deal, machines->nodes) != HKT_OK ||
        hkt_topo_order_create(machines->topo, machines->nodes, nranks, &machines->order) != HKT_OK)
        return hkt_tool_usage("explain", "--topo: %s", hkt_last_error());
    topo_hierarchy_text(machines->order, machines->hierarchy, sizeof machines->hierarchy);
    return -1;
}

static int weigh(const struct explain_why *request, const struct machines *machines)
{
    struct hkt_choice_query choice = request->choice;
    struct hkt_candidate candidates[CANDIDATES_MAX];
    struct hkt_bound bound;
    int count = 0;

    choice.topo = machines->topo;
    choice.nodes = machines->nodes;
    if (hkt_plan_candidates(&choice, candidates, CANDIDATES_MAX, &count) < 0 || hkt_plan_bound(&choice, &bound) < 0)
        return hkt_tool_usage("explain", "%s", hkt_last_error());
    if (request->json)
        return print_json(machines, candidates, count, &bound);
    print_text(request, machines, candidates, count, &bound);
    return TOOL_OK;
}

int explain_why(const struct explain_why *request)
{
    struct machines machines = { 0 };
    int code = request->machines != NULL ? get_machines(request, &machines) : -1;

    if (code < 0)
        code = weigh(request, &machines);
    hkt_topo_order_destroy(machines.order);
    hkt_topo_destroy(machines.topo);
    free(machines.nodes);
    return code;
}
