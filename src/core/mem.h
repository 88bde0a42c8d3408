/* Allocation for the control plane. The data plane allocates nothing; a test counts on hkt__mem_count to prove it.
 * hkt__mem_fail_at makes the k-th allocation fail, so that tests walk every out-of-memory path. */
#ifndef HOCKET_CORE_MEM_H
#define HOCKET_CORE_MEM_H

#include <stddef.h>
#include <stdint.h>

/** Ask for a cache line that will be written: the way from another core's cache overlaps with what is done until then. */
static inline void hkt__prefetch_write(const void *line)
{
#if defined(__x86_64__)
    /* By hand, since compilers emit it for newer processors only; all of this architecture take it, some as no operation. */
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

#define HKT__LINE 64 /* bytes of a cache line; 128 where adjacent-line prefetch matters */

/** Zeroed memory for count elements, or NULL (overflow included). Release with hkt__free. */
void *hkt__calloc(size_t count, size_t bytes) __attribute__((malloc, warn_unused_result));
/** The same, aligned to a cache line. */
void *hkt__calloc_line(size_t count, size_t bytes) __attribute__((malloc, warn_unused_result));
/** Grow an array; the old one stays valid when NULL is returned. New elements are not zeroed. */
void *hkt__realloc(void *old, size_t count, size_t bytes) __attribute__((warn_unused_result));
char *hkt__strdup(const char *text) __attribute__((warn_unused_result));
void hkt__free(void *memory);

/** Zeroed pages of their own, for large buffers that are rarely used in full: only pages in use take memory, and freed
 *  ones go back to the system at once. NULL for no bytes. bytes as they were when freed. */
void *hkt__pages_alloc(size_t bytes) __attribute__((malloc, warn_unused_result));
void hkt__pages_free(void *memory, size_t bytes);

/** Allocations made so far by this process through these functions. */
uint64_t hkt__mem_count(void);
/** Test hook: the k-th allocation from now on (k >= 1) returns NULL; 0 turns it off. */
void hkt__mem_fail_at(int64_t k);

#endif
