/* See exact.h. */
#include "exact.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

struct format {
    int exponent_bits, mantissa_bits;
    bool has_infinity;
};

static bool find_format(enum hkt_dtype dtype, struct format *out_format)
{
    switch (dtype) {
    case HKT_F16: *out_format = (struct format){5, 10, true}; return true;
    case HKT_BF16: *out_format = (struct format){8, 7, true}; return true;
    case HKT_F8E4M3: *out_format = (struct format){4, 3, false}; return true;
    case HKT_F8E5M2: *out_format = (struct format){5, 2, true}; return true;
    case HKT_F32: *out_format = (struct format){8, 23, true}; return true;
    case HKT_F64: *out_format = (struct format){11, 52, true}; return true;
    default: *out_format = (struct format){0, 0, false}; return false; /* an integer */
    }
}

static bool is_float(enum hkt_dtype dtype)
{
    struct format format;

    return find_format(dtype, &format);
}

static bool is_signed(enum hkt_dtype dtype)
{
    return dtype == HKT_INT8 || dtype == HKT_INT16 || dtype == HKT_INT32 || dtype == HKT_INT64 || is_float(dtype);
}

double exact_decode(enum hkt_dtype dtype, uint64_t bits)
{
    struct format f;

    find_format(dtype, &f);
    const uint64_t mantissa = bits & ((1ull << f.mantissa_bits) - 1);
    const uint64_t exponent = bits >> f.mantissa_bits & ((1ull << f.exponent_bits) - 1);
    const uint64_t exponent_max = (1ull << f.exponent_bits) - 1;
    const double sign = bits >> (f.mantissa_bits + f.exponent_bits) & 1 ? -1.0 : 1.0;
    const int bias = (1 << (f.exponent_bits - 1)) - 1;

    if (exponent == exponent_max && f.has_infinity)
        return mantissa == 0 ? sign * INFINITY : NAN;
    if (exponent == exponent_max && mantissa == (1ull << f.mantissa_bits) - 1)
        return NAN;
    if (exponent == 0)
        return sign * ldexp((double)mantissa, 1 - bias - f.mantissa_bits);
    return sign * ldexp((double)(mantissa | 1ull << f.mantissa_bits), (int)exponent - bias - f.mantissa_bits);
}

/* The values of the positive bit patterns of the narrow formats, and one place more for the search. */
static double values_f16[(1 << 15) + 1], values_bf16[(1 << 15) + 1], values_f8e4m3[(1 << 7) + 1], values_f8e5m2[(1 << 7) + 1];
static pthread_once_t values_once = PTHREAD_ONCE_INIT;

static void make_values(void)
{
    for (uint64_t bits = 0; bits < 1 << 15; bits++) {
        values_f16[bits] = exact_decode(HKT_F16, bits);
        values_bf16[bits] = exact_decode(HKT_BF16, bits);
    }
    for (uint64_t bits = 0; bits < 1 << 7; bits++) {
        values_f8e4m3[bits] = exact_decode(HKT_F8E4M3, bits);
        values_f8e5m2[bits] = exact_decode(HKT_F8E5M2, bits);
    }
}

static const double *narrow_values(enum hkt_dtype dtype)
{
    pthread_once(&values_once, make_values);
    switch (dtype) {
    case HKT_F16: return values_f16;
    case HKT_BF16: return values_bf16;
    case HKT_F8E4M3: return values_f8e4m3;
    default: return values_f8e5m2;
    }
}

/** Positive finite values grow with their bits: bisect for the greatest one that is not above. */
static uint64_t encode_narrow(enum hkt_dtype dtype, double value)
{
    struct format f;

    find_format(dtype, &f);
    const uint64_t count = 1ull << (f.exponent_bits + f.mantissa_bits), sign = signbit(value) ? count : 0;
    const double magnitude = fabs(value), *values = narrow_values(dtype);
    uint64_t low = 0, high = count;

    while (high - low > 1) {
        const uint64_t middle = (low + high) / 2;

        if (values[middle] <= magnitude) /* false for NaN */
            low = middle;
        else
            high = middle;
    }
    const double below = magnitude - values[low], above = values[low + 1] - magnitude;

    if (above < below || (above == below && low % 2 == 1))
        low++;
    return sign | low;
}

uint64_t exact_encode(enum hkt_dtype dtype, double value)
{
    uint64_t bits = 0;

    if (dtype == HKT_F64) {
        memcpy(&bits, &value, 8);
    } else if (dtype == HKT_F32) {
        const float single = (float)value;

        memcpy(&bits, &single, 4);
    } else {
        bits = encode_narrow(dtype, value);
    }
    return bits;
}

/* ---- inputs ---- */

/** SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t mask_of(enum hkt_dtype dtype)
{
    const size_t bytes = hkt_dtype_size(dtype);

    return bytes == 8 ? UINT64_MAX : (1ull << 8 * bytes) - 1;
}

/** A value with which sums of nranks are exact: the format holds integers up to `exact`. With more ranks than that, so
 *  many of them, others at each element, contribute -1, 0 or 1, and the rest nothing. */
static double small_integer(const struct exact_case *c, int rank, int i, uint64_t random)
{
    struct format f;

    find_format(c->dtype, &f);
    const int exact = f.mantissa_bits > 20 ? 1 << 20 : 2 << f.mantissa_bits;
    const int most = exact / c->nranks < 1 ? 1 : exact / c->nranks;

    if ((rank + i) % c->nranks >= exact)
        return 0;
    return (double)((int64_t)(random % (2 * (uint64_t)most + 1)) - most);
}

static uint64_t float_input(const struct exact_case *c, int rank, int i, uint64_t random)
{
    if (c->kind == EXACT_PLAIN)
        return random & mask_of(c->dtype);
    if (c->kind == EXACT_BUILTIN && c->op == HKT_PROD)
        return exact_encode(c->dtype, (random & 8 ? -1.0 : 1.0) * ldexp(1.0, (int)(random % 3) - 1));
    if (c->kind == EXACT_BUILTIN && (c->op == HKT_MIN || c->op == HKT_MAX)) {
        while (!isfinite(exact_decode(c->dtype, random & mask_of(c->dtype))))
            random = mix(random);
        return random & mask_of(c->dtype);
    }
    return exact_encode(c->dtype, small_integer(c, rank, i, random));
}

/** Operations on truth values: any input but 0 counts as 1, also where one rank reduces alone. */
static bool is_logical(const struct exact_case *c)
{
    return c->kind == EXACT_BUILTIN && (c->dtype == HKT_BOOL || c->op >= HKT_LAND);
}

static uint64_t input_bits(const struct exact_case *c, int rank, int i)
{
    const uint64_t what = (uint64_t)c->dtype << 48 | (uint64_t)c->op << 40 | (uint64_t)c->kind << 36;
    const uint64_t random = mix(mix(c->seed ^ what) + (uint64_t)rank * 65536 + (uint64_t)i);

    if (is_float(c->dtype))
        return float_input(c, rank, i, random);
    /* Logical operations must meet zeros too, and truths other than 1. */
    if (is_logical(c) && random % 3 == 0)
        return 0;
    return random >> 8 & mask_of(c->dtype);
}

/* ---- results ---- */

static int64_t extend(enum hkt_dtype dtype, uint64_t bits)
{
    const int shift = 64 - 8 * (int)hkt_dtype_size(dtype);

    return is_signed(dtype) ? (int64_t)(bits << shift) >> shift : (int64_t)bits;
}

static bool is_less(enum hkt_dtype dtype, uint64_t a, uint64_t b)
{
    if (is_float(dtype)) {
        const double x = exact_decode(dtype, a), y = exact_decode(dtype, b);

        return x < y || (x == y && signbit(x) && !signbit(y)); /* -0 orders below +0 */
    }
    return is_signed(dtype) ? extend(dtype, a) < extend(dtype, b) : a < b;
}

static uint64_t add(enum hkt_dtype dtype, uint64_t a, uint64_t b)
{
    if (is_float(dtype))
        return exact_encode(dtype, exact_decode(dtype, a) + exact_decode(dtype, b));
    return (a + b) & mask_of(dtype);
}

static uint64_t multiply(enum hkt_dtype dtype, uint64_t a, uint64_t b)
{
    if (is_float(dtype))
        return exact_encode(dtype, exact_decode(dtype, a) * exact_decode(dtype, b));
    return a * b & mask_of(dtype);
}

static uint64_t combine(const struct exact_case *c, uint64_t a, uint64_t b)
{
    if (c->kind == EXACT_CALLBACK)
        return a + b + 6 * a * b;
    switch (c->kind == EXACT_BUILTIN ? c->op : HKT_SUM) {
    case HKT_PROD: return multiply(c->dtype, a, b);
    case HKT_MIN: return is_less(c->dtype, b, a) ? b : a;
    case HKT_MAX: return is_less(c->dtype, a, b) ? b : a;
    case HKT_BAND: return a & b;
    case HKT_BOR: return a | b;
    case HKT_BXOR: return a ^ b;
    case HKT_LAND: return a & b; /* truth values */
    case HKT_LOR: return a | b;
    case HKT_LXOR: return a ^ b;
    default: return add(c->dtype, a, b);
    }
}

/** Floats of at most 32 bits divide in f32. */
static uint64_t divide(enum hkt_dtype dtype, uint64_t bits, int n)
{
    if (dtype == HKT_F64)
        return exact_encode(dtype, exact_decode(dtype, bits) / n);
    if (is_float(dtype))
        return exact_encode(dtype, (double)((float)exact_decode(dtype, bits) / (float)n));
    if (is_signed(dtype))
        return (uint64_t)(extend(dtype, bits) / n) & mask_of(dtype);
    return bits / (uint64_t)n;
}

static uint64_t result_bits(const struct exact_case *c, int i)
{
    uint64_t scalar = 0, result = 0;
    unsigned char scalar_bytes[8];

    exact_scalar(c->dtype, scalar_bytes);
    memcpy(&scalar, scalar_bytes, 8);
    for (int r = 0; r < c->nranks; r++) {
        uint64_t x = input_bits(c, r, i);

        if (c->kind == EXACT_PREMULSUM)
            x = multiply(c->dtype, x, scalar);
        if (is_logical(c))
            x = x != 0;
        result = r == 0 ? x : combine(c, result, x);
    }
    return c->kind == EXACT_BUILTIN && c->op == HKT_AVG ? divide(c->dtype, result, c->nranks) : result;
}

void exact_scalar(enum hkt_dtype dtype, unsigned char out_scalar[8])
{
    const uint64_t bits = is_float(dtype) ? exact_encode(dtype, -1.0) : 3;

    memcpy(out_scalar, &bits, 8);
}

void exact_callback(void *out, const void *a, const void *b, size_t count, enum hkt_dtype dtype, void *arg)
{
    (void)dtype;
    for (size_t i = 0; i < count; i++) {
        uint64_t x, y;

        memcpy(&x, (const char *)a + 8 * i, 8);
        memcpy(&y, (const char *)b + 8 * i, 8);
        x = x + y + 6 * x * y;
        memcpy((char *)out + 8 * i, &x, 8);
    }
    atomic_fetch_add((_Atomic uint64_t *)arg, count);
}

/* ---- streams ---- */

void exact_make(struct exact *exact, const struct exact_case *c)
{
    const struct exact_case *old = &exact->made_for;

    if (exact->elem_bytes > 0 && old->dtype == c->dtype && old->op == c->op && old->kind == c->kind &&
        old->nranks == c->nranks && old->seed == c->seed)
        return;
    exact->made_for = *c;
    exact->elem_bytes = hkt_dtype_size(c->dtype);
    for (int i = 0; i < EXACT_PERIOD; i++) {
        const size_t at = (size_t)i * exact->elem_bytes;
        uint64_t bits;

        for (int r = 0; r < c->nranks; r++) {
            bits = input_bits(c, r, i);
            memcpy(exact->inputs[r] + at, &bits, exact->elem_bytes); /* little endian */
        }
        if (c->kind == EXACT_PLAIN)
            continue;
        bits = result_bits(c, i);
        memcpy(exact->result + at, &bits, exact->elem_bytes);
    }
}

void exact_write(const struct exact *exact, const unsigned char *stream, size_t first, size_t count, void *to)
{
    unsigned char *at = to;

    while (count > 0) {
        const size_t phase = first % EXACT_PERIOD, left = EXACT_PERIOD - phase, n = count < left ? count : left;

        memcpy(at, stream + phase * exact->elem_bytes, n * exact->elem_bytes);
        at += n * exact->elem_bytes;
        first += n;
        count -= n;
    }
}

size_t exact_differences(const struct exact *exact, const unsigned char *stream, size_t first, size_t count,
                         const void *at, size_t *out_where)
{
    const unsigned char *got = at;
    size_t wrong = 0;

    for (size_t done = 0; done < count;) {
        const size_t phase = (first + done) % EXACT_PERIOD, left = EXACT_PERIOD - phase;
        const size_t n = count - done < left ? count - done : left;

        for (size_t i = 0; i < n; i++) {
            /* Whole runs first: almost always equal. */
            if (i == 0 && memcmp(got + done * exact->elem_bytes, stream + phase * exact->elem_bytes,
                                 n * exact->elem_bytes) == 0)
                break;
            if (memcmp(got + (done + i) * exact->elem_bytes, stream + (phase + i) * exact->elem_bytes,
                       exact->elem_bytes) != 0 && wrong++ == 0)
                *out_where = done + i;
        }
        done += n;
    }
    return wrong;
}
