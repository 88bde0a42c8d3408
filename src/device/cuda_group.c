/* Arenas that devices share: see cuda_group.h. Behind what the owner asked for, an arena has room for the mappings' own needs:
 * a word per peer that says it has closed, and for each pair a pattern that was sent, came, or was read back. */
#include "device/cuda_group.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/bits.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/mem.h"

#define PATTERN HKT__CUDA_PATTERN
#define WAIT_NS 30000000000     /* for copies of a few bytes: a device that takes longer is given up */
#define IPC_GRAIN ((size_t)2 << 20) /* mappings are of whole pages of the device: what shares one would be shared too */

/** The end of an arena. */
struct tail {
    uint32_t closed[HKT__CUDA_GROUP_MAX];
    unsigned char sent[HKT__CUDA_GROUP_MAX][PATTERN], came[HKT__CUDA_GROUP_MAX][PATTERN], back[HKT__CUDA_GROUP_MAX][PATTERN];
};

/** An arena whose owner has closed it, while peers map it. */
struct orphan {
    struct orphan *next;
    const struct hkt__cuda_module *module;
    void *arena, *stream;
    size_t arena_bytes;
    int device;
    uint64_t waits_for;         /* peers that have not closed it yet */
};
static pthread_mutex_t orphans_lock = PTHREAD_MUTEX_INITIALIZER;
static struct orphan *orphans;

enum hkt_status hkt__cuda_failed(const struct hkt__cuda_module *module, int rc, const char *what)
{
    return hkt__fail(HKT_ERR_SYSTEM, "CUDA: cannot %s: %s", what, module->error_text(rc));
}

static struct tail *tail_of(void *arena, size_t arena_bytes)
{
    return (struct tail *)(void *)((char *)arena + hkt__round_up(arena_bytes, 256));
}

/** Of the device's memory: only its address is used here. */
static struct tail *tail_at(const struct hkt__cuda_group *group, int rank)
{
    return tail_of(group->arenas[rank], group->arena_bytes);
}

/* A random word, and the process it counts for. */
uint64_t hkt__cuda_process_word(void)
{
    static _Atomic uint64_t word; /* relaxed: nothing else is published by it */
    uint64_t was = 0, own = 1;

    if (atomic_load_explicit(&word, memory_order_relaxed) == 0) {
        if (getrandom(&own, sizeof own, GRND_NONBLOCK) != (ssize_t)sizeof own)
            own = (uint64_t)hkt__now_ns();
        (void)atomic_compare_exchange_strong_explicit(&word, &was, own | 1, memory_order_relaxed, memory_order_relaxed);
    }
    return atomic_load_explicit(&word, memory_order_relaxed) + (uint64_t)getpid() * 0x9E3779B97F4A7C15u;
}

int hkt__cuda_drain(const struct hkt__cuda_module *module, void *stream, int device)
{
    const int64_t until_ns = hkt__now_ns() + WAIT_NS;
    int rc, nfailed = 0;

    while ((rc = module->stream_query(stream, device)) != 0 && hkt__now_ns() < until_ns) {
        nfailed += rc != HKT__CUDA_NOT_READY;
        if (nfailed > 1)
            break;
        hkt__sleep_ns(HKT__CUDA_NAP_NS);
    }
    return rc;
}

/** Waits in any case: what was enqueued before a failure may still use memory of the caller's. */
static enum hkt_status settle(const struct hkt__cuda_group *group, int rc, const char *what)
{
    const int drained = hkt__cuda_drain(group->module, group->stream, group->device);

    if (rc == 0)
        rc = drained;
    return rc == 0 ? HKT_OK : hkt__cuda_failed(group->module, rc, what);
}

size_t hkt__cuda_group_bytes(const struct hkt__cuda_group *group)
{
    return hkt__round_up(hkt__round_up(group->arena_bytes, 256) + sizeof(struct tail), IPC_GRAIN);
}

size_t hkt__cuda_group_mapped_bytes(const struct hkt__cuda_group *group)
{
    size_t bytes = 0;

    for (int peer = 0; peer < group->nranks; peer++)
        bytes += group->is_imported[peer] ? hkt__cuda_group_bytes(group) : 0;
    return bytes;
}

enum hkt_status hkt__cuda_group_open(struct hkt__cuda_group *group, struct hkt__cuda_offer *out_offer)
{
    const size_t bytes = hkt__cuda_group_bytes(group);
    const struct hkt__cuda_module *module = group->module;
    const int device = group->device;
    struct hkt__cuda_offer offer = {.process = hkt__cuda_process_word(), .device = device, .arena_bytes = group->arena_bytes};
    void *arena = NULL;
    int rc;

    hkt__cuda_arenas_sweep();
    rc = module->stream_create(&group->stream, device);
    if (rc == 0)
        rc = module->device_alloc(&arena, bytes, device);
    group->arenas[group->rank] = arena;
    if (rc == 0)
        rc = module->stream_set(arena, 0, bytes, group->stream);
    if (rc == 0)
        rc = hkt__cuda_drain(module, group->stream, device);
    if (rc == 0)
        rc = module->device_place(device, offer.place, sizeof offer.place);
    if (rc == 0)
        rc = module->ipc_handle(arena, device, &offer.handle);
    if (rc != 0) {
        hkt__cuda_group_close(group, 0);
        return hkt__fail(HKT_ERR_SYSTEM, "CUDA: cannot share %zu bytes of device %d: %s", bytes, device,
                         module->error_text(rc));
    }
    offer.address = (uint64_t)(uintptr_t)arena;
    *out_offer = offer;
    return HKT_OK;
}

unsigned char hkt__cuda_pattern_byte(int from, int to, int i)
{
    return (unsigned char)(((unsigned)from * 67u + (unsigned)to * 131u + (unsigned)i * 7u + 1u) * 2654435761u >> 24);
}

int hkt__cuda_copy_by_kernel(const struct hkt__cuda_module *module, const struct hkt__cuda_place *on, void *to, const void *from,
                             size_t bytes)
{
    const struct hkt__copy_args args = {.dst = to, .src = from, .row_bytes = bytes, .rows = 1, .dst_pitch = bytes,
                                        .src_pitch = bytes};
    const struct hkt__kernel_on kernel = {.stream = on->stream, .blocks_max = 1};
    int before, back, rc = module->device_use(on->device, &before);

    if (rc != 0)
        return rc;
    rc = module->copy(&args, &kernel);
    back = before != on->device ? module->device_use(before, &(int){0}) : 0;
    return rc != 0 ? rc : back;
}

static int copy_pattern(const struct hkt__cuda_group *group, void *to, const void *from)
{
    return hkt__cuda_copy_by_kernel(group->module, &(struct hkt__cuda_place){group->device, group->stream}, to, from, PATTERN);
}

/** Writes this rank's patterns to all peers. */
static enum hkt_status write_patterns(const struct hkt__cuda_group *group)
{
    struct tail *own = tail_at(group, group->rank);
    unsigned char (*sent)[PATTERN] = hkt__calloc((size_t)group->nranks, PATTERN);
    int rc;

    if (sent == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to map arenas of %d ranks", group->nranks);
    for (int peer = 0; peer < group->nranks; peer++)
        for (int i = 0; i < PATTERN; i++)
            sent[peer][i] = hkt__cuda_pattern_byte(group->rank, peer, i);
    rc = group->module->stream_copy(own->sent, sent, (size_t)group->nranks * PATTERN, group->stream);
    for (int peer = 0; peer < group->nranks && rc == 0; peer++)
        if (peer != group->rank)
            rc = copy_pattern(group, tail_at(group, peer)->came[group->rank], own->sent[peer]);
    const enum hkt_status status = settle(group, rc, "write to the memory of a peer's device");

    hkt__free(sent);
    return status;
}

static enum hkt_status map_one(struct hkt__cuda_group *group, const struct hkt__cuda_offer *offer, int peer, bool is_near)
{
    const struct hkt__cuda_module *module = group->module;
    void *arena = NULL;
    int rc;

    if (offer->arena_bytes != group->arena_bytes)
        return hkt__fail_peer(HKT_ERR_INVALID, peer, "rank %d gives %llu bytes of its device, this one %zu: HOCKET_CUDA_BYTES must "
                              "agree", peer, (unsigned long long)offer->arena_bytes, group->arena_bytes);
    if (is_near)
        rc = module->peer_enable(group->device, offer->device);
    else
        rc = module->ipc_open(&offer->handle, group->device, &arena);
    if (rc != 0)
        return hkt__fail_peer(HKT_ERR_UNSUPPORTED, peer, "CUDA: device %d cannot reach the memory of rank %d, device %s%s: %s",
                              group->device, peer, offer->place, is_near ? "" : " of another process",
                              module->error_text(rc));
    group->arenas[peer] = is_near ? (void *)(uintptr_t)offer->address : arena;
    group->is_imported[peer] = !is_near;
    group->mapped |= UINT64_C(1) << peer;
    return HKT_OK;
}

enum hkt_status hkt__cuda_group_map_one(struct hkt__cuda_group *group, int peer, const struct hkt__cuda_offer *own,
                                        const struct hkt__cuda_offer *offer)
{
    return map_one(group, offer, peer, offer->process == own->process);
}

enum hkt_status hkt__cuda_group_map(struct hkt__cuda_group *group, const struct hkt__cuda_offer *offers)
{
    const int rank = group->rank;
    enum hkt_status status = HKT_OK;

    group->is_one_process = true;
    for (int peer = 0; peer < group->nranks; peer++) {
        const bool is_near = offers[peer].process == offers[rank].process;

        group->is_one_process &= is_near;
        group->ranks_here += strncmp(offers[peer].place, offers[rank].place, sizeof offers[peer].place) == 0;
        if (peer != rank && status == HKT_OK)
            status = map_one(group, &offers[peer], peer, is_near);
    }
    return status == HKT_OK ? write_patterns(group) : status;
}

/** Looks at `count` patterns, one per rank, that were written by each to this one (come), or by this one to each. */
static enum hkt_status compare(const struct hkt__cuda_group *group, unsigned char (*got)[PATTERN], bool come)
{
    for (int peer = 0; peer < group->nranks; peer++)
        for (int i = 0; i < PATTERN && peer != group->rank; i++) {
            const unsigned char want = come ? hkt__cuda_pattern_byte(peer, group->rank, i) : hkt__cuda_pattern_byte(group->rank, peer, i);

            if (got[peer][i] != want)
                return hkt__fail_peer(HKT_ERR_UNSUPPORTED, peer, "what %s rank %d through mapped memory of devices is wrong: "
                                      "byte %d is %02x, not %02x", come ? "came from" : "was read back from", peer, i,
                                      got[peer][i], want);
        }
    return HKT_OK;
}

enum hkt_status hkt__cuda_group_check(struct hkt__cuda_group *group)
{
    struct tail *own = tail_at(group, group->rank), *seen = hkt__calloc(1, sizeof *seen);
    enum hkt_status status;
    int rc = 0;

    if (seen == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to check mappings of %d ranks", group->nranks);
    for (int peer = 0; peer < group->nranks && rc == 0; peer++)
        if (peer != group->rank)
            rc = copy_pattern(group, own->back[peer], tail_at(group, peer)->came[group->rank]);
    if (rc == 0)
        rc = group->module->stream_copy(seen, own, sizeof *seen, group->stream);
    status = settle(group, rc, "read the memory of a peer's device");
    if (status == HKT_OK)
        status = compare(group, seen->came, true);
    if (status == HKT_OK)
        status = compare(group, seen->back, false);
    hkt__free(seen);
    return status;
}

/** Tells the owner that this rank's device does not use its arena any more, and gives the mapping up. A call that fails is
 *  made again once: nobody is there to be told. */
static void unmap(const struct hkt__cuda_group *group, int peer)
{
    const struct hkt__cuda_module *module = group->module;
    uint32_t *mark = &tail_at(group, peer)->closed[group->rank];

    if (module->stream_set(mark, 0xff, sizeof *mark, group->stream) != 0 ||
        hkt__cuda_drain(module, group->stream, group->device) != 0)
        (void)module->copy_wait(mark, &(uint32_t){UINT32_MAX}, sizeof *mark, group->device);
    if (group->is_imported[peer] && module->ipc_close(group->arenas[peer], group->device) != 0)
        (void)module->ipc_close(group->arenas[peer], group->device);
}

/** Frees the arena if all have closed it. A failure leaves it for the next sweep. */
static bool reap(struct orphan *orphan)
{
    const struct hkt__cuda_module *module = orphan->module;
    uint32_t closed[HKT__CUDA_GROUP_MAX] = {0};
    int rc = 0;

    if (orphan->waits_for != 0) {
        rc = module->stream_copy(closed, tail_of(orphan->arena, orphan->arena_bytes)->closed, sizeof closed, orphan->stream);
        const int drained = hkt__cuda_drain(module, orphan->stream, orphan->device); /* in any case: it writes to this stack */

        rc = rc != 0 ? rc : drained;
    }
    for (int peer = 0; peer < HKT__CUDA_GROUP_MAX && rc == 0; peer++)
        if (closed[peer] != 0)
            orphan->waits_for &= ~(UINT64_C(1) << peer);
    if (rc != 0 || orphan->waits_for != 0)
        return false;
    if (orphan->arena != NULL && module->device_free(orphan->arena) != 0)
        return false;
    orphan->arena = NULL;
    return orphan->stream == NULL || module->stream_destroy(orphan->stream) == 0;
}

void hkt__cuda_arenas_sweep(void)
{
    pthread_mutex_lock(&orphans_lock);
    for (struct orphan **link = &orphans; *link != NULL;) {
        struct orphan *orphan = *link;

        if (!reap(orphan)) {
            link = &orphan->next;
            continue;
        }
        *link = orphan->next;
        hkt__free(orphan);
    }
    pthread_mutex_unlock(&orphans_lock);
}

void hkt__cuda_group_close(struct hkt__cuda_group *group, uint64_t mapped_by)
{
    struct orphan *orphan;

    if (group->module == NULL)
        return;
    pthread_mutex_lock(&orphans_lock); /* of arenas of this process no mark is looked at as it is made */
    for (int peer = 0; peer < group->nranks; peer++)
        if ((group->mapped >> peer & 1) != 0)
            unmap(group, peer);
    pthread_mutex_unlock(&orphans_lock);
    orphan = hkt__calloc(1, sizeof *orphan); /* without one the arena stays as it is: a peer's device may use it */
    if (orphan != NULL) {
        *orphan = (struct orphan){.module = group->module, .arena = group->arenas[group->rank], .stream = group->stream,
                                  .arena_bytes = group->arena_bytes, .device = group->device, .waits_for = mapped_by};
        pthread_mutex_lock(&orphans_lock);
        orphan->next = orphans;
        orphans = orphan;
        pthread_mutex_unlock(&orphans_lock);
    }
    group->module = NULL;
    hkt__cuda_arenas_sweep();
}
