/* The generator, opened: generate.c makes it and chooses tokens, generate_decode.c runs a token through the model. */
#ifndef HOCKET_PARALLEL_GENERATE_STATE_H
#define HOCKET_PARALLEL_GENERATE_STATE_H

#include "hocket/generate.h"
#include "parallel/engine.h"
#include "parallel/gpt_state.h"

#define HKT__GENERATE_RANKS_MAX 1024 /* that share one model */

struct hkt_generator {
    struct hkt_generate_config config; /* dir is NULL */
    struct hkt_comm *comm;             /* borrowed; NULL: one rank */
    struct hkt_mesh *mesh;
    struct hkt__memory memory;
    struct hkt__gpt *gpt;
    struct hkt__engine *engine;
    struct hkt_tokenizer *tokenizer;   /* NULL: tokens are bytes */
    int64_t positions, read, vocab;    /* read: tokens so far */
    void **keys, **values;             /* [layers] store [positions][kv heads of this rank * head_dim] */
    void *part;                        /* real: this rank's logits, of the last token read */
    void *whole;                       /* real [vocab] */
    double *logits;                    /* [vocab] */
    int32_t *order;                    /* [vocab] scratch of a choice */
};

/** Read one token at position g->read: its keys and values are kept, g->logits are those of the next. Collective. */
HKT_NODISCARD enum hkt_status hkt__generate_read(struct hkt_generator *g, int32_t token);

#endif
