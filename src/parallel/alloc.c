/* Thin layer over malloc: overflow checks, a counter, and failure by count for tests. */
#include "parallel/alloc.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static atomic_uint_least64_t alloc_count;
static atomic_int_least64_t fail_at;

/* Relaxed: a statistic and a test hook, no data is published through them. */
static int must_fail(void)
{
    atomic_fetch_add_explicit(&alloc_count, 1, memory_order_relaxed);
    if (atomic_load_explicit(&fail_at, memory_order_relaxed) <= 0)
        return 0;
    return atomic_fetch_sub_explicit(&fail_at, 1, memory_order_relaxed) == 1;
}

void *hkt__parallel_calloc(size_t count, size_t bytes)
{
    size_t total;

    if (must_fail() || __builtin_mul_overflow(count, bytes, &total) || total > SIZE_MAX / 2)
        return NULL;
    total = total == 0 ? HKT__PARALLEL_ALIGN
                       : (total + HKT__PARALLEL_ALIGN - 1) / HKT__PARALLEL_ALIGN * HKT__PARALLEL_ALIGN;
    void *memory = aligned_alloc(HKT__PARALLEL_ALIGN, total);

    if (memory != NULL)
        memset(memory, 0, total);
    return memory;
}

void hkt__parallel_free(void *memory)
{
    free(memory);
}

uint64_t hkt__parallel_alloc_count(void)
{
    return atomic_load_explicit(&alloc_count, memory_order_relaxed);
}

void hkt__parallel_alloc_fail_at(int64_t k)
{
    atomic_store_explicit(&fail_at, k, memory_order_relaxed);
}
