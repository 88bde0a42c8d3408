/* The fit of prices: predicted times are sums of amounts times prices, so prices follow from measured times by least squares,
 * of relative errors, since 10 % of a microsecond matters to its caller as 10 % of a millisecond does. Samples that lie far
 * off weigh less (iterated reweighting), prices that no sample depends on stay (a weak pull to where they were), and none may
 * leave a sane range. What is dearest in a prediction, and so which amounts count, depends on the prices: hence some rounds of
 * predicting and fitting. A link that carries much less than it says is dearest nowhere to begin with, and its price would stay: so
 * a fit that begins with a slow one is made as well, and the better one taken. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools.h"
#include "tune.h"

#define FITS 6           /* of predicting and fitting */
#define REWEIGHTS 4
#define SWEEPS 100       /* of coordinate descent */
#define PULL 0.3         /* one sample's weight is 1 */
#define SCALE_MIN 0.05
#define SCALE_MAX 20.0
#define SLOW_LINK 32     /* times slower than held */
#define SLOW_BETTER 0.9  /* of the error, or the first fit is taken */

bool tune_samples_add(struct tune_samples *samples, const struct tune_sample *sample)
{
    if (samples->count == samples->capacity) {
        const int capacity = samples->capacity == 0 ? 256 : samples->capacity * 2;
        struct tune_sample *list = realloc(samples->list, (size_t)capacity * sizeof *list);

        if (list == NULL) {
            hkt_tool_say("tune", "no memory for %d samples", capacity);
            return false;
        }
        samples->list = list;
        samples->capacity = capacity;
    }
    samples->list[samples->count++] = *sample;
    return true;
}

/** Rows of the fit: terms of each sample over its measured time, so that the sum should be 1. */
struct rows {
    double (*terms)[HKT_PRICE_COUNT];
    double *weights, *residues;
    int count;
};

static bool fill_rows(const struct tune_rank *rank, const struct tune_samples *samples, const double *prices,
                      struct rows *rows)
{
    struct hkt_candidate candidates[TUNE_ALGOS_MAX];

    for (int i = 0; i < samples->count; i++) {
        const struct tune_sample *sample = &samples->list[i];

        if (tune_candidates(rank, &sample->c, prices, candidates) <= sample->algo)
            return false;
        for (int k = 0; k < HKT_PRICE_COUNT; k++)
            rows->terms[i][k] = candidates[sample->algo].terms_us[k] / sample->measured_us;
    }
    rows->count = samples->count;
    return true;
}

/** residues = 1 - sum of terms times scales. */
static void find_residues(struct rows *rows, const double *scales)
{
    for (int i = 0; i < rows->count; i++) {
        rows->residues[i] = 1;
        for (int k = 0; k < HKT_PRICE_COUNT; k++)
            rows->residues[i] -= rows->terms[i][k] * scales[k];
    }
}

/** The best value of one scale, the others as they are; bounds and pull included. */
static void improve_scale(struct rows *rows, double *scales, int k)
{
    double up = PULL * (1 - scales[k]), down = PULL;

    for (int i = 0; i < rows->count; i++) {
        up += rows->weights[i] * rows->terms[i][k] * rows->residues[i];
        down += rows->weights[i] * rows->terms[i][k] * rows->terms[i][k];
    }
    const double wanted = scales[k] + up / down;
    const double scale = wanted < SCALE_MIN ? SCALE_MIN : wanted > SCALE_MAX ? SCALE_MAX : wanted;

    for (int i = 0; i < rows->count; i++)
        rows->residues[i] -= rows->terms[i][k] * (scale - scales[k]);
    scales[k] = scale;
}

static void find_scales(struct rows *rows, double scales[HKT_PRICE_COUNT])
{
    for (int k = 0; k < HKT_PRICE_COUNT; k++)
        scales[k] = 1;
    for (int i = 0; i < rows->count; i++)
        rows->weights[i] = 1;
    for (int reweight = 0; reweight < REWEIGHTS; reweight++) {
        find_residues(rows, scales);
        for (int sweep = 0; sweep < SWEEPS; sweep++)
            for (int k = 0; k < HKT_PRICE_COUNT; k++)
                improve_scale(rows, scales, k);
        for (int i = 0; i < rows->count; i++)
            rows->weights[i] = 0.15 / fmax(0.15, fabs(rows->residues[i]));
    }
    find_residues(rows, scales);
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median_error(struct rows *rows)
{
    for (int i = 0; i < rows->count; i++)
        rows->residues[i] = fabs(rows->residues[i]);
    qsort(rows->residues, (size_t)rows->count, sizeof(double), compare_doubles);
    return rows->count > 0 ? rows->residues[rows->count / 2] : 0;
}

static double fit_from(const struct tune_rank *rank, const struct tune_samples *samples, double prices[HKT_PRICE_COUNT])
{
    const size_t n = (size_t)samples->count + 1;
    struct rows rows = {.terms = calloc(n, sizeof *rows.terms), .weights = calloc(n, sizeof(double)),
                        .residues = calloc(n, sizeof(double))};
    double scales[HKT_PRICE_COUNT], error = -1;

    if (rows.terms == NULL || rows.weights == NULL || rows.residues == NULL)
        hkt_tool_say("tune", "no memory to fit %d samples", samples->count);
    else
        for (int fit = 0; fit < FITS && fill_rows(rank, samples, prices, &rows); fit++) {
            find_scales(&rows, scales);
            for (int k = 0; k < HKT_PRICE_COUNT; k++)
                prices[k] *= sqrt(scales[k]); /* half the way: what is dearest may change on it */
            if (fit == FITS - 1 && fill_rows(rank, samples, prices, &rows)) {
                for (int k = 0; k < HKT_PRICE_COUNT; k++)
                    scales[k] = 1;
                find_residues(&rows, scales);
                error = median_error(&rows);
            }
        }
    free(rows.terms);
    free(rows.weights);
    free(rows.residues);
    return error;
}

double tune_fit(const struct tune_rank *rank, const struct tune_samples *samples, double prices[HKT_PRICE_COUNT])
{
    double slow[HKT_PRICE_COUNT];

    memcpy(slow, prices, sizeof slow);
    for (int k = 0; k < HKT_PRICE_COUNT; k++) {
        struct hkt_price price;

        if (hkt_price_get(k, &price) == HKT_OK && strcmp(price.name, "net_wire_ns_per_byte") == 0)
            slow[k] *= SLOW_LINK;
    }
    const double error = fit_from(rank, samples, prices);
    const double slow_error = error < 0 ? -1 : fit_from(rank, samples, slow);

    if (slow_error < 0 || slow_error >= SLOW_BETTER * error)
        return error;
    memcpy(prices, slow, sizeof slow);
    return slow_error;
}
