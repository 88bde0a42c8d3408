/* From times at a few sizes to choices at all of them. The best algorithm at one size is not the best up to the middle of the
 * next. So between two sizes each algorithm is taken to be off its prediction by as much as
 * it was found to be at both, in proportion (of logarithms), and the least of these times wins. Small differences do not change
 * the choice: they are noise. */
#include <math.h>

#include "tools.h"
#include "tune.h"

#define STEPS 4         /* looks between two measured sizes, as quotients of equal size */
#define SPAN 4          /* a choice holds for sizes up to so many times its smallest, whose time it tells */
#define BETTER 0.97     /* what another algorithm must take of the time of the one chosen for a smaller size */

/** What is chosen at a size. */
struct pick {
    size_t bytes;
    int algo;           /* -1: nothing yet */
    const char *name;
    double us;
};

size_t tune_between(size_t a, size_t b)
{
    return (size_t)sqrt((double)a * (double)b);
}

/** By how much times differ from predictions, of algorithm k between the sizes s and s + 1; 1 where nothing is known. */
static double correction(const struct tune_curve *curve, int s, double share, int k)
{
    const double low = curve->ratio[s][k], high = s + 1 < curve->series.count ? curve->ratio[s + 1][k] : 0;

    if (low > 0 && high > 0)
        return exp((1 - share) * log(low) + share * log(high));
    return low > 0 ? low : high > 0 ? high : 1;
}

/** What is asked about a size: a share of the way from size number s to the next, by these prices. */
struct look {
    int s;
    double share;
    const double *prices;
};

/** The choice at pick->bytes; in: at the size before. False: there is none. */
static bool best_at(const struct tune_rank *rank, const struct tune_curve *curve, const struct look *look,
                    struct pick *pick)
{
    struct hkt_candidate candidates[TUNE_ALGOS_MAX];
    struct tune_case c = curve->series.kind;
    double us[TUNE_ALGOS_MAX];
    int best = -1;

    c.bytes = pick->bytes;
    const int count = tune_candidates(rank, &c, look->prices, candidates);

    for (int k = 0; k < count; k++) {
        us[k] = candidates[k].predicted_us * correction(curve, look->s, look->share, k);
        if (candidates[k].unfit[0] == '\0' && (best < 0 || us[k] < us[best]))
            best = k;
    }
    if (best < 0)
        return false;
    if (pick->algo >= 0 && pick->algo < count && candidates[pick->algo].unfit[0] == '\0' && us[best] > BETTER * us[pick->algo])
        best = pick->algo;
    pick->algo = best;
    pick->name = candidates[best].algo;
    pick->us = us[best];
    return true;
}

/** A choice for sizes from the last one's end up to `to`; the same choice makes the last one longer. */
static void extend(struct tune_choices *choices, const struct tune_curve *curve, const struct pick *pick, int first, size_t to)
{
    struct hkt_tuned *last = choices->count > first ? &choices->list[choices->count - 1] : NULL;

    if (last != NULL && last->algo == pick->name && pick->bytes < SPAN * last->bytes_from) {
        last->bytes_to = to;
        return;
    }
    choices->is_full |= choices->count == TUNE_CHOICES_MAX;
    if (choices->is_full)
        return;
    choices->list[choices->count++] = (struct hkt_tuned){
        .coll = curve->series.kind.coll, .in_place = curve->series.kind.in_place, .registered = curve->series.kind.registered,
        .bytes_from = last == NULL ? 0 : last->bytes_to + 1, .bytes_to = to, .algo = pick->name, .measured_us = pick->us};
}

bool tune_choose(const struct tune_rank *rank, const struct tune_curve *curve, const double *prices,
                 struct tune_choices *choices)
{
    const struct tune_series *series = &curve->series;
    struct pick pick = {.algo = -1};
    const int first = choices->count, looks = (series->count - 1) * STEPS + 1;

    for (int i = 0; i < looks; i++) {
        const struct look look = {i / STEPS, (double)(i % STEPS) / STEPS, prices};
        const double low = fmax(1, (double)series->sizes[look.s]);
        const double high = look.s + 1 < series->count ? (double)series->sizes[look.s + 1] : low;
        const double step = pow(high / low, 1.0 / STEPS);

        pick.bytes = series->sizes[look.s] == 0 ? 0 : (size_t)(low * pow(high / low, look.share));
        if (!best_at(rank, curve, &look, &pick))
            return false;
        extend(choices, curve, &pick, first,
               i == looks - 1 ? TUNE_BYTES_MAX : tune_between(pick.bytes, (size_t)((double)pick.bytes * step)));
    }
    return true;
}
