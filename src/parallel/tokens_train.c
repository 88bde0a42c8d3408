/* Learning pieces. Words are counted once; then the pair of neighbouring pieces that occurs most often is merged everywhere, again and
 * again. Each pair knows its count and which words may have it, so a merge costs as much as it changes.
 *
 * The heap holds a pair with a count that may be too high: counts of pairs that were put there fall as their pieces are merged away, and a
 * pair that gains is put there again. So a pair whose count is the one it was put there with is the most frequent of all. */

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/tokens.h"

#define WORD_BYTES_MAX 256
#define OCCURS_MIN 2

struct word {
    int64_t count;
    size_t first, length; /* of its pieces in `symbols` */
};
/* Words that a pair occurs in, or did: a chain of nodes from `words`, the latest first. */
struct pair {
    int64_t count;
    int32_t left, right, words, gained; /* gained: the last merge by which its count grew */
};
struct node {
    int32_t word, next;
};
struct entry {
    int64_t count;
    int32_t left, right, pair;
};
struct learner {
    struct hkt_tokenizer *tokenizer;
    struct hkt__list words, symbols, pairs, nodes, heap, gained; /* gained: int32_t, pairs whose count grew */
    struct hkt__pairs index;
    int32_t merge; /* number of the present one */
    bool has_failed;
};

static struct pair *pair_at(const struct learner *l, int32_t index)
{
    return (struct pair *)l->pairs.data + index;
}

/* ---- the heap: the highest count first, of equal ones the lowest numbers ---- */

static bool is_before(const struct entry *a, const struct entry *b)
{
    if (a->count != b->count)
        return a->count > b->count;
    return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static void push(struct learner *l, int32_t index)
{
    const struct pair *pair = pair_at(l, index);
    const struct entry entry = { pair->count, pair->left, pair->right, index };

    if (pair->count < OCCURS_MIN)
        return;
    if (hkt__list_add(&l->heap) == NULL) {
        l->has_failed = true;
        return;
    }
    struct entry *heap = l->heap.data;
    size_t at = l->heap.count - 1;

    for (; at > 0 && is_before(&entry, &heap[(at - 1) / 2]); at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = entry;
}

static struct entry pop(struct learner *l)
{
    struct entry *heap = l->heap.data;
    const struct entry top = heap[0], last = heap[--l->heap.count];
    size_t at = 0, child;

    for (; (child = 2 * at + 1) < l->heap.count; at = child) {
        if (child + 1 < l->heap.count && is_before(&heap[child + 1], &heap[child]))
            child++;
        if (!is_before(&heap[child], &last))
            break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return top;
}

/* ---- counts ---- */

static int32_t pair_of(struct learner *l, int32_t left, int32_t right)
{
    const int32_t known = hkt__pairs_find(&l->index, left, right);

    if (known >= 0)
        return known;
    struct pair *pair = l->pairs.count < INT32_MAX ? hkt__list_add(&l->pairs) : NULL;
    const int32_t index = (int32_t)l->pairs.count - 1;

    if (pair == NULL || !hkt__pairs_set(&l->index, left, right, index)) {
        l->has_failed = true;
        return -1;
    }
    *pair = (struct pair){ 0, left, right, -1, -1 };
    return index;
}

/* The pair occurs `count` times more, all of them in this word. */
static void gain(struct learner *l, int32_t left, int32_t right, int32_t word)
{
    const int32_t index = l->has_failed ? -1 : pair_of(l, left, right);

    if (index < 0)
        return;
    struct pair *pair = pair_at(l, index);

    pair->count += ((const struct word *)l->words.data)[word].count;
    if (pair->gained != l->merge) {
        int32_t *gained = hkt__list_add(&l->gained);

        l->has_failed = gained == NULL;
        if (gained != NULL)
            *gained = index;
        pair->gained = l->merge;
    }
    if (pair->words >= 0 && ((const struct node *)l->nodes.data)[pair->words].word == word)
        return;
    struct node *node = l->nodes.count < INT32_MAX ? hkt__list_add(&l->nodes) : NULL;

    if (node == NULL) {
        l->has_failed = true;
        return;
    }
    *node = (struct node){ word, pair->words };
    pair->words = (int32_t)l->nodes.count - 1;
}

static void lose(struct learner *l, int32_t left, int32_t right, int32_t word)
{
    const int32_t index = hkt__pairs_find(&l->index, left, right);

    if (index >= 0)
        pair_at(l, index)->count -= ((const struct word *)l->words.data)[word].count;
}

static void push_gained(struct learner *l)
{
    for (size_t i = 0; i < l->gained.count; i++)
        push(l, ((const int32_t *)l->gained.data)[i]);
    l->gained.count = 0;
}

/* ---- words ---- */

static bool add_word(struct learner *l, const unsigned char *text, size_t bytes)
{
    struct word *word = hkt__list_add(&l->words);

    if (word == NULL)
        return false;
    *word = (struct word){ 0, l->symbols.count, bytes };
    for (size_t i = 0; i < bytes; i++) {
        int32_t *symbol = hkt__list_add(&l->symbols);

        if (symbol == NULL)
            return false;
        *symbol = l->tokenizer->of_byte[text[i]];
    }
    return true;
}

static bool count_words(struct learner *l, const unsigned char *text, size_t bytes)
{
    struct hkt__strings seen = { { 0 }, NULL, 0 };
    bool is_ok = true;

    for (size_t at = 0; is_ok && at < bytes;) {
        const size_t whole = hkt__word_bytes(text + at, bytes - at);

        for (size_t end = at + whole, part; is_ok && at < end; at += part) {
            part = end - at < WORD_BYTES_MAX ? end - at : WORD_BYTES_MAX;
            int32_t known = hkt__strings_find(&seen, text, text + at, part);

            if (known < 0) {
                known = hkt__strings_add(&seen, text, at, part);
                is_ok = known >= 0 && add_word(l, text + at, part);
            }
            if (is_ok)
                ((struct word *)l->words.data)[known].count++;
        }
    }
    hkt__strings_fini(&seen);
    return is_ok;
}

static void count_pairs(struct learner *l)
{
    for (size_t w = 0; w < l->words.count && !l->has_failed; w++) {
        const struct word *word = (const struct word *)l->words.data + w;
        const int32_t *symbols = (const int32_t *)l->symbols.data + word->first;

        for (size_t i = 0; i + 1 < word->length; i++)
            gain(l, symbols[i], symbols[i + 1], (int32_t)w);
    }
    push_gained(l);
}

/* ---- merging ---- */

/* Every occurrence of merge->left, merge->right in a word, from the left, becomes merge->made. */
static void merge_word(struct learner *l, int32_t w, const struct hkt__merge *merge)
{
    struct word *word = (struct word *)l->words.data + w;
    int32_t *symbols = (int32_t *)l->symbols.data + word->first;
    size_t to = 0;

    for (size_t from = 0; from < word->length; to++) {
        if (from + 1 >= word->length || symbols[from] != merge->left || symbols[from + 1] != merge->right) {
            symbols[to] = symbols[from++];
            continue;
        }
        if (to > 0) {
            lose(l, symbols[to - 1], merge->left, w);
            gain(l, symbols[to - 1], merge->made, w);
        }
        if (from + 2 < word->length) {
            lose(l, merge->right, symbols[from + 2], w);
            gain(l, merge->made, symbols[from + 2], w);
        }
        symbols[to] = merge->made;
        from += 2;
    }
    word->length = to;
}

/* The next merge; false: there is none, or something failed. */
static bool learn_one(struct learner *l, enum hkt_status *out_rc)
{
    while (l->heap.count > 0) {
        const struct entry top = pop(l);
        struct pair *pair = pair_at(l, top.pair);
        struct hkt__merge merge = { top.left, top.right, -1 };

        if (pair->count != top.count) {
            push(l, top.pair); /* it fell since; nothing that falls below OCCURS_MIN returns */
            if (l->has_failed)
                return false;
            continue;
        }
        *out_rc = hkt__tokenizer_add_merge(l->tokenizer, top.left, top.right, &merge.made);
        if (*out_rc < 0)
            return false;
        l->merge++;
        for (int32_t n = pair->words, next; n >= 0; n = next) {
            const struct node node = ((const struct node *)l->nodes.data)[n];

            next = node.next;
            merge_word(l, node.word, &merge);
        }
        pair_at(l, top.pair)->count = 0;
        push_gained(l);
        return !l->has_failed;
    }
    return false;
}

static void learner_fini(struct learner *l)
{
    struct hkt__list *lists[] = { &l->words, &l->symbols, &l->pairs, &l->nodes, &l->heap, &l->gained };

    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        hkt__list_fini(lists[i]);
    hkt__pairs_fini(&l->index);
}

static enum hkt_status learn(struct hkt_tokenizer *t, const unsigned char *text, size_t bytes, int64_t vocab)
{
    struct learner l = {
        .tokenizer = t, .words = { .elem_bytes = sizeof(struct word) }, .symbols = { .elem_bytes = sizeof(int32_t) },
        .pairs = { .elem_bytes = sizeof(struct pair) }, .nodes = { .elem_bytes = sizeof(struct node) },
        .heap = { .elem_bytes = sizeof(struct entry) }, .gained = { .elem_bytes = sizeof(int32_t) },
    };
    enum hkt_status rc = hkt__tokenizer_add_bytes(t);

    l.has_failed = rc == HKT_OK && !count_words(&l, text, bytes);
    if (rc == HKT_OK && !l.has_failed)
        count_pairs(&l);
    while (rc == HKT_OK && !l.has_failed && hkt_tokenizer_vocab(t) < vocab)
        if (!learn_one(&l, &rc))
            break;
    if (rc == HKT_OK && l.has_failed)
        rc = hkt__parallel_fail(HKT_ERR_NOMEM, "no memory to learn %lld pieces from %zu bytes", (long long)vocab, bytes);
    learner_fini(&l);
    return rc;
}

enum hkt_status hkt_tokenizer_train(const void *text, size_t bytes, int64_t vocab, struct hkt_tokenizer **out_tokenizer)
{
    if (vocab < HKT_TOKENIZER_VOCAB_MIN || vocab > HKT_TOKENIZER_VOCAB_MAX)
        return hkt__parallel_fail(HKT_ERR_INVALID, "a vocabulary of %lld pieces: %d bytes are pieces anyway, and there are at most %d",
                                  (long long)vocab, HKT_TOKENIZER_VOCAB_MIN, HKT_TOKENIZER_VOCAB_MAX);
    struct hkt_tokenizer *t = hkt__tokenizer_create();
    const enum hkt_status rc = t == NULL ? hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for a tokenizer")
                                         : learn(t, text, bytes, vocab);

    if (rc < 0)
        hkt_tokenizer_destroy(t);
    else
        *out_tokenizer = t;
    return rc;
}
