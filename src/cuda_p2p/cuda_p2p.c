/* cuda_p2p: the table, and instances. See cuda_p2p.h for the story. */
#include "cuda_p2p/cuda_p2p.h"

#include <stdio.h>
#include <string.h>

#include "core/bits.h"
#include "core/error.h"
#include "core/mem.h"
#include "core/settings.h"
#include "transport/below.h"
#include "transport/module.h"

/* Within a host, the only place where these count: two copies by an engine over PCIe 4, 25 GB/s each, and the two calls of a
 * host function that announce them, some 10 us each in CUDA 12. No GPU has measured them yet. */
#define LATENCY_NS 20000
#define NS_PER_BYTE 0.08

static const struct hkt__tp_ops *below_ops(void)
{
    return hkt__transport_find("shm");
}

/** The module with the calls of CUDA; its failure is told as this transport's. */
static enum hkt_status need_cuda(const struct hkt__settings *settings, const struct hkt__cuda_module **out_cuda)
{
    char why[512];

    *out_cuda = hkt__cuda_open(settings->cuda, why, sizeof why);
    return *out_cuda != NULL ? HKT_OK : hkt__fail(HKT_ERR_UNSUPPORTED, "%s", why);
}

static enum hkt_status probe(const struct hkt__settings *settings)
{
    const struct hkt__cuda_module *cuda;
    const enum hkt_status rc = need_cuda(settings, &cuda);

    return rc < 0 ? rc : below_ops()->probe(settings);
}

static void describe(char *out_text, size_t bytes)
{
    snprintf(out_text, bytes, "devices of one host, by their copy engines; used where HOCKET_TRANSPORT names it");
}

static void query(const struct hkt__tp *tp, struct hkt__tp_caps *out_caps)
{
    (void)tp;
    *out_caps = (struct hkt__tp_caps){.flags = HKT__TP_POLLED, .latency_ns = LATENCY_NS, .ns_per_byte = NS_PER_BYTE};
}

static void tp_close(struct hkt__tp *base)
{
    struct hkt__p2p *tp = (struct hkt__p2p *)base;

    if (tp == NULL)
        return;
    if (tp->below != NULL)
        tp->below->ops->close(tp->below);
    hkt__cuda_arenas_sweep();
    hkt__free(tp);
}

/** shm's instance, with slots that hold a prefix beside what this transport's frames hold. */
static enum hkt_status open_below(struct hkt__p2p *tp, const struct hkt__tp_params *params)
{
    struct hkt__settings settings = *params->settings;
    struct hkt__tp_params below = *params;

    if (settings.shm_slots > HKT__P2P_SLOTS_MAX)
        settings.shm_slots = HKT__P2P_SLOTS_MAX;
    tp->nslots = (uint32_t)settings.shm_slots;
    tp->slot_bytes = hkt__round_up((size_t)settings.shm_slot_bytes, HKT__LINE);
    settings.shm_slot_bytes = (int64_t)(tp->slot_bytes + HKT__LINE);
    below.settings = &settings;
    return below_ops()->open(&below, &tp->below);
}

static enum hkt_status tp_open(const struct hkt__tp_params *params, struct hkt__tp **out_tp)
{
    struct hkt__p2p *tp = hkt__calloc(1, sizeof *tp);

    if (tp == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the cuda_p2p transport");
    tp->job_rank = params->job_rank;
    tp->job_nranks = params->job_nranks;
    enum hkt_status rc = need_cuda(params->settings, &tp->cuda);

    if (rc == HKT_OK) {
        const int cuda_rc = tp->cuda->device_current(&tp->device);

        rc = cuda_rc == 0 ? open_below(tp, params) : hkt__cuda_failed(tp->cuda, cuda_rc, "tell the current device");
    }
    if (rc < 0) {
        tp_close(&tp->tp);
        return rc;
    }
    *out_tp = &tp->tp;
    return HKT_OK;
}

static enum hkt_status address(struct hkt__tp *base, void *out_blob, size_t *out_bytes)
{
    const struct hkt__p2p *tp = (const struct hkt__p2p *)base;
    const struct hkt__p2p_address own = {HKT__P2P_MAGIC, HKT__P2P_VERSION};

    return hkt__below_address(tp->below, &own, sizeof own, out_blob, out_bytes);
}

static bool is_ours(const unsigned char *blob, size_t bytes)
{
    struct hkt__p2p_address theirs;

    if (bytes < sizeof theirs)
        return false;
    memcpy(&theirs, blob, sizeof theirs);
    return theirs.magic == HKT__P2P_MAGIC && theirs.version == HKT__P2P_VERSION;
}

/** Whom shm reaches, of those that have a device; what their devices reach is tried when links open. */
static enum hkt_status reach(struct hkt__tp *base, const unsigned char *blobs, const size_t *bytes, int64_t deadline_ns,
                             unsigned char *out_ok)
{
    struct hkt__p2p *tp = (struct hkt__p2p *)base;
    const struct hkt__headed_blobs theirs = {blobs, bytes, tp->job_nranks, sizeof(struct hkt__p2p_address)};

    for (int i = 0; i < tp->job_nranks; i++)
        out_ok[i] = is_ours(blobs + (size_t)i * HKT__TP_BLOB_MAX, bytes[i]);
    return hkt__below_reach(tp->below, &theirs, deadline_ns, out_ok);
}

static const struct hkt__tp_ops p2p_ops = {
    .name = "cuda_p2p",
    .summary = "devices of one host, by their copy engines",
    .probe = probe,
    .describe = describe,
    .query = query,
    .open = tp_open,
    .close = tp_close,
    .address = address,
    .reach = reach,
    .dom_open = hkt__p2p_dom_open,
    .dom_connect = hkt__p2p_dom_connect,
    .dom_close = hkt__p2p_dom_close,
    .chan_open = hkt__p2p_chan_open,
    .park = hkt__p2p_park,
    .wake = hkt__p2p_wake,
};
const struct hkt__tp_ops *const hkt__module_transport = &p2p_ops;
