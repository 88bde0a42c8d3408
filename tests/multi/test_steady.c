/* What could break: a call that has been made before, alone, in a group of few or of many, now or on a stream, allocates
 * memory, or makes a system call that is not a wait. After a warm-up, allocations are counted at the linker (--wrap), below
 * the library's own counter, which must agree; system calls are refused by a seccomp filter, in the thread of the stream
 * too: the first one that is neither a yield nor a futex ends the test with its number. A rank that shares a core changes where it may run although HOCKET_SPREAD=0, or is left with fewer
 * cores than it had. Links the library's objects, so that their calls of malloc are the ones wrapped. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "calls.h"
#include "core/mem.h"
#include "ranks.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif

enum { N = 3, CALLS = 1000, LARGE = 100001, GROUP = 64 };

static const size_t counts[] = {1, 1001, LARGE};

/* ---- allocations ---- */

static _Atomic uint64_t allocations;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);

void *__wrap_malloc(size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_realloc(old, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __real_aligned_alloc(alignment, bytes);
}

void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    atomic_fetch_add(&allocations, 1);
    return __real_mmap(at, bytes, protection, flags, fd, offset);
}

/** Something to do again and again; less often when it is large. */
struct routine {
    const char *name;
    bool is_large;
    void (*run)(struct ranks_rank *rank, struct calls *calls, const struct call *call, struct hkt_stream *stream);
};

static void run_call(struct ranks_rank *rank, struct calls *calls, const struct call *call, struct hkt_stream *stream)
{
    ranks_require_ok(rank, calls_issue(calls, call, stream), hkt_coll_name(call->coll));
}

static void run_queued(struct ranks_rank *rank, struct calls *calls, const struct call *call, struct hkt_stream *stream)
{
    run_call(rank, calls, call, stream);
    ranks_require_ok(rank, hkt_stream_synchronize(stream), "hkt_stream_synchronize");
}

static void run_now(struct ranks_rank *rank, struct calls *calls, const struct call *call, struct hkt_stream *stream)
{
    (void)stream;
    run_call(rank, calls, call, NULL);
}

/** A message round a ring, outside of groups. */
static void run_messages(struct ranks_rank *rank, struct calls *calls, const struct call *call, struct hkt_stream *stream)
{
    const int next = (rank->rank + 1) % rank->nranks, previous = (rank->rank + rank->nranks - 1) % rank->nranks;
    const size_t count = call->count > 1001 ? 1001 : call->count;

    (void)stream;
    if (rank->rank == 0)
        ranks_require_ok(rank, hkt_send(calls->send, count, call->dtype, next, rank->comm, NULL), "hkt_send");
    ranks_require_ok(rank, hkt_recv(calls->recv, count, call->dtype, previous, rank->comm, NULL), "hkt_recv");
    if (rank->rank != 0)
        ranks_require_ok(rank, hkt_send(calls->send, count, call->dtype, next, rank->comm, NULL), "hkt_send");
}

static void run_group(struct ranks_rank *rank, struct calls *calls, const struct call *call, struct hkt_stream *stream)
{
    const int next = (rank->rank + 1) % rank->nranks, previous = (rank->rank + rank->nranks - 1) % rank->nranks;

    (void)stream;
    ranks_require_ok(rank, hkt_group_start(), "hkt_group_start");
    ranks_require_ok(rank, hkt_send(calls->send, call->count, call->dtype, next, rank->comm, NULL), "hkt_send");
    ranks_require_ok(rank, hkt_recv(calls->recv, call->count, call->dtype, previous, rank->comm, NULL), "hkt_recv");
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "hkt_barrier");
    ranks_require_ok(rank, hkt_group_end(), "hkt_group_end");
}

/** GROUP calls: messages round the ring and sums, so that runs of messages are of several lengths. */
static void issue_group(struct ranks_rank *rank, struct calls *calls, const struct call *call, struct hkt_stream *stream)
{
    const int next = (rank->rank + 1) % rank->nranks, previous = (rank->rank + rank->nranks - 1) % rank->nranks;
    const size_t count = call->count > 1001 ? 1001 : call->count;

    ranks_require_ok(rank, hkt_group_start(), "hkt_group_start");
    for (int i = 0; i < GROUP; i++) {
        const int what = i % 8 >= 6 ? 2 : i % 2;
        const enum hkt_status rc =
            what == 0   ? hkt_send(calls->send, count, call->dtype, next, rank->comm, stream)
            : what == 1 ? hkt_recv(calls->recv, count, call->dtype, previous, rank->comm, stream)
                        : hkt_all_reduce(calls->send, calls->recv, 1, call->dtype, HKT_SUM, rank->comm, stream);

        ranks_require_ok(rank, rc, "a call of a large group");
    }
    ranks_require_ok(rank, hkt_group_end(), "hkt_group_end");
}

static void run_large_group(struct ranks_rank *rank, struct calls *calls, const struct call *call, struct hkt_stream *stream)
{
    (void)stream;
    issue_group(rank, calls, call, NULL);
}

static void run_queued_group(struct ranks_rank *rank, struct calls *calls, const struct call *call, struct hkt_stream *stream)
{
    issue_group(rank, calls, call, stream);
    ranks_require_ok(rank, hkt_stream_synchronize(stream), "hkt_stream_synchronize");
}

static void count_allocations(struct ranks_rank *rank, struct calls *calls, const struct routine *routine,
                              const struct call *call)
{
    const int rounds = call->count > 10000 || routine->is_large ? CALLS / 20 : ranks_small() ? CALLS / 20 : CALLS;
    struct hkt_stream *stream;
    char text[128];

    ranks_require_ok(rank, hkt_stream_create(&stream), "hkt_stream_create");
    calls_fill(calls, call);
    for (int i = 0; i < 20; i++)
        routine->run(rank, calls, call, stream);
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "barrier");
    ranks_meet(rank, 0);
    const uint64_t before = atomic_load(&allocations), own_before = hkt__mem_count();

    ranks_meet(rank, 1);
    for (int i = 0; i < rounds; i++)
        routine->run(rank, calls, call, stream);
    ranks_meet(rank, 2);
    const uint64_t after = atomic_load(&allocations), own_after = hkt__mem_count();

    ranks_meet(rank, 3);
    calls_print(call, text, sizeof text);
    ranks_require(rank, own_after == own_before && after == before, "%s, %s: %llu allocations in %d calls (%llu counted by "
                  "the library)", routine->name, text, (unsigned long long)(after - before), rounds * rank->nranks,
                  (unsigned long long)(own_after - own_before));
    hkt_stream_destroy(stream);
}

static void steady_calls_allocate_nothing(struct ranks_rank *rank)
{
    static const struct routine now = {"now", false, run_now}, queued = {"on a stream", false, run_queued};
    static const struct routine messages = {"messages", false, run_messages}, group = {"a group", false, run_group};
    static const struct routine large_group = {"a group of 64", true, run_large_group};
    static const struct routine queued_group = {"a group of 64 on a stream", true, run_queued_group};
    static const enum hkt_op ops[] = {HKT_SUM, HKT_AVG, (enum hkt_op)HKT_OP_USER};
    struct call call = {.dtype = HKT_F32, .root = 1};
    const struct call largest = {.coll = HKT_ALL_TO_ALL_V, .dtype = HKT_F32, .count = LARGE};
    struct calls calls;
    const float scalar = -1;
    enum hkt_op premulsum;

    ranks_require(rank, calls_init(&calls, rank->comm, calls_room(&largest, N)), "no memory");
    ranks_require_ok(rank, hkt_op_create_premulsum(&premulsum, &scalar, HKT_F32, rank->comm), "premulsum");
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        call.count = counts[c] == LARGE && ranks_small() ? LARGE / 10 : counts[c];
        for (int coll = 0; coll < HKT_SEND_RECV; coll++) {
            call.coll = (enum hkt_coll)coll;
            for (int o = 0; o < (calls_reduces(call.coll) ? 3 : 1); o++) {
                call.op = ops[o];
                call.kind = !calls_reduces(call.coll) ? EXACT_PLAIN : o == 2 ? EXACT_PREMULSUM : EXACT_BUILTIN;
                call.in_place = o == 1;
                count_allocations(rank, &calls, &now, &call);
            }
            count_allocations(rank, &calls, &queued, &call);
        }
        count_allocations(rank, &calls, &messages, &call);
        count_allocations(rank, &calls, &group, &call);
        count_allocations(rank, &calls, &large_group, &call);
        count_allocations(rank, &calls, &queued_group, &call);
    }
    calls_fini(&calls);
}

/* ---- system calls ---- */

static struct ranks_shared *seen;

static void on_refused(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    atomic_store(&seen->counters[0], info->si_syscall);
    syscall(SYS_exit_group, 1);
}

/** From now on this thread may yield, sleep on futexes, read clocks and end; anything else is SIGSYS. */
static bool refuse_system_calls(bool may_copy)
{
#define ALLOW(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_sched_yield),
        ALLOW(SYS_futex),
        ALLOW(SYS_clock_gettime),
        ALLOW(SYS_exit_group),
        ALLOW(may_copy ? SYS_process_vm_readv : SYS_futex),
        ALLOW(may_copy ? SYS_process_vm_writev : SYS_futex),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
#undef ALLOW
    const struct sock_fprog program = {sizeof rules / sizeof rules[0], rules};
    const struct sigaction action = {.sa_sigaction = on_refused, .sa_flags = SA_SIGINFO};

    return sigaction(SIGSYS, &action, NULL) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/** Everything once: each collective, a group of many, and both on a stream. */
static void everything(struct ranks_rank *rank, struct calls *calls, size_t count, struct hkt_stream *stream)
{
    struct call call = {.dtype = HKT_F32, .op = HKT_SUM, .root = 1, .count = count};

    for (int coll = 0; coll < HKT_SEND_RECV; coll++) {
        call.coll = (enum hkt_coll)coll;
        call.kind = calls_reduces(call.coll) ? EXACT_BUILTIN : EXACT_PLAIN;
        calls_fill(calls, &call);
        run_call(rank, calls, &call, NULL);
        run_queued(rank, calls, &call, stream);
    }
    issue_group(rank, calls, &call, NULL);
    run_queued_group(rank, calls, &call, stream);
}

/** What a stream's thread does when it is told to; arg is the thread's own. */
struct refusal {
    bool may_copy;
    _Atomic int done;        /* 1: refused from now on; -errno: cannot be */
};

/** A reduction by callback is run by the thread that runs the operation: the way into a stream's thread. */
static void refuse_from_here(void *out, const void *a, const void *b, size_t count, enum hkt_dtype dtype, void *arg)
{
    struct refusal *refusal = arg;

    (void)a;
    (void)b;
    memset(out, 0, count * hkt_dtype_size(dtype));
    if (atomic_load(&refusal->done) == 0)
        atomic_store(&refusal->done, refuse_system_calls(refusal->may_copy) ? 1 : -errno);
}

static int refuse_on_stream(struct ranks_rank *rank, struct refusal *refusal, struct hkt_stream *stream)
{
    float x[64] = {0};
    enum hkt_op op;

    ranks_require_ok(rank, hkt_op_create_callback(&op, refuse_from_here, refusal, rank->comm), "callback");
    ranks_require_ok(rank, hkt_all_reduce(x, x, 64, HKT_F32, op, rank->comm, stream), "all_reduce by callback");
    ranks_require_ok(rank, hkt_stream_synchronize(stream), "hkt_stream_synchronize");
    ranks_require(rank, atomic_load(&refusal->done) != 0, "the callback did not run");
    return atomic_load(&refusal->done);
}

/** With two ranks, polling and yielding: what is left is the data path. */
static void run_without_system_calls(struct ranks_rank *rank)
{
    const size_t count = *(const size_t *)rank->arg;
    const struct call largest = {.coll = HKT_ALL_TO_ALL_V, .dtype = HKT_F32, .count = LARGE};
    struct refusal refusal = {.may_copy = count == LARGE};
    struct hkt_stream *stream;
    struct calls calls;

    seen = rank->shared;
    ranks_require(rank, calls_init(&calls, rank->comm, calls_room(&largest, rank->nranks)), "no memory");
    ranks_require_ok(rank, hkt_stream_create(&stream), "hkt_stream_create");
    for (int i = 0; i < 10; i++)
        everything(rank, &calls, count, stream);
    const int refused = refuse_on_stream(rank, &refusal, stream);

    ranks_meet(rank, 0);
    if (refused < 0 || !refuse_system_calls(refusal.may_copy)) {
        atomic_store(&rank->shared->counters[1], refused < 0 ? -refused : errno);
        _exit(0);
    }
    for (int i = 0; i < (count == LARGE ? CALLS / 20 : CALLS / 4); i++)
        everything(rank, &calls, count, stream);
    /* There is no way back: nobody leaves before all are done, then without a word. */
    for (atomic_fetch_add(&rank->shared->met[1], 1); atomic_load(&rank->shared->met[1]) < rank->nranks;)
        sched_yield();
    syscall(SYS_exit_group, 0);
}

static void steady_calls_make_no_system_calls(void **state)
{
    static const char *const settings[] = {"HOCKET_YIELD=1000000", NULL};
    static const char *const transports[] = {"thread", "shm"};

    (void)state;
    if (IS_SANITIZED) {
        print_message("sanitizers make system calls of their own\n");
        skip();
    }
    for (int t = 0; t < 2; t++)
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            struct hkt_config config = HKT_CONFIG_INIT;
            struct ranks_shared *shared;
            const struct ranks_job job = {.kind = t == 0 ? RANKS_THREADS : RANKS_PROCESSES, .nranks = 2,
                                          .settings = settings, .config = &config, .leaves_descriptors = true,
                                          .fn = run_without_system_calls, .arg = (void *)(uintptr_t)&counts[c]};

            config.transport = transports[t];
            const bool ok = ranks_try(&job, &shared);
            const int refused = (int)atomic_load(&shared->counters[0]), no_seccomp = (int)atomic_load(&shared->counters[1]);
            char text[RANKS_TEXT_MAX];

            snprintf(text, sizeof text, "%s", shared->text);
            ranks_release(shared);
            if (no_seccomp != 0) {
                print_message("this system has no seccomp filters: %s\n", strerror(no_seccomp));
                skip();
            }
            if (!ok)
                fail_msg("%s, count %zu: system call %d (see asm/unistd_64.h); %s", transports[t], counts[c], refused, text);
        }
}

static void steady_threads_allocate_nothing(void **state)
{
    struct hkt_config config = HKT_CONFIG_INIT;
    const struct ranks_job job = {.kind = RANKS_THREADS, .nranks = N, .config = &config,
                                  .fn = steady_calls_allocate_nothing};

    (void)state;
    config.transport = "thread";
    ranks_run(&job);
}

/* ---- cores ---- */

static _Atomic int affinity_calls, moves_astray; /* astray: to another core than home */
static _Atomic int home = -1;                    /* of the rank; -1: it is not looked at */

int __real_sched_getaffinity(pid_t tid, size_t bytes, cpu_set_t *cpus);
int __real_sched_setaffinity(pid_t tid, size_t bytes, const cpu_set_t *cpus);
int __wrap_sched_getaffinity(pid_t tid, size_t bytes, cpu_set_t *cpus);
int __wrap_sched_setaffinity(pid_t tid, size_t bytes, const cpu_set_t *cpus);

int __wrap_sched_getaffinity(pid_t tid, size_t bytes, cpu_set_t *cpus)
{
    atomic_fetch_add(&affinity_calls, 1);
    return __real_sched_getaffinity(tid, bytes, cpus);
}

int __wrap_sched_setaffinity(pid_t tid, size_t bytes, const cpu_set_t *cpus)
{
    const int its_home = atomic_load(&home);

    atomic_fetch_add(&affinity_calls, 1);
    if (its_home >= 0 && CPU_COUNT(cpus) == 1 && !CPU_ISSET(its_home, cpus))
        atomic_fetch_add(&moves_astray, 1);
    return __real_sched_setaffinity(tid, bytes, cpus);
}

static void require_cpus(struct ranks_rank *rank, const cpu_set_t *want, const char *when)
{
    cpu_set_t is;

    ranks_require(rank, __real_sched_getaffinity(0, sizeof is, &is) == 0 && CPU_EQUAL(&is, want), "%s: other cores", when);
}

/** The sum of what all ranks say. */
static int32_t sum_of(struct ranks_rank *rank, int32_t mine)
{
    int32_t sum = 0;

    ranks_require_ok(rank, hkt_all_reduce(&mine, &sum, 1, HKT_INT32, HKT_SUM, rank->comm, NULL), "hkt_all_reduce");
    return sum;
}

/** The core of `from` that has `before` others before it. */
static int nth_cpu(const cpu_set_t *from, int before)
{
    int cpu = 0;

    for (; cpu < CPU_SETSIZE - 1 && (!CPU_ISSET(cpu, from) || before > 0); cpu++)
        before -= CPU_ISSET(cpu, from) ? 1 : 0;
    return cpu;
}

/** All ranks on the second of two cores, bound to it, then free. The first two then go to the first, where they belong, and
 *  nobody else moves: to even them out would take the last two. */
static void share_a_core(struct ranks_rank *rank)
{
    const bool spreads = *(const bool *)rank->arg;
    cpu_set_t both;

    ranks_require(rank, __real_sched_getaffinity(0, sizeof both, &both) == 0, "the cores of a rank");
    cpu_set_t one;

    CPU_ZERO(&one);
    CPU_SET(nth_cpu(&both, 1), &one);
    atomic_store(&home, nth_cpu(&both, rank->rank / 2));

    ranks_require(rank, __real_sched_setaffinity(0, sizeof one, &one) == 0, "a rank that can be bound");
    atomic_store(&affinity_calls, 0);
    int32_t looked = 0;

    for (int i = 0; i < CALLS || (spreads && looked == 0); i++) /* the rank's deadline ends it */
        looked = sum_of(rank, atomic_load(&affinity_calls));
    require_cpus(rank, &one, "bound");
    ranks_require(rank, __real_sched_setaffinity(0, sizeof both, &both) == 0, "a rank that can be freed");
    bool was_home = false;
    int32_t at_home = 0;

    for (int i = 0; i < CALLS || (spreads && at_home < rank->nranks); i++) { /* as above */
        looked = sum_of(rank, atomic_load(&affinity_calls));
        was_home = was_home || sched_getcpu() == atomic_load(&home);
        at_home = sum_of(rank, was_home);
    }
    ranks_require(rank, atomic_load(&moves_astray) == 0, "%d moves to a core that is not the rank's", atomic_load(&moves_astray));
    ranks_require(rank, spreads == (looked > 0), "HOCKET_SPREAD=%d: %d calls about cores", spreads, looked);
    require_cpus(rank, &both, "free");
    ranks_require_ok(rank, hkt_comm_destroy(rank->comm), "hkt_comm_destroy");
    rank->comm = NULL;
    require_cpus(rank, &both, "after the communicator");
}

static void ranks_that_share_cores_keep_theirs(void **state)
{
    static const char *const settings[][2] = {{"HOCKET_SPREAD=0", NULL}, {"HOCKET_SPREAD=1", NULL}};
    struct hkt_config config = HKT_CONFIG_INIT;
    cpu_set_t all;

    (void)state;
    assert_int_equal(__real_sched_getaffinity(0, sizeof all, &all), 0);
    if (CPU_COUNT(&all) < 2)
        skip();
    cpu_set_t both;

    CPU_ZERO(&both);
    CPU_SET(nth_cpu(&all, 0), &both);
    CPU_SET(nth_cpu(&all, 1), &both);
    config.transport = "shm";
    assert_int_equal(__real_sched_setaffinity(0, sizeof both, &both), 0); /* ranks inherit it */
    for (int i = 0; i < 2; i++) {
        bool spreads = i == 1;
        const struct ranks_job job = {.kind = RANKS_PROCESSES, .nranks = 4, .settings = settings[i], .config = &config,
                                      .fn = share_a_core, .arg = &spreads};

        ranks_run(&job);
    }
    assert_int_equal(__real_sched_setaffinity(0, sizeof all, &all), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steady_threads_allocate_nothing),
        cmocka_unit_test(steady_calls_make_no_system_calls),
        cmocka_unit_test(ranks_that_share_cores_keep_theirs),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
