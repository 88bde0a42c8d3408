/* One rank of test_hosts.py; it joins by its environment. Prints "PEER TRANSPORT" for each peer, then
 *
 *   hosts_rank check COUNT...   makes every collective with every count, in and out of place, and sends around the ring;
 *                               prints "N calls, N wrong" and what was wrong; exit code 1 if anything was
 *   hosts_rank registered COUNT...  the same with registered buffers
 *   hosts_rank device COUNT...  the same with buffers of hkt_mem_alloc_device, but for the ring
 *   hosts_rank last             makes all-reduces until one fails; prints "went N", the status and the error of the
 *                               communicator; exit code 3 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"

#define MARGINS 256 /* bytes that calls.h keeps before and behind a buffer */

enum kind { HOST, REGISTERED, DEVICE };

enum { CODE_WRONG = 1, CODE_FAILED = 2, CODE_LAST = 3 };

struct tally {
    int ncalls, nwrong;
    char *device[2];       /* where both buffers lie on a device; NULL: the host's serve */
    size_t device_bytes;
};

static int complain(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, hkt_last_error());
    return CODE_FAILED;
}

/** Both buffers go to the device, or come from there. */
static bool move(const struct calls *calls, const struct tally *tally, bool to_device)
{
    unsigned char *const host[] = {calls->send, calls->recv};
    bool ok = true;

    for (int i = 0; i < 2 && ok; i++)
        ok = hkt_device_copy(to_device ? (void *)tally->device[i] : host[i], to_device ? (void *)host[i] : tally->device[i],
                             tally->device_bytes, 0) == HKT_OK;
    return ok;
}

/** The same place on the device. */
static void *place(const struct calls *calls, const struct tally *tally, const void *p)
{
    const unsigned char *const at = p;

    if (p == NULL)
        return NULL;
    return at >= calls->send && at < calls->send + tally->device_bytes ? tally->device[0] + (at - calls->send)
                                                                       : tally->device[1] + (at - calls->recv);
}

static bool check_one(struct calls *calls, const struct call *call, struct tally *tally)
{
    const bool is_far = tally->device[0] != NULL;
    char what[256], why[256];
    bool ok = true;

    calls_fill(calls, call);
    calls_print(call, what, sizeof what);
    tally->ncalls++;
    if (is_far) {
        ok = move(calls, tally, true);
        calls->in = place(calls, tally, calls->in);
        calls->out = place(calls, tally, calls->out);
    }
    if (!ok || calls_issue(calls, call, NULL) != HKT_OK || (is_far && !move(calls, tally, false))) {
        complain(what);
        return false;
    }
    if (calls_check(calls, call, why, sizeof why) != 0 && tally->nwrong++ < 5)
        printf("%s: %s\n", what, why);
    return true;
}

/** Every collective, with two types, so that elements and bytes differ. */
static bool check_count(struct calls *calls, size_t count, struct tally *tally)
{
    for (int coll = 0; coll < HKT_SEND_RECV; coll++) {
        for (int in_place = 0; in_place < (coll == HKT_ALL_TO_ALL_V ? 1 : 2); in_place++) {
            const bool reduces = calls_reduces((enum hkt_coll)coll);
            const struct call call = {
                .coll = (enum hkt_coll)coll, .dtype = in_place ? HKT_F32 : HKT_INT64, .op = HKT_SUM, .count = count,
                .kind = reduces ? EXACT_BUILTIN : EXACT_PLAIN, .in_place = in_place != 0,
                .root = calls_has_root((enum hkt_coll)coll) ? calls->nranks - 1 : 0};

            if (!check_one(calls, &call, tally))
                return false;
        }
    }
    return true;
}

/** Each rank to the next one, in a group. */
static bool check_ring(struct hkt_comm *comm, size_t count, struct tally *tally)
{
    const int rank = hkt_comm_rank(comm), n = hkt_comm_size(comm), from = (rank + n - 1) % n;
    uint32_t *out = calloc(2 * count + 1, sizeof *out), *in = out + count;
    bool ok = out != NULL;

    for (size_t i = 0; i < count && ok; i++)
        out[i] = (uint32_t)(i * 7 + (size_t)rank);
    ok = ok && hkt_group_start() == HKT_OK && hkt_send(out, count, HKT_UINT32, (rank + 1) % n, comm, NULL) == HKT_OK &&
         hkt_recv(in, count, HKT_UINT32, from, comm, NULL) == HKT_OK && hkt_group_end() == HKT_OK;
    tally->ncalls++;
    if (!ok)
        complain("send_recv");
    size_t wrong = 0;

    for (size_t i = 0; i < count && ok; i++)
        wrong += in[i] != (uint32_t)(i * 7 + (size_t)from);
    tally->nwrong += wrong != 0;
    free(out);
    return ok;
}

/** Both buffers of the calls, registered or no longer. */
static bool set_registered(const struct calls *calls, bool on)
{
    unsigned char *const buffers[] = {calls->send, calls->recv};

    for (int i = 0; i < 2; i++)
        if ((on ? hkt_comm_register(calls->comm, buffers[i], calls->room) : hkt_comm_deregister(calls->comm, buffers[i])) != HKT_OK) {
            complain(on ? "hkt_comm_register" : "hkt_comm_deregister");
            return false;
        }
    return true;
}

/** Memory for both buffers on device 0, as large on all ranks. */
static bool set_device(struct hkt_comm *comm, const struct calls *calls, struct tally *tally)
{
    tally->device_bytes = calls->room + MARGINS;
    for (int i = 0; i < 2; i++) {
        void *memory;

        if (hkt_mem_alloc_device(&memory, tally->device_bytes, 0, comm) != HKT_OK) {
            complain("hkt_mem_alloc_device");
            return false;
        }
        tally->device[i] = memory;
    }
    return true;
}

static int check(struct hkt_comm *comm, enum kind kind, int ncounts, char **counts)
{
    struct calls calls;
    struct tally tally = {.ncalls = 0};
    size_t room = 0;
    bool ok = true;

    for (int i = 0; i < ncounts; i++) {
        for (int coll = 0; coll < HKT_SEND_RECV; coll++) {
            const struct call call = {.coll = (enum hkt_coll)coll, .dtype = HKT_INT64,
                                      .count = strtoul(counts[i], NULL, 10)};
            const size_t need = calls_room(&call, hkt_comm_size(comm));

            room = need > room ? need : room;
        }
    }
    if (!calls_init(&calls, comm, room)) {
        fprintf(stderr, "no memory for buffers of %zu bytes\n", room);
        return CODE_FAILED;
    }
    ok = kind == HOST || (kind == DEVICE ? set_device(comm, &calls, &tally) : set_registered(&calls, true));
    for (int i = 0; i < ncounts && ok; i++)
        ok = check_count(&calls, strtoul(counts[i], NULL, 10), &tally) &&
             check_ring(comm, strtoul(counts[i], NULL, 10), &tally);
    ok = ok && (kind != REGISTERED || set_registered(&calls, false));
    for (int i = 0; i < 2 && ok; i++)
        ok = hkt_mem_free(tally.device[i], comm) == HKT_OK;
    calls_fini(&calls);
    printf("%d calls, %d wrong\n", tally.ncalls, tally.nwrong);
    return !ok ? CODE_FAILED : tally.nwrong > 0 ? CODE_WRONG : 0;
}

static int last(struct hkt_comm *comm)
{
    static float data[1 << 16];
    enum hkt_status rc = HKT_OK;
    long done = 0;

    for (; rc == HKT_OK; done++) {
        rc = hkt_all_reduce(data, data, sizeof data / sizeof *data, HKT_F32, HKT_SUM, comm, NULL);
        if (done == 0) {
            printf("running\n");
            fflush(stdout);
        }
    }
    printf("went %ld\n%s\n%s\n", done, hkt_status_name(hkt_comm_status(comm)), hkt_comm_last_error(comm));
    return CODE_LAST;
}

int main(int argc, char **argv)
{
    struct hkt_comm *comm;

    if (argc < 2)
        return CODE_FAILED;
    static const char *const kinds[] = {[HOST] = "check", [REGISTERED] = "registered", [DEVICE] = "device"};
    const bool is_last = strcmp(argv[1], "last") == 0;
    enum kind kind = HOST;

    while (!is_last && kind <= DEVICE && strcmp(argv[1], kinds[kind]) != 0)
        kind++;
    if (kind > DEVICE)
        return CODE_FAILED;
    if (hkt_comm_init_env(&comm, NULL) != HKT_OK)
        return complain("hkt_comm_init_env");
    for (int r = 0; r < hkt_comm_size(comm); r++)
        if (r != hkt_comm_rank(comm))
            printf("%d %s\n", r, hkt_comm_transport(comm, r));
    const int code = is_last ? last(comm) : check(comm, kind, argc - 2, argv + 2);

    return hkt_comm_destroy(comm) != HKT_OK && code == 0 ? CODE_FAILED : code;
}
