/* What could break: a part of something is lost or given twice, most likely where nothing divides; equal parts are
 * not equal; a layer vanishes between stages; an impossible number of heads passes; the flat buffer's buckets or
 * shards leave a gap, or the blocks that sums are made of depend on the size of buckets. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "hocket/parallel.h"
#include "parallel/alloc.h"

static void refused(enum hkt_status status, const char *part)
{
    assert_int_equal(status, HKT_ERR_INVALID);
    if (strstr(hkt_parallel_last_error(), part) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", part, hkt_parallel_last_error());
}

static void even_parts_cover_once(void **state)
{
    (void)state;
    for (int64_t total = 0; total < 40; total++)
        for (int parts = 1; parts < 12; parts++) {
            int64_t next = 0, largest = hkt_shard_even(total, parts, 0).count;

            for (int i = 0; i < parts; i++) {
                const struct hkt_range part = hkt_shard_even(total, parts, i);

                assert_int_equal(part.first, next);
                assert_in_range(largest - part.count, 0, 1);
                next += part.count;
            }
            assert_int_equal(next, total);
        }
    for (int i = 0; i < 4; i++) { /* 8 experts on 4 ranks: 0 1, 2 3, 4 5, 6 7 */
        assert_int_equal(hkt_shard_even(8, 4, i).first, 2 * i);
        assert_int_equal(hkt_shard_even(8, 4, i).count, 2);
    }
    assert_int_equal(hkt_shard_even((int64_t)1 << 50, 3, 2).first, ((int64_t)1 << 51) / 3 + 1);
}

static void vocabulary(void **state)
{
    static const int64_t two[] = { 51, 50 }, four[] = { 26, 26, 26, 23 };
    const struct hkt_vocab_shard gpt2 = hkt_shard_vocab(50257, 128, 1, 0);

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(hkt_shard_vocab(101, 1, 2, i).rows.count, two[i]);
    for (int i = 0; i < 4; i++)
        assert_int_equal(hkt_shard_vocab(101, 1, 4, i).rows.count, four[i]);
    assert_int_equal(hkt_shard_vocab(101, 1, 2, 0).padded, 102);
    assert_int_equal(hkt_shard_vocab(101, 1, 4, 0).padded, 104);
    assert_int_equal(gpt2.padded, 50304);
    assert_int_equal(gpt2.rows.count, 50257);
    for (int64_t vocab = 1; vocab < 60; vocab++)
        for (int tp = 1; tp < 9; tp++)
            for (int64_t multiple = 1; multiple <= 8; multiple *= 2) {
                int64_t next = 0;

                for (int i = 0; i < tp; i++) {
                    const struct hkt_vocab_shard shard = hkt_shard_vocab(vocab, multiple, tp, i);

                    assert_int_equal(shard.rows.first, next);
                    assert_int_equal(shard.padded, shard.block * tp);
                    assert_int_equal(shard.padded % (tp * multiple), 0);
                    assert_true(shard.rows.count >= 0 && shard.rows.count <= shard.block);
                    assert_true(shard.rows.count == 0 || shard.rows.first == i * shard.block);
                    next += shard.rows.count;
                }
                assert_int_equal(next, vocab);
            }
}

static void heads(void **state)
{
    struct hkt_head_shard shard;

    (void)state;
    assert_int_equal(hkt_shard_heads(32, 32, 4, 3, &shard), HKT_OK);
    assert_int_equal(shard.q.count, 8);
    assert_int_equal(shard.kv.first, 24);
    assert_int_equal(shard.copies, 1);
    assert_int_equal(hkt_shard_heads(8, 2, 4, 3, &shard), HKT_OK); /* more ranks than kv heads */
    assert_int_equal(shard.q.first, 6);
    assert_int_equal(shard.kv.first, 1);
    assert_int_equal(shard.kv.count, 1);
    assert_int_equal(shard.copies, 2);
    assert_int_equal(shard.copy, 1);
    refused(hkt_shard_heads(30, 30, 4, 0, &shard), "30 heads do not divide by tp 4; tp 3 or 5 would do");
    refused(hkt_shard_heads(8, 3, 2, 0, &shard), "8 heads cannot share 3 kv heads evenly; 2 or 4 kv heads");
    refused(hkt_shard_heads(12, 6, 4, 0, &shard),
            "6 kv heads and tp 4: one must divide the other, so that each kv head is on the same "
            "number of ranks; tp 3 or 6 would do");
    refused(hkt_shard_heads(12, 4, 6, 0, &shard), "4 kv heads and tp 6: one must divide the other");
    refused(hkt_shard_heads(12, 4, 4, 4, &shard), "rank 4 of tp 4");
    refused(hkt_shard_heads(12, 4, 24, 0, &shard), "12 heads do not divide by tp 24; tp 12 would do");

    /* The query heads of a rank use its kv heads and no others. */
    for (int nheads = 1; nheads <= 24; nheads++)
        for (int kv = 1; kv <= nheads; kv++)
            for (int tp = 1; tp <= nheads; tp++) {
                if (nheads % kv != 0 || nheads % tp != 0 || (kv % tp != 0 && tp % kv != 0))
                    continue;
                int counted = 0;

                for (int i = 0; i < tp; i++) {
                    assert_int_equal(hkt_shard_heads(nheads, kv, tp, i, &shard), HKT_OK);
                    const int64_t group = nheads / kv, last = shard.q.first + shard.q.count - 1;

                    assert_int_equal(shard.q.first / group, shard.kv.first);
                    assert_int_equal(last / group, shard.kv.first + shard.kv.count - 1);
                    counted += shard.copy == 0 ? (int)shard.kv.count : 0;
                }
                assert_int_equal(counted, kv);
            }
}

/* ---- layers over stages ---- */

/* Exhaustive: the least (heaviest stage, sum of squares) over all splits of [first, layers). */
static void search(const struct hkt_stage_opts *opts, int stage, int first, double most, double squares, double *best)
{
    double weight = stage == 0 ? opts->first_extra : 0;

    if (stage == opts->stages) {
        if (first == opts->layers && (most < best[0] || (most == best[0] && squares < best[1]))) {
            best[0] = most;
            best[1] = squares;
        }
        return;
    }
    weight += stage == opts->stages - 1 ? opts->last_extra : 0;
    for (int end = first + 1; end <= opts->layers; end++) {
        weight += opts->weights == NULL ? 1 : opts->weights[end - 1];
        search(opts, stage + 1, end, weight > most ? weight : most, squares + weight * weight, best);
    }
}

static void check_split(const struct hkt_stage_opts *opts)
{
    double best[2] = { INFINITY, INFINITY }, most = 0, squares = 0;
    int first[16];

    assert_int_equal(hkt_stage_split(opts, first), HKT_OK);
    assert_int_equal(first[0], 0);
    assert_int_equal(first[opts->stages], opts->layers);
    for (int stage = 0; stage < opts->stages; stage++) {
        double weight = (stage == 0 ? opts->first_extra : 0) + (stage == opts->stages - 1 ? opts->last_extra : 0);

        assert_true(first[stage] < first[stage + 1]);
        for (int i = first[stage]; i < first[stage + 1]; i++)
            weight += opts->weights == NULL ? 1 : opts->weights[i];
        most = weight > most ? weight : most;
        squares += weight * weight;
    }
    search(opts, 0, 0, 0, 0, best);
    assert_true(most == best[0] && squares == best[1]);
}

static void layers_over_stages(void **state)
{
    static const int thirty[] = { 0, 8, 16, 23, 30 }, forty_eight[] = { 0, 12, 24, 36, 48 };
    double weights[9];
    int first[33];

    (void)state;
    assert_int_equal(hkt_stage_split(&(struct hkt_stage_opts){ .layers = 30, .stages = 4 }, first), HKT_OK);
    assert_memory_equal(first, thirty, sizeof thirty);
    assert_int_equal(hkt_stage_split(&(struct hkt_stage_opts){ .layers = 48, .stages = 4 }, first), HKT_OK);
    assert_memory_equal(first, forty_eight, sizeof forty_eight);
    for (int i = 0; i < 9; i++)
        weights[i] = 1;
    for (int layers = 1; layers <= 9; layers++)
        for (int stages = 1; stages <= layers; stages++) { /* equal weights give equal parts, by either way */
            int again[33];

            assert_int_equal(hkt_stage_split(&(struct hkt_stage_opts){ layers, stages, NULL, 0, 0 }, first), HKT_OK);
            assert_int_equal(hkt_stage_split(&(struct hkt_stage_opts){ layers, stages, weights, 0, 0 }, again), HKT_OK);
            assert_memory_equal(first, again, (size_t)(stages + 1) * sizeof first[0]);
        }
    srand(7);
    for (int round = 0; round < 200; round++) { /* whole numbers: exact in any order */
        const struct hkt_stage_opts opts = { 1 + rand() % 9, 1, weights, rand() % 4, rand() % 6 };
        struct hkt_stage_opts cut = opts;

        for (int i = 0; i < 9; i++)
            weights[i] = 1 + rand() % 5;
        cut.stages = 1 + rand() % opts.layers;
        check_split(&cut);
    }
    /* An embedding worth two layers and a head worth three: the ends get fewer layers. */
    static const int ends[] = { 0, 3, 8, 13, 14 };

    assert_int_equal(hkt_stage_split(&(struct hkt_stage_opts){ 14, 4, NULL, 2, 3 }, first), HKT_OK);
    assert_memory_equal(first, ends, sizeof ends);
}

static void impossible_stages(void **state)
{
    const double weights[] = { 1, 0, 1 };
    int first[8] = { 77 };

    (void)state;
    refused(hkt_stage_split(&(struct hkt_stage_opts){ .layers = 3, .stages = 4 }, first),
            "3 layers cannot fill 4 stages");
    refused(hkt_stage_split(&(struct hkt_stage_opts){ 3, 2, weights, 0, 0 }, first), "layer 1 has weight 0");
    refused(hkt_stage_split(&(struct hkt_stage_opts){ 3, 2, NULL, -1, 0 }, first), "negative");
    refused(hkt_stage_split(&(struct hkt_stage_opts){ 3, 2, NULL, NAN, 0 }, first), "negative");
    for (int k = 1; k <= 2; k++) {
        hkt__parallel_alloc_fail_at(k);
        assert_int_equal(hkt_stage_split(&(struct hkt_stage_opts){ 3, 2, NULL, 1, 0 }, first), HKT_ERR_NOMEM);
    }
    assert_int_equal(first[0], 77);
}

/* ---- the flat buffer ---- */

static struct hkt_flat *flat_of(struct hkt_flat_opts opts)
{
    struct hkt_flat *flat = NULL;

    if (hkt_flat_create(&opts, &flat) != HKT_OK)
        fail_msg("%s", hkt_parallel_last_error());
    return flat;
}

static void the_flat_buffer_in_numbers(void **state)
{
    static const int64_t counts[] = { 10, 0, 7, 5 };
    static const int units[] = { 0, 1, 1, 2 };
    struct hkt_flat_opts opts = { .counts = counts, .ntensors = 4, .shards = 3, .align = 2, .bucket_elems = 13 };
    struct hkt_flat *flat = flat_of(opts);

    (void)state;
    assert_int_equal(flat->first[3], 0); /* the last used comes first */
    assert_int_equal(flat->first[2], 5);
    assert_int_equal(flat->first[0], 12);
    assert_int_equal(flat->used, 22);
    assert_int_equal(flat->padded, 24);
    assert_int_equal(flat->nbuckets, 2);
    assert_int_equal(flat->bucket_first[1], 12);
    assert_int_equal(hkt_flat_shard(flat, 1, 2).first, 20);
    assert_int_equal(hkt_flat_shard(flat, 1, 2).count, 4);
    assert_int_equal(hkt_flat_tensors(flat, 0).first, 2);
    assert_int_equal(hkt_flat_tensors(flat, 0).count, 2);
    assert_int_equal(hkt_flat_tensors(flat, 1).first, 0);
    assert_int_equal(hkt_flat_tensors(flat, 1).count, 1);
    assert_int_equal(hkt_flat_buckets(flat, 0).first, 1);
    assert_int_equal(hkt_flat_buckets(flat, 1).count, 0);
    assert_int_equal(hkt_flat_buckets(flat, 2).count, 1);
    hkt_flat_destroy(flat);
    opts.bucket_elems = 6;
    flat = flat_of(opts); /* tensors straddle buckets */
    assert_int_equal(flat->nbuckets, 4);
    assert_int_equal(hkt_flat_buckets(flat, 2).first, 0);
    assert_int_equal(hkt_flat_buckets(flat, 2).count, 2);
    hkt_flat_destroy(flat);
    opts.units = units; /* each begins at a multiple of 2 */
    flat = flat_of(opts);
    assert_int_equal(flat->first[3], 0);
    assert_int_equal(flat->first[2], 6);
    assert_int_equal(flat->first[0], 14);
    assert_int_equal(flat->padded, 24);
    hkt_flat_destroy(flat);
    opts.unit_buckets = 1; /* each begins a bucket, at a multiple of 6 */
    opts.bucket_elems = 0;
    flat = flat_of(opts);
    assert_int_equal(flat->first[2], 6);
    assert_int_equal(flat->first[0], 18);
    assert_int_equal(flat->padded, 30);
    assert_int_equal(flat->nbuckets, 3);
    assert_int_equal(flat->bucket_first[1], 6);
    assert_int_equal(flat->bucket_first[2], 18);
    hkt_flat_destroy(flat);
    opts.ntensors = 0;
    flat = flat_of(opts);
    assert_int_equal(flat->nbuckets, 0);
    assert_int_equal(flat->padded, 0);
    hkt_flat_destroy(flat);
    hkt_flat_destroy(NULL);
}

/* Shards of all buckets tile the buffer; shards are equal and aligned. */
static void check_tiles(const struct hkt_flat *flat)
{
    int64_t next = 0;

    for (int bucket = 0; bucket < flat->nbuckets; bucket++) {
        const struct hkt_range all = hkt_flat_bucket(flat, bucket);

        assert_int_equal(all.first, next);
        for (int shard = 0; shard < flat->shards; shard++) {
            const struct hkt_range range = hkt_flat_shard(flat, bucket, shard);

            assert_int_equal(range.first, next);
            assert_int_equal(range.first % flat->align, 0);
            assert_int_equal(range.count, all.count / flat->shards);
            next += range.count;
        }
    }
    assert_int_equal(next, flat->padded);
}

/* Numbers of buckets and tensors agree both ways; no bucket is padding alone, or of two units where that is asked
 * for. */
static void check_numbers(const struct hkt_flat *flat, const struct hkt_flat_opts *opts)
{
    for (int bucket = 0; bucket < flat->nbuckets; bucket++) {
        const struct hkt_range tensors = hkt_flat_tensors(flat, bucket), all = hkt_flat_bucket(flat, bucket);
        int unit = -1;

        assert_true(tensors.count > 0);
        for (int i = 0; i < flat->ntensors; i++) {
            const struct hkt_range buckets = hkt_flat_buckets(flat, i);
            const int in = bucket >= buckets.first && bucket < buckets.first + buckets.count;

            assert_int_equal(in, opts->counts[i] > 0 && flat->first[i] < all.first + all.count
                                     && flat->first[i] + opts->counts[i] > all.first);
            assert_true(!in || (i >= tensors.first && i < tensors.first + tensors.count));
            if (in && opts->unit_buckets)
                assert_true(unit == -1 || unit == opts->units[i]);
            unit = in ? opts->units[i] : unit;
        }
    }
}

/* Where the tensors of a unit lie relative to its first block does not depend on shards, buckets, or other units. */
static void check_units(const struct hkt_flat *flat, const struct hkt_flat_opts *opts)
{
    for (int i = flat->ntensors - 1; i >= 0;) {
        const int64_t begin = flat->first[i];
        int64_t within = 0;

        assert_int_equal(begin % opts->align, 0);
        for (const int unit = opts->units[i]; i >= 0 && opts->units[i] == unit; i--) {
            assert_int_equal(flat->first[i] - begin, within);
            within += opts->counts[i];
        }
    }
}

static void shards_tile_the_buffer(void **state)
{
    (void)state;
    srand(11);
    for (int round = 0; round < 500; round++) {
        int64_t counts[8];
        int units[8], unit = 0;
        const struct hkt_flat_opts opts = { counts,         units,        1 + rand() % 8, 1 + rand() % 7,
                                            1 + rand() % 5, rand() % 100, rand() % 2 };

        for (int i = 0; i < opts.ntensors; i++) {
            counts[i] = rand() % 4 == 0 ? 0 : rand() % 50;
            units[i] = unit += rand() % 2;
        }
        struct hkt_flat *flat = flat_of(opts);

        check_tiles(flat);
        check_numbers(flat, &opts);
        check_units(flat, &opts);
        hkt_flat_destroy(flat);
    }
}

static void impossible_flat_buffers(void **state)
{
    static const int64_t small[] = { 3, 1 }, counts[] = { 3, -1 }, huge[] = { INT64_MAX / 2, INT64_MAX / 2 },
                         large[] = { (int64_t)1 << 50 };
    static const int descending[] = { 1, 0 };
    struct hkt_flat *flat = NULL;

    (void)state;
    refused(hkt_flat_create(&(struct hkt_flat_opts){ large, descending, 1, 0, 1, 0, 0 }, &flat), "0 shards");
    refused(hkt_flat_create(&(struct hkt_flat_opts){ small, descending, 2, 1, 1, 0, 0 }, &flat),
            "tensor 1 is of unit 0, the one before of 1");
    refused(hkt_flat_create(&(struct hkt_flat_opts){ counts, NULL, 2, 1, 1, 0, 0 }, &flat), "tensor 1 has -1 elements");
    refused(hkt_flat_create(&(struct hkt_flat_opts){ huge, NULL, 2, 1, 1, 0, 0 }, &flat), "tensor 1 has");
    refused(hkt_flat_create(&(struct hkt_flat_opts){ large, NULL, 1, 1, 1, 1, 0 }, &flat), "too many buckets");
    refused(hkt_flat_create(&(struct hkt_flat_opts){ counts, NULL, 1, 0, 1, 0, 0 }, &flat), "0 shards");
    refused(hkt_flat_create(&(struct hkt_flat_opts){ counts, NULL, 1, 1, 0, 0, 0 }, &flat), "align 0");
    for (int k = 1; k <= 4; k++) {
        hkt__parallel_alloc_fail_at(k);
        assert_int_equal(hkt_flat_create(&(struct hkt_flat_opts){ counts, NULL, 1, 1, 1, 0, 0 }, &flat), HKT_ERR_NOMEM);
    }
    assert_null(flat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(even_parts_cover_once),
        cmocka_unit_test(vocabulary),
        cmocka_unit_test(heads),
        cmocka_unit_test(layers_over_stages),
        cmocka_unit_test(impossible_stages),
        cmocka_unit_test(the_flat_buffer_in_numbers),
        cmocka_unit_test(shards_tile_the_buffer),
        cmocka_unit_test(impossible_flat_buffers),
    };

    return cmocka_run_group_tests_name("shard", tests, NULL, NULL);
}
