/* Geometry of a schedule: blocks of a collective, chunks of a buffer, and the memory cell behind each chunk.
 *
 * In place, IN and OUT are one memory. For every collective the smaller of the two (one block) lies in the larger (one
 * block per rank) at this rank's block, and buffers of equal size coincide; so the alias is a shift by a constant, and
 * the cells of a buffer are consecutive. gather and scatter alias at the root only, where the rank is the root. */
#include "core/mem.h"
#include "sched/ir.h"

void hkt__sched_destroy(struct hkt__sched *sched)
{
    if (sched == NULL)
        return;
    hkt__free(sched->steps);
    hkt__free(sched->args);
    hkt__free(sched->deps);
    hkt__free(sched);
}

void hkt__coll_blocks(enum hkt_coll coll, int nranks, int rank, int root, int32_t out_blocks[2])
{
    const int32_t n = nranks;
    const bool at_root = rank == root;
    int32_t in = 1, out = 1;

    switch (coll) {
    case HKT_ALL_REDUCE:
    case HKT_SEND_RECV: break;
    case HKT_REDUCE_SCATTER:
    case HKT_REDUCE_SCATTER_V: in = n; break;
    case HKT_ALL_GATHER:
    case HKT_ALL_GATHER_V: out = n; break;
    case HKT_ALL_TO_ALL:
    case HKT_ALL_TO_ALL_V: in = out = n; break;
    case HKT_BROADCAST: in = at_root ? 1 : 0; break;
    case HKT_REDUCE: out = at_root ? 1 : 0; break;
    case HKT_GATHER: out = at_root ? n : 0; break;
    case HKT_SCATTER: in = at_root ? n : 0; break;
    case HKT_BARRIER:
    case HKT_COLL_COUNT: in = out = 0; break;
    }
    out_blocks[HKT__IN] = in;
    out_blocks[HKT__OUT] = out;
}

int32_t hkt__buf_chunks(const struct hkt__sched *sched, enum hkt__buf buf)
{
    return buf == HKT__SCRATCH ? sched->scratch_chunks : sched->blocks[buf] * sched->cuts;
}

const char *hkt__step_kind_name(int kind)
{
    static const char *const names[HKT__STEP_KIND_COUNT] = {
        [HKT__SEND] = "send",     [HKT__RECV] = "recv",   [HKT__RECV_REDUCE] = "recv_reduce", [HKT__COPY] = "copy",
        [HKT__REDUCE] = "reduce", [HKT__WRITE] = "write", [HKT__SIGNAL] = "signal",           [HKT__WAIT] = "wait",
    };

    return kind >= 0 && kind < HKT__STEP_KIND_COUNT ? names[kind] : "?";
}

int32_t hkt__cell_base(const struct hkt__sched *sched, enum hkt__buf buf)
{
    const int32_t in = sched->blocks[HKT__IN], out = sched->blocks[HKT__OUT];
    const bool is_aliased = sched->in_place && in > 0 && out > 0;
    const int32_t own_block = sched->rank * sched->cuts;

    if (!is_aliased)
        return (buf == HKT__IN ? 0 : buf == HKT__OUT ? in : in + out) * sched->cuts;
    if (buf == HKT__IN)
        return in < out ? own_block : 0;
    if (buf == HKT__OUT)
        return out < in ? own_block : 0;
    return (in > out ? in : out) * sched->cuts;
}

int32_t hkt__cell(const struct hkt__sched *sched, enum hkt__buf buf, int32_t chunk)
{
    return hkt__cell_base(sched, buf) + chunk;
}

int32_t hkt__cell_count(const struct hkt__sched *sched)
{
    return hkt__cell_base(sched, HKT__SCRATCH) + sched->scratch_chunks;
}

int64_t hkt__size_class(const struct hkt__sched *sched, int32_t rank, enum hkt__buf buf, int32_t chunk)
{
    const int64_t cuts = sched->cuts, n = sched->nranks, block = chunk / cuts, cut = chunk % cuts;

    switch (sched->coll) {
    case HKT_ALL_GATHER_V: /* block i is what rank i contributes; IN is this rank's own block */
        return (buf == HKT__IN ? rank : block) * cuts + cut;
    case HKT_REDUCE_SCATTER_V: return (buf == HKT__OUT ? rank : block) * cuts + cut;
    case HKT_ALL_TO_ALL_V: /* one size per pair (source, destination) */
        return (buf == HKT__IN ? rank * n + block : block * n + rank) * cuts + cut;
    default: return cut; /* uniform blocks: cut k of every block is as long */
    }
}
