/* The embedding: each tensor-parallel rank has a range of the words, gives zeros for the others, and the sum over ranks is the
 * whole. Positions are whole on every rank. */
#include "parallel/block.h"

static struct hkt__embedding words_of(const struct hkt__block *block, const struct hkt__embedding_weights *weights,
                                      const int32_t *ids)
{
    const struct hkt__embedding words = { .rows = block->rows,
                                          .cols = block->hidden,
                                          .first = block->vocab.first,
                                          .count = block->vocab.count,
                                          .ids = ids,
                                          .table = weights->words.value,
                                          .dtable = weights->words.grad };

    return words;
}

static struct hkt__embedding positions_of(const struct hkt__block *block, const struct hkt__embedding_weights *weights)
{
    const struct hkt__embedding positions = { .rows = block->rows_here,
                                              .cols = block->hidden,
                                              .count = block->config->shape.positions,
                                              .ids = block->positions + block->first_here,
                                              .table = weights->positions.value,
                                              .dtable = weights->positions.grad };

    return positions;
}

void *hkt__embedding_forward(struct hkt__block *block, const struct hkt__embedding_weights *weights,
                             const struct hkt__block_site *site, const int32_t *ids)
{
    const int64_t here = block->rows_here * block->hidden;
    struct hkt__embedding words = words_of(block, weights, ids);
    void *y = hkt__block_get(block, block->rows * block->hidden);

    words.y = y;
    if (hkt__block_ok(block))
        block->ops->embedding(&words);
    y = hkt__tp_reduce(block, y);
    if (weights->positions.value != NULL) {
        struct hkt__embedding positions = positions_of(block, weights);
        void *place = hkt__block_get(block, here);

        positions.y = place;
        if (hkt__block_ok(block)) {
            block->ops->embedding(&positions);
            block->ops->add(y, y, place, here);
        }
        hkt__block_drop(block, &place);
    }
    hkt__block_dropout(block, HKT__SITE_EMBEDDING, site, y, y);
    return y;
}

void hkt__embedding_weights(struct hkt__block *block, const struct hkt__embedding_weights *weights,
                            const struct hkt__block_site *site, const int32_t *ids, void *dy)
{
    struct hkt__embedding words = words_of(block, weights, ids), positions = positions_of(block, weights);

    hkt__block_dropout(block, HKT__SITE_EMBEDDING, site, dy, dy);
    positions.dy = dy;
    if (hkt__block_ok(block) && weights->positions.grad != NULL)
        block->ops->embedding_grad(&positions);
    dy = hkt__tp_gather(block, dy);
    words.dy = dy;
    if (hkt__block_ok(block))
        block->ops->embedding_grad(&words);
    hkt__block_drop(block, &dy);
}
