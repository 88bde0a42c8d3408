/* The ownership map: for every parameter tensor of the whole model, which of its elements this rank holds, which of
 * those it counts, and which it updates. Optimizer, gradient norm and checkpoint all read this one map, so they
 * cannot disagree.
 *
 *  holds    what the cuts of tensor, pipeline and expert parallelism leave here: the elements forward needs
 *  counts   of all ranks that hold the same element, one counts it: of a tensor that tensor-parallel ranks share
 *           (layer
 *           norm), a key-value head on several ranks, the tied embedding on two stages, replicas
 *  updates  the part of the flat buffer (hocket/shard.h) that is this rank's shard, with and without ZeRO
 *
 * Invariant: over all ranks, every element of every tensor is counted and updated (hkt__own_next with counted_only)
 * once. */
#ifndef HOCKET_PARALLEL_OWNERSHIP_H
#define HOCKET_PARALLEL_OWNERSHIP_H

#include <stdbool.h>

#include "hocket/mesh.h"
#include "hocket/shard.h"

#define HKT__PARAM_DIMS_MAX 4

/** How tensor parallelism cuts a tensor along cut_dim. */
enum hkt__cut {
    HKT__CUT_NONE,    /* held whole by every tensor-parallel rank */
    HKT__CUT_EVEN,    /* hkt_shard_even: columns or rows of a linear layer */
    HKT__CUT_VOCAB,   /* hkt_shard_vocab */
    HKT__CUT_Q,       /* by query heads */
    HKT__CUT_KV,      /* by key-value heads */
    HKT__CUT_QKV,     /* q, k and v one after the other, each by its heads, not by raw rows */
    HKT__CUT_GATE_UP, /* gate and up one after the other, each even */
};

/** A parameter tensor of the whole model, row-major. Tensors are listed in order of use in forward. */
struct hkt__param {
    const char *name; /* borrowed */
    int ndims;
    int64_t shape[HKT__PARAM_DIMS_MAX];
    enum hkt__cut cut;
    int cut_dim;
    int stage;      /* pipeline rank that holds it and counts it */
    int tied_stage; /* another that holds a copy; -1: none, or the same rank */
    int unit;       /* used and gathered together: a layer; never less than the one before */
    int expert;     /* number of the expert it belongs to; -1: none */
};

struct hkt__own_opts {
    const struct hkt_mesh *mesh; /* borrowed during the call. Axes it may have: tp, pp, dp; parts of dp: ep, edp */
    int rank;
    const struct hkt__param *params; /* borrowed as long as the map lives */
    int nparams;
    int heads, kv_heads; /* of Q, KV, QKV cuts */
    int experts;
    int64_t vocab_multiple;        /* of VOCAB cuts; 0: 1 */
    const char *shard_axis;        /* over which flat buffers are sharded: "dp", or its inner part; NULL: "dp" */
    const char *expert_shard_axis; /* for tensors of experts; NULL: "edp" if the mesh has an axis ep, else shard_axis */
    int64_t align;                 /* of flat buffers, elements; 0: 1 */
    int64_t bucket_elems;          /* as in hocket/shard.h */
    int unit_buckets;              /* 1: buckets never hold two units (ZeRO 3) */
};

/** Elements [first, first + count) along cut_dim of the whole tensor lie at local_first here. */
struct hkt__piece {
    int64_t first, count, local_first;
};

/** What this rank has of one tensor. */
struct hkt__held {
    bool holds, counts;
    int npieces; /* 0: not cut */
    struct hkt__piece piece[3];
    int64_t local_shape[HKT__PARAM_DIMS_MAX];
    int64_t local_count; /* elements here; 0 when it holds none */
};

enum { HKT__FLAT_DENSE, HKT__FLAT_EXPERT, HKT__FLAT_COUNT };

struct hkt__own {
    const struct hkt__param *params;
    int nparams;
    struct hkt__held *held; /* [nparams] */
    struct hkt_flat
        *flat[HKT__FLAT_COUNT]; /* tensors are numbered as params; those of the other kind, or not held, are 0 long */
    int shard[HKT__FLAT_COUNT]; /* which shard of each bucket is this rank's */
};

/** Owns     gives *out_own, released by hkt__own_destroy
 *  Errors   INVALID names the tensor and what about it is impossible; NOMEM */
HKT_NODISCARD enum hkt_status hkt__own_create(const struct hkt__own_opts *opts, struct hkt__own **out_own);
/** NULL is allowed. */
void hkt__own_destroy(struct hkt__own *own);

/** Which flat buffer a tensor lies in. */
static inline int hkt__own_flat(const struct hkt__param *param)
{
    return param->expert < 0 ? HKT__FLAT_DENSE : HKT__FLAT_EXPERT;
}

/** Where local element `local` of a tensor lies in the whole one, and how many of its successors follow it there. */
int64_t hkt__held_global(const struct hkt__param *param, const struct hkt__held *held, int64_t local, int64_t *out_run);

/** Elements that are consecutive in the whole tensor, here, and in the flat buffer. */
struct hkt__run {
    int param;
    int flat, bucket;
    int64_t flat_first;   /* in the flat buffer */
    int64_t local_first;  /* in the tensor as held here */
    int64_t global_first; /* in the whole tensor */
    int64_t count;
};
/** Position of an iteration; start from zero. */
struct hkt__own_cursor {
    int flat, bucket;
    int64_t at; /* elements of this bucket's shard passed */
};
/** The next run of elements that this rank updates, in the order of the flat buffer; with counted_only just those it
 *  counts. false at the end. */
bool hkt__own_next(const struct hkt__own *own, bool counted_only, struct hkt__own_cursor *cursor,
                   struct hkt__run *out_run);

#endif
