/* Dependencies from operands. The rules, with "before" meaning earlier in program order:
 *   a read of a cell comes after its last writer before;
 *   a write comes after the last writer before and after all readers since that writer;
 *   a SIGNAL of a cell comes after the same as a write, but for other SIGNALs: several peers may be shown one cell at
 *   once. A write after it comes after the SIGNAL; a WAIT for the cell is such a write;
 *   touching a peer's memory comes after the last WAIT for that peer on each lane;
 *   a SIGNAL to a peer comes after every touch of that peer's memory before. The SIGNAL then stands for them, so a
 *   SIGNAL on another lane comes after them too.
 * A write drops the readers and grants it has visited, and a grant that visits many readers replaces them, so each list
 * node is visited a bounded number of times: linear in the pieces in all. */
#include "sched/depend.h"

#include <assert.h>
#include <string.h>

#include "sched/grow.h"

struct hkt__depend_node {
    int32_t step, piece, next; /* piece: of the step's operand */
};

/* A grant that comes after more readers than this stands for them from then on. */
#define GRANT_READERS_MAX 4

void hkt__depend_init(struct hkt__depend *d, int nranks)
{
    memset(d, 0, sizeof *d);
    d->nranks = nranks;
}

void hkt__depend_fini(struct hkt__depend *d)
{
    hkt__free(d->writer);
    hkt__free(d->readers);
    hkt__free(d->grants);
    hkt__free(d->touched);
    hkt__free(d->rx_last);
    hkt__free(d->wait_last);
    hkt__free(d->rx_queues);
    hkt__free(d->nodes);
    hkt__free(d->mark);
    hkt__free(d->found);
}

enum hkt_status hkt__depend_begin(struct hkt__depend *d, int32_t step)
{
    int32_t *mark = hkt__grow(d->mark, &d->mark_cap, (int64_t)step + 1, sizeof *mark);

    assert(step == d->nmarks);
    if (mark == NULL)
        return HKT_ERR_NOMEM;
    d->mark = mark;
    mark[d->nmarks++] = 0;
    d->step = step;
    d->nfound = 0;
    return HKT_OK;
}

static enum hkt_status add(struct hkt__depend *d, int32_t step)
{
    if (step < 0 || step == d->step || d->mark[step] == d->step + 1)
        return HKT_OK;
    int32_t *found = hkt__grow(d->found, &d->found_cap, (int64_t)d->nfound + 1, sizeof *found);

    if (found == NULL)
        return HKT_ERR_NOMEM;
    d->found = found;
    found[d->nfound++] = step;
    d->mark[step] = d->step + 1;
    return HKT_OK;
}

static enum hkt_status add_list(struct hkt__depend *d, int32_t list)
{
    enum hkt_status rc = HKT_OK;

    for (int32_t at = list; at >= 0 && rc == HKT_OK; at = d->nodes[at].next)
        rc = add(d, d->nodes[at].step);
    return rc;
}

/* Put the current step in front of a list. */
static enum hkt_status push(struct hkt__depend *d, int32_t *list, int32_t piece)
{
    struct hkt__depend_node *nodes = hkt__grow(d->nodes, &d->nodes_cap, (int64_t)d->nnodes + 1, sizeof *nodes);

    if (nodes == NULL)
        return HKT_ERR_NOMEM;
    d->nodes = nodes;
    nodes[d->nnodes] = (struct hkt__depend_node){ d->step, piece, *list };
    *list = d->nnodes++;
    return HKT_OK;
}

/* Make sure the cells below `ncells` are known; new ones have no history. */
static enum hkt_status know_cells(struct hkt__depend *d, int32_t ncells)
{
    if (ncells <= d->ncells)
        return HKT_OK;
    int32_t *writer = hkt__grow(d->writer, &d->writer_cap, ncells, sizeof *writer);

    if (writer == NULL)
        return HKT_ERR_NOMEM;
    d->writer = writer;
    int32_t *readers = hkt__grow(d->readers, &d->readers_cap, ncells, sizeof *readers);

    if (readers == NULL)
        return HKT_ERR_NOMEM;
    d->readers = readers;
    int32_t *grants = hkt__grow(d->grants, &d->grants_cap, ncells, sizeof *grants);

    if (grants == NULL)
        return HKT_ERR_NOMEM;
    d->grants = grants;
    for (int32_t i = d->ncells; i < ncells; i++)
        writer[i] = readers[i] = grants[i] = -1;
    d->ncells = ncells;
    return HKT_OK;
}

/* Walks the pieces of a span without a division for each. */
struct walk {
    int32_t at, step, modulus;
};

static struct walk walk_start(const struct hkt__span *span)
{
    const int32_t step = span->stride % span->modulus;

    return (struct walk){ hkt__span_at(span, 0), step < 0 ? step + span->modulus : step, span->modulus };
}

static int32_t walk_next(struct walk *walk)
{
    const int32_t at = walk->at, room = walk->modulus - walk->step;

    walk->at = at >= room ? at - room : at + walk->step; /* no sum beyond the modulus: no overflow */
    return at;
}

/* Cells that the pieces reach: an upper bound that is exact for the common range without wrap-around. */
static int32_t cells_end(int32_t base, const struct hkt__span *span, int32_t count)
{
    const int64_t end = (int64_t)span->start + count;
    const bool is_plain = span->stride == 1 && span->start >= 0 && end <= span->modulus;

    return base + (is_plain ? (int32_t)end : span->modulus);
}

enum hkt_status hkt__depend_read(struct hkt__depend *d, int32_t base, const struct hkt__span *span, int32_t count)
{
    enum hkt_status rc = know_cells(d, cells_end(base, span, count));
    struct walk walk = walk_start(span);

    for (int32_t i = 0; i < count && rc == HKT_OK; i++) {
        const int32_t cell = base + walk_next(&walk);

        rc = add(d, d->writer[cell]);
        if (rc == HKT_OK)
            rc = push(d, &d->readers[cell], i);
    }
    return rc;
}

enum hkt_status hkt__depend_write(struct hkt__depend *d, int32_t base, const struct hkt__span *span, int32_t count)
{
    enum hkt_status rc = know_cells(d, cells_end(base, span, count));
    struct walk walk = walk_start(span);

    for (int32_t i = 0; i < count && rc == HKT_OK; i++) {
        const int32_t cell = base + walk_next(&walk);

        if (d->writer[cell] == d->step)
            return HKT_ERR_BUG;
        for (int32_t at = d->readers[cell]; at >= 0; at = d->nodes[at].next)
            if (d->nodes[at].step == d->step && d->nodes[at].piece != i)
                return HKT_ERR_BUG;
        rc = add(d, d->writer[cell]);
        if (rc == HKT_OK)
            rc = add_list(d, d->readers[cell]);
        if (rc == HKT_OK)
            rc = add_list(d, d->grants[cell]);
        d->writer[cell] = d->step;
        d->readers[cell] = d->grants[cell] = -1;
    }
    return rc;
}

enum hkt_status hkt__depend_grant(struct hkt__depend *d, int32_t base, const struct hkt__span *span, int32_t count)
{
    enum hkt_status rc = know_cells(d, cells_end(base, span, count));
    struct walk walk = walk_start(span);

    for (int32_t i = 0; i < count && rc == HKT_OK; i++) {
        const int32_t cell = base + walk_next(&walk);

        int32_t nreaders = 0;

        for (int32_t at = d->readers[cell]; at >= 0; at = d->nodes[at].next)
            nreaders++;
        rc = add(d, d->writer[cell]);
        if (rc == HKT_OK)
            rc = add_list(d, d->readers[cell]);
        if (nreaders > GRANT_READERS_MAX)
            d->readers[cell] = -1;
        if (rc == HKT_OK)
            rc = push(d, nreaders > GRANT_READERS_MAX ? &d->readers[cell] : &d->grants[cell], i);
    }
    return rc;
}

enum hkt_status hkt__depend_touch(struct hkt__depend *d, int32_t rank)
{
    enum hkt_status rc = HKT_OK;

    if (d->touched == NULL) {
        d->touched = hkt__calloc((size_t)d->nranks, sizeof *d->touched);
        if (d->touched == NULL)
            return HKT_ERR_NOMEM;
        memset(d->touched, -1, (size_t)d->nranks * sizeof *d->touched);
    }
    if (d->wait_last != NULL)
        for (int lane = 0; lane < HKT__LANES_MAX && rc == HKT_OK; lane++)
            rc = add(d, d->wait_last[(int64_t)rank * HKT__LANES_MAX + lane] - 1);
    return rc == HKT_OK ? push(d, &d->touched[rank], 0) : rc;
}

enum hkt_status hkt__depend_signal(struct hkt__depend *d, int32_t rank)
{
    if (d->touched == NULL || d->touched[rank] < 0)
        return HKT_OK;
    enum hkt_status rc = add_list(d, d->touched[rank]);
    d->touched[rank] = -1;
    return rc == HKT_OK ? push(d, &d->touched[rank], 0) : rc;
}

/* calloc, not a loop: of 8 lanes of thousands of peers a schedule uses few, and pages never touched cost nothing. */
static enum hkt_status know_queues(struct hkt__depend *d, int32_t **queues)
{
    if (*queues == NULL)
        *queues = hkt__calloc((size_t)d->nranks * HKT__LANES_MAX, sizeof **queues);
    return *queues != NULL ? HKT_OK : HKT_ERR_NOMEM;
}

enum hkt_status hkt__depend_receive(struct hkt__depend *d, int32_t rank, int lane, bool is_wait)
{
    const int32_t queue = rank * HKT__LANES_MAX + lane;
    enum hkt_status rc = know_queues(d, &d->rx_last);

    if (rc == HKT_OK && is_wait)
        rc = know_queues(d, &d->wait_last);
    if (rc != HKT_OK)
        return rc;
    if (d->rx_last[queue] == 0) {
        int32_t *queues = hkt__grow(d->rx_queues, &d->rx_queues_cap, (int64_t)d->nrx_queues + 1, sizeof *queues);

        if (queues == NULL)
            return HKT_ERR_NOMEM;
        d->rx_queues = queues;
        queues[d->nrx_queues++] = queue;
    }
    d->rx_last[queue] = d->step + 1;
    if (is_wait)
        d->wait_last[queue] = d->step + 1;
    return HKT_OK;
}

enum hkt_status hkt__depend_all_received(struct hkt__depend *d)
{
    enum hkt_status rc = HKT_OK;

    for (int32_t i = 0; i < d->nrx_queues && rc == HKT_OK; i++)
        rc = add(d, d->rx_last[d->rx_queues[i]] - 1);
    return rc;
}
