/* Buffers of devices that the user has allocated, registered with a communicator: hkt_comm_register. From then on they are as
 * memory of hkt_mem_alloc_device: a pool each. All ranks can, or none does; the steps are those of device/cuda_registered.h, and
 * after each all hear how the others got on. */
#include <string.h>
#include <sys/random.h>

#include "comm/far_pools.h"
#include "core/clock.h"
#include "core/mem.h"

static const char what[] = "hkt_comm_register";

/** What this rank knows without the others. */
static enum hkt_status check_own(struct hkt_comm *comm, int device, const void *data)
{
    if (hkt__far_memory_find(comm, data, true) != NULL)
        return hkt__fail(HKT_ERR_INVALID, "%p is registered with %s already", data, comm->name);
    if (hkt__far_memory_find(comm, data, false) != NULL)
        return hkt__fail(HKT_ERR_INVALID, "%p is memory of hkt_mem_alloc_device of %s, which is registered with it by that", data,
                         comm->name);
    if (hkt__far_why_not(comm)[0] != '\0') /* before anything is offered: there is room for as many ranks as devices can serve */
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%s: calls run through memory of the host: %s", what, hkt__far_why_not(comm));
    if (comm->far != NULL && hkt__far_enter_device(comm, device, what) < 0)
        return HKT_ERR_INVALID;
    if (hkt__pool_next(comm) == HKT__PLAN_POOLS)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "a communicator has at most %d buffers and allocations of devices", HKT__PLAN_POOLS);
    return HKT_OK;
}

/** Names the buffer for the others; of memory that goes by a descriptor, gives that to those who ask. */
static enum hkt_status offer(struct hkt__pool_making *m, struct hkt__fdserver **out_server)
{
    struct hkt__cuda_registered *reg = m->memory->registered;
    struct hkt__pool_note *own = &m->own;
    enum hkt_status rc;

    reg->module = m->comm->cuda; /* from here on there is something to close */
    rc = hkt__cuda_registered_open(reg, &own->buffer);
    if (rc < 0 || reg->fd < 0)
        return rc;
    if (getrandom(own->key, sizeof own->key, 0) != (ssize_t)sizeof own->key)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "no random numbers to name a buffer by");
    rc = hkt__fdserver_start(reg->fd, own->key, out_server);
    if (rc == HKT_OK)
        memcpy(own->name, hkt__fdserver_name(*out_server), sizeof own->name);
    return rc;
}

static enum hkt_status fetch(void *arg, int peer, int *out_fd)
{
    const struct hkt__pool_making *m = arg;
    const struct hkt__fdfetch ask = {.name = m->all[peer].name, .key = m->all[peer].key, .abort_word = &m->comm->job->aborted,
                                     .deadline_ns = hkt__now_ns() + m->comm->options.wait.timeout_ns};
    pid_t pid;

    return hkt__fdfetch(&ask, out_fd, &pid);
}

static enum hkt_status map(struct hkt__pool_making *m)
{
    struct hkt__cuda_buffer_offer *offers = hkt__calloc((size_t)m->comm->nranks, sizeof *offers);

    if (offers == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the buffers of %d ranks", m->comm->nranks);
    for (int r = 0; r < m->comm->nranks; r++)
        offers[r] = m->all[r].buffer;
    const enum hkt_status rc = hkt__cuda_registered_map(m->memory->registered, offers, fetch, m);

    hkt__free(offers);
    return rc;
}

/** All ranks see the same sizes. */
static enum hkt_status compare_sizes(const struct hkt__pool_making *m)
{
    for (int r = 1; r < m->comm->nranks; r++)
        if (m->all[r].bytes != m->all[0].bytes)
            return hkt__fail_peer(HKT_ERR_INVALID, r, "%s: rank %d registers %llu bytes of its device, rank 0 %llu: all must register "
                                  "as many", what, r, (unsigned long long)m->all[r].bytes, (unsigned long long)m->all[0].bytes);
    return HKT_OK;
}

/** The steps after the offers. m->failed says whether some rank could not go on. */
static enum hkt_status share(struct hkt__pool_making *m, struct hkt__fdserver *server)
{
    struct hkt__cuda_registered *reg = m->memory->registered;
    const int pool = hkt__pool_next(m->comm);
    enum hkt_status status, rc = hkt__far_prepare(m->comm, reg->device, what);

    if (rc == HKT_OK && m->comm->far->path == HKT__FAR_STAGED)
        rc = hkt__fail(HKT_ERR_UNSUPPORTED, "%s: calls run %s", what, m->comm->far->text);
    m->is_mapped = rc == HKT_OK;
    if (rc == HKT_OK)
        rc = hkt__pool_tell(m, map(m));
    hkt__fdserver_stop(server); /* all have what they need */
    if (rc == HKT_OK && m->failed < 0) {
        status = hkt__cuda_registered_check(reg);
        if (status == HKT_OK)
            status = hkt__pool_fill(m->comm->far, reg->parts, reg->stream);
        rc = hkt__pool_tell(m, status);
    }
    if (rc == HKT_OK && m->failed < 0)
        rc = hkt__pool_tell(m, hkt__cuda_registered_settle(reg));
    m->memory->pool = pool;
    return rc;
}

static struct hkt__far_memory *memory_new(const struct hkt_comm *comm, const struct hkt__cuda_memory *found, void *data, size_t bytes)
{
    struct hkt__far_memory *memory = hkt__calloc(1, sizeof *memory);
    struct hkt__cuda_registered *reg = hkt__calloc(1, sizeof *reg);

    if (memory == NULL || reg == NULL) {
        hkt__free(memory);
        hkt__free(reg);
        return NULL;
    }
    *reg = (struct hkt__cuda_registered){.rank = comm->rank, .nranks = comm->nranks, .device = found->device,
                                         .data = data, .bytes = bytes, .fd = -1};
    *memory = (struct hkt__far_memory){.data = data, .bytes = bytes, .registered = reg};
    return memory;
}

static void memory_free(struct hkt__far_memory *memory)
{
    if (memory == NULL)
        return;
    hkt__cuda_registered_close(memory->registered);
    hkt__free(memory->registered);
    hkt__free(memory);
}

/** Some rank could not go on. Where ranks have mapped each other's buffers none returns before all have given that up: the
 *  caller may free its buffer then. */
static enum hkt_status give_up(struct hkt__pool_making *m, enum hkt_status rc)
{
    const int failed = m->failed;
    const struct hkt__pool_note why = m->all[failed < 0 ? 0 : failed];

    memory_free(m->memory);
    if (rc == HKT_OK && m->is_mapped)
        rc = hkt__pool_tell(m, HKT_OK);
    if (rc < 0)
        return rc;
    m->failed = failed;
    m->all[failed] = why;
    return hkt__pool_failure(m);
}

enum hkt_status hkt__far_register(struct hkt_comm *comm, const struct hkt__cuda_memory *found, void *data, size_t bytes)
{
    struct hkt__pool_making m;
    struct hkt__fdserver *server = NULL;
    enum hkt_status rc = hkt__pool_begin(&m, comm, what), status;

    if (rc < 0)
        return rc;
    m.own.bytes = bytes;
    m.memory = memory_new(comm, found, data, bytes);
    status = m.memory != NULL ? check_own(comm, found->device, data) : hkt__fail(HKT_ERR_NOMEM, "no memory to register a buffer");
    if (status == HKT_OK)
        status = offer(&m, &server);
    rc = hkt__pool_tell(&m, status);
    if (rc == HKT_OK && m.failed < 0)
        rc = compare_sizes(&m);
    if (rc == HKT_OK && m.failed < 0)
        rc = share(&m, server);
    else
        hkt__fdserver_stop(server);
    if (rc == HKT_OK && m.failed < 0)
        hkt__pool_list(comm->far, m.memory);
    else
        rc = give_up(&m, rc);
    hkt__free(m.all);
    return rc;
}

int hkt__far_registered_left(const struct hkt_comm *comm)
{
    int n = 0;

    for (const struct hkt__far_memory *memory = comm->far != NULL ? comm->far->memory : NULL; memory != NULL; memory = memory->next)
        n += memory->registered != NULL;
    return n;
}
