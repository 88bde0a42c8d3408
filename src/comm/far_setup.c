/* How ranks agree whether their devices reach each other: offer, map, check, each by all before the next. See far.h. */
#include <stdio.h>

#include "comm/far.h"
#include "core/log.h"
#include "core/mem.h"
#include "device/cuda_registered.h"

enum hkt_status hkt__far_exchange(struct hkt__far *far, enum hkt_status status)
{
    far->own.status = status;
    if (status < 0)
        snprintf(far->own.text, sizeof far->own.text, "%s", hkt_last_error());
    if (far->is_blocking)
        return hkt__internal_all_gather(&far->own, far->all, sizeof far->own, far->comm);
    far->exchange = (struct hkt__call){.coll = HKT_ALL_GATHER, .dtype = HKT_UINT8, .op = HKT_OP_COUNT, .root = -1,
                                       .in = &far->own, .out = far->all, .count = sizeof far->own, .comm = far->comm,
                                       .is_internal = true};
    far->is_exchanging = true;
    return hkt__collective_start(&far->exchanging, &far->exchange);
}

enum hkt_status hkt__far_exchanged(struct hkt__far *far)
{
    enum hkt_status rc;

    if (!far->is_exchanging)
        return HKT_OK;
    rc = hkt__collective_poll(&far->exchanging);
    if (rc > HKT_OK)
        return rc;
    far->is_exchanging = false;
    return hkt__collective_finish(&far->exchanging, rc);
}

void hkt__far_give_up(struct hkt__far *far, enum hkt_status status)
{
    if (far == NULL || !far->is_exchanging)
        return;
    far->is_exchanging = false;
    (void)hkt__collective_finish(&far->exchanging, status);
}

const char *hkt__far_why_not(const struct hkt_comm *comm)
{
    if (comm->nranks > HKT__PLAN_RANKS_MAX)
        return "there are more ranks than a launch has room for";
    for (int r = 0; r < comm->nranks; r++)
        if (r != comm->rank && hkt__site_link(&comm->site, comm->rank, r).is_net)
            return "ranks are on several hosts";
    return comm->job->settings->cuda_direct ? "" : "HOCKET_CUDA_DIRECT is 0";
}

/** The executor's shape, cut down until it fits. Depends on the setting and nranks alone. */
static void choose_shape(struct hkt__cuda_shape *shape, int nranks, size_t most)
{
    hkt__cuda_shape_default(nranks, shape);
    while (hkt__cuda_arena_bytes(shape) > most && (shape->lanes > HKT__COLL_LANES || shape->slot_bytes > 2048)) {
        shape->lanes = shape->lanes > 2 * HKT__COLL_LANES ? shape->lanes / 2 : HKT__COLL_LANES;
        shape->slot_bytes = shape->slot_bytes > 4096 ? shape->slot_bytes / 2 / 128 * 128 : 2048;
        shape->ll_bytes = shape->ll_bytes > 1024 ? shape->ll_bytes / 2 / 128 * 128 : 512;
        shape->scratch_bytes = shape->scratch_bytes > 131072 ? shape->scratch_bytes / 2 / 128 * 128 : 65536;
    }
}

/** The arena and what else is this rank's alone. */
static enum hkt_status open_own(struct hkt__far *far)
{
    const struct hkt__cuda_module *cuda = far->comm->cuda;
    struct hkt__cuda_peers *peers = &far->peers;
    const char *why = hkt__far_why_not(far->comm);
    enum hkt_status rc;
    int error;

    far->own.mapped = 0;
    if (why[0] != '\0')
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%s", why);
    peers->rank = far->comm->rank;
    peers->nranks = far->comm->nranks;
    choose_shape(&peers->shape, peers->nranks, (size_t)far->comm->job->settings->cuda_bytes);
    far->group = (struct hkt__cuda_group){.module = cuda, .rank = peers->rank, .nranks = peers->nranks,
                                          .device = peers->device, .arena_bytes = hkt__cuda_arena_bytes(&peers->shape)};
    rc = hkt__cuda_group_open(&far->group, &far->own.offer);
    peers->arenas = (void *const *)far->group.arenas;
    if (rc == HKT_OK)
        rc = hkt__cuda_arena_clear(cuda, peers);
    if (rc == HKT_OK)
        rc = hkt__cuda_watch_make(cuda, peers->device, &peers->watch, &peers->watch_on_device);
    if (rc < 0)
        return rc;
    error = cuda->event_create(&far->event, peers->device);
    if (error == 0)
        error = cuda->event_create(&far->fork, peers->device);
    if (error == 0)
        error = cuda->device_multiprocessors(peers->device, &far->multiprocessors);
    return error == 0 ? HKT_OK : hkt__cuda_failed(cuda, error, "prepare calls on a device");
}

/** The first rank that cannot go on; NULL: all can. */
static const struct hkt__far_note *first_failure(const struct hkt__far *far, int *out_rank)
{
    for (int r = 0; r < far->comm->nranks; r++) {
        if (far->all[r].status >= 0)
            continue;
        *out_rank = r;
        return &far->all[r];
    }
    return NULL;
}

uint64_t hkt__far_living(const struct hkt_comm *comm)
{
    uint64_t set = 0;

    pthread_mutex_lock(&comm->job->lock);
    for (int r = 0; r < comm->nranks && r < HKT__CUDA_GROUP_MAX; r++)
        if (comm->job->lost == NULL || !comm->job->lost[comm->job_ranks[r]])
            set |= UINT64_C(1) << r;
    pthread_mutex_unlock(&comm->job->lock);
    return set;
}

static void close_own(struct hkt__far *far)
{
    const struct hkt__cuda_module *cuda = far->comm->cuda;

    hkt__cuda_messages_free(far->messages);
    hkt__cuda_group_close(&far->group, far->mapped_by & hkt__far_living(far->comm));
    if (far->peers.watch != NULL)
        hkt__cuda_watch_free(cuda, far->peers.watch);
    if (far->event != NULL && cuda->event_destroy(far->event) != 0)
        (void)cuda->event_destroy(far->event); /* once more: nobody is there to be told */
    if (far->fork != NULL && cuda->event_destroy(far->fork) != 0)
        (void)cuda->event_destroy(far->fork);
    far->peers.watch = NULL;
    far->event = far->fork = NULL;
    far->messages = NULL;
}

void hkt__far_describe(struct hkt__far *far)
{
    const double mib = 1 << 20;
    const char *net = hkt__far_net_text(far->comm);
    const bool has_arena = far->path == HKT__FAR_PLANS;
    size_t arena = has_arena ? hkt__cuda_group_bytes(&far->group) : 0, allocated = 0, registered = 0;
    size_t mapped = has_arena ? hkt__cuda_group_mapped_bytes(&far->group) : 0;
    int used;

    for (const struct hkt__far_memory *memory = far->memory; memory != NULL; memory = memory->next) {
        if (memory->registered != NULL) {
            registered += memory->bytes;
            mapped += memory->registered->mapped_bytes;
        } else {
            allocated += memory->pool >= 0 ? hkt__cuda_group_bytes(&memory->group) : memory->bytes;
            mapped += memory->pool >= 0 ? hkt__cuda_group_mapped_bytes(&memory->group) : 0;
        }
    }
    used = snprintf(far->line, sizeof far->line, "%s", far->path == HKT__FAR_UNKNOWN && far->memory != NULL ? "by no call so far" : far->text);
    if (arena + allocated + registered > 0)
        used += snprintf(far->line + used, sizeof far->line - (size_t)used, "; %.1f MiB of its memory: %.1f of the arena, %.1f allocated, %.1f "
                 "registered; %.1f MiB of peers mapped", (double)(arena + allocated + registered) / mib, (double)arena / mib,
                 (double)allocated / mib, (double)registered / mib, (double)mapped / mib);
    if (net[0] != '\0')
        snprintf(far->line + used, sizeof far->line - (size_t)used, "; memory of devices is sent %s", net);
}

/** The vote is over: all ranks come to the same. */
static void settle(struct hkt__far *far, const struct hkt__far_note *failure, int culprit)
{
    struct hkt_comm *comm = far->comm;

    if (failure != NULL) {
        close_own(far);
        snprintf(far->text, sizeof far->text, "through memory of the host: rank %d: %.*s", culprit,
                 (int)sizeof failure->text, failure->text);
        far->path = HKT__FAR_STAGED;
    } else {
        snprintf(far->text, sizeof far->text, "on the devices: %d of %d ranks on this one, %s", far->group.ranks_here, comm->nranks,
                 far->group.is_one_process ? "all in this process" : "by CUDA IPC");
        far->path = HKT__FAR_PLANS;
        far->channels = far->own.channels;
        for (int r = 0; r < comm->nranks; r++)
            far->channels = far->all[r].channels < far->channels ? far->all[r].channels : far->channels;
    }
    hkt__far_describe(far);
    hkt__log(HKT__SUB_COMM, HKT__LOG_INFO, "%s: calls on CUDA streams run %s", comm->name, far->line);
}

/** What executors are told of the group. */
static void describe_peers(struct hkt__far *far)
{
    struct hkt__cuda_peers *peers = &far->peers;
    const struct hkt__cuda_group *group = &far->group;

    peers->ranks_here = group->ranks_here;
    /* Pointers of users serve where no rank needs another device to reach them: that depends on how they were allocated. */
    peers->is_one_process = group->is_one_process && group->ranks_here == group->nranks;
}

/** Who must close the own arena before it is freed. */
static void note_mappings(struct hkt__far *far)
{
    far->mapped_by = 0;
    for (int r = 0; r < far->comm->nranks; r++)
        if ((far->all[r].mapped >> far->comm->rank & 1) != 0)
            far->mapped_by |= UINT64_C(1) << r;
}

static enum hkt_status to_check(struct hkt__far *far)
{
    enum hkt_status rc = hkt__cuda_group_check(&far->group);

    if (rc == HKT_OK)
        rc = hkt__cuda_messages_make(far->comm->cuda, &far->peers, &far->messages);
    if (rc == HKT_OK)
        far->own.channels = hkt__cuda_messages_channels(far->messages, hkt__far_blocks_max(far));
    far->step = HKT__FAR_SETTLE;
    return hkt__far_exchange(far, rc);
}

static enum hkt_status to_map(struct hkt__far *far)
{
    struct hkt__cuda_offer *offers = hkt__calloc((size_t)far->comm->nranks, sizeof *offers);
    enum hkt_status rc;

    if (offers == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the arenas of %d ranks", far->comm->nranks);
    for (int r = 0; r < far->comm->nranks; r++)
        offers[r] = far->all[r].offer;
    rc = hkt__cuda_group_map(&far->group, offers);
    hkt__free(offers);
    describe_peers(far);
    far->mapped_by = ~UINT64_C(0) >> (64 - far->comm->nranks) & ~(UINT64_C(1) << far->comm->rank); /* until all have told */
    far->own.mapped = far->group.mapped;
    far->step = HKT__FAR_CHECK;
    return hkt__far_exchange(far, rc);
}

enum hkt_status hkt__far_setup_step(struct hkt__far *far)
{
    const struct hkt__far_note *failure = NULL;
    int culprit = -1;

    if (far->step == HKT__FAR_OFFER) {
        const enum hkt_status rc = open_own(far);

        far->step = HKT__FAR_MAP;
        return hkt__far_exchange(far, rc);
    }
    failure = first_failure(far, &culprit);
    if (far->step == HKT__FAR_CHECK)
        note_mappings(far); /* before anything else: some may have mapped, some not */
    if (failure == NULL && far->step == HKT__FAR_MAP)
        return to_map(far);
    if (failure == NULL && far->step == HKT__FAR_CHECK)
        return to_check(far);
    settle(far, failure, culprit);
    if (failure == NULL) {
        pthread_mutex_lock(&far->comm->watch.failure.lock);
        far->comm->watch.failure.launches = far->peers.watch;
        pthread_mutex_unlock(&far->comm->watch.failure.lock);
        if (hkt__comm_failed(far->comm) != HKT_OK) /* before it was listed */
            hkt__cuda_abort(far->peers.watch);
    }
    far->step = failure == NULL ? HKT__FAR_PLAN : HKT__FAR_STAGE;
    return HKT_OK;
}

enum hkt_status hkt__far_prepare(struct hkt_comm *comm, int device, const char *what)
{
    enum hkt_status rc = hkt__far_enter_device(comm, device, what);

    if (rc < 0)
        return hkt__comm_fail_here(comm, rc, what); /* the others go on without this rank */
    if (comm->far->path != HKT__FAR_UNKNOWN)
        return HKT_OK;
    comm->far->step = HKT__FAR_OFFER;
    comm->far->is_blocking = true;
    while (rc == HKT_OK && comm->far->path == HKT__FAR_UNKNOWN)
        rc = hkt__far_setup_step(comm->far);
    comm->far->is_blocking = false;
    return rc;
}

void hkt__far_abort(struct hkt_comm *comm)
{
    if (comm->watch.failure.launches != NULL)
        hkt__cuda_abort(comm->watch.failure.launches);
}

void hkt__far_fini(struct hkt_comm *comm)
{
    struct hkt__far *far = comm->far;
    const bool is_idle = far == NULL || hkt__far_drain(far);

    if (far == NULL)
        return;
    hkt__far_leave(far);
    pthread_mutex_lock(&comm->watch.failure.lock);
    comm->watch.failure.launches = NULL;
    pthread_mutex_unlock(&comm->watch.failure.lock);
    for (int i = 0; i < far->nrows && is_idle; i++)
        hkt__cuda_plan_free(far->rows[i].plan);
    if (is_idle) { /* else what a launch that does not end may touch stays */
        hkt__far_memory_fini(far);
        close_own(far);
    }
    hkt__free(far->rows);
    hkt__free(far->all);
    hkt__free(far->list);
    hkt__free(far);
    comm->far = NULL;
}
