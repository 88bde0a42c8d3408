/* All that differs between a GPU and the emulation of one (tests/cuda-emu): every other file of kernels/ is plain C++17.
 *
 * Rules for kernels, which keep one source right on both:
 * - launch through cudaLaunchKernel and HKT__KERNEL_ADDRESS, never <<< >>>;
 * - each PTX instruction is one function here, with a branch for the host;
 * - a loop that waits for another thread, block or GPU calls spin_hint();
 * - 16-byte accesses go through load16 and store16, which the emulation checks;
 * - flags are release stores and acquire loads of system scope, never plain accesses beside a fence;
 * - integers wrap as unsigned ones; a product that meets a sum is not contracted (nvcc -fmad=false). */
#ifndef HOCKET_KERNELS_DEVICE_CUH
#define HOCKET_KERNELS_DEVICE_CUH

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef HKT__CUDA_EMU
#include "emu_kernel.h"
#else
#include <cuda_runtime.h>
#define HKT__KERNEL_ADDRESS(...) (reinterpret_cast<const void *>(&__VA_ARGS__))
#endif

#define HKT__DEVICE __device__ __forceinline__

/** 16 bytes at an address that 16 divides. */
HKT__DEVICE uint4 load16(const void *p)
{
#ifdef HKT__CUDA_EMU
    emu_check_access(p, 16);
#endif
#ifdef __CUDA_ARCH__
    __builtin_assume(__isGlobal(p)); /* so that the instruction is that of global memory, wherever the pointer was kept */
#endif
    return *static_cast<const uint4 *>(p);
}

HKT__DEVICE void store16(void *p, uint4 x)
{
#ifdef HKT__CUDA_EMU
    emu_check_access(p, 16);
#endif
#ifdef __CUDA_ARCH__
    __builtin_assume(__isGlobal(p));
#endif
    *static_cast<uint4 *>(p) = x;
}

/** 16 bytes at any address. On a GPU by the one or two aligned words of 16 that hold them: no fault is possible in
 *  either, since each has a byte that was asked for. */
HKT__DEVICE uint4 load16_loose(const void *p)
{
#ifdef __CUDA_ARCH__
    const unsigned low = unsigned(reinterpret_cast<uintptr_t>(p)) & 15, shift = low % 4 * 8;
    const char *start = static_cast<const char *>(p) - low;
    uint4 a = load16(start), b;

    if (low == 0)
        return a;
    b = load16(start + 16);
    if (low & 8)
        a = make_uint4(a.z, a.w, b.x, b.y), b = make_uint4(b.z, b.w, 0, 0);
    if (low & 4)
        a = make_uint4(a.y, a.z, a.w, b.x), b.x = b.y;
    return make_uint4(__funnelshift_r(a.x, a.y, shift), __funnelshift_r(a.y, a.z, shift), __funnelshift_r(a.z, a.w, shift),
                      __funnelshift_r(a.w, b.x, shift));
#else
    uint4 x;

    memcpy(&x, p, sizeof x);
    return x;
#endif
}

/* --- Words that other threads, blocks, devices and the host write -------------------------------------------------- */

/** Every loop that waits for one of them calls this. */
HKT__DEVICE void spin_hint()
{
#ifdef HKT__CUDA_EMU
    emu_spin();
#endif
}

/** Acquire of system scope: what the writer stored before its release is seen after, here and, past the next barrier, by
 *  the whole block. */
HKT__DEVICE uint64_t load_acquire_sys(const uint64_t *p)
{
#ifdef __CUDA_ARCH__
    uint64_t x;

    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(x) : "l"(p) : "memory");
    return x;
#else
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
#endif
}

/** Release of system scope, of what this thread and, before the last barrier, its block stored. */
HKT__DEVICE void store_release_sys(uint64_t *p, uint64_t x)
{
#ifdef __CUDA_ARCH__
    asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(p), "l"(x) : "memory");
#else
    __atomic_store_n(p, x, __ATOMIC_RELEASE);
#endif
}

/** One whole word of 8 bytes, in no order with others: a word that says by itself whether it is there. */
HKT__DEVICE uint64_t load_word_sys(const uint64_t *p)
{
#ifdef __CUDA_ARCH__
    uint64_t x;

    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(x) : "l"(p) : "memory");
    return x;
#else
    return __atomic_load_n(p, __ATOMIC_RELAXED);
#endif
}

HKT__DEVICE void store_word_sys(uint64_t *p, uint64_t x)
{
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" : : "l"(p), "l"(x) : "memory");
#else
    __atomic_store_n(p, x, __ATOMIC_RELAXED);
#endif
}

/** A word of this block's, in shared memory, that others of the block may be changing: old or new, no order. */
HKT__DEVICE uint64_t load_word_block(const uint64_t *p)
{
#ifdef __CUDA_ARCH__
    uint64_t x;

    asm volatile("ld.relaxed.cta.u64 %0, [%1];" : "=l"(x) : "l"(p) : "memory");
    return x;
#else
    return __atomic_load_n(p, __ATOMIC_RELAXED);
#endif
}

HKT__DEVICE void store_word_block(uint64_t *p, uint64_t x)
{
#ifdef __CUDA_ARCH__
    asm volatile("st.relaxed.cta.u64 [%0], %1;" : : "l"(p), "l"(x) : "memory");
#else
    __atomic_store_n(p, x, __ATOMIC_RELAXED);
#endif
}

/** The threads that share a piece of work: this one's number among them, and how many there are. */
struct workers {
    size_t self, count;
};

HKT__DEVICE workers whole_grid()
{
    return {size_t(blockIdx.x) * blockDim.x + threadIdx.x, size_t(gridDim.x) * blockDim.x};
}

HKT__DEVICE workers whole_block()
{
    return {threadIdx.x, blockDim.x};
}

#ifdef __CUDA_ARCH__
/** f16 as the hardware converts it. NaNs come out with payloads of its own: see formats.cuh. */
HKT__DEVICE float f32_of_f16_bits(uint16_t code)
{
    float x;

    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(code));
    return x;
}

HKT__DEVICE uint16_t f16_bits_of_f32(float x)
{
    uint16_t code;

    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(x));
    return code;
}

HKT__DEVICE uint16_t bf16_bits_of_f32(float x)
{
    uint16_t code;

    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(code) : "f"(x));
    return code;
}
#endif

#endif
