/* CUDA's device language for g++: what kernels/ uses of it, and no more, so that a kernel which reaches for something else
 * does not compile here. A block lives on one OS thread: what is thread-local is the block's. */
#ifndef HOCKET_CUDA_EMU_KERNEL_H
#define HOCKET_CUDA_EMU_KERNEL_H

#include <cuda_runtime_api.h>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>

#include "engine.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __shared__ static thread_local
#define __launch_bounds__(...)

#define threadIdx (emu_self->index)
#define blockIdx (emu_self->block->index)
#define blockDim (emu_self->block->grid->threads)
#define gridDim (emu_self->block->grid->blocks)

/** Registers a kernel when the code that mentions it is loaded. */
template <auto kernel> struct emu_registered;
template <class... Params, void (*kernel)(Params...)> struct emu_registered<kernel> {
    using packed = std::tuple<std::remove_cv_t<Params>...>;

    template <size_t... i> static void pack_each(void **params, void *out, std::index_sequence<i...>)
    {
        new (out) packed(*static_cast<std::remove_cv_t<Params> *>(params[i])...);
    }
    static void pack(void **params, void *out) { pack_each(params, out, std::index_sequence_for<Params...>{}); }
    static void run(const void *in) { std::apply(kernel, *static_cast<const packed *>(in)); }

    static inline emu_kernel entry{reinterpret_cast<const void *>(kernel), sizeof(packed), pack, run, {0}, 0, nullptr};
    static inline const bool is_listed = (emu_register_kernel(&entry), true);
    static const void *address()
    {
        return is_listed ? entry.address : nullptr;
    }
};
#define HKT__KERNEL_ADDRESS(...) (emu_registered<__VA_ARGS__>::address())

static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

static inline void __syncthreads()
{
    emu_barrier();
}

#endif
