/* Costs as functions of p: see formulas.h. A test compares them with what the verifier counts. */
#include "algos/formulas.h"

#include "algos/levels.h"
#include "algos/patterns.h"
#include "core/bits.h"

static int ceil_log(int p)
{
    return hkt__log2_ceil((unsigned)p);
}

static int floor_log(int p)
{
    return hkt__log2_floor((unsigned)p);
}

static bool is_folded(int p)
{
    return !hkt__is_pow2((unsigned)p);
}

double hkt__cost_0(int p)
{
    (void)p;
    return 0;
}

double hkt__cost_1(int p)
{
    return p > 1 ? 1 : 0;
}

double hkt__cost_2(int p)
{
    return p > 1 ? 2 : 0;
}

double hkt__cost_log(int p)
{
    return ceil_log(p);
}

double hkt__cost_2_log(int p)
{
    return 2 * ceil_log(p);
}

double hkt__cost_log_floor(int p)
{
    return floor_log(p);
}

double hkt__cost_log_both(int p)
{
    return ceil_log(p) + floor_log(p);
}

double hkt__cost_linear(int p)
{
    return p - 1;
}

double hkt__cost_2_linear(int p)
{
    return 2 * (p - 1);
}

double hkt__cost_half(int p)
{
    return p / 2;
}

int hkt__borrowers(int p)
{
    return p - 1 < 8 ? p - 1 : 8;
}

double hkt__rounds_borrow(int p)
{
    return p > 1 ? 2.0 * ((p - 2) / hkt__borrowers(p) + 1) : 0;
}

double hkt__cost_block(int p)
{
    return p > 1 ? 1.0 / p : 0;
}

double hkt__cost_share(int p)
{
    return (double)(p - 1) / p;
}

double hkt__cost_2_share(int p)
{
    return 2 * (double)(p - 1) / p;
}

double hkt__rounds_doubling(int p)
{
    return floor_log(p) + (is_folded(p) ? 2 : 0);
}

double hkt__messages_doubling(int p)
{
    return floor_log(p) + (is_folded(p) ? 1 : 0);
}

double hkt__rounds_rabenseifner(int p)
{
    return 2 * floor_log(p) + (is_folded(p) ? 2 : 0);
}

double hkt__messages_rabenseifner(int p)
{
    return 2 * floor_log(p) + (is_folded(p) ? 1 : 0);
}

double hkt__volume_rabenseifner(int p)
{
    const double survivors = 1 << floor_log(p);

    return 2 * (survivors - 1) / survivors + (is_folded(p) ? 1 : 0);
}

/* Messages one after the other until `rank` has the sum of its subtree: its children's count one each, and the subtree
 * of the last child is full, with 2 a level. */
static int summed_after(int nranks, int rank)
{
    const struct hkt__btree tree = hkt__btree(nranks, rank);
    int after = 0;

    if (tree.nchildren == 0)
        return 0;
    if (tree.nchildren == 2)
        after = summed_after(nranks, tree.children[0]) + 1; /* at most log2 p deep */
    const int full = 2 * floor_log(rank - tree.children[tree.nchildren - 1]);

    return (after > full ? after : full) + 1;
}

double hkt__rounds_tree(int p)
{
    return p == 1 ? 0 : summed_after(p, hkt__btree(p, 0).children[0]) + 1 + ceil_log(p);
}

double hkt__rounds_tree_up(int p)
{
    return p == 1 ? 0 : summed_after(p, hkt__btree(p, 0).children[0]) + 1;
}

/* An inner rank sends 3 halves in one tree and 1, as a leaf, in the other; smaller trees have no such rank. */
double hkt__messages_tree(int p)
{
    return p == 1 ? 0 : p < 4 ? p : 4;
}

double hkt__volume_tree(int p)
{
    return hkt__messages_tree(p) / 2;
}

/* Each link of the root carries 4 blocks, the last of which goes on to the farthest rank; found by the verifier for p up to
 * 200, for other p than powers of two with one round more at most. */
double hkt__rounds_blocks(int p)
{
    return p == 1 ? 0 : p == 2 ? 4 : ceil_log(p) + (is_folded(p) ? 5 : 4);
}

/* The root sends the last block to L ranks, for want of another. */
double hkt__messages_blocks(int p)
{
    return p == 1 ? 0 : hkt__block_count(p) + ceil_log(p) - 1;
}

double hkt__volume_blocks(int p)
{
    return p == 1 ? 0 : hkt__messages_blocks(p) / hkt__block_count(p);
}

/* Digits of p - 1, the largest distance. */
static int digits(int p, int radix)
{
    int count = 0;

    for (int rest = p - 1; rest > 0; rest /= radix)
        count++;
    return count;
}

/* Messages of all-to-all by digits: one for each value of each that is not 0 and occurs. */
static int digit_values(int p, int radix)
{
    int count = 0;

    for (int rest = p - 1; rest > 0; rest /= radix)
        count += rest < radix ? rest : radix - 1;
    return count;
}

/* Blocks travel once per digit that is not 0. */
static double digits_not_0(int p, int radix)
{
    int64_t count = 0;

    for (int item = 1; item < p; item++)
        for (int rest = item; rest > 0; rest /= radix)
            count += rest % radix != 0;
    return (double)count / p;
}

static int divisions(int p, int radix)
{
    return hkt__dividing(p, radix).rounds;
}

/* Parcels of all rounds of a circulant algorithm. */
static int parcels(int p, int radix)
{
    const struct hkt__halving dividing = hkt__dividing(p, radix);
    int count = 0;

    for (int k = 0; k < dividing.rounds; k++)
        count += (dividing.width[k] - 1) / dividing.width[k + 1];
    return count;
}

#define OF_RADIX(formula, radix, f) \
    double formula##radix(int p) \
    { \
        return f(p, radix); \
    }
OF_RADIX(hkt__rounds_bruck, 3, digits)
OF_RADIX(hkt__rounds_bruck, 4, digits)
OF_RADIX(hkt__rounds_bruck, 8, digits)
OF_RADIX(hkt__messages_bruck, 3, digit_values)
OF_RADIX(hkt__messages_bruck, 4, digit_values)
OF_RADIX(hkt__messages_bruck, 8, digit_values)
OF_RADIX(hkt__volume_bruck, 2, digits_not_0)
OF_RADIX(hkt__volume_bruck, 3, digits_not_0)
OF_RADIX(hkt__volume_bruck, 4, digits_not_0)
OF_RADIX(hkt__volume_bruck, 8, digits_not_0)
OF_RADIX(hkt__rounds_circulant, 4, divisions)
OF_RADIX(hkt__rounds_circulant, 8, divisions)
OF_RADIX(hkt__messages_circulant, 4, parcels)
OF_RADIX(hkt__messages_circulant, 8, parcels)
#undef OF_RADIX

double hkt__messages_grid(int p)
{
    const int width = hkt__near_square(p);

    return p == 1 ? 0 : width + p / width - 2;
}

double hkt__volume_grid(int p)
{
    const int width = hkt__near_square(p);

    return p == 1 ? 0 : (2.0 * p - width - p / width) / p;
}

double hkt__rounds_levels(int p)
{
    return p == 1 ? 0 : hkt__levels_default(p).count;
}

double hkt__rounds_2_levels(int p)
{
    return 2 * hkt__rounds_levels(p);
}

static int one_less(int size)
{
    return size - 1;
}

static double sum_over_levels(int p, int (*of)(int size))
{
    const struct hkt__levels levels = hkt__levels_default(p);
    int sum = 0;

    for (int i = 0; i < levels.count; i++)
        sum += of(levels.sizes[i]);
    return sum;
}

double hkt__messages_levels(int p)
{
    return sum_over_levels(p, one_less);
}

double hkt__rounds_levels_both(int p)
{
    return hkt__messages_levels(p) + hkt__rounds_levels(p);
}

double hkt__messages_2_levels(int p)
{
    return 2 * sum_over_levels(p, one_less);
}

double hkt__volume_levels(int p)
{
    const struct hkt__levels levels = hkt__levels_default(p);
    double shares = 0;

    for (int i = 0; i < levels.count; i++)
        shares += hkt__cost_share(levels.sizes[i]);
    return shares;
}

double hkt__rounds_levels_down(int p)
{
    return sum_over_levels(p, floor_log);
}

double hkt__rounds_levels_up(int p)
{
    return sum_over_levels(p, ceil_log);
}

/* Ranks that speak for their group. */
static int leaders(int p)
{
    const struct hkt__levels levels = hkt__levels_default(p);

    return hkt__levels_led(&levels) > 0 ? p / levels.sizes[0] : p;
}

double hkt__rounds_leaders(int p)
{
    return (leaders(p) < p ? p / leaders(p) : 0) + hkt__rounds_doubling(leaders(p));
}

double hkt__messages_leaders(int p)
{
    return p / leaders(p) - 1 + hkt__messages_doubling(leaders(p));
}

double hkt__rounds_leaders_gather(int p)
{
    return (leaders(p) < p ? 2 : 0) + ceil_log(leaders(p));
}

double hkt__messages_leaders_gather(int p)
{
    return p / leaders(p) - 1 + ceil_log(leaders(p));
}

double hkt__volume_leaders_gather(int p)
{
    return p / leaders(p) - 1 + hkt__cost_share(leaders(p));
}
