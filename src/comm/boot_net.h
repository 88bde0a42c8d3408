/* Sockets for the bootstrap: listeners, names, and connecting with a deadline. Everything here is non-blocking except
 * name resolution (getaddrinfo), whose own limits are those of the host's resolver. */
#ifndef HOCKET_COMM_BOOT_NET_H
#define HOCKET_COMM_BOOT_NET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "hocket/status.h"

#define HKT__NET_NAME_MAX 80    /* text of an address with port, NUL included */
#define HKT__NET_TARGETS_MAX 16
#define HKT__NET_ADDRESSES_MAX 8

/** A socket address that may lead to the peer that is wanted. */
struct hkt__net_target {
    struct sockaddr_storage address;
    socklen_t bytes;
};
struct hkt__net_targets {
    int count;
    struct hkt__net_target at[HKT__NET_TARGETS_MAX];
};

/** Where a rank listens, in a form that travels: one port, several addresses, the likeliest first. */
struct hkt__net_address {
    unsigned char family;      /* 4 or 6 */
    unsigned char bytes[16];
};
struct hkt__net_addresses {
    uint16_t port;
    uint8_t count;
    struct hkt__net_address at[HKT__NET_ADDRESSES_MAX];
};

/** Listen on `port` (0: any free one) of host; NULL: all addresses of this host. A port that is taken is tried again
 *  until retry_until_ns. The socket is non-blocking. */
HKT_NODISCARD enum hkt_status hkt__net_listen(const char *host, uint16_t port, int64_t retry_until_ns, int *out_fd);
/** Port a socket is bound to; 0 when that cannot be known. */
uint16_t hkt__net_port(int fd);

/** All addresses of a comma-separated list of host names or numeric addresses. INVALID: not one resolves. */
HKT_NODISCARD enum hkt_status hkt__net_resolve(const char *hosts, uint16_t port, struct hkt__net_targets *out_targets);
void hkt__net_targets_of(const struct hkt__net_addresses *addresses, struct hkt__net_targets *out_targets);
/** Does the text name this host's loopback ("localhost", "127.0.0.1", "::1"), so that no other host can be meant? */
bool hkt__net_is_loopback_name(const char *host);

/** Addresses of this host that other hosts may use: those of interfaces that are up, likeliest first, no loopback, no
 *  link-local; only those that `interface` names (an interface, or a prefix of a numeric address) unless it is "".
 *  `first` (may be NULL) goes in front, whatever it is. INVALID: `interface` names nothing here. */
HKT_NODISCARD enum hkt_status hkt__net_own_addresses(const char *interface, const struct sockaddr_storage *first,
                                                     struct hkt__net_addresses *out_addresses);

/** "10.0.0.1:4711" or "[fd77::1]:4711"; without the port (and brackets) from hkt__net_host. */
void hkt__net_name(const struct sockaddr_storage *address, char out_name[HKT__NET_NAME_MAX]);
void hkt__net_host(const struct sockaddr_storage *address, char out_name[HKT__NET_NAME_MAX]);
bool hkt__net_is_loopback(const struct sockaddr_storage *address);

/** Start to connect; a non-blocking socket, or -1 with errno. */
int hkt__net_connect_start(const struct hkt__net_target *target);
/** After the socket became writable: 0, or the errno of the failed connect (ECONNREFUSED for a connection to itself,
 *  which TCP can make when source and destination port coincide). */
int hkt__net_connect_result(int fd);

/** Options of a connection that stays: no delay, and death of the peer's host found by keepalive (5 s + 3 x 2 s) and by
 *  unacknowledged data (10 s). */
void hkt__net_keep(int fd);
/** Close so that what was sent still arrives: with unread input, a plain close would make TCP discard it. */
void hkt__net_close_gently(int fd);

#endif
