/* cuda_p2p: domains. Each has a domain of shm's below it, whose window holds the words, and an arena of slots on the
 * device, for each member and lane. Closing waits for the own copies, never for a peer; the arena is freed when those
 * that map it have said that they do not any more (device/cuda_group.h). */
#include "cuda_p2p/cuda_p2p.h"

#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "core/log.h"
#include "core/mem.h"
#include "transport/below.h"

#define NAP_NS 100000 /* while a payload is under way: nobody rings when it arrives */

struct hkt__p2p_word *hkt__p2p_word_at(const struct hkt__p2p_dom *dom, int owner, int member, int lane)
{
    struct hkt__p2p_word *words = dom->below->ops->window(dom->below, owner);

    return words != NULL ? &words[(size_t)member * (size_t)dom->lanes + (size_t)lane] : NULL;
}

size_t hkt__p2p_slots_at(const struct hkt__p2p_dom *dom, int member, int lane)
{
    return ((size_t)member * (size_t)dom->lanes + (size_t)lane) * dom->tp->nslots * dom->tp->slot_bytes;
}

/* ---- opening ---- */

/** The arena and the streams. Without them the domain works, through the channels below. */
static void open_device(struct hkt__p2p_dom *dom)
{
    struct hkt__p2p *tp = dom->tp;
    const size_t bytes = hkt__p2p_slots_at(dom, dom->nranks, 0);
    const struct hkt__cuda_group group = {.module = tp->cuda, .rank = dom->rank, .nranks = dom->nranks, .device = tp->device,
                                          .arena_bytes = bytes};

    if (dom->nranks > HKT__CUDA_GROUP_MAX || bytes > HKT__P2P_ARENA_MAX) {
        snprintf(dom->why_not, sizeof dom->why_not, "%d ranks with %d lanes need %zu MiB of a device", dom->nranks, dom->lanes,
                 bytes >> 20);
        return;
    }
    dom->group = group;
    if (hkt__cuda_group_open(&dom->group, &dom->offer) < 0) {
        snprintf(dom->why_not, sizeof dom->why_not, "%.*s", HKT__P2P_TEXT - 1, hkt_last_error());
        dom->group.module = NULL;
        return;
    }
    const int rc = tp->cuda->stream_create(&dom->rx_stream, tp->device);

    if (rc != 0) {
        snprintf(dom->why_not, sizeof dom->why_not, "CUDA: cannot make a stream: %.100s", tp->cuda->error_text(rc));
        hkt__cuda_group_close(&dom->group, 0);
    }
}

static enum hkt_status open_below(struct hkt__p2p_dom *dom, const struct hkt__tp_members *members, unsigned char *out_blob,
                                  size_t *out_bytes)
{
    struct hkt__tp_members below = *members;
    size_t bytes = 0;

    below.window_bytes = (size_t)members->nranks * (size_t)members->lanes * sizeof(struct hkt__p2p_word);
    const enum hkt_status rc = dom->tp->below->ops->dom_open(dom->tp->below, &below, &dom->below, out_blob, &bytes);

    *out_bytes = bytes;
    return rc;
}

static void dom_free(struct hkt__p2p_dom *dom)
{
    for (size_t i = 0; dom->links != NULL && i < (size_t)dom->nranks * (size_t)dom->lanes; i++)
        hkt__p2p_link_destroy(dom->links[i]);
    if (dom->below != NULL)
        dom->below->ops->dom_close(dom->below);
    hkt__free(dom->links);
    hkt__free(dom->members);
    hkt__free(dom);
}

enum hkt_status hkt__p2p_dom_open(struct hkt__tp *base, const struct hkt__tp_members *members, struct hkt__tp_dom **out_dom,
                                  void *out_blob, size_t *out_bytes)
{
    struct hkt__p2p *tp = (struct hkt__p2p *)base;
    struct hkt__p2p_dom *dom = hkt__calloc(1, sizeof *dom);
    unsigned char below[HKT__TP_BLOB_MAX];
    size_t bytes = 0;

    if (dom == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a domain");
    dom->dom.ops = tp->tp.ops;
    dom->tp = tp;
    dom->nranks = members->nranks;
    dom->rank = members->rank;
    dom->lanes = members->lanes;
    dom->members = hkt__calloc((size_t)dom->nranks, sizeof *dom->members);
    dom->links = hkt__calloc((size_t)dom->nranks * (size_t)dom->lanes, sizeof(struct hkt__p2p_link *));
    enum hkt_status rc = dom->members != NULL && dom->links != NULL
                             ? open_below(dom, members, below, &bytes)
                             : hkt__fail(HKT_ERR_NOMEM, "no memory for the channels of a domain");

    if (rc == HKT_OK && bytes + sizeof(struct hkt__p2p_dom_blob) > HKT__TP_BLOB_MAX)
        rc = hkt__fail(HKT_ERR_BUG, "a domain of shm describes itself in %zu bytes", bytes);
    if (rc < 0) {
        dom_free(dom);
        return rc;
    }
    open_device(dom);
    const struct hkt__p2p_dom_blob own = {.nslots = tp->nslots, .has_arena = dom->group.module != NULL,
                                          .slot_bytes = tp->slot_bytes, .offer = dom->offer};

    memcpy(out_blob, &own, sizeof own);
    memcpy((unsigned char *)out_blob + sizeof own, below, bytes);
    *out_bytes = sizeof own + bytes;
    *out_dom = &dom->dom;
    return HKT_OK;
}

enum hkt_status hkt__p2p_dom_connect(struct hkt__tp_dom *base, const unsigned char *blobs, const size_t *bytes,
                                     const unsigned char *use)
{
    struct hkt__p2p_dom *dom = (struct hkt__p2p_dom *)base;
    const struct hkt__headed_blobs theirs = {blobs, bytes, dom->nranks, sizeof(struct hkt__p2p_dom_blob)};

    for (int r = 0; r < dom->nranks; r++) {
        struct hkt__p2p_dom_blob *head = &dom->members[r];

        if (!use[r] && r != dom->rank)
            continue;
        if (bytes[r] <= sizeof *head || bytes[r] > HKT__TP_BLOB_MAX)
            return hkt__fail_peer(HKT_ERR_BUG, r, "rank %d describes its memory in a way that cannot be: are all ranks of the same "
                                  "version?", r);
        memcpy(head, blobs + (size_t)r * HKT__TP_BLOB_MAX, sizeof *head);
        if (head->nslots != dom->tp->nslots || head->slot_bytes != dom->tp->slot_bytes)
            return hkt__fail_peer(HKT_ERR_INVALID, r, "rank %d has %u slots of %llu bytes, this one %u of %zu: HOCKET_SHM_SLOTS "
                                  "and HOCKET_SHM_SLOT_BYTES must agree for cuda_p2p", r, head->nslots,
                                  (unsigned long long)head->slot_bytes, dom->tp->nslots, dom->tp->slot_bytes);
    }
    return hkt__below_connect(dom->below, &theirs, use);
}

/** Either this end sees that the other is closing, or the other sees that its arena is mapped. */
enum hkt_status hkt__p2p_map(struct hkt__p2p_dom *dom, int peer)
{
    struct hkt__p2p_word *ours = hkt__p2p_word_at(dom, peer, dom->rank, 0), *theirs = hkt__p2p_word_at(dom, peer, peer, 0);
    enum hkt_status rc;

    if (dom->group.module == NULL)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%s", dom->why_not);
    if (!dom->members[peer].has_arena)
        return hkt__fail_peer(HKT_ERR_UNSUPPORTED, peer, "rank %d has no memory of its device to offer", peer);
    if ((dom->group.mapped >> peer & 1) != 0)
        return HKT_OK;
    atomic_store_explicit(&ours->mapped, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&theirs->mapped, memory_order_seq_cst) != 0)
        rc = hkt__fail_peer(HKT_ERR_PEER_LOST, peer, "rank %d closes its domain", peer);
    else
        rc = hkt__cuda_group_map_one(&dom->group, peer, &dom->offer, &dom->members[peer].offer);
    if (rc < 0)
        atomic_store_explicit(&ours->mapped, 0, memory_order_seq_cst);
    return rc;
}

/* ---- sleeping ---- */

void hkt__p2p_park(struct hkt__tp_dom *base, int64_t timeout_ns)
{
    struct hkt__p2p_dom *dom = (struct hkt__p2p_dom *)base;
    bool is_waiting = false;

    for (size_t i = 0; i < (size_t)dom->nranks * (size_t)dom->lanes && !is_waiting; i++)
        is_waiting = dom->links[i] != NULL && (dom->links[i]->rx.is_waiting || hkt__p2p_is_lent(&dom->links[i]->tx));
    dom->below->ops->park(dom->below, is_waiting && timeout_ns > NAP_NS ? NAP_NS : timeout_ns);
}

void hkt__p2p_wake(struct hkt__tp_dom *base)
{
    struct hkt__p2p_dom *dom = (struct hkt__p2p_dom *)base;

    dom->below->ops->wake(dom->below);
}

/* ---- closing ---- */

/** The members that map the arena; from here on no other will. */
static uint64_t mapped_by(struct hkt__p2p_dom *dom)
{
    uint64_t set = 0;

    atomic_store_explicit(&hkt__p2p_word_at(dom, dom->rank, dom->rank, 0)->mapped, 1, memory_order_seq_cst);
    for (int r = 0; r < dom->nranks; r++)
        if (r != dom->rank &&
            atomic_load_explicit(&hkt__p2p_word_at(dom, dom->rank, r, 0)->mapped, memory_order_seq_cst) != 0)
            set |= UINT64_C(1) << r;
    return set;
}

void hkt__p2p_dom_close(struct hkt__tp_dom *base)
{
    struct hkt__p2p_dom *dom = (struct hkt__p2p_dom *)base;

    if (dom->group.module != NULL) {
        const int tx_rc = hkt__cuda_drain(dom->tp->cuda, dom->group.stream, dom->tp->device);
        const int rx_rc = hkt__cuda_drain(dom->tp->cuda, dom->rx_stream, dom->tp->device), rc = tx_rc != 0 ? tx_rc : rx_rc;

        if (rc != 0) {
            (void)hkt__p2p_fail(dom, rc, -1);
            hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "cuda_p2p: a domain is closed with copies that failed: %s",
                     dom->tp->cuda->error_text(rc));
        }
        if (tx_rc == HKT__CUDA_NOT_READY || rx_rc == HKT__CUDA_NOT_READY)
            return; /* what these copies touch stays */
        if (dom->tp->cuda->stream_destroy(dom->rx_stream) != 0)
            (void)dom->tp->cuda->stream_destroy(dom->rx_stream);
        hkt__cuda_group_close(&dom->group, mapped_by(dom));
    }
    dom_free(dom);
}
