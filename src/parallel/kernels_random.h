/* Many numbers of one stream at a time, for the kernels of all types. Included once by kernels.c, after LANEWISE.
 * The rounds are those of hkt__philox4x32, which the tests hold against known answers; here a loop over blocks stands inside
 * each round, so that blocks are lanes. */
#define RANDOM_BLOCKS 32
#define RANDOM_COUNT (4 * RANDOM_BLOCKS)
#define DROP_KEYS 64 /* a tile of keys: two rows of them are made at a time */

/* out[i] = number 4 * first + i of the stream. */
static void random_numbers(const struct hkt__rng *rng, uint64_t first, uint32_t out[RANDOM_COUNT])
{
    uint32_t c0[RANDOM_BLOCKS], c1[RANDOM_BLOCKS], c2[RANDOM_BLOCKS], c3[RANDOM_BLOCKS];
    uint32_t k0 = (uint32_t)rng->seed, k1 = (uint32_t)(rng->seed >> 32);

    for (uint32_t b = 0; b < RANDOM_BLOCKS; b++) {
        c0[b] = (uint32_t)(first + b);
        c1[b] = (uint32_t)((first + b) >> 32);
        c2[b] = (uint32_t)rng->site;
        c3[b] = (uint32_t)(rng->site >> 32);
    }
    for (int round = 0; round < 10; round++) {
        for (int b = 0; b < RANDOM_BLOCKS; b++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0[b], p1 = (uint64_t)0xCD9E8D57u * c2[b];

            c0[b] = (uint32_t)(p1 >> 32) ^ c1[b] ^ k0;
            c1[b] = (uint32_t)p1;
            c2[b] = (uint32_t)(p0 >> 32) ^ c3[b] ^ k1;
            c3[b] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int b = 0; b < RANDOM_BLOCKS; b++) {
        out[4 * b] = c0[b];
        out[4 * b + 1] = c1[b];
        out[4 * b + 2] = c2[b];
        out[4 * b + 3] = c3[b];
    }
}

/* Numbers of attention's dropout, of two rows and one tile of keys. */
struct drop_numbers {
    uint64_t first; /* block that word begins with; UINT64_MAX: none yet */
    uint32_t word[RANDOM_COUNT];
};

/* The numbers of query `row` of the call and keys [DROP_KEYS * tile, DROP_KEYS * (tile + 1)) under `head` of the call. */
static const uint32_t *drop_row(const struct hkt__attention *a, struct drop_numbers *numbers, int64_t row, int64_t head,
                                int64_t tile)
{
    const struct hkt__attention_dropout *d = &a->dropout;
    const uint64_t place = (uint64_t)(d->first_row + row), tiles = (uint64_t)((a->keys + DROP_KEYS - 1) / DROP_KEYS);
    const uint64_t column = place / 2 * (uint64_t)d->heads_all + (uint64_t)(d->first_head + head);
    const uint64_t first = (column * tiles + (uint64_t)tile) * RANDOM_BLOCKS;

    if (first != numbers->first) {
        random_numbers(&d->rng, first, numbers->word);
        numbers->first = first;
    }
    return numbers->word + place % 2 * DROP_KEYS;
}
