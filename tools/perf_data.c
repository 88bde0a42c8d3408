/* Test data whose exact result does not depend on the order of summation, and its check by equality.
 *
 * Every rank's input repeats a pattern of PERF_PATTERN elements of small integers, chosen so that each partial result of
 * the operation is exact in the type; the expected result then repeats too, and a check is a comparison of memory. Only an
 * average may round, once, as docs/numerics.md says: the expected value is rounded likewise. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "perf.h"

/** Exponent and mantissa bits of the floats; 0 exponent bits: an integer. */
static void float_format(enum hkt_dtype dtype, int *out_exponent, int *out_mantissa)
{
    static const struct {
        enum hkt_dtype dtype;
        int exponent, mantissa;
    } formats[] = {{HKT_F16, 5, 10}, {HKT_BF16, 8, 7}, {HKT_F8E4M3, 4, 3}, {HKT_F8E5M2, 5, 2}, {HKT_F32, 8, 23},
                   {HKT_F64, 11, 52}};

    *out_exponent = *out_mantissa = 0;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (formats[i].dtype == dtype) {
            *out_exponent = formats[i].exponent;
            *out_mantissa = formats[i].mantissa;
        }
    }
}

/** A double as a float of the given format, rounded to nearest even; for normal values and zero, all the data here. */
static uint64_t encode_float(double value, int exponent_bits, int mantissa_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const uint64_t sign = value < 0 ? 1ull << (exponent_bits + mantissa_bits) : 0;
    int exponent;

    if (value == 0)
        return 0;
    const double fraction = frexp(fabs(value), &exponent); /* in [0.5, 1) */
    const uint64_t mantissa = (uint64_t)nearbyint(ldexp(fraction, mantissa_bits + 1));

    /* The hidden bit, and a carry out of rounding, add to the exponent field by themselves. */
    return sign | (((uint64_t)(exponent - 2 + bias) << mantissa_bits) + mantissa);
}

static void store(unsigned char *at, enum hkt_dtype dtype, double value)
{
    int exponent_bits, mantissa_bits;
    uint64_t bits;

    float_format(dtype, &exponent_bits, &mantissa_bits);
    bits = exponent_bits > 0 ? encode_float(value, exponent_bits, mantissa_bits) : (uint64_t)(int64_t)value;
    memcpy(at, &bits, hkt_dtype_size(dtype)); /* little endian, as all that hocket runs on */
}

/** Input i of rank r. Sums stay within the integers the type holds exactly: 8 for f8e5m2, 16 for f8e4m3, 256 for bf16. */
static double input_value(enum hkt_dtype dtype, enum hkt_op op, int nranks, int r, int i)
{
    int exponent_bits, mantissa_bits;

    float_format(dtype, &exponent_bits, &mantissa_bits);
    const int exact = exponent_bits > 0 ? (mantissa_bits > 20 ? 1 << 20 : 2 << mantissa_bits) : 100;
    const int most = exact / nranks;

    if (dtype == HKT_BOOL)
        return (i * 5 + r * 3) % 7 < 3;
    switch (op) {
    case HKT_SUM:
    case HKT_AVG:
        if (most >= 2)
            return (i * 3 + r * 5) % (most < 13 ? most + 1 : 13);
        return i % nranks == r || (i + 1) % nranks == r;
    case HKT_PROD:
        return i % nranks == r ? 2 + i % 2 : 1;
    case HKT_LAND:
    case HKT_LOR:
    case HKT_LXOR:
        return (i * 5 + r * 3) % 7 < 4 ? 0 : 1 + i % 3;
    default:
        return (i * 7 + r * 5) % 8;
    }
}

static double combine(enum hkt_op op, double a, double b)
{
    const int64_t x = (int64_t)a, y = (int64_t)b;

    switch (op) {
    case HKT_PROD: return a * b;
    case HKT_MIN: return a < b ? a : b;
    case HKT_MAX: return a > b ? a : b;
    case HKT_BAND: return (double)(x & y);
    case HKT_BOR: return (double)(x | y);
    case HKT_BXOR: return (double)(x ^ y);
    case HKT_LAND: return (double)(x & y); /* truth values */
    case HKT_LOR: return (double)(x | y);
    case HKT_LXOR: return (double)(x ^ y);
    default: return a + b;
    }
}

static bool is_integer(enum hkt_dtype dtype)
{
    int exponent_bits, mantissa_bits;

    float_format(dtype, &exponent_bits, &mantissa_bits);
    return exponent_bits == 0;
}

void perf_make_patterns(struct perf_rank *rank, const struct perf_case *c)
{
    const size_t bytes = hkt_dtype_size(c->dtype);
    const int n = rank->nranks;

    for (int i = 0; i < PERF_PATTERN; i++) {
        double result = 0;

        for (int r = 0; r < n; r++) {
            double value = input_value(c->dtype, c->op, n, r, i);

            store(rank->inputs + ((size_t)r * PERF_PATTERN + (size_t)i) * bytes, c->dtype, value);
            if (c->op == HKT_LAND || c->op == HKT_LOR || c->op == HKT_LXOR)
                value = value != 0;
            result = r == 0 ? value : combine(c->op, result, value);
        }
        if (c->op == HKT_AVG)
            result = is_integer(c->dtype) ? trunc(result / n) : result / n;
        store(rank->expected + (size_t)i * bytes, c->dtype, result);
    }
}

void perf_make_counts(struct perf_rank *rank, const struct perf_case *c)
{
    const int n = rank->nranks;
    size_t sent = 0, received = 0, packed = 0;

    /* Pair (r, j) moves count * ((r + j) mod 3) elements: 0, 1 or 2 times count, uneven and sometimes nothing. */
    for (int j = 0; j < n; j++) {
        const size_t to = c->count * (size_t)((rank->rank + j) % 3), own = c->count * (size_t)(j % 3);

        if (c->coll == HKT_ALL_TO_ALL_V) {
            rank->counts[j] = rank->peer_counts[j] = to; /* symmetric in r and j */
            rank->displs[j] = sent;
            rank->peer_displs[j] = received;
            sent += to;
            received += to;
        } else {
            rank->counts[j] = own;
            rank->displs[j] = packed;
            packed += own;
        }
    }
}

void perf_extent(const struct perf_rank *rank, const struct perf_case *c, size_t *out_send, size_t *out_recv)
{
    const size_t n = (size_t)rank->nranks, count = c->count;
    const bool is_root = rank->rank == c->root;
    size_t total = 0;

    for (int j = 0; j < rank->nranks; j++)
        total += rank->counts[j];
    *out_send = *out_recv = count;
    switch (c->coll) {
    case HKT_REDUCE_SCATTER: *out_send = n * count; break;
    case HKT_ALL_GATHER: *out_recv = n * count; break;
    case HKT_ALL_TO_ALL: *out_send = *out_recv = n * count; break;
    case HKT_GATHER: *out_recv = is_root ? n * count : 0; break;
    case HKT_SCATTER: *out_send = is_root ? n * count : 0; break;
    case HKT_BROADCAST: *out_send = is_root ? count : 0; break;
    case HKT_REDUCE: *out_recv = is_root ? count : 0; break;
    case HKT_BARRIER: *out_send = *out_recv = 0; break;
    case HKT_ALL_GATHER_V: *out_send = rank->counts[rank->rank]; *out_recv = total; break;
    case HKT_REDUCE_SCATTER_V: *out_send = total; *out_recv = rank->counts[rank->rank]; break;
    case HKT_ALL_TO_ALL_V: *out_send = *out_recv = total; break;
    default: break;
    }
}

/** Repeat a pattern over count elements, beginning at phase `first`. */
static void repeat(unsigned char *to, const unsigned char *pattern, size_t first, size_t count, size_t elem_bytes)
{
    while (count > 0) {
        const size_t phase = first % PERF_PATTERN, left = PERF_PATTERN - phase, n = count < left ? count : left;

        memcpy(to, pattern + phase * elem_bytes, n * elem_bytes);
        to += n * elem_bytes;
        first += n;
        count -= n;
    }
}

/** Elements that differ from the repeated pattern. */
static int64_t differences(const unsigned char *at, const unsigned char *pattern, size_t first, size_t count,
                           size_t elem_bytes, size_t *out_where)
{
    int64_t wrong = 0;

    for (size_t done = 0; done < count;) {
        const size_t phase = (first + done) % PERF_PATTERN, left = PERF_PATTERN - phase;
        const size_t n = count - done < left ? count - done : left;

        if (memcmp(at + done * elem_bytes, pattern + phase * elem_bytes, n * elem_bytes) != 0) {
            for (size_t i = 0; i < n; i++) {
                if (memcmp(at + (done + i) * elem_bytes, pattern + (phase + i) * elem_bytes, elem_bytes) == 0)
                    continue;
                if (wrong++ == 0)
                    *out_where = done + i;
            }
        }
        done += n;
    }
    return wrong;
}

static const unsigned char *input_of(const struct perf_rank *rank, int r, size_t elem_bytes)
{
    return rank->inputs + (size_t)r * PERF_PATTERN * elem_bytes;
}

/** Where this rank's input begins in the receive buffer when in place, in elements. */
static size_t in_place_offset(const struct perf_rank *rank, const struct perf_case *c)
{
    switch (c->coll) {
    case HKT_ALL_GATHER:
    case HKT_GATHER:
        return (size_t)rank->rank * c->count;
    case HKT_ALL_GATHER_V:
        return rank->displs[rank->rank];
    default:
        return 0;
    }
}

void perf_fill(struct perf_rank *rank, const struct perf_case *c)
{
    const size_t elem_bytes = hkt_dtype_size(c->dtype);
    unsigned char *input = rank->send;
    size_t send, recv;

    perf_extent(rank, c, &send, &recv);
    memset(rank->recv, 0xa5, (recv > send ? recv : send) * elem_bytes);
    if (c->in_place)
        input = rank->recv + in_place_offset(rank, c) * elem_bytes;
    repeat(input, input_of(rank, rank->rank, elem_bytes), 0, send, elem_bytes);
}

/** Part i of the result: which pattern, from which phase, how long. */
struct part {
    const unsigned char *pattern;
    size_t first, count, at;
};

static struct part result_part(const struct perf_rank *rank, const struct perf_case *c, int i, size_t elem_bytes)
{
    const size_t count = c->count, me = (size_t)rank->rank;
    struct part part = {rank->expected, 0, count, 0};

    switch (c->coll) {
    case HKT_REDUCE_SCATTER:
        part.first = me * count;
        break;
    case HKT_REDUCE_SCATTER_V:
        part.first = rank->displs[me];
        part.count = rank->counts[me];
        break;
    case HKT_BROADCAST:
        part.pattern = input_of(rank, c->root, elem_bytes);
        break;
    case HKT_SCATTER:
        part = (struct part){input_of(rank, c->root, elem_bytes), me * count, count, 0};
        break;
    case HKT_ALL_GATHER:
    case HKT_GATHER:
        part = (struct part){input_of(rank, i, elem_bytes), 0, count, (size_t)i * count};
        break;
    case HKT_ALL_GATHER_V:
        part = (struct part){input_of(rank, i, elem_bytes), 0, rank->counts[i], rank->displs[i]};
        break;
    case HKT_ALL_TO_ALL:
        part = (struct part){input_of(rank, i, elem_bytes), me * count, count, (size_t)i * count};
        break;
    case HKT_ALL_TO_ALL_V:
        part = (struct part){input_of(rank, i, elem_bytes), 0, rank->peer_counts[i], rank->peer_displs[i]};
        /* Rank i's blocks before mine: count * sum of (i + j) mod 3 over j < me. */
        for (size_t j = 0; j < me; j++)
            part.first += count * (((size_t)i + j) % 3);
        break;
    case HKT_SEND_RECV:
        part.pattern = input_of(rank, (rank->rank + rank->nranks - 1) % rank->nranks, elem_bytes);
        break;
    default:
        break;
    }
    return part;
}

static int result_parts(const struct perf_rank *rank, const struct perf_case *c)
{
    const bool is_root = rank->rank == c->root;

    switch (c->coll) {
    case HKT_BARRIER: return 0;
    case HKT_REDUCE: return is_root;
    case HKT_GATHER: return is_root ? rank->nranks : 0;
    case HKT_ALL_GATHER:
    case HKT_ALL_GATHER_V:
    case HKT_ALL_TO_ALL:
    case HKT_ALL_TO_ALL_V: return rank->nranks;
    default: return 1;
    }
}

int64_t perf_check(struct perf_rank *rank, const struct perf_case *c, char *out_text, size_t text_bytes)
{
    const size_t elem_bytes = hkt_dtype_size(c->dtype);
    const unsigned char *result = rank->recv;
    int64_t wrong = 0;

    /* In place, the result of these lies in the middle of the buffer that held the input. */
    if (c->in_place && (c->coll == HKT_REDUCE_SCATTER || (c->coll == HKT_SCATTER && rank->rank == c->root)))
        result += (size_t)rank->rank * c->count * elem_bytes;
    if (c->in_place && c->coll == HKT_REDUCE_SCATTER_V)
        result += rank->displs[rank->rank] * elem_bytes;
    for (int i = 0; i < result_parts(rank, c); i++) {
        const struct part part = result_part(rank, c, i, elem_bytes);
        size_t where = 0;
        const int64_t n = differences(result + part.at * elem_bytes, part.pattern, part.first, part.count, elem_bytes,
                                      &where);

        if (n > 0 && wrong == 0)
            snprintf(out_text, text_bytes, "rank %d: %s of %s: element %zu of part %d is wrong", rank->rank,
                     hkt_coll_name(c->coll), hkt_dtype_name(c->dtype), where, i);
        wrong += n;
    }
    return wrong;
}

enum hkt_status perf_upload(struct perf_rank *rank)
{
    enum hkt_status rc = HKT_OK;

    if (rank->far_send != NULL)
        rc = hkt_device_copy(rank->far_send, rank->send, rank->buffer_bytes, rank->device);
    if (rc == HKT_OK && rank->far_recv != NULL)
        rc = hkt_device_copy(rank->far_recv, rank->recv, rank->buffer_bytes, rank->device);
    return rc;
}

enum hkt_status perf_download(struct perf_rank *rank)
{
    return rank->far_recv != NULL ? hkt_device_copy(rank->recv, rank->far_recv, rank->buffer_bytes, rank->device) : HKT_OK;
}
