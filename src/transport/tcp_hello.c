/* The proofs that open a socket. The acceptor speaks first and sends a nonce; the connector answers with who it is, whom
 * it wants, a nonce of its own and a SipHash-2-4 MAC under the job's token, which never travels. A recorded hello is
 * worthless, because the acceptor's nonce differs each time. The acceptor's reply is bound to both nonces, so the
 * connector knows its peer as well. The connector's confirm settles which of several attempts counts: before it, either
 * side may drop the socket and nothing is lost. Not a defence against somebody who rewrites packets in flight. */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>

#include "core/siphash.h"
#include "transport/tcp.h"

enum hkt_status hkt__tcp_random(void *out_bytes, size_t count)
{
    ssize_t got;

    do
        got = getrandom(out_bytes, count, 0); /* up to 256 bytes come whole once the kernel's pool is ready */
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)count)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "tcp: no random bytes from the system (getrandom)");
    return HKT_OK;
}

uint64_t hkt__tcp_hello_mac(const unsigned char token[16], const unsigned char nonce[16],
                            const struct hkt__tcp_hello *hello)
{
    unsigned char text[16 + 16 + offsetof(struct hkt__tcp_hello, mac)] = "hocket connector";

    memcpy(text + 16, nonce, 16);
    memcpy(text + 32, hello, offsetof(struct hkt__tcp_hello, mac));
    return hkt__siphash(token, text, sizeof text);
}

uint64_t hkt__tcp_reply_mac(const unsigned char token[16], const unsigned char nonce[16],
                            const struct hkt__tcp_hello *hello, int32_t status)
{
    unsigned char text[16 + 16 + sizeof *hello + sizeof status] = "hocket acceptor";

    memcpy(text + 16, nonce, 16);
    memcpy(text + 32, hello, sizeof *hello);
    memcpy(text + 32 + sizeof *hello, &status, sizeof status);
    return hkt__siphash(token, text, sizeof text);
}
