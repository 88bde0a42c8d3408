/* Enqueueing kernels: arguments are checked, the grid is chosen, the CUDA runtime does the rest. */
#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "kernels/kernels.h"
#include "kernels/runtime.h"

/* Bytes of the result that one thread of a full grid makes at least: four vectors, as many as it keeps in flight. */
#define THREAD_BYTES 64

/** Enqueues `kernel` with a grid for `bytes` of result, at most on->blocks_max blocks. */
static int launch(const void *kernel, const void *args, size_t bytes, const struct hkt__kernel_on *on)
{
    const size_t a_block = (size_t)HKT__KERNEL_THREADS * THREAD_BYTES, blocks = bytes / a_block + (bytes % a_block != 0);
    const dim3 block = { HKT__KERNEL_THREADS, 1, 1 };
    dim3 grid = { 1, 1, 1 };
    void *params[1] = { (void *)args };

    if (on->blocks_max < 1)
        return cudaErrorInvalidValue;
    grid.x = blocks < (size_t)on->blocks_max ? (unsigned)blocks : (unsigned)on->blocks_max;
    return (int)cudaLaunchKernel(kernel, grid, block, params, 0, (cudaStream_t)on->stream);
}

static int copy(const struct hkt__copy_args *args, const struct hkt__kernel_on *on)
{
    size_t bytes;

    if (args->row_bytes == 0 || args->rows == 0)
        return cudaSuccess;
    if (__builtin_mul_overflow(args->row_bytes, args->rows, &bytes))
        return cudaErrorInvalidValue;
    /* A warp takes a whole row at a time, however short; 4 bytes a lane keep short ones from being taken for little work. */
    return launch(hkt__kernel_copy(), args, args->row_bytes < 2048 ? args->rows * 2048 : bytes, on);
}

/** Whether a single source is changed by the operation: it enters as a truth value. */
static bool changes_one(enum hkt_op op, enum hkt_dtype dtype)
{
    return dtype == HKT_BOOL || op == HKT_LAND || op == HKT_LOR || op == HKT_LXOR;
}

static int reduce(const struct hkt__reduce_args *args, enum hkt_op op, enum hkt_dtype dtype, const struct hkt__kernel_on *on)
{
    const void *kernel = hkt__kernel_reduce_ints(op, dtype);
    const size_t element = hkt_dtype_size(dtype);

    if (kernel == NULL)
        kernel = hkt__kernel_reduce_floats(op, dtype);
    if (kernel == NULL || args->nsrcs < 1 || args->nsrcs > HKT__KERNEL_SRCS_MAX || args->count > SIZE_MAX / element)
        return cudaErrorInvalidValue;
    if (args->count == 0)
        return cudaSuccess;
    if (args->nsrcs == 1 && !changes_one(op, dtype)) {
        const size_t bytes = args->count * element;
        const struct hkt__copy_args one = { args->dst, args->srcs[0], bytes, 1, bytes, bytes };

        return args->dst == args->srcs[0] ? cudaSuccess : copy(&one, on);
    }
    if (op == HKT_BAND || op == HKT_BOR || op == HKT_BXOR) { /* of bytes, whatever the size; a bool has one */
        struct hkt__reduce_args bytes = *args;

        bytes.count *= element;
        return launch(kernel, &bytes, bytes.count, on);
    }
    return launch(kernel, args, args->count * element, on);
}

static int scale(const void *kernel, const struct hkt__scale_args *args, enum hkt_dtype dtype, const struct hkt__kernel_on *on)
{
    if (kernel == NULL || args->count > SIZE_MAX / hkt_dtype_size(dtype))
        return cudaErrorInvalidValue;
    return args->count == 0 ? (int)cudaSuccess : launch(kernel, args, args->count * hkt_dtype_size(dtype), on);
}

static int multiply(const struct hkt__scale_args *args, enum hkt_dtype dtype, const struct hkt__kernel_on *on)
{
    return scale(hkt__kernel_multiply(dtype), args, dtype, on);
}

static int divide(const struct hkt__scale_args *args, enum hkt_dtype dtype, const struct hkt__kernel_on *on)
{
    if (dtype == HKT_BOOL) /* left alone, as by hkt__divide */
        return cudaSuccess;
    return scale(hkt__kernel_divide(dtype), args, dtype, on);
}

/** Of pairs that give the same bits the one that has a kernel (plan_types.cuh). */
static void choose_kind(enum hkt_op *op, enum hkt_dtype *dtype)
{
    static const enum hkt_op of_truth[HKT_OP_COUNT] = {
        [HKT_MIN] = HKT_LAND, [HKT_BAND] = HKT_LAND, [HKT_LAND] = HKT_LAND, [HKT_MAX] = HKT_LOR, [HKT_BOR] = HKT_LOR,
        [HKT_LOR] = HKT_LOR, [HKT_BXOR] = HKT_LXOR, [HKT_LXOR] = HKT_LXOR};

    if (*op == HKT_AVG)
        *op = HKT_SUM;
    if (*dtype == HKT_BOOL)
        *op = of_truth[*op];
    if (*dtype == HKT_BOOL || *op == HKT_BAND || *op == HKT_BOR || *op == HKT_BXOR)
        *dtype = HKT_UINT8;
    else if (*dtype <= HKT_UINT64 && *op != HKT_MIN && *op != HKT_MAX)
        *dtype = (enum hkt_dtype)(*dtype | 1); /* the unsigned one of the pair */
}
_Static_assert(HKT_INT8 == 0 && HKT_UINT8 == 1 && HKT_INT64 == 6 && HKT_UINT64 == 7, "signed and unsigned alternate");

static const void *plan_kernel(enum hkt_dtype dtype)
{
    const void *kernel = hkt__kernel_plan_ints(dtype);

    kernel = kernel != NULL ? kernel : hkt__kernel_plan_floats(dtype);
    return kernel != NULL ? kernel : hkt__kernel_plan_small(dtype);
}

static int plan(const struct hkt__plan_args *args, enum hkt_op op, enum hkt_dtype dtype, const struct hkt__kernel_on *on)
{
    const dim3 block = { HKT__PLAN_THREADS, 1, 1 }, grid = { (unsigned)on->blocks_max, 1, 1 };
    struct hkt__plan_args chosen = *args;
    void *params[1] = { &chosen };
    const void *kernel = hkt__kernel_plan_move();

    if (on->blocks_max < 1)
        return cudaErrorInvalidValue;
    if (op != HKT_OP_COUNT) {
        if (op > HKT_OP_COUNT || hkt_op_check(op, dtype) != HKT_OK)
            return cudaErrorInvalidValue;
        choose_kind(&op, &dtype);
        kernel = plan_kernel(dtype);
    }
    chosen.op = (int32_t)op;
    return (int)cudaLaunchKernel(kernel, grid, block, params, 0, (cudaStream_t)on->stream);
}

static int plan_note(const struct hkt__plan_note *args, const struct hkt__kernel_on *on)
{
    const dim3 block = { HKT__PLAN_MESSAGES_HERE, 1, 1 }, grid = { 1, 1, 1 };
    void *params[1] = { (void *)args };

    if (args->count > HKT__PLAN_MESSAGES_HERE)
        return cudaErrorInvalidValue;
    return (int)cudaLaunchKernel(hkt__kernel_plan_note(), grid, block, params, 0, (cudaStream_t)on->stream);
}

static int load_one(const void *kernel)
{
    struct cudaFuncAttributes attributes;

    return kernel == NULL ? (int)cudaSuccess : (int)cudaFuncGetAttributes(&attributes, kernel);
}

static int plan_load(void)
{
    int rc = load_one(hkt__kernel_plan_move());

    if (rc == cudaSuccess)
        rc = load_one(hkt__kernel_plan_note());
    for (int dtype = 0; dtype < HKT_DTYPE_COUNT && rc == cudaSuccess; dtype++) {
        rc = load_one(plan_kernel((enum hkt_dtype)dtype));
        if (rc == cudaSuccess)
            rc = load_one(hkt__kernel_divide((enum hkt_dtype)dtype)); /* follows plans that average */
        if (rc == cudaSuccess)
            rc = load_one(hkt__kernel_multiply((enum hkt_dtype)dtype)); /* goes before pre-multiplied sums in place */
    }
    return rc;
}

const struct hkt__cuda_module *hkt__cuda_module(void)
{
    static const struct hkt__cuda_module module = {
        .abi = HKT__CUDA_ABI,
        .reduce = reduce,
        .multiply = multiply,
        .divide = divide,
        .copy = copy,
        .plan_load = plan_load,
        .plan = plan,
        .plan_note = plan_note,
        .device_count = hkt__cuda_device_count,
        .where_is = hkt__cuda_where_is,
        .copy_wait = hkt__cuda_copy_wait,
        .pin = hkt__cuda_pin,
        .unpin = hkt__cuda_unpin,
        .device_alloc = hkt__cuda_device_alloc,
        .device_free = hkt__cuda_device_free,
        .error_text = hkt__cuda_error_text,
        .device_current = hkt__cuda_device_current,
        .device_use = hkt__cuda_device_use,
        .device_place = hkt__cuda_device_place,
        .device_multiprocessors = hkt__cuda_device_multiprocessors,
        .peer_enable = hkt__cuda_peer_enable,
        .ipc_handle = hkt__cuda_ipc_handle,
        .ipc_open = hkt__cuda_ipc_open,
        .ipc_close = hkt__cuda_ipc_close,
        .memory_find = hkt__cuda_memory_find,
        .memory_export = hkt__cuda_memory_export,
        .memory_import = hkt__cuda_memory_import,
        .memory_unmap = hkt__cuda_memory_unmap,
        .mapped_alloc = hkt__cuda_mapped_alloc,
        .mapped_free = hkt__cuda_mapped_free,
        .dmabuf_can = hkt__cuda_dmabuf_can,
        .dmabuf_open = hkt__cuda_dmabuf_open,
        .stream_create = hkt__cuda_stream_create,
        .stream_destroy = hkt__cuda_stream_destroy,
        .stream_query = hkt__cuda_stream_query,
        .stream_is_capturing = hkt__cuda_stream_is_capturing,
        .capture_mode = hkt__cuda_capture_mode,
        .event_create = hkt__cuda_event_create,
        .event_destroy = hkt__cuda_event_destroy,
        .event_record = hkt__cuda_event_record,
        .event_query = hkt__cuda_event_query,
        .stream_wait = hkt__cuda_stream_wait,
        .stream_copy = hkt__cuda_stream_copy,
        .stream_set = hkt__cuda_stream_set,
        .stream_call = hkt__cuda_stream_call,
    };

    return &module;
}
