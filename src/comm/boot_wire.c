/* Framing and encoding of the bootstrap's messages. Writers cannot overrun (the asserts are on our own sizes); readers
 * take any bytes: a cursor that would run past its end sticks there and the message is refused as a whole. */
#include "comm/boot_wire.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "core/siphash.h"

static const unsigned char wire_magic[4] = {'h', 'k', 't', 0xb7};

/* ---- frames ---- */

enum hkt_status hkt__wire_check_header(const unsigned char header[HKT__WIRE_HEADER_BYTES],
                                       enum hkt__wire_type *out_type, size_t *out_bytes)
{
    const size_t bytes = (size_t)(header[4] | header[5] << 8);
    const int type = header[6];

    if (memcmp(header, wire_magic, sizeof wire_magic) != 0 || header[7] != 0)
        return HKT_ERR_CORRUPT;
    if (type < HKT__WIRE_CHALLENGE || type >= HKT__WIRE_TYPE_COUNT || bytes > HKT__WIRE_PAYLOAD_MAX)
        return HKT_ERR_CORRUPT;
    *out_type = (enum hkt__wire_type)type;
    *out_bytes = bytes;
    return HKT_OK;
}

/* Take up to `wanted` bytes in all. OK: they are there. */
static enum hkt_status reader_fill(struct hkt__wire_reader *reader, int fd, size_t wanted)
{
    while (reader->got < wanted) {
        const ssize_t n = recv(fd, reader->bytes + reader->got, wanted - reader->got, MSG_DONTWAIT);

        if (n > 0) {
            reader->got += (size_t)n;
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return HKT_AGAIN;
        reader->sys_errno = n < 0 ? errno : 0;
        return HKT_ERR_PEER_LOST;
    }
    return HKT_OK;
}

enum hkt_status hkt__wire_read(struct hkt__wire_reader *reader, int fd, struct hkt__wire_message *out_message)
{
    enum hkt__wire_type type;
    size_t bytes;

    if (reader->is_whole) {
        reader->is_whole = false;
        reader->got = 0;
    }
    enum hkt_status status = reader_fill(reader, fd, HKT__WIRE_HEADER_BYTES);

    if (status != HKT_OK)
        return status;
    status = hkt__wire_check_header(reader->bytes, &type, &bytes);
    if (status == HKT_OK)
        status = reader_fill(reader, fd, HKT__WIRE_HEADER_BYTES + bytes);
    if (status != HKT_OK)
        return status;
    reader->is_whole = true;
    *out_message = (struct hkt__wire_message){.type = type, .bytes = bytes,
                                              .payload = reader->bytes + HKT__WIRE_HEADER_BYTES};
    return HKT_OK;
}

void hkt__wire_begin(struct hkt__wire_writer *writer, enum hkt__wire_type type)
{
    memset(writer->bytes, 0, HKT__WIRE_HEADER_BYTES);
    memcpy(writer->bytes, wire_magic, sizeof wire_magic);
    writer->bytes[6] = (unsigned char)type;
    writer->used = HKT__WIRE_HEADER_BYTES;
}

void hkt__wire_put(struct hkt__wire_writer *writer, const void *data, size_t bytes)
{
    assert(bytes <= sizeof writer->bytes - writer->used);
    memcpy(writer->bytes + writer->used, data, bytes);
    writer->used += bytes;
    const size_t payload = writer->used - HKT__WIRE_HEADER_BYTES;

    writer->bytes[4] = (unsigned char)(payload & 0xff);
    writer->bytes[5] = (unsigned char)(payload >> 8);
}

void hkt__wire_put_number(struct hkt__wire_writer *writer, uint64_t value, int bytes)
{
    unsigned char le[8];

    assert(bytes >= 1 && bytes <= 8);
    for (int i = 0; i < bytes; i++)
        le[i] = (unsigned char)(value >> (8 * i));
    hkt__wire_put(writer, le, (size_t)bytes);
}

void hkt__wire_put_text(struct hkt__wire_writer *writer, const char *text)
{
    const size_t bytes = strnlen(text, HKT__WIRE_TEXT_MAX - 1);

    hkt__wire_put_number(writer, bytes, 2);
    hkt__wire_put(writer, text, bytes);
}

int hkt__wire_send(int fd, const struct hkt__wire_writer *writer)
{
    const ssize_t n = send(fd, writer->bytes, writer->used, MSG_NOSIGNAL | MSG_DONTWAIT);

    if (n == (ssize_t)writer->used)
        return 0;
    if (n >= 0)
        errno = ENOBUFS;
    return -1;
}

/* ---- reading a payload ---- */

struct cursor {
    const unsigned char *at, *end;
    bool is_short;
};

static struct cursor cursor_of(const struct hkt__wire_message *message)
{
    return (struct cursor){.at = message->payload, .end = message->payload + message->bytes};
}

static void get(struct cursor *c, void *out, size_t bytes)
{
    if ((size_t)(c->end - c->at) < bytes) {
        c->is_short = true;
        memset(out, 0, bytes);
        return;
    }
    memcpy(out, c->at, bytes);
    c->at += bytes;
}

static uint64_t get_number(struct cursor *c, int bytes)
{
    unsigned char le[8];
    uint64_t value = 0;

    get(c, le, (size_t)bytes);
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)le[i] << (8 * i);
    return value;
}

static int32_t get_int(struct cursor *c)
{
    return (int32_t)(uint32_t)get_number(c, 4);
}

/* Text into an array of HKT__WIRE_TEXT_MAX: it will be printed, so control bytes become '?'. */
static void get_text(struct cursor *c, char *out_text)
{
    const size_t bytes = (size_t)get_number(c, 2);

    if (bytes >= HKT__WIRE_TEXT_MAX) {
        c->is_short = true;
        out_text[0] = '\0';
        return;
    }
    get(c, out_text, bytes);
    out_text[bytes] = '\0';
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)out_text[i] < 0x20 || out_text[i] == 0x7f)
            out_text[i] = '?';
}

static bool is_exact(const struct cursor *c)
{
    return !c->is_short && c->at == c->end;
}

static void put_addresses(struct hkt__wire_writer *writer, const struct hkt__net_addresses *addresses)
{
    hkt__wire_put_number(writer, addresses->port, 2);
    hkt__wire_put_number(writer, addresses->count, 1);
    for (int i = 0; i < addresses->count; i++) {
        hkt__wire_put_number(writer, addresses->at[i].family, 1);
        hkt__wire_put(writer, addresses->at[i].bytes, sizeof addresses->at[i].bytes);
    }
}

static void get_addresses(struct cursor *c, struct hkt__net_addresses *out_addresses)
{
    memset(out_addresses, 0, sizeof *out_addresses);
    out_addresses->port = (uint16_t)get_number(c, 2);
    const int count = (int)get_number(c, 1);

    if (count > HKT__NET_ADDRESSES_MAX) {
        c->is_short = true;
        return;
    }
    out_addresses->count = (uint8_t)count;
    for (int i = 0; i < count; i++) {
        out_addresses->at[i].family = (unsigned char)get_number(c, 1);
        get(c, out_addresses->at[i].bytes, sizeof out_addresses->at[i].bytes);
        if (out_addresses->at[i].family != 4 && out_addresses->at[i].family != 6)
            c->is_short = true;
    }
}

/* ---- proofs ---- */

/* 128 bits of keyed hash over data: two SipHashes that differ in their first byte. `side` keeps the proof of who
 * connects apart from that of who accepts, so that neither can be reflected. */
static void prove(const unsigned char token[HKT__TOKEN_BYTES], char side, const void *data, size_t bytes,
                  unsigned char out_proof[HKT__WIRE_PROOF_BYTES])
{
    unsigned char text[2 + HKT__WIRE_NONCE_BYTES + HKT__WIRE_PAYLOAD_MAX];

    assert(bytes <= sizeof text - 2);
    text[1] = (unsigned char)side;
    memcpy(text + 2, data, bytes);
    for (int half = 0; half < 2; half++) {
        text[0] = (unsigned char)half;
        const uint64_t hash = hkt__siphash(token, text, bytes + 2);

        for (int i = 0; i < 8; i++)
            out_proof[8 * half + i] = (unsigned char)(hash >> (8 * i));
    }
}

/* Takes the same time wherever they differ. */
static bool is_same_proof(const unsigned char *a, const unsigned char *b)
{
    unsigned char difference = 0;

    for (int i = 0; i < HKT__WIRE_PROOF_BYTES; i++)
        difference = (unsigned char)(difference | (a[i] ^ b[i]));
    return difference == 0;
}

/* The proof of a hello whose encoded fields are at `fields`. */
static void prove_hello(const unsigned char token[HKT__TOKEN_BYTES], const unsigned char nonce[HKT__WIRE_NONCE_BYTES],
                        const unsigned char *fields, size_t bytes, unsigned char out_proof[HKT__WIRE_PROOF_BYTES])
{
    unsigned char text[HKT__WIRE_NONCE_BYTES + HKT__WIRE_PAYLOAD_MAX];

    memcpy(text, nonce, HKT__WIRE_NONCE_BYTES);
    memcpy(text + HKT__WIRE_NONCE_BYTES, fields, bytes);
    prove(token, 'C', text, HKT__WIRE_NONCE_BYTES + bytes, out_proof);
}

static void prove_welcome(const struct hkt__wire_challenge *challenge, const struct hkt__wire_hello *hello,
                          const unsigned char token[HKT__TOKEN_BYTES], unsigned char out_proof[HKT__WIRE_PROOF_BYTES])
{
    unsigned char text[2 * HKT__WIRE_NONCE_BYTES + 4];

    memcpy(text, hello->nonce, HKT__WIRE_NONCE_BYTES);
    memcpy(text + HKT__WIRE_NONCE_BYTES, challenge->nonce, HKT__WIRE_NONCE_BYTES);
    for (int i = 0; i < 4; i++)
        text[2 * HKT__WIRE_NONCE_BYTES + i] = (unsigned char)((uint32_t)challenge->rank >> (8 * i));
    prove(token, 'S', text, sizeof text, out_proof);
}

/* ---- each message ---- */

void hkt__wire_put_challenge(struct hkt__wire_writer *writer, const struct hkt__wire_challenge *challenge)
{
    hkt__wire_begin(writer, HKT__WIRE_CHALLENGE);
    hkt__wire_put_number(writer, (uint32_t)challenge->version, 4);
    hkt__wire_put_number(writer, (uint32_t)challenge->rank, 4);
    hkt__wire_put(writer, challenge->nonce, sizeof challenge->nonce);
}

bool hkt__wire_get_challenge(const struct hkt__wire_message *message, struct hkt__wire_challenge *out_challenge)
{
    struct cursor c = cursor_of(message);

    out_challenge->version = get_int(&c);
    out_challenge->rank = get_int(&c);
    get(&c, out_challenge->nonce, sizeof out_challenge->nonce);
    return message->type == HKT__WIRE_CHALLENGE && is_exact(&c);
}

void hkt__wire_put_hello(struct hkt__wire_writer *writer, const struct hkt__wire_hello *hello,
                         const unsigned char token[HKT__TOKEN_BYTES], const unsigned char nonce[HKT__WIRE_NONCE_BYTES])
{
    unsigned char proof[HKT__WIRE_PROOF_BYTES];

    hkt__wire_begin(writer, HKT__WIRE_HELLO);
    hkt__wire_put_number(writer, (uint32_t)hello->version, 4);
    hkt__wire_put_number(writer, hello->purpose, 1);
    hkt__wire_put_number(writer, (uint32_t)hello->rank, 4);
    hkt__wire_put_number(writer, (uint32_t)hello->nranks, 4);
    hkt__wire_put_number(writer, (uint32_t)hello->pid, 4);
    hkt__wire_put(writer, hello->nonce, sizeof hello->nonce);
    put_addresses(writer, &hello->addresses);
    prove_hello(token, nonce, writer->bytes + HKT__WIRE_HEADER_BYTES, writer->used - HKT__WIRE_HEADER_BYTES, proof);
    hkt__wire_put(writer, proof, sizeof proof);
}

bool hkt__wire_get_hello(const struct hkt__wire_message *message, const unsigned char token[HKT__TOKEN_BYTES],
                         const unsigned char nonce[HKT__WIRE_NONCE_BYTES], struct hkt__wire_hello *out_hello,
                         bool *out_is_proven)
{
    unsigned char proof[HKT__WIRE_PROOF_BYTES], expected[HKT__WIRE_PROOF_BYTES];
    struct cursor c = cursor_of(message);

    out_hello->version = get_int(&c);
    const int purpose = (int)get_number(&c, 1);

    out_hello->purpose = purpose == HKT__WIRE_LINK ? HKT__WIRE_LINK : HKT__WIRE_REGISTER;
    out_hello->rank = get_int(&c);
    out_hello->nranks = get_int(&c);
    out_hello->pid = get_int(&c);
    get(&c, out_hello->nonce, sizeof out_hello->nonce);
    get_addresses(&c, &out_hello->addresses);
    const size_t fields = (size_t)(c.at - message->payload);

    get(&c, proof, sizeof proof);
    if (message->type != HKT__WIRE_HELLO || !is_exact(&c))
        return false;
    if (purpose != HKT__WIRE_LINK && purpose != HKT__WIRE_REGISTER)
        return false;
    prove_hello(token, nonce, message->payload, fields, expected);
    *out_is_proven = is_same_proof(proof, expected);
    return true;
}

void hkt__wire_put_welcome(struct hkt__wire_writer *writer, const struct hkt__wire_challenge *challenge,
                           const struct hkt__wire_hello *hello, const unsigned char token[HKT__TOKEN_BYTES])
{
    unsigned char proof[HKT__WIRE_PROOF_BYTES];

    prove_welcome(challenge, hello, token, proof);
    hkt__wire_begin(writer, HKT__WIRE_WELCOME);
    hkt__wire_put(writer, proof, sizeof proof);
}

bool hkt__wire_get_welcome(const struct hkt__wire_message *message, const struct hkt__wire_challenge *challenge,
                           const struct hkt__wire_hello *hello, const unsigned char token[HKT__TOKEN_BYTES],
                           bool *out_is_proven)
{
    unsigned char proof[HKT__WIRE_PROOF_BYTES], expected[HKT__WIRE_PROOF_BYTES];
    struct cursor c = cursor_of(message);

    get(&c, proof, sizeof proof);
    if (message->type != HKT__WIRE_WELCOME || !is_exact(&c))
        return false;
    prove_welcome(challenge, hello, token, expected);
    *out_is_proven = is_same_proof(proof, expected);
    return true;
}

void hkt__wire_put_fail(struct hkt__wire_writer *writer, enum hkt_status status, const char *text)
{
    hkt__wire_begin(writer, HKT__WIRE_FAIL);
    hkt__wire_put_number(writer, (uint32_t)status, 4);
    hkt__wire_put_text(writer, text);
}

/* A status that travels must be a failure that this build knows. */
static bool is_failure(int32_t status)
{
    switch (status) {
#define STATUS_CASE(name, value, text) case value:
        HKT_STATUS_TABLE(STATUS_CASE)
#undef STATUS_CASE
        return status < 0;
    default:
        return false;
    }
}

bool hkt__wire_get_fail(const struct hkt__wire_message *message, struct hkt__wire_fail *out_fail)
{
    struct cursor c = cursor_of(message);
    const int32_t status = get_int(&c);

    get_text(&c, out_fail->text);
    if (message->type != HKT__WIRE_FAIL || !is_exact(&c) || !is_failure(status))
        return false;
    out_fail->status = (enum hkt_status)status;
    return true;
}

void hkt__wire_put_place(struct hkt__wire_writer *writer, const struct hkt__net_addresses *addresses)
{
    hkt__wire_begin(writer, HKT__WIRE_PLACE);
    put_addresses(writer, addresses);
}

bool hkt__wire_get_place(const struct hkt__wire_message *message, struct hkt__net_addresses *out_addresses)
{
    struct cursor c = cursor_of(message);

    get_addresses(&c, out_addresses);
    return message->type == HKT__WIRE_PLACE && is_exact(&c);
}

void hkt__wire_put_gather(struct hkt__wire_writer *writer, const struct hkt__wire_gather *gather)
{
    hkt__wire_begin(writer, HKT__WIRE_GATHER);
    hkt__wire_put_number(writer, gather->seq, 4);
    hkt__wire_put_number(writer, gather->bytes, 8);
}

bool hkt__wire_get_gather(const struct hkt__wire_message *message, struct hkt__wire_gather *out_gather)
{
    struct cursor c = cursor_of(message);

    out_gather->seq = (uint32_t)get_number(&c, 4);
    out_gather->bytes = get_number(&c, 8);
    return message->type == HKT__WIRE_GATHER && is_exact(&c);
}

void hkt__wire_put_event(struct hkt__wire_writer *writer, const struct hkt__boot_event *event)
{
    hkt__wire_begin(writer, HKT__WIRE_EVENT);
    hkt__wire_put_number(writer, event->comm_id, 4);
    hkt__wire_put_number(writer, (uint32_t)event->reporter, 4);
    hkt__wire_put_number(writer, (uint32_t)event->culprit, 4);
    hkt__wire_put_number(writer, (uint32_t)event->status, 4);
    hkt__wire_put_number(writer, (uint32_t)event->sys_errno, 4);
    hkt__wire_put_text(writer, event->text);
}

bool hkt__wire_get_event(const struct hkt__wire_message *message, struct hkt__boot_event *out_event)
{
    struct cursor c = cursor_of(message);

    _Static_assert(sizeof out_event->text >= HKT__WIRE_TEXT_MAX, "a text from the wire fits an event");
    out_event->comm_id = (uint32_t)get_number(&c, 4);
    out_event->reporter = get_int(&c);
    out_event->culprit = get_int(&c);
    out_event->status = get_int(&c);
    out_event->sys_errno = get_int(&c);
    get_text(&c, out_event->text);
    return message->type == HKT__WIRE_EVENT && is_exact(&c) && is_failure(out_event->status);
}

void hkt__wire_put_note(struct hkt__wire_writer *writer, const struct hkt__boot_note *note)
{
    hkt__wire_begin(writer, HKT__WIRE_NOTE);
    hkt__wire_put_number(writer, note->kind, 1);
    hkt__wire_put_number(writer, note->is_running, 1);
    hkt__wire_put_number(writer, note->comm_id, 4);
    hkt__wire_put_number(writer, (uint32_t)note->rank, 4);
    hkt__wire_put_number(writer, note->stamp.op_seq, 4);
    hkt__wire_put_number(writer, note->stamp.call, 4);
    hkt__wire_put_number(writer, (uint32_t)note->stamp.root, 4);
    hkt__wire_put_number(writer, note->stamp.count, 8);
}

bool hkt__wire_get_note(const struct hkt__wire_message *message, struct hkt__boot_note *out_note)
{
    struct cursor c = cursor_of(message);
    const unsigned kind = (unsigned)get_number(&c, 1), is_running = (unsigned)get_number(&c, 1);

    *out_note = (struct hkt__boot_note){.kind = (enum hkt__note_kind)kind, .is_running = is_running != 0};
    out_note->comm_id = (uint32_t)get_number(&c, 4);
    out_note->rank = get_int(&c);
    out_note->stamp.op_seq = (uint32_t)get_number(&c, 4);
    out_note->stamp.call = (uint32_t)get_number(&c, 4);
    out_note->stamp.root = get_int(&c);
    out_note->stamp.count = get_number(&c, 8);
    return message->type == HKT__WIRE_NOTE && is_exact(&c) && kind >= HKT__NOTE_WAITS && kind < HKT__NOTE_KIND_COUNT &&
           is_running <= 1;
}
