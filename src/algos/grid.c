/* All-to-all by the digits of ranks: first every rank sends to the others of its group of the innermost level (levels.h) what
 * is for ranks of their place, then, at each level outwards, what it got so far. A block travels once per level; what leaves a
 * host goes in one message to each other host. On a grid p = a b, near a square, these are its rows and columns.
 *
 * Cost: a round of g - 1 messages and (g-1)/g n for each level of g members. Source: folklore; the two-digit case is in Bruck
 *   et al., IEEE TPDS 8(11), 1997, and Tutel (Hwang et al., MLSys 2023). */
#include "algos/builders.h"
#include "algos/levels.h"
#include "algos/patterns.h"

/* Between levels the p blocks of a rank lie in one area of scratch. The block's number has the digits of where it goes, those
 * of the levels done replaced by where it comes from, and the next level's is the last digit: so what one member is to have
 * lies a group's size apart, and what it sends is a run, in front of which the level's digit becomes the first. After the
 * outermost level that is the order of OUT. */
static struct hkt__operand blocks(struct hkt__builder *b, enum hkt__buf buf, int area, struct hkt__span at, int count)
{
    if (buf != HKT__SCRATCH)
        return hkt__range(b, buf, at.start, at.stride, count);
    return hkt__slots(b, area * b->nranks + at.start, at.stride, hkt__range(b, HKT__IN, 0, 0, count));
}

static void exchange_by_levels(struct hkt__builder *b, const struct hkt__levels *levels)
{
    for (int i = 0; i < levels->count; i++) {
        const struct hkt__level level = hkt__level(levels, i, b->rank);
        const int count = b->nranks / level.size, area = i % 2;
        const enum hkt__buf from = i == 0 ? HKT__IN : HKT__SCRATCH, to = i < levels->count - 1 ? HKT__SCRATCH : HKT__OUT;

        for (int k = 0; k < level.size; k++) {
            const int next = (level.at + k) % level.size, prev = (level.at - k + level.size) % level.size;
            const struct hkt__operand given = blocks(b, from, 1 - area, (struct hkt__span){ next, level.size, 0 }, count);
            const struct hkt__operand taken = blocks(b, to, area, (struct hkt__span){ prev * count, 1, 0 }, count);

            if (k == 0) {
                hkt__copy(b, 0, taken, given);
                continue;
            }
            hkt__send(b, hkt__level_member(&level, b->rank, next), 0, given);
            hkt__recv(b, hkt__level_member(&level, b->rank, prev), 0, taken);
        }
    }
}

void hkt__build_all_to_all_hierarchical(struct hkt__builder *b)
{
    const struct hkt__levels levels = hkt__levels_of(b);

    if (levels.count == 1) /* one level has no scratch between two */
        hkt__build_all_to_all_pairwise(b);
    else
        exchange_by_levels(b, &levels);
}

void hkt__build_all_to_all_grid(struct hkt__builder *b)
{
    const int width = hkt__near_square(b->nranks);
    const struct hkt__levels levels = { 2, { width, b->nranks / width }, 0 };

    exchange_by_levels(b, &levels);
}
