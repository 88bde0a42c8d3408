/* Text as tokens: pieces of bytes, learned from a text by byte-pair encoding. Every byte is a piece of its own, so every text,
 * valid UTF-8 or not, can be encoded, and decoding gives back its bytes.
 *
 * The format is that of GPT-2: the same numbers for bytes, the same cut of a text into words (its pattern on letters, numbers and
 * white space of Unicode 14; a byte that is not UTF-8 counts as punctuation), the same files vocab.json and merges.txt. Names of special tokens,
 * like <|endoftext|>, have numbers and can be decoded; in a text that is encoded they are text like any other.
 * Source: Sennrich, Haddow & Birch, "Neural machine translation of rare words with subword units", ACL 2016; Radford et al.,
 * "Language models are unsupervised multitask learners", 2019. */
#ifndef HOCKET_TOKENS_H
#define HOCKET_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "hocket/status.h"
#include "hocket/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HKT_TOKENIZER_VOCAB_MIN 256
#define HKT_TOKENIZER_VOCAB_MAX 1000000

/** Never changes once it is made; any threads may use it. Nothing here is collective. */
struct hkt_tokenizer;

/** Learn pieces until there are `vocab`, or no pair of pieces occurs twice. The most frequent pair becomes a piece; of equally
 *  frequent ones that of the lowest numbers. The same text gives the same pieces everywhere. Words are taken to be at most 256
 *  bytes long; longer ones count as several.
 *  Owns     gives *out_tokenizer, released by hkt_tokenizer_destroy
 *  Errors   INVALID: vocab is not HKT_TOKENIZER_VOCAB_MIN to _MAX; NOMEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_tokenizer_train(const void *text, size_t bytes, int64_t vocab,
                                                          struct hkt_tokenizer **out_tokenizer);
/** Read DIR/vocab.json and DIR/merges.txt, as hkt_tokenizer_save and Hugging Face's tokenizers write them.
 *  Errors   SYSTEM: they cannot be read; INVALID names file and reason: it is damaged, or the two do not belong together; NOMEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_tokenizer_load(const char *dir, struct hkt_tokenizer **out_tokenizer);
/** Write them. Errors: SYSTEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_tokenizer_save(const struct hkt_tokenizer *tokenizer, const char *dir);
/** NULL is allowed. */
HKT_API void hkt_tokenizer_destroy(struct hkt_tokenizer *tokenizer);

HKT_API int64_t hkt_tokenizer_vocab(const struct hkt_tokenizer *tokenizer);
/** out_tokens has room for `bytes` tokens. Errors: NOMEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_tokenizer_encode(const struct hkt_tokenizer *tokenizer, const void *text, size_t bytes,
                                                           int32_t *out_tokens, size_t *out_count);
/** The bytes of a token, *out_bytes of them, as long as the tokenizer lives; NULL and 0: there is no such token. A text is decoded
 *  by writing the bytes of its tokens one after the other. */
HKT_API const char *hkt_tokenizer_piece(const struct hkt_tokenizer *tokenizer, int32_t token, size_t *out_bytes);

#ifdef __cplusplus
}
#endif
#endif
