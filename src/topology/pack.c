/* Graphs as bytes: numbers of 7 bits per byte, the highest bit says that more follow. A node of a usual host takes four
 * bytes and its link four to eight. Bytes come from peers: nothing in them is trusted. */
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "topology/merge.h"

static const unsigned char magic[4] = { 'H', 'K', 'T', 1 };

#define NODE_BYTES_MAX (10 * 7 + HKT_TOPO_NAME_MAX) /* numbers of a node, its link included */
#define LINK_BYTES_MAX (10 * 6)

struct writer {
    unsigned char *at;
};

static void put(struct writer *writer, uint64_t value)
{
    while (value >= 0x80) {
        *writer->at++ = (unsigned char)(value | 0x80);
        value >>= 7;
    }
    *writer->at++ = (unsigned char)value;
}

static void put_link(struct writer *writer, const struct hkt_topo_link *link)
{
    put(writer, (uint64_t)link->kind << 3 | (uint64_t)link->source);
    put(writer, link->bytes_per_s);
    put(writer, link->latency_ns);
}

enum hkt_status hkt__topo_pack(const struct hkt_topo *topo, unsigned char **out_blob, size_t *out_bytes)
{
    const size_t room =
        sizeof magic + 20 + (size_t)topo->nnodes * NODE_BYTES_MAX + (size_t)topo->nlinks * LINK_BYTES_MAX;
    unsigned char *blob = hkt__calloc(room, 1);
    struct writer writer = { blob };

    if (blob == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to pack a topology of %d nodes", topo->nnodes);
    memcpy(writer.at, magic, sizeof magic);
    writer.at += sizeof magic;
    put(&writer, (uint64_t)topo->nnodes);
    for (int32_t i = 0; i < topo->nnodes; i++) {
        const struct hkt_topo_node *node = &topo->nodes[i];
        const size_t letters = strlen(node->name);

        put(&writer, (uint64_t)node->kind << 1 | (node->uplink >= 0));
        put(&writer, (uint64_t)(i - node->parent)); /* the root's parent is -1 */
        put(&writer, (uint64_t)node->index);
        if (node->kind == HKT_TOPO_HOST)
            put(&writer, node->id);
        if (node->kind == HKT_TOPO_NUMA || node->kind == HKT_TOPO_L3)
            put(&writer, node->bytes);
        put(&writer, letters);
        memcpy(writer.at, node->name, letters);
        writer.at += letters;
        if (node->uplink >= 0)
            put_link(&writer, &topo->links[node->uplink]);
    }
    put(&writer, (uint64_t)(topo->nlinks - topo->nuplinks));
    for (int32_t i = topo->nuplinks; i < topo->nlinks; i++) {
        put(&writer, (uint64_t)topo->links[i].a);
        put(&writer, (uint64_t)topo->links[i].b);
        put_link(&writer, &topo->links[i]);
    }
    *out_bytes = (size_t)(writer.at - blob);
    *out_blob = blob;
    return HKT_OK;
}

struct parcel {
    const unsigned char *at, *end;
    bool bad;
};

/** The next number, at most `most`; 0 and bad when there is none. */
static uint64_t take(struct parcel *parcel, uint64_t most)
{
    uint64_t value = 0;

    for (unsigned shift = 0; shift < 64 && parcel->at < parcel->end; shift += 7) {
        const unsigned char byte = *parcel->at++;

        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte & 0x80)
            continue;
        if (value > most || (shift == 63 && byte > 1))
            break;
        return value;
    }
    parcel->bad = true;
    return 0;
}

static void take_link(struct parcel *parcel, struct hkt_topo_link *out_link)
{
    const uint64_t kinds = take(parcel, UINT8_MAX);

    out_link->kind = (enum hkt_topo_link_kind)(kinds >> 3);
    out_link->source = (enum hkt_topo_source)(kinds & 7);
    out_link->bytes_per_s = take(parcel, HKT__TOPO_RATE_MAX);
    out_link->latency_ns = (uint32_t)take(parcel, HKT__TOPO_LATENCY_MAX);
    if (out_link->kind >= HKT_TOPO_LINK_COUNT || out_link->source >= HKT_TOPO_SOURCE_COUNT)
        parcel->bad = true;
}

static void take_node(struct parcel *parcel, struct hkt__topo_draft *draft, int32_t number)
{
    const uint64_t head = take(parcel, HKT_TOPO_KIND_COUNT * 2 - 1);
    struct hkt_topo_node node = { .kind = (enum hkt_topo_kind)(head >> 1) };
    struct hkt_topo_link link;

    node.parent = number - (int32_t)take(parcel, (uint64_t)number + 1);
    node.index = (int32_t)take(parcel, INT32_MAX);
    if (node.kind == HKT_TOPO_HOST)
        node.id = take(parcel, UINT64_MAX);
    if (node.kind == HKT_TOPO_NUMA || node.kind == HKT_TOPO_L3)
        node.bytes = take(parcel, UINT64_MAX);
    const uint64_t letters = take(parcel, HKT_TOPO_NAME_MAX - 1);

    if (parcel->bad || letters > (uint64_t)(parcel->end - parcel->at) || node.parent >= number) {
        parcel->bad = true;
        return;
    }
    memcpy(node.name, parcel->at, letters);
    parcel->at += letters;
    const int32_t id = hkt__topo_draft_add(draft, &node);

    if ((head & 1) == 0)
        return;
    take_link(parcel, &link);
    link.a = node.parent;
    link.b = id;
    parcel->bad = parcel->bad || id <= 0;
    if (!parcel->bad)
        hkt__topo_draft_link(draft, &link);
}

static enum hkt_status take_all(struct parcel *parcel, struct hkt__topo_draft *draft)
{
    if ((size_t)(parcel->end - parcel->at) < sizeof magic || memcmp(parcel->at, magic, sizeof magic) != 0)
        return hkt__fail(HKT_ERR_CORRUPT, "a topology of another version of hocket, or none");
    parcel->at += sizeof magic;
    const int32_t nnodes = (int32_t)take(parcel, HKT_TOPO_NODES_MAX);

    for (int32_t i = 0; i < nnodes && !parcel->bad && hkt__topo_draft_status(draft) == HKT_OK; i++)
        take_node(parcel, draft, i);
    const uint64_t nlinks = take(parcel, 4 * HKT_TOPO_NODES_MAX);

    for (uint64_t i = 0; i < nlinks && nnodes > 0 && !parcel->bad && hkt__topo_draft_status(draft) == HKT_OK; i++) {
        struct hkt_topo_link link;

        link.a = (int32_t)take(parcel, (uint64_t)nnodes - 1);
        link.b = (int32_t)take(parcel, (uint64_t)nnodes - 1);
        take_link(parcel, &link);
        if (!parcel->bad)
            hkt__topo_draft_link(draft, &link);
    }
    if (hkt__topo_draft_status(draft) < 0)
        return hkt__topo_draft_status(draft);
    return parcel->bad || parcel->at != parcel->end ? hkt__fail(HKT_ERR_CORRUPT, "a topology with damaged bytes")
                                                    : HKT_OK;
}

enum hkt_status hkt__topo_unpack(const unsigned char *blob, size_t bytes, struct hkt_topo **out_topo)
{
    struct hkt__topo_draft *draft = hkt__topo_draft_create();
    struct parcel parcel = { .at = blob, .end = blob + bytes };

    if (draft == NULL)
        return HKT_ERR_NOMEM;
    const enum hkt_status rc = take_all(&parcel, draft);

    if (rc < 0) {
        hkt__topo_draft_destroy(draft);
        return rc;
    }
    return hkt__topo_draft_finish(draft, out_topo);
}
