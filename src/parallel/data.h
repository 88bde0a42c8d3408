/* Text to train on, as bytes or as the tokens of a tokenizer. Which sequence stands at which place of which step's batch is a function of seed, step
 * and place, so it depends on no layout, and a resumed run needs no position. */
#ifndef HOCKET_PARALLEL_DATA_H
#define HOCKET_PARALLEL_DATA_H

#include <stdint.h>

#include "hocket/tokens.h"

#define HKT__DATA_DEFAULT "/usr/share/common-licenses"

struct hkt__data {
    unsigned char *bytes; /* NULL once there are tokens */
    int32_t *tokens;      /* NULL: the bytes are the tokens */
    int64_t count, held_out; /* tokens; the last held_out are not trained on */
    int64_t text_bytes;
    uint64_t seed;
};

/** Read a file, or all files of a folder in the order of their names (links aside); NULL: HKT__DATA_DEFAULT.
 *  Owns     fills *out_data, released by hkt__data_fini
 *  Errors   SYSTEM: it cannot be read; INVALID: it is shorter than a sequence of `seq` tokens and the one after; NOMEM */
HKT_NODISCARD enum hkt_status hkt__data_init(const char *path, double held_out, int64_t seq, struct hkt__data *out_data);
void hkt__data_fini(struct hkt__data *data);
/** From now on the tokens are the tokenizer's. What is trained on and what is held out are encoded apart.
 *  Errors   INVALID: they are fewer than a sequence of `seq` and the one after; NOMEM */
HKT_NODISCARD enum hkt_status hkt__data_encode(struct hkt__data *data, const struct hkt_tokenizer *tokenizer, int64_t seq);

/** Sequence `index` of the batch of `step`: seq tokens, and for each the one that follows. */
void hkt__data_train(const struct hkt__data *data, int64_t step, int64_t index, int64_t seq, int32_t *out_ids,
                     int32_t *out_targets);
/** Sequence `index` of the held-out part, of which there are hkt__data_held_count; index is taken modulo that. */
void hkt__data_held(const struct hkt__data *data, int64_t index, int64_t seq, int32_t *out_ids, int32_t *out_targets);
int64_t hkt__data_held_count(const struct hkt__data *data, int64_t seq);

#endif
