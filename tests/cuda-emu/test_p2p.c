/* What the conformance suite does not see of cuda_p2p, since its buffers are memory of the host and all its ranks use one
 * device: payloads lent from memory of devices and received into it, devices of which one does not reach the other, calls of
 * CUDA that fail, one after another: a rank that hangs, a failure without CUDA's text, objects that are left.
 *
 *   test_cuda_p2p MODULE    the emulated one; or, by tests/gpu/run, the real one, of which nothing can be refused */
#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

#include "cases.h"
#include "core/clock.h"
#include "device/cuda.h"

#define LAUNCH_FAILURE 719
#define DEVICES 2
#define BUFFER (256 * 1024)

static const char *module_path;
static bool is_emulated;

static void *emulator(const char *name)
{
    void *handle = dlopen(module_path, RTLD_NOW | RTLD_NOLOAD);
    void *function = handle != NULL ? dlsym(handle, name) : NULL;

    RIG_CHECK(function != NULL);
    dlclose(handle);
    return function;
}

static const struct hkt__cuda_module *cuda_of(void)
{
    char why[512];
    const struct hkt__cuda_module *cuda = hkt__cuda_open(module_path, why, sizeof why);

    RIG_CHECK(cuda != NULL);
    return cuda;
}

/** Objects of CUDA that this process has; of the real one nobody counts them. */
static int live_objects(void)
{
    int (*live)(void);

    if (!is_emulated)
        return 0;
    *(void **)&live = emulator("emu_live_objects");
    return live();
}

/** The emulation is not asked: that would be a call of CUDA, which may be the one to fail. */
static int ndevices(void)
{
    int n = 0;

    if (is_emulated)
        return DEVICES;
    RIG_CHECK(cuda_of()->device_count(&n) == 0 && n > 0);
    return n < DEVICES ? n : DEVICES;
}

/* ---- two ranks, each on a device of its own, where there are two ---- */

struct session {
    struct rig_rank *rank;
    struct hkt__tp *tp;
    struct hkt__tp_dom *dom;
    struct hkt__chan *tx, *rx;
    int32_t job_ranks[2];
    enum hkt_status rc;      /* the first failure */
    char text[HKT__ERROR_TEXT_MAX];
};

static atomic_bool has_failed; /* of all ranks that are threads of this process: nobody waits for one that gave up. Relaxed */

static bool is_ok(struct session *s, enum hkt_status rc)
{
    if (rc < 0 && s->rc == HKT_OK) {
        s->rc = rc;
        snprintf(s->text, sizeof s->text, "%s", hkt_last_error());
        atomic_store_explicit(&has_failed, true, memory_order_relaxed);
    }
    return s->rc == HKT_OK;
}

/** All-gathers of a blob; false: somebody has failed. */
static bool share(struct session *s, const unsigned char *blob, size_t bytes, unsigned char *blobs, size_t *all_bytes)
{
    const size_t own = s->rc == HKT_OK ? bytes : 0;

    rig_exchange(s->rank, blob, HKT__TP_BLOB_MAX, blobs);
    rig_exchange(s->rank, &own, sizeof own, all_bytes);
    return all_bytes[0] != 0 && all_bytes[1] != 0;
}

static bool go_on(const struct session *s)
{
    return s->rc == HKT_OK && !atomic_load_explicit(&has_failed, memory_order_relaxed);
}

static void session_connect(struct session *s)
{
    unsigned char blob[HKT__TP_BLOB_MAX] = { 0 }, blobs[2 * HKT__TP_BLOB_MAX], use[2] = { 1, 1 };
    size_t bytes = 0, all[2];
    const struct hkt__tp_members members = { .comm_id = 99, .nranks = 2, .rank = s->rank->rank, .job_ranks = s->job_ranks,
                                             .lanes = 1 };

    if (s->tp != NULL)
        (void)is_ok(s, s->tp->ops->dom_open(s->tp, &members, &s->dom, blob, &bytes));
    if (!share(s, blob, bytes, blobs, all))
        return;
    (void)is_ok(s, s->dom->ops->dom_connect(s->dom, blobs, all, use));
    while (go_on(s)) {
        const enum hkt_status rc = s->dom->ops->chan_open(s->dom, 1 - s->rank->rank, 0, &s->tx, &s->rx);

        if (is_ok(s, rc) && rc == HKT_OK)
            break;
        s->dom->ops->park(s->dom, 100000);
    }
}

static void session_open(struct session *s, struct rig_rank *rank)
{
    static const unsigned char token[16] = "two-devices-two";
    unsigned char blob[HKT__TP_BLOB_MAX] = { 0 }, blobs[2 * HKT__TP_BLOB_MAX], reached[2] = { 0 };
    size_t bytes = 0, all[2];

    *s = (struct session){ .rank = rank, .job_ranks = { 0, 1 } };
    const struct hkt__tp_params params = { .job_rank = rank->rank, .job_nranks = 2, .token = token, .settings = &rank->settings };

    if (is_ok(s, rank->ops->open(&params, &s->tp)))
        (void)is_ok(s, s->tp->ops->address(s->tp, blob, &bytes));
    if (share(s, blob, bytes, blobs, all)) {
        (void)is_ok(s, s->tp->ops->reach(s->tp, blobs, all, hkt__now_ns() + INT64_C(20000000000), reached));
        RIG_CHECK(s->rc != HKT_OK || (reached[0] && reached[1]));
    }
    rig_barrier(rank);
    session_connect(s);
}

static void session_close(struct session *s)
{
    if (s->dom != NULL)
        s->dom->ops->dom_close(s->dom);
    if (s->tp != NULL)
        s->tp->ops->close(s->tp);
    rig_barrier(s->rank);
}

/* ---- memory of devices ---- */

static void fill(unsigned char *data, size_t bytes, int from, int round)
{
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)(i * 7 + i / 251 + (size_t)(from * 31 + round));
}

/** Sends `bytes` bytes of the device's memory, lent where the channel takes it; returns how many frames were lent. */
static int send_far(struct session *s, const unsigned char *far, const unsigned char *near, size_t bytes)
{
    int nlent = 0;

    for (size_t at = 0; at < bytes;) {
        struct hkt__room room;
        const struct hkt__stamp stamp = { .count = bytes };
        enum hkt_status rc = s->tx->ops->tx_begin(s->tx, bytes - at, &room);

        if (is_ok(s, rc) && rc == HKT_AGAIN && go_on(s)) {
            s->dom->ops->park(s->dom, 100000);
            continue;
        }
        if (!go_on(s))
            break;
        rc = s->tx->ops->tx_lend(s->tx, far + at, room.bytes, &stamp);
        nlent += rc == HKT_OK;
        if (rc == HKT_AGAIN) {
            memcpy(room.data, near + at, room.bytes);
            rc = s->tx->ops->tx_end(s->tx, room.bytes, &stamp);
        }
        (void)is_ok(s, rc);
        at += room.bytes;
    }
    return nlent;
}

/** Receives into memory of the device; returns how many frames came there directly. */
static int receive_far(struct session *s, unsigned char *far, size_t bytes)
{
    const struct hkt__cuda_module *cuda = cuda_of();
    int ndirect = 0;

    for (size_t at = 0; at < bytes;) {
        struct hkt__view view;
        const enum hkt_status rc = s->rx->ops->rx_into(s->rx, far + at, bytes - at, &view);

        if (is_ok(s, rc) && rc == HKT_AGAIN && go_on(s)) {
            s->dom->ops->park(s->dom, 100000);
            continue;
        }
        if (!go_on(s))
            break;
        RIG_EQUAL(view.stamp.count, bytes);
        ndirect += view.data == far + at;
        if (view.data != far + at)
            (void)is_ok(s, cuda->copy_wait(far + at, view.data, view.bytes, s->rank->rank % ndevices()) == 0
                               ? HKT_OK : hkt__fail(HKT_ERR_SYSTEM, "CUDA: unspecified launch failure"));
        at += view.bytes;
        s->rx->ops->rx_end(s->rx);
    }
    return ndirect;
}

/** Both ranks send each other `bytes` bytes, one after the other. Returns the frames that took no way through the host. */
static int exchange_far(struct session *s, unsigned char *const *far, unsigned char *near, size_t bytes, int round)
{
    const struct hkt__cuda_module *cuda = cuda_of();
    const int rank = s->rank->rank, device = rank % ndevices();
    int nframes = 0;

    fill(near, bytes, rank, round);
    RIG_EQUAL(cuda->copy_wait(far[0], near, bytes, device), 0);
    for (int turn = 0; turn < 2; turn++)
        nframes += turn == rank ? send_far(s, far[0], near, bytes) : receive_far(s, far[1], bytes);
    while (go_on(s) && s->tx->ops->tx_is_lent(s->tx))
        s->dom->ops->park(s->dom, 100000);
    if (!go_on(s))
        return nframes;
    RIG_EQUAL(cuda->copy_wait(near, far[1], bytes, device), 0);
    for (size_t i = 0; i < bytes; i++)
        RIG_EQUAL(near[i], (unsigned char)(i * 7 + i / 251 + (size_t)((1 - rank) * 31 + round)));
    return nframes;
}

/** The rank's device, and two buffers there. */
static void begin(const struct rig_rank *rank, unsigned char **out_far)
{
    const int device = rank->rank % ndevices();
    int before;
    void *p;

    RIG_EQUAL(cuda_of()->device_use(device, &before), 0);
    for (int i = 0; i < 2; i++) {
        RIG_EQUAL(cuda_of()->device_alloc(&p, BUFFER, device), 0);
        out_far[i] = p;
    }
}

static void end(unsigned char *const *far)
{
    for (int i = 0; i < 2; i++)
        RIG_EQUAL(cuda_of()->device_free(far[i]), 0);
}

/** arg: do the devices reach each other? */
static void memory_of_devices(struct rig_rank *rank, const void *arg)
{
    static const size_t sizes[] = { 1, 200, 300, 4096, 40000, 32768, BUFFER - 3, BUFFER };
    const bool is_reached = *(const bool *)arg;
    const bool is_told = is_emulated || ndevices() == 1; /* whether real devices reach each other, the machine tells */
    unsigned char *far[2], *near = malloc(BUFFER);
    struct session s;

    RIG_CHECK(near != NULL);
    begin(rank, far);
    session_open(&s, rank);
    RIG_EQUAL(s.rc, HKT_OK);
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const int nframes = exchange_far(&s, far, near, sizes[i], round);

            RIG_EQUAL(s.rc, HKT_OK);
            RIG_CHECK(!is_told || (nframes > 0) == (is_reached && sizes[i] >= 4096)); /* less goes through the host */
        }
    end(far);
    free(near);
    session_close(&s);
    /* of two processes the one that closes first keeps its arena until it is asked again */
    for (const int64_t until_ms = rig_now_ms() + 10000; live_objects() != 0 && rig_now_ms() < until_ms;) {
        session_open(&s, rank);
        session_close(&s);
    }
    RIG_EQUAL(live_objects(), 0);
}

/* ---- calls that fail ---- */

struct failing {
    void (*fail_call)(long k, int error);
    const char *(*failed_call)(void);
    unsigned char *far[2];
    unsigned char near[70000];
};

/** A transport from open to close, with the k-th call of CUDA failing. What failed; NULL: nothing. */
static const char *fails_at(struct failing *f, struct rig_rank *rank, long k)
{
    const int before = live_objects();
    struct session s;

    atomic_store_explicit(&has_failed, false, memory_order_relaxed);
    rig_barrier(rank);
    if (rank->rank == 0)
        f->fail_call(k, LAUNCH_FAILURE);
    rig_barrier(rank);
    session_open(&s, rank);
    for (int round = 0; s.tx != NULL && round < 2; round++)
        if (rank->rank == 0)
            (void)send_far(&s, f->far[0], f->near, sizeof f->near);
        else
            (void)receive_far(&s, f->far[1], sizeof f->near);
    while (s.tx != NULL && go_on(&s) && s.tx->ops->tx_is_lent(s.tx))
        s.dom->ops->park(s.dom, 100000);
    session_close(&s);
    const char *failed = f->failed_call();

    if (s.rc == HKT_ERR_SYSTEM && strstr(s.text, "unspecified launch failure") == NULL)
        rig_fail(__FILE__, __LINE__, "%s failed, and the transport said \"%s\"", failed, s.text);
    RIG_CHECK(s.rc == HKT_OK || s.rc == HKT_ERR_SYSTEM || s.rc == HKT_ERR_PEER_LOST || s.rc == HKT_ERR_UNSUPPORTED);
    RIG_CHECK(failed != NULL || s.rc == HKT_OK);
    if (failed == NULL || (strstr(failed, "Free") == NULL && strstr(failed, "Destroy") == NULL)) /* those leave what they are of */
        if (live_objects() != before)
            rig_fail(__FILE__, __LINE__, "%d objects are left after call %ld, %s, failed (%s)", live_objects() - before, k,
                     failed, s.text);
    rig_barrier(rank);
    if (rank->rank == 0)
        f->fail_call(0, 0);
    rig_barrier(rank);
    return failed;
}

static void every_call_fails(struct rig_rank *rank, const void *arg)
{
    const long step = *(const int *)arg;
    struct failing *f = calloc(1, sizeof *f);
    long k = 1;

    RIG_CHECK(f != NULL);
    *(void **)&f->fail_call = emulator("emu_fail_call");
    *(void **)&f->failed_call = emulator("emu_failed_call");
    begin(rank, f->far);
    rig_barrier(rank);
    while (fails_at(f, rank, k) != NULL)
        k += step;
    RIG_CHECK(k > 60);
    if (rank->rank == 0)
        printf("# %ld calls of CUDA\n", k - 1);
    rig_barrier(rank);
    end(f->far);
    free(f);
}

/* ---- the program ---- */

struct row {
    const char *name;
    rig_body *body;
    bool is_threads, is_reached;
    const char *setting, *value; /* of the emulation; NULL: none */
};

static const struct row rows[] = {
    { "memory_of_devices", memory_of_devices, false, true, NULL, NULL },
    { "memory_of_devices_threads", memory_of_devices, true, true, NULL, NULL },
    { "without_peer_access", memory_of_devices, true, false, "EMU_PEERS", "0" },
    { "without_ipc", memory_of_devices, false, false, "EMU_IPC", "0" },
    { "every_call_fails", every_call_fails, true, true, NULL, NULL },
};

int main(int argc, char **argv)
{
    int nfailed = 0;

    if (argc != 2) {
        fprintf(stderr, "usage: %s MODULE\n", argv[0]);
        return 2;
    }
    module_path = argv[1];
    is_emulated = strstr(argv[1], "_emu") != NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *row = &rows[i];
        const struct rig_opts opts = { .transport = "cuda_p2p", .nranks = 2, .is_threads = row->is_threads,
                                       .deadline_ms = 60000, .victim = -1 };
        const int step = rig_thinning();
        const int64_t start_ms = rig_now_ms();

        if (!is_emulated && (row->setting != NULL || row->body == every_call_fails)) {
            printf("ok %zu %s # SKIP: of the emulation only\n", i + 1, row->name);
            continue;
        }
        if (row->setting != NULL)
            setenv(row->setting, row->value, 1);
        const int rc = rig_run(&opts, row->body, row->body == memory_of_devices ? (const void *)&row->is_reached : &step);

        if (row->setting != NULL)
            unsetenv(row->setting);
        nfailed += rc != 0;
        printf("%s %zu %s (%lld ms)\n", rc == 0 ? "ok" : "not ok", i + 1, row->name, (long long)(rig_now_ms() - start_ms));
        fflush(stdout);
    }
    printf("1..%zu\n", sizeof rows / sizeof *rows);
    return nfailed > 0;
}
