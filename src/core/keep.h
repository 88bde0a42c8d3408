/* Memory that a thread keeps from one use to the next, so that work in steady state allocates nothing: one block of each
 * kind, as large as its largest use. A user takes the block and gives it back; meanwhile the thread has none of that kind,
 * so that uses may nest. What a thread keeps is freed when it ends. */
#ifndef HOCKET_CORE_KEEP_H
#define HOCKET_CORE_KEEP_H

#include <stdbool.h>
#include <stddef.h>

enum hkt__keep {
    HKT__KEEP_GROUP, /* calls of an open group: comm/group.c */
    HKT__KEEP_BATCH, /* the state of running calls: comm/batch.c */
    HKT__KEEP_COUNT
};

struct hkt__kept {
    void *memory;
    size_t bytes;
};

/** Gives a block of at least `bytes`, with any content, to be given back on the same thread; memory NULL: out of memory. */
struct hkt__kept hkt__keep_take(enum hkt__keep kind, size_t bytes);
/** As realloc: on failure false, and the block is as it was. */
bool hkt__keep_grow(struct hkt__kept *block, size_t bytes);
/** Takes the block back, to be kept or freed. Memory NULL is allowed. */
void hkt__keep_give(enum hkt__keep kind, struct hkt__kept block);

#endif
