/* Writing with a trained GPT: tokens one after the other, each from those before, whose keys and values are kept. Calls are
 * collective over the communicator; all ranks get the same tokens, and the same as one rank would but for rounding. */
#ifndef HOCKET_GENERATE_H
#define HOCKET_GENERATE_H

#include <stdint.h>

#include "hocket/comm.h"
#include "hocket/tokens.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How to write. */
struct hkt_generate_config {
    const char *dir;      /* checkpoint, as for hkt_trainer_resume, or a GPT-2 as Hugging Face's transformers saves it: config.json
                           * tells its shape */
    enum hkt_dtype dtype;
    double temperature;   /* 0: always the likeliest */
    int top_k;            /* 0: all */
    int64_t positions;    /* most tokens of prompt and answer; 0: what the model has learned, or 1024 where it has rotary ones */
    uint64_t seed;
};
struct hkt_generator;
/** Every rank of comm takes part of each layer (tensor parallelism). comm NULL: one rank.
 *  Owns     gives *out_generator, released by hkt_generator_destroy
 *  Errors   INVALID, UNSUPPORTED, SYSTEM, NOMEM as hkt_trainer_resume */
HKT_API HKT_NODISCARD enum hkt_status hkt_generator_create(const struct hkt_generate_config *config, struct hkt_comm *comm,
                                                           struct hkt_generator **out_generator);
/** NULL is allowed. */
HKT_API enum hkt_status hkt_generator_destroy(struct hkt_generator *generator);
/** Most tokens of prompt and answer together. */
HKT_API int64_t hkt_generator_positions(const struct hkt_generator *generator);
/** Read tokens, without an answer. */
HKT_API HKT_NODISCARD enum hkt_status hkt_generator_prompt(struct hkt_generator *generator, const int32_t *tokens, int64_t count);
/** The next token, which is then read too. Equal on all ranks.
 *  Errors   INVALID: nothing was read before, or all positions are used */
HKT_API HKT_NODISCARD enum hkt_status hkt_generator_next(struct hkt_generator *generator, int32_t *out_token);
/** The model's vocabulary: logits of the next token after what was read, for all words, on all ranks. out_logits[vocab]. */
HKT_API HKT_NODISCARD enum hkt_status hkt_generator_logits(struct hkt_generator *generator, double *out_logits);
HKT_API int64_t hkt_generator_vocab(const struct hkt_generator *generator);
/** The tokenizer that lies beside the model: borrowed; NULL: there is none, and tokens are bytes. */
HKT_API const struct hkt_tokenizer *hkt_generator_tokenizer(const struct hkt_generator *generator);

#ifdef __cplusplus
}
#endif
#endif
