/* Costs as functions of p: see formulas.h. The tests compare them with what the verifier counts. */
#include "algos/formulas.h"

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

double hkt__rounds_1(int p)
{
    return p > 1 ? 1 : 0;
}

double hkt__rounds_2(int p)
{
    return p > 1 ? 2 : 0;
}

double hkt__rounds_3(int p)
{
    return p > 1 ? 3 : 0;
}

double hkt__rounds_log(int p)
{
    return ceil_log(p);
}

double hkt__rounds_2_log(int p)
{
    return 2 * ceil_log(p);
}

double hkt__rounds_linear(int p)
{
    return p - 1;
}

double hkt__rounds_2_linear(int p)
{
    return 2 * (p - 1);
}

double hkt__rounds_half(int p)
{
    return p / 2;
}

static int fold_rounds(int p)
{
    return hkt__is_pow2((unsigned)p) ? 0 : 2;
}

double hkt__rounds_doubling(int p)
{
    return floor_log(p) + fold_rounds(p);
}

double hkt__rounds_rabenseifner(int p)
{
    return 2 * floor_log(p) + fold_rounds(p);
}

double hkt__rounds_tree(int p)
{
    return 2 * hkt__btree_depth(p);
}

double hkt__volume_0(int p)
{
    (void)p;
    return 0;
}

double hkt__volume_1(int p)
{
    return p > 1 ? 1 : 0;
}

double hkt__volume_share(int p)
{
    return (double)(p - 1) / p;
}

double hkt__volume_2_share(int p)
{
    return 2 * (double)(p - 1) / p;
}

double hkt__volume_linear(int p)
{
    return p - 1;
}

double hkt__volume_log(int p)
{
    return ceil_log(p);
}

static double fold_volume(int p)
{
    return hkt__is_pow2((unsigned)p) ? 0 : 1;
}

double hkt__volume_doubling(int p)
{
    return floor_log(p) + fold_volume(p);
}

double hkt__volume_rabenseifner(int p)
{
    const double survivors = 1 << floor_log(p);

    return 2 * (survivors - 1) / survivors + fold_volume(p);
}

/* Messages of half the vector that a rank sends over both trees. */
double hkt__volume_tree(int p)
{
    int max = 0;

    for (int rank = 0; rank < p; rank++) {
        const struct hkt__btree tree = hkt__btree(p, rank), twin = hkt__btree_twin(p, rank);
        const int halves = (tree.parent >= 0) + (twin.parent >= 0) + tree.nchildren + twin.nchildren;

        if (halves > max)
            max = halves;
    }
    return max / 2.0;
}

double hkt__volume_bruck(int p)
{
    int64_t digits = 0;

    for (int item = 1; item < p; item++)
        digits += __builtin_popcount((unsigned)item);
    return (double)digits / p;
}
