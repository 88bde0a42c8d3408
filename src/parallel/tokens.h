/* The tokenizer, opened: pieces and merges (tokens.c), the cut of a text into words (tokens_split.c), learning
 * (tokens_train.c), files (tokens_files.c), and the tables all of them need (tokens_map.c). */
#ifndef HOCKET_PARALLEL_TOKENS_H
#define HOCKET_PARALLEL_TOKENS_H

#include <stdbool.h>

#include "hocket/tokens.h"

/* ---- tables (tokens_map.c) ---- */

/** An array that grows. */
struct hkt__list {
    void *data;
    size_t count, room, elem_bytes;
};
/** Room for one more, which is counted, or NULL: no memory. It is not set. */
void *hkt__list_add(struct hkt__list *list);
void hkt__list_fini(struct hkt__list *list);

/** From byte strings to numbers, which count from 0 in the order of hkt__strings_add. A string is a place in a text that the caller
 *  has; only places are kept, so the text may move. */
struct hkt__string {
    size_t first;
    uint32_t bytes, hash;
};
struct hkt__strings {
    struct hkt__list list;  /* struct hkt__string */
    int32_t *slots;         /* number + 1, or 0; [nslots] */
    size_t nslots;          /* a power of two */
};
const struct hkt__string *hkt__strings_at(const struct hkt__strings *strings, int64_t number);
/** Number of key[bytes], or -1. `text` is what the places refer to. */
int32_t hkt__strings_find(const struct hkt__strings *strings, const unsigned char *text, const unsigned char *key,
                          size_t bytes);
/** text[first .. first + bytes) as the next number, which is given; -1: no memory. It must not be there yet. */
int32_t hkt__strings_add(struct hkt__strings *strings, const unsigned char *text, size_t first, size_t bytes);
void hkt__strings_fini(struct hkt__strings *strings);

/** From pairs of numbers to a number. */
struct hkt__pairs {
    struct hkt__pair_slot {
        int32_t left, right, value;
        bool is_used;
    } *slots;               /* [nslots] */
    size_t count, nslots;   /* nslots: a power of two */
};
/** The value of a pair, or -1. */
int32_t hkt__pairs_find(const struct hkt__pairs *pairs, int32_t left, int32_t right);
/** false: no memory. */
bool hkt__pairs_set(struct hkt__pairs *pairs, int32_t left, int32_t right, int32_t value);
void hkt__pairs_fini(struct hkt__pairs *pairs);

/* ---- the tokenizer (tokens.c) ---- */

struct hkt__merge {
    int32_t left, right, made;
};
struct hkt_tokenizer {
    struct hkt__list text;       /* unsigned char: the pieces' bytes */
    struct hkt__strings pieces;  /* places in it; a piece's number is its token */
    struct hkt__list merges;     /* struct hkt__merge, the first to apply first */
    struct hkt__pairs ranks;     /* (left, right) -> index of the merge */
    int32_t of_byte[256];
};

/** No pieces yet. NULL: no memory. */
struct hkt_tokenizer *hkt__tokenizer_create(void);
/** All bytes as pieces, numbered as in GPT-2. Errors: NOMEM */
HKT_NODISCARD enum hkt_status hkt__tokenizer_add_bytes(struct hkt_tokenizer *tokenizer);
/** A piece, which must not be there yet. Errors: NOMEM */
HKT_NODISCARD enum hkt_status hkt__tokenizer_add_piece(struct hkt_tokenizer *tokenizer, const unsigned char *piece, size_t bytes);
/** left and right become one piece, which is added unless it is there; of a pair that was merged before, the last counts, as for
 *  other readers of the format. Errors: NOMEM */
HKT_NODISCARD enum hkt_status hkt__tokenizer_add_merge(struct hkt_tokenizer *tokenizer, int32_t left, int32_t right,
                                                       int32_t *out_made);
/** The piece that left and right make, or -1. Errors: NOMEM */
HKT_NODISCARD enum hkt_status hkt__tokenizer_joined(const struct hkt_tokenizer *tokenizer, int32_t left, int32_t right,
                                                    int32_t *out_made);
bool hkt__tokenizer_is_equal(const struct hkt_tokenizer *a, const struct hkt_tokenizer *b);

/** The character that stands for a byte in files: itself where it can be printed, else 256 and on. */
uint32_t hkt__byte_char(unsigned char byte);

/* ---- words (tokens_split.c, tokens_letters.c) ---- */

enum hkt__char_class { HKT__CHAR_OTHER, HKT__CHAR_LETTER, HKT__CHAR_NUMBER, HKT__CHAR_SPACE };
enum hkt__char_class hkt__char_class_of(uint32_t code_point);
/** Bytes of the character that begins here, and its code point; 0: this is no UTF-8. */
size_t hkt__char_read(const unsigned char *text, size_t bytes, uint32_t *out_code_point);
/** Length of the word that a text begins with. bytes > 0. No piece reaches over the end of a word. */
size_t hkt__word_bytes(const unsigned char *text, size_t bytes);

#endif
