/* What could break: an algorithm is right for few ranks and wrong for many (an index overflows, a round is missing, a
 * formula holds by chance), or proving it becomes too slow to be of use. Prints what was proved, how, and how long it
 * took.
 *
 * By default each row is proved for the sampled p whose estimated cost is below a second, and the cheap ones for 4,096
 * ranks; the whole takes about half a minute. `test_registry_large full` lifts that limit: every row up to 1,024 ranks,
 * every row of logarithmic rounds up to 4,096; that takes minutes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "registry_cases.h"

static const int samples[] = { 100, 255, 1024 };
static const int samples_full[] = { 96, 127, 128, 129, 255, 256, 384, 513, 1000, 1023, 1024 };
static bool is_full;
/* Less under the sanitizers (HOCKET_TEST_SMALL). */
static double seconds_max = 1; /* of a guess */
static int ranks_max = 4096;

/* A guess at the seconds a proof takes: per message and per chunk, on a machine of 2020. */
static double guess_seconds(const struct hkt__algo *algo, int nranks)
{
    return 1e-6 * nranks * (2.5 * algo->messages(nranks) + 0.4 * nranks * algo->volume(nranks));
}

static void prove(const struct hkt__algo *algo, int nranks, int root, bool in_place)
{
    const int64_t start = hkt__now_ns();
    struct hkt_verify_report report;
    struct cases_plan plan;

    cases_build(&plan, algo, nranks, root, in_place);
    cases_verify(&plan, "as built", &report);
    cases_free(&plan);
    printf("%-16s %-22s p %5d root %5d %-12s %8lld messages %10lld chunks %6.2f s by %s\n",
           hkt_coll_name(algo->info.coll), algo->info.name, nranks, root, in_place ? "in place" : "out of place",
           (long long)report.messages, (long long)report.chunks_checked, (double)(hkt__now_ns() - start) * 1e-9,
           report.exact ? "exact sets" : "fingerprints");
}

static void prove_row(const struct hkt__algo *algo, int nranks)
{
    const int root = cases_is_rooted(algo) ? nranks / 3 : 0;

    for (int in_place = 0; in_place < 2; in_place++)
        if (cases_serves(algo, nranks, in_place != 0))
            prove(algo, nranks, root, in_place != 0);
}

static void rows_are_right_for_sampled_ranks(void **state)
{
    const int *list = is_full ? samples_full : samples;
    const int count =
        (int)(is_full ? sizeof samples_full / sizeof samples_full[0] : sizeof samples / sizeof samples[0]);

    (void)state;
    for (int i = 0; i < hkt__algo_count; i++)
        for (int k = 0; k < count; k++)
            if (is_full || guess_seconds(&hkt__algos[i], list[k]) < seconds_max)
                prove_row(&hkt__algos[i], list[k]);
}

/* All rows whose messages grow with log p; those whose chunks grow with p as well take seconds each. */
static void rows_of_log_rounds_are_right_for_4096_ranks(void **state)
{
    const int nranks = ranks_max;

    (void)state;
    for (int i = 0; i < hkt__algo_count; i++) {
        const struct hkt__algo *algo = &hkt__algos[i];

        if (algo->messages(nranks) < 100 && (is_full || guess_seconds(algo, nranks) < seconds_max))
            prove(algo, nranks, 0, false);
    }
}

/* One of those that take seconds, with both circulant phases. */
static void circulant_all_reduce_is_right_for_4096_ranks(void **state)
{
    const struct hkt__algo *algo = hkt__algo_find(HKT_ALL_REDUCE, "circulant");

    (void)state;
    assert_non_null(algo);
    prove(algo, ranks_max, 0, true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_right_for_sampled_ranks),
        cmocka_unit_test(rows_of_log_rounds_are_right_for_4096_ranks),
        cmocka_unit_test(circulant_all_reduce_is_right_for_4096_ranks),
    };

    is_full = argc > 1 && strcmp(argv[1], "full") == 0;
    if (getenv("HOCKET_TEST_SMALL") != NULL) {
        seconds_max = 0.02;
        ranks_max = 256;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
