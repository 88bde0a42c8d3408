/* See keep.h. A key of pthread_key_create frees the blocks of a thread that ends: thread-local storage alone has no
 * destructors in C. Where no key is to be had nothing is kept, which is slower, not wrong. */
#include "core/keep.h"

#include <pthread.h>

#include "core/mem.h"

struct keeper {
    struct hkt__kept blocks[HKT__KEEP_COUNT];
    bool is_known;               /* to the key: will be freed when the thread ends */
};

static _Thread_local struct keeper keeper;
static pthread_key_t key;
static bool has_key;             /* written by make_key alone */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/** A thread ends. Destructors of other keys may still use the library: then it is known anew, and freed again. */
static void free_blocks(void *arg)
{
    struct keeper *ending = arg;

    for (int i = 0; i < HKT__KEEP_COUNT; i++)
        hkt__free(ending->blocks[i].memory);
    *ending = (struct keeper){0};
}

static void make_key(void)
{
    has_key = pthread_key_create(&key, free_blocks) == 0;
}

/** The library is being unloaded: nobody may call free_blocks any more. */
static __attribute__((destructor)) void drop_key(void)
{
    if (has_key)
        pthread_key_delete(key);
    free_blocks(&keeper);
}

static bool make_known(void)
{
    if (!keeper.is_known) {
        pthread_once(&once, make_key);
        keeper.is_known = has_key && pthread_setspecific(key, &keeper) == 0;
    }
    return keeper.is_known;
}

struct hkt__kept hkt__keep_take(enum hkt__keep kind, size_t bytes)
{
    struct hkt__kept block = keeper.blocks[kind];

    keeper.blocks[kind] = (struct hkt__kept){0};
    if (block.bytes >= bytes && block.memory != NULL)
        return block;
    hkt__free(block.memory);
    block.memory = hkt__realloc(NULL, 1, bytes);
    block.bytes = block.memory != NULL ? bytes : 0;
    return block;
}

bool hkt__keep_grow(struct hkt__kept *block, size_t bytes)
{
    void *memory = hkt__realloc(block->memory, 1, bytes);

    if (memory == NULL)
        return false;
    *block = (struct hkt__kept){memory, bytes};
    return true;
}

void hkt__keep_give(enum hkt__keep kind, struct hkt__kept block)
{
    /* A use within this one may have left its own: the larger stays. */
    if (block.memory != NULL && block.bytes > keeper.blocks[kind].bytes && make_known()) {
        const struct hkt__kept other = keeper.blocks[kind];

        keeper.blocks[kind] = block;
        block = other;
    }
    hkt__free(block.memory);
}
