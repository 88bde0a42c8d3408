/* The device executor: a kernel that runs one rank's part of a collective, as exec/run.c does on a host.
 *
 * A block serves one replica of the plan's lanes, or a few. Each queue has a cursor in shared memory, and each cursor an owner
 * among the block's threads. The block goes round by round:
 *   look    every owner looks whether the entry at its cursor can go on; as soon as one can, all stop looking.
 *   barrier A
 *   work    all threads together do what was found, one frame or one local entry after another.
 *   barrier B
 *   commit  the owners of what was done tell peers, and move their cursors.
 * Between B and the next A owners alone write shared memory, each its own cursor; between A and B nobody does, so all see the
 * same work. Words that owners compare while others may be moving them (progress, done) are written whole, and are right
 * both before and after: what they stand for was done before B.
 *
 * Simple: a frame is stored to a slot in the receiver's arena; after B the sender's owner releases the count of frames
 * that came (P1), which the receiver's owner acquires (P2) before A. When its block has used the frame the receiver releases
 * the count of frames used (P3), acquired by the sender (P4) before it fills the slot again.
 * LL: a frame is words of 8 bytes that each say by themselves that they are there; the receiver empties them, then releases
 * the count (P3). There is no count of frames that came, nor a barrier between data and count: one way instead of two.
 * Direct: peers read and write scratch and, in one process or in pools, IN and OUT, ordered by SIGNAL (P1) and WAIT (P2). The
 * scratch of round n serves round n + HKT__PLAN_INSTANCES, once all peers have released that they finished n (P5, P6).
 *
 * Messages: a launch that sends and receives what its parameters say, one queue a peer and direction. All its replicas run at a
 * time, so that each message is under way from the start: what a peer does may depend on any of them.
 *
 * Nobody waits for ever: a queue never holds up another, all replicas of a block go on together, and those of blocks that
 * are not running yet have higher numbers everywhere; so the lowest unfinished replica runs on all ranks. Peers that are gone
 * are the host's to notice: it sets watch->abort, at which all who wait leave. */
#ifndef HOCKET_KERNELS_PLAN_CUH
#define HOCKET_KERNELS_PLAN_CUH

#include "kernels/copy.cuh"
#include "kernels/plan_places.cuh"

namespace
{

/* --- Look ----------------------------------------------------------------------------------------------------------- */

HKT__DEVICE bool plan_is_message(int kind)
{
    return kind <= HKT__PLAN_RECV_REDUCE;
}

/** The protocol of an entry that is open: signals carry no data, and go by counts always. */
HKT__DEVICE int plan_protocol(const hkt__plan_args &a, const plan_cursor &c, int kind)
{
    return plan_is_message(kind) && c.total <= a.ll_most ? PLAN_LL : PLAN_SIMPLE;
}

HKT__DEVICE plan_cursor *plan_siblings(const hkt__plan_args &a, const plan_cursor &c)
{
    return &plan_shared.cursors[(c.replica - blockIdx.x * a.replicas_here) * a.nqueues];
}

/** Rounds that all queues of a replica have finished. */
HKT__DEVICE uint64_t plan_rounds_finished(const hkt__plan_args &a, const plan_cursor *siblings)
{
    uint64_t low = UINT64_MAX;

    for (int q = 0; q < a.nqueues; ++q) {
        const uint64_t rounds = load_word_block(&siblings[q].progress) >> 32;

        low = rounds < low ? rounds : low;
    }
    return low;
}

/** May the cursor's round use its scratch? */
HKT__DEVICE bool plan_scratch_is_free(const hkt__plan_args &a, plan_cursor &c)
{
    const uint64_t round = plan_round(c), base = plan_shared.bases[c.replica];
    const uint64_t need = a.direct ? base + round + 1 : base + HKT__PLAN_INSTANCES; /* HKT__PLAN_INSTANCES more than peers must */

    if (round < c.free_rounds)
        return true;
    if (round >= HKT__PLAN_INSTANCES && plan_rounds_finished(a, plan_siblings(a, c)) + HKT__PLAN_INSTANCES <= round)
        return false;
    for (int r = 0; r < a.nranks && need > HKT__PLAN_INSTANCES; ++r) {
        const uint64_t *finished = plan_words(a, a.rank, a.layout.finished) + plan_channel(a, r, c.replica);

        if (r != a.rank && load_acquire_sys(finished) + HKT__PLAN_INSTANCES < need) /* P6 */
            return false;
    }
    c.free_rounds = uint32_t(round) + 1;
    return true;
}

HKT__DEVICE bool plan_open(const hkt__plan_args &a, plan_cursor &c, const hkt__plan_entry &e)
{
    const plan_cursor *siblings = plan_siblings(a, c);

    for (int i = 0; i < e.dep_count; ++i) {
        const hkt__plan_need &need = a.needs[e.dep_first + i];

        if (load_word_block(&siblings[need.queue].progress) < (uint64_t(plan_round(c)) << 32 | unsigned(need.count)))
            return false;
    }
    if (e.uses_scratch && !plan_scratch_is_free(a, c))
        return false;
    c.is_open = true;
    c.piece = 0;
    c.offset = 0;
    c.total = 1; /* what is done in one go */
    if (plan_is_message(e.kind))
        c.total = plan_operand_bytes(a, a.operands[e.kind == HKT__PLAN_SEND ? e.arg_first : e.dst], c.slice);
    return true;
}

HKT__DEVICE void plan_close(const hkt__plan_args &a, plan_cursor &c)
{
    const bool is_last = uint32_t(c.progress) + 1 == unsigned(a.queues[c.queue].count);

    c.is_open = false;
    store_word_block(&c.done, 0);
    store_word_block(&c.progress, is_last ? uint64_t(plan_round(c) + 1) << 32 : c.progress + 1);
    if (is_last)
        c.slice += a.channels;
}

/** Has the receive that feeds a send brought the bytes of its frame? */
HKT__DEVICE bool plan_is_fed(const hkt__plan_args &a, const plan_cursor &c, const hkt__plan_entry &e)
{
    if (e.feeder < 0)
        return true;
    const plan_cursor &feeder = plan_siblings(a, c)[e.feeder];
    const uint64_t at = uint64_t(plan_round(c)) << 32 | unsigned(e.feeder_pos), progress = load_word_block(&feeder.progress);

    return progress > at || (progress == at && load_word_block(&feeder.done) >= c.done + c.bytes);
}

/** Is there a frame, or room for one? */
HKT__DEVICE bool plan_is_ready(const hkt__plan_args &a, plan_cursor &c, const hkt__plan_entry &e)
{
    const hkt__plan_queue_row &q = a.queues[c.queue];
    const int protocol = plan_protocol(a, c, e.kind);
    const size_t channel = plan_channel(a, q.peer, plan_lane(a, c));

    if (q.kind == HKT__PLAN_LOCAL)
        return true;
    const uint64_t most = protocol == PLAN_LL ? a.ll_bytes : a.slot_bytes, left = c.total - c.done;

    c.bytes = uint32_t(left < most ? left : most);
    if (q.kind == HKT__PLAN_TX) {
        if (e.kind == HKT__PLAN_SEND && !plan_is_fed(a, c, e))
            return false;
        if (c.frames[protocol] - c.known[protocol] >= HKT__PLAN_SLOTS)
            c.known[protocol] = load_acquire_sys(plan_words(a, a.rank, a.layout.room[protocol]) + channel); /* P4 */
        return c.frames[protocol] - c.known[protocol] < HKT__PLAN_SLOTS;
    }
    if (protocol == PLAN_LL)
        return load_word_sys(reinterpret_cast<const uint64_t *>(plan_slot(a, c, PLAN_LL))) & PLAN_WORD_IS_THERE;
    if (c.known[PLAN_SIMPLE] <= c.frames[PLAN_SIMPLE])
        c.known[PLAN_SIMPLE] = load_acquire_sys(plan_words(a, a.rank, a.layout.came) + channel); /* P2 */
    return c.known[PLAN_SIMPLE] > c.frames[PLAN_SIMPLE];
}

HKT__DEVICE uint8_t plan_look_at(const hkt__plan_args &a, plan_cursor &c)
{
    while (c.slice < a.nslices) {
        const hkt__plan_entry &e = plan_entry_at(a, c);

        if (!c.is_open && !plan_open(a, c, e))
            return PLAN_WAITS;
        if (c.total > 0)
            return plan_is_ready(a, c, e) ? PLAN_READY : PLAN_WAITS;
        plan_close(a, c); /* a message of nothing is not sent */
    }
    return PLAN_OVER;
}

/** Tells peers that rounds of a direct plan are finished here: their scratch of these is free. */
HKT__DEVICE void plan_tell(const hkt__plan_args &a, int replica, uint64_t rounds)
{
    uint64_t &told = plan_shared.told[replica];

    if (rounds == told)
        return;
    told = rounds;
    for (int r = 0; r < a.nranks; ++r)
        if (r != a.rank) /* P5 */
            store_release_sys(plan_words(a, r, a.layout.finished) + plan_channel(a, a.rank, replica),
                              plan_shared.bases[replica] + rounds);
}

HKT__DEVICE uint32_t plan_rounds_of(const hkt__plan_args &a, int replica)
{
    return replica < a.nslices ? uint32_t((a.nslices - replica - 1) / a.channels + 1) : 0;
}

/** Gives up when the host says so, and says what this owner was waiting for. */
HKT__DEVICE bool plan_must_stop(const hkt__plan_args &a, const plan_cursor &c, unsigned spins)
{
    if (load_word_block(&plan_shared.stop) == 0 &&
        (spins % PLAN_ABORT_SPINS != PLAN_ABORT_SPINS - 1 || load_word_sys(&a.watch->abort) == 0))
        return false;
    const hkt__plan_queue_row &q = a.queues[c.queue];
    const int protocol = plan_protocol(a, c, plan_entry_at(a, c).kind);

    store_word_sys(&a.watch->aborted, 1);
    if (q.kind == HKT__PLAN_RX || (q.kind == HKT__PLAN_TX && c.frames[protocol] - c.known[protocol] >= HKT__PLAN_SLOTS))
        store_word_sys(&a.watch->waiting, uint64_t(c.slice) << 32 | unsigned(q.peer) << 8 | unsigned(q.kind + 1));
    return true;
}

/** The first cursor a thread owns: owners are spread over the warps, whose threads would look one after another. */
HKT__DEVICE int plan_first_owned()
{
    return int(threadIdx.x / 32 + threadIdx.x % 32 * (blockDim.x / 32));
}

/** An owner looks at its cursors until there is work, its own or that of another. */
HKT__DEVICE void plan_look(const hkt__plan_args &a, int ncursors, uint64_t round)
{
    for (unsigned spins = 0;; ++spins) {
        bool is_found = false, is_over = true;

        for (int i = plan_first_owned(); i < ncursors; i += int(blockDim.x)) {
            plan_cursor &c = plan_shared.cursors[i];

            if (a.direct && c.queue == 0) {
                const uint64_t rounds = plan_rounds_finished(a, &c);

                plan_tell(a, c.replica, rounds);
                is_over &= rounds == plan_rounds_of(a, c.replica);
            }
            uint8_t state = plan_look_at(a, c);

            if (state == PLAN_WAITS && plan_must_stop(a, c, spins))
                state = PLAN_STOPS;
            plan_shared.states[i] = state;
            is_found |= state == PLAN_READY || state == PLAN_STOPS;
            is_over &= state == PLAN_OVER;
        }
        if (is_found)
            store_word_block(&plan_shared.found, round);
        if (is_over || load_word_block(&plan_shared.found) == round)
            return;
        spin_hint();
    }
}

/* --- Work ----------------------------------------------------------------------------------------------------------- */

struct plan_sources {
    int n;

    HKT__DEVICE int count() const { return n; }
    HKT__DEVICE const void *at(int j) const { return plan_shared.srcs[j]; }
};

/** What is to be done on a stretch of operands of one shape. */
struct plan_work {
    const hkt__plan_operand *dst;  /* NULL: `frame` */
    const hkt__plan_operand *srcs; /* nsrcs of them, and `frame` after them when it is not the destination */
    int nsrcs;
    char *frame;
    int piece;
    uint64_t offset, bytes; /* from here on in that piece, so many */
};

/** Which sources of a stretch are to be multiplied. */
HKT__DEVICE uint64_t plan_scaled(const plan_work &w)
{
    uint64_t set = 0;

    for (int j = 0; j < w.nsrcs; ++j)
        set |= uint64_t(w.srcs[j].buf == HKT__PLAN_IN) << j;
    return set;
}

template <class Type>
HKT__DEVICE void plan_stretch(const hkt__plan_args &a, const plan_cursor &c, const plan_work &w, char *frame, int piece,
                              uint64_t offset, uint64_t bytes)
{
    const int nsrcs = w.nsrcs + (w.dst != nullptr && frame != nullptr);
    char *to = w.dst == nullptr ? frame : plan_address(a, c, *w.dst, piece) + offset;
    const uint64_t scaled = Type::reduces && a.is_scaled ? plan_scaled(w) : 0;

    if (nsrcs == 1 && scaled == 0) {
        const char *from = w.nsrcs == 0 ? frame : plan_address(a, c, w.srcs[0], piece) + offset;

        if (from != to)
            copy_bytes(to, from, bytes, whole_block());
        return;
    }
    if constexpr (Type::reduces) {
        __syncthreads(); /* the sources before were read */
        for (int j = int(threadIdx.x); j < nsrcs; j += int(blockDim.x))
            plan_shared.srcs[j] = j == w.nsrcs ? frame : plan_address(a, c, w.srcs[j], piece) + offset;
        __syncthreads();
        if (scaled != 0)
            Type::fold_scaled(a, scaled, to, plan_sources{nsrcs}, bytes);
        else
            Type::fold_all(a.op, to, plan_sources{nsrcs}, bytes);
    }
}

template <class Type> HKT__DEVICE void plan_walk(const hkt__plan_args &a, const plan_cursor &c, const plan_work &w)
{
    const hkt__plan_operand &shape = w.dst != nullptr ? *w.dst : w.srcs[0];
    uint64_t offset = w.offset, left = w.bytes;
    char *frame = w.frame;

    for (int piece = w.piece; piece < shape.count && left > 0; ++piece, offset = 0) {
        const uint64_t there = plan_piece_bytes(a, shape, piece, c.slice) - offset, bytes = there < left ? there : left;

        if (bytes > 0)
            plan_stretch<Type>(a, c, w, frame, piece, offset, bytes);
        frame = frame == nullptr ? frame : frame + bytes;
        left -= bytes;
    }
}

/** `bytes` at src, into words. */
HKT__DEVICE void plan_ll_store(uint64_t *words, const char *src, uint32_t bytes)
{
    const bool is_aligned = reinterpret_cast<uintptr_t>(src) % 4 == 0;

    for (uint32_t at = 4 * threadIdx.x; at < bytes; at += 4 * blockDim.x) {
        uint32_t data = 0;

        if (is_aligned && at + 4 <= bytes)
            data = *reinterpret_cast<const uint32_t *>(src + at);
        else
            for (uint32_t i = 0; i < 4 && at + i < bytes; ++i)
                data |= uint32_t(uint8_t(src[at + i])) << (8 * i);
        store_word_sys(words + at / 4, PLAN_WORD_IS_THERE | data);
    }
}

/** Words to bytes, each as soon as it is there; and empty again. */
HKT__DEVICE void plan_ll_load(const hkt__plan_args &a, char *dst, uint64_t *words, uint32_t bytes)
{
    const bool is_aligned = reinterpret_cast<uintptr_t>(dst) % 4 == 0;

    for (uint32_t at = 4 * threadIdx.x; at < bytes; at += 4 * blockDim.x) {
        uint64_t word = load_word_sys(words + at / 4);

        for (unsigned spins = 1; !(word & PLAN_WORD_IS_THERE); ++spins) {
            if (spins % 1024 == 0 && load_word_sys(&a.watch->abort) != 0) {
                store_word_block(&plan_shared.stop, 1);
                return;
            }
            spin_hint();
            word = load_word_sys(words + at / 4);
        }
        store_word_sys(words + at / 4, 0);
        if (is_aligned && at + 4 <= bytes)
            *reinterpret_cast<uint32_t *>(dst + at) = uint32_t(word);
        else
            for (uint32_t i = 0; i < 4 && at + i < bytes; ++i)
                dst[at + i] = char(word >> (8 * i));
    }
}

/** How a frame goes by LL: from or to memory itself or, where it is to be reduced or multiplied or is not in one piece, the
 *  block's stage. */
struct plan_ll {
    uint64_t *words;
    char *data;
    bool is_staged;
};

HKT__DEVICE plan_ll plan_ll_of(const hkt__plan_args &a, const plan_cursor &c, const hkt__plan_entry &e, const plan_work &w)
{
    const hkt__plan_operand &x = w.dst != nullptr ? *w.dst : w.srcs[0];
    const bool is_one = plan_piece_bytes(a, x, c.piece, c.slice) - c.offset >= c.bytes;
    plan_ll ll = {reinterpret_cast<uint64_t *>(plan_slot(a, c, PLAN_LL)), nullptr,
                  !is_one || e.kind == HKT__PLAN_RECV_REDUCE || a.is_scaled};

    ll.data = ll.is_staged ? a.arenas[a.rank] + a.layout.stage + blockIdx.x * size_t(a.ll_bytes)
                           : plan_address(a, c, x, c.piece) + c.offset;
    return ll;
}

/** What an entry works on, but for its frame. */
HKT__DEVICE plan_work plan_work_of(const hkt__plan_args &a, const plan_cursor &c, const hkt__plan_entry &e)
{
    plan_work w = {e.dst < 0 ? nullptr : a.operands + e.dst, a.operands + e.arg_first, e.arg_count, nullptr, 0, 0, UINT64_MAX};

    if (plan_is_message(e.kind)) {
        w.nsrcs = e.kind == HKT__PLAN_RECV ? 0 : 1;
        w.piece = c.piece;
        w.offset = c.offset;
        w.bytes = c.bytes;
    } else if (e.kind == HKT__PLAN_WRITE) {
        w.nsrcs = 1;
    }
    return w;
}

template <class Type> HKT__DEVICE void plan_do(const hkt__plan_args &a, const plan_cursor &c)
{
    const hkt__plan_entry &e = plan_entry_at(a, c);
    const bool is_ll = plan_protocol(a, c, e.kind) == PLAN_LL;
    plan_work w = plan_work_of(a, c, e);
    plan_ll ll = {nullptr, nullptr, false};
    int places = e.kind == HKT__PLAN_SIGNAL || e.kind == HKT__PLAN_WAIT ? 0 : e.kind == HKT__PLAN_WRITE ? e.arg_count - 1 : 1;

    if (is_ll) {
        ll = plan_ll_of(a, c, e, w);
        places = ll.is_staged;
        w.frame = ll.data;
        if (e.kind != HKT__PLAN_SEND)
            plan_ll_load(a, ll.data, ll.words, c.bytes);
    } else if (plan_is_message(e.kind)) {
        w.frame = plan_slot(a, c, PLAN_SIMPLE);
    }
    if (ll.is_staged)
        __syncthreads(); /* the stage is full */
    for (int i = 1; i <= places; ++i) { /* one place in the code: it is most of it */
        if (e.kind == HKT__PLAN_WRITE)
            w.dst = a.operands + e.arg_first + i;
        plan_walk<Type>(a, c, w);
    }
    if (ll.is_staged)
        __syncthreads(); /* it is free or, for a send, full */
    if (is_ll && e.kind == HKT__PLAN_SEND) {
        plan_ll_store(ll.words, ll.data, c.bytes);
        if (ll.is_staged)
            __syncthreads(); /* it is free */
    }
}

/* --- Commit --------------------------------------------------------------------------------------------------------- */

HKT__DEVICE void plan_commit(const hkt__plan_args &a, plan_cursor &c)
{
    const hkt__plan_entry &e = plan_entry_at(a, c);
    const hkt__plan_queue_row &q = a.queues[c.queue];
    const int protocol = plan_protocol(a, c, e.kind);

    if (q.kind != HKT__PLAN_LOCAL) {
        const size_t channel = plan_channel(a, a.rank, plan_lane(a, c));

        ++c.frames[protocol];
        if (q.kind == HKT__PLAN_RX)
            store_release_sys(plan_words(a, q.peer, a.layout.room[protocol]) + channel, c.frames[protocol]); /* P3 */
        else if (protocol == PLAN_SIMPLE)
            store_release_sys(plan_words(a, q.peer, a.layout.came) + channel, c.frames[protocol]); /* P1 */
    }
    if (plan_is_message(e.kind) && c.done + c.bytes < c.total) {
        const hkt__plan_operand &x = a.operands[e.kind == HKT__PLAN_SEND ? e.arg_first : e.dst];
        uint64_t piece_bytes;

        store_word_block(&c.done, c.done + c.bytes);
        for (c.offset += c.bytes; c.offset >= (piece_bytes = plan_piece_bytes(a, x, c.piece, c.slice)); ++c.piece)
            c.offset -= piece_bytes;
        return;
    }
    plan_close(a, c);
}

/* --- All of it ------------------------------------------------------------------------------------------------------ */

HKT__DEVICE uint64_t *plan_own_counts(const hkt__plan_args &a, const plan_cursor &c)
{
    const hkt__plan_queue_row &q = a.queues[c.queue];

    return plan_words(a, a.rank, a.layout.own) + plan_channel(a, q.peer, plan_lane(a, c)) * 4 + (q.kind == HKT__PLAN_TX ? 0 : 2);
}

HKT__DEVICE void plan_begin(const hkt__plan_args &a, int first_replica, int nreplicas, int ncursors)
{
    for (int i = plan_first_owned(); i < ncursors; i += int(blockDim.x)) {
        plan_cursor &c = plan_shared.cursors[i];

        c.progress = c.done = c.total = c.offset = 0;
        c.known[0] = c.known[1] = c.frames[0] = c.frames[1] = 0;
        c.free_rounds = 0;
        c.is_open = false;
        c.piece = 0;
        c.queue = i % a.nqueues;
        c.slice = c.replica = first_replica + i / a.nqueues;
        if (a.queues[c.queue].kind != HKT__PLAN_LOCAL) {
            c.frames[0] = plan_own_counts(a, c)[0];
            c.frames[1] = plan_own_counts(a, c)[1];
        }
    }
    if (int(threadIdx.x) < nreplicas) {
        const int replica = first_replica + int(threadIdx.x);

        plan_shared.bases[replica] = plan_words(a, a.rank, a.layout.rounds)[replica];
        plan_shared.told[replica] = 0;
    }
    if (threadIdx.x == 0) {
        plan_shared.found = plan_shared.stop = 0;
        if (a.user_direct) { /* every block the same; before any of its signals */
            uint64_t *words = plan_words(a, a.rank, a.layout.published);

            store_word_sys(words, reinterpret_cast<uint64_t>(a.in));
            store_word_sys(words + 1, a.in_pool);
            store_word_sys(words + 2, reinterpret_cast<uint64_t>(a.out));
            store_word_sys(words + 3, a.out_pool);
        }
    }
}

HKT__DEVICE void plan_end(const hkt__plan_args &a, int first_replica, int nreplicas, int ncursors)
{
    for (int i = plan_first_owned(); i < ncursors; i += int(blockDim.x)) {
        const plan_cursor &c = plan_shared.cursors[i];

        if (a.queues[c.queue].kind != HKT__PLAN_LOCAL) {
            plan_own_counts(a, c)[0] = c.frames[0];
            plan_own_counts(a, c)[1] = c.frames[1];
        }
    }
    if (a.direct && int(threadIdx.x) < nreplicas) {
        const int replica = first_replica + int(threadIdx.x);
        const uint32_t rounds = plan_rounds_of(a, replica);

        plan_tell(a, replica, rounds);
        plan_words(a, a.rank, a.layout.rounds)[replica] = plan_shared.bases[replica] + rounds;
    }
}

} /* namespace */

template <class Type> __global__ void __launch_bounds__(HKT__PLAN_THREADS, 1) plan_run(const __grid_constant__ hkt__plan_args a)
{
    const int first_replica = int(blockIdx.x) * a.replicas_here, rest = a.channels - first_replica;
    const int nreplicas = rest < a.replicas_here ? rest : a.replicas_here, ncursors = nreplicas * a.nqueues;

    plan_begin(a, first_replica, nreplicas, ncursors);
    __syncthreads();
    for (uint64_t round = 1;; ++round) {
        bool is_over = true, is_stopped = false;

        plan_look(a, ncursors, round);
        __syncthreads(); /* A */
        for (int i = 0; i < ncursors; ++i) {
            is_over &= plan_shared.states[i] == PLAN_OVER;
            is_stopped |= plan_shared.states[i] == PLAN_STOPS;
        }
        if (is_stopped)
            return;
        if (is_over)
            break;
        for (int i = 0; i < ncursors; ++i)
            if (plan_shared.states[i] == PLAN_READY)
                plan_do<Type>(a, plan_shared.cursors[i]);
        __syncthreads(); /* B */
        for (int i = plan_first_owned(); i < ncursors; i += int(blockDim.x))
            if (plan_shared.states[i] == PLAN_READY)
                plan_commit(a, plan_shared.cursors[i]);
    }
    plan_end(a, first_replica, nreplicas, ncursors);
}

#endif
