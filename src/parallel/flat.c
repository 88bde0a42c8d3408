/* The flat buffer: tensors end to end, buckets, shards. */
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
    if (opts->bucket_elems != 0 && total / opts->bucket_elems >= INT32_MAX)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%lld elements in buckets of %lld are too many buckets",
                                  (long long)total, (long long)opts->bucket_elems);
    return HKT_OK;
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
    if (flat == NULL || flat->first == NULL || flat->count == NULL) {
        hkt_flat_destroy(flat);
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for the layout of %d tensors", opts->ntensors);
    }
    const int64_t unit = opts->shards * opts->align;

    flat->ntensors = opts->ntensors;
    flat->shards = opts->shards;
    flat->align = opts->align;
    for (int i = opts->ntensors - 1; i >= 0; i--) {
        flat->first[i] = flat->used;
        flat->count[i] = opts->counts[i];
        flat->used += opts->counts[i];
    }
    flat->padded = round_up(flat->used, unit);
    flat->bucket_elems = opts->bucket_elems / unit * unit;
    if (flat->bucket_elems < unit)
        flat->bucket_elems = unit;
    if (opts->bucket_elems == 0 || flat->bucket_elems > flat->padded)
        flat->bucket_elems = flat->padded;
    flat->nbuckets = flat->padded == 0 ? 0 : (int)((flat->padded + flat->bucket_elems - 1) / flat->bucket_elems);
    *out_flat = flat;
    return HKT_OK;
}

void hkt_flat_destroy(struct hkt_flat *flat)
{
    if (flat == NULL)
        return;
    hkt__parallel_free(flat->first);
    hkt__parallel_free(flat->count);
    hkt__parallel_free(flat);
}

struct hkt_range hkt_flat_bucket(const struct hkt_flat *flat, int bucket)
{
    struct hkt_range range = { bucket * flat->bucket_elems, flat->bucket_elems };

    if (range.first + range.count > flat->padded)
        range.count = flat->padded - range.first;
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

struct hkt_range hkt_flat_buckets(const struct hkt_flat *flat, int tensor)
{
    struct hkt_range buckets = { 0, 0 };

    if (flat->count[tensor] == 0)
        return buckets;
    buckets.first = flat->first[tensor] / flat->bucket_elems;
    buckets.count = (flat->first[tensor] + flat->count[tensor] - 1) / flat->bucket_elems - buckets.first + 1;
    return buckets;
}
