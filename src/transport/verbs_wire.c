/* Messages over a channel of tcp, which may take and give them in pieces. */
#include <assert.h>
#include <string.h>

#include "transport/verbs.h"

enum hkt_status hkt__verbs_message_send(struct hkt__chan *chan, struct hkt__verbs_message *message)
{
    static const struct hkt__stamp stamp = {.root = -1};

    while (message->done < message->bytes) {
        const size_t left = message->bytes - message->done;
        struct hkt__room room;
        enum hkt_status rc = chan->ops->tx_begin(chan, left, &room);

        if (rc != HKT_OK)
            return rc;
        const size_t bytes = room.bytes < left ? room.bytes : left;

        memcpy(room.data, message->data + message->done, bytes);
        rc = chan->ops->tx_end(chan, bytes, &stamp);
        if (rc != HKT_OK)
            return rc;
        message->done += bytes;
    }
    return HKT_OK;
}

enum hkt_status hkt__verbs_message_receive(struct hkt__chan *chan, struct hkt__verbs_message *message)
{
    while (message->done < message->bytes) {
        struct hkt__view view;
        const enum hkt_status rc = chan->ops->rx_begin(chan, &view);

        if (rc != HKT_OK)
            return rc;
        if (view.bytes > message->bytes - message->done)
            return hkt__fail_peer(HKT_ERR_CORRUPT, chan->peer, "verbs: rank %d sent %zu bytes where %zu were left of a message "
                                  "that opens a link: run the same version of hocket on all ranks", chan->peer, view.bytes,
                                  message->bytes - message->done);
        memcpy(message->data + message->done, view.data, view.bytes);
        message->done += view.bytes;
        chan->ops->rx_end(chan);
    }
    return HKT_OK;
}
