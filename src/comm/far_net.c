/* Memory of devices and networks: trying, voting, pins, and calls on such memory. See far_net.h. */
#include "comm/far_net.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "comm/far.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"

#define TRY_BYTES ((size_t)65536) /* several packets, and a page of a device */
#define SPINS 2000                /* polls before a wait for a copy sleeps: most take some ten microseconds */

struct hkt__far_net_pin {
    struct hkt__far_net_pin *next;
    const char *data;
    size_t bytes;
};

/** What a rank says. */
struct note {
    int32_t status, insists;
    char text[192];
};

static int path_of(const struct hkt_comm *comm)
{
    return atomic_load_explicit(&comm->net.path, memory_order_acquire); /* N2 */
}

const char *hkt__far_net_text(const struct hkt_comm *comm)
{
    return path_of(comm) == HKT__FAR_NET_UNKNOWN ? "" : comm->net.text;
}

/* --- Copies --------------------------------------------------------------------------------------------------------- */

/** In a stream of its own: what the program gave to others, even to the default one, is not waited for, nor held up. */
static int copy_now(const struct hkt_comm *comm, void *dst, const void *src, size_t bytes)
{
    const struct hkt__far_net *net = &comm->net;
    const struct hkt__cuda_module *cuda = comm->cuda;
    const int enqueued = cuda->stream_copy(dst, src, bytes, net->stream);
    const int64_t until_ns = hkt__now_ns() + comm->options.wait.timeout_ns;
    int rc, nfailed = 0;

    for (int polls = 0; (rc = cuda->stream_query(net->stream, net->device)) != 0; polls++) {
        nfailed += rc != HKT__CUDA_NOT_READY;
        if (nfailed > 1 || hkt__now_ns() > until_ns)
            break;
        if (polls < SPINS)
            sched_yield();
        else
            hkt__sleep_ns(HKT__CUDA_NAP_NS);
    }
    return enqueued != 0 ? enqueued : rc;
}

static enum hkt_status copy(void *arg, void *dst, const void *src, size_t bytes)
{
    const struct hkt_comm *comm = arg;
    const int rc = bytes > 0 && dst != src ? copy_now(comm, dst, src, bytes) : 0;

    return rc == 0 ? HKT_OK : hkt__fail(HKT_ERR_SYSTEM, "CUDA: cannot copy %zu bytes between a frame and a device: %s", bytes,
                                        comm->cuda->error_text(rc));
}

/* --- Pins ----------------------------------------------------------------------------------------------------------- */

/** The domain of a transport that serves peers of this rank by other ways than memory; NULL: it does not. */
static struct hkt__tp_dom *net_dom(const struct hkt_comm *comm, int t)
{
    struct hkt__tp_caps caps;
    bool is_used = false;

    if (comm->routes.doms[t] == NULL)
        return NULL;
    for (int r = 0; r < comm->nranks && !is_used; r++)
        is_used = comm->routes.tp_of[r] == t;
    comm->job->tps[t]->ops->query(comm->job->tps[t], &caps);
    return is_used && (caps.flags & HKT__TP_MEMORY) == 0 ? comm->routes.doms[t] : NULL;
}

/** With all networks that take it; *out_names are theirs. UNSUPPORTED: none does, and why the last does not. */
static enum hkt_status pin(const struct hkt_comm *comm, const struct hkt__tp_device_memory *memory, char *out_names, size_t bytes)
{
    enum hkt_status rc = HKT_ERR_UNSUPPORTED;
    size_t used = 0;

    for (int t = 0; t < HKT__TRANSPORTS_MAX; t++) {
        struct hkt__tp_dom *dom = net_dom(comm, t);
        const enum hkt_status pinned = dom != NULL ? dom->ops->mem_pin_device(dom, memory) : HKT_ERR_UNSUPPORTED;

        if (pinned == HKT_OK && used < bytes)
            used += (size_t)snprintf(out_names + used, bytes - used, "%s%s", used > 0 ? ", " : "", dom->ops->name);
        if (pinned == HKT_OK)
            rc = HKT_OK;
    }
    return rc;
}

static void unpin(const struct hkt_comm *comm, const void *data)
{
    for (int t = 0; t < HKT__TRANSPORTS_MAX; t++)
        if (comm->routes.doms[t] != NULL)
            comm->routes.doms[t]->ops->mem_unpin(comm->routes.doms[t], data);
}

/** Pins memory by its dmabuf, which those who need it keep. */
static enum hkt_status pin_device(const struct hkt_comm *comm, const void *data, size_t bytes, int device, char names[64])
{
    struct hkt__tp_device_memory memory = {.data = data, .bytes = bytes, .device = device, .dmabuf = -1};
    size_t offset = 0;
    const int rc = comm->cuda->dmabuf_open(data, bytes, &memory.dmabuf, &offset);

    if (rc != 0)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "CUDA gives no dmabuf of %zu KiB of device %d: %s", bytes >> 10, device,
                         comm->cuda->error_text(rc));
    memory.dmabuf_offset = offset;
    const enum hkt_status pinned = pin(comm, &memory, names, 64);

    close(memory.dmabuf);
    return pinned;
}

void hkt__far_net_pin(struct hkt_comm *comm, const void *data, size_t bytes, int device)
{
    struct hkt__far_net_pin *p;
    char names[64];

    if (path_of(comm) != HKT__FAR_NET_LENT || comm->net.stream == NULL)
        return;
    p = hkt__calloc(1, sizeof *p);
    if (p != NULL && pin_device(comm, data, bytes, device, names) == HKT_OK) {
        *p = (struct hkt__far_net_pin){.data = data, .bytes = bytes, .next = comm->net.pins};
        comm->net.pins = p;
        return;
    }
    hkt__log(HKT__SUB_COMM, HKT__LOG_INFO, "%s: %zu KiB of device %d are sent through memory of the host: %s", comm->name,
             bytes >> 10, device, p == NULL ? "no memory" : hkt_last_error());
    hkt__free(p);
}

void hkt__far_net_unpin(struct hkt_comm *comm, const void *data)
{
    for (struct hkt__far_net_pin **link = &comm->net.pins; *link != NULL; link = &(*link)->next) {
        struct hkt__far_net_pin *p = *link;

        if (p->data != data)
            continue;
        unpin(comm, data);
        *link = p->next;
        hkt__free(p);
        return;
    }
}

void hkt__far_net_fini(struct hkt_comm *comm)
{
    while (comm->net.pins != NULL)
        hkt__far_net_unpin(comm, comm->net.pins->data);
    if (comm->net.stream != NULL && comm->cuda->stream_destroy(comm->net.stream) != 0)
        (void)comm->cuda->stream_destroy(comm->net.stream); /* once more: nobody is there to be told */
    comm->net.stream = NULL;
}

static bool is_pinned(const struct hkt__far_net *net, const void *data, size_t bytes)
{
    const uintptr_t at = (uintptr_t)data;

    for (const struct hkt__far_net_pin *p = net->pins; p != NULL; p = p->next) {
        const uintptr_t first = (uintptr_t)p->data;

        if (at >= first && at - first <= p->bytes && bytes <= p->bytes - (at - first))
            return true;
    }
    return false;
}

/* --- The vote ------------------------------------------------------------------------------------------------------- */

static bool is_served(const struct hkt_comm *comm)
{
    bool is = false;

    for (int t = 0; t < HKT__TRANSPORTS_MAX && !is; t++)
        is = net_dom(comm, t) != NULL;
    return is;
}

bool hkt__far_net_is_open(const struct hkt_comm *comm)
{
    return path_of(comm) == HKT__FAR_NET_UNKNOWN && is_served(comm);
}

/** Numbers that are nowhere by chance. */
static void fill_pattern(uint32_t *words, int rank)
{
    for (size_t i = 0; i < TRY_BYTES / sizeof *words; i++)
        words[i] = ((uint32_t)i + 1) * 2654435761u ^ (uint32_t)rank;
}

/** Every network reads memory of the device as it is. */
static enum hkt_status prove(const struct hkt_comm *comm, void *data, const void *pattern, char names[64])
{
    enum hkt_status rc = HKT_OK;
    const int error = copy_now(comm, data, pattern, TRY_BYTES);

    if (error != 0)
        return hkt__cuda_failed(comm->cuda, error, "write what networks are to read");
    rc = pin_device(comm, data, TRY_BYTES, comm->net.device, names);
    if (rc < 0)
        return rc;
    for (int t = 0; t < HKT__TRANSPORTS_MAX && rc == HKT_OK; t++) {
        struct hkt__tp_dom *dom = net_dom(comm, t);

        if (dom != NULL && strstr(names, dom->ops->name) != NULL)
            rc = dom->ops->mem_prove(dom, data, pattern, TRY_BYTES);
    }
    unpin(comm, data);
    return rc;
}

/** Whether this rank could. */
static enum hkt_status try_networks(struct hkt_comm *comm, int device, char names[64])
{
    const struct hkt__cuda_module *cuda = comm->cuda;
    uint32_t *pattern;
    void *data = NULL;
    int can = 0, error;

    if (strcmp(comm->job->settings->cuda_dmabuf, "off") == 0)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "HOCKET_CUDA_DMABUF is off");
    if (comm->options.crc)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "HOCKET_CRC makes its checksums in memory of the host");
    error = cuda->dmabuf_can(device, &can);
    if (error != 0 || !can)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "device %d gives no dmabuf of its memory (%s): it takes the driver's open kernel "
                         "modules", device, error != 0 ? cuda->error_text(error) : "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED is 0");
    comm->net.device = device;
    error = comm->net.stream == NULL ? cuda->stream_create(&comm->net.stream, device) : 0;
    if (error == 0)
        error = cuda->device_alloc(&data, TRY_BYTES, device);
    if (error != 0)
        return hkt__cuda_failed(cuda, error, "prepare a trial of networks");
    pattern = hkt__calloc(1, TRY_BYTES);
    enum hkt_status rc = HKT_ERR_NOMEM;

    if (pattern != NULL) {
        fill_pattern(pattern, comm->rank);
        rc = prove(comm, data, pattern, names);
    }
    hkt__free(pattern);
    if (cuda->device_free(data) != 0)
        (void)cuda->device_free(data); /* once more: nobody is there to be told */
    return rc == HKT_ERR_NOMEM ? hkt__fail(rc, "no memory to try networks on memory of a device") : rc;
}

static void settle(struct hkt_comm *comm, const struct note *notes, const char *names)
{
    struct hkt__far_net *net = &comm->net;
    int culprit = -1;

    net->insists = false;
    for (int r = 0; r < comm->nranks; r++) {
        net->insists |= notes[r].insists != 0;
        if (notes[r].status < 0 && culprit < 0)
            culprit = r;
    }
    snprintf(net->text, sizeof net->text, "from where it lies%s%s", names[0] != '\0' ? ", by " : "", names);
    if (culprit >= 0)
        snprintf(net->text, sizeof net->text, "through memory of the host: rank %d: %.*s", culprit, (int)sizeof notes->text,
                 notes[culprit].text);
    atomic_store_explicit(&net->path, culprit < 0 ? HKT__FAR_NET_LENT : HKT__FAR_NET_STAGED, memory_order_release); /* N1 */
    hkt__log(HKT__SUB_COMM, HKT__LOG_INFO, "%s: memory of devices is sent %s", comm->name, net->text);
}

enum hkt_status hkt__far_net_agree(struct hkt_comm *comm, int device)
{
    struct note own = {.insists = strcmp(comm->job->settings->cuda_dmabuf, "on") == 0};
    struct note *all = hkt__calloc((size_t)comm->nranks, sizeof *all);
    char names[64] = "";
    enum hkt_status rc;

    if (all == NULL)
        return hkt__comm_fail_here(comm, hkt__fail(HKT_ERR_NOMEM, "no memory to agree on memory of devices"), "memory");
    own.status = is_served(comm) ? try_networks(comm, device, names) : HKT_OK;
    snprintf(own.text, sizeof own.text, "%s", own.status < 0 ? hkt_last_error() : "");
    rc = hkt__internal_all_gather(&own, all, sizeof own, comm);
    if (rc == HKT_OK)
        settle(comm, all, names);
    hkt__free(all);
    return rc;
}

enum hkt_status hkt__far_net_check(const struct hkt_comm *comm)
{
    if (path_of(comm) != HKT__FAR_NET_STAGED || !comm->net.insists)
        return HKT_OK;
    return hkt__fail(HKT_ERR_UNSUPPORTED, "HOCKET_CUDA_DMABUF is on, and memory of devices is sent %s", comm->net.text);
}

/* --- Calls ---------------------------------------------------------------------------------------------------------- */

bool hkt__far_net_serves(const struct hkt__call *call)
{
    const struct hkt__far_net *net = &call->comm->net;
    const struct hkt__staging *s = &call->staging;

    /* Without windows no plan touches memory of peers, and without an operation none reduces. */
    return net->pins != NULL && path_of(call->comm) == HKT__FAR_NET_LENT && call->comm->routes.memory_tp == NULL &&
           call->op == HKT_OP_COUNT && (s->in_is_far || s->out_is_far) &&
           (!s->in_is_far || is_pinned(net, call->in, s->in_bytes)) && (!s->out_is_far || is_pinned(net, call->out, s->out_bytes));
}

/** A byte of a buffer, in the order of its device's default stream: what the program has given to blocking streams is done then. */
static enum hkt_status wait_for(const struct hkt_comm *comm, const void *data, int device)
{
    char byte;
    const int rc = comm->cuda->copy_wait(&byte, data, 1, device);

    return rc == 0 ? HKT_OK : hkt__cuda_failed(comm->cuda, rc, "wait for the buffers of a call");
}

enum hkt_status hkt__far_net_begin(struct hkt__call *call)
{
    struct hkt__staging *s = &call->staging;
    enum hkt_status rc = s->in_is_far ? wait_for(call->comm, call->in, s->in_device) : HKT_OK;

    if (rc == HKT_OK && s->out_is_far && !(s->in_is_far && s->out_device == s->in_device))
        rc = wait_for(call->comm, call->out, s->out_device);
    if (rc < 0)
        return rc;
    s->is_lent = true;
    s->device = (struct hkt__bind_device){.has = {s->in_is_far, s->out_is_far}, .copy = copy, .arg = call->comm};
    return HKT_OK;
}
