/* Which congestion control the sockets use: what HOCKET_TCP_CONGESTION says, else what the system does, but not BBR between
 * neighbours.
 *
 * BBR paces: it sends at the rate that it believes the path to have. Between hosts of one switch, where a round trip takes
 * microseconds and messages end before a rate is known, that belief is often far too low and stays so for the life of a
 * connection, and each packet held back costs a timer. Between 2 hosts without a limit 512 KiB each way took 240 us on some
 * connections and 400 to 700 on others; without pacing they take 240. Over 1 Gbit/s cubic is equal or up to a quarter faster
 * (docs/bench/2026-11-30-hosts.md). To hosts behind routers the system's choice stays: there BBR may be what they need.
 *
 * A socket once BBR's is paced for ever, whatever it is told later (Linux: sk_pacing_status). So the choice is made before a
 * socket connects, and on listeners, from which accepted ones inherit it; those that turn out to be of no neighbour get the
 * system's afterwards. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "core/log.h"
#include "transport/tcp.h"

static bool set_name(int fd, const char *name)
{
    return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0;
}

/** The first of those instead of BBR that this process may use; "" if none. Unprivileged ones may use what the administrator lists
 *  (net.ipv4.tcp_allowed_congestion_control), reno always. */
static const char *instead(int fd)
{
    static const char *const names[] = {"cubic", "reno"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (set_name(fd, names[i]))
            return names[i];
    return "";
}

enum hkt_status hkt__tcp_congestion_choose(struct hkt__tcp *tcp, const char *wish)
{
    const int fd = socket(tcp->own.addrs[0].family == 6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char name[HKT__TCP_CONGESTION_MAX] = "";
    socklen_t bytes = sizeof name - 1;
    enum hkt_status status = HKT_OK;

    tcp->near_congestion[0] = tcp->far_congestion[0] = '\0';
    if (fd < 0)
        return hkt__tcp_fail_fd("socket");
    if (wish != NULL && wish[0] != '\0') {
        errno = ENAMETOOLONG; /* unless the system is asked, which says more */
        if (strlen(wish) >= sizeof name || !set_name(fd, wish)) {
            status = hkt__fail_sys(HKT_ERR_INVALID, "tcp: HOCKET_TCP_CONGESTION=%s cannot be used here: take a name from "
                                   "/proc/sys/net/ipv4/tcp_allowed_congestion_control", wish);
        } else {
            snprintf(tcp->near_congestion, sizeof tcp->near_congestion, "%s", wish);
            snprintf(tcp->far_congestion, sizeof tcp->far_congestion, "%s", wish);
        }
    } else if (getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) == 0 && strncmp(name, "bbr", 3) == 0) {
        snprintf(tcp->near_congestion, sizeof tcp->near_congestion, "%s", instead(fd));
        snprintf(tcp->far_congestion, sizeof tcp->far_congestion, "%s", name);
        hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_INFO, "tcp: %s%s%s between neighbours; HOCKET_TCP_CONGESTION chooses",
                 tcp->near_congestion, tcp->near_congestion[0] != '\0' ? " instead of " : "nothing may be used instead of ", name);
    }
    close(fd);
    return status;
}

void hkt__tcp_congestion_set(const struct hkt__tcp *tcp, int fd, const struct hkt__tcp_addr *peer)
{
    const bool is_near = peer == NULL || hkt__tcp_is_neighbour(&tcp->own, peer);
    const char *name = is_near ? tcp->near_congestion : tcp->far_congestion;

    if (name[0] != '\0')
        (void)set_name(fd, name); /* failing, it costs speed, not truth */
}

void hkt__tcp_congestion_meet(const struct hkt__tcp *tcp, int fd)
{
    struct hkt__tcp_addr peer = {.family = 0};
    struct sockaddr_storage sock;
    socklen_t bytes = sizeof sock;

    if (strcmp(tcp->near_congestion, tcp->far_congestion) == 0)
        return;
    if (getpeername(fd, (struct sockaddr *)&sock, &bytes) != 0)
        return;
    hkt__tcp_addr_from_sock(&sock, &peer);
    if (!hkt__tcp_is_neighbour(&tcp->own, &peer))
        hkt__tcp_congestion_set(tcp, fd, &peer);
}
