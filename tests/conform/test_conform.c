/* Conformance of transports: the same cases on each transport, as processes and as threads, alone and under fault injection.
 *
 *   test_conform TRANSPORT [--threads] [CASE...]
 *
 * The table below says what is run; a new transport needs no new case. Output is TAP. */
#include <string.h>

#include "cases.h"

#define QUIET "seed=11,delay=0.2,short=0.4" /* faults a channel must hide */

#define LATE "seed=10,delay=0.1,short=0.2,lend=0.8" /* any transport lends, and reads late */

enum { NEEDS_MEMORY = 1, NEEDS_PROCESSES = 2, NEEDS_LENDING = 4 };

struct row {
    const char *name;
    rig_body *body;
    int nranks;
    int count;               /* the case's argument: how much */
    const char *faults;
    int64_t slots, slot_bytes;
    unsigned needs;
    bool is_rank0_faulty;
    int victim;              /* rank + 1 that ends by SIGKILL; 0: none */
};

static const struct row rows[] = {
    { .name = "fifo_order", .body = case_fifo_order, .nranks = 2, .count = 20000 },
    { .name = "sizes_all_small_slots", .body = case_sizes, .nranks = 2, .slots = 4, .slot_bytes = 1024 },
    { .name = "sizes_default_slots", .body = case_sizes, .nranks = 2 },
    { .name = "same_answer_twice", .body = case_same_answer_twice, .nranks = 2 },
    { .name = "publish_less", .body = case_publish_less, .nranks = 2 },
    { .name = "stop_and_go", .body = case_stop_and_go, .nranks = 2 },
    { .name = "tiny_ring", .body = case_tiny_ring, .nranks = 2, .slots = 2, .slot_bytes = 2048 },
    { .name = "flood_of_two", .body = case_flood, .nranks = 2, .count = 800 },
    { .name = "flood_of_five", .body = case_flood, .nranks = 5, .count = 120 },
    { .name = "lanes_are_independent", .body = case_lanes, .nranks = 2 },
    { .name = "many_domains", .body = case_many_domains, .nranks = 2, .count = 200 },
    { .name = "early_close", .body = case_early_close, .nranks = 2, .count = 100 },
    { .name = "leaves_early", .body = case_leaves_early, .nranks = 3 },
    { .name = "window", .body = case_window, .nranks = 3, .needs = NEEDS_MEMORY },
    { .name = "park_wakes", .body = case_park_wakes, .nranks = 2 },
    { .name = "wake", .body = case_wake, .nranks = 2 },
    { .name = "two_threads", .body = case_two_threads, .nranks = 2, .count = 400 },
    { .name = "peer_dies", .body = case_peer_dies, .nranks = 3, .needs = NEEDS_PROCESSES, .victim = 3 },
    { .name = "lend", .body = case_lend, .nranks = 2, .count = 45, .needs = NEEDS_LENDING },
    { .name = "lend_only_pinned", .body = case_lend_only_pinned, .nranks = 2, .needs = NEEDS_LENDING },
    { .name = "lend_many_pins", .body = case_lend_many_pins, .nranks = 2, .needs = NEEDS_LENDING },
    { .name = "lend_and_close", .body = case_lend_and_close, .nranks = 2, .count = 60, .needs = NEEDS_LENDING },
    { .name = "lend_to_the_dead", .body = case_lend_to_the_dead, .nranks = 2, .needs = NEEDS_LENDING | NEEDS_PROCESSES,
      .victim = 2 },
    { .name = "lend_late", .body = case_lend, .nranks = 2, .count = 45, .faults = LATE },
    { .name = "lend_late_only_pinned", .body = case_lend_only_pinned, .nranks = 2, .faults = LATE },
    { .name = "lend_late_many_pins", .body = case_lend_many_pins, .nranks = 2, .faults = LATE },
    { .name = "lend_late_and_close", .body = case_lend_and_close, .nranks = 2, .count = 60, .faults = LATE },
    { .name = "lend_late_to_the_dead", .body = case_lend_to_the_dead, .nranks = 2, .faults = LATE,
      .needs = NEEDS_PROCESSES, .victim = 2 },
    { .name = "fifo_order_under_faults", .body = case_fifo_order, .nranks = 2, .count = 3000, .faults = QUIET },
    { .name = "sizes_under_faults", .body = case_sizes, .nranks = 2, .slots = 4, .slot_bytes = 1024, .faults = QUIET },
    { .name = "same_answer_twice_under_faults", .body = case_same_answer_twice, .nranks = 2, .faults = QUIET },
    { .name = "flood_of_three_under_faults", .body = case_flood, .nranks = 3, .count = 100, .faults = QUIET },
    { .name = "window_under_faults", .body = case_window, .nranks = 3, .needs = NEEDS_MEMORY, .faults = QUIET },
    { .name = "many_domains_under_faults", .body = case_many_domains, .nranks = 2, .count = 40, .faults = QUIET },
    { .name = "drop_is_noticed", .body = case_loss_is_noticed, .nranks = 2, .faults = "seed=5,drop=0.01",
      .is_rank0_faulty = true },
    { .name = "dup_is_noticed", .body = case_loss_is_noticed, .nranks = 2, .faults = "seed=6,dup=0.01",
      .is_rank0_faulty = true },
    { .name = "all_at_once_is_noticed", .body = case_loss_is_noticed, .nranks = 2,
      .faults = "seed=7,dup=0.005,drop=0.005,delay=0.1,short=0.3", .is_rank0_faulty = true },
    { .name = "damage_is_noticed", .body = case_damage_is_noticed, .nranks = 2, .faults = "seed=8,corrupt=0.05",
      .is_rank0_faulty = true },
    { .name = "killed_in_the_middle", .body = case_killed, .nranks = 2, .faults = "seed=9,kill=100",
      .needs = NEEDS_PROCESSES, .is_rank0_faulty = true, .victim = 1 },
};

struct choice {
    const char *transport;
    bool is_threads;
    char **names;
    int nnames;
};

static bool is_chosen(const struct choice *choice, const char *name)
{
    for (int i = 0; i < choice->nnames; i++)
        if (strstr(name, choice->names[i]) != NULL)
            return true;
    return choice->nnames == 0;
}

static const char *reason_to_skip(const struct row *row, const struct choice *choice)
{
    struct hkt__tp_caps caps;

    hkt__transport_find(choice->transport)->query(NULL, &caps);
    if ((row->needs & NEEDS_MEMORY) != 0 && (caps.flags & HKT__TP_MEMORY) == 0)
        return "this transport shares no memory";
    if ((row->needs & NEEDS_LENDING) != 0 && (caps.flags & HKT__TP_LENDS) == 0)
        return "this transport takes no memory to send from";
    if ((row->needs & NEEDS_PROCESSES) != 0 && choice->is_threads)
        return "needs ranks in processes of their own";
    return NULL;
}

static int run_row(const struct row *row, const struct choice *choice)
{
    const struct rig_opts opts = { .transport = choice->transport, .faults = row->faults, .nranks = row->nranks,
                                   .is_threads = choice->is_threads, .deadline_ms = 180000,
                                   .is_rank0_faulty = row->is_rank0_faulty,
                                   .victim = row->victim - 1, .slots = row->slots, .slot_bytes = row->slot_bytes };

    const int count = row->count / rig_thinning();

    return rig_run(&opts, row->body, &count);
}

int main(int argc, char **argv)
{
    struct choice choice = { .transport = argc > 1 ? argv[1] : "", .names = argv + 2, .nnames = argc - 2 };
    int nrun = 0, nfailed = 0;

    if (argc < 2 || hkt__transport_find(choice.transport) == NULL) {
        fprintf(stderr, "usage: test_conform TRANSPORT [--threads] [CASE...]\n");
        return 2;
    }
    choice.is_threads = strcmp(choice.transport, "thread") == 0;
    if (argc > 2 && strcmp(argv[2], "--threads") == 0) {
        choice.is_threads = true;
        choice.names++;
        choice.nnames--;
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const char *skip = reason_to_skip(&rows[i], &choice);
        const int64_t start_ms = rig_now_ms();

        if (!is_chosen(&choice, rows[i].name) || skip != NULL)
            continue;
        const int rc = run_row(&rows[i], &choice);

        nrun++;
        nfailed += rc != 0;
        printf("%s %d %s (%s%s, %lld ms)\n", rc == 0 ? "ok" : "not ok", nrun, rows[i].name, choice.transport,
               choice.is_threads ? ", threads" : "", (long long)(rig_now_ms() - start_ms));
        fflush(stdout);
    }
    printf("1..%d\n", nrun);
    return nfailed > 0 || nrun == 0;
}
