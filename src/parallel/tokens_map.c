/* A growing array, and two tables with open addressing: byte strings to numbers, pairs of numbers to a number. Tables are at
 * most half full. */
#include <string.h>

#include "parallel/alloc.h"
#include "parallel/tokens.h"

#define ROOM_MIN 64

void *hkt__list_add(struct hkt__list *list)
{
    if (list->count == list->room) {
        const size_t room = list->room > 0 ? 2 * list->room : ROOM_MIN;
        void *data = hkt__parallel_calloc(room, list->elem_bytes);

        if (data == NULL)
            return NULL;
        if (list->count > 0)
            memcpy(data, list->data, list->count * list->elem_bytes);
        hkt__parallel_free(list->data);
        list->data = data;
        list->room = room;
    }
    return (char *)list->data + list->count++ * list->elem_bytes;
}

void hkt__list_fini(struct hkt__list *list)
{
    hkt__parallel_free(list->data);
    list->data = NULL;
    list->count = list->room = 0;
}

/* FNV-1a (Fowler, Noll, Vo), its upper bits folded into the lower ones. */
static uint32_t hash_of(const unsigned char *key, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ key[i]) * 0x100000001b3u;
    return (uint32_t)(hash ^ hash >> 32);
}

const struct hkt__string *hkt__strings_at(const struct hkt__strings *strings, int64_t number)
{
    return (const struct hkt__string *)strings->list.data + number;
}

int32_t hkt__strings_find(const struct hkt__strings *strings, const unsigned char *text, const unsigned char *key, size_t bytes)
{
    const uint32_t hash = hash_of(key, bytes);

    for (size_t at = hash; strings->nslots > 0; at++) {
        const int32_t slot = strings->slots[at & (strings->nslots - 1)];

        if (slot == 0)
            return -1;
        const struct hkt__string *string = hkt__strings_at(strings, slot - 1);

        if (string->hash == hash && string->bytes == bytes && memcmp(text + string->first, key, bytes) == 0)
            return slot - 1;
    }
    return -1;
}

static void put(struct hkt__strings *strings, int32_t number)
{
    size_t at = hkt__strings_at(strings, number)->hash;

    while (strings->slots[at & (strings->nslots - 1)] != 0)
        at++;
    strings->slots[at & (strings->nslots - 1)] = number + 1;
}

static bool strings_grow(struct hkt__strings *strings)
{
    const size_t nslots = strings->nslots > 0 ? 2 * strings->nslots : 2 * ROOM_MIN;
    int32_t *slots = hkt__parallel_calloc(nslots, sizeof *slots);

    if (slots == NULL)
        return false;
    hkt__parallel_free(strings->slots);
    strings->slots = slots;
    strings->nslots = nslots;
    for (size_t i = 0; i < strings->list.count; i++)
        put(strings, (int32_t)i);
    return true;
}

int32_t hkt__strings_add(struct hkt__strings *strings, const unsigned char *text, size_t first, size_t bytes)
{
    const struct hkt__string string = { first, (uint32_t)bytes, hash_of(text + first, bytes) };

    strings->list.elem_bytes = sizeof string;
    if (strings->list.count >= INT32_MAX - 1 || bytes > UINT32_MAX
        || (2 * (strings->list.count + 1) > strings->nslots && !strings_grow(strings)))
        return -1;
    struct hkt__string *added = hkt__list_add(&strings->list);

    if (added == NULL)
        return -1;
    *added = string;
    put(strings, (int32_t)strings->list.count - 1);
    return (int32_t)strings->list.count - 1;
}

void hkt__strings_fini(struct hkt__strings *strings)
{
    hkt__list_fini(&strings->list);
    hkt__parallel_free(strings->slots);
    strings->slots = NULL;
    strings->nslots = 0;
}

/* The slot of a pair, or the free one where it would be. nslots > 0. */
static struct hkt__pair_slot *slot_of(const struct hkt__pairs *pairs, int32_t left, int32_t right)
{
    /* Fibonacci hashing (Knuth, TAOCP 3, 6.4) */
    size_t at = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u >> 32;

    for (;; at++) {
        struct hkt__pair_slot *slot = &pairs->slots[at & (pairs->nslots - 1)];

        if (!slot->is_used || (slot->left == left && slot->right == right))
            return slot;
    }
}

int32_t hkt__pairs_find(const struct hkt__pairs *pairs, int32_t left, int32_t right)
{
    if (pairs->nslots == 0)
        return -1;
    const struct hkt__pair_slot *slot = slot_of(pairs, left, right);

    return slot->is_used ? slot->value : -1;
}

static bool pairs_grow(struct hkt__pairs *pairs)
{
    const size_t nslots = pairs->nslots > 0 ? 2 * pairs->nslots : 2 * ROOM_MIN;
    struct hkt__pairs more = { hkt__parallel_calloc(nslots, sizeof *more.slots), pairs->count, nslots };

    if (more.slots == NULL)
        return false;
    for (size_t i = 0; i < pairs->nslots; i++)
        if (pairs->slots[i].is_used)
            *slot_of(&more, pairs->slots[i].left, pairs->slots[i].right) = pairs->slots[i];
    hkt__parallel_free(pairs->slots);
    *pairs = more;
    return true;
}

bool hkt__pairs_set(struct hkt__pairs *pairs, int32_t left, int32_t right, int32_t value)
{
    if (2 * (pairs->count + 1) > pairs->nslots && !pairs_grow(pairs))
        return false;
    struct hkt__pair_slot *slot = slot_of(pairs, left, right);

    pairs->count += !slot->is_used;
    *slot = (struct hkt__pair_slot){ left, right, value, true };
    return true;
}

void hkt__pairs_fini(struct hkt__pairs *pairs)
{
    hkt__parallel_free(pairs->slots);
    *pairs = (struct hkt__pairs){ 0 };
}
