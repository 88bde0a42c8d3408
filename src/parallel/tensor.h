/* A tensor: where numbers lie, of which type, in which shape. Row-major and dense; the last index runs fastest. It owns
 * nothing: memory belongs to who allocated it (parallel/memory.h). */
#ifndef HOCKET_PARALLEL_TENSOR_H
#define HOCKET_PARALLEL_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "hocket/types.h"
#include "parallel/memory.h"

#define HKT__TENSOR_DIMS_MAX 4

struct hkt__tensor {
    void *data;
    enum hkt_dtype dtype;
    int ndims;
    int64_t shape[HKT__TENSOR_DIMS_MAX];
};

/** A description of `ndims` dimensions over `data`, which may be NULL (a shape only). */
struct hkt__tensor hkt__tensor_of(void *data, enum hkt_dtype dtype, int ndims, const int64_t *shape);
/** Elements: the product of the shape, 1 without dimensions. */
int64_t hkt__tensor_elems(const struct hkt__tensor *tensor);
uint64_t hkt__tensor_bytes(const struct hkt__tensor *tensor);
/** Elements per step of the first dimension. */
int64_t hkt__tensor_row_elems(const struct hkt__tensor *tensor);
/** Rows [first, first + count) of the first dimension, sharing the memory. */
struct hkt__tensor hkt__tensor_rows(const struct hkt__tensor *tensor, int64_t first, int64_t count);
/** Zeroed memory for a shape (its data is NULL before). Released by hkt__tensor_free. Errors: NOMEM. */
HKT_NODISCARD enum hkt_status hkt__tensor_alloc(struct hkt__memory *memory, enum hkt__memory_class kind,
                                                struct hkt__tensor *tensor);
/** Frees the memory, and clears the pointer. The tensor must start at an allocated block. */
void hkt__tensor_free(struct hkt__memory *memory, struct hkt__tensor *tensor);

#endif
