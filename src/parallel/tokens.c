/* Pieces, merges, and encoding: the pairs of a word are merged in the order in which they were learned, leftmost first, until none
 * is left that ever was. A heap of the pairs that stand in the word makes that n log n for a word of n bytes; a word that was
 * seen before in the same call is copied. */
#include "parallel/tokens.h"

#include <string.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"

static enum hkt_status no_memory(void)
{
    return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for tokens");
}

struct hkt_tokenizer *hkt__tokenizer_create(void)
{
    struct hkt_tokenizer *t = hkt__parallel_calloc(1, sizeof *t);

    if (t == NULL)
        return NULL;
    t->text.elem_bytes = 1;
    t->merges.elem_bytes = sizeof(struct hkt__merge);
    for (int b = 0; b < 256; b++)
        t->of_byte[b] = -1;
    return t;
}

void hkt_tokenizer_destroy(struct hkt_tokenizer *t)
{
    if (t == NULL)
        return;
    hkt__list_fini(&t->text);
    hkt__strings_fini(&t->pieces);
    hkt__list_fini(&t->merges);
    hkt__pairs_fini(&t->ranks);
    hkt__parallel_free(t);
}

int64_t hkt_tokenizer_vocab(const struct hkt_tokenizer *t)
{
    return (int64_t)t->pieces.list.count;
}

const char *hkt_tokenizer_piece(const struct hkt_tokenizer *t, int32_t token, size_t *out_bytes)
{
    *out_bytes = 0;
    if (token < 0 || token >= hkt_tokenizer_vocab(t))
        return NULL;
    const struct hkt__string *piece = hkt__strings_at(&t->pieces, token);

    *out_bytes = piece->bytes;
    return (const char *)t->text.data + piece->first;
}

static bool is_printable(unsigned byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

uint32_t hkt__byte_char(unsigned char byte)
{
    uint32_t before = 0;

    for (unsigned b = 0; b < byte; b++)
        before += !is_printable(b);
    return is_printable(byte) ? byte : 256 + before;
}

enum hkt_status hkt__tokenizer_add_piece(struct hkt_tokenizer *t, const unsigned char *piece, size_t bytes)
{
    const size_t first = t->text.count;

    for (size_t i = 0; i < bytes; i++) {
        unsigned char *to = hkt__list_add(&t->text);

        if (to == NULL)
            return no_memory();
        *to = piece[i];
    }
    const int32_t token = hkt__strings_add(&t->pieces, t->text.data, first, bytes);

    if (token < 0)
        return no_memory();
    if (bytes == 1)
        t->of_byte[piece[0]] = token;
    return HKT_OK;
}

enum hkt_status hkt__tokenizer_add_bytes(struct hkt_tokenizer *t)
{
    enum hkt_status rc = HKT_OK;

    /* In the order of the characters that stand for them. */
    for (uint32_t c = 0; c < 512 && rc == HKT_OK; c++)
        for (int b = 0; b < 256 && rc == HKT_OK; b++)
            if (hkt__byte_char((unsigned char)b) == c) {
                const unsigned char byte = (unsigned char)b;

                rc = hkt__tokenizer_add_piece(t, &byte, 1);
            }
    return rc;
}

enum hkt_status hkt__tokenizer_joined(const struct hkt_tokenizer *t, int32_t left, int32_t right, int32_t *out_made)
{
    size_t bytes[2];
    const char *parts[2] = { hkt_tokenizer_piece(t, left, &bytes[0]), hkt_tokenizer_piece(t, right, &bytes[1]) };
    unsigned char *both = hkt__parallel_calloc(bytes[0] + bytes[1], 1);

    if (both == NULL)
        return no_memory();
    memcpy(both, parts[0], bytes[0]);
    memcpy(both + bytes[0], parts[1], bytes[1]);
    *out_made = hkt__strings_find(&t->pieces, t->text.data, both, bytes[0] + bytes[1]);
    hkt__parallel_free(both);
    return HKT_OK;
}

/* The bytes of left and right as a new piece. They are read from the list that grows. */
static enum hkt_status add_joined(struct hkt_tokenizer *t, int32_t left, int32_t right)
{
    const struct hkt__string parts[2] = { *hkt__strings_at(&t->pieces, left), *hkt__strings_at(&t->pieces, right) };
    const size_t first = t->text.count;

    for (int p = 0; p < 2; p++)
        for (uint32_t i = 0; i < parts[p].bytes; i++) {
            unsigned char *to = hkt__list_add(&t->text);

            if (to == NULL)
                return no_memory();
            *to = ((const unsigned char *)t->text.data)[parts[p].first + i];
        }
    return hkt__strings_add(&t->pieces, t->text.data, first, t->text.count - first) < 0 ? no_memory() : HKT_OK;
}

enum hkt_status hkt__tokenizer_add_merge(struct hkt_tokenizer *t, int32_t left, int32_t right, int32_t *out_made)
{
    int32_t made = -1;
    enum hkt_status rc = hkt__tokenizer_joined(t, left, right, &made);

    if (rc == HKT_OK && made < 0) {
        rc = add_joined(t, left, right);
        made = (int32_t)t->pieces.list.count - 1;
    }
    if (rc < 0)
        return rc;
    struct hkt__merge *merge = hkt__list_add(&t->merges);

    if (merge == NULL || !hkt__pairs_set(&t->ranks, left, right, (int32_t)t->merges.count - 1))
        return no_memory();
    *merge = (struct hkt__merge){ left, right, made };
    *out_made = made;
    return HKT_OK;
}

bool hkt__tokenizer_is_equal(const struct hkt_tokenizer *a, const struct hkt_tokenizer *b)
{
    if (hkt_tokenizer_vocab(a) != hkt_tokenizer_vocab(b) || a->text.count != b->text.count
        || a->merges.count != b->merges.count)
        return false;
    for (int32_t i = 0; i < hkt_tokenizer_vocab(a); i++) {
        size_t bytes[2];
        const char *pieces[2] = { hkt_tokenizer_piece(a, i, &bytes[0]), hkt_tokenizer_piece(b, i, &bytes[1]) };

        if (bytes[0] != bytes[1] || memcmp(pieces[0], pieces[1], bytes[0]) != 0)
            return false;
    }
    return a->merges.count == 0 || memcmp(a->merges.data, b->merges.data, a->merges.count * a->merges.elem_bytes) == 0;
}

/* ---- encoding ---- */

/* A piece of the word at work, linked to its neighbours; -1: none. token -1: it was merged into the one before. */
struct part {
    int32_t token, before, after;
};
/* A pair that stood in the word when it was put here: part `at` and the one after it were the two of merge `rank`. */
struct candidate {
    int32_t rank, at;
};
struct encoder {
    const struct hkt_tokenizer *tokenizer;
    struct hkt__list parts, heap;
};

static bool is_before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static bool heap_push(struct hkt__list *list, struct candidate candidate)
{
    if (hkt__list_add(list) == NULL)
        return false;
    struct candidate *heap = list->data;
    size_t at = list->count - 1;

    for (; at > 0 && is_before(&candidate, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = candidate;
    return true;
}

static struct candidate heap_pop(struct hkt__list *list)
{
    struct candidate *heap = list->data;
    const struct candidate top = heap[0], last = heap[--list->count];
    size_t at = 0, child;

    for (; (child = 2 * at + 1) < list->count; at = child) {
        if (child + 1 < list->count && is_before(&heap[child + 1], &heap[child]))
            child++;
        if (!is_before(&heap[child], &last))
            break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return top;
}

/* The pair that part `at` begins is a candidate, if it was ever learned. */
static bool consider(struct encoder *e, int32_t at)
{
    const struct part *parts = e->parts.data;
    const int32_t after = at < 0 ? -1 : parts[at].after;
    const int32_t rank = after < 0 ? -1 : hkt__pairs_find(&e->tokenizer->ranks, parts[at].token, parts[after].token);

    return rank < 0 || heap_push(&e->heap, (struct candidate){ rank, at });
}

static bool merge_all(struct encoder *e)
{
    const struct hkt__merge *merges = e->tokenizer->merges.data;
    struct part *parts = e->parts.data;

    while (e->heap.count > 0) {
        const struct candidate next = heap_pop(&e->heap);
        const struct hkt__merge *merge = &merges[next.rank];
        struct part *left = &parts[next.at];
        const int32_t gone = left->after;

        if (left->token != merge->left || gone < 0 || parts[gone].token != merge->right)
            continue; /* one of the two was merged since */
        left->token = merge->made;
        left->after = parts[gone].after;
        parts[gone].token = -1;
        if (left->after >= 0)
            parts[left->after].before = next.at;
        if (!consider(e, left->before) || !consider(e, next.at))
            return false;
    }
    return true;
}

static bool encode_word(struct encoder *e, const unsigned char *word, size_t bytes, struct hkt__list *tokens)
{
    e->parts.count = e->heap.count = 0;
    for (size_t i = 0; i < bytes; i++) {
        struct part *part = hkt__list_add(&e->parts);

        if (part == NULL)
            return false;
        *part = (struct part){ e->tokenizer->of_byte[word[i]], (int32_t)i - 1, i + 1 < bytes ? (int32_t)i + 1 : -1 };
    }
    for (size_t i = 0; i + 1 < bytes; i++)
        if (!consider(e, (int32_t)i))
            return false;
    if (!merge_all(e))
        return false;
    for (int32_t at = 0; at >= 0; at = ((struct part *)e->parts.data)[at].after)
        ((int32_t *)tokens->data)[tokens->count++] = ((struct part *)e->parts.data)[at].token;
    return true;
}

/* Where the tokens of a word stand that was encoded before. */
struct seen {
    size_t first, count;
};

static enum hkt_status encode(struct encoder *e, const unsigned char *text, size_t bytes, struct hkt__list *tokens)
{
    struct hkt__strings words = { { 0 }, NULL, 0 };
    struct hkt__list places = { .elem_bytes = sizeof(struct seen) };
    bool is_ok = true;

    for (size_t at = 0, word; is_ok && at < bytes; at += word) {
        word = hkt__word_bytes(text + at, bytes - at);
        const int32_t known = hkt__strings_find(&words, text, text + at, word);
        const size_t first = tokens->count;

        if (known >= 0) {
            const struct seen *seen = (const struct seen *)places.data + known;

            memcpy((int32_t *)tokens->data + first, (int32_t *)tokens->data + seen->first, seen->count * sizeof(int32_t));
            tokens->count += seen->count;
            continue;
        }
        is_ok = word < INT32_MAX && encode_word(e, text + at, word, tokens)
                && hkt__strings_add(&words, text, at, word) >= 0;
        struct seen *seen = is_ok ? hkt__list_add(&places) : NULL;

        is_ok = seen != NULL;
        if (is_ok)
            *seen = (struct seen){ first, tokens->count - first };
    }
    hkt__strings_fini(&words);
    hkt__list_fini(&places);
    return is_ok ? HKT_OK : no_memory();
}

enum hkt_status hkt_tokenizer_encode(const struct hkt_tokenizer *t, const void *text, size_t bytes, int32_t *out_tokens,
                                     size_t *out_count)
{
    struct encoder e = { t, { .elem_bytes = sizeof(struct part) }, { .elem_bytes = sizeof(struct candidate) } };
    struct hkt__list tokens = { .data = out_tokens, .room = bytes, .elem_bytes = sizeof *out_tokens };
    const enum hkt_status rc = encode(&e, text, bytes, &tokens);

    hkt__list_fini(&e.parts);
    hkt__list_fini(&e.heap);
    if (rc == HKT_OK)
        *out_count = tokens.count;
    return rc;
}
