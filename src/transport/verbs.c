/* verbs: frames over InfiniBand and RoCE, by RDMA. The operations table and instances; verbs.h tells the whole story.
 *
 * Who reaches whom is tried, not believed: for each GID of a peer an address handle is made, for which a RoCE adapter must
 * resolve the peer's address. So a wrong GID, or networks that do not meet, send a pair to tcp when the job starts. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "transport/below.h"
#include "transport/module.h"
#include "transport/verbs.h"

static const struct hkt__tp_ops verbs_ops;

#define INLINE_ASKED 220  /* bytes: what common adapters take without a second fetch of the request */
/* Of frames. On Soft-RoCE, where figures scatter widely, all-gathers were 30 % faster with 256 KiB than with 64 KiB in three
 * of four measurements (docs/bench/2026-11-30-rdma.md). */
#define SLOT_BYTES_MOST ((size_t)262144)
#define SLOT_BYTES_LEAST ((size_t)16384)
#define SLOT_BYTES_SET_LEAST ((size_t)1024)
#define LANES_MOST 4  /* that HOCKET_LANES may say, or that may be chosen without it */
#define LANES_LEAST 2 /* that schedules may have of themselves */

static struct hkt__verbs *verbs_of(struct hkt__tp *tp)
{
    return (struct hkt__verbs *)tp;
}

/* ---- what is here ---- */

static void print_port(const struct hkt__verbs_port *port, char *out_text, size_t bytes)
{
    char name[80];

    hkt__verbs_port_name(port, name, sizeof name);
    if (port->why[0] != '\0')
        snprintf(out_text, bytes, "%s not used: %s", name, port->why);
    else
        snprintf(out_text, bytes, "%s %s, %g Gbit/s, MTU %d, %s", name, port->is_roce ? "RoCE" : "InfiniBand",
                 port->mbits / 1e3, 128 << port->mtu, port->gid_text);
}

static void verbs_describe(char *out_text, size_t bytes)
{
    struct hkt__verbs_port ports[HKT__VERBS_PORTS_MAX];
    const struct hkt__settings *settings;
    int count = 0;
    size_t used = 0;

    out_text[0] = '\0';
    if (hkt__settings_get(&settings) != HKT_OK || hkt__verbs_ports_list(settings, ports, HKT__VERBS_PORTS_MAX, &count) != HKT_OK)
        return;
    for (int i = 0; i < count && used < bytes; i++) {
        char text[HKT__VERBS_TEXT_MAX * 2];

        print_port(&ports[i], text, sizeof text);
        const int n = snprintf(out_text + used, bytes - used, "%s%s", i > 0 ? "; " : "", text);

        used += n > 0 ? (size_t)n : 0;
    }
}

/** The reasons of all ports, when none is of use. */
static enum hkt_status fail_ports(const struct hkt__verbs_port *ports, int count)
{
    char text[HKT__ERROR_TEXT_MAX - 64];
    size_t used = 0;

    for (int i = 0; i < count && used < sizeof text; i++) {
        char name[80];

        hkt__verbs_port_name(&ports[i], name, sizeof name);
        const int n = snprintf(text + used, sizeof text - used, "%s%s: %s", i > 0 ? "; " : "", name, ports[i].why);

        used += n > 0 ? (size_t)n : 0;
    }
    return hkt__fail(HKT_ERR_UNSUPPORTED, "%s", text);
}

/** The fastest usable ports first; of equal ones the system's order. */
static int choose_ports(struct hkt__verbs_port *ports, int count)
{
    int usable = 0;

    for (int i = 0; i < count; i++) {
        const struct hkt__verbs_port port = ports[i];
        int at = usable;

        if (port.why[0] != '\0')
            continue;
        for (; at > 0 && ports[at - 1].mbits < port.mbits; at--)
            ports[at] = ports[at - 1];
        ports[at] = port;
        usable++;
    }
    return usable < HKT__VERBS_RAILS_MAX ? usable : HKT__VERBS_RAILS_MAX;
}

/** Bytes of a frame. As they come: large ones, each of which costs a request, a completion and a credit; less where the links
 *  to all ranks could not be locked in half of what the system allows (the other half is left to others of this process). */
static uint32_t choose_slot_bytes(const struct hkt__settings *settings, int nranks)
{
    const size_t lockable = hkt__verbs_lockable_bytes() / 2;
    const size_t lanes = settings->lanes == 0 ? LANES_MOST : settings->lanes < LANES_LEAST ? LANES_LEAST : (size_t)settings->lanes;
    const size_t links = lanes + 1; /* one for single messages */
    const size_t slots = 2 * (size_t)settings->ib_slots * links * (size_t)(nranks > 1 ? nranks - 1 : 1);
    size_t bytes = SLOT_BYTES_MOST;

    if (settings->ib_slot_bytes > 0) {
        bytes = (size_t)settings->ib_slot_bytes / HKT__LINE * HKT__LINE;
        return (uint32_t)(bytes > SLOT_BYTES_SET_LEAST ? bytes : SLOT_BYTES_SET_LEAST);
    }
    while (bytes > SLOT_BYTES_LEAST && slots * (bytes + HKT__VERBS_HEAD) > lockable)
        bytes /= 2;
    return (uint32_t)bytes;
}

static size_t slots_bytes(const struct hkt__settings *settings, uint32_t slot_bytes)
{
    return (size_t)settings->ib_slots * (slot_bytes + HKT__VERBS_HEAD);
}

/** Register what a link would: limits show now, not in the middle of a job. */
static enum hkt_status try_register(const struct hkt__verbs_rail *rail, size_t bytes)
{
    void *memory = hkt__pages_alloc(bytes);
    enum hkt_status rc = HKT_OK;

    if (memory == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "verbs: no memory for %zu KiB of slots", bytes >> 10);
    struct ibv_mr *mr = ibv_reg_mr(rail->pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

    if (mr == NULL)
        rc = hkt__verbs_fail_register(rail->port.device, bytes);
    else
        (void)ibv_dereg_mr(mr);
    hkt__pages_free(memory, bytes);
    return rc;
}

static void close_rail(struct hkt__verbs_rail *rail)
{
    if (rail->pd != NULL)
        (void)ibv_dealloc_pd(rail->pd);
    if (rail->context != NULL)
        (void)ibv_close_device(rail->context);
    rail->pd = NULL;
    rail->context = NULL;
}

static enum hkt_status open_rail(struct hkt__verbs_rail *rail, const struct hkt__verbs_port *port, size_t bytes)
{
    struct ibv_device_attr attr;
    enum hkt_status rc;

    rail->port = *port;
    rc = hkt__verbs_device_open(port->device, &rail->context);
    if (rc < 0)
        return hkt__error_context(rc, "%s", port->device);
    rail->pd = ibv_alloc_pd(rail->context);
    if (rail->pd == NULL || ibv_query_device(rail->context, &attr) != 0)
        rc = hkt__fail_sys(HKT_ERR_SYSTEM, "%s gives no protection domain", port->device);
    else
        rc = try_register(rail, bytes);
    if (rc < 0) {
        close_rail(rail);
        return rc;
    }
    rail->cqe_max = attr.max_cqe;
    rail->inline_max = INLINE_ASKED;
    return HKT_OK;
}

/** Ports that can be used, best first. Gives *out_count > 0, or UNSUPPORTED with all reasons. */
static enum hkt_status find_ports(const struct hkt__settings *settings, struct hkt__verbs_port *out_ports, int *out_count)
{
    int count = 0;
    const enum hkt_status rc = hkt__verbs_ports_list(settings, out_ports, HKT__VERBS_PORTS_MAX, &count);

    if (rc < 0)
        return rc;
    for (int i = 0; i < count; i++) {
        char text[HKT__VERBS_TEXT_MAX * 2];

        print_port(&out_ports[i], text, sizeof text);
        hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_DEBUG, "verbs: %s", text);
    }
    *out_count = choose_ports(out_ports, count);
    return *out_count > 0 ? HKT_OK : fail_ports(out_ports, count);
}

static enum hkt_status verbs_probe(const struct hkt__settings *settings)
{
    struct hkt__verbs_port ports[HKT__VERBS_PORTS_MAX];
    struct hkt__verbs_rail rail = {.context = NULL};
    int count = 0;
    enum hkt_status rc = find_ports(settings, ports, &count);

    if (rc == HKT_OK)
        rc = open_rail(&rail, &ports[0], slots_bytes(settings, choose_slot_bytes(settings, 2)));
    if (rc == HKT_OK)
        close_rail(&rail);
    return rc == HKT_OK ? HKT_OK : HKT_ERR_UNSUPPORTED;
}

static void verbs_query(const struct hkt__tp *tp, struct hkt__tp_caps *out_caps)
{
    const struct hkt__verbs *verbs = (const struct hkt__verbs *)tp;
    double mbits = 0;

    for (int i = 0; verbs != NULL && i < verbs->nrails; i++)
        mbits += verbs->rails[i].port.mbits;
    if (mbits <= 0)
        mbits = 100e3;
    /* Published figures for perftest on InfiniBand and RoCE adapters: 1 to 2 us for a small write, nine tenths of the line
     * rate for large ones; a tuning table replaces both. */
    *out_caps = (struct hkt__tp_caps){.flags = HKT__TP_POLLED | HKT__TP_LENDS, .latency_ns = 2000, .ns_per_byte = 8e3 / (0.9 * mbits),
                                      .slice_bytes = verbs != NULL ? verbs->slot_bytes : SLOT_BYTES_MOST};
}

/* ---- instance ---- */

static void verbs_close(struct hkt__tp *tp)
{
    struct hkt__verbs *verbs = verbs_of(tp);

    if (verbs == NULL)
        return;
    if (verbs->wire != NULL)
        verbs->wire->ops->close(verbs->wire);
    for (int i = 0; i < verbs->nrails; i++)
        close_rail(&verbs->rails[i]);
    hkt__free(verbs->peers);
    hkt__free(verbs);
}

static bool may_use_tcp(const char *list)
{
    const bool is_named = strstr(list, "tcp") != NULL;

    return list[0] == '\0' || is_named != (list[0] == '^');
}

static enum hkt_status open_rails(struct hkt__verbs *verbs)
{
    struct hkt__verbs_port ports[HKT__VERBS_PORTS_MAX];
    int count = 0;
    enum hkt_status rc = find_ports(verbs->settings, ports, &count);

    for (int i = 0; i < count && rc == HKT_OK; i++) {
        rc = open_rail(&verbs->rails[verbs->nrails], &ports[i], slots_bytes(verbs->settings, verbs->slot_bytes));
        if (rc == HKT_OK) {
            const struct hkt__verbs_port *port = &ports[i];

            verbs->nrails++;
            hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_INFO, "verbs uses %s:%d, %g Gbit/s, MTU %d, %s; %s", port->device, port->port,
                     port->mbits / 1e3, 128 << port->mtu, port->gid_text, verbs->settings->ib_gid_index >= 0
                     ? "chosen by HOCKET_IB_GID_INDEX" : "RoCE v2 with IPv4 if there is one; HOCKET_IB_GID_INDEX sets another");
        }
    }
    return rc;
}

static enum hkt_status verbs_open(const struct hkt__tp_params *params, struct hkt__tp **out_tp)
{
    struct hkt__verbs *verbs = hkt__calloc(1, sizeof *verbs);

    if (verbs == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "verbs: no memory for the transport");
    (void)ibv_fork_init(); /* only where the kernel does not keep pinned pages apart by itself */
    verbs->tp.ops = &verbs_ops; /* the library puts the table with defaults in its place */
    verbs->job_rank = params->job_rank;
    verbs->job_nranks = params->job_nranks;
    verbs->settings = params->settings;
    verbs->abort_word = params->abort_word;
    verbs->slots = (uint32_t)params->settings->ib_slots;
    verbs->slot_bytes = choose_slot_bytes(params->settings, params->job_nranks);
    verbs->may_use_tcp = may_use_tcp(params->settings->transport);
    verbs->peers = hkt__calloc((size_t)params->job_nranks, sizeof *verbs->peers);
    enum hkt_status rc = verbs->peers != NULL ? HKT_OK : hkt__fail(HKT_ERR_NOMEM, "verbs: no memory for %d ranks",
                                                                   params->job_nranks);

    if (rc == HKT_OK)
        rc = open_rails(verbs);
    if (rc == HKT_OK)
        rc = hkt__below_open_tcp(params, &verbs->wire_settings, &verbs->wire);
    if (rc < 0) {
        verbs_close(&verbs->tp);
        return rc;
    }
    *out_tp = &verbs->tp;
    return HKT_OK;
}

static enum hkt_status verbs_address(struct hkt__tp *tp, void *out_blob, size_t *out_bytes)
{
    const struct hkt__verbs *verbs = verbs_of(tp);
    struct hkt__verbs_blob blob = {.magic = HKT__VERBS_MAGIC, .version = HKT__VERBS_VERSION,
                                   .nrails = (uint16_t)verbs->nrails, .slots = verbs->slots, .slot_bytes = verbs->slot_bytes,
                                   .qps = (uint8_t)verbs->settings->ib_qps, .may_use_tcp = verbs->may_use_tcp};

    for (int i = 0; i < verbs->nrails; i++) {
        const struct hkt__verbs_port *port = &verbs->rails[i].port;

        blob.rails[i] = (struct hkt__verbs_rail_blob){.lid = port->lid, .mtu = port->mtu, .is_roce = port->is_roce,
                                                      .mbits = port->mbits};
        memcpy(blob.rails[i].gid, port->gid.raw, sizeof blob.rails[i].gid);
    }
    return hkt__below_address(verbs->wire, &blob, sizeof blob, out_blob, out_bytes);
}

/* ---- who is within reach ---- */

static bool read_blob(const unsigned char *bytes, size_t size, struct hkt__verbs_blob *out_blob)
{
    if (size < sizeof *out_blob)
        return false;
    memcpy(out_blob, bytes, sizeof *out_blob);
    return out_blob->magic == HKT__VERBS_MAGIC && out_blob->version == HKT__VERBS_VERSION && out_blob->nrails >= 1 &&
           out_blob->nrails <= HKT__VERBS_RAILS_MAX && out_blob->qps >= 1 && out_blob->qps <= HKT__VERBS_QPS_MAX &&
           out_blob->slots >= 2 && out_blob->slots <= HKT__VERBS_SLOTS_MAX && out_blob->slot_bytes >= HKT__LINE;
}

/** Can a packet find the way from a rail to a peer's? */
static bool has_way(const struct hkt__verbs *verbs, const struct hkt__verbs_rail *rail, const struct hkt__verbs_rail_blob *peer)
{
    struct ibv_ah_attr attr = {
        .dlid = peer->lid, .sl = (uint8_t)verbs->settings->ib_sl, .port_num = rail->port.port, .is_global = rail->port.is_roce,
        .grh = {.sgid_index = (uint8_t)rail->port.gid_index, .hop_limit = 64},
    };

    if (rail->port.is_roce != (bool)peer->is_roce) {
        errno = EPROTOTYPE;
        return false;
    }
    memcpy(attr.grh.dgid.raw, peer->gid, sizeof peer->gid);
    struct ibv_ah *ah = ibv_create_ah(rail->pd, &attr);

    if (ah == NULL)
        return false;
    (void)ibv_destroy_ah(ah);
    return true;
}

/** Some pair of NICs meets: those that paths would join. *out_errno says why not. */
static bool meets(const struct hkt__verbs *verbs, const struct hkt__verbs_blob *peer, int *out_errno)
{
    const int pairs = peer->nrails > verbs->nrails ? peer->nrails : verbs->nrails;

    for (int i = 0; i < pairs; i++)
        if (has_way(verbs, &verbs->rails[i % verbs->nrails], &peer->rails[i % peer->nrails]))
            return true;
    *out_errno = errno;
    return false;
}

/** An earlier rank with the same NICs, most likely of the same host: it was asked already. -1: none. */
static int same_nics(const struct hkt__verbs *verbs, int rank)
{
    for (int i = 0; i < rank; i++)
        if (verbs->peers[i].nrails > 0 && verbs->peers[i].nrails == verbs->peers[rank].nrails &&
            memcmp(verbs->peers[i].rails, verbs->peers[rank].rails, sizeof verbs->peers[i].rails) == 0)
            return i;
    return -1;
}

static bool reaches(struct hkt__verbs *verbs, int rank, int64_t deadline_ns, const unsigned char *verdicts)
{
    struct ibv_gid_entry entry = {.gid_type = verbs->rails[0].port.is_roce ? IBV_GID_TYPE_ROCE_V2 : IBV_GID_TYPE_IB};
    const int known = same_nics(verbs, rank);
    int sys_errno = ETIMEDOUT;
    char to[96];

    if (known >= 0)
        return verdicts[known];
    if (hkt__now_ns() < deadline_ns && meets(verbs, &verbs->peers[rank], &sys_errno))
        return true;
    memcpy(entry.gid.raw, verbs->peers[rank].rails[0].gid, sizeof entry.gid.raw);
    hkt__verbs_gid_text(&entry, to, sizeof to);
    hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_INFO, "verbs: job rank %d is out of reach: no way from %s to %s (%s)", rank,
             verbs->rails[0].port.gid_text, to, strerror(sys_errno));
    return false;
}

static enum hkt_status verbs_reach(struct hkt__tp *tp, const unsigned char *blobs, const size_t *bytes,
                                   int64_t deadline_ns, unsigned char *out_ok)
{
    struct hkt__verbs *verbs = verbs_of(tp);
    const struct hkt__headed_blobs theirs = {blobs, bytes, verbs->job_nranks, sizeof(struct hkt__verbs_blob)};
    unsigned char *verdicts = hkt__calloc((size_t)verbs->job_nranks, 1);

    if (verdicts == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "verbs: no memory for the addresses of %d ranks", verbs->job_nranks);
    for (int i = 0; i < verbs->job_nranks; i++) {
        out_ok[i] = read_blob(blobs + (size_t)i * HKT__TP_BLOB_MAX, bytes[i], &verbs->peers[i]);
        if (!out_ok[i])
            verbs->peers[i].nrails = 0;
    }
    const enum hkt_status rc = hkt__below_reach(verbs->wire, &theirs, deadline_ns, out_ok);

    for (int i = 0; i < verbs->job_nranks && rc == HKT_OK; i++) {
        verdicts[i] = i == verbs->job_rank || (verbs->peers[i].nrails > 0 && reaches(verbs, i, deadline_ns, verdicts));
        out_ok[i] = out_ok[i] && verdicts[i];
    }
    hkt__free(verdicts);
    return rc;
}

static enum hkt_status verbs_chan_open(struct hkt__tp_dom *tp_dom, int peer, int lane, struct hkt__chan **out_tx,
                                       struct hkt__chan **out_rx)
{
    struct hkt__verbs_dom *dom = (struct hkt__verbs_dom *)tp_dom;

    if (peer < 0 || peer >= dom->nranks || lane < 0 || lane >= dom->lanes || !dom->use[peer])
        return hkt__fail_peer(HKT_ERR_BUG, peer, "verbs: no channel to rank %d, lane %d, in a communicator of %d ranks and %d "
                              "lanes, or the pair does not use verbs", peer, lane, dom->nranks, dom->lanes);
    struct hkt__verbs_link **slot = &dom->links[(size_t)peer * (size_t)dom->lanes + (size_t)lane];
    enum hkt_status rc = HKT_OK;

    if (*slot == NULL)
        rc = hkt__verbs_link_create(dom, peer, lane, slot);
    if (rc == HKT_OK)
        rc = hkt__verbs_link_step(*slot);
    if (rc != HKT_OK)
        return rc;
    const bool is_moved = (*slot)->stage == HKT__VERBS_MOVED;

    *out_tx = is_moved ? (*slot)->wire_tx : &(*slot)->tx.chan;
    *out_rx = is_moved ? (*slot)->wire_rx : &(*slot)->rx.chan;
    return HKT_OK;
}

static const struct hkt__tp_ops verbs_ops = {
    .name = "verbs",
    .summary = "InfiniBand and RoCE: RDMA by libibverbs",
    .probe = verbs_probe,
    .describe = verbs_describe,
    .query = verbs_query,
    .open = verbs_open,
    .close = verbs_close,
    .address = verbs_address,
    .reach = verbs_reach,
    .dom_open = hkt__verbs_dom_open,
    .dom_connect = hkt__verbs_dom_connect,
    .dom_close = hkt__verbs_dom_close,
    .chan_open = verbs_chan_open,
    .park = hkt__verbs_park,
    .wake = hkt__verbs_wake,
    .mem_pin = hkt__verbs_mem_pin,
    .mem_unpin = hkt__verbs_mem_unpin,
    .mem_pin_device = hkt__verbs_mem_pin_device,
    .mem_prove = hkt__verbs_mem_prove,
};

const struct hkt__tp_ops *const hkt__module_transport = &verbs_ops;
