/* net: whatever network a plugin made for NCCL (libnccl-net.so) reaches. The operations table and instances; net.h tells the
 * whole story. Used where HOCKET_TRANSPORT names it; HOCKET_NET_PLUGIN says which plugin. */
#include "transport/net.h"

#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/mem.h"
#include "transport/below.h"
#include "transport/tables.h"

/* Where the plugin tells no figures: a small message over sockets between processes of one host, and 10 Gbit/s. */
#define USUAL_LATENCY_NS 15000
#define USUAL_MBITS 10000

/* ---- what is here ---- */

/** The fastest devices that take memory of the host come first; as many as are equally fast. */
static int choose_devices(struct hkt__net_device *devices, int count)
{
    int best = -1, chosen = 0;

    for (int i = 0; i < count; i++)
        if (devices[i].can_host && devices[i].mbits > best)
            best = devices[i].mbits;
    for (int i = 0; i < count; i++)
        if (devices[i].can_host && devices[i].mbits == best)
            devices[chosen++] = devices[i];
    return chosen;
}

/** Load and initialise the plugin, and choose among its devices. */
static enum hkt_status open_plugin(struct hkt__net *net, const char *name)
{
    enum hkt_status rc = hkt__net_plugin_open(name, &net->plugin);
    int count = 0;

    if (rc == HKT_OK)
        rc = hkt__net_plugin_init(net->plugin, &net->context);
    net->has_context = rc == HKT_OK;
    if (rc == HKT_OK)
        rc = hkt__net_plugin_devices(net->plugin, net->devices, &count);
    if (rc < 0)
        return rc;
    net->ndevices = choose_devices(net->devices, count);
    return net->ndevices > 0 ? HKT_OK
                             : hkt__fail(HKT_ERR_UNSUPPORTED, "net: no device of the plugin %s moves memory of the host",
                                         hkt__net_plugin_name(net->plugin));
}

static void close_plugin(struct hkt__net *net)
{
    if (net->has_context)
        hkt__net_plugin_finalize(net->plugin, net->context);
    net->has_context = false;
}

static enum hkt_status net_probe(const struct hkt__settings *settings)
{
    struct hkt__net net = {.plugin = NULL};
    const enum hkt_status rc = open_plugin(&net, settings->net_plugin);

    close_plugin(&net);
    return rc == HKT_OK ? HKT_OK : HKT_ERR_UNSUPPORTED;
}

static bool net_is_wanted(void)
{
    return false;
}

static void print_devices(const struct hkt__net *net, char *out_text, size_t bytes)
{
    int used = snprintf(out_text, bytes, "plugin %s (v%d)", hkt__net_plugin_name(net->plugin),
                        hkt__net_plugin_version(net->plugin));

    for (int i = 0; i < net->ndevices && used > 0 && (size_t)used < bytes; i++) {
        const struct hkt__net_device *device = &net->devices[i];
        char speed[32] = "";

        if (device->mbits > 0)
            snprintf(speed, sizeof speed, " %g Gbit/s", device->mbits / 1e3);
        used += snprintf(out_text + used, bytes - (size_t)used, "%s %s%s", i > 0 ? "," : ":", device->name, speed);
    }
}

static void net_describe(char *out_text, size_t bytes)
{
    const struct hkt__settings *settings;
    struct hkt__net net = {.plugin = NULL};

    out_text[0] = '\0';
    if (hkt__settings_get(&settings) == HKT_OK && open_plugin(&net, settings->net_plugin) == HKT_OK)
        print_devices(&net, out_text, bytes);
    close_plugin(&net);
}

static void net_query(const struct hkt__tp *tp, struct hkt__tp_caps *out_caps)
{
    const struct hkt__net_device *device = tp != NULL ? &((const struct hkt__net *)tp)->devices[0] : NULL;
    const double mbits = device != NULL && device->mbits > 0 ? device->mbits : USUAL_MBITS;
    const double latency_us = device != NULL ? device->latency_us : 0;

    *out_caps = (struct hkt__tp_caps){.latency_ns = USUAL_LATENCY_NS + 1e3 * latency_us, .ns_per_byte = 8e3 / mbits};
}

/* ---- instance ---- */

static void net_close(struct hkt__tp *tp)
{
    struct hkt__net *net = (struct hkt__net *)tp;

    if (net == NULL)
        return;
    if (net->wire != NULL)
        net->wire->ops->close(net->wire);
    close_plugin(net);
    hkt__free(net->peers);
    hkt__free(net);
}

static enum hkt_status net_open(const struct hkt__tp_params *params, struct hkt__tp **out_tp)
{
    struct hkt__net *net = hkt__calloc(1, sizeof *net);
    char text[512];

    if (net == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "net: no memory for the transport");
    net->tp.ops = hkt__transport_find("net");
    net->job_rank = params->job_rank;
    net->job_nranks = params->job_nranks;
    net->abort_word = params->abort_word;
    net->peers = hkt__calloc((size_t)params->job_nranks, sizeof *net->peers);
    enum hkt_status rc = net->peers != NULL ? HKT_OK : hkt__fail(HKT_ERR_NOMEM, "net: no memory for %d ranks", params->job_nranks);

    if (rc == HKT_OK)
        rc = open_plugin(net, params->settings->net_plugin);
    if (rc == HKT_OK)
        rc = hkt__below_open_tcp(params, &net->wire_settings, &net->wire);
    if (rc == HKT_OK)
        rc = hkt__transport_allowed(params->settings->transport, "tcp", &net->may_use_tcp);
    if (rc < 0) {
        net_close(&net->tp);
        return rc;
    }
    print_devices(net, text, sizeof text);
    hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_INFO, "net uses the %s", text);
    *out_tp = &net->tp;
    return HKT_OK;
}

static enum hkt_status net_address(struct hkt__tp *tp, void *out_blob, size_t *out_bytes)
{
    const struct hkt__net *net = (const struct hkt__net *)tp;
    struct hkt__net_blob blob = {.magic = HKT__NET_MAGIC, .version = HKT__NET_WIRE_VERSION, .may_use_tcp = net->may_use_tcp,
                                 .ndevices = (uint8_t)net->ndevices};

    snprintf(blob.plugin, sizeof blob.plugin, "%s", hkt__net_plugin_name(net->plugin));
    return hkt__below_address(net->wire, &blob, sizeof blob, out_blob, out_bytes);
}

/* ---- who is within reach ---- */

static bool read_blob(const unsigned char *bytes, size_t size, struct hkt__net_blob *out_blob)
{
    if (size < sizeof *out_blob)
        return false;
    memcpy(out_blob, bytes, sizeof *out_blob);
    out_blob->plugin[sizeof out_blob->plugin - 1] = '\0';
    return out_blob->magic == HKT__NET_MAGIC && out_blob->version == HKT__NET_WIRE_VERSION;
}

/** Whoever has the same plugin is taken to be reachable: the plugin finds out when a link opens. */
static bool is_alike(const struct hkt__net *net, int rank)
{
    const char *own = hkt__net_plugin_name(net->plugin), *theirs = net->peers[rank].plugin;

    if (strcmp(own, theirs) == 0)
        return true;
    hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "net: job rank %d has the plugin %s, this one %s: they cannot talk", rank, theirs,
             own);
    return false;
}

static enum hkt_status net_reach(struct hkt__tp *tp, const unsigned char *blobs, const size_t *bytes, int64_t deadline_ns,
                                 unsigned char *out_ok)
{
    struct hkt__net *net = (struct hkt__net *)tp;
    const struct hkt__headed_blobs theirs = {blobs, bytes, net->job_nranks, sizeof(struct hkt__net_blob)};

    for (int i = 0; i < net->job_nranks; i++)
        out_ok[i] = read_blob(blobs + (size_t)i * HKT__TP_BLOB_MAX, bytes[i], &net->peers[i]);
    const enum hkt_status rc = hkt__below_reach(net->wire, &theirs, deadline_ns, out_ok);

    for (int i = 0; i < net->job_nranks && rc == HKT_OK; i++)
        out_ok[i] = i == net->job_rank || (out_ok[i] && is_alike(net, i));
    return rc;
}

static enum hkt_status net_chan_open(struct hkt__tp_dom *tp_dom, int peer, int lane, struct hkt__chan **out_tx,
                                     struct hkt__chan **out_rx)
{
    struct hkt__net_dom *dom = (struct hkt__net_dom *)tp_dom;

    if (peer < 0 || peer >= dom->nranks || lane < 0 || lane >= dom->lanes || !dom->use[peer])
        return hkt__fail_peer(HKT_ERR_BUG, peer, "net: no channel to rank %d, lane %d, in a communicator of %d ranks and %d "
                              "lanes, or the pair does not use net", peer, lane, dom->nranks, dom->lanes);
    struct hkt__net_link **link = &dom->links[(size_t)peer * (size_t)dom->lanes + (size_t)lane];
    enum hkt_status rc = HKT_OK;

    pthread_mutex_lock(&dom->lock);
    if (*link == NULL)
        rc = hkt__net_link_create(dom, peer, lane, link);
    if (rc == HKT_OK)
        rc = hkt__net_link_step(*link);
    pthread_mutex_unlock(&dom->lock);
    if (rc != HKT_OK)
        return rc;
    const bool is_moved = (*link)->stage == HKT__NET_MOVED;

    *out_tx = is_moved ? (*link)->wire_tx : &(*link)->tx.chan;
    *out_rx = is_moved ? (*link)->wire_rx : &(*link)->rx.chan;
    return HKT_OK;
}

const struct hkt__tp_ops hkt__tp_net = {
    .name = "net",
    .summary = "networks that have a plugin for NCCL (libnccl-net.so); used where HOCKET_TRANSPORT names it",
    .probe = net_probe,
    .is_wanted = net_is_wanted,
    .describe = net_describe,
    .query = net_query,
    .open = net_open,
    .close = net_close,
    .address = net_address,
    .reach = net_reach,
    .dom_open = hkt__net_dom_open,
    .dom_connect = hkt__net_dom_connect,
    .dom_close = hkt__net_dom_close,
    .chan_open = net_chan_open,
    .park = hkt__net_park,
    .wake = hkt__net_wake,
};
