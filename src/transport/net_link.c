/* net: a link, and the way to open it.
 *
 *   WIRE        the tcp channel opens, which proves the ends to each other; this end listens
 *   HELLO       handles are exchanged
 *   CONNECTING  one end connects and the other accepts, both ways; memory is registered, receives are posted
 *   VERDICT     each end tells whether its plugin did all of that
 *   OPEN        or MOVED, where it did not and tcp may be used: then the tcp channels are the link's
 *
 * An end whose plugin fails says so at once, and hears from the other, which may still be waiting for it. */
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "core/mem.h"
#include "transport/below.h"
#include "transport/net.h"

/* ---- failing ---- */

void hkt__net_link_fail(struct hkt__net_link *link, enum hkt_status status)
{
    if (link->failed != HKT_OK)
        return;
    link->failed = status;
    snprintf(link->why, sizeof link->why, "%s", hkt_last_error());
    link->dom->flying -= (int)(link->tx.seq - 1 - link->tx.done);
    link->tx.done = link->tx.seq - 1; /* nothing of it will be sent */
}

enum hkt_status hkt__net_link_failed(const struct hkt__net_link *link)
{
    if (link->failed == HKT_OK || link->is_leaving)
        return hkt__fail_peer(HKT_ERR_PEER_LOST, link->peer, "net: rank %d is gone: it left the communicator", link->peer);
    return hkt__fail_peer(link->failed, link->peer, "net: the link to rank %d failed: %s", link->peer, link->why);
}

/* ---- messages over tcp ---- */

static enum hkt_status mail_send(struct hkt__net_link *link)
{
    return hkt__mail_send(link->wire_tx, &link->out.message, sizeof link->out.message, &link->out.done);
}

static enum hkt_status check_message(const struct hkt__net_link *link, enum hkt__net_stage kind)
{
    const struct hkt__net_message *message = &link->in.message;

    if (message->magic == HKT__NET_MAGIC && message->version == HKT__NET_WIRE_VERSION && message->kind == kind)
        return HKT_OK;
    return hkt__fail_peer(HKT_ERR_CORRUPT, link->peer, "net: rank %d sent something else than was due when a link opened or "
                          "closed: run the same version of hocket on all ranks", link->peer);
}

static enum hkt_status mail_receive(struct hkt__net_link *link, enum hkt__net_stage kind)
{
    const enum hkt_status rc = hkt__mail_receive(link->wire_rx, &link->in.message, sizeof link->in.message, &link->in.done);

    return rc == HKT_OK ? check_message(link, kind) : rc;
}

/** The next message to the peer. */
static struct hkt__net_message *write_mail(struct hkt__net_link *link, enum hkt__net_stage kind)
{
    link->out = (struct hkt__net_mail){.message = {.magic = HKT__NET_MAGIC, .version = HKT__NET_WIRE_VERSION,
                                                   .kind = (uint16_t)kind, .is_well = link->is_well}};
    snprintf(link->out.message.why, sizeof link->out.message.why, "%s", link->why);
    return &link->out.message;
}

/* ---- life ---- */

/** Device numbers by what both ends know alike, so that a pair meets on devices of one rail where hosts are alike. */
static int choose_device(const struct hkt__net_dom *dom, int peer, int lane)
{
    const int64_t sum = (int64_t)dom->job_ranks[dom->rank] + dom->job_ranks[peer] + lane;

    return (int)(sum % dom->net->ndevices);
}

static size_t frame_bytes_of(const struct hkt__net_device *device)
{
    const size_t head = sizeof(struct hkt__frame_header), max = device->message_bytes_max;

    if (max == 0 || max >= HKT__NET_FRAME_BYTES + head)
        return HKT__NET_FRAME_BYTES;
    return max >= 2 * (head + HKT__ROOM_MIN) ? (max - head) / HKT__ROOM_MIN * HKT__ROOM_MIN : 0;
}

enum hkt_status hkt__net_link_create(struct hkt__net_dom *dom, int peer, int lane, struct hkt__net_link **out_link)
{
    const struct hkt__net_device *device = &dom->net->devices[choose_device(dom, peer, lane)];
    struct hkt__net_link *link = hkt__calloc(1, sizeof *link);

    if (link == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "net: no memory for a link to rank %d", peer);
    link->dom = dom;
    link->peer = peer;
    link->lane = lane;
    link->site = (struct hkt__net_site){dom->net->plugin, dom->net->context, device->index};
    link->frame_bytes = frame_bytes_of(device);
    link->is_well = link->is_peer_well = true;
    dom->wire_users++;
    *out_link = link;
    return HKT_OK;
}

/** The interface has no call that gives up a connection half made, of which plugins keep a descriptor in the handle: so make
 *  it whole, where a few more calls do, for release to close. Where they do not, the descriptor stays with the plugin. */
static void finish_connect(struct hkt__net_link *link)
{
    const struct hkt__error kept = *hkt__error_here();
    enum hkt_status rc = HKT_AGAIN;

    for (int i = 0; i < 16 && rc == HKT_AGAIN; i++)
        rc = hkt__net_plugin_connect(&link->site, link->handle, &link->sender);
    link->is_connecting = false;
    *hkt__error_here() = kept;
}

/** Give back what the plugin has of a link, and its memory. */
static void release(struct hkt__net_link *link)
{
    struct hkt__net_plugin *plugin = link->site.plugin;

    if (link->is_connecting)
        finish_connect(link);
    if (link->tx.has_region)
        hkt__net_plugin_dereg(plugin, link->sender, link->tx.region);
    if (link->rx.has_region)
        hkt__net_plugin_dereg(plugin, link->receiver, link->rx.region);
    hkt__net_plugin_close(plugin, HKT__NET_SENDER, link->sender);
    hkt__net_plugin_close(plugin, HKT__NET_RECEIVER, link->receiver);
    hkt__net_plugin_close(plugin, HKT__NET_LISTENER, link->listener);
    if (link->tx.memory != NULL)
        hkt__pages_free(link->tx.memory, HKT__NET_SLOTS * hkt__net_stride(link));
    if (link->rx.memory != NULL)
        hkt__pages_free(link->rx.memory, HKT__NET_SLOTS * hkt__net_stride(link));
    link->tx.has_region = link->rx.has_region = false;
    link->sender = link->receiver = link->listener = NULL;
    link->tx.memory = link->rx.memory = NULL;
}

void hkt__net_link_destroy(struct hkt__net_link *link)
{
    if (link == NULL)
        return;
    release(link);
    hkt__free(link);
}

/* ---- opening ---- */

/** The plugin failed here, as this thread's error says: the peer will hear. */
static void give_up(struct hkt__net_link *link)
{
    link->is_well = false;
    snprintf(link->why, sizeof link->why, "%s", hkt_last_error());
}

static enum hkt_status open_wire(struct hkt__net_link *link)
{
    const enum hkt_status rc =
        link->dom->wire->ops->chan_open(link->dom->wire, link->peer, link->lane, &link->wire_tx, &link->wire_rx);
    unsigned char handle[HKT__NET_HANDLE_BYTES] = {0};

    if (rc != HKT_OK)
        return rc;
    if (link->frame_bytes == 0) {
        (void)hkt__fail(HKT_ERR_UNSUPPORTED, "net: device %d of the plugin takes messages of a few bytes alone",
                        link->site.device);
        give_up(link);
    } else if (hkt__net_plugin_listen(&link->site, handle, &link->listener) < 0) {
        give_up(link);
    }
    struct hkt__net_message *hello = write_mail(link, HKT__NET_HELLO);

    hello->number = (uint32_t)link->frame_bytes;
    memcpy(hello->handle, handle, sizeof hello->handle);
    return HKT_OK;
}

/** The peer said whether its plugin is well. */
static void take_state(struct hkt__net_link *link)
{
    struct hkt__net_message *message = &link->in.message;

    link->is_peer_well = message->is_well != 0;
    message->why[sizeof message->why - 1] = '\0';
    if (link->is_peer_well || !link->is_well)
        return;
    (void)hkt__fail(HKT_ERR_PEER_LOST, "rank %d says: %s", link->peer, message->why);
    give_up(link);
}

static enum hkt_status take_hello(struct hkt__net_link *link)
{
    const struct hkt__net_message *hello = &link->in.message;

    take_state(link);
    if (hello->number < link->frame_bytes)
        link->frame_bytes = hello->number;
    memcpy(link->handle, hello->handle, sizeof link->handle);
    link->in.done = 0;
    if (!link->is_well)
        return HKT_OK;
    link->tx.memory = hkt__pages_alloc(HKT__NET_SLOTS * hkt__net_stride(link));
    link->rx.memory = hkt__pages_alloc(HKT__NET_SLOTS * hkt__net_stride(link));
    if (link->tx.memory == NULL || link->rx.memory == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "net: no memory for a link to rank %d", link->peer);
    hkt__net_chan_init(link);
    return HKT_OK;
}

static enum hkt_status connect_both(struct hkt__net_link *link)
{
    enum hkt_status rc = HKT_OK;
    bool is_waiting = false;

    if (link->sender == NULL) {
        rc = hkt__net_plugin_connect(&link->site, link->handle, &link->sender);
        link->is_connecting = rc == HKT_AGAIN;
        is_waiting |= link->is_connecting;
    }
    if (rc >= 0 && link->receiver == NULL) {
        rc = hkt__net_plugin_accept(link->site.plugin, link->listener, &link->receiver);
        is_waiting |= rc == HKT_AGAIN;
    }
    return rc < 0 ? rc : is_waiting ? HKT_IN_PROGRESS : HKT_OK;
}

static enum hkt_status register_both(struct hkt__net_link *link)
{
    const size_t bytes = HKT__NET_SLOTS * hkt__net_stride(link);
    struct hkt__net_plugin *plugin = link->site.plugin;
    enum hkt_status rc = hkt__net_plugin_reg(plugin, link->sender, link->tx.memory, bytes, &link->tx.region);

    link->tx.has_region = rc == HKT_OK;
    if (rc == HKT_OK) {
        rc = hkt__net_plugin_reg(plugin, link->receiver, link->rx.memory, bytes, &link->rx.region);
        link->rx.has_region = rc == HKT_OK;
    }
    return rc;
}

/** Both connections, or the news that the peer will not have them. The peer's verdict may come first. */
static enum hkt_status connect_step(struct hkt__net_link *link)
{
    enum hkt_status rc = HKT_OK;

    if (link->is_well && link->is_peer_well && link->in.done < sizeof link->in.message) {
        rc = mail_receive(link, HKT__NET_VERDICT);
        if (rc < 0)
            return rc;
        if (rc == HKT_OK)
            take_state(link);
    }
    if (link->is_well) {
        rc = connect_both(link);
        if (rc == HKT_IN_PROGRESS)
            return rc;
        if (rc == HKT_OK)
            rc = register_both(link);
        if (rc < 0)
            give_up(link);
    }
    if (link->is_well) {
        hkt__net_plugin_close(link->site.plugin, HKT__NET_LISTENER, link->listener);
        link->listener = NULL;
        (void)hkt__net_chan_pull(link);
    }
    (void)write_mail(link, HKT__NET_VERDICT);
    return HKT_OK;
}

/** Both verdicts are known. */
static enum hkt_status conclude(struct hkt__net_link *link)
{
    const struct hkt__net *net = link->dom->net;

    take_state(link);
    link->in.done = 0;
    if (link->is_well) {
        hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_DEBUG, "net: rank %d, lane %d: device %d of the plugin %s (v%d), %d slots of %zu "
                 "bytes", link->peer, link->lane, link->site.device, hkt__net_plugin_name(net->plugin),
                 hkt__net_plugin_version(net->plugin), HKT__NET_SLOTS, link->frame_bytes);
        link->dom->wire_users--;
        link->stage = HKT__NET_OPEN;
        return HKT_OK;
    }
    release(link);
    if (net->may_use_tcp && net->peers[link->dom->job_ranks[link->peer]].may_use_tcp) {
        hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "net: lane %d to rank %d goes over tcp instead: %s", link->lane, link->peer,
                 link->why);
        link->stage = HKT__NET_MOVED;
        return HKT_OK;
    }
    link->failed = HKT_ERR_PEER_LOST;
    return hkt__net_link_failed(link);
}

/** Both directions of the current message. */
static enum hkt_status exchange(struct hkt__net_link *link, enum hkt__net_stage kind)
{
    enum hkt_status rc = mail_send(link);

    if (rc == HKT_OK)
        rc = mail_receive(link, kind);
    return rc == HKT_AGAIN ? HKT_IN_PROGRESS : rc;
}

/** Do what the stage asks for. OK: go on with the next stage; IN_PROGRESS: wait. */
static enum hkt_status advance(struct hkt__net_link *link)
{
    enum hkt_status rc = HKT_OK;

    switch (link->stage) {
    case HKT__NET_WIRE:
        rc = open_wire(link);
        break;
    case HKT__NET_HELLO:
        rc = exchange(link, HKT__NET_HELLO);
        if (rc == HKT_OK)
            rc = take_hello(link);
        break;
    case HKT__NET_CONNECTING:
        rc = connect_step(link);
        break;
    case HKT__NET_VERDICT:
        rc = exchange(link, HKT__NET_VERDICT);
        return rc == HKT_OK ? conclude(link) : rc;
    case HKT__NET_OPEN:
    case HKT__NET_MOVED:
        return HKT_OK;
    }
    if (rc == HKT_OK)
        link->stage++;
    return rc;
}

enum hkt_status hkt__net_link_step(struct hkt__net_link *link)
{
    while (link->failed == HKT_OK && link->stage != HKT__NET_OPEN && link->stage != HKT__NET_MOVED) {
        const enum hkt_status rc = advance(link);

        if (rc == HKT_IN_PROGRESS)
            return rc;
        if (rc < 0) {
            hkt__net_link_fail(link, rc);
            return rc;
        }
    }
    /* What became of an open link later is for its channels to tell: others may still be opening. */
    return link->stage == HKT__NET_OPEN || link->failed == HKT_OK ? HKT_OK : hkt__net_link_failed(link);
}

/* ---- when open ---- */

void hkt__net_link_listen(struct hkt__net_link *link)
{
    enum hkt_status rc;

    if (link->stage != HKT__NET_OPEN || link->is_leaving)
        return;
    rc = mail_receive(link, HKT__NET_MOVED);
    if (rc == HKT_OK) {
        link->is_leaving = true;
        link->frames_last = link->in.message.number;
    } else if (rc < 0) {
        (void)hkt__net_chan_pull(link); /* take what is here before the link counts as failed */
        hkt__net_link_fail(link, rc);
    }
}

void hkt__net_link_say_bye(struct hkt__net_link *link)
{
    if (link->stage != HKT__NET_OPEN)
        return;
    write_mail(link, HKT__NET_MOVED)->number = link->tx.seq - 1;
    (void)mail_send(link); /* a peer that does not hear it sees the channel end */
}
