/* Bruck's algorithms: ceil(log2 p) rounds for any p, for small blocks.
 *
 * All-gather: with d = 1, 2, 4, ... rank r sends the min(d, p-d) blocks r, r+1, ... to r-d, so what it has doubles.
 *   Blocks are addressed modulo p, which saves the final rotation. ceil(log2 p) a + (p-1)/p n b.
 * All-to-all: item j, for j in 1..p-1, is the block that rank r has for rank r+j. In round k all items whose number has
 *   bit k go 2^k ranks on, so each arrives by the binary digits of j. ceil(log2 p) rounds; a block travels once per
 *   digit, about n/2 a round in all.
 * Source: Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, IEEE
 *   TPDS 8(11), 1997. */
#include "algos/builders.h"

#include "core/bits.h"

void hkt__build_all_gather_bruck(struct hkt__builder *b)
{
    const int p = b->nranks, r = b->rank;

    hkt__copy(b, 0, hkt__out(b, r), hkt__in(b, 0));
    for (int d = 1; d < p; d *= 2) {
        const int count = d < p - d ? d : p - d;

        hkt__send(b, hkt__rank_at(b, -d), 0, count == 1 ? hkt__in(b, 0) : hkt__range(b, HKT__OUT, r, 1, count));
        hkt__recv(b, hkt__rank_at(b, d), 0, hkt__range(b, HKT__OUT, r + d, 1, count));
    }
}

/* Items first, first + stride, ... */
struct items {
    int first, stride, count;
};

/* The items with bit k set are 2^k progressions (one for each value of the lower bits) or else p / 2^(k+1) runs,
 * whichever is fewer. */
static int item_groups(int p, int k)
{
    const int unit = 1 << k, progressions = unit < p - unit ? unit : p - unit;
    const int runs = (p - unit + 2 * unit - 1) / (2 * unit);

    return progressions <= runs ? progressions : runs;
}

static struct items item_group(int p, int k, int group)
{
    const int unit = 1 << k, progressions = unit < p - unit ? unit : p - unit;

    if (item_groups(p, k) == progressions) {
        const int first = unit + group;

        return (struct items){ first, 2 * unit, (p - first + 2 * unit - 1) / (2 * unit) };
    }
    const int first = unit + group * 2 * unit;

    return (struct items){ first, 1, unit < p - first ? unit : p - first };
}

static int items_with_bit(int p, int k)
{
    int count = 0;

    for (int group = 0; group < item_groups(p, k); group++)
        count += item_group(p, k, group).count;
    return count;
}

/* Scratch: slot j for item j (slot 0 idle), then the items packed to be sent, then those that arrived packed. */
static struct hkt__operand slots(struct hkt__builder *b, struct items at)
{
    struct hkt__operand x = hkt__scratch(b, at.first, hkt__range(b, HKT__IN, 0, 0, at.count));

    x.at.stride = at.stride;
    x.at.modulus = at.first + (at.count - 1) * at.stride + 1;
    return x;
}

static void pack(struct hkt__builder *b, int k, int area, bool is_unpack)
{
    for (int group = 0, done = 0; group < item_groups(b->nranks, k); group++) {
        const struct items items = item_group(b->nranks, k, group);
        const struct hkt__operand spread = slots(b, items);
        const struct hkt__operand packed = slots(b, (struct items){ area + done, 1, items.count });

        hkt__copy(b, 0, is_unpack ? spread : packed, is_unpack ? packed : spread);
        done += items.count;
    }
}

/* Items that form one group need no packing: in round 0 they leave IN directly and arrive in their slots, in the last
 * round they leave their slots and arrive in OUT. In between a rank sends and receives the same items, so they cannot
 * stay in the same slots: a message could not arrive before one has left. */
static void exchange_items(struct hkt__builder *b, int k, int nrounds)
{
    const int p = b->nranks, r = b->rank, to = hkt__rank_at(b, 1 << k), from = hkt__rank_at(b, -(1 << k));
    const int count = items_with_bit(p, k), area = p + (p + 1) / 2;
    const struct items first_group = item_group(p, k, 0), packed = { p, 1, count }, arrived = { area, 1, count };
    const bool is_single = item_groups(p, k) == 1, is_last = k == nrounds - 1;

    if (k == 0 && !(b->in_place && is_last)) {
        hkt__send(b, to, 0, hkt__range(b, HKT__IN, r + 1, 2, count));
    } else if (is_single && is_last) {
        hkt__send(b, to, 0, slots(b, first_group));
    } else {
        pack(b, k, packed.first, false);
        hkt__send(b, to, 0, slots(b, packed));
    }
    if (is_last) {
        hkt__recv(b, from, 0, hkt__range(b, HKT__OUT, r - first_group.first, -1, count));
    } else if (is_single) {
        hkt__recv(b, from, 0, slots(b, first_group));
    } else {
        hkt__recv(b, from, 0, slots(b, arrived));
        pack(b, k, arrived.first, true);
    }
}

void hkt__build_all_to_all_bruck(struct hkt__builder *b)
{
    const int p = b->nranks, r = b->rank, nrounds = hkt__log2_ceil((unsigned)p);
    const struct items all = { 1, 1, p - 1 }, even = { 2, 2, (p - 1) / 2 };
    const struct items settled = { 1, 1, (1 << (nrounds - 1)) - 1 }; /* those that do not move in the last round */

    hkt__copy(b, 0, hkt__out(b, r), hkt__in(b, r));
    if (nrounds == 1 && b->in_place)
        hkt__copy(b, 0, slots(b, all), hkt__range(b, HKT__IN, r + 1, 1, all.count));
    else if (even.count > 0)
        hkt__copy(b, 0, slots(b, even), hkt__range(b, HKT__IN, r + 2, 2, even.count));
    for (int k = 0; k < nrounds; k++)
        exchange_items(b, k, nrounds);
    if (settled.count > 0)
        hkt__copy(b, 0, hkt__range(b, HKT__OUT, r - 1, -1, settled.count), slots(b, settled));
}
