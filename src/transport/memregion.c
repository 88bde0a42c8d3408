/* Regions: shape arithmetic, validation of a peer's shape, creation, limbo. See memdom.h for when memory is reused. */
#include "transport/memregion.h"

#include <errno.h>
#include <signal.h>

#include "core/bits.h"
#include "core/error.h"

#define SHAPE_MAGIC 0x68726733u /* "hrg3" */
#define LINES_PER_SLOT 16u      /* with the default of 8 slots 128 small frames may be on their way */

/* Offsets of the parts of a region. Everything small lies together, so that a domain with tiny traffic touches a page or
 * two; payloads and window begin on pages of their own. */
struct parts {
    size_t counts, lines, small, data, window, total;
};

size_t hkt__mem_head_bytes(uint32_t nrows)
{
    return hkt__round_up(sizeof(struct hkt__mem_head) + nrows * sizeof(struct hkt__mem_row), HKT__LINE);
}

/* False when the sizes overflow. */
static bool cut(const struct hkt__mem_shape *shape, struct parts *out_parts)
{
    const uint64_t nrings = (uint64_t)shape->nrows * shape->lanes, nslots = nrings * shape->nslots,
                   nlines = nslots * LINES_PER_SLOT;
    uint64_t data_bytes, total;
    struct parts parts;

    parts.counts = hkt__mem_head_bytes(shape->nrows);
    parts.lines = parts.counts + nrings * sizeof(struct hkt__ring_count);
    parts.small = hkt__round_up(parts.lines + nlines * sizeof(struct hkt__ring_line), HKT__ARENA_ALIGN);
    parts.data = hkt__round_up(parts.small + nlines * HKT__RING_SMALL, HKT__ARENA_ALIGN);
    if (__builtin_mul_overflow(nslots, shape->slot_bytes, &data_bytes) || data_bytes > SIZE_MAX / 4 ||
        shape->window_bytes > SIZE_MAX / 4)
        return false;
    parts.window = hkt__round_up(parts.data + data_bytes, HKT__ARENA_ALIGN);
    if (__builtin_add_overflow(parts.window, shape->window_bytes, &total))
        return false;
    parts.total = total;
    *out_parts = parts;
    return true;
}

bool hkt__mem_shape_is_valid(const struct hkt__mem_shape *shape, size_t arena_bytes)
{
    struct parts parts;

    return shape->magic == SHAPE_MAGIC && shape->nrows >= 1 && shape->nrows <= HKT_RANKS_MAX && shape->lanes >= 1 &&
           shape->lanes <= 1024 && hkt__is_pow2(shape->nslots) && shape->nslots <= 65536 &&
           shape->slot_bytes >= HKT__RING_SMALL && shape->offset % HKT__ARENA_ALIGN == 0 && cut(shape, &parts) &&
           shape->offset <= arena_bytes && parts.total <= arena_bytes - shape->offset;
}

int hkt__mem_row_find(const struct hkt__mem_head *head, uint32_t nrows, int rank)
{
    uint32_t low = 0, high = nrows;

    while (low < high) {
        const uint32_t middle = (low + high) / 2;

        if (head->rows[middle].rank == rank)
            return (int)middle;
        if (head->rows[middle].rank < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

struct hkt__ring_mem hkt__mem_ring_at(unsigned char *base, const struct hkt__mem_shape *shape, uint32_t row, uint32_t lane)
{
    const size_t index = (size_t)row * shape->lanes + lane;
    struct parts parts = { 0 };

    (void)cut(shape, &parts); /* was checked when the shape was made or received */
    return (struct hkt__ring_mem){
        .lines = (struct hkt__ring_line *)(void *)(base + parts.lines) + index * shape->nslots * LINES_PER_SLOT,
        .small = base + parts.small + index * shape->nslots * LINES_PER_SLOT * HKT__RING_SMALL,
        .data = base + parts.data + index * shape->nslots * shape->slot_bytes,
        .count = (struct hkt__ring_count *)(void *)(base + parts.counts) + index,
        .nslots = shape->nslots,
        .nlines = shape->nslots * LINES_PER_SLOT,
        .slot_bytes = shape->slot_bytes,
    };
}

void *hkt__mem_window_at(unsigned char *base, const struct hkt__mem_shape *shape)
{
    struct parts parts = { 0 };

    (void)cut(shape, &parts);
    return shape->window_bytes > 0 ? base + parts.window : NULL;
}

static uint32_t count_reachable(const struct hkt__mem_tp *tp, const struct hkt__tp_members *members)
{
    uint32_t count = 0;

    for (int rank = 0; rank < members->nranks; rank++)
        count += tp->peers[members->job_ranks[rank]].arena != NULL;
    return count;
}

static void fill_rows(const struct hkt__mem_tp *tp, const struct hkt__tp_members *members, struct hkt__mem_region *region)
{
    uint32_t row = 0;

    for (int rank = 0; rank < members->nranks; rank++) {
        const struct hkt__mem_peer *peer = &tp->peers[members->job_ranks[rank]];

        if (peer->arena == NULL)
            continue;
        region->head->rows[row].rank = rank;
        region->users[row].pid = peer->pid;
        region->users[row].is_awaited = rank != members->rank;
        row++;
    }
}

enum hkt_status hkt__mem_region_create(struct hkt__mem_tp *tp, const struct hkt__tp_members *members,
                                       struct hkt__mem_region **out_region)
{
    const uint32_t nrows = count_reachable(tp, members);
    struct hkt__mem_region *region = hkt__calloc(1, sizeof *region + nrows * sizeof region->users[0]);
    struct parts parts = { 0 };

    if (region == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a domain of %u ranks", nrows);
    region->shape = (struct hkt__mem_shape){
        .magic = SHAPE_MAGIC, .comm_id = members->comm_id, .nrows = nrows, .lanes = (uint32_t)members->lanes,
        .nslots = tp->nslots, .slot_bytes = tp->slot_bytes, .window_bytes = members->window_bytes,
    };
    enum hkt_status rc = cut(&region->shape, &parts) ? HKT_OK
                         : hkt__fail(HKT_ERR_NOMEM, "a domain of %u ranks and a window of %zu bytes cannot be addressed",
                                     nrows, members->window_bytes);

    if (rc == HKT_OK)
        rc = hkt__arena_alloc(tp->arena, parts.total, &region->block);
    if (rc < 0) {
        hkt__free(region);
        return rc;
    }
    region->shape.offset = region->block.offset;
    region->head = (struct hkt__mem_head *)(void *)(tp->arena->base + region->block.offset);
    fill_rows(tp, members, region);
    *out_region = region;
    return HKT_OK;
}

/* Might somebody still touch the region? */
static bool is_in_use(const struct hkt__mem_region *region)
{
    for (uint32_t row = 0; row < region->shape.nrows; row++) {
        const pid_t pid = region->users[row].pid;

        if (!region->users[row].is_awaited)
            continue;
        /* Acquire: the peer's last accesses come before what the next owner of the memory does; pairs with L1 in
         * memdom.c. A process id that was given out again only delays. */
        if (atomic_load_explicit(&region->head->rows[row].left, memory_order_acquire) == 0 &&
            !(pid > 0 && kill(pid, 0) < 0 && errno == ESRCH))
            return true;
    }
    return false;
}

void hkt__mem_limbo_reap(struct hkt__mem_tp *tp)
{
    pthread_mutex_lock(&tp->lock);
    for (struct hkt__mem_region **at = &tp->limbo; *at != NULL;) {
        struct hkt__mem_region *region = *at;

        if (is_in_use(region)) {
            at = &region->next;
            continue;
        }
        *at = region->next;
        hkt__arena_free(tp->arena, &region->block);
        hkt__free(region);
    }
    pthread_mutex_unlock(&tp->lock);
}

void hkt__mem_region_retire(struct hkt__mem_tp *tp, struct hkt__mem_region *region)
{
    pthread_mutex_lock(&tp->lock);
    region->next = tp->limbo;
    tp->limbo = region;
    pthread_mutex_unlock(&tp->lock);
    hkt__mem_limbo_reap(tp);
}
