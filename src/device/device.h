/* Work on memory: reduce, copy, scale, convert. The plain C version (kernels_c.c) is the definition; the vector
 * versions (kernels_vec.h, compiled once per instruction set) give the same bits. Memory of the host; that of
 * devices is kernels/kernels.h's. Nothing here allocates, fails or keeps state; any thread may call anything. */
#ifndef HOCKET_DEVICE_DEVICE_H
#define HOCKET_DEVICE_DEVICE_H

#include <stddef.h>

#include "hocket/coll.h"
#include "hocket/types.h"

/** dst[i] = srcs[0][i] op srcs[1][i] op ... op srcs[nsrcs-1][i], i < count, nsrcs >= 1, folded left to right. dst
 *  may be any one of srcs (element by element); no other overlap. No alignment is required. nsrcs == 1 copies,
 *  but logical operations make the one source 0 or 1.
 *  Integers  wrap; logical operations yield 0 or 1; AVG folds like SUM (hkt__divide divides at the end).
 *  Floats    16- and 8-bit ones accumulate in f32 and round once, at the end. A NaN result is always the quiet
 *            positive NaN without payload, so a op b and b op a agree bit for bit. MIN and MAX: NaN if any input is
 *            NaN, -0 < +0; so their result does not depend on the order of the inputs at all.
 *  bool      any byte but 0 counts as true, the result is 0 or 1; SUM, PROD and AVG are not defined (hkt_op_check). */
typedef void hkt__reduce_fn(void *dst, const void *const *srcs, int nsrcs, size_t count);

/** Where the data of a spread are: in the core's own caches; beyond them, so that lines are asked for ahead of their use; there, and results
 *  go past the caches (if all dsts lie at one distance from a line's start; visible to other threads by the next release after
 *  hkt__stores_settle). */
enum hkt__reach { HKT__REACH_CACHED, HKT__REACH_BEYOND, HKT__REACH_PAST };

/** What a kernel that stores one result to several places gets. */
struct hkt__spread {
    char *const *dsts;
    const void *const *srcs;
    int ndsts, nsrcs; /* >= 1 each */
    size_t count;     /* elements of each */
    enum hkt__reach reach;
};

/** dsts[m][i] = srcs[0][i] + ... + srcs[nsrcs-1][i] for each m: the bits of the reduce kernel, but that a NaN of a single source becomes
 *  the one of results. A dst may be one of srcs (element by element); no other overlap. No alignment is required. */
typedef void hkt__spread_fn(const struct hkt__spread *spread);

enum hkt__isa { HKT__ISA_C, HKT__ISA_SSE2, HKT__ISA_AVX2, HKT__ISA_AVX512, HKT__ISA_COUNT };

/** Best instruction set this CPU and OS allow, capped by HOCKET_ISA (ignored when the settings do not load: whoever
 *  starts the library reports that). Some 10 ns: ask once, then keep it. */
enum hkt__isa hkt__isa_best(void);
/** As HOCKET_ISA writes it: "c", "sse2", "avx2", "avx512"; "?" for a value out of range. */
const char *hkt__isa_name(enum hkt__isa isa);

/** Kernel for a built-in op on a dtype; NULL when hkt_op_check refuses the pair. isa: at most this one, and at most
 *  what the build has; it must not exceed hkt__isa_best of this CPU. A table look-up. */
hkt__reduce_fn *hkt__reduce_get(enum hkt_op op, enum hkt_dtype dtype, enum hkt__isa isa);

/** Kernel that adds and stores to several places; NULL for other operations, 8-bit floats and where there are no vectors. isa: as above. */
hkt__spread_fn *hkt__spread_get(enum hkt_op op, enum hkt_dtype dtype, enum hkt__isa isa);
/** The one that copies `count` bytes of one source to several places. Never NULL. */
hkt__spread_fn *hkt__spread_bytes_get(enum hkt__isa isa);

/* From here on stores that bypass the caches pay. Measured on a 2-core Sapphire Rapids guest (2 MiB L2, shared L3),
 * 2026: they gain 20-40 % on copies that go to DRAM, break even at about 4 MiB, and lose 2.5-3.5x on buffers that
 * fit L2. */
#define HKT__NT_BYTES ((size_t)4 << 20)

/** memcpy for collectives: past the caches when `streaming` (the caller moves HKT__NT_BYTES or more in all, and nobody
 *  reads the destination soon), visible to other threads by the caller's next release as any store; otherwise memcpy. No overlap,
 *  except dst == src, which does nothing. */
void hkt__copy_bytes(void *dst, const void *src, size_t bytes, int streaming);
/** The same in several goes: what streams may become visible later than stores that follow, until it is settled. */
void hkt__copy_loosely(void *dst, const void *src, size_t bytes, int streaming);
void hkt__stores_settle(void);

/** x[i] /= n for AVG, n >= 1: floats divide (f16, bf16, f8 in f32, rounded once), integers divide and truncate toward
 *  zero. bool is left alone. */
void hkt__divide(void *x, size_t count, enum hkt_dtype dtype, int n);

/** dst[i] = src[i] * *scalar for the pre-multiplied sum; dst may be src. f16, bf16 and f8 multiply in f32 and round
 *  once, integers wrap. Not for bool. */
void hkt__premultiply(void *dst, const void *src, size_t count, enum hkt_dtype dtype, const void *scalar);

/** Scalar conversions of f16, bf16, f8e4m3, f8e5m2 and f32, which define the small formats: to_f32 is exact (a NaN
 *  becomes the quiet positive one); from_f32 rounds to nearest, ties to even, subnormals included. Beyond the
 *  largest finite value f16, bf16 and f8e5m2 give infinity; f8e4m3, which has none, gives NaN. x needs no
 *  alignment. */
float hkt__to_f32(const void *x, enum hkt_dtype dtype);
void hkt__from_f32(void *x, enum hkt_dtype dtype, float value);

#endif
