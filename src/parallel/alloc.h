/* Memory for what describes a layout: meshes, maps, schedules (the numbers of training live in accounts,
 * parallel/memory.h). Overflow checks, a counter by which tests see that a training step allocates nothing it did not
 * mean to, and failure by count, so that tests walk every out-of-memory path. */
#ifndef HOCKET_PARALLEL_ALLOC_H
#define HOCKET_PARALLEL_ALLOC_H

#include <stddef.h>
#include <stdint.h>

#define HKT__PARALLEL_ALIGN 64 /* bytes: a cache line, and the widest vector */

/** Zeroed memory for count elements, aligned to HKT__PARALLEL_ALIGN, or NULL (overflow included). Release with
 *  hkt__parallel_free. */
void *hkt__parallel_calloc(size_t count, size_t bytes) __attribute__((malloc, warn_unused_result));
/** NULL is allowed. */
void hkt__parallel_free(void *memory);

/** Allocations made so far by this process through these functions. */
uint64_t hkt__parallel_alloc_count(void);
/** Test hook: the k-th allocation from now on (k >= 1) returns NULL; 0 turns it off. */
void hkt__parallel_alloc_fail_at(int64_t k);

#endif
