/* The flat buffer: tensors end to end, buckets, shards. */
#include <stdbool.h>
#include <stddef.h>

#include "hocket/shard.h"
#include "parallel/alloc.h"
#include "parallel/fail.h"

static int64_t round_up(int64_t x, int64_t unit)
{
    return (x + unit - 1) / unit * unit;
}

static enum hkt_status check(const struct hkt_flat_opts *opts)
{
    int64_t total = 0;

    if (opts == NULL || opts->ntensors < 0 || (opts->counts == NULL && opts->ntensors > 0))
        return hkt__parallel_fail(HKT_ERR_INVALID, "hkt_flat_create: opts and counts must not be NULL");
    if (opts->shards < 1 || opts->align < 1 || opts->align > INT32_MAX || opts->bucket_elems < 0)
        return hkt__parallel_fail(HKT_ERR_INVALID, "hkt_flat_create: %d shards, align %lld, buckets of %lld elements",
                                  opts->shards, (long long)opts->align, (long long)opts->bucket_elems);
    for (int i = 0; i < opts->ntensors; i++)
        if (opts->counts[i] < 0 || __builtin_add_overflow(total, opts->counts[i], &total) || total > INT64_MAX / 2)
            return hkt__parallel_fail(HKT_ERR_INVALID, "hkt_flat_create: tensor %d has %lld elements", i,
                                      (long long)opts->counts[i]);
    for (int i = 1; opts->units != NULL && i < opts->ntensors; i++)
        if (opts->units[i] < opts->units[i - 1])
            return hkt__parallel_fail(HKT_ERR_INVALID,
                                      "hkt_flat_create: tensor %d is of unit %d, the one before of %d; units must not "
                                      "descend",
                                      i, opts->units[i], opts->units[i - 1]);
    if (opts->bucket_elems != 0 && total / opts->bucket_elems >= INT32_MAX)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%lld elements in buckets of %lld are too many buckets",
                                  (long long)total, (long long)opts->bucket_elems);
    return HKT_OK;
}

/* Is tensor i the last of its unit in order of use, the first in the buffer? */
static bool begins_unit(const struct hkt_flat_opts *opts, int i)
{
    return i == opts->ntensors - 1 || (opts->units != NULL && opts->units[i] != opts->units[i + 1]);
}

static void place_tensors(const struct hkt_flat_opts *opts, struct hkt_flat *flat)
{
    const int64_t whole = opts->shards * opts->align;
    int64_t at = 0;

    for (int i = opts->ntensors - 1; i >= 0; i--) {
        if (begins_unit(opts, i))
            at = round_up(at, opts->unit_buckets ? whole : opts->align);
        flat->first[i] = at;
        flat->count[i] = opts->counts[i];
        flat->used += opts->counts[i];
        at += opts->counts[i];
    }
    flat->padded = round_up(at, whole);
}

/* Where buckets begin, out_first[number of buckets]; NULL: just count them. */
static int cut_buckets(const struct hkt_flat_opts *opts, const struct hkt_flat *flat, int64_t *out_first)
{
    const int64_t whole = opts->shards * opts->align, wanted = opts->bucket_elems / whole * whole;
    int64_t begin = 0;
    int count = 0;

    for (int i = opts->ntensors - 1; i >= 0; i--) {
        if (i > 0 && !(opts->unit_buckets && begins_unit(opts, i - 1)))
            continue;
        const int64_t end = i == 0 ? flat->padded : flat->first[i - 1];
        const int64_t size = opts->bucket_elems == 0 ? end - begin : wanted < whole ? whole : wanted;

        for (; begin < end; begin += size, count++)
            if (out_first != NULL)
                out_first[count] = begin;
        begin = end;
    }
    return count;
}

enum hkt_status hkt_flat_create(const struct hkt_flat_opts *opts, struct hkt_flat **out_flat)
{
    const enum hkt_status rc = check(opts);

    if (rc < 0)
        return rc;
    struct hkt_flat *flat = hkt__parallel_calloc(1, sizeof *flat);

    if (flat != NULL) {
        flat->first = hkt__parallel_calloc((size_t)opts->ntensors, sizeof *flat->first);
        flat->count = hkt__parallel_calloc((size_t)opts->ntensors, sizeof *flat->count);
    }
    if (flat != NULL && flat->first != NULL && flat->count != NULL) {
        flat->ntensors = opts->ntensors;
        flat->shards = opts->shards;
        flat->align = opts->align;
        place_tensors(opts, flat);
        flat->nbuckets = cut_buckets(opts, flat, NULL);
        flat->bucket_first = hkt__parallel_calloc((size_t)flat->nbuckets + 1, sizeof *flat->bucket_first);
    }
    if (flat == NULL || flat->bucket_first == NULL) {
        hkt_flat_destroy(flat);
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for the layout of %d tensors", opts->ntensors);
    }
    cut_buckets(opts, flat, flat->bucket_first);
    flat->bucket_first[flat->nbuckets] = flat->padded;
    *out_flat = flat;
    return HKT_OK;
}

void hkt_flat_destroy(struct hkt_flat *flat)
{
    if (flat == NULL)
        return;
    hkt__parallel_free(flat->first);
    hkt__parallel_free(flat->count);
    hkt__parallel_free(flat->bucket_first);
    hkt__parallel_free(flat);
}

struct hkt_range hkt_flat_bucket(const struct hkt_flat *flat, int bucket)
{
    const int64_t first = flat->bucket_first[bucket];
    const struct hkt_range range = { first, flat->bucket_first[bucket + 1] - first };

    return range;
}

struct hkt_range hkt_flat_shard(const struct hkt_flat *flat, int bucket, int shard)
{
    struct hkt_range range = hkt_flat_bucket(flat, bucket);

    range.count /= flat->shards;
    range.first += shard * range.count;
    return range;
}

struct hkt_range hkt_flat_tensors(const struct hkt_flat *flat, int bucket)
{
    const struct hkt_range range = hkt_flat_bucket(flat, bucket);
    int low = flat->ntensors, high = -1;

    for (int i = 0; i < flat->ntensors; i++)
        if (flat->count[i] > 0 && flat->first[i] < range.first + range.count
            && flat->first[i] + flat->count[i] > range.first) {
            low = i < low ? i : low;
            high = i;
        }
    const struct hkt_range tensors = { high < 0 ? 0 : low, high < 0 ? 0 : high - low + 1 };

    return tensors;
}

/* The bucket of an element. */
static int bucket_of(const struct hkt_flat *flat, int64_t at)
{
    int low = 0, high = flat->nbuckets - 1; /* the last that begins at or before it */

    while (low < high) {
        const int middle = (low + high + 1) / 2;

        if (flat->bucket_first[middle] <= at)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

struct hkt_range hkt_flat_buckets(const struct hkt_flat *flat, int tensor)
{
    struct hkt_range buckets = { 0, 0 };

    if (flat->count[tensor] == 0)
        return buckets;
    buckets.first = bucket_of(flat, flat->first[tensor]);
    buckets.count = bucket_of(flat, flat->first[tensor] + flat->count[tensor] - 1) - buckets.first + 1;
    return buckets;
}
