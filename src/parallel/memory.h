/* Counted memory of one rank: every buffer of training is of a class, and current and peak bytes are known for each, so that
 * a formula ("parameters take P/N + one bucket") can be compared with what was really held.
 *
 * Freed blocks may be kept for the next request of the same size (training asks for the same sizes every step); kept blocks
 * count as `kept`, not as in use. With kept_max 0 every block goes back at once, which is what address sanitizers want.
 * Invariant: used[c] is the sum of the sizes, as asked for, of the live blocks of class c. One thread uses one account. */
#ifndef HOCKET_PARALLEL_MEMORY_H
#define HOCKET_PARALLEL_MEMORY_H

#include <stdint.h>

#include "hocket/status.h"

/* X(name, text) */
#define HKT__MEMORY_TABLE(X)                                                                       \
    X(PARAM, "param")            /* parameters as the forward pass reads them */                   \
    X(GRAD, "grad")              /* gradients of the parameters in the parameter type */           \
    X(MAIN_GRAD, "main_grad")    /* gradients summed in the wide type */                           \
    X(OPTIMIZER, "optimizer")    /* master parameters and moments */                               \
    X(ACTIVATION, "activation")  /* saved by forward for backward, and their gradients */          \
    X(BUFFER, "buffer")          /* scratch of kernels */                                          \
    X(COMM, "comm")              /* staging of collectives: buckets, gathered units */

enum hkt__memory_class {
#define HKT__MEMORY_ENUM(name, text) HKT__MEMORY_##name,
    HKT__MEMORY_TABLE(HKT__MEMORY_ENUM)
#undef HKT__MEMORY_ENUM
    HKT__MEMORY_COUNT
};

#define HKT__MEMORY_SIZES_MAX 256 /* distinct sizes kept for reuse; more go back to the system */
#define HKT__MEMORY_ALIGN 64

struct hkt__memory_block;

struct hkt__memory {
    uint64_t used[HKT__MEMORY_COUNT];
    uint64_t peak[HKT__MEMORY_COUNT];     /* highest used[c] since hkt__memory_mark */
    uint64_t largest[HKT__MEMORY_COUNT];  /* largest single request since hkt__memory_mark */
    uint64_t used_all;
    uint64_t peak_all;                    /* highest sum over the classes, not the sum of their peaks */
    uint64_t kept;
    uint64_t kept_max;
    uint64_t calls;                       /* requests that had to go to the system */
    int64_t fail_at;                      /* test hook: the k-th request from now on fails; 0: none */
    struct hkt__memory_block *kept_of[HKT__MEMORY_SIZES_MAX];
};

void hkt__memory_init(struct hkt__memory *memory, uint64_t kept_max);
/** Gives back kept blocks. Live blocks stay valid but must be freed before: BUG status names a class that still holds some. */
HKT_NODISCARD enum hkt_status hkt__memory_fini(struct hkt__memory *memory);

/** `bytes` of memory aligned to HKT__MEMORY_ALIGN, contents undefined (alloc) or zero (zalloc). 0 bytes give a valid block.
 *  Owns     gives *out_data, released by hkt__memory_free of the same account
 *  Errors   NOMEM, naming class and bytes; *out_data untouched */
HKT_NODISCARD enum hkt_status hkt__memory_alloc(struct hkt__memory *memory, enum hkt__memory_class kind, uint64_t bytes,
                                                void **out_data);
HKT_NODISCARD enum hkt_status hkt__memory_zalloc(struct hkt__memory *memory, enum hkt__memory_class kind, uint64_t bytes,
                                                 void **out_data);
void hkt__memory_free(struct hkt__memory *memory, void *data); /* NULL is allowed */

/** Start measuring peaks anew from what is in use now. */
void hkt__memory_mark(struct hkt__memory *memory);
const char *hkt__memory_class_name(enum hkt__memory_class kind);

#endif
