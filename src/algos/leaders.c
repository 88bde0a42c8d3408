/* By leaders, for small vectors between hosts of several ranks: the first rank of each host collects what its host has, leaders
 * exchange it, and each hands the result on. Of a host one rank alone sends to others, log2 (hosts) messages; other algorithms
 * of so few rounds have every one send as many. For it, two rounds more inside hosts, where they are cheap.
 *
 * All-reduce: leaders exchange whole sums by recursive doubling. All-gather: the blocks of their hosts, on the circulant graph.
 * Inside a host one star per level (levels.h), as in the hierarchical barrier.
 * Source: Sistare, vandeVaart, Loh, Optimization of MPI collectives on clusters of large-scale SMPs, SC 1999. */
#include "algos/builders.h"
#include "algos/levels.h"
#include "algos/patterns.h"

/* Levels below `led` at which the rank is the first of its group. */
static int levels_led_by(const struct hkt__levels *levels, int led, int rank)
{
    int i = 0;

    while (i < led && hkt__level(levels, i, rank).at == 0)
        i++;
    return i;
}

/* Add up IN of the groups that this rank leads into `sum`. */
static struct hkt__operand collect(struct hkt__builder *b, const struct hkt__levels *levels, int led, struct hkt__operand sum)
{
    struct hkt__operand so_far = hkt__in_all(b);

    for (int i = 0; i < led; i++) {
        const struct hkt__level level = hkt__level(levels, i, b->rank);

        for (int j = 1; j < level.size; j++) {
            hkt__recv_reduce(b, hkt__level_member(&level, b->rank, j), 0, sum, so_far);
            so_far = sum;
        }
    }
    return so_far;
}

static void hand_on(struct hkt__builder *b, const struct hkt__levels *levels, int led)
{
    for (int i = led - 1; i >= 0; i--) {
        const struct hkt__level level = hkt__level(levels, i, b->rank);

        for (int j = 1; j < level.size; j++)
            hkt__send(b, hkt__level_member(&level, b->rank, j), 0, hkt__out_all(b));
    }
}

/* All but leaders of hosts, and leaders whose neighbour stands in for them. */
static void go_through(struct hkt__builder *b, const struct hkt__levels *levels, int led, int other)
{
    hkt__send(b, other, 0, collect(b, levels, led, hkt__out_all(b)));
    hkt__recv(b, other, 0, hkt__out_all(b));
    hand_on(b, levels, led);
}

void hkt__build_all_reduce_leaders(struct hkt__builder *b)
{
    const struct hkt__levels levels = hkt__levels_of(b);
    const int outer = hkt__levels_led(&levels), led = levels_led_by(&levels, outer, b->rank);
    const int stride = hkt__level(&levels, outer, b->rank).stride; /* between leaders */

    hkt__set_scratch(b, 1); /* few ranks need it, but all reserve alike */
    if (led < outer) {
        const struct hkt__level level = hkt__level(&levels, led, b->rank);

        go_through(b, &levels, led, hkt__level_member(&level, b->rank, 0));
        return;
    }
    const struct hkt__fold fold = hkt__fold(b->nranks / stride, b->rank / stride);

    if (fold.index < 0) {
        go_through(b, &levels, led, b->rank + stride);
        return;
    }
    struct hkt__operand sum = collect(b, &levels, led, hkt__doubling_start(b, &fold));

    if (fold.has_guest) {
        const struct hkt__operand with_guest = hkt__doubling_start(b, &fold);

        hkt__recv_reduce(b, b->rank - stride, 0, with_guest, sum);
        sum = with_guest;
    }
    hkt__double_sums(b, &fold, stride, sum);
    if (fold.has_guest)
        hkt__send(b, b->rank - stride, 0, hkt__out_all(b));
    hand_on(b, &levels, led);
}

static struct hkt__operand blocks_from(struct hkt__builder *b, int first, int count)
{
    return hkt__range(b, HKT__OUT, first, 1, count);
}

static void gather_blocks(struct hkt__builder *b, const struct hkt__levels *levels, int led)
{
    for (int i = 0; i < led; i++) {
        const struct hkt__level level = hkt__level(levels, i, b->rank);

        for (int j = 1; j < level.size; j++) {
            const int member = hkt__level_member(&level, b->rank, j);

            hkt__recv(b, member, 0, blocks_from(b, member, level.stride));
        }
    }
}

/* As hkt__circulant_all_gather, of the blocks of whole hosts. */
static void exchange_blocks(struct hkt__builder *b, int stride)
{
    const struct hkt__halving halving = hkt__halving(b->nranks / stride);

    for (int k = halving.rounds - 1; k >= 0; k--) {
        const int d = halving.width[k + 1], moved = halving.width[k] - d;
        const struct hkt__operand own = stride == 1 && moved == 1 ? hkt__in(b, 0) : blocks_from(b, b->rank, moved * stride);

        hkt__send(b, hkt__rank_at(b, -d * stride), 0, own);
        hkt__recv(b, hkt__rank_at(b, d * stride), 0, blocks_from(b, b->rank + d * stride, moved * stride));
    }
}

void hkt__build_all_gather_leaders(struct hkt__builder *b)
{
    const struct hkt__levels levels = hkt__levels_of(b);
    const int outer = hkt__levels_led(&levels), led = levels_led_by(&levels, outer, b->rank);

    if (led > 0 || outer == 0) /* else it comes back with all others */
        hkt__copy(b, 0, hkt__out(b, b->rank), hkt__in(b, 0));
    gather_blocks(b, &levels, led);
    if (led < outer) {
        const struct hkt__level level = hkt__level(&levels, led, b->rank);
        const int first = hkt__level_member(&level, b->rank, 0);

        hkt__send(b, first, 0, led == 0 ? hkt__in(b, 0) : blocks_from(b, b->rank, level.stride));
        hkt__recv(b, first, 0, hkt__out_all(b));
    } else {
        exchange_blocks(b, hkt__level(&levels, outer, b->rank).stride);
    }
    hand_on(b, &levels, led);
}
