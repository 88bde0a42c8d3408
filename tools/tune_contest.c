/* The contests: at each size of each kind of call, algorithms that the model cannot tell apart (within a factor of 2) are timed,
 * and where neighbouring sizes have different winners, so are they between them. What is fastest may hang on where the system
 * puts buffers and channels: the same algorithm of the same size takes up to 1.5 times as long in another start of a program.
 * So all this is done in several starts, each with communicators and buffers of its own, and what counts is the mean of an
 * algorithm's times over them: of logarithms, so that a start that is slow for all of them changes nothing. Who is measured, and
 * who has won, rank 0 decides: logarithms may differ between hosts. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools.h"
#include "tune.h"

#define CONTESTED 2.0      /* times the best prediction: who is slower is not measured */
#define LOST 1.5           /* times the fastest one's time so far: who is slower is not measured in further starts */
#define ODD_BYTES 256      /* larger vectors are measured at odd sizes too */
#define FEW_BYTES 3000000   /* larger vectors, which take long, are measured in FEW_STARTS: they lie on many pages anyway */
#define FEW_STARTS 2
#define LEAST_US 0.001     /* a clock that shows less shows nothing */
#define KINDS_MAX 64       /* of calls */

/** Measured so far of one size: sums of logarithms of times, by how many starts; before that: not measured. */
struct bout {
    double logs[TUNE_ALGOS_MAX];
    int starts[TUNE_ALGOS_MAX];
    bool is_settled;               /* all starts are done */
    int first;                     /* the fastest of the first start; -1: there was no contest */
};

struct contest {
    struct tune_curve curve;
    struct bout bouts[TUNE_SIZES_MAX]; /* of the sizes of the curve's series */
};

static int most_starts(const struct bout *bout, int count)
{
    int most = 0;

    for (int k = 0; k < count; k++)
        most = bout->starts[k] > most ? bout->starts[k] : most;
    return most;
}

/** Who takes part: whoever is predicted to be near the best, and was near it in earlier starts, all of them: means over other starts
 *  say nothing about each other. */
static void find_field(const struct hkt_candidate *candidates, int count, const struct bout *bout, bool *out_which)
{
    const int starts = most_starts(bout, count);
    int best = -1, fastest = -1;

    for (int k = 0; k < count; k++) {
        if (candidates[k].unfit[0] == '\0' && (best < 0 || candidates[k].predicted_us < candidates[best].predicted_us))
            best = k;
        if (starts > 0 && bout->starts[k] == starts && (fastest < 0 || bout->logs[k] < bout->logs[fastest]))
            fastest = k;
    }
    for (int k = 0; k < count; k++) {
        out_which[k] = candidates[k].unfit[0] == '\0' && candidates[k].predicted_us <= CONTESTED * candidates[best].predicted_us;
        if (out_which[k] && fastest >= 0)
            out_which[k] = bout->starts[k] == starts && bout->logs[k] - bout->logs[fastest] <= starts * log(LOST);
    }
}

/** The size as it is measured in a start: in every other one somewhat less, at which blocks and buffers are less well aligned. Small
 *  vectors stay: theirs is a matter of whole cache lines. */
static size_t size_in(const struct tune_rank *rank, enum hkt_coll coll, size_t bytes, int start)
{
    return start % 2 == 0 || bytes < ODD_BYTES ? bytes : tune_round_bytes(rank, coll, bytes / 10 * 9);
}

/** One size in one start. */
static enum hkt_status measure(struct tune_rank *rank, struct contest *contest, int s, int start, const double *prices,
                               struct tune_choices *choices)
{
    struct hkt_candidate candidates[TUNE_ALGOS_MAX];
    struct tune_case c = contest->curve.series.kind;
    struct bout *bout = &contest->bouts[s];
    bool which[TUNE_ALGOS_MAX] = {false};
    double us[TUNE_ALGOS_MAX];
    int fastest = -1, contested = 0;

    c.bytes = contest->curve.series.sizes[s];
    const int count = tune_candidates(rank, &c, prices, candidates);

    if (count < 0)
        return HKT_ERR_INVALID;
    find_field(candidates, count, bout, which);
    enum hkt_status rc = hkt_broadcast(which, which, sizeof which, HKT_UINT8, 0, rank->comm, NULL);

    for (int k = 0; k < count; k++)
        contested += which[k];
    if (rc < 0 || contested < 2)
        return rc; /* nobody to compare with, or nobody near */
    c.bytes = size_in(rank, c.coll, c.bytes, start);
    rc = tune_measure(rank, &c, which, us);

    for (int k = 0; k < count && rc == HKT_OK; k++) {
        if (!which[k])
            continue;
        bout->logs[k] += log(fmax(us[k], LEAST_US));
        bout->starts[k]++;
        if (fastest < 0 || us[k] < us[fastest])
            fastest = k;
    }
    if (bout->first < 0) {
        bout->first = fastest;
        choices->measured++;
    }
    return rc;
}

/** All starts of a size are done: who won, and how far predictions are off. */
static enum hkt_status settle(struct tune_rank *rank, struct contest *contest, int s, const double *prices,
                              struct tune_choices *choices)
{
    struct hkt_candidate candidates[TUNE_ALGOS_MAX];
    struct tune_case c = contest->curve.series.kind;
    struct tune_curve *curve = &contest->curve;
    struct bout *bout = &contest->bouts[s];
    double us[TUNE_ALGOS_MAX] = {0};
    int32_t winner = -1;

    c.bytes = curve->series.sizes[s];
    const int count = tune_candidates(rank, &c, prices, candidates), starts = most_starts(bout, count);

    if (count < 0)
        return HKT_ERR_INVALID;
    for (int k = 0; k < count; k++) {
        if (bout->starts[k] == 0)
            continue;
        us[k] = exp(bout->logs[k] / bout->starts[k]);
        if (bout->starts[k] == starts && (winner < 0 || us[k] < us[winner]))
            winner = k;
    }
    for (int k = 0; k < count; k++)
        if (bout->starts[k] > 0) /* who was left behind lost, however slow the starts after that were */
            curve->ratio[s][k] = (bout->starts[k] < starts ? fmax(us[k], LOST * us[winner]) : us[k]) / candidates[k].predicted_us;
    const enum hkt_status rc = hkt_broadcast(&winner, &winner, 1, HKT_INT32, 0, rank->comm, NULL);

    curve->winner[s] = winner;
    bout->is_settled = true;
    choices->cases++;
    choices->unsteady += winner != bout->first;
    return rc;
}

/** Whether a size is measured in a start. */
static bool is_due(const struct contest *contest, int s, int start)
{
    return !contest->bouts[s].is_settled && start < (contest->curve.series.sizes[s] > FEW_BYTES ? FEW_STARTS : TUNE_STARTS);
}

static bool is_any_due(const struct contest *contests, int count, int start)
{
    for (int i = 0; i < count; i++)
        for (int s = 0; s < contests[i].curve.series.count; s++)
            if (is_due(&contests[i], s, start))
                return true;
    return false;
}

/** All sizes that are not settled, in all starts; the first one is the start that there is. */
static enum hkt_status measure_sizes(struct tune_rank *rank, struct contest *contests, int count, const double *prices,
                                     struct tune_choices *choices)
{
    enum hkt_status rc = HKT_OK;

    for (int start = 0; is_any_due(contests, count, start) && rc == HKT_OK; start++) {
        if (start > 0)
            rc = tune_reopen(rank);
        for (int i = 0; i < count; i++)
            for (int s = 0; s < contests[i].curve.series.count && rc == HKT_OK; s++)
                if (is_due(&contests[i], s, start))
                    rc = measure(rank, &contests[i], s, start, prices, choices);
    }
    for (int i = 0; i < count; i++)
        for (int s = 0; s < contests[i].curve.series.count && rc == HKT_OK; s++)
            if (!contests[i].bouts[s].is_settled)
                rc = settle(rank, &contests[i], s, prices, choices);
    return rc;
}

/** Make room for a size after size number s. */
static void insert_size(struct contest *contest, int s, size_t bytes)
{
    struct tune_curve *curve = &contest->curve;
    const size_t after = (size_t)(curve->series.count - s - 1);

    memmove(&curve->series.sizes[s + 2], &curve->series.sizes[s + 1], after * sizeof curve->series.sizes[0]);
    memmove(&curve->ratio[s + 2], &curve->ratio[s + 1], after * sizeof curve->ratio[0]);
    memmove(&curve->winner[s + 2], &curve->winner[s + 1], after * sizeof curve->winner[0]);
    memmove(&contest->bouts[s + 2], &contest->bouts[s + 1], after * sizeof contest->bouts[0]);
    memset(&curve->ratio[s + 1], 0, sizeof curve->ratio[0]);
    contest->bouts[s + 1] = (struct bout){.first = -1};
    curve->series.sizes[s + 1] = bytes;
    curve->series.count++;
}

/** Where two sizes have different winners it matters which is the better one between them: look there too. */
static void add_middles(const struct tune_rank *rank, struct contest *contest)
{
    struct tune_curve *curve = &contest->curve;

    for (int s = curve->series.count - 2; s >= 0 && curve->series.count < TUNE_SIZES_MAX; s--) {
        const size_t low = curve->series.sizes[s], high = curve->series.sizes[s + 1];
        const size_t middle = tune_round_bytes(rank, curve->series.kind.coll, tune_between(low, high));

        if (curve->winner[s] != curve->winner[s + 1] && middle > low && middle < high)
            insert_size(contest, s, middle);
    }
}

/** Was anything of it measured? What was not is left to predictions. */
static bool is_contested(const struct contest *contest)
{
    for (int s = 0; s < contest->curve.series.count; s++)
        if (contest->bouts[s].first >= 0)
            return true;
    return false;
}

enum hkt_status tune_contest(struct tune_rank *rank, const double *prices, struct tune_choices *choices)
{
    struct contest *contests = calloc(KINDS_MAX, sizeof *contests);
    int count = 0;

    if (contests == NULL) {
        hkt_tool_say("tune", "no memory for %d kinds of calls", KINDS_MAX);
        return HKT_ERR_NOMEM;
    }
    while (count < KINDS_MAX && tune_series_get(rank, count, rank->options->factor, &contests[count].curve.series)) {
        for (int s = 0; s < TUNE_SIZES_MAX; s++)
            contests[count].bouts[s].first = -1;
        count++;
    }
    enum hkt_status rc = measure_sizes(rank, contests, count, prices, choices);

    for (int i = 0; i < count; i++)
        add_middles(rank, &contests[i]);
    if (rc == HKT_OK)
        rc = measure_sizes(rank, contests, count, prices, choices);
    for (int i = 0; i < count && rc == HKT_OK; i++)
        if (is_contested(&contests[i]) && !tune_choose(rank, &contests[i].curve, prices, choices))
            rc = HKT_ERR_INVALID;
    free(contests);
    return rc;
}
