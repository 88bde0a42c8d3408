/* A sum that depends on no order: a fixed-point number wide enough for every double, held in digits of 32 bits. Adding is
 * exact, so gradient norms and mean losses have the same bits for every layout, shard boundary and order of ranks; digits
 * of several ranks may be added element-wise (an all-reduce SUM of HKT__EXACT_WORDS int64).
 * Squares of f32 are exact too; squares of f64 are rounded once each, before the sum.
 * Source: Kulisch's long accumulator (Kulisch, "Computer arithmetic and validity", 2nd ed. 2013, ch. 8). */
#ifndef HOCKET_PARALLEL_EXACT_H
#define HOCKET_PARALLEL_EXACT_H

#include <stdint.h>
#include <string.h>

#define HKT__EXACT_DIGITS 68 /* 2^-1088 .. 2^1088: every finite double; see exact.c for what is below */
#define HKT__EXACT_WORDS (HKT__EXACT_DIGITS + 1)

/** digit[i] counts units of 2^(32 i - 1088). After hkt__exact_settle each |digit| < 2^32, so up to 2^30 sums may be added. */
struct hkt__exact {
    int64_t digit[HKT__EXACT_DIGITS];
    int64_t not_finite;   /* infinities and NaNs met; they are in no digit */
};

#define HKT__EXACT_PUTS_MAX ((int64_t)1 << 30) /* that many terms may be put before the sum must be settled */

/** Add one term without carrying: for loops of at most HKT__EXACT_PUTS_MAX terms that settle afterwards. */
static inline void hkt__exact_put(struct hkt__exact *sum, double x)
{
    uint64_t bits;

    memcpy(&bits, &x, sizeof bits);
    unsigned exponent = (unsigned)(bits >> 52) & 0x7ffu;

    if (exponent == 0x7ffu) {
        sum->not_finite++;
        return;
    }
    uint64_t mantissa = (bits & 0xfffffffffffffu) | (uint64_t)(exponent != 0) << 52;
    unsigned place = exponent + (exponent == 0) + 13; /* of the last bit: 2^(exponent - 1075) in units of 2^-1088 */
    unsigned shift = place % 32;
    uint64_t low = mantissa << shift, high = mantissa >> 32 >> (32 - shift);
    int64_t *digit = &sum->digit[place / 32], sign = bits >> 63 ? -1 : 1;

    digit[0] += sign * (int64_t)(low & 0xffffffffu);
    digit[1] += sign * (int64_t)(low >> 32);
    digit[2] += sign * (int64_t)high;
}

void hkt__exact_clear(struct hkt__exact *sum);
void hkt__exact_add(struct hkt__exact *sum, double x);
/** Carry, so that digits are small again. Every call of the kernels does so; call it before digits of ranks are added. */
void hkt__exact_settle(struct hkt__exact *sum);
/** Add another sum: the same as adding all its terms. Both settled before; settled afterwards. */
void hkt__exact_merge(struct hkt__exact *sum, const struct hkt__exact *other);
/** The value, rounded to nearest up to one unit in the last place; NaN when not_finite. */
double hkt__exact_value(const struct hkt__exact *sum);

#endif
