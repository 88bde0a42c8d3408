/* Argument checks. Everything refused here is refused before anything is sent, so the communicator stays usable. */
#include "comm/stage.h"

static enum hkt_status bad(const struct hkt__call *call, const char *what)
{
    return hkt__fail(HKT_ERR_INVALID, "%s: %s", hkt_coll_name(call->coll), what);
}

static enum hkt_status check_op(const struct hkt__call *call)
{
    if (call->op < HKT_OP_COUNT) {
        const enum hkt_status rc = hkt_op_check(call->op, call->dtype);

        return rc < 0 ? hkt__error_context(rc, "%s", hkt_coll_name(call->coll)) : HKT_OK;
    }
    if ((int)call->op < HKT_OP_USER || call->op > HKT_OP_LAST ||
        !call->comm->user_ops[(int)call->op - HKT_OP_USER].used)
        return bad(call, "op is neither a built-in operation nor a handle of this communicator");
    const struct hkt__user_op *op = &call->comm->user_ops[(int)call->op - HKT_OP_USER];

    if (op->function == NULL && op->dtype != call->dtype)
        return hkt__fail(HKT_ERR_INVALID, "%s: the pre-multiplied sum was made for %s, not %s",
                         hkt_coll_name(call->coll), hkt_dtype_name(op->dtype), hkt_dtype_name(call->dtype));
    return HKT_OK;
}

/** Bytes from the first to past the last element of n blocks; false on overflow. */
static bool blocks_extent(const size_t *counts, const size_t *displs, int n, size_t elem_bytes, size_t *out_bytes)
{
    size_t end = 0, packed = 0;

    for (int i = 0; i < n; i++) {
        size_t block_end;

        if (__builtin_add_overflow(displs != NULL ? displs[i] : packed, counts[i], &block_end) ||
            __builtin_add_overflow(packed, counts[i], &packed))
            return false;
        if (block_end > end)
            end = block_end;
    }
    return !__builtin_mul_overflow(end, elem_bytes, out_bytes) && *out_bytes <= PTRDIFF_MAX;
}

static size_t block_start(const size_t *counts, const size_t *displs, int i)
{
    size_t start = 0;

    if (displs != NULL)
        return displs[i];
    for (int j = 0; j < i; j++)
        start += counts[j];
    return start;
}

static enum hkt_status measure_v(const struct hkt__call *call, struct hkt__extent *out)
{
    const struct hkt_blocks *b = &call->blocks;
    const int n = call->comm->nranks, rank = call->comm->rank;
    const size_t elem_bytes = hkt_dtype_size(call->dtype);
    const bool sends = call->coll != HKT_ALL_GATHER_V, receives = call->coll != HKT_REDUCE_SCATTER_V;

    if ((sends && b->send_counts == NULL) || (receives && b->recv_counts == NULL))
        return bad(call, "counts are NULL");
    if (call->coll == HKT_ALL_TO_ALL_V && (b->send_displs == NULL || b->recv_displs == NULL))
        return bad(call, "displacements are NULL");
    if ((sends && !blocks_extent(b->send_counts, b->send_displs, n, elem_bytes, &out->in_bytes)) ||
        (receives && !blocks_extent(b->recv_counts, b->recv_displs, n, elem_bytes, &out->out_bytes)))
        return bad(call, "the counts overflow the address space");
    if (call->coll == HKT_ALL_GATHER_V) {
        if (call->count != b->recv_counts[rank])
            return hkt__fail(HKT_ERR_INVALID, "all_gather_v: sendcount %zu differs from recvcounts[%d] = %zu",
                             call->count, rank, b->recv_counts[rank]);
        out->in_bytes = call->count * elem_bytes;
        out->own_out = block_start(b->recv_counts, b->recv_displs, rank) * elem_bytes;
    }
    if (call->coll == HKT_REDUCE_SCATTER_V) {
        out->out_bytes = b->send_counts[rank] * elem_bytes;
        out->own_in = block_start(b->send_counts, NULL, rank) * elem_bytes;
    }
    out->in_used = out->out_used = true;
    return HKT_OK;
}

static enum hkt_status measure(const struct hkt__call *call, struct hkt__extent *out)
{
    const size_t elem_bytes = hkt_dtype_size(call->dtype);
    int32_t blocks[2];
    size_t block;

    if (call->coll >= HKT_ALL_GATHER_V && call->coll <= HKT_ALL_TO_ALL_V)
        return measure_v(call, out);
    if (__builtin_mul_overflow(call->count, elem_bytes, &block) || block > PTRDIFF_MAX / (size_t)call->comm->nranks)
        return hkt__fail(HKT_ERR_INVALID, "%s: count %zu of %s over %d ranks overflows the address space",
                         hkt_coll_name(call->coll), call->count, hkt_dtype_name(call->dtype), call->comm->nranks);
    if (call->coll == HKT_SEND_RECV) {
        blocks[0] = call->is_send;
        blocks[1] = !call->is_send;
    } else {
        hkt__coll_blocks(call->coll, call->comm->nranks, call->comm->rank, call->root, blocks);
    }
    out->in_bytes = block * (size_t)blocks[0];
    out->out_bytes = block * (size_t)blocks[1];
    out->in_used = blocks[0] > 0;
    out->out_used = blocks[1] > 0;
    if (blocks[0] == 1 && blocks[1] > 1)
        out->own_out = block * (size_t)call->comm->rank;
    if (blocks[1] == 1 && blocks[0] > 1)
        out->own_in = block * (size_t)call->comm->rank;
    return HKT_OK;
}

static enum hkt_status check_buffers(struct hkt__call *call, const struct hkt__extent *x)
{
    const uintptr_t in = (uintptr_t)call->in, out = (uintptr_t)call->out;

    call->staging.in_bytes = x->in_bytes;
    call->staging.out_bytes = x->out_bytes;
    call->in_place = false;
    call->registered = call->comm->registered != NULL &&
                       (!x->in_used || hkt__registered_covers(call->comm, call->in, x->in_bytes)) &&
                       (!x->out_used || hkt__registered_covers(call->comm, call->out, x->out_bytes));
    if ((x->in_bytes > 0 && call->in == NULL) || (x->out_bytes > 0 && call->out == NULL))
        return bad(call, x->in_bytes > 0 && call->in == NULL ? "the send buffer is NULL" : "the receive buffer is NULL");
    if (!x->in_used || !x->out_used || x->in_bytes == 0 || x->out_bytes == 0)
        return HKT_OK;
    if (in + x->own_in == out + x->own_out) {
        if (call->coll == HKT_ALL_TO_ALL_V)
            return bad(call, "in place is not supported: use separate buffers");
        call->in_place = true;
        return HKT_OK;
    }
    if (in < out + x->out_bytes && out < in + x->in_bytes)
        return bad(call, "send and receive buffer overlap: they must be apart, or in place exactly as documented");
    return HKT_OK;
}

static bool takes_root(enum hkt_coll coll)
{
    return coll == HKT_BROADCAST || coll == HKT_REDUCE || coll == HKT_GATHER || coll == HKT_SCATTER ||
           coll == HKT_SEND_RECV;
}

static bool reduces(enum hkt_coll coll)
{
    return coll == HKT_ALL_REDUCE || coll == HKT_REDUCE || coll == HKT_REDUCE_SCATTER || coll == HKT_REDUCE_SCATTER_V;
}

/** Is this call, but for its buffers, the one that was last found right? */
static bool is_known(const struct hkt__call *call)
{
    const struct hkt__checked *last = &call->comm->checked;

    return call->coll == last->coll && call->dtype == last->dtype && call->op == last->op && call->root == last->root &&
           call->count == last->count && call->is_send == last->is_send;
}

/** What does not depend on the buffers; measures them. What counts and handles of users decide is looked at each time. */
static enum hkt_status check_kind(const struct hkt__call *call, struct hkt__extent *out)
{
    enum hkt_status rc = HKT_OK;

    *out = (struct hkt__extent){0};
    if (hkt_dtype_size(call->dtype) == 0)
        return hkt__fail(HKT_ERR_INVALID, "%s: dtype %d is unknown", hkt_coll_name(call->coll), (int)call->dtype);
    if (takes_root(call->coll) && (call->root < 0 || call->root >= call->comm->nranks))
        return hkt__fail(HKT_ERR_INVALID, "%s: %s %d is not a rank: the communicator has ranks 0..%d",
                         hkt_coll_name(call->coll), call->coll == HKT_SEND_RECV ? "peer" : "root", call->root,
                         call->comm->nranks - 1);
    if (reduces(call->coll))
        rc = check_op(call);
    if (rc == HKT_OK)
        rc = measure(call, out);
    if (rc == HKT_OK && !hkt__coll_is_v(call->coll) && (int)call->op < HKT_OP_USER)
        call->comm->checked = (struct hkt__checked){call->coll, call->dtype, call->op, call->root, call->is_send,
                                                    call->count, *out};
    return rc;
}

enum hkt_status hkt__call_check(struct hkt__call *call)
{
    struct hkt__extent fresh;
    const struct hkt__extent *extent = &fresh;
    enum hkt_status rc = HKT_OK;

    if (call->comm == NULL)
        return bad(call, "comm is NULL");
    if (is_known(call))
        extent = &call->comm->checked.extent;
    else
        rc = check_kind(call, &fresh);
    if (rc == HKT_OK)
        rc = check_buffers(call, extent);
    if (rc < 0 || call->comm->cuda == NULL)
        return rc;
    rc = hkt__stage_look(call);
    if (rc == HKT_ERR_INVALID)
        return rc;
    return rc < 0 ? hkt__comm_fail_here(call->comm, rc, hkt_coll_name(call->coll)) : HKT_OK; /* others may be at it */
}
