/* Memory that peers can address: allocation, registration, and the question whether a call's buffers are registered. */
#include "hocket/mem.h"

#include <sys/mman.h>

#include "comm/far.h"
#include "core/bits.h"
#include "core/mem.h"

#define PAGE ((size_t)4096)

struct hkt__registered {
    char *data;
    size_t bytes;
    bool is_owned;                     /* made by hkt_mem_alloc of this communicator */
    bool is_shared;                    /* of the transport's memory; else mapped here */
    struct hkt__registered *next;
};

static struct hkt__registered *find(const struct hkt_comm *comm, const void *data)
{
    struct hkt__registered *r = comm->registered;

    while (r != NULL && r->data != data)
        r = r->next;
    return r;
}

/** All ranks or none: the least of what the ranks say, and who said it. Fails as the all-gather does. */
static enum hkt_status agree(struct hkt_comm *comm, enum hkt_status own, int *out_rank, enum hkt_status *out_worst)
{
    int32_t mine = own, *all = hkt__calloc((size_t)comm->nranks, sizeof *all);
    enum hkt_status rc;

    if (all == NULL)
        return hkt__comm_fail_here(comm, hkt__fail(HKT_ERR_NOMEM, "no memory to agree on memory"), "memory");
    rc = hkt__internal_all_gather(&mine, all, sizeof mine, comm);
    *out_worst = HKT_OK;
    for (int r = 0; r < comm->nranks && rc == HKT_OK; r++) {
        if (all[r] >= *out_worst)
            continue;
        *out_worst = (enum hkt_status)all[r];
        *out_rank = r;
    }
    hkt__free(all);
    return rc;
}

/** Make it known to the networks of the communicator. False: to none. */
static bool pin(struct hkt_comm *comm, const struct hkt__registered *r)
{
    bool any = false;

    for (int t = 0; t < HKT__TRANSPORTS_MAX; t++)
        if (comm->routes.doms[t] != NULL)
            any |= comm->routes.doms[t]->ops->mem_pin(comm->routes.doms[t], r->data, r->bytes);
    return any;
}

static void unpin(struct hkt_comm *comm, const struct hkt__registered *r)
{
    for (int t = 0; t < HKT__TRANSPORTS_MAX; t++)
        if (comm->routes.doms[t] != NULL)
            comm->routes.doms[t]->ops->mem_unpin(comm->routes.doms[t], r->data);
}

static void release(struct hkt_comm *comm, struct hkt__registered *r)
{
    if (r->data != NULL)
        unpin(comm, r);
    if (r->is_owned && r->is_shared)
        comm->routes.memory_tp->ops->mem_free(comm->routes.memory_tp, r->data);
    else if (r->is_owned && r->data != NULL)
        munmap(r->data, r->bytes);
    hkt__free(r);
}

static enum hkt_status allocate(struct hkt_comm *comm, struct hkt__registered *r)
{
    void *memory = NULL;

    r->is_owned = true;
    r->is_shared = comm->routes.memory_tp != NULL;
    if (r->is_shared) {
        const enum hkt_status rc = comm->routes.memory_tp->ops->mem_alloc(comm->routes.memory_tp, r->bytes, &memory);

        if (rc == HKT_OK)
            r->data = memory;
        return rc;
    }
    memory = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return hkt__fail_sys(HKT_ERR_NOMEM, "cannot map %zu bytes", r->bytes);
    (void)madvise(memory, r->bytes, MADV_HUGEPAGE); /* a wish */
    r->data = memory;
    return HKT_OK;
}

enum hkt_status hkt_mem_alloc(void **out_memory, size_t bytes, struct hkt_comm *comm)
{
    struct hkt__registered *r;
    enum hkt_status rc, worst;
    int culprit = -1;

    if (out_memory == NULL || comm == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_mem_alloc: out_memory and comm must not be NULL");
    r = hkt__calloc(1, sizeof *r);
    if (r != NULL)
        r->bytes = hkt__round_up(bytes > 0 ? bytes : 1, PAGE);
    if (r == NULL || r->bytes < bytes)
        rc = hkt__fail(HKT_ERR_NOMEM, "hkt_mem_alloc: no memory for %zu bytes", bytes);
    else
        rc = allocate(comm, r);
    const enum hkt_status own = rc;

    rc = agree(comm, own, &culprit, &worst);
    if (rc == HKT_OK && worst == HKT_OK) {
        r->next = comm->registered;
        comm->registered = r;
        (void)pin(comm, r); /* else it is sent by copies, as other memory is */
        *out_memory = r->data;
        return HKT_OK;
    }
    if (r != NULL && own == HKT_OK)
        release(comm, r);
    else
        hkt__free(r);
    if (rc < 0)
        return rc;
    return own < 0 ? own : hkt__fail_peer(worst, culprit, "rank %d has no memory for its part of the allocation", culprit);
}

static void unlist(struct hkt_comm *comm, const struct hkt__registered *r)
{
    struct hkt__registered **link = &comm->registered;

    while (*link != r)
        link = &(*link)->next;
    *link = r->next;
}

enum hkt_status hkt_mem_free(void *memory, struct hkt_comm *comm)
{
    struct hkt__registered *r;
    enum hkt_status rc, worst;
    int culprit;

    if (comm == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_mem_free: comm is NULL");
    if (memory == NULL)
        return HKT_OK;
    struct hkt__far_memory *far = hkt__far_memory_find(comm, memory, false);

    if (far != NULL)
        return hkt__far_memory_free(comm, far);
    r = find(comm, memory);
    if (r == NULL || !r->is_owned)
        return hkt__fail(HKT_ERR_INVALID, "hkt_mem_free: %p is no memory of hkt_mem_alloc on %s", memory, comm->name);
    /* A peer may still be reading this rank's part in an operation that has ended here. */
    rc = agree(comm, HKT_OK, &culprit, &worst);
    unlist(comm, r);
    release(comm, r);
    return rc;
}

/** What a rank says before it registers. */
struct claim {
    int32_t status, is_device;
};

/** All ranks' claims, made one: the least status and who said it first; how many are of devices, and the first of the others. */
struct claims {
    enum hkt_status worst;
    int culprit, ndevices, first_host;
};

static enum hkt_status compare_claims(struct hkt_comm *comm, const struct claim *own, struct claims *out)
{
    struct claim *all = hkt__calloc((size_t)comm->nranks, sizeof *all);
    enum hkt_status rc;

    *out = (struct claims){.worst = HKT_OK, .culprit = -1, .first_host = -1};
    if (all == NULL)
        return hkt__comm_fail_here(comm, hkt__fail(HKT_ERR_NOMEM, "no memory to agree on memory"), "memory");
    rc = hkt__internal_all_gather(own, all, sizeof *own, comm);
    for (int r = 0; r < comm->nranks && rc == HKT_OK; r++) {
        out->ndevices += all[r].is_device;
        if (!all[r].is_device && out->first_host < 0)
            out->first_host = r;
        if (all[r].status < (int32_t)out->worst) {
            out->worst = (enum hkt_status)all[r].status;
            out->culprit = r;
        }
    }
    hkt__free(all);
    return rc;
}

/** What all ranks return when one's claim is refused. */
static enum hkt_status refuse(const struct claims *claims)
{
    const int culprit = claims->culprit;

    if (claims->ndevices > 0 && claims->first_host >= 0 && (claims->worst == HKT_OK || claims->worst == HKT_ERR_UNSUPPORTED))
        return hkt__fail(HKT_ERR_INVALID, "hkt_comm_register: the buffer of rank %d is memory of the host, those of %d ranks are of "
                         "devices: all must be of one kind", claims->first_host, claims->ndevices);
    switch (claims->worst) {
    case HKT_ERR_NOMEM:
        return hkt__fail_peer(claims->worst, culprit, "hkt_comm_register: rank %d has no memory for it", culprit);
    case HKT_ERR_INVALID:
        return hkt__fail_peer(claims->worst, culprit, "hkt_comm_register: rank %d has registered that address already", culprit);
    case HKT_ERR_SYSTEM:
        return hkt__fail_peer(claims->worst, culprit, "hkt_comm_register: CUDA cannot tell rank %d what memory its buffer is", culprit);
    default:
        return hkt__fail_peer(claims->worst, culprit, "hkt_comm_register: peers cannot address the buffer of rank %d: use memory of "
                              "hkt_mem_alloc, on ranks of one host", culprit);
    }
}

/** Memory of the host: can this rank's peers, or its network, use it? */
static enum hkt_status claim_host(struct hkt_comm *comm, const struct hkt__registered *r)
{
    struct hkt__tp *tp = comm->routes.memory_tp;
    const struct hkt__registered *before = find(comm, r->data);
    uint64_t offset;

    if (before != NULL && !before->is_owned)
        return HKT_ERR_INVALID;
    if (tp == NULL ? !pin(comm, r) : !(comm->routes.all_user || tp->ops->mem_locate(tp, r->data, r->bytes, &offset)))
        return HKT_ERR_UNSUPPORTED;
    return HKT_OK;
}

enum hkt_status hkt_comm_register(struct hkt_comm *comm, void *data, size_t bytes)
{
    struct hkt__cuda_memory found = {.kind = HKT__CUDA_HOST};
    struct hkt__registered *r;
    struct claim own = {.status = HKT_OK};
    struct claims claims;
    enum hkt_status rc;

    if (comm == NULL || data == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_comm_register: comm and data must not be NULL");
    r = hkt__calloc(1, sizeof *r);
    if (r == NULL)
        own.status = HKT_ERR_NOMEM;
    else if (comm->cuda != NULL && comm->cuda->memory_find(data, &found) != 0)
        own.status = HKT_ERR_SYSTEM;
    own.is_device = found.kind != HKT__CUDA_HOST;
    if (own.status == HKT_OK && !own.is_device) {
        *r = (struct hkt__registered){.data = data, .bytes = bytes, .next = comm->registered};
        own.status = claim_host(comm, r);
    }
    rc = compare_claims(comm, &own, &claims);
    if (rc == HKT_OK && claims.worst == HKT_OK && claims.ndevices == 0) {
        comm->registered = r;
        return HKT_OK;
    }
    if (own.status == HKT_OK && !own.is_device)
        unpin(comm, r);
    hkt__free(r);
    if (rc < 0 || claims.worst < 0 || claims.ndevices < comm->nranks)
        return rc < 0 ? rc : refuse(&claims);
    return hkt__far_register(comm, &found, data, bytes);
}

enum hkt_status hkt_comm_deregister(struct hkt_comm *comm, void *data)
{
    struct hkt__far_memory *far = comm != NULL ? hkt__far_memory_find(comm, data, true) : NULL;
    struct hkt__registered *r = comm != NULL ? find(comm, data) : NULL;
    enum hkt_status worst;
    int culprit;

    if (far != NULL)
        return hkt__far_memory_free(comm, far);
    if (r == NULL || r->is_owned)
        return hkt__fail(HKT_ERR_INVALID, "hkt_comm_deregister: %p was not registered", data);
    const enum hkt_status rc = agree(comm, HKT_OK, &culprit, &worst);

    unlist(comm, r);
    unpin(comm, r);
    hkt__free(r);
    return rc;
}

void hkt__registered_fini(struct hkt_comm *comm)
{
    while (comm->registered != NULL) {
        struct hkt__registered *r = comm->registered;

        comm->registered = r->next;
        release(comm, r);
    }
}

bool hkt__registered_covers(const struct hkt_comm *comm, const void *data, size_t bytes)
{
    for (const struct hkt__registered *r = comm->registered; r != NULL; r = r->next) {
        const uintptr_t first = (uintptr_t)r->data, at = (uintptr_t)data;

        if (at >= first && at - first <= r->bytes && bytes <= r->bytes - (at - first))
            return true;
    }
    return false;
}
