/* Memory of devices that all ranks of a communicator map: hkt_mem_alloc_device; what the user has allocated is taken by
 * far_register.c, and given up here. Each allocation is a pool, with a part of every
 * rank: an arena as those of launches are (device/cuda_group.h), made in the same steps, each of which all ranks have done before
 * any does the next. If one fails anywhere, all take memory that peers do not map: calls on it are as on any other.
 *
 * Kernels find a peer's part in a table on the device, a row per pool. A row changes while no launch reads it: before the
 * allocation is known to anybody, and after all ranks are done with it. */
#include <stdio.h>

#include "comm/far_net.h"
#include "comm/far_pools.h"
#include "core/bits.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "hocket/mem.h"

#define PAGE ((size_t)65536) /* of devices, as other drivers know their memory */

enum hkt_status hkt__pool_begin(struct hkt__pool_making *m, struct hkt_comm *comm, const char *what)
{
    *m = (struct hkt__pool_making){.comm = comm, .what = what, .failed = -1, .all = hkt__calloc((size_t)comm->nranks, sizeof *m->all)};
    return m->all != NULL ? HKT_OK
                          : hkt__comm_fail_here(comm, hkt__fail(HKT_ERR_NOMEM, "no memory to agree on memory of devices"), "memory");
}

enum hkt_status hkt__pool_tell(struct hkt__pool_making *m, enum hkt_status status)
{
    m->own.status = status;
    snprintf(m->own.text, sizeof m->own.text, "%s", status < 0 ? hkt_last_error() : "");
    const enum hkt_status rc = hkt__internal_all_gather(&m->own, m->all, sizeof m->own, m->comm);

    m->failed = -1;
    for (int r = 0; r < m->comm->nranks && rc == HKT_OK && m->failed < 0; r++)
        if (m->all[r].status < 0)
            m->failed = r;
    return rc;
}

enum hkt_status hkt__pool_failure(const struct hkt__pool_making *m)
{
    const struct hkt__pool_note *theirs = &m->all[m->failed];

    return hkt__fail_peer((enum hkt_status)theirs->status, m->failed, "%s: rank %d: %.*s", m->what, m->failed,
                          (int)sizeof theirs->text, theirs->text);
}

int hkt__pool_next(const struct hkt_comm *comm)
{
    int pool = 0;

    while (comm->far != NULL && pool < HKT__PLAN_POOLS && comm->far->pools.own[pool] != NULL)
        pool++;
    return pool;
}

/** How much all take, and whether peers are to map it. */
static enum hkt_status settle_size(struct hkt__pool_making *m, size_t bytes, int device, bool *out_share)
{
    struct hkt_comm *comm = m->comm;
    enum hkt_status status = HKT_OK;
    int count = 0;

    m->own.is_open = hkt__far_net_is_open(comm);
    m->memory = hkt__calloc(1, sizeof *m->memory);
    m->own.bytes = bytes > 0 ? bytes : 1;
    m->own.can_share = hkt__pool_next(comm) < HKT__PLAN_POOLS;
    if (comm->cuda == NULL)
        status = hkt__fail(HKT_ERR_UNSUPPORTED, "%s was made before this process used CUDA: it does not know of devices", comm->name);
    else if (m->memory == NULL || bytes > SIZE_MAX / 2)
        status = hkt__fail(HKT_ERR_NOMEM, "no memory for %zu bytes", bytes);
    else if (comm->cuda->device_count(&count) != 0 || device < 0 || device >= count)
        status = hkt__fail(HKT_ERR_INVALID, "there is no device %d: there are %d", device, count);
    else if (comm->far != NULL)
        status = hkt__far_enter_device(comm, device, "hkt_mem_alloc_device");
    const enum hkt_status rc = hkt__pool_tell(m, status);

    if (rc < 0 || m->failed >= 0)
        return rc < 0 ? rc : hkt__pool_failure(m);
    *out_share = true;
    for (int r = 0; r < comm->nranks; r++) {
        m->memory->bytes = m->all[r].bytes > m->memory->bytes ? (size_t)m->all[r].bytes : m->memory->bytes;
        *out_share &= m->all[r].can_share != 0;
        m->is_open |= m->all[r].is_open != 0;
    }
    return HKT_OK;
}

/* --- Pools ---------------------------------------------------------------------------------------------------------- */

enum hkt_status hkt__pool_fill(struct hkt__far *far, void *const *parts, void *stream)
{
    const struct hkt__cuda_module *cuda = far->comm->cuda;
    const size_t row_bytes = (size_t)far->comm->nranks * sizeof parts[0];
    const size_t at = (size_t)hkt__pool_next(far->comm) * row_bytes;
    void *table = NULL;
    int rc = 0;

    if (far->pools.table == NULL) {
        rc = cuda->device_alloc(&table, HKT__PLAN_POOLS * row_bytes, far->peers.device);
        if (rc == 0)
            far->pools.table = table;
    }
    if (rc == 0) {
        rc = cuda->stream_copy((char *)(uintptr_t)far->pools.table + at, parts, row_bytes, stream);
        const int drained = hkt__cuda_drain(cuda, stream, far->peers.device);

        rc = rc != 0 ? rc : drained;
    }
    return rc == 0 ? HKT_OK : hkt__cuda_failed(cuda, rc, "tell a device where memory is");
}

static enum hkt_status open_part(struct hkt__pool_making *m)
{
    struct hkt_comm *comm = m->comm;

    m->memory->group = (struct hkt__cuda_group){.module = comm->cuda, .rank = comm->rank, .nranks = comm->nranks,
                                                .device = comm->far->peers.device, .arena_bytes = m->memory->bytes};
    return hkt__cuda_group_open(&m->memory->group, &m->own.offer);
}

static enum hkt_status map_parts(struct hkt__pool_making *m)
{
    struct hkt__cuda_offer *offers = hkt__calloc((size_t)m->comm->nranks, sizeof *offers);

    if (offers == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the parts of %d ranks", m->comm->nranks);
    for (int r = 0; r < m->comm->nranks; r++)
        offers[r] = m->all[r].offer;
    const enum hkt_status rc = hkt__cuda_group_map(&m->memory->group, offers);

    hkt__free(offers);
    m->own.mapped = m->memory->group.mapped;
    m->memory->mapped_by = UINT64_MAX >> (64 - m->comm->nranks) & ~(UINT64_C(1) << m->comm->rank); /* until all have told */
    return rc;
}

static void note_mappings(struct hkt__pool_making *m)
{
    m->memory->mapped_by = 0;
    for (int r = 0; r < m->comm->nranks; r++)
        if ((m->all[r].mapped >> m->comm->rank & 1) != 0)
            m->memory->mapped_by |= UINT64_C(1) << r;
}

static void close_part(struct hkt__far *far, struct hkt__far_memory *memory)
{
    hkt__cuda_group_close(&memory->group, memory->mapped_by & hkt__far_living(far->comm));
}

/** All steps of a pool. IN_PROGRESS: some rank could not; nothing of it is left, and all go on without. */
static enum hkt_status share(struct hkt__pool_making *m)
{
    struct hkt__far *far = m->comm->far;
    enum hkt_status status = open_part(m), rc = hkt__pool_tell(m, status);

    if (rc == HKT_OK && m->failed < 0) {
        rc = hkt__pool_tell(m, map_parts(m));
        if (rc == HKT_OK)
            note_mappings(m);
    }
    if (rc == HKT_OK && m->failed < 0) {
        status = hkt__cuda_group_check(&m->memory->group);
        if (status == HKT_OK)
            status = hkt__pool_fill(far, m->memory->group.arenas, m->memory->group.stream);
        rc = hkt__pool_tell(m, status);
    }
    if (rc == HKT_OK && m->failed < 0) {
        m->memory->data = m->memory->group.arenas[m->comm->rank];
        m->memory->pool = hkt__pool_next(m->comm);
        return HKT_OK;
    }
    close_part(far, m->memory);
    if (rc == HKT_OK)
        hkt__log(HKT__SUB_COMM, HKT__LOG_INFO, "%s: memory of devices that peers do not map: rank %d: %s", m->comm->name, m->failed,
                 m->all[m->failed].text);
    return rc < 0 ? rc : HKT_IN_PROGRESS;
}

/* --- Memory that peers do not map ----------------------------------------------------------------------------------- */

/** Zero, as all memory of hkt_mem_alloc. */
static enum hkt_status allocate_plain(struct hkt__far *far, struct hkt__far_memory *memory)
{
    const struct hkt__cuda_module *cuda = far->comm->cuda;
    const int device = far->peers.device;
    void *stream = NULL, *data = NULL;
    int rc = cuda->stream_create(&stream, device);

    hkt__cuda_arenas_sweep();
    if (rc != 0)
        return hkt__cuda_failed(cuda, rc, "make a stream");
    rc = cuda->device_alloc(&data, hkt__round_up(memory->bytes, PAGE), device); /* nothing else is in what adapters read */
    if (rc == 0) {
        rc = cuda->stream_set(data, 0, memory->bytes, stream);
        const int drained = hkt__cuda_drain(cuda, stream, device);

        rc = rc != 0 ? rc : drained;
    }
    if (cuda->stream_destroy(stream) != 0)
        (void)cuda->stream_destroy(stream); /* once more: the memory is what was asked for */
    if (rc == 0) {
        memory->data = data;
        return HKT_OK;
    }
    if (data != NULL)
        (void)cuda->device_free(data);
    return hkt__fail(HKT_ERR_NOMEM, "CUDA: no %zu bytes on device %d: %s", memory->bytes, device, cuda->error_text(rc));
}

static enum hkt_status plain(struct hkt__pool_making *m)
{
    m->memory->pool = -1;
    const enum hkt_status status = allocate_plain(m->comm->far, m->memory), rc = hkt__pool_tell(m, status);

    if (rc == HKT_OK && m->failed < 0)
        return HKT_OK;
    if (status == HKT_OK)
        (void)m->comm->cuda->device_free(m->memory->data);
    return rc < 0 ? rc : hkt__pool_failure(m);
}

/* --- The calls ------------------------------------------------------------------------------------------------------ */

void hkt__pool_list(struct hkt__far *far, struct hkt__far_memory *memory)
{
    memory->serial = ++far->memory_serial;
    memory->next = far->memory;
    far->memory = memory;
    if (memory->pool >= 0) {
        far->pools.own[memory->pool] = memory->data;
        far->pools.bytes[memory->pool] = memory->bytes;
        far->peers.pools = &far->pools;
    }
    hkt__far_net_pin(far->comm, memory->data, memory->bytes, far->peers.device);
    hkt__far_describe(far);
    hkt__log(HKT__SUB_COMM, HKT__LOG_INFO, "%s: %zu bytes of device %d, which peers %s", far->comm->name, memory->bytes,
             far->peers.device, memory->pool >= 0 ? "map" : "do not map");
}

enum hkt_status hkt_mem_alloc_device(void **out_memory, size_t bytes, int device, struct hkt_comm *comm)
{
    struct hkt__pool_making m;
    bool is_shared = false;
    enum hkt_status rc;

    if (out_memory == NULL || comm == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_mem_alloc_device: out_memory and comm must not be NULL");
    rc = hkt__pool_begin(&m, comm, "hkt_mem_alloc_device");
    if (rc < 0)
        return rc;
    rc = settle_size(&m, bytes, device, &is_shared);
    if (rc == HKT_OK && m.is_open)
        rc = hkt__far_net_agree(comm, device);
    if (rc == HKT_OK)
        rc = hkt__far_net_check(comm);
    if (rc == HKT_OK) /* after an exchange nothing is in flight that looks at comm->far */
        rc = hkt__far_prepare(comm, device, m.what);
    if (rc == HKT_OK) {
        rc = is_shared && comm->far->path == HKT__FAR_PLANS ? share(&m) : HKT_IN_PROGRESS;
        if (rc == HKT_IN_PROGRESS)
            rc = plain(&m);
    }
    if (rc == HKT_OK) {
        hkt__pool_list(comm->far, m.memory);
        *out_memory = m.memory->data;
    } else {
        hkt__free(m.memory);
    }
    hkt__free(m.all);
    return rc;
}

struct hkt__far_memory *hkt__far_memory_find(const struct hkt_comm *comm, const void *data, bool is_registered)
{
    struct hkt__far_memory *memory = comm->far != NULL ? comm->far->memory : NULL;

    while (memory != NULL && (memory->data != data || (memory->registered != NULL) != is_registered))
        memory = memory->next;
    return memory;
}

static void release(struct hkt__far *far, struct hkt__far_memory *memory)
{
    for (struct hkt__far_memory **link = &far->memory; *link != NULL; link = &(*link)->next)
        if (*link == memory) {
            *link = memory->next;
            break;
        }
    hkt__far_net_unpin(far->comm, memory->data);
    if (memory->pool >= 0)
        far->pools.own[memory->pool] = NULL;
    if (memory->registered != NULL) {
        hkt__cuda_registered_close(memory->registered);
        hkt__free(memory->registered);
    } else if (memory->pool >= 0) {
        close_part(far, memory);
    } else if (far->comm->cuda->device_free(memory->data) != 0) {
        (void)far->comm->cuda->device_free(memory->data); /* once more: nobody is there to be told */
    }
    hkt__free(memory);
    hkt__far_describe(far);
}

/** What was launched here may use it. */
static enum hkt_status await_launches(const struct hkt__far *far, const char *what)
{
    const int64_t until_ns = hkt__now_ns() + far->comm->options.wait.timeout_ns;

    while (far->has_launched && far->comm->cuda->event_query(far->event) == HKT__CUDA_NOT_READY) {
        if (hkt__comm_failed(far->comm) != HKT_OK)
            return hkt__comm_report(far->comm);
        if (hkt__now_ns() > until_ns)
            return hkt__comm_fail_here(far->comm, hkt__fail(HKT_ERR_TIMEOUT, "a launch has not ended (HOCKET_TIMEOUT)"), what);
        hkt__sleep_ns(HKT__CUDA_NAP_NS);
    }
    return HKT_OK;
}

enum hkt_status hkt__far_memory_free(struct hkt_comm *comm, struct hkt__far_memory *memory)
{
    const char *what = memory->registered != NULL ? "hkt_comm_deregister" : "hkt_mem_free";
    struct hkt__far *far = comm->far;
    struct hkt__pool_making m;
    enum hkt_status rc = hkt__pool_begin(&m, comm, what);

    if (rc == HKT_OK)
        rc = await_launches(far, what);
    m.own.serial = memory->serial;
    if (rc == HKT_OK)
        rc = hkt__pool_tell(&m, HKT_OK);
    for (int r = 0; r < comm->nranks && rc == HKT_OK; r++)
        if (m.all[r].serial != memory->serial) {
            hkt__free(m.all);
            return hkt__fail_peer(HKT_ERR_INVALID, r, "%s: rank %d names other memory than this one", what, r);
        }
    if (rc == HKT_OK || hkt__far_drain(far)) { /* else what a launch that does not end may touch stays */
        release(far, memory);
        if (rc == HKT_OK)
            rc = hkt__pool_tell(&m, HKT_OK);
        hkt__cuda_arenas_sweep(); /* all have closed theirs */
    }
    hkt__free(m.all);
    return rc;
}

void hkt__far_memory_fini(struct hkt__far *far)
{
    void *table = (void *)(uintptr_t)far->pools.table;

    while (far->memory != NULL)
        release(far, far->memory);
    if (table != NULL && far->comm->cuda->device_free(table) != 0)
        (void)far->comm->cuda->device_free(table);
    far->pools.table = NULL;
}

static bool covers(const struct hkt__far *far, const void *data, size_t bytes)
{
    const uintptr_t at = (uintptr_t)data;

    for (int i = 0; i < HKT__PLAN_POOLS; i++) {
        const uintptr_t own = (uintptr_t)far->pools.own[i];

        if (own != 0 && at >= own && at - own <= far->pools.bytes[i] && bytes <= far->pools.bytes[i] - (at - own))
            return true;
    }
    return false;
}

bool hkt__far_memory_covers(const struct hkt__far *far, const struct hkt__call *call)
{
    const struct hkt__staging *s = &call->staging;

    return far->peers.pools != NULL && (s->in_bytes == 0 || covers(far, call->in, s->in_bytes)) &&
           (s->out_bytes == 0 || covers(far, call->out, s->out_bytes));
}
