/* net: frames over a link. Messages of a connection end in the order in which they were started, so each side looks at its
 * oldest one alone, as NCCL does. */
#include <assert.h>
#include <string.h>

#include "transport/net.h"

#define LOOK_AT_WIRE 64 /* fruitless looks between looks at what the peer says over tcp: a system call */

void hkt__net_chan_init(struct hkt__net_link *link)
{
    const struct hkt__chan chan = {.ops = &hkt__net_chan_ops, .frame_bytes_max = link->frame_bytes, .peer = link->peer};

    link->tx.chan = link->rx.chan = chan;
    link->tx.link = link->rx.link = link;
    link->tx.seq = link->rx.seq = 1;
}

/** The message of frame seq in a ring. */
static struct hkt__net_span span_of(const struct hkt__net_link *link, unsigned char *memory, uint32_t seq, uint32_t payload)
{
    return (struct hkt__net_span){.data = memory + seq % HKT__NET_SLOTS * hkt__net_stride(link) + HKT__NET_HEADER_AT,
                                  .bytes = sizeof(struct hkt__frame_header) + payload};
}

/* ---- sending; under the lock ---- */

bool hkt__net_chan_push(struct hkt__net_link *link)
{
    struct hkt__net_tx *tx = &link->tx;
    struct hkt__net_plugin *plugin = link->site.plugin;
    const uint32_t posted = tx->posted, done = tx->done;
    enum hkt_status rc = link->failed;

    while (rc == HKT_OK && tx->posted != tx->seq - 1) {
        const uint32_t next = tx->posted + 1;
        struct hkt__net_span span = span_of(link, tx->memory, next, tx->bytes[next % HKT__NET_SLOTS]);

        span.region = tx->region;
        rc = hkt__net_plugin_isend(plugin, link->sender, &span, &tx->requests[next % HKT__NET_SLOTS]);
        tx->posted += rc == HKT_OK;
    }
    while (rc >= 0 && tx->done != tx->posted) {
        size_t bytes;

        rc = hkt__net_plugin_test(plugin, tx->requests[(tx->done + 1) % HKT__NET_SLOTS], &bytes);
        if (rc != HKT_OK)
            break;
        tx->done++;
        link->dom->flying--;
    }
    if (rc < 0 && link->failed == HKT_OK)
        hkt__net_link_fail(link, rc);
    return tx->posted != posted || tx->done != done;
}

static bool has_room(const struct hkt__net_tx *tx)
{
    return tx->seq - 1 - tx->done < HKT__NET_SLOTS;
}

static enum hkt_status begin(struct hkt__net_tx *tx)
{
    struct hkt__net_link *link = tx->link;

    link->dom->calls++;
    if (link->dom->flying > 0)
        (void)hkt__net_push(link->dom);
    if (!has_room(tx) && ++link->rx.vain % LOOK_AT_WIRE == 0)
        hkt__net_link_listen(link);
    if (link->failed != HKT_OK || (link->is_leaving && !has_room(tx)))
        return hkt__net_link_failed(link);
    return has_room(tx) ? HKT_OK : HKT_AGAIN;
}

static enum hkt_status tx_begin(struct hkt__chan *chan, size_t bytes, struct hkt__room *out_room)
{
    struct hkt__net_tx *tx = (struct hkt__net_tx *)chan;

    pthread_mutex_lock(&tx->link->dom->lock);
    const enum hkt_status rc = begin(tx);

    pthread_mutex_unlock(&tx->link->dom->lock);
    if (rc != HKT_OK)
        return rc;
    out_room->data = tx->memory + tx->seq % HKT__NET_SLOTS * hkt__net_stride(tx->link) + HKT__NET_HEAD;
    out_room->bytes = bytes < chan->frame_bytes_max ? bytes : chan->frame_bytes_max;
    return HKT_OK;
}

static enum hkt_status tx_end(struct hkt__chan *chan, size_t bytes, const struct hkt__stamp *stamp)
{
    struct hkt__net_tx *tx = (struct hkt__net_tx *)chan;
    struct hkt__net_link *link = tx->link;
    const struct hkt__frame_header header = {.seq = tx->seq, .bytes = (uint32_t)bytes, .stamp = *stamp};

    memcpy(span_of(link, tx->memory, tx->seq, 0).data, &header, sizeof header);
    pthread_mutex_lock(&link->dom->lock);
    assert(has_room(tx) && bytes <= chan->frame_bytes_max); /* room only grows until it is used */
    if (link->failed == HKT_OK) {
        tx->bytes[tx->seq % HKT__NET_SLOTS] = (uint32_t)bytes;
        tx->seq++;
        hkt__net_took_off(link->dom);
        (void)hkt__net_chan_push(link);
    }
    const enum hkt_status rc = link->failed == HKT_OK ? HKT_OK : hkt__net_link_failed(link);

    pthread_mutex_unlock(&link->dom->lock);
    return rc;
}

/* ---- receiving; under the lock ---- */

bool hkt__net_chan_pull(struct hkt__net_link *link)
{
    struct hkt__net_rx *rx = &link->rx;
    struct hkt__net_plugin *plugin = link->site.plugin;
    const uint32_t ready = rx->ready;
    enum hkt_status rc = link->failed;

    while (rc == HKT_OK && rx->posted - (rx->seq - 1) < HKT__NET_SLOTS) {
        const uint32_t next = rx->posted + 1;
        struct hkt__net_span span = span_of(link, rx->memory, next, (uint32_t)link->frame_bytes);

        span.region = rx->region;
        rc = hkt__net_plugin_irecv(plugin, link->receiver, &span, &rx->requests[next % HKT__NET_SLOTS]);
        rx->posted += rc == HKT_OK;
    }
    while (rc >= 0 && rx->ready != rx->posted) {
        const uint32_t next = rx->ready + 1;
        size_t bytes = 0;

        rc = hkt__net_plugin_test(plugin, rx->requests[next % HKT__NET_SLOTS], &bytes);
        if (rc != HKT_OK)
            break;
        rx->bytes[next % HKT__NET_SLOTS] = (uint32_t)bytes;
        rx->ready = next;
    }
    if (rc < 0 && link->failed == HKT_OK)
        hkt__net_link_fail(link, rc);
    return rx->ready != ready;
}

static bool is_here(const struct hkt__net_rx *rx)
{
    return (int32_t)(rx->ready - rx->seq) >= 0;
}

static enum hkt_status view_oldest(const struct hkt__net_rx *rx, struct hkt__view *out_view)
{
    const struct hkt__net_link *link = rx->link;
    const uint32_t bytes = rx->bytes[rx->seq % HKT__NET_SLOTS];
    const unsigned char *slot = rx->memory + rx->seq % HKT__NET_SLOTS * hkt__net_stride(link);
    struct hkt__frame_header header;

    memcpy(&header, slot + HKT__NET_HEADER_AT, sizeof header);
    if (bytes < sizeof header || header.seq != rx->seq || header.bytes != bytes - sizeof header ||
        header.bytes > link->frame_bytes)
        return hkt__fail_peer(HKT_ERR_CORRUPT, link->peer, "net: bad frame from rank %d: a message of %u bytes where frame %u "
                              "was due", link->peer, bytes, rx->seq);
    *out_view = (struct hkt__view){slot + HKT__NET_HEAD, header.bytes, header.stamp};
    return HKT_OK;
}

static enum hkt_status oldest(struct hkt__net_rx *rx, struct hkt__view *out_view)
{
    struct hkt__net_link *link = rx->link;

    link->dom->calls++;
    if (!is_here(rx)) {
        (void)hkt__net_chan_pull(link);
        if (link->dom->flying > 0)
            (void)hkt__net_push(link->dom);
    }
    if (!is_here(rx) && ++rx->vain % LOOK_AT_WIRE == 0) {
        hkt__net_link_listen(link);
        (void)hkt__net_chan_pull(link); /* what came before the end is here by now, or lost with it */
    }
    if (is_here(rx))
        return view_oldest(rx, out_view);
    if (link->failed != HKT_OK || (link->is_leaving && (int32_t)(link->frames_last - rx->seq) < 0))
        return hkt__net_link_failed(link);
    return HKT_AGAIN;
}

static enum hkt_status rx_begin(struct hkt__chan *chan, struct hkt__view *out_view)
{
    struct hkt__net_rx *rx = (struct hkt__net_rx *)chan;

    pthread_mutex_lock(&rx->link->dom->lock);
    const enum hkt_status rc = oldest(rx, out_view);

    pthread_mutex_unlock(&rx->link->dom->lock);
    return rc;
}

static void rx_end(struct hkt__chan *chan)
{
    struct hkt__net_rx *rx = (struct hkt__net_rx *)chan;

    pthread_mutex_lock(&rx->link->dom->lock);
    assert(is_here(rx));
    rx->seq++;
    rx->vain = 0;
    (void)hkt__net_chan_pull(rx->link); /* its slot may receive again */
    pthread_mutex_unlock(&rx->link->dom->lock);
}

const struct hkt__chan_ops hkt__net_chan_ops = {.tx_begin = tx_begin, .tx_end = tx_end, .rx_begin = rx_begin, .rx_end = rx_end};
