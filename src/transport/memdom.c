/* Domains over shared memory: opening, connecting, channels, windows, sleeping. See memdom.h. */
#include "transport/memdom.h"

#include <assert.h>
#include <unistd.h>

#include "core/bits.h"
#include "core/error.h"
#include "core/settings.h"
#include "transport/memregion.h"

struct mem_dom;

/* Both ends are private to the thread that uses the domain; what they point to is shared. */
struct mem_tx {
    struct hkt__chan base;
    struct hkt__ring_tx ring;
    struct hkt__bell *bell; /* the receiver's */
};
struct mem_rx {
    struct hkt__chan base;
    struct hkt__ring_rx ring;
    struct hkt__bell *bell; /* the sender's */
};
struct mem_pair {
    _Alignas(HKT__LINE) struct mem_tx tx;
    _Alignas(HKT__LINE) struct mem_rx rx;
    struct mem_pair *next;  /* opened before this one */
};

/* A member whose region this rank uses; index = its row in the own region. */
struct far {
    unsigned char *base;         /* of its region; NULL: not used */
    struct hkt__mem_shape shape;
    uint32_t own_row;            /* this rank's row in its table */
};

struct mem_dom {
    struct hkt__tp_dom base;
    struct hkt__mem_tp *tp;
    struct hkt__mem_region *region;
    const int32_t *job_ranks;
    int nranks, rank;
    uint32_t bell_seen;          /* owner's memory of the bell's word */
    struct far *far;             /* [shape.nrows] */
    struct mem_pair **pairs;     /* [row * lanes + lane], NULL until opened */
    struct mem_pair *opened;
};

/* ---- instance ---- */

enum hkt_status hkt__mem_tp_init(struct hkt__mem_tp *tp, const struct hkt__tp_params *params, const char *name)
{
    const struct hkt__settings *settings = params->settings;

    pthread_mutex_init(&tp->lock, NULL);
    tp->base.ops = hkt__transport_find(name);
    tp->job_rank = params->job_rank;
    tp->job_nranks = params->job_nranks;
    if (settings->shm_slots < 1 || !hkt__is_pow2((unsigned)settings->shm_slots))
        return hkt__fail(HKT_ERR_INVALID, "HOCKET_SHM_SLOTS is %lld, which is no power of two",
                         (long long)settings->shm_slots);
    tp->nslots = (uint32_t)settings->shm_slots;
    /* Whole lines, so that no two slots share one. */
    tp->slot_bytes = hkt__round_up((size_t)settings->shm_slot_bytes, HKT__LINE);
    tp->peers = hkt__calloc((size_t)params->job_nranks, sizeof *tp->peers);
    if (tp->peers == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a table of %d ranks", params->job_nranks);
    const enum hkt_status rc = hkt__arena_create((size_t)settings->shm_bytes, &tp->arena);

    if (rc < 0)
        return rc;
    tp->peers[tp->job_rank].arena = hkt__arena_find(tp->arena->id);
    tp->peers[tp->job_rank].pid = getpid();
    return HKT_OK;
}

void hkt__mem_tp_fini(struct hkt__mem_tp *tp)
{
    hkt__mem_user_fini(tp);
    while (tp->limbo != NULL) { /* what peers still touch stays mapped on their side, and is never given out again */
        struct hkt__mem_region *region = tp->limbo;

        tp->limbo = region->next;
        hkt__free(region);
    }
    for (int rank = 0; tp->peers != NULL && rank < tp->job_nranks; rank++)
        hkt__arena_drop(tp->peers[rank].arena);
    hkt__free(tp->peers);
    hkt__arena_drop(tp->arena);
    pthread_mutex_destroy(&tp->lock);
}

/* ---- channels: the data path ---- */

static enum hkt_status tx_begin(struct hkt__chan *chan, size_t bytes, struct hkt__room *out_room)
{
    return hkt__ring_room(&((struct mem_tx *)chan)->ring, bytes, out_room);
}

static enum hkt_status tx_end(struct hkt__chan *chan, size_t bytes, const struct hkt__stamp *stamp)
{
    struct mem_tx *tx = (struct mem_tx *)chan;

    hkt__ring_publish(&tx->ring, bytes, stamp);
    hkt__bell_check(tx->bell, HKT__BELL_FRAMES);
    return HKT_OK;
}

static enum hkt_status tx_small(struct hkt__chan *chan, const void *data, size_t bytes, const struct hkt__stamp *stamp)
{
    struct mem_tx *tx = (struct mem_tx *)chan;
    const enum hkt_status rc = hkt__ring_send(&tx->ring, data, bytes, stamp);

    if (rc == HKT_OK)
        hkt__bell_check(tx->bell, HKT__BELL_FRAMES);
    return rc;
}

static enum hkt_status rx_begin(struct hkt__chan *chan, struct hkt__view *out_view)
{
    return hkt__ring_peek(&((struct mem_rx *)chan)->ring, out_view);
}

static void rx_end(struct hkt__chan *chan)
{
    struct mem_rx *rx = (struct mem_rx *)chan;

    if (hkt__ring_release(&rx->ring))
        hkt__bell_check(rx->bell, HKT__BELL_CREDIT);
}

static const struct hkt__chan_ops chan_ops = {
    .tx_begin = tx_begin, .tx_end = tx_end, .rx_begin = rx_begin, .rx_end = rx_end, .tx_small = tx_small,
};

/* ---- domain ---- */

static void dom_free(struct mem_dom *dom)
{
    while (dom->opened != NULL) {
        struct mem_pair *pair = dom->opened;

        dom->opened = pair->next;
        hkt__free(pair);
    }
    hkt__free(dom->pairs);
    hkt__free(dom->far);
    hkt__free(dom);
}

enum hkt_status hkt__mem_dom_open(struct hkt__tp *base, const struct hkt__tp_members *members,
                                  struct hkt__tp_dom **out_dom, void *out_blob, size_t *out_bytes)
{
    struct hkt__mem_tp *tp = (struct hkt__mem_tp *)base;
    struct mem_dom *dom = hkt__calloc(1, sizeof *dom);

    assert(members->lanes >= 1 && members->job_ranks[members->rank] == tp->job_rank);
    if (dom == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a domain");
    hkt__mem_limbo_reap(tp);
    enum hkt_status rc = hkt__mem_region_create(tp, members, &dom->region);

    if (rc < 0) {
        hkt__free(dom);
        return rc;
    }
    const struct hkt__mem_shape *shape = &dom->region->shape;

    dom->base.ops = tp->base.ops;
    dom->tp = tp;
    dom->job_ranks = members->job_ranks;
    dom->nranks = members->nranks;
    dom->rank = members->rank;
    dom->far = hkt__calloc(shape->nrows, sizeof *dom->far);
    dom->pairs = hkt__calloc((size_t)shape->nrows * shape->lanes, sizeof(struct mem_pair *));
    if (dom->far == NULL || dom->pairs == NULL) {
        /* Nobody has heard of the region yet. */
        for (uint32_t row = 0; row < shape->nrows; row++)
            dom->region->users[row].is_awaited = false;
        hkt__mem_region_retire(tp, dom->region);
        dom_free(dom);
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the channels of a domain");
    }
    memcpy(out_blob, shape, sizeof *shape);
    *out_bytes = sizeof *shape;
    *out_dom = &dom->base;
    return HKT_OK;
}

/* Find a member's region and this rank's row in it. */
static enum hkt_status connect_peer(struct mem_dom *dom, int peer, const unsigned char *blob, size_t bytes)
{
    const int row = hkt__mem_row_find(dom->region->head, dom->region->shape.nrows, peer);
    struct far *far = &dom->far[row < 0 ? 0 : row];
    struct hkt__mem_shape shape;

    if (row < 0)
        return hkt__fail_peer(HKT_ERR_BUG, peer, "rank %d is to be reached by %s, but its memory is not known", peer,
                              dom->base.ops->name);
    const struct hkt__arena *arena = dom->tp->peers[dom->job_ranks[peer]].arena;

    if (bytes == sizeof shape)
        memcpy(&shape, blob, sizeof shape);
    if (bytes != sizeof shape || !hkt__mem_shape_is_valid(&shape, arena->bytes) ||
        shape.comm_id != dom->region->shape.comm_id || shape.lanes != dom->region->shape.lanes)
        return hkt__fail_peer(HKT_ERR_BUG, peer, "rank %d describes its %s memory in a way that cannot be: are all ranks "
                              "of the same version?", peer, dom->base.ops->name);
    unsigned char *region = arena->base + shape.offset;
    const int own_row = hkt__mem_row_find((struct hkt__mem_head *)(void *)region, shape.nrows, dom->rank);

    if (own_row < 0)
        return hkt__fail_peer(HKT_ERR_BUG, peer, "rank %d has no place for rank %d in its %s memory", peer, dom->rank,
                              dom->base.ops->name);
    *far = (struct far){ .base = region, .shape = shape, .own_row = (uint32_t)own_row };
    return HKT_OK;
}

struct hkt__mem_tp *hkt__mem_dom_instance(struct hkt__tp_dom *base)
{
    return ((struct mem_dom *)base)->tp;
}

int hkt__mem_dom_job_rank(const struct hkt__tp_dom *base, int peer)
{
    return ((const struct mem_dom *)base)->job_ranks[peer];
}

enum hkt_status hkt__mem_dom_connect(struct hkt__tp_dom *base, const unsigned char *blobs, const size_t *bytes,
                                     const unsigned char *use)
{
    struct mem_dom *dom = (struct mem_dom *)base;
    struct hkt__mem_region *region = dom->region;

    for (uint32_t row = 0; row < region->shape.nrows; row++) {
        const int peer = region->head->rows[row].rank;

        if (!use[peer] && peer != dom->rank) {
            region->users[row].is_awaited = false; /* it knows as well that the pair does without this transport */
            continue;
        }
        const enum hkt_status rc = connect_peer(dom, peer, blobs + (size_t)peer * HKT__TP_BLOB_MAX, bytes[peer]);

        if (rc < 0)
            return rc;
    }
    return HKT_OK;
}

void hkt__mem_dom_close(struct hkt__tp_dom *base)
{
    struct mem_dom *dom = (struct mem_dom *)base;

    for (uint32_t row = 0; row < dom->region->shape.nrows; row++) {
        const struct far *far = &dom->far[row];

        if (far->base == NULL || dom->region->head->rows[row].rank == dom->rank)
            continue;
        struct hkt__mem_head *head = (struct hkt__mem_head *)(void *)far->base;

        /* L1: nothing of this rank touches that region any more; pairs with the acquire in memregion.c */
        atomic_store_explicit(&head->rows[far->own_row].left, 1, memory_order_release);
    }
    hkt__mem_region_retire(dom->tp, dom->region);
    dom_free(dom);
}

/* Touch the small shared memory of a ring now rather than in the first operation: a first touch costs microseconds. The
 * data slots wait until there are large messages. */
static void warm_up(const struct hkt__ring_mem *mem)
{
    for (uint32_t line = 0; line < mem->nlines; line += HKT__ARENA_ALIGN / sizeof(struct hkt__ring_line))
        (void)atomic_load_explicit(&mem->lines[line].seq, memory_order_relaxed);
    (void)atomic_load_explicit(&mem->count->taken, memory_order_relaxed);
}

static void pair_init(struct mem_pair *pair, struct mem_dom *dom, uint32_t row, uint32_t lane)
{
    const struct far *far = &dom->far[row];
    unsigned char *own = (unsigned char *)dom->region->head;
    const struct hkt__ring_mem to = hkt__mem_ring_at(far->base, &far->shape, far->own_row, lane);
    const struct hkt__ring_mem from = hkt__mem_ring_at(own, &dom->region->shape, row, lane);
    struct hkt__bell *bell = &((struct hkt__mem_head *)(void *)far->base)->bell;
    const int peer = dom->region->head->rows[row].rank;

    warm_up(&to);
    warm_up(&from);
    pair->tx.base = (struct hkt__chan){ .ops = &chan_ops, .frame_bytes_max = to.slot_bytes, .peer = peer };
    pair->tx.bell = bell;
    hkt__ring_tx_init(&pair->tx.ring, &to);
    pair->rx.base = (struct hkt__chan){ .ops = &chan_ops, .frame_bytes_max = from.slot_bytes, .peer = peer };
    pair->rx.bell = bell;
    hkt__ring_rx_init(&pair->rx.ring, &from);
}

enum hkt_status hkt__mem_chan_open(struct hkt__tp_dom *base, int peer, int lane, struct hkt__chan **out_tx,
                                   struct hkt__chan **out_rx)
{
    struct mem_dom *dom = (struct mem_dom *)base;
    const struct hkt__mem_shape *shape = &dom->region->shape;
    const int row = hkt__mem_row_find(dom->region->head, shape->nrows, peer);

    assert(lane >= 0 && (uint32_t)lane < shape->lanes);
    if (row < 0 || dom->far[row].base == NULL)
        return hkt__fail_peer(HKT_ERR_BUG, peer, "rank %d is not connected by %s", peer, dom->base.ops->name);
    struct mem_pair **pair = &dom->pairs[(uint32_t)row * shape->lanes + (uint32_t)lane];

    if (*pair == NULL) {
        *pair = hkt__calloc_line(1, sizeof **pair);
        if (*pair == NULL)
            return hkt__fail(HKT_ERR_NOMEM, "no memory for a channel to rank %d", peer);
        pair_init(*pair, dom, (uint32_t)row, (uint32_t)lane);
        (*pair)->next = dom->opened;
        dom->opened = *pair;
    }
    *out_tx = &(*pair)->tx.base;
    *out_rx = &(*pair)->rx.base;
    return HKT_OK;
}

void *hkt__mem_window(struct hkt__tp_dom *base, int peer)
{
    struct mem_dom *dom = (struct mem_dom *)base;
    const int row = hkt__mem_row_find(dom->region->head, dom->region->shape.nrows, peer);

    if (peer == dom->rank)
        return hkt__mem_window_at((unsigned char *)dom->region->head, &dom->region->shape);
    if (row < 0 || dom->far[row].base == NULL)
        return NULL;
    return hkt__mem_window_at(dom->far[row].base, &dom->far[row].shape);
}

/* Has anything come that the last poll missed? Only channels that were polled in vain count: a frame nobody asks for must
 * not keep the rank awake. What is reported once is not reported again. */
static bool has_news(struct mem_dom *dom)
{
    bool is_new = false;

    for (struct mem_pair *pair = dom->opened; pair != NULL; pair = pair->next) {
        if (pair->rx.ring.is_starved && hkt__ring_has_frame(&pair->rx.ring)) {
            pair->rx.ring.is_starved = false;
            is_new = true;
        }
        /* Damage counts as news too: the next tx_begin reports it. */
        if (pair->tx.ring.is_starved && hkt__ring_refresh(&pair->tx.ring, pair->tx.ring.window) != HKT_AGAIN) {
            pair->tx.ring.is_starved = false;
            is_new = true;
        }
    }
    return is_new;
}

static uint32_t sleep_reasons(const struct mem_dom *dom)
{
    for (const struct mem_pair *pair = dom->opened; pair != NULL; pair = pair->next)
        if (pair->tx.ring.is_starved)
            return HKT__BELL_FRAMES | HKT__BELL_CREDIT;
    return HKT__BELL_FRAMES;
}

void hkt__mem_park(struct hkt__tp_dom *base, int64_t timeout_ns)
{
    struct mem_dom *dom = (struct mem_dom *)base;
    struct hkt__bell *bell = &dom->region->head->bell;

    hkt__bell_lie_down(bell, sleep_reasons(dom));
    if (!has_news(dom))
        hkt__bell_sleep(bell, dom->bell_seen, timeout_ns);
    dom->bell_seen = hkt__bell_get_up(bell);
}

void hkt__mem_wake(struct hkt__tp_dom *base)
{
    hkt__bell_force(&((struct mem_dom *)base)->region->head->bell);
}
