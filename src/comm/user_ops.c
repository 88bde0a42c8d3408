/* Reductions made by the user: pre-multiplied sums and callbacks. A handle is a slot of the communicator's table, so that
 * ranks which create their operations in the same order have the same handles, and signatures can compare them. */
#include <string.h>

#include "comm/call.h"

static enum hkt_status take_slot(struct hkt_comm *comm, const struct hkt__user_op *op, enum hkt_op *out_op)
{
    for (int i = 0; i < HKT__USER_OPS_MAX; i++) {
        if (comm->user_ops[i].used)
            continue;
        comm->user_ops[i] = *op;
        comm->user_ops[i].used = 1;
        *out_op = (enum hkt_op)(HKT_OP_USER + i);
        return HKT_OK;
    }
    return hkt__fail(HKT_ERR_INVALID, "a communicator has room for %d user operations: destroy those no longer needed",
                     HKT__USER_OPS_MAX);
}

enum hkt_status hkt_op_create_premulsum(enum hkt_op *out_op, const void *scalar, enum hkt_dtype dtype,
                                        struct hkt_comm *comm)
{
    struct hkt__user_op op = {.dtype = dtype};

    if (out_op == NULL || scalar == NULL || comm == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_op_create_premulsum: out_op, scalar and comm must not be NULL");
    const enum hkt_status rc = hkt_op_check(HKT_SUM, dtype);

    if (rc < 0)
        return rc;
    memcpy(op.scalar, scalar, hkt_dtype_size(dtype));
    return take_slot(comm, &op, out_op);
}

enum hkt_status hkt_op_create_callback(enum hkt_op *out_op, hkt_op_function function, void *arg, struct hkt_comm *comm)
{
    const struct hkt__user_op op = {.function = function, .arg = arg};

    if (out_op == NULL || function == NULL || comm == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_op_create_callback: out_op, function and comm must not be NULL");
    return take_slot(comm, &op, out_op);
}

enum hkt_status hkt_op_destroy(enum hkt_op op, struct hkt_comm *comm)
{
    const int slot = (int)op - HKT_OP_USER;

    if (comm == NULL || slot < 0 || slot >= HKT__USER_OPS_MAX || !comm->user_ops[slot].used)
        return hkt__fail(HKT_ERR_INVALID, "hkt_op_destroy: not an operation of this communicator");
    hkt__turn_drain(&comm->turn);
    comm->user_ops[slot] = (struct hkt__user_op){0};
    return HKT_OK;
}
