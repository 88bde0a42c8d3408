/* The tokens of a trainer: bytes, pieces learned by rank 0 and told to all, or those of files that each rank reads. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/tokens.h"
#include "parallel/train_state.h"

#define LEARN "bpe:"

/* The merges of `from`, on another rank's word. count pairs: left, right. */
static enum hkt_status rebuild(const int32_t *pairs, int64_t count, struct hkt_tokenizer **out_tokenizer)
{
    struct hkt_tokenizer *t = hkt__tokenizer_create();
    enum hkt_status rc = t == NULL ? hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for a tokenizer") : hkt__tokenizer_add_bytes(t);

    for (int64_t i = 0; i < count && rc == HKT_OK; i++) {
        int32_t made;

        rc = hkt__tokenizer_add_merge(t, pairs[2 * i], pairs[2 * i + 1], &made);
    }
    if (rc < 0)
        hkt_tokenizer_destroy(t);
    else
        *out_tokenizer = t;
    return rc;
}

/* Rank 0 has learned; the others learn from it. */
static enum hkt_status share(struct hkt_trainer *t)
{
    int64_t count = t->tokenizer != NULL ? (int64_t)t->tokenizer->merges.count : 0;
    enum hkt_status rc = hkt_broadcast(&count, &count, 1, HKT_INT64, 0, t->comm, NULL);
    int32_t *pairs = rc == HKT_OK ? hkt__parallel_calloc(2 * (size_t)count + 1, sizeof *pairs) : NULL;

    for (int64_t i = 0; pairs != NULL && t->rank == 0 && i < count; i++) {
        const struct hkt__merge *merge = (const struct hkt__merge *)t->tokenizer->merges.data + i;

        pairs[2 * i] = merge->left;
        pairs[2 * i + 1] = merge->right;
    }
    if (rc < 0)
        rc = hkt__parallel_pass(rc, "telling the tokens to all ranks");
    else if (pairs == NULL)
        rc = hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for %lld merges", (long long)count);
    rc = hkt__agree(t->comm, rc, "learning tokens");
    if (rc == HKT_OK && count > 0) {
        rc = hkt_broadcast(pairs, pairs, 2 * (size_t)count, HKT_INT32, 0, t->comm, NULL);
        if (rc < 0)
            rc = hkt__parallel_pass(rc, "telling the tokens to all ranks");
    }
    if (rc == HKT_OK && t->rank != 0)
        rc = rebuild(pairs, count, &t->tokenizer);
    hkt__parallel_free(pairs);
    return rc;
}

static enum hkt_status learn(struct hkt_trainer *t, const char *number)
{
    char *end;
    const long long vocab = strtoll(number, &end, 10);
    enum hkt_status rc = HKT_OK;

    if (end == number || *end != '\0' || vocab < HKT_TOKENIZER_VOCAB_MIN || vocab > HKT_TOKENIZER_VOCAB_MAX)
        return hkt__parallel_fail(HKT_ERR_INVALID, "tokens \"" LEARN "%s\": after " LEARN " stands a number from %d to %d", number,
                                  HKT_TOKENIZER_VOCAB_MIN, HKT_TOKENIZER_VOCAB_MAX);
    if (t->rank == 0)
        rc = hkt_tokenizer_train(t->data.bytes, (size_t)(t->data.count - t->data.held_out), vocab, &t->tokenizer);
    if (t->comm == NULL)
        return rc;
    rc = hkt__agree(t->comm, rc, "learning tokens");
    return rc == HKT_OK ? share(t) : rc;
}

enum hkt_status hkt__train_tokens(struct hkt_trainer *t, const char *tokens)
{
    enum hkt_status rc;

    if (tokens == NULL || strcmp(tokens, "bytes") == 0)
        return HKT_OK;
    rc = strncmp(tokens, LEARN, strlen(LEARN)) == 0 ? learn(t, tokens + strlen(LEARN)) : hkt_tokenizer_load(tokens, &t->tokenizer);
    if (rc == HKT_OK)
        rc = hkt__data_encode(&t->data, t->tokenizer, t->config.layout.seq);
    rc = hkt__agree(t->comm, rc, "making tokens of the text");
    if (rc == HKT_OK && t->config.shape.vocab < hkt_tokenizer_vocab(t->tokenizer))
        t->config.shape.vocab = hkt_tokenizer_vocab(t->tokenizer);
    return rc;
}

enum hkt_status hkt__train_tokens_check(const struct hkt_trainer *t, const char *path)
{
    char file[HKT__ST_PATH_MAX + 16];
    struct hkt_tokenizer *saved = NULL;
    enum hkt_status rc = HKT_OK;

    snprintf(file, sizeof file, "%.*s/vocab.json", HKT__ST_PATH_MAX, path);
    const bool has_file = access(file, F_OK) == 0;

    if (has_file != (t->tokenizer != NULL))
        return hkt__parallel_fail(HKT_ERR_INVALID, "%s was trained on %s, this run is on %s", path, has_file ? "pieces of a vocabulary"
                                  : "bytes", has_file ? "bytes" : "pieces of a vocabulary");
    if (has_file)
        rc = hkt_tokenizer_load(path, &saved);
    if (rc == HKT_OK && saved != NULL && !hkt__tokenizer_is_equal(saved, t->tokenizer))
        rc = hkt__parallel_fail(HKT_ERR_INVALID, "%s has another vocabulary than this run; its folder as the tokens is the same one", path);
    hkt_tokenizer_destroy(saved);
    return rc;
}
