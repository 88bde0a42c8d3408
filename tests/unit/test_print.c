/* What could break: text that no longer says what a step does, rounds that are wrong, JSON that is not JSON, a full
 * disk that goes unnoticed. Texts are compared byte for byte with tests/golden.
 *
 * HOCKET_SOURCE_ROOT: where the sources are (default: here). HOCKET_GOLDEN_WRITE=1: write the golden files anew. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/error.h"
#include "core/mem.h"
#include "sched/lower.h"
#include "sched/print.h"
#include "sched/rounds.h"
#include "sched_samples.h"

static char *print_to_text(struct hkt__sched *const *scheds, int nranks, enum hkt_plan_format format)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    assert_non_null(file);
    assert_int_equal(hkt__print(scheds, nranks, format, file), HKT_OK);
    assert_int_equal(fclose(file), 0);
    return text;
}

static char *read_file(const char *path)
{
    char *text = NULL, part[4096];
    size_t bytes = 0, got;
    FILE *to = open_memstream(&text, &bytes), *from = fopen(path, "r");

    assert_non_null(to);
    while (from != NULL && (got = fread(part, 1, sizeof part, from)) > 0)
        assert_int_equal(fwrite(part, 1, got, to), got);
    if (from != NULL)
        fclose(from);
    fclose(to);
    return text;
}

static void expect_golden(const char *name, const char *text)
{
    const char *root = getenv("HOCKET_SOURCE_ROOT"), *write = getenv("HOCKET_GOLDEN_WRITE");
    char path[1024];

    snprintf(path, sizeof path, "%s/tests/golden/%s", root != NULL ? root : ".", name);
    if (write != NULL && strcmp(write, "1") == 0) {
        FILE *file = fopen(path, "w");

        assert_non_null(file);
        fputs(text, file);
        assert_int_equal(fclose(file), 0);
    }
    char *golden = read_file(path);

    if (strcmp(golden, text) != 0) {
        size_t at = 0;

        while (golden[at] != '\0' && golden[at] == text[at])
            at++;
        print_error("%s differs from byte %zu on: \"%.60s\" is printed.\nIf the new text is meant, write it with\n"
                    "  HOCKET_GOLDEN_WRITE=1 HOCKET_SOURCE_ROOT=<checkout> <build>/tests/unit/test_print\n"
                    "and read the difference before you commit it.\n",
                    path, at, text + at);
        free(golden);
        fail();
    }
    free(golden);
}

static void golden(sample_fn *fn, const char *algo, bool lowered, enum hkt_plan_format format, const char *name)
{
    struct hkt__sched *scheds[4];
    const int nranks = fn == sample_ring ? 4 : 3;

    assert_int_equal(sample_all(fn, algo, nranks, false, scheds), HKT_OK);
    for (int r = 0; r < nranks && lowered; r++)
        assert_int_equal(hkt__lower(scheds[r]), HKT_OK);
    char *text = print_to_text(scheds, nranks, format);

    sample_destroy(scheds, nranks);
    expect_golden(name, text);
    free(text);
}

static void texts_are_the_golden_ones(void **state)
{
    (void)state;
    golden(sample_ring, "ring", false, HKT_PLAN_BY_STEP, "print_ring_4_by_step.txt");
    golden(sample_ring, "ring", false, HKT_PLAN_BY_RANK, "print_ring_4_by_rank.txt");
    golden(sample_ring, "ring", true, HKT_PLAN_BY_RANK, "print_ring_4_lowered_by_rank.txt");
    golden(sample_ring, "ring", true, HKT_PLAN_JSON, "print_ring_4_lowered.json");
    golden(sample_collect, "collect", false, HKT_PLAN_BY_STEP, "print_collect_3_by_step.txt");
    golden(sample_direct, "direct", false, HKT_PLAN_BY_STEP, "print_direct_3_by_step.txt");
    golden(sample_direct, "direct", false, HKT_PLAN_BY_RANK, "print_direct_3_by_rank.txt");
}

/* One rank, every kind of step and operand. */
static void all_kinds(struct hkt__builder *b)
{
    const struct hkt__operand every_other = hkt__range(b, HKT__OUT, 1, 2, 4), back = hkt__range(b, HKT__OUT, 6, 1, 4);
    const struct hkt__operand slots = hkt__scratch(b, 0, every_other);
    struct hkt__arg args[3] = { hkt__at(0, every_other), hkt__at(2, slots), hkt__at(1, every_other) };

    hkt__send(b, 1, 0, every_other);
    hkt__send(b, 1, 1, back);
    hkt__recv(b, 2, 0, slots);
    hkt__recv_reduce(b, 2, 0, every_other, every_other);
    hkt__recv_reduce(b, 2, 0, slots, every_other);
    hkt__copy(b, 0, every_other, slots);
    hkt__reduce(b, 0, every_other, args, 3);
    hkt__write(b, 0, args, 3, hkt__range(b, HKT__IN, 6, 1, 4));
    hkt__signal(b, 1, 0, slots);
    hkt__signal(b, 1, 0, sample_nothing());
    hkt__wait(b, 1, 0, every_other);
    hkt__wait(b, 1, 0, sample_nothing());
}

static void every_kind_of_step_reads_well(void **state)
{
    struct hkt__sched *sched = NULL;

    (void)state;
    assert_int_equal(
        sample_build(all_kinds, &(struct hkt__build_args){ HKT_ALL_TO_ALL, "kinds", 8, 0, 0, false, true }, &sched),
        HKT_OK);
    char *text = print_to_text(&sched, 1, HKT_PLAN_BY_RANK); /* one rank alone may be printed */

    expect_golden("print_kinds.txt", text);
    free(text);
    text = print_to_text(&sched, 1, HKT_PLAN_JSON); /* rounds are not known */
    expect_golden("print_kinds.json", text);
    free(text);
    hkt__sched_destroy(sched);
}

static void rounds_are_the_critical_path(void **state)
{
    struct hkt__sched *scheds[5];
    struct hkt__rounds rounds;

    (void)state;
    assert_int_equal(sample_all(sample_ring, "ring", 5, false, scheds), HKT_OK);
    assert_int_equal(hkt__rounds_init(&rounds, scheds, 5), HKT_OK);
    assert_int_equal(rounds.count, 8);
    for (int r = 0; r < 5; r++)
        for (int32_t i = 0; i < 16; i++) {
            assert_int_equal(rounds.round[rounds.first[r] + i], i / 2 + 1);
            assert_int_equal(rounds.mate[rounds.mate[rounds.first[r] + i]], rounds.first[r] + i);
        }
    hkt__rounds_fini(&rounds);
    sample_destroy(scheds, 5);
    /* All inputs arrive in round 1, the reduction runs then, the result leaves in round 2. */
    assert_int_equal(sample_all(sample_collect, "collect", 5, false, scheds), HKT_OK);
    assert_int_equal(hkt__rounds_init(&rounds, scheds, 5), HKT_OK);
    assert_int_equal(rounds.count, 2);
    assert_int_equal(rounds.round[4], 1); /* rank 0: four receives, the reduction, four sends */
    assert_int_equal(rounds.mate[4], -1);
    assert_int_equal(rounds.round[5], 2);
    hkt__rounds_fini(&rounds);
    sample_destroy(scheds, 5);
}

static void expect_refused(struct hkt__sched *const *scheds, int nranks, const char *text)
{
    char *out = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&out, &bytes);

    assert_non_null(file);
    assert_int_equal(hkt__print(scheds, nranks, HKT_PLAN_BY_STEP, file), HKT_ERR_INVALID);
    if (strstr(hkt_last_error(), text) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", hkt_last_error(), text);
    assert_int_equal(hkt__print(scheds, nranks, HKT_PLAN_BY_RANK, file), HKT_OK);
    assert_int_equal(hkt__print(scheds, nranks, HKT_PLAN_JSON, file), HKT_OK);
    fclose(file);
    assert_non_null(strstr(out, "\"rounds\": null"));
    free(out);
}

static void schedules_that_do_not_fit_have_no_rounds(void **state)
{
    struct hkt__sched *scheds[4], *swap;

    (void)state;
    assert_int_equal(sample_all(sample_ring, "ring", 4, false, scheds), HKT_OK);
    expect_refused(scheds, 3, "needs the schedules of all ranks");
    swap = scheds[0];
    scheds[0] = scheds[1];
    scheds[1] = swap;
    expect_refused(scheds, 4, "needs the schedules of all ranks, in order");
    scheds[1] = scheds[0];
    scheds[0] = swap;
    scheds[2]->steps[4].lane = 1; /* rank 2's third message goes astray: the last receive gets none */
    expect_refused(scheds, 4, "rank 3 step 11 (recv) has no send to meet");
    scheds[2]->steps[4].lane = 0;
    scheds[1]->nsteps--;
    expect_refused(scheds, 4, "rank 0 step 10 (send) has no receive to meet");
    scheds[1]->nsteps++;
    for (int r = 0; r < 4; r++) { /* every first send waits for the receive after it */
        struct hkt__step *second = &scheds[r]->steps[1], was = *second;

        scheds[r]->steps[1] = scheds[r]->steps[0];
        scheds[r]->steps[0] = was;
        scheds[r]->steps[1].dep_first = scheds[r]->steps[2].dep_first;
        scheds[r]->steps[1].dep_count = 1;
        scheds[r]->deps[scheds[r]->steps[1].dep_first] = 0;
    }
    expect_refused(scheds, 4, "never gets to run");
    sample_destroy(scheds, 4);
}

static void a_full_disk_is_reported(void **state)
{
    struct hkt__sched *scheds[4];
    FILE *file = fopen("/dev/full", "w");

    (void)state;
    if (file == NULL)
        skip();
    assert_int_equal(sample_all(sample_ring, "ring", 4, false, scheds), HKT_OK);
    for (int format = HKT_PLAN_BY_STEP; format <= HKT_PLAN_JSON; format++) {
        clearerr(file);
        assert_int_equal(hkt__print(scheds, 4, (enum hkt_plan_format)format, file), HKT_ERR_SYSTEM);
    }
    assert_int_equal(hkt__print(scheds, 4, (enum hkt_plan_format)99, file), HKT_ERR_INVALID);
    assert_int_equal(hkt__print(scheds, 0, HKT_PLAN_JSON, file), HKT_ERR_INVALID);
    fclose(file);
    sample_destroy(scheds, 4);
}

static void every_failed_allocation_is_survived(void **state)
{
    struct hkt__sched *scheds[3];

    (void)state;
    assert_int_equal(sample_all(sample_direct, "direct", 3, false, scheds), HKT_OK);
    for (int format = HKT_PLAN_BY_STEP; format <= HKT_PLAN_JSON; format++) {
        FILE *file = fopen("/dev/null", "w");
        int64_t k = 1;
        enum hkt_status rc;

        assert_non_null(file);
        for (;; k++) {
            hkt__mem_fail_at(k);
            rc = hkt__print(scheds, 3, (enum hkt_plan_format)format, file);
            hkt__mem_fail_at(0);
            if (rc == HKT_OK)
                break;
            assert_int_equal(rc, HKT_ERR_NOMEM);
        }
        assert_true(format == HKT_PLAN_BY_RANK || k > 10);
        fclose(file);
    }
    sample_destroy(scheds, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_the_golden_ones),    cmocka_unit_test(every_kind_of_step_reads_well),
        cmocka_unit_test(rounds_are_the_critical_path), cmocka_unit_test(schedules_that_do_not_fit_have_no_rounds),
        cmocka_unit_test(a_full_disk_is_reported),      cmocka_unit_test(every_failed_allocation_is_survived),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
