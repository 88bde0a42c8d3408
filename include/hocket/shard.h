/* Which part of a thing a rank gets: heads, vocabulary, layers, flat buffers. Pure functions of numbers, the same
 * ones that cut the model that runs and that the planner counts with; nothing must divide by anything unless said. */
#ifndef HOCKET_SHARD_H
#define HOCKET_SHARD_H

#include <stdint.h>

#include "hocket/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** [first, first + count). */
struct hkt_range {
    int64_t first, count;
};

/** Part `index` of `total` in `parts` as even as can be, larger parts first: 30 in 4 is 8, 8, 7, 7. Parts may be
 *  empty. */
HKT_API struct hkt_range hkt_shard_even(int64_t total, int parts, int index);

/** What tensor-parallel rank `index` of `tp` holds of the vocabulary. */
struct hkt_vocab_shard {
    struct hkt_range rows; /* the words it really holds; the last ranks may hold fewer, or none */
    int64_t block;         /* rows per rank with padding: equal on all */
    int64_t padded;        /* block * tp */
};
/** Blocks of equal size, the vocabulary padded to the next multiple of tp * multiple (128 in Megatron's convention;
 *  1: the least). 101 words over 4 ranks: 26, 26, 26, 23 of a block of 26. */
HKT_API struct hkt_vocab_shard hkt_shard_vocab(int64_t vocab, int64_t multiple, int tp, int index);

/** What tensor-parallel rank `index` of `tp` holds of the heads of attention. */
struct hkt_head_shard {
    struct hkt_range q, kv;
    int copies; /* ranks that hold these kv heads; 1 when tp <= kv_heads */
    int copy;   /* which of them this rank is; copy 0 counts */
};
/** Query heads are shared out evenly; key-value heads too while there are enough (tp <= kv_heads), else each is held
 *  by tp / kv_heads ranks.
 *  Errors   INVALID names the numbers and the nearest tp that fits */
HKT_API HKT_NODISCARD enum hkt_status hkt_shard_heads(int heads, int kv_heads, int tp, int index,
                                                      struct hkt_head_shard *out_shard);

/** How hkt_stage_split weighs layers. */
struct hkt_stage_opts {
    int layers, stages;    /* stages: pp, or pp * chunks for interleaved schedules */
    const double *weights; /* [layers], > 0; NULL: all 1 */
    double first_extra;    /* what the first stage has besides its layers, in the same unit: the embedding */
    double last_extra;     /* the last: head and loss */
};
/** Contiguous layers for each stage, at least one, every layer exactly once: out_first[stages + 1]; stage i has
 *  layers [out_first[i], out_first[i + 1]). The heaviest stage is as light as can be, then the sum of squares, then
 *  earlier stages get more: 30 layers in 4 are 8, 8, 7, 7.
 *  Errors   INVALID: fewer layers than stages, or a weight that is not positive; NOMEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_stage_split(const struct hkt_stage_opts *opts, int *out_first);

/** Tensors laid end to end in one buffer, in reverse order of use, so that gradients become ready from its front; cut
 *  in buckets that are communicated as soon as they are full; each bucket cut in equal shards, one per rank of the
 *  group that shards. Tensors may straddle buckets and shards.
 *
 *  A unit is tensors that are used together: a layer. It begins at a multiple of `align` elements, and a block of
 *  `align` elements is in one shard. So how a unit falls into blocks depends neither on the number of shards, nor on
 *  the size of buckets, nor on which other layers are here, and sums over blocks are the same bits in every layout. */
struct hkt_flat {
    int ntensors, shards, nbuckets;
    int64_t used;   /* elements of all tensors */
    int64_t padded; /* size of the buffer: a multiple of shards * align */
    int64_t align;
    int64_t *first;        /* [ntensors] where each tensor begins */
    int64_t *count;        /* [ntensors] */
    int64_t *bucket_first; /* [nbuckets + 1]; buckets begin at multiples of shards * align */
};
struct hkt_flat_opts {
    const int64_t *counts; /* [ntensors] elements, in order of use; 0 is allowed */
    const int *units;      /* [ntensors] never less than the one before; NULL: one unit */
    int ntensors;
    int shards;    /* >= 1 */
    int64_t align; /* elements, >= 1 */
    int64_t
        bucket_elems; /* wanted; rounded down to a multiple of shards * align, at least one; 0: as large as can be */
    int unit_buckets; /* 1: no bucket holds elements of two units, so that a unit can be gathered alone (ZeRO 3) */
};
/** Owns     gives *out_flat, released by hkt_flat_destroy
 *  Errors   INVALID, NOMEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_flat_create(const struct hkt_flat_opts *opts, struct hkt_flat **out_flat);
/** NULL is allowed. */
HKT_API void hkt_flat_destroy(struct hkt_flat *flat);
/** Elements of a bucket, and of a shard of it, as places in the buffer. */
HKT_API struct hkt_range hkt_flat_bucket(const struct hkt_flat *flat, int bucket);
HKT_API struct hkt_range hkt_flat_shard(const struct hkt_flat *flat, int bucket, int shard);
/** Tensors with elements in a bucket, and buckets with elements of a tensor: contiguous numbers. Tensors without
 *  elements are in no bucket, but one that lies between two others is counted with them. */
HKT_API struct hkt_range hkt_flat_tensors(const struct hkt_flat *flat, int bucket);
HKT_API struct hkt_range hkt_flat_buckets(const struct hkt_flat *flat, int tensor);

#ifdef __cplusplus
}
#endif
#endif
