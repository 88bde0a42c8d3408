/* `hocket tune --check`: what the choice costs against the best that could have been chosen (regret), and how far predictions
 * are off. The least of several noisy figures is too good to be true, so it only says whom to measure again: the chosen and
 * that rival, in turns, and the chosen against itself, which shows what of the regret is noise. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools.h"
#include "tune.h"

#define OFF 0.15 /* a prediction that is further off gets its largest term named */

/** All figures of all cases. */
struct tally {
    double *regrets, *noises, *chosen_errors; /* capacity each */
    double *errors;                           /* capacity times TUNE_ALGOS_MAX */
    int cases, measured, capacity;
    int blamed[HKT_PRICE_COUNT];              /* cases whose prediction is off, by its largest term */
    cJSON *json;
};

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double quantile(double *values, int count, double share)
{
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return count > 0 ? values[(int)ceil(count * share) - 1] : 0;
}

static double mean(const double *values, int count)
{
    double sum = 0;

    for (int i = 0; i < count; i++)
        sum += values[i];
    return count > 0 ? sum / count : 0;
}

static void add_json(struct tally *tally, const struct tune_case *c, const struct hkt_candidate *candidate, double us)
{
    cJSON *row = cJSON_CreateObject();

    cJSON_AddStringToObject(row, "collective", hkt_coll_name(c->coll));
    cJSON_AddNumberToObject(row, "bytes", (double)c->bytes);
    cJSON_AddBoolToObject(row, "in_place", c->in_place);
    cJSON_AddBoolToObject(row, "registered", c->registered);
    cJSON_AddStringToObject(row, "algorithm", candidate->algo);
    cJSON_AddBoolToObject(row, "chosen", candidate->chosen);
    cJSON_AddNumberToObject(row, "predicted_us", candidate->predicted_us);
    cJSON_AddNumberToObject(row, "measured_us", us);
    cJSON_AddItemToObject(row, "terms_us", cJSON_CreateDoubleArray(candidate->terms_us, HKT_PRICE_COUNT));
    cJSON_AddItemToArray(tally->json, row);
}

/** A prediction's largest term: the first to doubt where it is off. */
static int largest_term(const struct hkt_candidate *candidate)
{
    int largest = 0;

    for (int k = 1; k < HKT_PRICE_COUNT; k++)
        if (candidate->terms_us[k] > candidate->terms_us[largest])
            largest = k;
    return largest;
}

/** End of a case's line. */
static void print_blame(const struct hkt_candidate *chosen, double us)
{
    const double off = chosen->predicted_us / us - 1;
    const int largest = largest_term(chosen);
    struct hkt_price price;

    if (fabs(off) > OFF && hkt_price_get(largest, &price) == HKT_OK)
        printf("  prediction %+.0f %%, most of it %s (%.0f %%)", off * 100, price.name,
               100 * chosen->terms_us[largest] / chosen->predicted_us);
    putchar('\n');
}

/** A case's candidates and their times. */
struct checked {
    struct hkt_candidate candidates[TUNE_ALGOS_MAX];
    double us[TUNE_ALGOS_MAX];
    int count, best, chosen; /* -1: none */
};

static void find_best(struct checked *checked)
{
    checked->best = checked->chosen = -1;
    for (int k = 0; k < checked->count; k++) {
        if (checked->candidates[k].unfit[0] != '\0')
            continue;
        if (checked->best < 0 || checked->us[k] < checked->us[checked->best])
            checked->best = k;
        if (checked->candidates[k].chosen)
            checked->chosen = k;
    }
}

/** One case's figures; rank 0 prints its line. */
static void add_case(struct tally *tally, const struct tune_case *c, const struct checked *checked, const struct tune_duel *duel)
{
    const double regret = fmax(0, duel->ratio - 1), *us = checked->us;
    const struct hkt_candidate *candidates = checked->candidates, *chosen = &candidates[checked->chosen];
    char text[96];

    for (int k = 0; k < checked->count; k++) {
        if (candidates[k].unfit[0] != '\0')
            continue;
        const double error = fabs(candidates[k].predicted_us / us[k] - 1);

        tally->errors[tally->measured++] = error;
        if (error > OFF)
            tally->blamed[largest_term(&candidates[k])]++;
        if (tally->json != NULL)
            add_json(tally, c, &candidates[k], us[k]);
    }
    tally->chosen_errors[tally->cases] = fabs(chosen->predicted_us / us[checked->chosen] - 1);
    tally->noises[tally->cases] = fmax(0, duel->self - 1);
    tally->regrets[tally->cases++] = regret;
    printf("%-52s %-20s %10.2f us (predicted %10.2f) %-20s %10.2f us  regret %5.1f %%",
           tune_case_text(c, text, sizeof text), chosen->algo, us[checked->chosen], chosen->predicted_us,
           candidates[checked->best].algo, us[checked->best], regret * 100);
    print_blame(chosen, us[checked->chosen]);
}

static enum hkt_status check_case(struct tune_rank *rank, const struct tune_case *c, struct tally *tally)
{
    struct checked checked;
    struct tune_duel duel = {1, 1};
    bool which[TUNE_ALGOS_MAX] = {false};

    checked.count = tune_candidates(rank, c, NULL, checked.candidates);
    for (int k = 0; k < checked.count; k++)
        which[k] = checked.candidates[k].unfit[0] == '\0';
    enum hkt_status rc = checked.count < 0 ? HKT_ERR_INVALID : tune_measure(rank, c, which, checked.us);

    if (rc < 0)
        return rc;
    find_best(&checked); /* alike on all ranks, as the times are */
    if (checked.chosen < 0)
        return HKT_OK;
    if (checked.best != checked.chosen)
        rc = tune_duel(rank, c, checked.chosen, checked.best, &duel);
    if (rc == HKT_OK && rank->rank == 0)
        add_case(tally, c, &checked, &duel);
    return rc;
}

static bool write_json(const char *path, cJSON *json)
{
    char *text = cJSON_PrintUnformatted(json);
    FILE *file = text != NULL ? fopen(path, "we") : NULL;
    bool ok = file != NULL && fputs(text, file) >= 0;

    if (file != NULL)
        ok &= fclose(file) == 0;
    cJSON_free(text);
    if (!ok)
        hkt_tool_say("tune", "%s could not be written", path);
    return ok;
}

/** Rank 0 finds out before hours of measuring; all ranks go on only if it can. */
static bool can_write_json(const struct tune_rank *rank)
{
    const char *path = rank->options->json_path;
    FILE *file = rank->rank == 0 && path != NULL ? fopen(path, "ae") : NULL;
    int32_t is_good = file != NULL || path == NULL;

    if (rank->rank == 0 && !is_good)
        hkt_tool_say("tune", "%s cannot be written: %s", path, strerror(errno));
    if (file != NULL)
        fclose(file);
    return hkt_broadcast(&is_good, &is_good, 1, HKT_INT32, 0, rank->comm, NULL) == HKT_OK && is_good;
}

static void print_summary(struct tally *tally, const struct tune_rank *rank)
{
    struct hkt_price price;
    int worst = 0;

    for (int k = 1; k < HKT_PRICE_COUNT; k++)
        worst = tally->blamed[k] > tally->blamed[worst] ? k : worst;
    printf("%d ranks over %s, %s: %d cases; regret mean %.1f %%, p90 %.1f %%, p99 %.1f %%; prediction error median %.0f %% "
           "(of the chosen %.0f %%) over %d measurements; the chosen against itself: mean %.1f %%, p99 %.1f %%\n",
           rank->nranks, hkt_comm_route(rank->comm), hkt_comm_is_tuned(rank->comm) ? "by measured choices" : "by defaults",
           tally->cases, mean(tally->regrets, tally->cases) * 100, quantile(tally->regrets, tally->cases, 0.9) * 100,
           quantile(tally->regrets, tally->cases, 0.99) * 100, quantile(tally->errors, tally->measured, 0.5) * 100,
           quantile(tally->chosen_errors, tally->cases, 0.5) * 100, tally->measured, mean(tally->noises, tally->cases) * 100,
           quantile(tally->noises, tally->cases, 0.99) * 100);
    if (tally->blamed[worst] > 0 && hkt_price_get(worst, &price) == HKT_OK)
        printf("off by more than 15 %%: most often where %s counts most (%d times): %s\n", price.name, tally->blamed[worst],
               price.help);
}

/** How many cases there are. */
static int count_cases(const struct tune_rank *rank)
{
    struct tune_series series;
    int cases = 0;

    for (int i = 0; tune_series_get(rank, i, rank->options->factor, &series); i++)
        cases += series.count;
    return cases;
}

int tune_check(struct tune_rank *rank)
{
    struct tally tally = {.capacity = count_cases(rank) + 1};
    struct tune_series series;
    enum hkt_status rc = HKT_OK;
    bool ok = true;

    if (!can_write_json(rank))
        return TOOL_FAILED;
    tally.regrets = calloc((size_t)tally.capacity * (3 + TUNE_ALGOS_MAX), sizeof(double));
    if (tally.regrets == NULL) {
        hkt_tool_say("tune", "no memory for %d cases", tally.capacity);
        return TOOL_FAILED;
    }
    tally.noises = tally.regrets + tally.capacity;
    tally.chosen_errors = tally.noises + tally.capacity;
    tally.errors = tally.chosen_errors + tally.capacity;
    tally.json = rank->rank == 0 && rank->options->json_path != NULL ? cJSON_CreateArray() : NULL;
    for (int i = 0; rc == HKT_OK && tune_series_get(rank, i, rank->options->factor, &series); i++)
        for (int s = 0; s < series.count && rc == HKT_OK; s++) {
            struct tune_case c = series.kind;

            c.bytes = series.sizes[s];
            rc = check_case(rank, &c, &tally);
        }
    if (rc < 0)
        hkt_tool_say("tune", "rank %d: %s: %s", rank->rank, hkt_status_name(rc), hkt_last_error());
    else if (rank->rank == 0)
        print_summary(&tally, rank);
    if (tally.json != NULL && rc == HKT_OK)
        ok = write_json(rank->options->json_path, tally.json);
    cJSON_Delete(tally.json);
    free(tally.regrets);
    return rc == HKT_OK && ok ? TOOL_OK : TOOL_FAILED;
}
