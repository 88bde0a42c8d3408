/* What could break: a byte that cannot be encoded, or that does not come back; text that is not UTF-8; a word cut otherwise than by
 * GPT-2's pattern; merges applied in another order; the same text giving other pieces a second time; a file that is cut off, of another
 * vocabulary or no vocabulary at all, and is believed; a piece of one kind of white space joined with a word; memory that is not
 * there. The fixture says what Hugging Face's tokenizers make of a text (tokens_oracle.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "hocket/parallel.h"
#include "parallel/alloc.h"
#include "parallel/rng.h"
#include "parallel/tokens.h"
#include "tokens_case.h"

#define CASE_BYTES (sizeof case_text - 1)

static char folder[] = "/tmp/hocket-tokens-XXXXXX";

static struct hkt_tokenizer *learn(const void *text, size_t bytes, int64_t vocab)
{
    struct hkt_tokenizer *t = NULL;

    assert_int_equal(hkt_tokenizer_train(text, bytes, vocab, &t), HKT_OK);
    assert_true(hkt_tokenizer_vocab(t) <= vocab);
    return t;
}

/* Encode, decode, compare. */
static void round_trip(const struct hkt_tokenizer *t, const void *text, size_t bytes)
{
    int32_t *tokens = calloc(bytes + 1, sizeof *tokens);
    size_t count = 0, at = 0;

    assert_non_null(tokens);
    assert_int_equal(hkt_tokenizer_encode(t, text, bytes, tokens, &count), HKT_OK);
    for (size_t i = 0; i < count; i++) {
        size_t length;
        const char *piece = hkt_tokenizer_piece(t, tokens[i], &length);

        assert_non_null(piece);
        assert_true(length <= bytes - at);
        assert_memory_equal(piece, (const char *)text + at, length);
        at += length;
    }
    assert_int_equal(at, bytes);
    free(tokens);
}

static void equals_the_oracle(void **state)
{
    struct hkt_tokenizer *t = learn(case_text, CASE_LEARNED, CASE_VOCAB);
    int32_t tokens[CASE_BYTES];
    size_t count = 0;

    (void)state;
    assert_int_equal(hkt_tokenizer_vocab(t), CASE_VOCAB);
    assert_int_equal(hkt_tokenizer_encode(t, case_text, CASE_BYTES, tokens, &count), HKT_OK);
    for (size_t i = 0; i < count && i < sizeof case_tokens / sizeof case_tokens[0]; i++)
        if (tokens[i] != case_tokens[i])
            fail_msg("token %zu is %d, not %d", i, tokens[i], case_tokens[i]);
    assert_int_equal(count, sizeof case_tokens / sizeof case_tokens[0]);
    hkt_tokenizer_destroy(t);
}

static void every_byte_comes_back(void **state)
{
    struct hkt_tokenizer *t = learn(case_text, CASE_LEARNED, CASE_VOCAB);
    const struct hkt__rng rng = { 11, 12 };
    unsigned char bytes[3000];

    (void)state;
    for (int b = 0; b < 256; b++)
        bytes[b] = (unsigned char)b;
    round_trip(t, bytes, 256);
    round_trip(t, bytes, 0);
    for (int b = 0; b < 256; b++)
        round_trip(t, bytes + b, 1);
    for (int turn = 0; turn < 50; turn++) { /* garbage, with much that is nearly UTF-8 */
        for (size_t i = 0; i < sizeof bytes; i++) {
            const uint32_t bits = hkt__rng_bits(&rng, (uint64_t)turn * sizeof bytes + i);

            bytes[i] = (unsigned char)(bits >> 8);
            if (bits % 3 == 1)
                bytes[i] |= 0x80;
            if (bits % 3 == 2)
                bytes[i] = (unsigned char)" a'sT1\n"[bits % 7];
        }
        round_trip(t, bytes, sizeof bytes);
    }
    hkt_tokenizer_destroy(t);
}

/* Not UTF-8: cut off, too long a form, a surrogate, above the last character. */
static void words_are_cut_as_by_the_pattern(void **state)
{
    static const struct {
        const char *text;
        size_t bytes;
    } cases[] = {
        { "word and", 4 }, { " word and", 5 }, { "  word", 1 }, { "\n\n word", 2 }, { "\n word", 1 }, { "   ", 3 }, { " ", 1 },
        { "'s", 2 }, { "'sun", 2 }, { "'re!", 3 }, { "'x", 1 }, { " 's", 2 }, { "!'s", 2 }, { "'ll", 3 }, { "'l", 1 },
        { "12a", 2 }, { " 12a", 3 }, { "a1", 1 }, { "...a", 3 }, { " ...a", 4 }, { "\xc3\xb6x!", 3 }, { "\xc2\xa0x", 2 },
        { "\xc2\xa0\xe3\x80\x80x", 2 }, { "\xc2\xb2" "3a", 3 }, { "\xe7\x8b\x90\xe7\x8b\xb8,", 6 },
        { "e\xcc\x81", 1 }, { "\xe2\x82", 2 }, { "\xc0\xaf" "a", 2 }, { "\xed\xa0\x80" "a", 3 }, { "\xf4\x90\x80\x80" "a", 4 },
        { "\xff" "a", 1 }, { "a\xff", 1 }, { "\x1c" "a", 1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const size_t got = hkt__word_bytes((const unsigned char *)cases[i].text, strlen(cases[i].text));

        if (got != cases[i].bytes)
            fail_msg("\"%s\" begins with a word of %zu bytes, not %zu", cases[i].text, cases[i].bytes, got);
    }
}

/* A word of 100000 letters takes no square of that; the most frequent pair of "abab..." is learned first. */
static void long_words(void **state)
{
    enum { LONG = 100000 };
    unsigned char *text = malloc(LONG);
    struct hkt_tokenizer *t;
    int32_t *tokens = calloc(LONG, sizeof *tokens);
    size_t count = 0, length;

    (void)state;
    assert_non_null(text);
    assert_non_null(tokens);
    for (int i = 0; i < LONG; i++)
        text[i] = "ab"[i % 2];
    t = learn(text, LONG, 260);
    assert_memory_equal(hkt_tokenizer_piece(t, 256, &length), "ab", 2);
    assert_memory_equal(hkt_tokenizer_piece(t, 257, &length), "abab", 4);
    assert_memory_equal(hkt_tokenizer_piece(t, 259, &length), "abababababababab", 16);
    assert_int_equal(hkt_tokenizer_encode(t, text, LONG, tokens, &count), HKT_OK);
    assert_int_equal(count, LONG / 16);
    assert_null(hkt_tokenizer_piece(t, 260, &length));
    assert_null(hkt_tokenizer_piece(t, -1, &length));
    round_trip(t, text, LONG - 5);
    hkt_tokenizer_destroy(t);
    free(text);
    free(tokens);
}

static void nothing_to_learn_from(void **state)
{
    struct hkt_tokenizer *t = learn("", 0, 1000);

    (void)state;
    assert_int_equal(hkt_tokenizer_vocab(t), 256);
    round_trip(t, case_text, CASE_BYTES);
    hkt_tokenizer_destroy(t);
    t = learn("abc xyz", 7, 1000); /* no pair occurs twice */
    assert_int_equal(hkt_tokenizer_vocab(t), 256);
    hkt_tokenizer_destroy(t);
    assert_int_equal(hkt_tokenizer_train("a", 1, 255, &t), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_parallel_last_error(), "a vocabulary of 255 pieces"));
    assert_int_equal(hkt_tokenizer_train("a", 1, HKT_TOKENIZER_VOCAB_MAX + 1, &t), HKT_ERR_INVALID);
}

static void files_keep_it(void **state)
{
    struct hkt_tokenizer *t = learn(case_text, CASE_LEARNED, CASE_VOCAB), *same = learn(case_text, CASE_LEARNED, CASE_VOCAB);
    struct hkt_tokenizer *read = NULL, *less = learn(case_text, CASE_LEARNED, CASE_VOCAB - 1);

    (void)state;
    assert_true(hkt__tokenizer_is_equal(t, same));
    assert_false(hkt__tokenizer_is_equal(t, less));
    assert_int_equal(hkt_tokenizer_save(t, folder), HKT_OK);
    assert_int_equal(hkt_tokenizer_load(folder, &read), HKT_OK);
    assert_true(hkt__tokenizer_is_equal(t, read));
    assert_int_equal(hkt_tokenizer_save(t, "/nowhere/at/all"), HKT_ERR_SYSTEM);
    hkt_tokenizer_destroy(t);
    hkt_tokenizer_destroy(same);
    hkt_tokenizer_destroy(read);
    hkt_tokenizer_destroy(less);
}

/* ---- files that are not what they should be ---- */

static char *read_file(const char *name, size_t *out_bytes)
{
    char path[200], *text = calloc(1, 100000);
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "rb");
    assert_non_null(file);
    assert_non_null(text);
    *out_bytes = fread(text, 1, 99999, file);
    fclose(file);
    return text;
}

static void write_file(const char *name, const char *text, size_t bytes)
{
    char path[200];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static void refused(const char *why)
{
    struct hkt_tokenizer *t = NULL;
    const enum hkt_status rc = hkt_tokenizer_load(folder, &t);

    if (rc != HKT_ERR_INVALID || strstr(hkt_parallel_last_error(), why) == NULL)
        fail_msg("status %d, \"%s\" where \"%s\" was to be said", (int)rc, hkt_parallel_last_error(), why);
}

/* `name` with its first `old` replaced by `new`, or cut off there with new NULL. */
static void with(const char *name, const char *old, const char *new, const char *why)
{
    size_t bytes;
    char *text = read_file(name, &bytes), *at = strstr(text, old), *changed = calloc(1, 100100);

    assert_non_null(at);
    assert_non_null(changed);
    snprintf(changed, 100100, "%.*s%s%s", (int)(at - text), text, new != NULL ? new : "", new != NULL ? at + strlen(old) : "");
    write_file(name, changed, strlen(changed));
    refused(why);
    write_file(name, text, bytes);
    free(text);
    free(changed);
}

static void damaged_files_are_refused(void **state)
{
    struct hkt_tokenizer *t = learn(case_text, CASE_LEARNED, CASE_VOCAB);

    (void)state;
    assert_int_equal(hkt_tokenizer_save(t, folder), HKT_OK);
    with("vocab.json", "\"#\":2", NULL, "vocab.json is not an object of JSON");
    with("vocab.json", "{", "[", "vocab.json is not an object of JSON");
    with("vocab.json", "\"#\":2", "\"#\":3", "are both number 3");
    with("vocab.json", "\"#\":2", "\"#\":-2", "\"#\" has no number from 0 to 319");
    with("vocab.json", "\"#\":2", "\"#\":2.5", "\"#\" has no number from 0 to 319");
    with("vocab.json", "\"#\":2", "\"#\":1e300", "\"#\" has no number from 0 to 319");
    with("vocab.json", "\"#\":2", "\"#\":\"2\"", "\"#\" has no number from 0 to 319");
    with("vocab.json", "\"#\":2", "\"##\":2", "no piece for the byte 35");
    with("vocab.json", "\"#\":2", "\"\":2", "number 2 is a piece of no bytes");
    with("merges.txt", "h e\n", "h  e\n", "line 3 is not two pieces");
    with("merges.txt", "h e\n", "he\n", "line 3 is not two pieces");
    with("merges.txt", "h e\n", "h #\n", "line 3 has a piece, or makes one, that is not in vocab.json");
    for (size_t lines = 1; lines < 4; lines++) { /* cut off after some lines: later pieces come from nowhere */
        size_t bytes;
        char *text = read_file("merges.txt", &bytes), *end = text;

        for (size_t i = 0; i < lines; i++)
            end = strchr(end, '\n') + 1;
        write_file("merges.txt", text, (size_t)(end - text));
        refused("it is not all there, or belongs to another vocabulary");
        write_file("merges.txt", text, bytes);
        free(text);
    }
    char path[200];

    snprintf(path, sizeof path, "%s/merges.txt", folder);
    unlink(path);
    struct hkt_tokenizer *none = NULL;

    assert_int_equal(hkt_tokenizer_load(folder, &none), HKT_ERR_SYSTEM);
    assert_non_null(strstr(hkt_parallel_last_error(), "merges.txt cannot be read"));
    hkt_tokenizer_destroy(t);
}

/* Bytes changed, or the end gone, at random: it is refused, or is a whole vocabulary still. */
static void damage_at_random(void **state)
{
    static const char *const names[] = { "vocab.json", "merges.txt" };
    struct hkt_tokenizer *t = learn(case_text, CASE_LEARNED, CASE_VOCAB);
    const struct hkt__rng rng = { 21, 22 };
    int refusals = 0;

    (void)state;
    assert_int_equal(hkt_tokenizer_save(t, folder), HKT_OK);
    for (uint64_t turn = 0; turn < 400; turn++) {
        const char *name = names[turn % 2];
        const uint32_t *bits = (const uint32_t[]){ hkt__rng_bits(&rng, 4 * turn), hkt__rng_bits(&rng, 4 * turn + 1),
                                                   hkt__rng_bits(&rng, 4 * turn + 2) };
        struct hkt_tokenizer *read = NULL;
        size_t bytes;
        char *text = read_file(name, &bytes), *changed = calloc(1, bytes + 1);

        assert_non_null(changed);
        memcpy(changed, text, bytes);
        changed[bits[0] % bytes] = (char)(bits[1] % 3 == 0 ? "\"{}:, \n\\"[bits[2] % 8] : (char)bits[2]);
        write_file(name, changed, turn % 4 < 2 ? bytes : bits[1] % bytes);
        const enum hkt_status rc = hkt_tokenizer_load(folder, &read);

        if (rc != HKT_OK && rc != HKT_ERR_INVALID)
            fail_msg("turn %d: status %d, %s", (int)turn, (int)rc, hkt_parallel_last_error());
        if (rc == HKT_OK)
            round_trip(read, case_text, CASE_BYTES);
        refusals += rc != HKT_OK;
        hkt_tokenizer_destroy(read);
        write_file(name, text, bytes);
        free(text);
        free(changed);
    }
    assert_in_range(refusals, 250, 399);
    hkt_tokenizer_destroy(t);
}

/* A special token has a number and its own bytes, and no text becomes it. Numbers need not be in order. */
static void special_tokens(void **state)
{
    struct hkt_tokenizer *t = learn(case_text, CASE_LEARNED, CASE_VOCAB), *read = NULL;
    static const char text[] = "the <|endoftext|>";
    int32_t tokens[sizeof text];
    size_t count = 0, bytes = 0;
    char *vocab;

    (void)state;
    assert_int_equal(hkt_tokenizer_save(t, folder), HKT_OK);
    hkt_tokenizer_destroy(t);
    vocab = read_file("vocab.json", &bytes);
    snprintf(strrchr(vocab, '}'), 100, ",\"<|endoftext|>\":320,\"<a b\\u00e9>\":321}\r\n");
    write_file("vocab.json", vocab, strlen(vocab));
    free(vocab);
    assert_int_equal(hkt_tokenizer_load(folder, &read), HKT_OK);
    assert_int_equal(hkt_tokenizer_vocab(read), 322);
    assert_memory_equal(hkt_tokenizer_piece(read, 320, &bytes), "<|endoftext|>", 13);
    assert_int_equal(bytes, 13);
    assert_memory_equal(hkt_tokenizer_piece(read, 321, &bytes), "<a b\xc3\xa9>", 7);
    assert_int_equal(hkt_tokenizer_encode(read, text, sizeof text - 1, tokens, &count), HKT_OK);
    for (size_t i = 0; i < count; i++)
        assert_true(tokens[i] < 320);
    hkt_tokenizer_destroy(read);
}

/* Each allocation of learning, encoding and reading fails once. */
static void every_allocation_may_fail(void **state)
{
    struct hkt_tokenizer *t = learn(case_text, 200, 262), *other = NULL;
    int32_t tokens[200];
    size_t count;
    enum hkt_status rc = HKT_ERR_NOMEM;

    (void)state;
    assert_int_equal(hkt_tokenizer_save(t, folder), HKT_OK);
    for (int64_t k = 1; rc != HKT_OK; k++) {
        hkt__parallel_alloc_fail_at(k);
        rc = hkt_tokenizer_train(case_text, 200, 262, &other);
        assert_true(rc == HKT_OK || rc == HKT_ERR_NOMEM);
    }
    hkt_tokenizer_destroy(other);
    rc = HKT_ERR_NOMEM;
    for (int64_t k = 1; rc != HKT_OK; k++) {
        hkt__parallel_alloc_fail_at(k);
        rc = hkt_tokenizer_encode(t, case_text, 200, tokens, &count);
        assert_true(rc == HKT_OK || rc == HKT_ERR_NOMEM);
    }
    rc = HKT_ERR_NOMEM;
    for (int64_t k = 1; rc != HKT_OK; k++) {
        hkt__parallel_alloc_fail_at(k);
        rc = hkt_tokenizer_load(folder, &other);
        assert_true(rc == HKT_OK || rc == HKT_ERR_NOMEM);
    }
    hkt__parallel_alloc_fail_at(0);
    hkt_tokenizer_destroy(other);
    hkt_tokenizer_destroy(t);
}

static int setup(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int teardown(void **state)
{
    static const char *const names[] = { "/vocab.json", "/merges.txt", "" };
    char path[200];

    (void)state;
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s%s", folder, names[i]);
        remove(path);
    }
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_the_oracle),
        cmocka_unit_test(every_byte_comes_back),
        cmocka_unit_test(words_are_cut_as_by_the_pattern),
        cmocka_unit_test(long_words),
        cmocka_unit_test(nothing_to_learn_from),
        cmocka_unit_test(files_keep_it),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(damage_at_random),
        cmocka_unit_test(special_tokens),
        cmocka_unit_test(every_allocation_may_fail),
    };

    return cmocka_run_group_tests_name("tokens", tests, setup, teardown);
}
