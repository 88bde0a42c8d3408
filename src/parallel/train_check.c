/* Whether ranks that hold the same parameters hold the same bits: what a layout must keep, and what a flipped bit, a faulty link or
 * a rank that runs other code breaks without a word. Each tensor is hashed as a rank has it: a tensor that tp leaves whole must be
 * the same on all its holders, a part of one on those with the same place in tp. In ZeRO 3 a rank has shards alone, and nothing is
 * compared.
 *
 * Hashes are compared by their least and their most over all ranks: one pass of 16 bytes a tensor; only where they differ are all
 * gathered, to say who is the odd one. */
#include <string.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/train_state.h"

enum { ABSENT = -1 };

/* FNV-1a of 64-bit words, and of what is left of the last; never ABSENT. */
static int64_t hash_of(const void *data, uint64_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (uint64_t at = 0; at < bytes; at += sizeof hash) {
        const uint64_t left = bytes - at;
        uint64_t word = 0;

        memcpy(&word, (const char *)data + at, left < sizeof word ? left : sizeof word);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    return (int64_t)(hash >> 1);
}

/* [nparams][tp] */
static void hash_all(const struct hkt_trainer *t, int64_t *out)
{
    const struct hkt__own *own = hkt__gpt_own(t->gpt);
    const int tp = hkt_mesh_size(t->mesh, "tp"), at = hkt_mesh_coord(t->mesh, "tp", t->rank);
    const uint64_t size = hkt__gpt_ops(t->gpt)->store_bytes;

    for (int i = 0; i < own->nparams * tp; i++)
        out[i] = ABSENT;
    for (int i = 0; i < own->nparams; i++) {
        const struct hkt__held *held = &own->held[i];

        if (held->local_count > 0)
            out[i * tp + (held->npieces == 0 ? 0 : at)] = hash_of(hkt__engine_param(t->engine, i), (uint64_t)held->local_count * size);
    }
}

/* Two that differ: the first holder, and, where most agree with it or nobody has a majority, the first that does not. */
static enum hkt_status name_odd(const struct hkt_trainer *t, const struct hkt__link *world, int64_t mine, const char *name)
{
    int64_t *all = hkt__parallel_calloc((size_t)t->nranks, sizeof *all);
    int first = 0, other, agree = 0, holders = 0;
    enum hkt_status rc;

    if (all == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for %d hashes", t->nranks);
    rc = hkt__link_all_gather(world, &mine, all, 1, HKT_INT64);
    while (rc == HKT_OK && first < t->nranks - 1 && all[first] == ABSENT)
        first++;
    for (other = first; rc == HKT_OK && other < t->nranks - 1 && (all[other] == ABSENT || all[other] == all[first]);)
        other++;
    for (int r = 0; r < t->nranks && rc == HKT_OK; r++) {
        holders += all[r] != ABSENT;
        agree += all[r] == all[first];
    }
    const int odd = 2 * agree >= holders ? other : first, even = odd == other ? first : other;

    hkt__parallel_free(all);
    return rc < 0 ? rc
                  : hkt__parallel_fail(HKT_ERR_CORRUPT, "step %lld: rank %d has other bits in %s than rank %d, though both hold the same "
                                       "(%d of %d agree with rank %d): memory or a link is faulty, or they do not run the same program",
                                       (long long)t->step, odd, name, even, odd == other ? agree : holders - agree, holders, even);
}

enum hkt_status hkt__train_check(struct hkt_trainer *t)
{
    const struct hkt__own *own = hkt__gpt_own(t->gpt);
    const struct hkt__link world = { .comm = t->comm, .traffic = hkt__gpt_traffic(t->gpt), .axis = HKT__TRAFFIC_SCALARS,
                                     .size = t->nranks, .rank = t->rank };
    const int tp = hkt_mesh_size(t->mesh, "tp"), slots = own->nparams * tp;
    enum hkt_status rc;

    if (!t->config.check || t->nranks == 1 || t->config.layout.zero == 3)
        return HKT_OK;
    int64_t *mine = hkt__parallel_calloc(3 * (size_t)slots, sizeof *mine);

    if (mine == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for %d hashes", slots);
    int64_t *least = mine + slots, *most = least + slots;

    hash_all(t, mine);
    for (int i = 0; i < slots; i++) {
        least[i] = mine[i] == ABSENT ? INT64_MAX : mine[i];
        most[i] = mine[i];
    }
    rc = hkt__link_all_reduce(&world, least, slots, HKT_INT64, HKT_MIN);
    if (rc == HKT_OK)
        rc = hkt__link_all_reduce(&world, most, slots, HKT_INT64, HKT_MAX);
    for (int i = 0; i < slots && rc == HKT_OK; i++)
        if (most[i] != ABSENT && least[i] != most[i])
            rc = name_odd(t, &world, mine[i], own->params[i / tp].name);
    hkt__parallel_free(mine);
    return rc;
}
