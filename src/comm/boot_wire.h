/* Messages of the bootstrap and the control plane: framing, and the encoding of each.
 *
 * A frame is a header of 8 bytes (magic, payload bytes, type, zero) and a payload. All numbers are little-endian. A
 * reader never takes more from the socket than the frame it is in, so that a connection can change its use between two
 * frames. Bytes that are no frame are found out at the header and never trusted. */
#ifndef HOCKET_COMM_BOOT_WIRE_H
#define HOCKET_COMM_BOOT_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/boot.h"
#include "comm/boot_net.h"

#define HKT__WIRE_VERSION 2
#define HKT__WIRE_HEADER_BYTES 8
#define HKT__WIRE_PAYLOAD_MAX 1536  /* an event with the longest text fits */
#define HKT__WIRE_NONCE_BYTES 16
#define HKT__WIRE_PROOF_BYTES 16
#define HKT__WIRE_TEXT_MAX 1024     /* NUL included */

enum hkt__wire_type {
    HKT__WIRE_CHALLENGE = 1, /* who accepts, at once: version, its rank, nonce */
    HKT__WIRE_HELLO,         /* who connects: its place, where it listens, proof that it holds the token */
    HKT__WIRE_WELCOME,       /* who accepts: proof back */
    HKT__WIRE_FAIL,          /* either: the meeting has failed, or this connection is refused; status and text */
    HKT__WIRE_PLACE,         /* root: where the parent listens */
    HKT__WIRE_READY,         /* to the root: my links stand */
    HKT__WIRE_GO,            /* root: all links stand */
    HKT__WIRE_GATHER,        /* tree: raw bytes of an all-gather follow */
    HKT__WIRE_EVENT,         /* tree: a failure that travels */
    HKT__WIRE_FAREWELL,      /* tree: this rank leaves in good order */
    HKT__WIRE_NOTE,          /* tree: in which call a rank is */
    HKT__WIRE_TYPE_COUNT
};

/** A whole message; the payload points into the reader and lives until its next read. */
struct hkt__wire_message {
    enum hkt__wire_type type;
    size_t bytes;
    const unsigned char *payload;
};

/** Reassembles messages from a stream. All zero: ready. */
struct hkt__wire_reader {
    size_t got;
    int sys_errno;
    bool is_whole;
    unsigned char bytes[HKT__WIRE_HEADER_BYTES + HKT__WIRE_PAYLOAD_MAX];
};
/** OK: *out_message is whole. AGAIN: no more bytes now. PEER_LOST: end of stream or error (reader->sys_errno, 0 at the
 *  end). CORRUPT: not our protocol. Records no failure: the caller knows whose connection it is. */
HKT_NODISCARD enum hkt_status hkt__wire_read(struct hkt__wire_reader *reader, int fd,
                                             struct hkt__wire_message *out_message);
/** Judge a header: OK with type and payload bytes, or CORRUPT. */
HKT_NODISCARD enum hkt_status hkt__wire_check_header(const unsigned char header[HKT__WIRE_HEADER_BYTES],
                                                     enum hkt__wire_type *out_type, size_t *out_bytes);

/** A message being written. */
struct hkt__wire_writer {
    size_t used;
    unsigned char bytes[HKT__WIRE_HEADER_BYTES + HKT__WIRE_PAYLOAD_MAX];
};
void hkt__wire_begin(struct hkt__wire_writer *writer, enum hkt__wire_type type);
void hkt__wire_put(struct hkt__wire_writer *writer, const void *data, size_t bytes);
void hkt__wire_put_number(struct hkt__wire_writer *writer, uint64_t value, int bytes);
void hkt__wire_put_text(struct hkt__wire_writer *writer, const char *text);
/** Send the whole message now, or fail with errno: the messages of a meeting are small against a socket's buffer, so a
 *  peer that has no room for one has stopped reading. */
int hkt__wire_send(int fd, const struct hkt__wire_writer *writer);

struct hkt__wire_challenge {
    int32_t version, rank;
    unsigned char nonce[HKT__WIRE_NONCE_BYTES];
};
enum hkt__wire_purpose { HKT__WIRE_REGISTER = 1, HKT__WIRE_LINK = 2 };
struct hkt__wire_hello {
    enum hkt__wire_purpose purpose; /* register at the root, or link to the parent */
    int32_t version, rank, nranks, pid;
    unsigned char nonce[HKT__WIRE_NONCE_BYTES];
    struct hkt__net_addresses addresses;
};
struct hkt__wire_fail {
    enum hkt_status status;
    char text[HKT__WIRE_TEXT_MAX];
};
struct hkt__wire_gather {
    uint32_t seq;
    uint64_t bytes; /* per rank */
};

void hkt__wire_put_challenge(struct hkt__wire_writer *writer, const struct hkt__wire_challenge *challenge);
/** The proof is computed over the challenge's nonce and everything in the hello. */
void hkt__wire_put_hello(struct hkt__wire_writer *writer, const struct hkt__wire_hello *hello,
                         const unsigned char token[HKT__TOKEN_BYTES],
                         const unsigned char nonce[HKT__WIRE_NONCE_BYTES]);
/** The proof back: over both nonces and the rank of who accepted. */
void hkt__wire_put_welcome(struct hkt__wire_writer *writer, const struct hkt__wire_challenge *challenge,
                           const struct hkt__wire_hello *hello, const unsigned char token[HKT__TOKEN_BYTES]);
void hkt__wire_put_fail(struct hkt__wire_writer *writer, enum hkt_status status, const char *text);
void hkt__wire_put_place(struct hkt__wire_writer *writer, const struct hkt__net_addresses *addresses);
void hkt__wire_put_gather(struct hkt__wire_writer *writer, const struct hkt__wire_gather *gather);
void hkt__wire_put_event(struct hkt__wire_writer *writer, const struct hkt__boot_event *event);
void hkt__wire_put_note(struct hkt__wire_writer *writer, const struct hkt__boot_note *note);

/* Decoders: false when the payload is not a well-formed message of that type. Texts come out printable. */
bool hkt__wire_get_challenge(const struct hkt__wire_message *message, struct hkt__wire_challenge *out_challenge);
/** *out_is_proven: the sender holds the token. The other fields are only to be trusted then. */
bool hkt__wire_get_hello(const struct hkt__wire_message *message, const unsigned char token[HKT__TOKEN_BYTES],
                         const unsigned char nonce[HKT__WIRE_NONCE_BYTES], struct hkt__wire_hello *out_hello,
                         bool *out_is_proven);
bool hkt__wire_get_welcome(const struct hkt__wire_message *message, const struct hkt__wire_challenge *challenge,
                           const struct hkt__wire_hello *hello, const unsigned char token[HKT__TOKEN_BYTES],
                           bool *out_is_proven);
bool hkt__wire_get_fail(const struct hkt__wire_message *message, struct hkt__wire_fail *out_fail);
bool hkt__wire_get_place(const struct hkt__wire_message *message, struct hkt__net_addresses *out_addresses);
bool hkt__wire_get_gather(const struct hkt__wire_message *message, struct hkt__wire_gather *out_gather);
bool hkt__wire_get_event(const struct hkt__wire_message *message, struct hkt__boot_event *out_event);
bool hkt__wire_get_note(const struct hkt__wire_message *message, struct hkt__boot_note *out_note);

#endif
