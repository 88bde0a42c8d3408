/* What streams are given to do: copies, settings of memory, host functions, kernels. */
#include "stream.h"

#include <stdlib.h>
#include <string.h>

#define SHARED_BYTES_MAX 49152 /* without opting in for more */

/** A word is set whole: others may be polling it, which is no race. */
static bool set_word(const struct emu_op *op)
{
    uint32_t *word = op->u.copy.src == NULL && op->u.copy.bytes == sizeof *word ? emu_reach(op->u.copy.dst) : NULL;

    if (word == NULL || (uintptr_t)word % sizeof *word != 0)
        return false;
    __atomic_store_n(word, (uint32_t)(unsigned char)op->u.copy.value * 0x01010101u, __ATOMIC_RELEASE);
    return true;
}

static void run_copy(struct emu_op *op)
{
    if (set_word(op))
        return;
    if (op->u.copy.src == NULL)
        memset(emu_reach(op->u.copy.dst), op->u.copy.value, op->u.copy.bytes);
    else
        memcpy(emu_reach(op->u.copy.dst), emu_reach(op->u.copy.src), op->u.copy.bytes);
    free(op->u.copy.staged);
}

static void run_launch(struct emu_op *op)
{
    emu_run_grid(&op->u.launch.grid, (int)emu_setting("EMU_RESIDENT", 32));
    free(op->u.launch.packed);
}

void emu_op_free(struct emu_op *op)
{
    if (op->run == run_copy)
        free(op->u.copy.staged);
    if (op->run == run_launch)
        free(op->u.launch.packed);
    free(op);
}

static void *duplicate(const void *from, size_t bytes)
{
    void *to = aligned_alloc(64, (bytes + 63) / 64 * 64);

    return to != NULL ? memcpy(to, from, bytes) : NULL;
}

struct emu_op *emu_op_copy(const struct emu_op *op)
{
    struct emu_op *copy = malloc(sizeof *copy);

    if (copy == NULL)
        return NULL;
    *copy = *op;
    copy->next = NULL;
    if (op->run == run_copy && op->u.copy.staged != NULL) {
        copy->u.copy.src = copy->u.copy.staged = duplicate(op->u.copy.staged, op->u.copy.bytes);
        if (copy->u.copy.staged == NULL)
            goto free_copy;
    }
    if (op->run == run_launch) {
        copy->u.launch.packed = duplicate(op->u.launch.packed, op->u.launch.grid.kernel->param_bytes);
        copy->u.launch.grid.packed = copy->u.launch.packed;
        if (copy->u.launch.packed == NULL)
            goto free_copy;
    }
    return copy;

free_copy:
    free(copy);
    return NULL;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    cudaError_t rc = emu_enter(__func__);
    struct emu_op *op;

    if (rc != cudaSuccess)
        return rc;
    if (kind > cudaMemcpyDefault || (bytes != 0 && (dst == NULL || src == NULL)))
        return emu_note(cudaErrorInvalidValue);
    if (bytes == 0)
        return cudaSuccess;
    op = emu_op_new(run_copy);
    if (op == NULL)
        return emu_note(cudaErrorMemoryAllocation);
    op->u.copy.dst = dst;
    op->u.copy.src = src;
    op->u.copy.bytes = bytes;
    if (!emu_is_allocated(src, 1)) { /* memory of a program that nobody pinned is read before the call returns */
        op->u.copy.staged = malloc(bytes);
        if (op->u.copy.staged == NULL) {
            free(op);
            return emu_note(cudaErrorMemoryAllocation);
        }
        op->u.copy.src = memcpy(op->u.copy.staged, src, bytes);
    }
    rc = emu_enqueue(stream, op);
    if (rc == cudaSuccess && !emu_is_allocated(dst, 1)) /* and written before it returns */
        rc = cudaStreamSynchronize(stream);
    return rc;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    const cudaError_t rc = emu_enter(__func__);
    struct emu_op *op;

    if (rc != cudaSuccess)
        return rc;
    if (bytes == 0)
        return cudaSuccess;
    if (!emu_is_allocated(p, bytes))
        return emu_note(cudaErrorInvalidValue);
    op = emu_op_new(run_copy);
    if (op == NULL)
        return emu_note(cudaErrorMemoryAllocation);
    op->u.copy.dst = p;
    op->u.copy.bytes = bytes;
    op->u.copy.value = value;
    return emu_enqueue(stream, op);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
    const cudaError_t rc = emu_enter(__func__);

    if (rc == cudaSuccess)
        *attributes = (struct cudaFuncAttributes){ .maxThreadsPerBlock = kernel != NULL ? EMU_THREADS_MAX : 0 };
    return rc;
}

static void run_host(struct emu_op *op)
{
    op->u.host.function(op->u.host.user);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *user)
{
    const cudaError_t rc = emu_enter(__func__);
    struct emu_op *op;

    if (rc != cudaSuccess)
        return rc;
    op = emu_op_new(run_host);
    if (op == NULL)
        return emu_note(cudaErrorMemoryAllocation);
    op->u.host.function = function;
    op->u.host.user = user;
    return emu_enqueue(stream, op);
}

static bool is_launchable(dim3 grid, dim3 block, size_t shared_bytes)
{
    return grid.x >= 1 && grid.y >= 1 && grid.y <= 65535 && grid.z >= 1 && grid.z <= 65535 && block.x >= 1 && block.y >= 1
           && block.z >= 1 && (uint64_t)block.x * block.y * block.z <= EMU_THREADS_MAX && shared_bytes <= SHARED_BYTES_MAX;
}

cudaError_t cudaLaunchKernel(const void *address, dim3 grid, dim3 block, void **params, size_t shared_bytes,
                             cudaStream_t stream)
{
    const cudaError_t rc = emu_enter(__func__);
    const char *name = emu_name_of(address);
    const struct emu_kernel *kernel = name != NULL ? emu_find_kernel(NULL, name) : emu_find_kernel(address, NULL);
    struct emu_op *op;

    if (rc != cudaSuccess)
        return rc;
    if (kernel == NULL)
        return emu_note(cudaErrorInvalidDeviceFunction);
    if (!is_launchable(grid, block, shared_bytes))
        return emu_note(cudaErrorInvalidConfiguration);
    op = emu_op_new(run_launch);
    if (op != NULL)
        op->u.launch.packed = aligned_alloc(64, (kernel->param_bytes + 63) / 64 * 64);
    if (op == NULL || op->u.launch.packed == NULL) {
        free(op);
        return emu_note(cudaErrorMemoryAllocation);
    }
    kernel->pack(params, op->u.launch.packed);
    op->u.launch.grid = (struct emu_grid){ .kernel = kernel, .packed = op->u.launch.packed,
                                           .blocks = { grid.x, grid.y, grid.z }, .threads = { block.x, block.y, block.z },
                                           .shared_bytes = shared_bytes, .device = emu_device() };
    return emu_enqueue(stream, op);
}
