/* Fixed point from 2^-1088 on: a double's last bit is 2^-1074 or more, its first below 2^1024, so 64 bits are left above
 * for the sum of 2^64 of the largest. */
#include "parallel/exact.h"

#include <math.h>
#include <string.h>

void hkt__exact_clear(struct hkt__exact *sum)
{
    memset(sum, 0, sizeof *sum);
}

void hkt__exact_add(struct hkt__exact *sum, double x)
{
    hkt__exact_put(sum, x);
    hkt__exact_settle(sum);
}

/* Afterwards all digits are in [0, 2^32), except the last, which carries the sign. */
void hkt__exact_settle(struct hkt__exact *sum)
{
    int64_t carry = 0;

    for (int i = 0; i < HKT__EXACT_DIGITS - 1; i++) {
        int64_t digit = sum->digit[i] + carry;
        int64_t low = digit & 0xffffffff;

        carry = (digit - low) / ((int64_t)1 << 32);
        sum->digit[i] = low;
    }
    sum->digit[HKT__EXACT_DIGITS - 1] += carry;
}

void hkt__exact_merge(struct hkt__exact *sum, const struct hkt__exact *other)
{
    for (int i = 0; i < HKT__EXACT_DIGITS; i++)
        sum->digit[i] += other->digit[i];
    sum->not_finite += other->not_finite;
    hkt__exact_settle(sum);
}

double hkt__exact_value(const struct hkt__exact *sum)
{
    struct hkt__exact size = *sum;
    double value = 0;
    int top = HKT__EXACT_DIGITS - 1;

    if (sum->not_finite != 0)
        return NAN;
    hkt__exact_settle(&size);
    int is_negative = size.digit[top] < 0;

    if (is_negative) {
        for (int i = 0; i < HKT__EXACT_DIGITS; i++)
            size.digit[i] = -size.digit[i];
        hkt__exact_settle(&size);
    }
    while (top > 0 && size.digit[top] == 0)
        top--;
    for (int i = top > 3 ? top - 3 : 0; i <= top; i++) /* the digits below weigh less than 2^-96 of the first */
        value += ldexp((double)size.digit[i], 32 * i - 1088);
    return is_negative ? -value : value;
}
