/* What a block of the device executor remembers, and where the bytes of its work lie: chunks of buffers, scratch, slots of frames,
 * messages. See plan.cuh. */
#ifndef HOCKET_KERNELS_PLAN_PLACES_CUH
#define HOCKET_KERNELS_PLAN_PLACES_CUH

#include "kernels/device.cuh"
#include "kernels/kernels.h"
#include "kernels/plan.h"

enum plan_state : uint8_t { PLAN_WAITS, PLAN_READY, PLAN_OVER, PLAN_STOPS };
enum { PLAN_SIMPLE, PLAN_LL };

#define PLAN_ABORT_SPINS 64 /* looks at memory of the host are a microsecond each: not at every turn */
#define PLAN_WORD_IS_THERE (uint64_t(1) << 32)

struct plan_cursor {
    uint64_t progress;  /* rounds << 32 | entries done of this round; by word: others compare it */
    uint64_t done;      /* bytes of the entry at hand; by word */
    uint64_t total;     /* of it */
    uint64_t offset;    /* where `done` lies: in piece `piece` of its operand */
    uint64_t frames[2]; /* of this channel so far, since the communicator began: Simple, LL */
    uint64_t known[2];  /* the other side's count when last looked at */
    uint32_t bytes;     /* of the frame at hand */
    uint32_t free_rounds; /* whose scratch is known to be free */
    int32_t queue, replica, slice, piece;
    bool is_open;       /* the entry at hand has begun */
};

struct plan_block {
    plan_cursor cursors[HKT__PLAN_CURSORS_MAX]; /* [replica here * nqueues + queue] */
    uint64_t bases[HKT__PLAN_LANES_MAX];        /* rounds of direct plans before, by replica */
    uint64_t told[HKT__PLAN_LANES_MAX];         /* rounds finished, as peers know it */
    const void *srcs[HKT__KERNEL_SRCS_MAX];
    uint64_t found; /* the round in which an owner has found work; by word */
    uint64_t stop;  /* not 0: a wait within work was given up; by word */
    uint8_t states[HKT__PLAN_CURSORS_MAX];      /* enum plan_state */
};

/** The type of plans that move bytes alone; those that reduce have plan_types.cuh. */
struct plan_moves {
    static constexpr bool reduces = false;
};

/* Shared memory is a file's own: so are the functions that use it. */
namespace
{

__shared__ plan_block plan_shared;

HKT__DEVICE uint64_t *plan_words(const hkt__plan_args &a, int rank, uint64_t at)
{
    return reinterpret_cast<uint64_t *>(a.arenas[rank] + at);
}

HKT__DEVICE size_t plan_channel(const hkt__plan_args &a, int peer, int lane)
{
    return size_t(peer) * a.lanes + lane;
}

HKT__DEVICE int plan_lane(const hkt__plan_args &a, const plan_cursor &c)
{
    return c.replica * a.nlanes + a.queues[c.queue].lane;
}

HKT__DEVICE uint32_t plan_round(const plan_cursor &c)
{
    return uint32_t(c.progress >> 32);
}

HKT__DEVICE const hkt__plan_entry &plan_entry_at(const hkt__plan_args &a, const plan_cursor &c)
{
    return a.entries[a.queues[c.queue].first + uint32_t(c.progress)];
}

/* --- Where chunks lie ----------------------------------------------------------------------------------------------- */

HKT__DEVICE int plan_chunk(const hkt__plan_span &span, int i)
{
    int64_t at = span.start + int64_t(i) * span.stride;

    if (at < 0 || at >= span.modulus) {
        at %= span.modulus;
        at = at < 0 ? at + span.modulus : at;
    }
    return int(at);
}

/** Part `i` of `parts` of `count` elements: as even as can be, the first ones larger. Moves *first to it. */
HKT__DEVICE uint64_t plan_part(uint64_t count, int i, int parts, uint64_t *first)
{
    if (parts == 1)
        return count;
    const uint64_t base = count / unsigned(parts), rest = count % unsigned(parts), at = unsigned(i);

    *first += at * base + (at < rest ? at : rest);
    return base + (at < rest);
}

/** A replica's part of a message: whole lines, from the message's start on. The same on both sides, for it depends on the
 *  message alone. */
HKT__DEVICE uint64_t plan_message_part(const hkt__plan_args &a, int queue, int slice, uint64_t *out_address)
{
    const unsigned round = unsigned(slice) / unsigned(a.channels), replica = unsigned(slice) - round * unsigned(a.channels);
    const unsigned i = a.firsts[queue] + round, row = i / HKT__PLAN_RANKS_MAX, column = i % HKT__PLAN_RANKS_MAX;

    if (i >= a.firsts[queue + 1])
        return 0;
    const uint64_t bytes = a.table != nullptr ? a.table[i].bytes : a.counts[row][column];
    const uint64_t worth = bytes / a.part_bytes, most = unsigned(a.parts_most), parts = worth < 1 ? 1 : worth < most ? worth : most;
    const uint64_t each = ((bytes - 1) / parts / 128 + 1) * 128, first = replica * each;

    if (first >= bytes)
        return 0;
    *out_address = (a.table != nullptr ? a.table[i].address : a.displs[row][column]) + first;
    return each < bytes - first ? each : bytes - first;
}

/** hkt__grid_span, in bytes. Of messages the chunk is the queue's number, and *out_first an address. */
HKT__DEVICE uint64_t plan_span(const hkt__plan_args &a, int buf, int chunk, int slice, uint64_t *out_first)
{
    if (a.part_bytes != 0)
        return plan_message_part(a, chunk, slice, out_first);
    const int block = a.cuts == 1 ? chunk : chunk / a.cuts, cut = chunk - block * a.cuts;
    uint64_t first = a.has_displs[buf] ? a.displs[buf][block] : block * a.count, count;

    count = plan_part(a.has_counts[buf] ? a.counts[buf][block] : a.count, slice, a.nslices, &first);
    count = plan_part(count, cut, a.cuts, &first);
    *out_first = first * a.elem_bytes;
    return count * a.elem_bytes;
}

HKT__DEVICE uint64_t plan_piece_bytes(const hkt__plan_args &a, const hkt__plan_operand &x, int piece, int slice)
{
    uint64_t first;

    return plan_span(a, x.like_buf, plan_chunk(x.like, piece), slice, &first);
}

HKT__DEVICE uint64_t plan_operand_bytes(const hkt__plan_args &a, const hkt__plan_operand &x, int slice)
{
    uint64_t total = 0;

    for (int i = 0; i < x.count; ++i)
        total += plan_piece_bytes(a, x, i, slice);
    return total;
}

/** IN or OUT of a peer, as it published it. */
HKT__DEVICE char *plan_published(const hkt__plan_args &a, int rank, int buf)
{
    const uint64_t *words = plan_words(a, rank, a.layout.published) + 2 * buf;
    const uint64_t place = load_word_sys(words + 1), offset = place & ((uint64_t(1) << HKT__PLAN_POOL_SHIFT) - 1);

    return place != 0 ? a.pools[(place >> HKT__PLAN_POOL_SHIFT) * a.nranks + rank] + (offset - 1)
                      : reinterpret_cast<char *>(load_word_sys(words));
}

HKT__DEVICE char *plan_address(const hkt__plan_args &a, const plan_cursor &c, const hkt__plan_operand &x, int piece)
{
    const int chunk = plan_chunk(x.at, piece);
    uint64_t first;

    if (x.buf == HKT__PLAN_SCRATCH) {
        const uint64_t instance = (plan_shared.bases[c.replica] + plan_round(c)) % HKT__PLAN_INSTANCES;

        return a.arenas[x.rank] + a.layout.scratch + c.replica * a.scratch_bytes +
               instance * (a.scratch_bytes / HKT__PLAN_INSTANCES) + chunk * a.scratch_pitch;
    }
    plan_span(a, x.buf, chunk, c.slice, &first);
    if (a.part_bytes != 0)
        return reinterpret_cast<char *>(first);
    if (x.rank != a.rank)
        return plan_published(a, x.rank, x.buf) + first;
    return (x.buf == HKT__PLAN_OUT ? a.out : a.in) + first;
}

/** The slot of the frame at hand: in the own arena for a receive, in the peer's for a send. */
HKT__DEVICE char *plan_slot(const hkt__plan_args &a, const plan_cursor &c, int protocol)
{
    const hkt__plan_queue_row &q = a.queues[c.queue];
    const bool is_tx = q.kind == HKT__PLAN_TX;
    const size_t channel = plan_channel(a, is_tx ? a.rank : q.peer, plan_lane(a, c));
    const size_t slot = channel * HKT__PLAN_SLOTS + c.frames[protocol] % HKT__PLAN_SLOTS;
    char *arena = a.arenas[is_tx ? q.peer : a.rank];

    return protocol == PLAN_LL ? arena + a.layout.ll + slot * 2 * a.ll_bytes : arena + a.layout.slots + slot * a.slot_bytes;
}

} /* namespace */

#endif
