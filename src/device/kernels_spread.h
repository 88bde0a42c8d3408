/* Part of kernels_vec.h, as much a template as that: one result stored to several places, each vector of the sources being read once. The
 * invariants are the same, but that no store overlaps the one before: what is left at the end goes by parts of a vector. */

/* Sources are asked for ahead of their use, and lines of places too where they come through the caches: the processor's own prefetchers do
 * not keep up with that many streams. 2 inputs of 1 MiB to 2 places on 2 cores: 36 us instead of 58; of 64 MiB in place: 2.8 ms instead
 * of 4.2; past the caches 4.3 ms instead of 4.6 (Sapphire Rapids, 2026-11-30). */
#define AHEAD_CACHED ((size_t)2048)
#define AHEAD_STREAMING ((size_t)4096)


/* Pointers lie in arrays that no store can alias, so that with few of them, and counts known, they are in registers. */
struct places {
    char *const *dsts;
    const char *const *srcs;
    int ndsts, nsrcs;
};

INLINE void ask_ahead(struct places p, size_t at, enum hkt__reach reach)
{
    const size_t first = at + (reach == HKT__REACH_PAST ? AHEAD_STREAMING : AHEAD_CACHED);

    for (size_t line = first; line < first + 4 * VB; line += 64) {
        for (int m = 0; m < p.ndsts && reach != HKT__REACH_PAST; ++m)
            __builtin_prefetch(p.dsts[m] + line, 1);
        for (int j = 0; j < p.nsrcs; ++j)
            __builtin_prefetch(p.srcs[j] + line);
    }
}

/* From `at` on four vectors at a time; gives where that ends. */
INLINE size_t spread_fours(struct places p, size_t at, size_t bytes, enum hkt__reach reach, struct kernel k)
{
    for (; bytes - at >= 4 * VB; at += 4 * VB) {
        vec four[4];

        if (reach != HKT__REACH_CACHED)
            ask_ahead(p, at, reach);
        fold_four(four, p.srcs, p.nsrcs, at, k);
        for (int m = 0; m < p.ndsts; ++m)
            for (int i = 0; i < 4; ++i)
                reach == HKT__REACH_PAST ? stream(p.dsts[m] + at + i * VB, four[i]) : store(p.dsts[m] + at + i * VB, four[i]);
    }
    return at;
}

INLINE size_t spread_reach(struct places p, size_t at, size_t bytes, enum hkt__reach reach, struct kernel k)
{
    return reach == HKT__REACH_PAST     ? spread_fours(p, at, bytes, HKT__REACH_PAST, k)
           : reach == HKT__REACH_BEYOND ? spread_fours(p, at, bytes, HKT__REACH_BEYOND, k)
                                        : spread_fours(p, at, bytes, HKT__REACH_CACHED, k);
}

INLINE void spread_part(struct places p, size_t at, size_t bytes, struct kernel k)
{
    const vec v = fold_part(p.srcs, p.nsrcs, at, bytes, k);

    for (int m = 0; m < p.ndsts; ++m)
        store_part(p.dsts[m] + at, v, bytes);
}

/* Bytes before all places are at a multiple of VB; -1 where that is nowhere, or in the middle of an element. */
INLINE ptrdiff_t spread_head(struct places p, size_t element_bytes)
{
    const size_t head = -(uintptr_t)p.dsts[0] % VB;

    for (int m = 1; m < p.ndsts; ++m)
        if (-(uintptr_t)p.dsts[m] % VB != head)
            return -1;
    return head % element_bytes == 0 ? (ptrdiff_t)head : -1;
}

INLINE void spread(const struct hkt__spread *s, size_t element_bytes, struct kernel k)
{
    const struct places p = {s->dsts, (const char *const *)s->srcs, s->ndsts, s->nsrcs};
    const size_t bytes = s->count * element_bytes;
    const ptrdiff_t head = spread_head(p, element_bytes);
    const enum hkt__reach reach = head < 0 && s->reach == HKT__REACH_PAST ? HKT__REACH_BEYOND : s->reach;
    size_t at = 0;

    if (head > 0 && bytes > 0) {
        at = (size_t)head < bytes ? (size_t)head : bytes;
        spread_part(p, 0, at, k);
    }
    if (p.ndsts == 2 && p.nsrcs == 2) {
        char *const dsts[2] = {p.dsts[0], p.dsts[1]};
        const char *const srcs[2] = {p.srcs[0], p.srcs[1]};

        at = spread_reach((struct places){dsts, srcs, 2, 2}, at, bytes, reach, k);
    } else {
        at = spread_reach(p, at, bytes, reach, k);
    }
    for (; bytes - at >= VB; at += VB) {
        const vec v = fold_one(p.srcs, p.nsrcs, at, k);

        for (int m = 0; m < p.ndsts; ++m)
            store(p.dsts[m] + at, v);
    }
    if (at < bytes)
        spread_part(p, at, bytes - at, k);
}

#define SPREAD(suffix, element_bytes, enter, combine, leave)                                                   \
    static void spread_##suffix(const struct hkt__spread *s)                                                   \
    {                                                                                                          \
        spread(s, element_bytes, (struct kernel){enter, combine, leave, PLAIN});                               \
    }
