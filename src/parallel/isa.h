/* What the per-instruction-set sources export, and how it is named: each is compiled with -DHKT__ISA=<set>. */
#ifndef HOCKET_PARALLEL_ISA_H
#define HOCKET_PARALLEL_ISA_H

#include "parallel/gemm.h"
#include "parallel/math_ops.h"

#define HKT__ISA_PASTE(prefix, isa) prefix##isa
#define HKT__ISA_EXPAND(prefix, isa) HKT__ISA_PASTE(prefix, isa)
#define HKT__ISA_NAME(prefix) HKT__ISA_EXPAND(prefix, HKT__ISA)

/* Blocks of the own matrix product, all in the second-level cache. A longer KC writes C less often. */
#define HKT__GEMM_MC 96
#define HKT__GEMM_KC 384
#define HKT__GEMM_NC 768

/** pack: room for HKT__GEMM_KC * (HKT__GEMM_MC + HKT__GEMM_NC) elements, aligned to 64 bytes. */
struct hkt__gemm_own {
    void (*f32)(const struct hkt__gemm *gemm, void *pack);
    void (*f64)(const struct hkt__gemm *gemm, void *pack);
};

/* X(set): the sets of this build. */
#ifndef HKT__NO_AVX
#define HKT__ISA_TABLE(X) X(base) X(avx2) X(avx512)
#else
#define HKT__ISA_TABLE(X) X(base)
#endif

#define HKT__ISA_DECLARE(isa)                                                                      \
    extern const struct hkt__gemm_own hkt__gemm_own_##isa;                                         \
    extern const struct hkt__math_ops hkt__math_f32_##isa, hkt__math_f64_##isa, hkt__math_bf16_##isa;
HKT__ISA_TABLE(HKT__ISA_DECLARE)

enum hkt__isa {
#define HKT__ISA_ENUM(isa) HKT__ISA_##isa,
    HKT__ISA_TABLE(HKT__ISA_ENUM)
#undef HKT__ISA_ENUM
    HKT__ISA_COUNT
};

/** Whether this CPU has the set. */
int hkt__isa_is_here(enum hkt__isa isa);
/** The best one. */
enum hkt__isa hkt__isa_best(void);
const char *hkt__isa_name(enum hkt__isa isa);

#endif
