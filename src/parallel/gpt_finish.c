/* Gradients of which several ranks have a part each: added up once, when all micro-batches are in.
 *
 *  rows cut over tp     norms, biases behind a reduction, positions: each rank saw its own rows
 *  copied kv heads      each rank saw its own query heads
 *  tied embedding       the first stage has what the lookup adds, the last what the head adds
 *
 * Everything else is complete on each rank that holds it. */
#include "parallel/fail.h"
#include "parallel/gpt_state.h"

/* Reduce tensors that lie side by side. */
static void reduce(struct hkt__gpt *gpt, const struct hkt__link *link, const enum hkt__gpt_tensor *tensors, int unit)
{
    struct hkt__block *block = &gpt->block;
    char *first = NULL;
    int64_t elems = 0;

    for (int i = 0; tensors[i] != HKT__T_COUNT; i++) {
        const int index = gpt->index[unit][tensors[i]];
        const struct hkt__weight weight = hkt__gpt_weight(gpt, index);

        if (weight.grad == NULL)
            continue;
        elems += gpt->own->held[index].local_count;
        first = first == NULL || (char *)weight.grad < first ? weight.grad : first;
    }
    if (elems > 0 && hkt__block_ok(block))
        hkt__block_note(block, hkt__link_all_reduce(link, first, elems, block->ops->real, HKT_SUM));
}

void hkt__gpt_finish_unit(struct hkt__gpt *gpt, int unit)
{
    static const enum hkt__gpt_tensor cut_rows[] = { HKT__T_WPE,        HKT__T_NORM1,          HKT__T_NORM1_BIAS,
                                                     HKT__T_NORM2,      HKT__T_NORM2_BIAS,     HKT__T_ATTN_BIAS,
                                                     HKT__T_MLP_BIAS,   HKT__T_NORM_LAST,      HKT__T_NORM_LAST_BIAS,
                                                     HKT__T_COUNT };
    static const enum hkt__gpt_tensor keys[] = { HKT__T_K, HKT__T_V, HKT__T_COUNT };
    static const enum hkt__gpt_tensor key_biases[] = { HKT__T_K_BIAS, HKT__T_V_BIAS, HKT__T_COUNT };

    if (gpt->block.is_cut)
        reduce(gpt, &gpt->block.tp, cut_rows, unit);
    if (gpt->copies.size > 1) {
        reduce(gpt, &gpt->copies, keys, unit);
        reduce(gpt, &gpt->copies, key_biases, unit);
    }
}

bool hkt__gpt_is_tied_here(const struct hkt__gpt *gpt)
{
    return gpt->config.shape.tied && gpt->pp > 1 && (gpt->stage == 0 || gpt->stage == gpt->pp - 1);
}

/* Each stage adds the other's part to its own: a + b and b + a are the same bits. */
static enum hkt_status exchange(struct hkt__gpt *gpt, void *mine, void *other, int64_t elems)
{
    const int peer = gpt->stage == 0 ? gpt->pp - 1 : 0;
    const enum hkt_dtype real = gpt->math.ops->real;
    struct hkt__link link = gpt->pp_link;
    enum hkt_status rc = hkt_group_start();

    if (rc < 0)
        return hkt__parallel_pass(rc, "pp");
    link.stream = NULL; /* whoever waits for it is here */
    const int64_t begin = hkt__link_begin(&link);

    rc = hkt__link_send(&link, mine, elems, real, peer);
    if (rc == HKT_OK)
        rc = hkt__link_recv(&link, other, elems, real, peer);
    const enum hkt_status ended = hkt_group_end();

    hkt__link_end(&link, begin, "tied embedding", elems * (int64_t)hkt_dtype_size(real));
    if (rc == HKT_OK && ended < 0)
        rc = hkt__parallel_pass(ended, "pp");
    if (rc == HKT_OK)
        gpt->block.real_ops->add(mine, mine, other, elems);
    return rc;
}

void hkt__gpt_finish_tied(struct hkt__gpt *gpt)
{
    struct hkt__block *block = &gpt->block;
    const int index = gpt->index[0][HKT__T_WTE];
    const struct hkt__weight weight = hkt__gpt_weight(gpt, index);
    const int64_t elems = gpt->own->held[index].local_count;
    void *other = NULL;

    if (!hkt__block_ok(block))
        return;
    hkt__block_note(block, hkt__memory_alloc(block->memory, HKT__MEMORY_COMM,
                                             (uint64_t)elems * block->ops->real_bytes, &other));
    if (hkt__block_ok(block))
        hkt__block_note(block, exchange(gpt, weight.grad, other, elems));
    hkt__memory_free(block->memory, other);
}
