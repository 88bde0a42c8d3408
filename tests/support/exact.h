/* Inputs of a reduction whose result is known to the last bit, whatever the order of its steps; independent of the
 * library's own arithmetic. Each rank's input is a stream of elements with period EXACT_PERIOD (a prime, so that a piece
 * that lands in the wrong place is wrong almost everywhere), pseudo-random by seed, type, operation and rank:
 *  integers take any bits (sums and products wrap), floats take values with which every partial result is exact:
 *  small integers for sums, powers of two for products, any finite value for min and max.
 * Averages are rounded once as docs/numerics.md says. Formats narrower than 32 bits are decoded by their definition and
 * encoded by search for the nearest value, ties to even. */
#ifndef HOCKET_TESTS_EXACT_H
#define HOCKET_TESTS_EXACT_H

#include <stdint.h>

#include <hocket/hocket.h>

#define EXACT_PERIOD 1021
#define EXACT_RANKS_MAX 20

/** EXACT_PLAIN: any bits, for collectives that move and do not reduce. */
enum exact_kind { EXACT_BUILTIN, EXACT_PLAIN, EXACT_PREMULSUM, EXACT_CALLBACK };

struct exact_case {
    enum hkt_dtype dtype;
    enum hkt_op op;          /* of EXACT_BUILTIN */
    enum exact_kind kind;
    int nranks;
    uint64_t seed;
};

/** The streams of all ranks, and of the result. */
struct exact {
    struct exact_case made_for;
    size_t elem_bytes;
    unsigned char inputs[EXACT_RANKS_MAX][EXACT_PERIOD * 8];
    unsigned char result[EXACT_PERIOD * 8];
};

/** Fill the streams; nothing is done when they are those of this case already. */
void exact_make(struct exact *exact, const struct exact_case *c);
/** Write count elements of a stream, from element `first` on. */
void exact_write(const struct exact *exact, const unsigned char *stream, size_t first, size_t count, void *to);
/** Elements that are not the stream's; *out_where is the first (undefined if none). */
size_t exact_differences(const struct exact *exact, const unsigned char *stream, size_t first, size_t count,
                         const void *at, size_t *out_where);

/** The scalar of EXACT_PREMULSUM: -1, or 3 where there is no sign. */
void exact_scalar(enum hkt_dtype dtype, unsigned char out_scalar[8]);
/** The operation of EXACT_CALLBACK, on uint64: a + b + 6 a b, commutative and associative modulo 2^64. *arg counts
 *  elements (an _Atomic uint64_t). */
void exact_callback(void *out, const void *a, const void *b, size_t count, enum hkt_dtype dtype, void *arg);

/** Bits to value and back, for formats of at most 16 bits, f32 and f64; encode rounds to nearest even. */
double exact_decode(enum hkt_dtype dtype, uint64_t bits);
uint64_t exact_encode(enum hkt_dtype dtype, double value);

#endif
