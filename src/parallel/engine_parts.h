/* The training engine, opened: what engine.c (storage), engine_comm.c (moving) and engine_step.c (the step) share. */
#ifndef HOCKET_PARALLEL_ENGINE_PARTS_H
#define HOCKET_PARALLEL_ENGINE_PARTS_H

#include "hocket/stream.h"
#include "parallel/engine.h"

/** One unit in one flat buffer. */
struct hkt__engine_unit {
    int64_t first, end;           /* its elements; in stages 2 and 3 whole buckets; first == end: nothing here */
    int bucket_first, bucket_end; /* buckets with elements of it */
    void *param;                  /* stage 3: gathered, or being gathered; NULL: not here */
    void *grad;                   /* stages 2, 3: whole gradients; NULL: not here */
    struct hkt_event *gathered;   /* recorded after the gather; NULL without a stream */
    struct hkt_event *reduced;
    int64_t reductions; /* started in this step */
    bool is_reducing;   /* grad is being reduced, and not added to the shard yet */
};

struct hkt__engine_flat {
    const struct hkt_flat *flat;
    struct hkt__link shards;   /* who shard with each other */
    struct hkt__link replicas; /* hybrid: who hold the same shard; else of size 1 */
    void *param;              /* store: whole (stages 0 to 2) or the shard */
    void *grad;               /* real: whole (stages 0, 1) or the shard */
    void *master;             /* real: whole (stage 0) or the shard; NULL: param is its own */
    void *moment[2];          /* like master; NULL where the optimizer has none */
    struct hkt__engine_unit *unit; /* [nunits] */
    int *pending;             /* [nbuckets] units whose gradients are not final; -1: its reduction has started */
};

struct hkt__engine {
    struct hkt__engine_opts opts;
    const struct hkt__own *own;
    const struct hkt__math_ops *real_ops; /* of tensors in the real type */
    struct hkt__engine_flat flat[HKT__FLAT_COUNT];
    struct hkt__link world;    /* of the norm */
    struct hkt__traffic uncounted; /* in the place of opts.traffic where none is wanted */
    struct hkt_stream *stream; /* NULL: no overlap */
    int nunits;
    int *uses;                 /* [nunits] nested uses of parameters */
    int uses_all;              /* their sum */
    void **param, **grad;      /* [nparams] */
    struct hkt__engine_unit **reducing; /* [2 * nunits] in the order they were started */
    int nreducing;
    int64_t steps, good_steps;
    double loss_scale;
};

/** Where the shard of a bucket begins in a buffer of shards. */
static inline int64_t hkt__engine_shard_at(const struct hkt__engine_flat *f, int bucket)
{
    return f->flat->bucket_first[bucket] / f->shards.size;
}

/** Elements of the buffer of gradients, and of that of optimizer state. */
static inline int64_t hkt__engine_grad_elems(const struct hkt__engine *e, const struct hkt__engine_flat *f)
{
    return e->opts.zero >= 2 ? f->flat->padded / f->shards.size : f->flat->padded;
}

static inline int64_t hkt__engine_state_elems(const struct hkt__engine *e, const struct hkt__engine_flat *f)
{
    return e->opts.zero >= 1 ? f->flat->padded / f->shards.size : f->flat->padded;
}

/** Start the reduction of bucket `bucket`, whose gradients begin at `grad` (real). */
HKT_NODISCARD enum hkt_status hkt__engine_reduce_bucket(struct hkt__engine *e, struct hkt__engine_flat *f, int bucket,
                                                        void *grad);
/** Start the gather of a bucket of parameters into `whole`, of which this rank's shard is `shard` (it may lie in place). */
HKT_NODISCARD enum hkt_status hkt__engine_gather_bucket(struct hkt__engine *e, struct hkt__engine_flat *f, int bucket,
                                                        const void *shard, void *whole);
/** Tell where a unit's elements lie (stages 2, 3). */
void hkt__engine_bind(struct hkt__engine *e, struct hkt__engine_flat *f, int number);
/** Wait for the stream. */
HKT_NODISCARD enum hkt_status hkt__engine_drain(struct hkt__engine *e);
HKT_NODISCARD enum hkt_status hkt__engine_wait(struct hkt__engine *e, struct hkt_event *event);
/** Start reductions of what was never said to be final, and finish all. */
HKT_NODISCARD enum hkt_status hkt__engine_finish(struct hkt__engine *e);

#endif
