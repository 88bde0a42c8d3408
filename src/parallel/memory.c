/* A header in front of each block says its size and class; kept blocks are chained by size. */
#include "parallel/memory.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "parallel/fail.h"

struct hkt__memory_block {
    uint64_t bytes;                   /* as asked for */
    uint64_t room;                    /* bytes rounded up to the alignment: the size class for reuse */
    enum hkt__memory_class kind;
    struct hkt__memory_block *next;   /* of the kept ones */
};

#define HEADER HKT__MEMORY_ALIGN
#define HUGE_PAGE ((uint64_t)2 << 20) /* of x86-64, and of most others with pages of 4 KiB */
static_assert(sizeof(struct hkt__memory_block) <= HEADER, "the header must keep the data aligned");

const char *hkt__memory_class_name(enum hkt__memory_class kind)
{
    static const char *const names[] = {
#define HKT__MEMORY_NAME(name, text) text,
        HKT__MEMORY_TABLE(HKT__MEMORY_NAME)
#undef HKT__MEMORY_NAME
    };

    return (unsigned)kind < HKT__MEMORY_COUNT ? names[kind] : "?";
}

void hkt__memory_init(struct hkt__memory *memory, uint64_t kept_max)
{
    memset(memory, 0, sizeof *memory);
    memory->kept_max = kept_max;
}

enum hkt_status hkt__memory_fini(struct hkt__memory *memory)
{
    for (int i = 0; i < HKT__MEMORY_SIZES_MAX; i++) {
        while (memory->kept_of[i] != NULL) {
            struct hkt__memory_block *block = memory->kept_of[i];

            memory->kept_of[i] = block->next;
            memory->kept -= block->room;
            free(block);
        }
    }
    for (int kind = 0; kind < HKT__MEMORY_COUNT; kind++)
        if (memory->used[kind] != 0)
            return hkt__parallel_fail(HKT_ERR_BUG, "memory of class %s: %" PRIu64 " bytes were never freed",
                                      hkt__memory_class_name(kind), memory->used[kind]);
    return HKT_OK;
}

static uint64_t room_of(uint64_t bytes)
{
    uint64_t room = (bytes + HKT__MEMORY_ALIGN - 1) / HKT__MEMORY_ALIGN * HKT__MEMORY_ALIGN;

    return room ? room : HKT__MEMORY_ALIGN;
}

/* The chain for blocks of this room: its own, else a free one, else NULL. Chains are never moved, so a search may not stop
 * at the first empty one. */
static struct hkt__memory_block **chain_of(struct hkt__memory *memory, uint64_t room, int want_free)
{
    uint64_t first = room / HKT__MEMORY_ALIGN * 0x9e3779b97f4a7c15u >> 56;
    struct hkt__memory_block **empty = NULL;

    static_assert(HKT__MEMORY_SIZES_MAX == 256, "the hash above yields 8 bits");
    for (uint64_t i = 0; i < HKT__MEMORY_SIZES_MAX; i++) {
        struct hkt__memory_block **chain = &memory->kept_of[(first + i) % HKT__MEMORY_SIZES_MAX];

        if (*chain != NULL && (*chain)->room == room)
            return chain;
        if (*chain == NULL && empty == NULL)
            empty = chain;
    }
    return want_free ? empty : NULL;
}

/* Fresh memory. Large blocks begin and end at huge pages and ask for them: products walk through whole matrices, and with
 * pages of 4 KiB spend a tenth of their time on finding them. Where the system gives none nothing is lost but the rounding. */
static struct hkt__memory_block *block_make(uint64_t bytes)
{
    const uint64_t whole = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    struct hkt__memory_block *block;

    if (bytes < HUGE_PAGE / 2)
        return aligned_alloc(HKT__MEMORY_ALIGN, bytes);
    block = aligned_alloc(HUGE_PAGE, whole);
    if (block != NULL)
        (void)madvise(block, whole, MADV_HUGEPAGE);
    return block;
}

static struct hkt__memory_block *block_take(struct hkt__memory *memory, uint64_t bytes)
{
    uint64_t room = room_of(bytes);
    struct hkt__memory_block **chain = memory->kept ? chain_of(memory, room, 0) : NULL;

    if (chain != NULL) {
        struct hkt__memory_block *block = *chain;

        *chain = block->next;
        memory->kept -= room;
        return block;
    }
    struct hkt__memory_block *block = block_make(HEADER + room);

    if (block != NULL) {
        block->room = room;
        memory->calls++;
    }
    return block;
}

static void count_in(struct hkt__memory *memory, enum hkt__memory_class kind, uint64_t bytes)
{
    memory->used[kind] += bytes;
    memory->used_all += bytes;
    if (memory->used[kind] > memory->peak[kind])
        memory->peak[kind] = memory->used[kind];
    if (bytes > memory->largest[kind])
        memory->largest[kind] = bytes;
    if (memory->used_all > memory->peak_all)
        memory->peak_all = memory->used_all;
}

enum hkt_status hkt__memory_alloc(struct hkt__memory *memory, enum hkt__memory_class kind, uint64_t bytes,
                                  void **out_data)
{
    struct hkt__memory_block *block = NULL;

    assert((unsigned)kind < HKT__MEMORY_COUNT);
    int must_fail = memory->fail_at > 0 && --memory->fail_at == 0;

    if (!must_fail && bytes <= SIZE_MAX / 2)
        block = block_take(memory, bytes);
    if (block == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM,
                                  "no memory for %" PRIu64 " bytes of class %s (%" PRIu64 " in use); smaller "
                                  "micro-batches, recompute or more sharding take less",
                                  bytes, hkt__memory_class_name(kind), memory->used_all);
    block->bytes = bytes;
    block->kind = kind;
    block->next = NULL;
    count_in(memory, kind, bytes);
    *out_data = (char *)block + HEADER;
    return HKT_OK;
}

enum hkt_status hkt__memory_zalloc(struct hkt__memory *memory, enum hkt__memory_class kind, uint64_t bytes,
                                   void **out_data)
{
    enum hkt_status rc = hkt__memory_alloc(memory, kind, bytes, out_data);

    if (rc == HKT_OK)
        memset(*out_data, 0, bytes);
    return rc;
}

void hkt__memory_free(struct hkt__memory *memory, void *data)
{
    if (data == NULL)
        return;
    struct hkt__memory_block *block = (struct hkt__memory_block *)((char *)data - HEADER);
    struct hkt__memory_block **chain = NULL;

    assert((unsigned)block->kind < HKT__MEMORY_COUNT && memory->used[block->kind] >= block->bytes);
    memory->used[block->kind] -= block->bytes;
    memory->used_all -= block->bytes;
    if (memory->kept + block->room <= memory->kept_max)
        chain = chain_of(memory, block->room, 1);
    if (chain == NULL) {
        free(block);
        return;
    }
    block->next = *chain;
    *chain = block;
    memory->kept += block->room;
}

void hkt__memory_mark(struct hkt__memory *memory)
{
    memcpy(memory->peak, memory->used, sizeof memory->peak);
    memset(memory->largest, 0, sizeof memory->largest);
    memory->peak_all = memory->used_all;
}
