/* shm: ranks on one host, in processes of one user. Each maps the other's arena, whose descriptor it fetches over a unix
 * socket (fdpass.h). The two are on one host when their boot ids agree and the socket can be reached.
 *
 * The server that hands out the descriptor lives from open to the first dom_connect: by then every rank has been through
 * reach, because dom_connect's blobs have come from all of them. */
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/settings.h"
#include "transport/fdpass.h"
#include "transport/memdom.h"
#include "transport/tables.h"

#define ADDRESS_MAGIC 0x68736d31u /* "hsm1" */
#define BOOT_ID_BYTES 36

struct shm_address {
    uint32_t magic;
    uint32_t user;
    uint64_t arena_bytes;
    unsigned char server_name[HKT__FDPASS_NAME_BYTES];
    char boot_id[BOOT_ID_BYTES];
    uint32_t pad;
    uint64_t probe_address;            /* of a word in the sender's own memory, */
    uint64_t probe_value;              /* and what it holds: for peers to try copying */
};
_Static_assert(sizeof(struct shm_address) <= HKT__TP_BLOB_MAX, "an address fits its blob");

struct shm_tp {
    struct hkt__mem_tp mem;
    unsigned char token[16];
    const _Atomic int *abort_word;
    char boot_id[BOOT_ID_BYTES];
    pthread_mutex_t lock;              /* guards server, between the threads that connect domains */
    struct hkt__fdserver *server;      /* NULL once stopped */
    uint64_t probe_word;               /* see shm_address */
    bool may_copy;
};

/** This boot of this kernel, the same in all its containers. */
static enum hkt_status read_boot_id(char *out_id)
{
    const char *path = "/proc/sys/kernel/random/boot_id";
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd >= 0 ? read(fd, out_id, BOOT_ID_BYTES) : -1;

    if (fd >= 0)
        close(fd);
    if (got != BOOT_ID_BYTES)
        return hkt__fail_sys(HKT_ERR_UNSUPPORTED, "cannot tell which host this is: %s is not readable (mount /proc)", path);
    return HKT_OK;
}

static enum hkt_status probe(const struct hkt__settings *settings)
{
    char boot_id[BOOT_ID_BYTES];
    struct hkt__arena *arena;

    (void)settings;
    enum hkt_status rc = read_boot_id(boot_id);

    if (rc == HKT_OK)
        rc = hkt__arena_create(HKT__ARENA_ALIGN, &arena);
    if (rc < 0)
        return rc == HKT_ERR_UNSUPPORTED ? rc : hkt__error_context(HKT_ERR_UNSUPPORTED, "shm");
    hkt__arena_drop(arena);
    return HKT_OK;
}

static void query(const struct hkt__tp *tp, struct hkt__tp_caps *out_caps)
{
    (void)tp;
    /* benchmarks/transport_bench, two cores of one Xeon socket, 2026-11: 8 bytes 145-175 ns (the bare cache line 108-138);
     * 32 KiB frames, copied in and out, 12-17 GB/s. */
    *out_caps = (struct hkt__tp_caps){ .flags = HKT__TP_MEMORY, .latency_ns = 148, .ns_per_byte = 0.07 };
}

static void stop_serving(struct shm_tp *tp)
{
    pthread_mutex_lock(&tp->lock);
    struct hkt__fdserver *server = tp->server;

    tp->server = NULL;
    pthread_mutex_unlock(&tp->lock);
    hkt__fdserver_stop(server);
}

static void tp_close(struct hkt__tp *base)
{
    struct shm_tp *tp = (struct shm_tp *)base;

    if (tp == NULL)
        return;
    stop_serving(tp);
    hkt__mem_tp_fini(&tp->mem);
    pthread_mutex_destroy(&tp->lock);
    hkt__free(tp);
}

static enum hkt_status tp_open(const struct hkt__tp_params *params, struct hkt__tp **out_tp)
{
    struct shm_tp *tp = hkt__calloc(1, sizeof *tp);

    if (tp == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the shm transport");
    pthread_mutex_init(&tp->lock, NULL);
    memcpy(tp->token, params->token, sizeof tp->token);
    tp->abort_word = params->abort_word;
    enum hkt_status rc = hkt__mem_tp_init(&tp->mem, params, hkt__tp_shm.name);

    if (rc == HKT_OK)
        rc = read_boot_id(tp->boot_id);
    memcpy(&tp->probe_word, params->token, sizeof tp->probe_word);
    tp->probe_word ^= (uint64_t)(uintptr_t)tp;
    tp->may_copy = params->settings->cma != 0;
    if (rc == HKT_OK)
        rc = hkt__fdserver_start(tp->mem.arena->fd, tp->token, &tp->server);
    if (rc < 0) {
        tp_close(&tp->mem.base);
        return rc;
    }
    *out_tp = &tp->mem.base;
    return HKT_OK;
}

static enum hkt_status address(struct hkt__tp *base, void *out_blob, size_t *out_bytes)
{
    const struct shm_tp *tp = (struct shm_tp *)base;
    struct shm_address mine = { .magic = ADDRESS_MAGIC, .user = geteuid(), .arena_bytes = tp->mem.arena->bytes,
                                .probe_address = (uint64_t)(uintptr_t)&tp->probe_word, .probe_value = tp->probe_word };

    memcpy(mine.server_name, hkt__fdserver_name(tp->server), sizeof mine.server_name);
    memcpy(mine.boot_id, tp->boot_id, sizeof mine.boot_id);
    memcpy(out_blob, &mine, sizeof mine);
    *out_bytes = sizeof mine;
    return HKT_OK;
}

static enum hkt_status fetch_arena(struct shm_tp *tp, const struct shm_address *theirs, int64_t deadline_ns,
                                   struct hkt__mem_peer *peer)
{
    const struct hkt__fdfetch fetch = { .name = theirs->server_name, .key = tp->token, .deadline_ns = deadline_ns,
                                        .abort_word = tp->abort_word };
    int fd = -1;
    enum hkt_status rc = hkt__fdfetch(&fetch, &fd, &peer->pid);

    if (rc < 0)
        return rc;
    rc = hkt__arena_map(fd, theirs->arena_bytes, &peer->arena);
    close(fd);
    peer->can_copy = tp->may_copy && hkt__mem_try_copy(peer->pid, theirs->probe_address, theirs->probe_value);
    if (tp->may_copy && !peer->can_copy)
        hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_INFO, "no copies from process %d in one step (process_vm_readv): see "
                 "`hocket info`", (int)peer->pid);
    return rc;
}

static enum hkt_status reach(struct hkt__tp *base, const unsigned char *blobs, const size_t *bytes, int64_t deadline_ns,
                             unsigned char *out_ok)
{
    struct shm_tp *tp = (struct shm_tp *)base;

    for (int rank = 0; rank < tp->mem.job_nranks; rank++) {
        struct hkt__mem_peer *peer = &tp->mem.peers[rank];
        struct shm_address theirs = { 0 };

        if (bytes[rank] == sizeof theirs)
            memcpy(&theirs, blobs + (size_t)rank * HKT__TP_BLOB_MAX, sizeof theirs);
        if (peer->arena == NULL && theirs.magic == ADDRESS_MAGIC && theirs.user == geteuid() &&
            memcmp(theirs.boot_id, tp->boot_id, sizeof theirs.boot_id) == 0) {
            const enum hkt_status rc = fetch_arena(tp, &theirs, deadline_ns, peer);

            if (rc == HKT_ERR_ABORTED)
                return rc;
            if (rc < 0)
                hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "shm does not reach rank %d of this host: %s", rank,
                         hkt_last_error());
        }
        out_ok[rank] = peer->arena != NULL;
    }
    return HKT_OK;
}

static enum hkt_status dom_connect(struct hkt__tp_dom *dom, const unsigned char *blobs, const size_t *bytes,
                                   const unsigned char *use)
{
    stop_serving((struct shm_tp *)hkt__mem_dom_instance(dom));
    return hkt__mem_dom_connect(dom, blobs, bytes, use);
}

const struct hkt__tp_ops hkt__tp_shm = {
    .name = "shm",
    .summary = "ranks on one host: shared memory",
    .probe = probe,
    .query = query,
    .open = tp_open,
    .close = tp_close,
    .address = address,
    .reach = reach,
    .dom_open = hkt__mem_dom_open,
    .dom_connect = dom_connect,
    .dom_close = hkt__mem_dom_close,
    .chan_open = hkt__mem_chan_open,
    .window = hkt__mem_window,
    .mem_alloc = hkt__mem_user_alloc,
    .mem_free = hkt__mem_user_free,
    .mem_locate = hkt__mem_user_locate,
    .peer_base = hkt__mem_peer_base,
    .peer_copies = hkt__mem_peer_copies,
    .peer_read = hkt__mem_peer_read,
    .peer_write = hkt__mem_peer_write,
    .park = hkt__mem_park,
    .wake = hkt__mem_wake,
};
