/* Choice of the kernels by store type and CPU; the scratch of a rank; tables of angles. */
#include "parallel/math_ops.h"

#include <math.h>
#include <string.h>

#include "parallel/fail.h"
#include "parallel/isa.h"

int hkt__isa_is_here(enum hkt__isa isa)
{
#ifndef HKT__NO_AVX
    __builtin_cpu_init();
    if (isa == HKT__ISA_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == HKT__ISA_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
               && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return isa == HKT__ISA_base;
}

enum hkt__isa hkt__isa_best(void)
{
    int isa = HKT__ISA_COUNT - 1;

    while (isa > 0 && !hkt__isa_is_here((enum hkt__isa)isa))
        isa--;
    return (enum hkt__isa)isa;
}

const char *hkt__isa_name(enum hkt__isa isa)
{
    static const char *const names[] = {
#define ISA_TEXT(isa) #isa,
        HKT__ISA_TABLE(ISA_TEXT)
#undef ISA_TEXT
    };

    return names[isa];
}

static const struct hkt__math_ops *table_of(enum hkt_dtype store, enum hkt__isa isa)
{
    static const struct {
        const struct hkt__math_ops *f32, *f64, *bf16;
    } tables[] = {
#define TABLE_ROW(isa) { &hkt__math_f32_##isa, &hkt__math_f64_##isa, &hkt__math_bf16_##isa },
        HKT__ISA_TABLE(TABLE_ROW)
#undef TABLE_ROW
    };

    switch (store) {
    case HKT_F32:
        return tables[isa].f32;
    case HKT_F64:
        return tables[isa].f64;
    case HKT_BF16:
        return tables[isa].bf16;
    default:
        return NULL;
    }
}

const struct hkt__math_ops *hkt__math_ops_of(enum hkt_dtype store)
{
    return table_of(store, hkt__isa_best());
}

const struct hkt__math_ops *hkt__math_ops_in(enum hkt_dtype store, const char *isa)
{
    for (int i = 0; i < HKT__ISA_COUNT; i++)
        if (strcmp(hkt__isa_name((enum hkt__isa)i), isa) == 0 && hkt__isa_is_here((enum hkt__isa)i))
            return table_of(store, (enum hkt__isa)i);
    return NULL;
}

enum hkt_status hkt__math_init(struct hkt__math *math, enum hkt_dtype store, struct hkt__memory *memory)
{
    const struct hkt__math_ops *ops = hkt__math_ops_of(store);

    if (ops == NULL)
        return hkt__parallel_fail(HKT_ERR_INVALID, "a model computes in float, double or bfloat16, not in %s",
                                  hkt_dtype_name(store));
    uint64_t pack_bytes = hkt__gemm_pack_bytes(ops->real_bytes);
    void *pack = NULL;
    enum hkt_status rc = pack_bytes > 0 ? hkt__memory_alloc(memory, HKT__MEMORY_BUFFER, pack_bytes, &pack) : HKT_OK;

    if (rc == HKT_OK)
        *math = (struct hkt__math){ .ops = ops, .memory = memory, .pack = pack };
    return rc;
}

void hkt__math_fini(struct hkt__math *math)
{
    hkt__memory_free(math->memory, math->scratch);
    hkt__memory_free(math->memory, math->pack);
    math->scratch = math->pack = NULL;
    math->scratch_bytes = 0;
}

enum hkt_status hkt__math_scratch(struct hkt__math *math, uint64_t bytes, void **out_scratch)
{
    if (math->scratch == NULL || math->scratch_bytes < bytes) {
        hkt__memory_free(math->memory, math->scratch); /* first: the two need not fit together */
        math->scratch = NULL;
        math->scratch_bytes = 0;
        enum hkt_status rc = hkt__memory_alloc(math->memory, HKT__MEMORY_BUFFER, bytes, &math->scratch);

        if (rc != HKT_OK)
            return rc;
        math->scratch_bytes = bytes;
    }
    *out_scratch = math->scratch;
    return HKT_OK;
}

void hkt__rotary_table(const struct hkt__math_ops *ops, void *cosines, void *sines, int64_t positions,
                       const struct hkt__rotary_angles *angles)
{
    const struct hkt__math_ops *real = hkt__math_ops_of(ops->real);
    int64_t half = angles->head_dim / 2;

    for (int64_t p = 0; p < positions; p++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)p * pow(angles->base, -2.0 * (double)i / (double)angles->head_dim);
            double cosine = cos(angle), sine = sin(angle);
            size_t at = (size_t)(p * half + i) * real->store_bytes;

            real->from_f64((char *)cosines + at, &cosine, 1);
            real->from_f64((char *)sines + at, &sine, 1);
        }
}
