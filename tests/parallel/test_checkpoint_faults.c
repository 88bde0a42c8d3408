/* What could break: a process that dies while it saves, at whatever call, leaves neither the old checkpoint nor the new one, or a
 * mixture; what a dead one left behind hinders the next save; a file that is truncated, too long, of another step, of another
 * program, or has one bit changed, is believed, or refused without its name and a reason.
 *
 * Processes are killed with SIGKILL by themselves: the calls that change files are replaced here, counted, and the k-th kills, a
 * write after its first half. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "hocket/parallel.h"
#include "parallel/train_state.h"
#include "ranks.h"
#include "text.h"

enum { CALLS_MAX = 4000, STATE_MAX = 8000, PATH_BYTES = 300 };

/* ---- calls that change files ---- */

enum call_kind { CALL_WRITE = 1, CALL_OTHER };

/* Seen by the test and its children. */
static struct {
    _Atomic int count;           /* calls so far; -1: not counted, and nobody is killed */
    int kill_at;                 /* from 1; 0: nobody */
    int rank;                    /* that dies; the other ranks' calls are not counted */
    char kind[CALLS_MAX];
} *calls;
static int process_rank;

/* Whether this call is the one to die in. */
static bool dies(enum call_kind kind)
{
    if (calls == NULL || process_rank != calls->rank || atomic_load(&calls->count) < 0)
        return false;
    const int number = atomic_fetch_add(&calls->count, 1) + 1;

    if (number < CALLS_MAX)
        calls->kind[number] = (char)kind;
    return number == calls->kill_at;
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

static void before(enum call_kind kind)
{
    if (dies(kind))
        die();
}

ssize_t pwrite(int fd, const void *from, size_t bytes, off_t at)
{
    if (dies(CALL_WRITE)) {
        (void)!syscall(SYS_pwrite64, fd, from, bytes / 2, at);
        die();
    }
    return syscall(SYS_pwrite64, fd, from, bytes, at);
}

int fsync(int fd)
{
    /* What a process wrote outlives it without; only the machine's death would show, and the test would wait for disks. */
    (void)fd;
    before(CALL_OTHER);
    return 0;
}

int ftruncate(int fd, off_t bytes)
{
    before(CALL_OTHER);
    return (int)syscall(SYS_ftruncate, fd, bytes);
}

int rename(const char *from, const char *to)
{
    before(CALL_OTHER);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int mkdir(const char *path, mode_t mode)
{
    before(CALL_OTHER);
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int unlink(const char *path)
{
    before(CALL_OTHER);
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
    before(CALL_OTHER);
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR);
}

/* ---- a small model, and its state ---- */


static struct hkt_train_config config_of(int dp, int zero)
{
    struct hkt_train_config c = hkt_train_defaults();

    c.shape = (struct hkt_shape){ .layers = 1, .heads = 1, .hidden = 4, .ffn = 5, .vocab = 256, .positions = 4, .biases = 1,
                                  .tied = 1 };
    c.layout = (struct hkt_layout){ .dp = dp, .zero = zero, .schedule = HKT_PIPE_1F1B, .global_batch = 2, .micro_batch = 1,
                                    .seq = 4 };
    c.data = text_path;
    c.dtype = HKT_F64;
    c.warmup_steps = 0;
    return c;
}

struct state {
    int64_t steps;
    int count;
    double elems[STATE_MAX];
};

/* All state of a trainer of one rank. */
static void take_state(const struct hkt_trainer *t, struct state *out)
{
    const struct hkt__own *own = hkt__gpt_own(t->gpt);

    memset(out, 0, sizeof *out);
    out->steps = hkt_trainer_steps(t);
    for (int state = 0; state < HKT__STATE_COUNT; state++) {
        struct hkt__own_cursor cursor = { 0 };
        struct hkt__run run;

        while (hkt__own_next(own, true, &cursor, &run)) {
            assert_true(out->count + run.count <= STATE_MAX);
            memcpy(&out->elems[out->count], hkt__engine_state(t->engine, &run, (enum hkt__state)state),
                   (size_t)run.count * sizeof(double));
            out->count += (int)run.count;
        }
    }
}

static bool same_state(const struct state *a, const struct state *b)
{
    return a->steps == b->steps && a->count == b->count && memcmp(a->elems, b->elems, (size_t)a->count * sizeof(double)) == 0;
}

static struct hkt_trainer *make_trainer(void)
{
    const struct hkt_train_config config = config_of(1, 0);
    struct hkt_trainer *t = NULL;

    assert_int_equal(hkt_trainer_create(&config, NULL, &t), HKT_OK);
    return t;
}

static void train_once(struct hkt_trainer *t)
{
    struct hkt_train_report report;

    assert_int_equal(hkt_trainer_step(t, &report), HKT_OK);
}

/* The state that a checkpoint has. */
static void load_state(struct hkt_trainer *t, const char *dir, struct state *out)
{
    if (hkt_trainer_resume(t, dir) != HKT_OK)
        fail_msg("%s", hkt_parallel_last_error());
    take_state(t, out);
}

static void in_folder(char *out, const char *name)
{
    snprintf(out, PATH_BYTES, "%s/%s", folder, name);
}

static void shell(const char *format, const char *a, const char *b)
{
    char command[8 * PATH_BYTES];

    snprintf(command, sizeof command, format, a, b);
    assert_int_equal(system(command), 0);
}

/* ---- killed while saving ---- */

struct death {
    struct hkt_trainer *t;
    char dir[PATH_BYTES], whole[PATH_BYTES]; /* where it saves; a copy of the checkpoint before */
    bool is_again;                           /* the same step is saved once more, over itself */
    struct state old, new;
};

/* What the process does that dies: go on from the old checkpoint, and save. */
static void save_in_child(const struct death *d)
{
    const pid_t pid = fork();
    int status = 0;

    assert_true(pid >= 0);
    if (pid == 0) {
        atomic_store(&calls->count, -1);
        bool ok = hkt_trainer_resume(d->t, d->dir) == HKT_OK;
        struct hkt_train_report report;

        ok = ok && (d->is_again || hkt_trainer_step(d->t, &report) == HKT_OK);
        atomic_store(&calls->count, 0);
        _exit(ok && hkt_trainer_save(d->t, d->dir, 0) == HKT_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (calls->kill_at > 0)
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    else
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void prepare_death(struct death *d, bool is_again)
{
    d->is_again = is_again;
    in_folder(d->dir, is_again ? "again" : "next");
    in_folder(d->whole, is_again ? "again.whole" : "next.whole");
    d->t = make_trainer();
    train_once(d->t);
    assert_int_equal(hkt_trainer_save(d->t, d->dir, 0), HKT_OK);
    take_state(d->t, &d->old);
    train_once(d->t);
    take_state(d->t, &d->new);
    if (is_again)
        d->new = d->old;
    shell("cp -r '%s' '%s'", d->dir, d->whole);
}

/* Writes of elements are alike: some of them are enough. */
static bool is_tried(int k, int count)
{
    const int every = ranks_small() ? 29 : 7;

    return (k < count && calls->kind[k] == CALL_OTHER && (!ranks_small() || k % 3 == 0)) || k % every == 0 || k == 1 || k == count;
}

static void killed_at_every_call(bool is_again)
{
    static struct death d;
    static struct state got;
    int tried = 0, was_new = 0;

    prepare_death(&d, is_again);
    calls->rank = process_rank = 0;
    calls->kill_at = 0;
    save_in_child(&d);
    const int count = atomic_load(&calls->count);

    assert_true(count > 20 && count < CALLS_MAX);
    for (int k = 1; k <= count; k++) {
        if (!is_tried(k, count))
            continue;
        atomic_store(&calls->count, -1);
        /* Every third finds what the one before left. */
        if (tried++ % 3 == 0 || got.steps != 1 || k == count)
            shell("rm -rf '%1$s' && cp -r '%2$s' '%1$s'", d.dir, d.whole);
        calls->kill_at = k;
        save_in_child(&d);
        load_state(d.t, d.dir, &got);
        if (!same_state(&got, &d.old) && !same_state(&got, &d.new))
            fail_msg("killed at call %d of %d: neither the old state nor the new one, but step %lld", k, count,
                     (long long)got.steps);
        was_new += got.steps == d.new.steps;
    }
    /* Not always the old one: the end of a save was met as well. */
    assert_true(tried > 5 && was_new > 0 && (is_again || was_new < tried));
    printf("killed at %d of %d calls\n", tried, count);
    atomic_store(&calls->count, -1);
    calls->kill_at = 0;
    assert_int_equal(hkt_trainer_save(d.t, d.dir, 0), HKT_OK);
    assert_int_equal(hkt_trainer_destroy(d.t), HKT_OK);
}

static void a_killed_save_loses_nothing(void **state)
{
    (void)state;
    killed_at_every_call(false);
}

static void nor_one_over_the_same_step(void **state)
{
    (void)state;
    killed_at_every_call(true);
}

/* ---- of two ranks one is killed ---- */

struct pair {
    char dir[PATH_BYTES], from[PATH_BYTES];
};

static void save_in_pair(struct ranks_rank *rank)
{
    const struct pair *pair = rank->arg;
    const struct hkt_train_config config = config_of(2, 1);
    struct hkt_trainer *t = NULL;
    struct hkt_train_report report;

    process_rank = rank->rank;
    ranks_require(rank, hkt_trainer_create(&config, rank->comm, &t) == HKT_OK, "create: %s", hkt_parallel_last_error());
    ranks_require(rank, hkt_trainer_resume(t, pair->from) == HKT_OK, "resume: %s", hkt_parallel_last_error());
    ranks_require(rank, hkt_trainer_step(t, &report) == HKT_OK, "step: %s", hkt_parallel_last_error());
    if (rank->rank == calls->rank)
        atomic_store(&calls->count, 0);
    /* In a thread, while training goes on. */
    enum hkt_status rc = hkt_trainer_save(t, pair->dir, 1);

    if (rc == HKT_OK && calls->kill_at == 0)
        rc = hkt_trainer_step(t, &report);
    const enum hkt_status ended = hkt_trainer_destroy(t);

    ranks_require(rank, rc == HKT_OK && ended == HKT_OK, "save: %s", hkt_parallel_last_error());
}

static bool run_pair(struct pair *pair, int rank, int kill_at)
{
    const struct ranks_job job = { .kind = RANKS_PROCESSES, .nranks = 2, .leaves_descriptors = true, .fn = save_in_pair,
                                   .arg = pair };

    calls->rank = rank;
    calls->kill_at = kill_at;
    atomic_store(&calls->count, -1);
    const bool ok = ranks_try(&job, NULL);

    process_rank = 0;
    return ok;
}

static void one_of_two_ranks_is_killed(void **state)
{
    static struct state old, new, got;
    struct hkt_trainer *t = make_trainer();
    struct pair pair;
    char done[PATH_BYTES];

    (void)state;
    in_folder(pair.dir, "pair");
    in_folder(pair.from, "pair");
    in_folder(done, "pair.done");
    atomic_store(&calls->count, -1);
    train_once(t);
    assert_int_equal(hkt_trainer_save(t, pair.dir, 0), HKT_OK);
    take_state(t, &old);
    snprintf(pair.dir, sizeof pair.dir, "%s", done);
    int counts[2];

    for (int rank = 0; rank < 2; rank++) {
        assert_true(run_pair(&pair, rank, 0));
        counts[rank] = atomic_load(&calls->count);
    }
    load_state(t, done, &new);
    assert_int_equal(new.steps, 2);
    in_folder(pair.dir, "pair");
    for (int i = 0; i < (ranks_small() ? 2 : 8); i++) {
        const int rank = i % 2, kill_at = 1 + (counts[rank] - 1) * i / 7;

        assert_false(run_pair(&pair, rank, kill_at));
        load_state(t, pair.dir, &got);
        if (!same_state(&got, &old) && !same_state(&got, &new))
            fail_msg("rank %d killed at call %d: step %lld, neither the old state nor the new one", rank, kill_at,
                     (long long)got.steps);
        if (got.steps == 2)
            break; /* the last call of all */
    }
    assert_int_equal(hkt_trainer_destroy(t), HKT_OK);
}

/* ---- what is not a whole checkpoint of ours ---- */

static unsigned char *read_all(const char *path, size_t *out_bytes)
{
    FILE *file = fopen(path, "rb");
    struct stat info;

    assert_non_null(file);
    assert_int_equal(fstat(fileno(file), &info), 0);
    unsigned char *all = malloc((size_t)info.st_size + 1);

    assert_non_null(all);
    *out_bytes = fread(all, 1, (size_t)info.st_size, file);
    assert_int_equal(*out_bytes, info.st_size);
    assert_int_equal(fclose(file), 0);
    return all;
}

static void write_all(const char *path, const unsigned char *all, size_t bytes)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(all, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* A checkpoint of step 1, and the path of one of its files. */
static struct hkt_trainer *make_checkpoint(const char *name, char *out_dir)
{
    struct hkt_trainer *t = make_trainer();

    atomic_store(&calls->count, -1);
    in_folder(out_dir, name);
    train_once(t);
    assert_int_equal(hkt_trainer_save(t, out_dir, 0), HKT_OK);
    return t;
}

/* why NULL: any reason that is told. */
static void refuse(struct hkt_trainer *t, const char *dir, const char *file, const char *why)
{
    static const char *const reasons[] = { "is damaged", "is not a safetensors file", "is truncated", "did not write it" };
    const enum hkt_status rc = hkt_trainer_resume(t, dir);
    const char *text = rc < 0 ? hkt_parallel_last_error() : "it was believed";
    bool is_told = why != NULL && strstr(text, why) != NULL;

    for (size_t i = 0; why == NULL && i < sizeof reasons / sizeof reasons[0]; i++)
        is_told = is_told || strstr(text, reasons[i]) != NULL;
    if (rc >= 0 || !is_told || strstr(text, file) == NULL)
        fail_msg("\"%s\" does not refuse %s, saying \"%s\"", text, file, why != NULL ? why : "why");
}

static void each_changed_bit_is_seen(void **state)
{
    static const char *const files[] = { "model.safetensors", "optimizer.safetensors" };
    char dir[PATH_BYTES], path[2 * PATH_BYTES];
    struct hkt_trainer *t = make_checkpoint("bits", dir);
    static struct state before_it, after;

    (void)state;
    take_state(t, &before_it);
    for (int f = 0; f < 2; f++) {
        size_t bytes;

        snprintf(path, sizeof path, "%s/step-00000001/%s", dir, files[f]);
        unsigned char *all = read_all(path, &bytes);

        for (size_t at = 0; at < bytes; at += at < 8 ? 1 : ranks_small() ? 311 : 97) {
            const unsigned char bit = (unsigned char)(1 << at * 5 % 8);

            all[at] ^= bit;
            write_all(path, all, bytes);
            refuse(t, dir, files[f], NULL);
            all[at] ^= bit;
        }
        write_all(path, all, bytes);
        free(all);
    }
    load_state(t, dir, &after);
    assert_true(same_state(&before_it, &after));
    assert_int_equal(hkt_trainer_destroy(t), HKT_OK);
}

static void other_lengths_are_refused(void **state)
{
    char dir[PATH_BYTES], path[2 * PATH_BYTES];
    struct hkt_trainer *t = make_checkpoint("lengths", dir);
    size_t bytes;

    (void)state;
    snprintf(path, sizeof path, "%s/step-00000001/optimizer.safetensors", dir);
    unsigned char *all = read_all(path, &bytes);

    for (size_t cut = 1; cut < bytes; cut = cut * 3 / 2 + 1) {
        write_all(path, all, bytes - cut);
        refuse(t, dir, "optimizer.safetensors", "is truncated");
    }
    write_all(path, all, 0);
    refuse(t, dir, "optimizer.safetensors", "is not a safetensors file: it is shorter than 8 bytes");
    all[bytes] = 0;
    write_all(path, all, bytes + 1);
    refuse(t, dir, "optimizer.safetensors", "has 1 bytes behind its last tensor");
    free(all);
    assert_int_equal(hkt_trainer_destroy(t), HKT_OK);
}

static void files_of_others_are_refused(void **state)
{
    char dir[PATH_BYTES], path[2 * PATH_BYTES], other[2 * PATH_BYTES];
    struct hkt_trainer *t = make_checkpoint("foreign", dir);

    (void)state;
    train_once(t);
    assert_int_equal(hkt_trainer_save(t, dir, 0), HKT_OK);
    snprintf(path, sizeof path, "%s/step-00000002/optimizer.safetensors", dir);
    snprintf(other, sizeof other, "%s/step-00000001/optimizer.safetensors", dir);
    shell("cp '%s' '%s'", other, path);
    refuse(t, dir, "optimizer.safetensors", "is of step 1, the model beside it of step 2");
    snprintf(other, sizeof other, "%s/step-00000001/model.safetensors", dir);
    shell("cp '%s' '%s'", other, path);
    refuse(t, dir, "optimizer.safetensors", "is of step 1");
    assert_int_equal(unlink(path), 0);
    refuse(t, dir, "optimizer.safetensors", "cannot be opened");
    snprintf(path, sizeof path, "%s/step-00000002/model.safetensors", dir);
    write_all(path, (const unsigned char *)"GGUF\3\0\0\0\0\0\0\0and so on", 21);
    refuse(t, dir, "model.safetensors", "is not a safetensors file");
    write_all(path, (const unsigned char *)"\2\0\0\0\0\0\0\0{}", 10);
    refuse(t, dir, "model.safetensors", "did not write it");
    snprintf(path, sizeof path, "%s/latest", dir);
    write_all(path, (const unsigned char *)"step-00000003", 13);
    refuse(t, dir, "latest", "names step-00000003, which is not there");
    write_all(path, (const unsigned char *)"../elsewhere", 12);
    refuse(t, dir, "latest", "does not name a checkpoint");
    write_all(path, (const unsigned char *)"step-00000001", 13);
    assert_int_equal(hkt_trainer_resume(t, dir), HKT_OK);
    assert_int_equal(hkt_trainer_destroy(t), HKT_OK);
}

/* The rank that reads what was changed is not the only one that learns of it. */
static void resume_damaged(struct ranks_rank *rank)
{
    const struct hkt_train_config config = config_of(2, 3);
    const char *dir = rank->arg;
    struct hkt_trainer *t = NULL;

    ranks_require(rank, hkt_trainer_create(&config, rank->comm, &t) == HKT_OK, "create: %s", hkt_parallel_last_error());
    ranks_require(rank, hkt_trainer_resume(t, dir) == HKT_ERR_INVALID, "a changed bit is believed");
    ranks_require_text(rank, hkt_parallel_last_error(), "model.safetensors is damaged");
    ranks_require(rank, hkt_trainer_destroy(t) == HKT_OK, "destroy");
}

static void all_ranks_refuse(void **state)
{
    char dir[PATH_BYTES], path[2 * PATH_BYTES];
    struct hkt_trainer *t = make_checkpoint("ranks", dir);
    const struct ranks_job job = { .kind = RANKS_THREADS, .nranks = 2, .leaves_descriptors = true, .fn = resume_damaged,
                                   .arg = dir };
    size_t bytes;

    (void)state;
    snprintf(path, sizeof path, "%s/step-00000001/model.safetensors", dir);
    unsigned char *all = read_all(path, &bytes);

    all[bytes - 9] ^= 16;
    write_all(path, all, bytes);
    free(all);
    ranks_run(&job);
    assert_int_equal(hkt_trainer_destroy(t), HKT_OK);
}

static int make_text(void **state)
{
    (void)state;
    calls = mmap(NULL, sizeof *calls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (calls == MAP_FAILED)
        return -1;
    atomic_store(&calls->count, -1);
    return text_make(200) ? 0 : -1;
}

static int remove_text(void **state)
{
    (void)state;
    return text_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_save_loses_nothing),
        cmocka_unit_test(nor_one_over_the_same_step),
        cmocka_unit_test(one_of_two_ranks_is_killed),
        cmocka_unit_test(each_changed_bit_is_seen),
        cmocka_unit_test(other_lengths_are_refused),
        cmocka_unit_test(files_of_others_are_refused),
        cmocka_unit_test(all_ranks_refuse),
    };

    return cmocka_run_group_tests_name("checkpoint_faults", tests, make_text, remove_text);
}
