/* Sockets for the bootstrap. Source of the socket options: tcp(7), ip(7), ipv6(7). */
#include "comm/boot_net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/error.h"

#define BACKLOG 4096          /* the kernel caps it at net.core.somaxconn */
#define BIND_RETRY_MS 20

static const struct sockaddr *plain(const struct sockaddr_storage *address)
{
    return (const struct sockaddr *)address;
}

/* ---- names ---- */

void hkt__net_host(const struct sockaddr_storage *address, char out_name[HKT__NET_NAME_MAX])
{
    const socklen_t bytes = address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);

    if (getnameinfo(plain(address), bytes, out_name, HKT__NET_NAME_MAX, NULL, 0, NI_NUMERICHOST) != 0)
        snprintf(out_name, HKT__NET_NAME_MAX, "(unknown address)");
    /* A dual-stack listener sees IPv4 peers as ::ffff:a.b.c.d; people know them as a.b.c.d. */
    if (strncmp(out_name, "::ffff:", 7) == 0 && strchr(out_name, '.') != NULL)
        memmove(out_name, out_name + 7, HKT__NET_NAME_MAX - 7);
}

static uint16_t port_of(const struct sockaddr_storage *address)
{
    return ntohs(address->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)address)->sin6_port
                                                : ((const struct sockaddr_in *)address)->sin_port);
}

void hkt__net_name(const struct sockaddr_storage *address, char out_name[HKT__NET_NAME_MAX])
{
    char host[HKT__NET_NAME_MAX];

    hkt__net_host(address, host);
    snprintf(out_name, HKT__NET_NAME_MAX, strchr(host, ':') != NULL ? "[%.60s]:%u" : "%.60s:%u", host,
             port_of(address));
}

bool hkt__net_is_loopback(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET)
        return ((const unsigned char *)&((const struct sockaddr_in *)address)->sin_addr)[0] == 127;
    if (address->ss_family != AF_INET6)
        return false;
    const struct in6_addr *a = &((const struct sockaddr_in6 *)address)->sin6_addr;

    return IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
}

bool hkt__net_is_loopback_name(const char *host)
{
    struct in_addr v4;
    struct in6_addr v6;

    return strcmp(host, "localhost") == 0 || (inet_pton(AF_INET, host, &v4) == 1 && strncmp(host, "127.", 4) == 0) ||
           (inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6));
}

/* Add the addresses of one name. Returns getaddrinfo's code. */
static int resolve_one(const char *host, uint16_t port, struct hkt__net_targets *targets)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char service[8];

    snprintf(service, sizeof service, "%u", port);
    const int rc = getaddrinfo(host, service, &hints, &list);

    if (rc != 0)
        return rc;
    for (const struct addrinfo *a = list; a != NULL && targets->count < HKT__NET_TARGETS_MAX; a = a->ai_next) {
        struct hkt__net_target *target = &targets->at[targets->count];

        if ((a->ai_family != AF_INET && a->ai_family != AF_INET6) || a->ai_addrlen > sizeof target->address)
            continue;
        memset(target, 0, sizeof *target);
        memcpy(&target->address, a->ai_addr, a->ai_addrlen);
        target->bytes = a->ai_addrlen;
        targets->count++;
    }
    freeaddrinfo(list);
    return 0;
}

enum hkt_status hkt__net_resolve(const char *hosts, uint16_t port, struct hkt__net_targets *out_targets)
{
    struct hkt__net_targets targets = {0};
    char host[256];
    int rc = EAI_NONAME;

    for (const char *at = hosts; *at != '\0';) {
        const size_t length = strcspn(at, ",");

        if (length > 0 && length < sizeof host) {
            memcpy(host, at, length);
            host[length] = '\0';
            rc = resolve_one(host, port, &targets);
        }
        at += length + (at[length] == ',');
    }
    if (targets.count == 0 && rc == EAI_SYSTEM)
        return hkt__fail_sys(HKT_ERR_INVALID, "host name \"%s\" does not resolve", hosts);
    if (targets.count == 0)
        return hkt__fail(HKT_ERR_INVALID, "host name \"%s\" does not resolve: %s", hosts,
                         rc == 0 ? "no IPv4 or IPv6 address" : gai_strerror(rc));
    *out_targets = targets;
    return HKT_OK;
}

void hkt__net_targets_of(const struct hkt__net_addresses *addresses, struct hkt__net_targets *out_targets)
{
    memset(out_targets, 0, sizeof *out_targets);
    for (int i = 0; i < addresses->count; i++) {
        struct hkt__net_target *target = &out_targets->at[out_targets->count++];

        if (addresses->at[i].family == 4) {
            struct sockaddr_in *v4 = (struct sockaddr_in *)&target->address;

            v4->sin_family = AF_INET;
            v4->sin_port = htons(addresses->port);
            memcpy(&v4->sin_addr, addresses->at[i].bytes, 4);
            target->bytes = sizeof *v4;
        } else {
            struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&target->address;

            v6->sin6_family = AF_INET6;
            v6->sin6_port = htons(addresses->port);
            memcpy(&v6->sin6_addr, addresses->at[i].bytes, 16);
            target->bytes = sizeof *v6;
        }
    }
}

/* ---- this host's addresses ---- */

/* Into the travelling form; IPv4 seen through an IPv6 socket becomes IPv4 again. */
static void add_address(struct hkt__net_addresses *list, const struct sockaddr_storage *address)
{
    struct hkt__net_address one = {0};

    if (address->ss_family == AF_INET) {
        one.family = 4;
        memcpy(one.bytes, &((const struct sockaddr_in *)address)->sin_addr, 4);
    } else {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)address)->sin6_addr;
        const bool is_mapped = IN6_IS_ADDR_V4MAPPED(v6);

        one.family = is_mapped ? 4 : 6;
        memcpy(one.bytes, v6->s6_addr + (is_mapped ? 12 : 0), is_mapped ? 4 : 16);
    }
    for (int i = 0; i < list->count; i++)
        if (memcmp(&list->at[i], &one, sizeof one) == 0)
            return;
    if (list->count < HKT__NET_ADDRESSES_MAX)
        list->at[list->count++] = one;
}

/* Bridges and virtual pairs of container and VM software usually do not lead to other hosts: they come last. */
static bool is_virtual_name(const char *interface)
{
    static const char *const prefixes[] = {"docker", "veth", "br-", "virbr", "cni", "flannel", "lxc", "tun", "tap"};

    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strncmp(interface, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

static bool is_usable(const struct ifaddrs *a, const char *interface)
{
    char name[HKT__NET_NAME_MAX];

    if (a->ifa_addr == NULL || (a->ifa_flags & IFF_UP) == 0)
        return false;
    if (a->ifa_addr->sa_family != AF_INET && a->ifa_addr->sa_family != AF_INET6)
        return false;
    if (a->ifa_addr->sa_family == AF_INET6 &&
        IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)a->ifa_addr)->sin6_addr))
        return false;
    if (interface[0] == '\0')
        return (a->ifa_flags & IFF_LOOPBACK) == 0;
    hkt__net_host((const struct sockaddr_storage *)(const void *)a->ifa_addr, name);
    return strcmp(a->ifa_name, interface) == 0 || strncmp(name, interface, strlen(interface)) == 0;
}

enum hkt_status hkt__net_own_addresses(const char *interface, const struct sockaddr_storage *first,
                                       struct hkt__net_addresses *out_addresses)
{
    struct hkt__net_addresses list = {0};
    struct ifaddrs *all = NULL;
    int found = 0;

    if (first != NULL)
        add_address(&list, first);
    if (getifaddrs(&all) != 0)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot list the network interfaces of this host");
    /* Passes: real IPv4, real IPv6, virtual ones. */
    for (int pass = 0; pass < 3; pass++)
        for (const struct ifaddrs *a = all; a != NULL; a = a->ifa_next) {
            if (!is_usable(a, interface))
                continue;
            const int is_v6 = a->ifa_addr->sa_family == AF_INET6;

            if ((is_virtual_name(a->ifa_name) ? 2 : is_v6) != pass)
                continue;
            add_address(&list, (const struct sockaddr_storage *)(const void *)a->ifa_addr);
            found++;
        }
    freeifaddrs(all);
    if (found == 0 && interface[0] != '\0')
        return hkt__fail(HKT_ERR_INVALID, "HOCKET_INTERFACE is \"%s\", but no interface that is up has this name or an "
                         "address that begins so: `ip addr` lists them", interface);
    *out_addresses = list;
    return HKT_OK;
}

/* ---- listening ---- */

/* A socket bound to the target and listening, or -1 with errno. */
static int listen_once(const struct hkt__net_target *target)
{
    const int on = 1, off = 0;
    const int fd = socket(target->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    /* Addresses of finished jobs in TIME_WAIT do not stand in the way; a second listener still does. */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (target->address.ss_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, plain(&target->address), target->bytes) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    const int why = errno;

    close(fd);
    errno = why;
    return -1;
}

/* Every address of the host: one IPv6 socket takes IPv4 too; a host without IPv6 has the IPv4 one. */
static int listen_everywhere(uint16_t port)
{
    struct hkt__net_target any = {.bytes = sizeof(struct sockaddr_in6)};
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&any.address;

    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    v6->sin6_addr = in6addr_any;
    const int fd = listen_once(&any);

    if (fd >= 0 || errno == EADDRINUSE || errno == EACCES || errno == EMFILE || errno == ENFILE)
        return fd;
    memset(&any, 0, sizeof any);
    struct sockaddr_in *v4 = (struct sockaddr_in *)&any.address;

    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    v4->sin_addr.s_addr = htonl(INADDR_ANY);
    any.bytes = sizeof *v4;
    return listen_once(&any);
}

static int listen_on(const struct hkt__net_targets *targets)
{
    int fd = -1;

    for (int i = 0; i < targets->count && fd < 0; i++)
        fd = listen_once(&targets->at[i]);
    return fd;
}

enum hkt_status hkt__net_listen(const char *host, uint16_t port, int64_t retry_until_ns, int *out_fd)
{
    struct hkt__net_targets targets = {0};
    enum hkt_status status = host != NULL ? hkt__net_resolve(host, port, &targets) : HKT_OK;

    if (status < 0)
        return status;
    for (;;) {
        const int fd = host != NULL ? listen_on(&targets) : listen_everywhere(port);

        if (fd >= 0) {
            *out_fd = fd;
            return HKT_OK;
        }
        if (errno != EADDRINUSE || hkt__now_ns() >= retry_until_ns)
            break;
        (void)poll(NULL, 0, BIND_RETRY_MS);
    }
    if (errno == EADDRINUSE)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "port %u is taken by another program on this host; name a free one with "
                             "HOCKET_ROOT=host:port on all ranks (`ss -ltnp` shows who has it)", port);
    if (errno == EADDRNOTAVAIL)
        return hkt__fail_sys(HKT_ERR_INVALID, "\"%s\" is no address of this host, so this process cannot listen there; "
                             "rank 0 must run on the host that the root's address names", host != NULL ? host : "*");
    if (errno == EACCES)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "no permission to listen on port %u; choose one above 1023 with "
                             "HOCKET_ROOT=host:port", port);
    return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot listen on port %u of %s", port, host != NULL ? host : "this host");
}

uint16_t hkt__net_port(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t bytes = sizeof address;

    return getsockname(fd, (struct sockaddr *)&address, &bytes) == 0 ? port_of(&address) : 0;
}

/* ---- connecting ---- */

int hkt__net_connect_start(const struct hkt__net_target *target)
{
    const int fd = socket(target->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0 || connect(fd, plain(&target->address), target->bytes) == 0 || errno == EINPROGRESS || errno == EINTR)
        return fd;
    const int why = errno;

    close(fd);
    errno = why;
    return -1;
}

int hkt__net_connect_result(int fd)
{
    struct sockaddr_storage own = {0}, peer = {0};
    socklen_t own_bytes = sizeof own, peer_bytes = sizeof peer, bytes = sizeof(int);
    int why = 0;

    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &bytes) != 0)
        return errno;
    if (why != 0)
        return why;
    if (getsockname(fd, (struct sockaddr *)&own, &own_bytes) != 0 ||
        getpeername(fd, (struct sockaddr *)&peer, &peer_bytes) != 0)
        return errno;
    return own_bytes == peer_bytes && memcmp(&own, &peer, own_bytes) == 0 ? ECONNREFUSED : 0;
}

void hkt__net_keep(int fd)
{
    const int on = 1, idle_s = 5, interval_s = 2, probes = 3, unacked_ms = 10000;

    /* Best effort: a socket without them still works, only slower to notice a host that vanished. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unacked_ms, sizeof unacked_ms);
}

void hkt__net_close_gently(int fd)
{
    unsigned char drain[4096];

    if (fd < 0)
        return;
    (void)shutdown(fd, SHUT_WR);
    for (int i = 0; i < 256 && recv(fd, drain, sizeof drain, MSG_DONTWAIT) > 0; i++)
        ;
    close(fd);
}
