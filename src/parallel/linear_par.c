/* The two ways between a rank's rows and all rows, linear layers, and memory and failures of blocks.
 *
 * Column-parallel: the rank has a range of outputs, its input must be gathered, and the gradient of its input reduced.
 * Row-parallel: the rank has a range of inputs, its output must be reduced, and the gradient of its output gathered. So
 * forward gathers where backward reduces, and the other way round; without sequence parallelism gathering is nothing, and
 * reducing an all-reduce: two forward and two backward in a layer.
 * Source: Shoeybi et al. 2019 (Megatron-LM); Korthikanti et al. 2022 (sequence parallelism). */

#include "parallel/block.h"
#include "parallel/fail.h"

void hkt__block_note(struct hkt__block *block, enum hkt_status rc)
{
    if (block->status == HKT_OK)
        block->status = rc;
}

static void *get(struct hkt__block *block, int64_t elems, size_t bytes)
{
    void *data = NULL;

    if (hkt__block_ok(block))
        hkt__block_note(block,
                        hkt__memory_alloc(block->memory, HKT__MEMORY_ACTIVATION, (uint64_t)elems * bytes, &data));
    return data;
}

void *hkt__block_get(struct hkt__block *block, int64_t elems)
{
    return get(block, elems, block->ops->store_bytes);
}

void *hkt__block_get_real(struct hkt__block *block, int64_t elems)
{
    return get(block, elems, block->ops->real_bytes);
}

void hkt__block_drop(struct hkt__block *block, void **data)
{
    hkt__memory_free(block->memory, *data);
    *data = NULL;
}

void *hkt__tp_gather(struct hkt__block *block, void *here)
{
    if (!block->is_cut)
        return here;
    void *whole = hkt__block_get(block, block->rows * block->hidden);

    if (hkt__block_ok(block))
        hkt__block_note(block, hkt__link_all_gather(&block->tp, here, whole, block->rows_here * block->hidden,
                                                    block->ops->store));
    hkt__block_drop(block, &here);
    return whole;
}

void *hkt__tp_reduce(struct hkt__block *block, void *whole)
{
    const enum hkt_dtype dtype = block->ops->store;

    if (!block->is_cut) {
        if (hkt__block_ok(block))
            hkt__block_note(block,
                            hkt__link_all_reduce(&block->tp, whole, block->rows * block->hidden, dtype, HKT_SUM));
        return whole;
    }
    void *here = hkt__block_get(block, block->rows_here * block->hidden);

    if (hkt__block_ok(block))
        hkt__block_note(block,
                        hkt__link_reduce_scatter(&block->tp, whole, here, block->rows_here * block->hidden, dtype));
    hkt__block_drop(block, &whole);
    return here;
}

void hkt__block_linear(struct hkt__block *block, const struct hkt__linear *linear)
{
    if (hkt__block_ok(block))
        hkt__block_note(block, hkt__linear_forward(block->math, linear));
}

void hkt__block_linear_grad(struct hkt__block *block, const struct hkt__linear *linear)
{
    if (hkt__block_ok(block))
        hkt__block_note(block, hkt__linear_input_grad(block->math, linear));
}

void hkt__block_linear_weights(struct hkt__block *block, const struct hkt__linear *linear)
{
    if (hkt__block_ok(block))
        hkt__block_note(block, hkt__linear_weight_grad(block->math, linear));
}
