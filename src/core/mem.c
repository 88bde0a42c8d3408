/* Thin layer over malloc: overflow checks, a counter, and failure by count for tests. */
#include "core/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

void *hkt__calloc(size_t count, size_t bytes)
{
    size_t total;

    /* calloc checks too, but the sanitizers' calloc stops the program instead of returning NULL. */
    if (must_fail() || __builtin_mul_overflow(count, bytes, &total))
        return NULL;
    return calloc(1, total ? total : 1);
}

void *hkt__calloc_line(size_t count, size_t bytes)
{
    size_t total;

    if (must_fail() || __builtin_mul_overflow(count, bytes, &total) || total > SIZE_MAX - HKT__LINE)
        return NULL;
    total = (total + HKT__LINE - 1) / HKT__LINE * HKT__LINE;
    if (total == 0)
        total = HKT__LINE;
    void *memory = aligned_alloc(HKT__LINE, total);

    if (memory != NULL)
        memset(memory, 0, total);
    return memory;
}

void *hkt__realloc(void *old, size_t count, size_t bytes)
{
    size_t total;

    if (must_fail() || __builtin_mul_overflow(count, bytes, &total))
        return NULL;
    return realloc(old, total ? total : 1);
}

char *hkt__strdup(const char *text)
{
    return must_fail() ? NULL : strdup(text);
}

void hkt__free(void *memory)
{
    free(memory);
}

void *hkt__pages_alloc(size_t bytes)
{
    if (must_fail() || bytes == 0)
        return NULL;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return memory == MAP_FAILED ? NULL : memory;
}

void hkt__pages_free(void *memory, size_t bytes)
{
    if (memory != NULL)
        munmap(memory, bytes);
}

uint64_t hkt__mem_count(void)
{
    return atomic_load_explicit(&alloc_count, memory_order_relaxed);
}

void hkt__mem_fail_at(int64_t k)
{
    atomic_store_explicit(&fail_at, k, memory_order_relaxed);
}
