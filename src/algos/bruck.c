/* Bruck's algorithms: log rounds for any p, for small blocks.
 *
 * All-gather: with d = 1, 2, 4, ... rank r sends the min(d, p-d) blocks r, r+1, ... to r-d, so what it has doubles.
 *   Blocks are addressed modulo p, which saves the final rotation. ceil(log2 p) a + (p-1)/p n b.
 *   (For another radix than 2 see circulant.c.)
 * All-to-all: item j, for j in 1..p-1, is the block that rank r has for rank r+j. Numbers are written with digits of
 *   some radix; in the round of the digit of weight w the items with digit value z go z w ranks on, all values at
 *   once, so each arrives by the digits of j. A block travels once per digit that is not 0. Radix 2: ceil(log2 p)
 *   rounds of one message and about n/2 each; radix 4: half the rounds of up to three messages, and about 3/4 of the
 *   bytes in all; a radix of p or more: one round, in which each block goes straight to its rank.
 * Source: Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, IEEE
 *   TPDS 8(11), 1997. */
#include "algos/builders.h"

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

/* The items that travel together: those below p whose digit of weight `weight` is `value`. */
struct digit {
    int nranks, radix, weight, value;
};

/* They are `weight` progressions, one for each value of the lower digits, or a run of `weight` for each value of the
 * higher ones: fewer of both. */
static int progressions(const struct digit *d)
{
    const int room = d->nranks - d->value * d->weight;

    return d->weight < room ? d->weight : room;
}

static int runs(const struct digit *d)
{
    const int period = d->radix * d->weight;

    return (d->nranks - d->value * d->weight + period - 1) / period;
}

static int item_groups(const struct digit *d)
{
    return progressions(d) <= runs(d) ? progressions(d) : runs(d);
}

static struct items item_group(const struct digit *d, int group)
{
    const int period = d->radix * d->weight, start = d->value * d->weight;

    if (progressions(d) <= runs(d)) {
        const int first = start + group;

        return (struct items){ first, period, (d->nranks - first + period - 1) / period };
    }
    const int first = start + group * period;

    return (struct items){ first, 1, d->weight < d->nranks - first ? d->weight : d->nranks - first };
}

static int item_count(const struct digit *d)
{
    int count = 0;

    for (int group = 0; group < item_groups(d); group++)
        count += item_group(d, group).count;
    return count;
}

/* Then the items of each value are one run. */
static bool is_last_round(const struct digit *d)
{
    return d->weight * d->radix >= d->nranks;
}

/* Scratch: slot j for item j (slot 0 idle), then the items packed to be sent, then those that arrived packed. */
static struct hkt__operand slots(struct hkt__builder *b, struct items at)
{
    return hkt__slots(b, at.first, at.stride, hkt__range(b, HKT__IN, 0, 0, at.count));
}

static void pack(struct hkt__builder *b, const struct digit *d, int area, bool is_unpack)
{
    for (int group = 0, done = 0; group < item_groups(d); group++) {
        const struct items items = item_group(d, group);
        const struct hkt__operand spread = slots(b, items);
        const struct hkt__operand packed = slots(b, (struct items){ area + done, 1, items.count });

        hkt__copy(b, 0, is_unpack ? spread : packed, is_unpack ? packed : spread);
        done += items.count;
    }
}

/* Items that form one group need no packing: in the first round they leave IN directly and arrive in their slots, in
 * the last they leave their slots and arrive in OUT. In between a rank sends and receives the same items, so they
 * cannot stay in the same slots: a message could not arrive before one has left. `area` is where they are packed. */
static void give_items(struct hkt__builder *b, const struct digit *d, int area)
{
    const int to = hkt__rank_at(b, d->value * d->weight), count = item_count(d);
    const struct items group = item_group(d, 0);
    const bool is_last = is_last_round(d);

    if (d->weight == 1 && !(b->in_place && is_last)) {
        hkt__send(b, to, 0, hkt__range(b, HKT__IN, b->rank + group.first, group.stride, count));
    } else if (is_last) {
        hkt__send(b, to, 0, slots(b, group));
    } else {
        pack(b, d, area, false);
        hkt__send(b, to, 0, slots(b, (struct items){ area, 1, count }));
    }
}

static void take_items(struct hkt__builder *b, const struct digit *d, int area)
{
    const int from = hkt__rank_at(b, -d->value * d->weight), count = item_count(d);
    const struct items group = item_group(d, 0);

    if (is_last_round(d)) {
        hkt__recv(b, from, 0, hkt__range(b, HKT__OUT, b->rank - group.first, -1, count));
    } else if (item_groups(d) == 1) {
        hkt__recv(b, from, 0, slots(b, group));
    } else {
        hkt__recv(b, from, 0, slots(b, (struct items){ area, 1, count }));
        pack(b, d, area, true);
    }
}

typedef void move_fn(struct hkt__builder *b, const struct digit *d, int area);

/* All values of a digit. Local work is done in the order written, so all items are given before any is waited for. */
static void move_items(struct hkt__builder *b, int radix, int weight, move_fn *move, int area)
{
    struct digit digit = { b->nranks, radix, weight, 1 };

    for (; digit.value < radix && digit.value * weight < b->nranks; digit.value++) {
        move(b, &digit, area);
        area += item_count(&digit);
    }
}

void hkt__build_all_to_all_bruck(struct hkt__builder *b)
{
    const int p = b->nranks, r = b->rank, radix = b->radix;
    const int moved_max = p - (p - 1) / radix - 1; /* items of the first round */
    const struct items all = { 1, 1, p - 1 }, resting = { radix, radix, (p - 1) / radix };
    int weight = 1;

    hkt__copy(b, 0, hkt__out(b, r), hkt__in(b, r));
    if (b->in_place && radix >= p)
        hkt__copy(b, 0, slots(b, all), hkt__range(b, HKT__IN, r + 1, 1, all.count));
    else if (resting.count > 0)
        hkt__copy(b, 0, slots(b, resting), hkt__range(b, HKT__IN, r + radix, radix, resting.count));
    for (; weight < p; weight *= radix) {
        move_items(b, radix, weight, give_items, p);
        move_items(b, radix, weight, take_items, p + moved_max);
    }
    const struct items settled = { 1, 1, weight / radix - 1 }; /* they do not move in the last round */

    if (settled.count > 0)
        hkt__copy(b, 0, hkt__range(b, HKT__OUT, r - 1, -1, settled.count), slots(b, settled));
}
