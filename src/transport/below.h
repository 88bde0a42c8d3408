/* A transport that stands on another: net and verbs open their links by messages over tcp, cuda_p2p sends by shm what its
 * devices do not. Its instance holds one of the transport below. What it tells its peers, of the instance or of a domain, is
 * a head of its own, and behind it what the one below tells its own. Compiled into the modules that use it, too. */
#ifndef HOCKET_TRANSPORT_BELOW_H
#define HOCKET_TRANSPORT_BELOW_H

#include <stddef.h>
#include <stdint.h>

#include "core/settings.h"
#include "transport/transport.h"

/** What all ranks told, each a head and what is behind it; as hkt__tp_ops.reach has it. */
struct hkt__headed_blobs {
    const unsigned char *blobs;
    const size_t *bytes;
    int nranks;
    size_t head_bytes;
};

/** hkt__tp_ops.address: the head, and the address of the transport below. */
HKT_NODISCARD enum hkt_status hkt__below_address(struct hkt__tp *below, const void *head, size_t head_bytes, void *out_blob,
                                                 size_t *out_bytes);

/** Whom the transport below reaches of those whose head is one: io_ok says so before, and the answer after the call. */
HKT_NODISCARD enum hkt_status hkt__below_reach(struct hkt__tp *below, const struct hkt__headed_blobs *theirs,
                                               int64_t deadline_ns, unsigned char *io_ok);

/** hkt__tp_ops.dom_connect of the domain below. */
HKT_NODISCARD enum hkt_status hkt__below_connect(struct hkt__tp_dom *below, const struct hkt__headed_blobs *theirs,
                                                 const unsigned char *use);

/** tcp, as a way to tell peers how links open: one socket, frames that hold a message. out_settings is the instance's own
 *  and must live as long as it. */
HKT_NODISCARD enum hkt_status hkt__below_open_tcp(const struct hkt__tp_params *params, struct hkt__settings *out_settings,
                                                  struct hkt__tp **out_tp);

/** Go on with a message of `bytes`, of which *io_done are through, in as many frames as the channel likes. OK when all of it
 *  is; AGAIN; CORRUPT when the peer sends more. */
enum hkt_status hkt__mail_send(struct hkt__chan *chan, const void *message, size_t bytes, size_t *io_done);
enum hkt_status hkt__mail_receive(struct hkt__chan *chan, void *out_message, size_t bytes, size_t *io_done);

#endif
