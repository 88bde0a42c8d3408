/* Which kernel runs: the instruction sets of this processor, and the tables of kernels. */
#include <stdatomic.h>
#include <string.h>

#ifndef HKT__NO_AVX
#include <cpuid.h>
#endif

#include "core/settings.h"
#include "device/formats.h"
#include "device/kernels.h"

static const char *const isa_names[HKT__ISA_COUNT] = {"c", "sse2", "avx2", "avx512"};

#ifndef HKT__NO_AVX
static const struct hkt__kernels *const isa_kernels[HKT__ISA_COUNT] = {&hkt__kernels_c, &hkt__kernels_sse2,
                                                                       &hkt__kernels_avx2, &hkt__kernels_avx512};

static enum hkt__isa isa_of_cpu(void)
{
    unsigned eax, ebx, ecx, edx;

    /* __builtin_cpu_supports asks the OS too (saved registers), but clang 14's does not know F16C. */
    if (!__builtin_cpu_supports("avx2") || !__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & bit_F16C))
        return HKT__ISA_SSE2;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return HKT__ISA_AVX2;
    return HKT__ISA_AVX512;
}
#elif defined(__x86_64__)
static const struct hkt__kernels *const isa_kernels[HKT__ISA_COUNT] = {&hkt__kernels_c, &hkt__kernels_sse2,
                                                                       &hkt__kernels_sse2, &hkt__kernels_sse2};

static enum hkt__isa isa_of_cpu(void)
{
    return HKT__ISA_SSE2;
}
#else
static const struct hkt__kernels *const isa_kernels[HKT__ISA_COUNT] = {&hkt__kernels_c, &hkt__kernels_c,
                                                                       &hkt__kernels_c, &hkt__kernels_c};

static enum hkt__isa isa_of_cpu(void)
{
    return HKT__ISA_C;
}
#endif

enum hkt__isa hkt__isa_best(void)
{
    /* A virtual machine may trap cpuid (microseconds), so the answer is kept. Relaxed: every thread finds the same. */
    static atomic_int known = -1;
    int best = atomic_load_explicit(&known, memory_order_relaxed);
    const struct hkt__settings *settings;

    if (best < 0) {
        best = (int)isa_of_cpu();
        atomic_store_explicit(&known, best, memory_order_relaxed);
    }
    if (hkt__settings_get(&settings) == HKT_OK && settings->isa[0] != '\0') {
        for (int isa = 0; isa < best; ++isa) {
            if (strcmp(settings->isa, isa_names[isa]) == 0)
                return (enum hkt__isa)isa;
        }
    }
    return (enum hkt__isa)best;
}

const char *hkt__isa_name(enum hkt__isa isa)
{
    return (unsigned)isa < HKT__ISA_COUNT ? isa_names[isa] : "?";
}

const struct hkt__kernels *hkt__kernels_get(enum hkt__isa isa)
{
    return isa_kernels[(unsigned)isa < HKT__ISA_COUNT ? isa : HKT__ISA_C];
}

hkt__reduce_fn *hkt__reduce_get(enum hkt_op op, enum hkt_dtype dtype, enum hkt__isa isa)
{
    if ((unsigned)op >= HKT_OP_COUNT || (unsigned)dtype >= HKT_DTYPE_COUNT)
        return NULL;
    return hkt__kernels_get(isa)->reduce[op][dtype];
}

hkt__spread_fn *hkt__spread_get(enum hkt_op op, enum hkt_dtype dtype, enum hkt__isa isa)
{
    if ((op != HKT_SUM && op != HKT_AVG) || (unsigned)dtype >= HKT_DTYPE_COUNT)
        return NULL;
    return hkt__kernels_get(isa)->spread_sum[dtype];
}

/** Where there are no vectors. */
static void copy_to_each(const struct hkt__spread *spread)
{
    for (int m = 0; m < spread->ndsts; m++)
        hkt__copy_loosely(spread->dsts[m], spread->srcs[0], spread->count, spread->reach == HKT__REACH_PAST);
}

hkt__spread_fn *hkt__spread_bytes_get(enum hkt__isa isa)
{
    hkt__spread_fn *kernel = hkt__kernels_get(isa)->spread_sum[HKT_UINT8]; /* a sum of one input is that input */

    return kernel != NULL ? kernel : copy_to_each;
}
