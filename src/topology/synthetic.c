/* Machines from one line: "rack:2 host:8 package:2 numa:4 l3:2 core:8 nic:2@25GB/s,2us". Everything about hierarchies and
 * orders can thereby be tried on any machine. Regular by construction: level by level, each node of one gets the same number
 * of nodes of the next. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "topology/text.h"
#include "topology/units.h"

/* Words in the order in which they may appear; the first LEVELS are levels, the others devices. */
enum word {
    WORD_RACK,
    WORD_HOST,
    WORD_PACKAGE,
    WORD_NUMA,
    WORD_L3,
    WORD_CORE,
    WORD_PU,
    LEVELS,
    WORD_GPU = LEVELS,
    WORD_NVSWITCH,
    WORD_NIC,
    WORDS
};

static const struct {
    const char *name;
    enum hkt_topo_kind kind;
} words[WORDS] = {
    [WORD_RACK] = { "rack", HKT_TOPO_RACK },
    [WORD_HOST] = { "host", HKT_TOPO_HOST },
    [WORD_PACKAGE] = { "package", HKT_TOPO_PACKAGE },
    [WORD_NUMA] = { "numa", HKT_TOPO_NUMA },
    [WORD_L3] = { "l3", HKT_TOPO_L3 },
    [WORD_CORE] = { "core", HKT_TOPO_CORE },
    [WORD_PU] = { "pu", HKT_TOPO_PU },
    [WORD_GPU] = { "gpu", HKT_TOPO_GPU },
    [WORD_NVSWITCH] = { "nvswitch", HKT_TOPO_SWITCH },
    [WORD_NIC] = { "nic", HKT_TOPO_NIC },
};

struct recipe {
    int32_t count[WORDS]; /* 0: the word was not given */
    bool has_link[WORDS];
    struct hkt_topo_link link[WORDS];
};

/* Links that are not to the parent, where the line says nothing. NVLink: 18 links of 25 GB/s (NVIDIA H100 white paper); half
 * of the 936 ns between two GPUs of the HGX-H100 preset of ASTRA-sim 2. */
static const struct hkt_topo_link nvlink = {
    .kind = HKT_TOPO_NVLINK, .source = HKT_TOPO_ASSUMED, .bytes_per_s = 450000000000, .latency_ns = 468
};

/** "@BANDWIDTH[,LATENCY]". */
static enum hkt_status read_numbers(char *text, struct hkt_topo_link *out)
{
    char *comma = strchr(text, ',');
    uint64_t latency_ns = 0;

    if (comma != NULL)
        *comma++ = '\0';
    if (!hkt__parse_rate(text, &out->bytes_per_s))
        return hkt__fail(HKT_ERR_INVALID, "bandwidth \"%.32s\": for instance 12.5GB/s", text);
    if (comma != NULL && (!hkt__parse_time(comma, &latency_ns) || latency_ns > HKT__TOPO_LATENCY_MAX))
        return hkt__fail(HKT_ERR_INVALID, "latency \"%.32s\": for instance 90ns or 2.5us, up to 100ms", comma);
    out->latency_ns = (uint32_t)latency_ns;
    out->source = HKT_TOPO_GIVEN;
    return HKT_OK;
}

static enum hkt_status read_word(char *text, int *last, struct recipe *recipe)
{
    char *count = strchr(text, ':'), *numbers = strchr(text, '@'), *end;
    int w = 0;

    if (count != NULL)
        *count++ = '\0';
    while (w < WORDS && strcmp(words[w].name, text) != 0)
        w++;
    if (w == WORDS)
        return hkt__fail(HKT_ERR_INVALID,
                         "\"%.32s\": the parts are rack, host, package, numa, l3, core, pu, gpu, nvswitch, nic", text);
    if (w <= *last)
        return hkt__fail(HKT_ERR_INVALID, w == *last ? "%s is given twice" : "%s comes before %s: from the outside in",
                         text, words[*last].name);
    *last = w;
    if (count == NULL)
        return hkt__fail(HKT_ERR_INVALID, "write how many, for instance %s:2", text);
    if (numbers != NULL)
        *numbers++ = '\0';
    const long value = strtol(count, &end, 10);

    if (*count < '0' || *count > '9' || *end != '\0' || value < 1 || value > HKT_TOPO_NODES_MAX)
        return hkt__fail(HKT_ERR_INVALID, "%s:%.32s: there can be 1 to %d", text, count, HKT_TOPO_NODES_MAX);
    recipe->count[w] = (int32_t)value;
    recipe->has_link[w] = numbers != NULL;
    return numbers != NULL ? read_numbers(numbers, &recipe->link[w]) : HKT_OK;
}

/** Afterwards no product of counts overflows. */
static enum hkt_status check_size(const struct recipe *recipe)
{
    int64_t level = 1, hosts = 1, total = 1;

    for (int w = 0; w < WORDS; w++) {
        level = (w < LEVELS ? level : hosts) * (recipe->count[w] > 0 ? recipe->count[w] : 1);
        hosts = w == WORD_HOST ? level : hosts;
        total += recipe->count[w] > 0 ? level : 0;
        if (total > HKT_TOPO_NODES_MAX)
            return hkt__fail(HKT_ERR_INVALID, "more than %d nodes", HKT_TOPO_NODES_MAX);
    }
    return HKT_OK;
}

static enum hkt_status read_recipe(const char *line, struct recipe *recipe)
{
    char copy[HKT__TOPO_LINE_MAX], *rest = copy;
    int last = -1;

    if (strlen(line) >= sizeof copy)
        return hkt__fail(HKT_ERR_INVALID, "more than %d characters", HKT__TOPO_LINE_MAX - 1);
    memcpy(copy, line, strlen(line) + 1);
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        const enum hkt_status rc = read_word(word, &last, recipe);

        if (rc < 0)
            return rc;
    }
    if (recipe->count[WORD_CORE] == 0 && recipe->count[WORD_GPU] == 0)
        return hkt__fail(HKT_ERR_INVALID, "it has no place for a rank: add core:N or gpu:N");
    if (recipe->count[WORD_NVSWITCH] > 0 && recipe->count[WORD_GPU] == 0)
        return hkt__fail(HKT_ERR_INVALID, "an nvswitch joins GPUs: add gpu:N");
    if (recipe->count[WORD_HOST] == 0)
        recipe->count[WORD_HOST] = 1;
    if (recipe->count[WORD_CORE] > 0 && recipe->count[WORD_PU] == 0)
        recipe->count[WORD_PU] = 1;
    if (recipe->count[WORD_PU] > 0 && recipe->count[WORD_CORE] == 0)
        return hkt__fail(HKT_ERR_INVALID, "a pu lies in a core: add core:N");
    return check_size(recipe);
}

/** The nodes of one level: consecutive in the draft, per_host of them in each host (0: outside hosts). */
struct level {
    int32_t first, count, per_host;
};

static void add_link(struct hkt__topo_draft *draft, int32_t a, int32_t b, const struct hkt_topo_link *numbers)
{
    struct hkt_topo_link link = *numbers;

    link.a = a;
    link.b = b;
    hkt__topo_draft_link(draft, &link);
}

/** Put count[w] nodes in each node of the level around; returns the new level. */
static struct level add_level(struct hkt__topo_draft *draft, const struct recipe *recipe, int w, struct level outer)
{
    const enum hkt_topo_kind kind = words[w].kind;
    const int32_t count = recipe->count[w];
    struct level level = { .first = -1, .per_host = w == WORD_HOST ? 1 : outer.per_host * count };
    struct hkt_topo_link link;
    int32_t pus = 1; /* within one node: the number of an l3 or core is that of its first pu */

    for (int inner = w + 1; inner < LEVELS && (w == WORD_L3 || w == WORD_CORE); inner++)
        pus *= recipe->count[inner] > 0 ? recipe->count[inner] : 1;
    hkt__topo_typical(kind, &link);
    if (recipe->has_link[w]) {
        link.bytes_per_s = recipe->link[w].bytes_per_s;
        link.latency_ns = recipe->link[w].latency_ns;
        link.source = HKT_TOPO_GIVEN;
    }
    for (int32_t i = 0; i < outer.count && hkt__topo_draft_status(draft) == HKT_OK; i++) {
        for (int32_t k = 0; k < count && hkt__topo_draft_status(draft) == HKT_OK; k++) {
            const int32_t nth = w <= WORD_HOST ? level.count : level.count % level.per_host;
            const struct hkt_topo_node node = { .parent = outer.first + i,
                                                .kind = kind,
                                                .index = nth * pus,
                                                .id = w == WORD_HOST ? (uint64_t)level.count + 1 : 0 };
            const int32_t id = hkt__topo_draft_add(draft, &node);

            level.first = level.count == 0 ? id : level.first;
            level.count++;
            if (recipe->has_link[w] && id >= 0)
                add_link(draft, node.parent, id, &link);
        }
    }
    return level;
}

/** Devices of each host, dealt evenly to the nodes of a level; returns the new level. */
static struct level add_devices(struct hkt__topo_draft *draft, const struct recipe *recipe, int w, struct level outer)
{
    const int32_t count = recipe->count[w], hosts = outer.count / outer.per_host;
    struct level level = { .first = -1, .per_host = count };

    for (int64_t i = 0; i < (int64_t)hosts * count && hkt__topo_draft_status(draft) == HKT_OK; i++) {
        const int32_t host = (int32_t)(i / count), nth = (int32_t)(i % count);
        const int32_t within = (int32_t)((int64_t)nth * outer.per_host / count);
        const struct hkt_topo_node node = { .parent = outer.first + host * outer.per_host + within,
                                            .kind = words[w].kind,
                                            .index = nth };
        const int32_t id = hkt__topo_draft_add(draft, &node);

        level.first = level.count == 0 ? id : level.first;
        level.count++;
        if (w == WORD_GPU && recipe->has_link[w] && id >= 0) {
            struct hkt_topo_link link = recipe->link[w];

            link.kind = HKT_TOPO_PCIE;
            add_link(draft, node.parent, id, &link);
        }
    }
    return level;
}

/** Every GPU of a host to every NVSwitch of it; every NIC to the net, and the hosts with what their NICs carry together. */
static void join_devices(struct hkt__topo_draft *draft, const struct recipe *recipe, const struct level *levels)
{
    const struct level *gpus = &levels[WORD_GPU], *switches = &levels[WORD_NVSWITCH], *nics = &levels[WORD_NIC];
    struct hkt_topo_link link = nvlink;

    if (recipe->has_link[WORD_NVSWITCH]) {
        link = recipe->link[WORD_NVSWITCH];
        link.kind = HKT_TOPO_NVLINK;
    }
    for (int32_t s = 0; s < switches->count; s++)
        for (int32_t g = 0; g < gpus->per_host; g++)
            add_link(draft, gpus->first + s / switches->per_host * gpus->per_host + g, switches->first + s, &link);
    hkt__topo_typical(HKT_TOPO_HOST, &link);
    if (recipe->has_link[WORD_NIC])
        link = recipe->link[WORD_NIC];
    link.kind = HKT_TOPO_NETWORK;
    for (int32_t n = 0; n < nics->count; n++)
        add_link(draft, 0, nics->first + n, &link);
    if (nics->per_host > 0)
        link.bytes_per_s = link.bytes_per_s > HKT__TOPO_RATE_MAX / (uint64_t)nics->per_host
                               ? HKT__TOPO_RATE_MAX
                               : link.bytes_per_s * (uint64_t)nics->per_host;
    for (int32_t h = 0; h < levels[WORD_HOST].count && nics->count > 0 && !recipe->has_link[WORD_HOST]; h++)
        add_link(draft, hkt__topo_draft_node(draft, levels[WORD_HOST].first + h)->parent, levels[WORD_HOST].first + h,
                 &link);
}

static void build(struct hkt__topo_draft *draft, const struct recipe *recipe)
{
    const struct hkt_topo_node net = { .kind = HKT_TOPO_NET, .parent = -1 };
    struct level levels[WORDS] = { 0 }, outer = { 0, 1, 0 }, memory = { 0 };

    hkt__topo_draft_add(draft, &net);
    for (int w = 0; w < LEVELS; w++) {
        if (recipe->count[w] == 0)
            continue;
        outer = levels[w] = add_level(draft, recipe, w, outer);
        if (w <= WORD_NUMA)
            memory = outer;
    }
    for (int w = LEVELS; w < WORDS && hkt__topo_draft_status(draft) == HKT_OK; w++)
        if (recipe->count[w] > 0)
            levels[w] = add_devices(draft, recipe, w, w == WORD_NVSWITCH ? levels[WORD_HOST] : memory);
    if (hkt__topo_draft_status(draft) == HKT_OK)
        join_devices(draft, recipe, levels);
    hkt__topo_draft_assume(draft);
}

enum hkt_status hkt_topo_synthetic(const char *line, struct hkt_topo **out_topo)
{
    struct recipe recipe = { 0 };
    enum hkt_status rc = read_recipe(line, &recipe);

    if (rc < 0)
        return hkt__error_context(rc, "machine \"%.100s\"", line);
    struct hkt__topo_draft *draft = hkt__topo_draft_create();

    if (draft == NULL)
        return HKT_ERR_NOMEM;
    build(draft, &recipe);
    rc = hkt__topo_draft_finish(draft, out_topo);
    return rc < 0 ? hkt__error_context(rc, "machine \"%.100s\"", line) : rc;
}
