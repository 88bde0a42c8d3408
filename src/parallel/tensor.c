/* Shapes and their bytes. */
#include "parallel/tensor.h"

#include <assert.h>

struct hkt__tensor hkt__tensor_of(void *data, enum hkt_dtype dtype, int ndims, const int64_t *shape)
{
    struct hkt__tensor tensor = { .data = data, .dtype = dtype, .ndims = ndims };

    assert(ndims >= 0 && ndims <= HKT__TENSOR_DIMS_MAX);
    for (int i = 0; i < ndims; i++) {
        assert(shape[i] >= 0);
        tensor.shape[i] = shape[i];
    }
    return tensor;
}

int64_t hkt__tensor_elems(const struct hkt__tensor *tensor)
{
    int64_t elems = 1;

    for (int i = 0; i < tensor->ndims; i++)
        elems *= tensor->shape[i];
    return elems;
}

uint64_t hkt__tensor_bytes(const struct hkt__tensor *tensor)
{
    return (uint64_t)hkt__tensor_elems(tensor) * hkt_dtype_size(tensor->dtype);
}

int64_t hkt__tensor_row_elems(const struct hkt__tensor *tensor)
{
    int64_t elems = 1;

    for (int i = 1; i < tensor->ndims; i++)
        elems *= tensor->shape[i];
    return elems;
}

struct hkt__tensor hkt__tensor_rows(const struct hkt__tensor *tensor, int64_t first, int64_t count)
{
    struct hkt__tensor rows = *tensor;

    assert(tensor->ndims > 0 && first >= 0 && count >= 0 && first + count <= tensor->shape[0]);
    rows.shape[0] = count;
    rows.data = (char *)tensor->data
                + (size_t)(first * hkt__tensor_row_elems(tensor)) * hkt_dtype_size(tensor->dtype);
    return rows;
}

enum hkt_status hkt__tensor_alloc(struct hkt__memory *memory, enum hkt__memory_class kind, struct hkt__tensor *tensor)
{
    return hkt__memory_zalloc(memory, kind, hkt__tensor_bytes(tensor), &tensor->data);
}

void hkt__tensor_free(struct hkt__memory *memory, struct hkt__tensor *tensor)
{
    hkt__memory_free(memory, tensor->data);
    tensor->data = NULL;
}
