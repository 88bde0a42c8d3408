/* What could break: the verifier might believe a wrong schedule. Every mutant of every registry row must be rejected,
 * or be shown to be equivalent: a second, naive checker (oracle.c) must find neither a race among all pairs of accesses
 * nor a wrong result in random runs, and the reason why the change does not matter must be one known for its kind. Or
 * it might cry wolf: the naive checker must confirm every race, deadlock and wrong result, and clear the rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "mutants.h"
#include "oracle.h"
#include "registry_cases.h"
#include "sched/lower.h"

enum { MUTATORS_MAX = 16, REASONS_MAX = 8, MUTANTS_PER_CASE = 6, RUNS = 12 };

static const uint64_t seed = 20240917;

struct score {
    int mutants, rejected;
    struct {
        const char *why;
        int count;
    } reasons[REASONS_MAX];
};

static struct score scores[MUTATORS_MAX];

static void count_reason(struct score *score, const char *why)
{
    int i = 0;

    while (i < REASONS_MAX && score->reasons[i].why != NULL && strcmp(score->reasons[i].why, why) != 0)
        i++;
    assert_true(i < REASONS_MAX);
    score->reasons[i].why = why;
    score->reasons[i].count++;
}

/* NULL, or what the naive checker holds against the schedules. */
static const char *second_opinion(struct oracle *o)
{
    const char *why = o == NULL ? "messages do not match" : oracle_find_race(o);

    if (why[0] == '\0')
        why = oracle_run(o, seed, true);
    for (uint64_t run = 0; run < RUNS && why[0] == '\0'; run++)
        why = oracle_run(o, seed + run, false);
    return why[0] == '\0' ? NULL : why;
}

/* Why the change does not matter; NULL: nobody knows. The naive checker has found no fault. */
static const char *explain(const struct cases_plan *plan, const char *mutator, const struct mutant_site *site,
                           struct oracle *mutant)
{
    const struct hkt__sched *sched = plan->scheds[site->rank];
    const struct hkt__step *s = &sched->steps[site->step];
    const char *why = NULL;

    if (strcmp(mutator, "drop a dependency") == 0) {
        struct oracle *original = oracle_create(plan->scheds, plan->nranks);

        why = oracle_same_order(original, mutant) ? "the rest implies it" : "it ordered nothing that conflicts";
        oracle_destroy(original);
    } else if (strcmp(mutator, "swap two steps") == 0) {
        const bool is_sync = s->kind == HKT__SIGNAL || s->kind == HKT__WAIT;
        struct oracle *original = oracle_create(plan->scheds, plan->nranks);

        if (is_sync && sched->steps[site->other].kind == s->kind)
            why = "signals carry nothing";
        else if (s->peer < 0 && !oracle_conflict(original, site->rank, site->step, site->other))
            why = "the two do not depend on each other";
        oracle_destroy(original);
    } else if (strcmp(mutator, "change a chunk") == 0) {
        if (s->kind == HKT__SIGNAL || s->kind == HKT__WAIT)
            why = "the operand of a signal moves nothing";
    } else if (strcmp(mutator, "duplicate a step") == 0) {
        if (s->peer < 0)
            why = "it writes the same again";
    } else if (strcmp(mutator, "swap two arguments") == 0) {
        if (site->other == 0)
            why = "the first two commute";
        else /* the naive checker has compared the bits of all ranks */
            why = sched->coll == HKT_ALL_REDUCE ? "one rank reduces it for all" : "no other rank has this result";
    }
    return why;
}

/* No false alarms: what the verifier calls a race, a deadlock or a wrong result, the naive checker sees too. (Other
 * faults, such as a value that is wrong but never used, it cannot see.) */
static bool is_confirmed(const struct cases_plan *plan, const char *failure)
{
    const bool is_race = strstr(failure, ": race: ") != NULL, is_deadlock = strstr(failure, ": deadlock: ") != NULL;
    const bool is_result = strstr(failure, ": result: ") != NULL || strstr(failure, ": bits: ") != NULL;
    bool confirmed = true;

    if (!is_race && !is_deadlock && !is_result)
        return true;
    struct oracle *o = oracle_create(plan->scheds, plan->nranks);

    if (is_race)
        confirmed = oracle_find_race(o)[0] != '\0';
    else if (is_deadlock)
        confirmed = strcmp(oracle_run(o, seed, true), "deadlock") == 0;
    else
        confirmed = second_opinion(o) != NULL;
    oracle_destroy(o);
    return confirmed;
}

static void judge(struct cases_plan *plan, const char *stage, int m, uint64_t *rng)
{
    const int rank = (int)(*rng >> 40) % plan->nranks;
    struct hkt__sched *original = plan->scheds[rank];
    struct hkt_verify_report report;
    struct mutant_site site;
    struct hkt__sched *mutant = mutators[m].make(original, rng, &site);

    if (mutant == NULL)
        return;
    plan->scheds[rank] = mutant;
    scores[m].mutants++;
    const enum hkt_status rc = hkt__verify(plan->scheds, plan->nranks, (int)(*rng >> 50) % 2 ? -1 : 0, &report);

    if (rc == HKT_ERR_BUG) {
        scores[m].rejected++;
        if (!is_confirmed(plan, report.failure))
            fail_msg("seed %llu: a false alarm: %s: %s", (unsigned long long)seed, site.what, report.failure);
    } else {
        assert_int_equal(rc, HKT_OK);
        struct oracle *o = oracle_create(plan->scheds, plan->nranks);
        const char *fault = second_opinion(o);

        plan->scheds[rank] = original;
        const char *why = fault == NULL ? explain(plan, mutators[m].name, &site, o) : NULL;

        if (why == NULL)
            fail_msg("seed %llu: accepted, but %s: %s %s (%s), %d ranks%s: %s", (unsigned long long)seed,
                     fault != NULL ? fault : "nobody knows why it is right", hkt_coll_name(plan->algo->info.coll),
                     plan->algo->info.name, stage, plan->nranks, plan->in_place ? ", in place" : "", site.what);
        count_reason(&scores[m], why);
        oracle_destroy(o);
    }
    plan->scheds[rank] = original;
    hkt__sched_destroy(mutant);
}

static void mutate_case(struct cases_plan *plan, const char *stage, uint64_t *rng)
{
    struct oracle *o = oracle_create(plan->scheds, plan->nranks);
    const char *fault = second_opinion(o);

    if (fault != NULL)
        fail_msg("the unchanged row: %s %s (%s), %d ranks: %s", hkt_coll_name(plan->algo->info.coll),
                 plan->algo->info.name, stage, plan->nranks, fault);
    oracle_destroy(o);
    for (int m = 0; m < mutator_count; m++)
        for (int i = 0; i < MUTANTS_PER_CASE; i++)
            judge(plan, stage, m, rng);
}

static void print_scores(void)
{
    struct score all = { 0 };

    print_message("%-20s %8s %8s %10s\n", "mutation", "mutants", "rejected", "equivalent");
    for (int m = 0; m < mutator_count; m++) {
        const struct score *score = &scores[m];

        print_message("%-20s %8d %8d %10d\n", mutators[m].name, score->mutants, score->rejected,
                      score->mutants - score->rejected);
        for (int i = 0; i < REASONS_MAX && score->reasons[i].why != NULL; i++)
            print_message("%49d %s\n", score->reasons[i].count, score->reasons[i].why);
        all.mutants += score->mutants;
        all.rejected += score->rejected;
    }
    print_message("%-20s %8d %8d %10d\n", "all", all.mutants, all.rejected, all.mutants - all.rejected);
}

static void every_mutant_is_rejected_or_equivalent(void **state)
{
    static const int ranks[] = { 5, 4, 8, 9 };
    const size_t count = getenv("HOCKET_TEST_SMALL") != NULL ? 1 : sizeof ranks / sizeof *ranks;
    uint64_t rng = seed;

    (void)state;
    assert_true(mutator_count <= MUTATORS_MAX);
    for (int i = 0; i < hkt__algo_count; i++)
        for (size_t n = 0; n < count; n++)
            for (int in_place = 0; in_place < 2; in_place++) {
                const struct hkt__algo *algo = &hkt__algos[i];
                struct cases_plan plan;

                if (!cases_serves(algo, ranks[n], in_place != 0) || (ranks[n] > 8 && cases_serves(algo, 8, false)))
                    continue;
                cases_build(&plan, algo, ranks[n], cases_is_rooted(algo) ? ranks[n] / 3 : 0, in_place != 0);
                mutate_case(&plan, "as built", &rng);
                for (int r = 0; r < ranks[n]; r++)
                    assert_int_equal(hkt__lower(plan.scheds[r]), HKT_OK);
                mutate_case(&plan, "lowered", &rng);
                cases_free(&plan);
            }
    print_scores();
    for (int m = 0; m < mutator_count; m++)
        assert_true(scores[m].rejected > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mutant_is_rejected_or_equivalent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
