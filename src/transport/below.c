/* Heads in front of the blobs of the transport below, and messages over its channels. */
#include "transport/below.h"

#include <string.h>

#include "core/error.h"
#include "core/mem.h"

#define TCP_FRAME_BYTES 65536

/* ---- blobs ---- */

enum hkt_status hkt__below_address(struct hkt__tp *below, const void *head, size_t head_bytes, void *out_blob,
                                   size_t *out_bytes)
{
    unsigned char address[HKT__TP_BLOB_MAX];
    size_t bytes = 0;
    const enum hkt_status rc = below->ops->address(below, address, &bytes);

    if (rc < 0)
        return rc;
    if (head_bytes + bytes > HKT__TP_BLOB_MAX)
        return hkt__fail(HKT_ERR_BUG, "an address of %zu bytes behind a head of %zu", bytes, head_bytes);
    memcpy(out_blob, head, head_bytes);
    memcpy((unsigned char *)out_blob + head_bytes, address, bytes);
    *out_bytes = head_bytes + bytes;
    return HKT_OK;
}

/** What is behind the heads. */
struct tails {
    unsigned char *blobs;
    size_t *bytes;
};

static void free_tails(struct tails *tails)
{
    hkt__free(tails->blobs);
    hkt__free(tails->bytes);
}

/** ok[rank] 0: nothing of that rank; NULL: of all. Released by free_tails, after a failure too. */
static enum hkt_status cut_heads(const struct hkt__headed_blobs *theirs, const unsigned char *ok, struct tails *out_tails)
{
    const size_t nranks = (size_t)theirs->nranks;

    out_tails->blobs = hkt__calloc(nranks, HKT__TP_BLOB_MAX);
    out_tails->bytes = hkt__calloc(nranks, sizeof *out_tails->bytes);
    if (out_tails->blobs == NULL || out_tails->bytes == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the addresses of %zu ranks", nranks);
    for (size_t i = 0; i < nranks; i++) {
        const size_t at = i * HKT__TP_BLOB_MAX;

        if ((ok != NULL && !ok[i]) || theirs->bytes[i] <= theirs->head_bytes || theirs->bytes[i] > HKT__TP_BLOB_MAX)
            continue;
        out_tails->bytes[i] = theirs->bytes[i] - theirs->head_bytes;
        memcpy(out_tails->blobs + at, theirs->blobs + at + theirs->head_bytes, out_tails->bytes[i]);
    }
    return HKT_OK;
}

enum hkt_status hkt__below_reach(struct hkt__tp *below, const struct hkt__headed_blobs *theirs, int64_t deadline_ns,
                                 unsigned char *io_ok)
{
    struct tails tails;
    enum hkt_status rc = cut_heads(theirs, io_ok, &tails);

    if (rc == HKT_OK)
        rc = below->ops->reach(below, tails.blobs, tails.bytes, deadline_ns, io_ok);
    free_tails(&tails);
    return rc;
}

enum hkt_status hkt__below_connect(struct hkt__tp_dom *below, const struct hkt__headed_blobs *theirs, const unsigned char *use)
{
    struct tails tails;
    enum hkt_status rc = cut_heads(theirs, NULL, &tails);

    if (rc == HKT_OK)
        rc = below->ops->dom_connect(below, tails.blobs, tails.bytes, use);
    free_tails(&tails);
    return rc;
}

/* ---- tcp ---- */

enum hkt_status hkt__below_open_tcp(const struct hkt__tp_params *params, struct hkt__settings *out_settings,
                                    struct hkt__tp **out_tp)
{
    struct hkt__tp_params own = *params;

    *out_settings = *params->settings;
    out_settings->tcp_sockets = 1;
    if (out_settings->tcp_frame_bytes < TCP_FRAME_BYTES)
        out_settings->tcp_frame_bytes = TCP_FRAME_BYTES;
    own.settings = out_settings;
    return hkt__transport_find("tcp")->open(&own, out_tp);
}

/* ---- messages ---- */

enum hkt_status hkt__mail_send(struct hkt__chan *chan, const void *message, size_t bytes, size_t *io_done)
{
    static const struct hkt__stamp stamp = {.root = -1};

    while (*io_done < bytes) {
        const size_t left = bytes - *io_done;
        struct hkt__room room;
        enum hkt_status rc = chan->ops->tx_begin(chan, left, &room);

        if (rc != HKT_OK)
            return rc;
        const size_t piece = room.bytes < left ? room.bytes : left;

        memcpy(room.data, (const unsigned char *)message + *io_done, piece);
        rc = chan->ops->tx_end(chan, piece, &stamp);
        if (rc != HKT_OK)
            return rc;
        *io_done += piece;
    }
    return HKT_OK;
}

enum hkt_status hkt__mail_receive(struct hkt__chan *chan, void *out_message, size_t bytes, size_t *io_done)
{
    while (*io_done < bytes) {
        const size_t left = bytes - *io_done;
        struct hkt__view view;
        const enum hkt_status rc = chan->ops->rx_begin(chan, &view);

        if (rc != HKT_OK)
            return rc;
        if (view.bytes > left)
            return hkt__fail_peer(HKT_ERR_CORRUPT, chan->peer, "rank %d sent %zu bytes where %zu were left of a message that "
                                  "opens or closes a link: run the same version of hocket on all ranks", chan->peer,
                                  view.bytes, left);
        memcpy((unsigned char *)out_message + *io_done, view.data, view.bytes);
        *io_done += view.bytes;
        chan->ops->rx_end(chan);
    }
    return HKT_OK;
}
