/* Which addresses of this host a tcp instance listens on, and in which order a connector tries those of a peer.
 *
 * Nothing here decides that an address works: only a socket that proved itself does (tcp_hello.c). Choosing just puts the
 * likely ones first, and leaves out those that cannot be meant. A wrong interface (docker0, a VPN) then costs a moment,
 * never the job. hkt__tcp_nics_choose and hkt__tcp_route are pure, so that any host can be described in a test. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/siphash.h"
#include "transport/tcp.h"

/* A pair of interfaces that joins network namespaces says 10 Gbit/s whatever lies behind it; within a machine that is memory. As 4
 * GB/s (docs/bench/2026-12-01-hosts.md) all-reduces of 256 KiB among 4 were chosen wrongly, as 6 it is held for what they took. */
#define VETH_MEGABITS 10000
#define VETH_NS_PER_BYTE 0.17

/* Interfaces that software made: bridges and pairs of containers, virtual machines, tunnels. Used after real ones. */
static const char *const virtual_names[] = {
    "docker", "br-", "veth", "virbr", "vnet", "cni", "flannel", "cali", "cilium", "kube-", "nodelocaldns", "lxc", "lxd",
    "podman", "vmnet", "vboxnet", "tun", "tap", "wg", "ppp", "tailscale", "zt", "dummy", "ifb", "ip6tnl", "sit", "gre",
};

static bool has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static int ip_bytes(const struct hkt__tcp_addr *addr)
{
    return addr->family == 4 ? 4 : 16;
}

static bool is_loopback(const struct hkt__tcp_addr *addr)
{
    static const unsigned char loopback6[16] = {[15] = 1};

    return addr->family == 4 ? addr->ip[0] == 127 : memcmp(addr->ip, loopback6, 16) == 0;
}

/* Means nothing without naming an interface of the other host as well: never usable from outside. */
static bool needs_scope(const struct hkt__tcp_addr *addr)
{
    return addr->family == 6 && addr->ip[0] == 0xfe && (addr->ip[1] & 0xc0) == 0x80;
}

static enum hkt__tcp_class classify(const struct hkt__tcp_addr *addr)
{
    if (is_loopback(addr))
        return HKT__TCP_LOOPBACK;
    /* A global address on lo is an anycast or service address as a rule, the same on several hosts. */
    if (strcmp(addr->name, "lo") == 0)
        return HKT__TCP_VIRTUAL;
    for (size_t i = 0; i < sizeof virtual_names / sizeof *virtual_names; i++)
        if (has_prefix(addr->name, virtual_names[i]))
            return HKT__TCP_VIRTUAL;
    if (addr->family == 4 && addr->ip[0] == 169 && addr->ip[1] == 254)
        return HKT__TCP_LOCAL_ONLY;
    return HKT__TCP_GLOBAL;
}

static uint8_t mask_bits(const struct sockaddr *mask, int family)
{
    const unsigned char *bytes;
    int count, bits = 0;

    if (mask == NULL)
        return family == 4 ? 32 : 128;
    if (family == 4) {
        bytes = (const unsigned char *)&((const struct sockaddr_in *)(const void *)mask)->sin_addr;
        count = 4;
    } else {
        bytes = (const unsigned char *)&((const struct sockaddr_in6 *)(const void *)mask)->sin6_addr;
        count = 16;
    }
    for (int i = 0; i < count; i++)
        bits += __builtin_popcount(bytes[i]);
    return (uint8_t)bits;
}

enum hkt_status hkt__tcp_nics_list(struct hkt__tcp_nic *out_nics, int nics_max, int *out_count)
{
    struct ifaddrs *all;
    int count = 0;

    if (getifaddrs(&all) != 0)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot list the network interfaces (getifaddrs)");
    for (const struct ifaddrs *at = all; at != NULL && count < nics_max; at = at->ifa_next) {
        struct hkt__tcp_nic nic = {.up = (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_RUNNING) != 0};

        if (at->ifa_addr == NULL)
            continue;
        if (at->ifa_addr->sa_family == AF_INET) {
            nic.addr.family = 4;
            memcpy(nic.addr.ip, &((const struct sockaddr_in *)(const void *)at->ifa_addr)->sin_addr, 4);
        } else if (at->ifa_addr->sa_family == AF_INET6) {
            nic.addr.family = 6;
            memcpy(nic.addr.ip, &((const struct sockaddr_in6 *)(const void *)at->ifa_addr)->sin6_addr, 16);
        } else {
            continue;
        }
        nic.addr.prefix_bits = mask_bits(at->ifa_netmask, nic.addr.family);
        snprintf(nic.addr.name, sizeof nic.addr.name, "%s", at->ifa_name);
        out_nics[count++] = nic;
    }
    freeifaddrs(all);
    *out_count = count;
    return HKT_OK;
}

static bool is_veth(const char *name)
{
    struct ethtool_drvinfo info = {.cmd = ETHTOOL_GDRVINFO};
    struct ifreq request = {.ifr_data = (char *)&info};
    const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return false;
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    const bool is_told = ioctl(fd, SIOCETHTOOL, &request) == 0;

    close(fd);
    return is_told && strncmp(info.driver, "veth", sizeof info.driver) == 0;
}

double hkt__tcp_link_ns_per_byte(const struct hkt__tcp_addr *addr)
{
    char path[64];
    long megabits = 0;

    if (addr->rank_class > HKT__TCP_LOCAL_ONLY) /* tunnels and the like name a speed that nobody has measured */
        return 0;
    snprintf(path, sizeof path, "/sys/class/net/%.16s/speed", addr->name);
    FILE *file = fopen(path, "re");

    if (file == NULL)
        return 0;
    const bool is_read = fscanf(file, "%ld", &megabits) == 1; /* -1, or an error, where the card does not know */

    fclose(file);
    if (!is_read || megabits <= 0)
        return 0;
    return megabits == VETH_MEGABITS && is_veth(addr->name) ? VETH_NS_PER_BYTE : 8e3 / (double)megabits;
}

/* Do the first `bits` bits agree? */
static bool same_net(const struct hkt__tcp_addr *a, const struct hkt__tcp_addr *b, int bits)
{
    if (a->family != b->family || bits > ip_bytes(a) * 8)
        return false;
    if (memcmp(a->ip, b->ip, (size_t)bits / 8) != 0)
        return false;
    return bits % 8 == 0 || ((a->ip[bits / 8] ^ b->ip[bits / 8]) >> (8 - bits % 8)) == 0;
}

/* "192.0.2.0/24", "192.0.2.7", "fd00::/64". */
static bool parse_net(const char *text, struct hkt__tcp_addr *out_net)
{
    char host[64];
    const char *slash = strchr(text, '/');
    const size_t length = slash != NULL ? (size_t)(slash - text) : strlen(text);

    if (length >= sizeof host)
        return false;
    memcpy(host, text, length);
    host[length] = '\0';
    memset(out_net, 0, sizeof *out_net);
    if (inet_pton(AF_INET, host, out_net->ip) == 1)
        out_net->family = 4;
    else if (inet_pton(AF_INET6, host, out_net->ip) == 1)
        out_net->family = 6;
    else
        return false;
    int bits = ip_bytes(out_net) * 8;

    if (slash != NULL) {
        char rest;

        if (sscanf(slash + 1, "%3d%c", &bits, &rest) != 1 || bits < 0 || bits > ip_bytes(out_net) * 8)
            return false;
    }
    out_net->prefix_bits = (uint8_t)bits;
    return true;
}

/* One item of a pin: an address or network, "=name" for just this interface, else the interface of this name or, when
 * none has it (exact false), those whose names begin so. */
static bool item_matches(const char *item, const struct hkt__tcp_addr *addr, bool exact)
{
    struct hkt__tcp_addr net;

    if (parse_net(item, &net))
        return same_net(addr, &net, net.prefix_bits);
    if (item[0] == '=')
        return strcmp(addr->name, item + 1) == 0;
    return exact ? strcmp(addr->name, item) == 0 : has_prefix(addr->name, item);
}

static bool usable(const struct hkt__tcp_nic *nic)
{
    return nic->up && !needs_scope(&nic->addr);
}

/* Mark in `match` what one item stands for. */
static void match_item(const struct hkt__tcp_nic *nics, int nic_count, const char *item, bool *match)
{
    for (int exact = 1; exact >= 0; exact--) {
        bool any = false;

        for (int i = 0; i < nic_count; i++)
            if (usable(&nics[i]) && item_matches(item, &nics[i].addr, exact != 0))
                match[i] = any = true;
        if (any)
            return;
    }
}

static void match_pin(const struct hkt__tcp_nic *nics, int nic_count, const char *pin, bool *match)
{
    const bool inverted = pin[0] == '^';
    char item[64];

    memset(match, 0, (size_t)nic_count);
    for (const char *at = pin + inverted; *at != '\0';) {
        const size_t length = strcspn(at, ",");

        if (length > 0 && length < sizeof item) {
            memcpy(item, at, length);
            item[length] = '\0';
            match_item(nics, nic_count, item, match);
        }
        at += length + (at[length] == ',');
    }
    for (int i = 0; i < nic_count && inverted; i++)
        match[i] = !match[i];
}

static enum hkt_status fail_no_nic(const struct hkt__tcp_nic *nics, int nic_count, const char *pin)
{
    char list[640] = "";
    size_t used = 0;

    for (int i = 0; i < nic_count; i++) {
        char ip[INET6_ADDRSTRLEN] = "?";
        const struct hkt__tcp_addr *addr = &nics[i].addr;

        inet_ntop(addr->family == 4 ? AF_INET : AF_INET6, addr->ip, ip, sizeof ip);
        const int wrote = snprintf(list + used, sizeof list - used, "%s%s %s/%d%s", used > 0 ? ", " : "", addr->name, ip,
                                   addr->prefix_bits,
                                   !nics[i].up ? " (down)" : needs_scope(addr) ? " (link-local: not usable)" : "");

        if (wrote < 0 || (size_t)wrote >= sizeof list - used)
            break;
        used += (size_t)wrote;
    }
    if (pin[0] == '\0')
        return hkt__fail(HKT_ERR_UNSUPPORTED, "tcp: no interface with a usable address; there is: %s",
                         nic_count > 0 ? list : "none at all (bring up lo)");
    return hkt__fail(HKT_ERR_INVALID, "tcp: HOCKET_INTERFACE=%s matches no usable address; there is: %s", pin,
                     nic_count > 0 ? list : "none at all");
}

/* Smaller is better: class first, then IPv4, then the order of the system. */
static int preference(const struct hkt__tcp_addr *addr)
{
    return addr->rank_class * 2 + (addr->family == 6);
}

enum hkt_status hkt__tcp_nics_choose(const struct hkt__tcp_nic *nics, int nic_count, const char *pin,
                                     struct hkt__tcp_addr out_addrs[HKT__TCP_ADDRS_MAX], int *out_count)
{
    bool match[HKT__TCP_NICS_MAX];
    struct hkt__tcp_addr sorted[HKT__TCP_NICS_MAX];
    int count = 0, loopbacks = 0;

    if (nic_count > HKT__TCP_NICS_MAX)
        nic_count = HKT__TCP_NICS_MAX;
    if (pin == NULL)
        pin = "";
    match_pin(nics, nic_count, pin, match);
    for (int i = 0; i < nic_count; i++) {
        struct hkt__tcp_addr addr = nics[i].addr;

        if (!usable(&nics[i]) || (pin[0] != '\0' && !match[i]))
            continue;
        addr.rank_class = (uint8_t)classify(&addr);
        loopbacks += addr.rank_class == HKT__TCP_LOOPBACK;
        int at = count++;

        for (; at > 0 && preference(&sorted[at - 1]) > preference(&addr); at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = addr;
    }
    if (count == 0)
        return fail_no_nic(nics, nic_count, pin);
    /* Room is short on hosts with many addresses: the best ones, but always one loopback. */
    const int kept = count <= HKT__TCP_ADDRS_MAX ? count : HKT__TCP_ADDRS_MAX;

    memcpy(out_addrs, sorted, (size_t)kept * sizeof *sorted);
    if (count > kept && loopbacks > 0 && out_addrs[kept - 1].rank_class != HKT__TCP_LOOPBACK)
        out_addrs[kept - 1] = sorted[count - loopbacks];
    *out_count = kept;
    return HKT_OK;
}

bool hkt__tcp_is_neighbour(const struct hkt__tcp_blob *own, const struct hkt__tcp_addr *addr)
{
    bool is_near = false;

    for (int i = 0; i < own->addr_count; i++)
        is_near = is_near || same_net(&own->addrs[i], addr, own->addrs[i].prefix_bits);
    return is_near;
}

/* How likely an address of the peer works from here; smaller is better, -1: it cannot. */
static int distance(const struct hkt__tcp_blob *own, const struct hkt__tcp_addr *addr, bool same_host)
{
    bool is_mine = false;
    const bool is_near = hkt__tcp_is_neighbour(own, addr);

    if (addr->rank_class == HKT__TCP_LOOPBACK)
        return same_host ? 0 : -1;
    for (int i = 0; i < own->addr_count; i++)
        is_mine = is_mine || same_net(&own->addrs[i], addr, ip_bytes(addr) * 8);
    /* Both hosts have this address (docker0 is 172.17.0.1 everywhere): from here it means this host. */
    if (is_mine && !same_host)
        return 3 + addr->rank_class;
    return is_near && addr->rank_class != HKT__TCP_VIRTUAL ? 1 : 2 + (addr->rank_class == HKT__TCP_VIRTUAL);
}

int hkt__tcp_route(const struct hkt__tcp_blob *own, const struct hkt__tcp_blob *peer,
                   unsigned char out_order[HKT__TCP_ADDRS_MAX])
{
    const bool same_host = own->host_id == peer->host_id;
    int distances[HKT__TCP_ADDRS_MAX], count = 0;

    for (int i = 0; i < peer->addr_count; i++) {
        const int here = distance(own, &peer->addrs[i], same_host);
        int at = count;

        if (here < 0)
            continue;
        for (; at > 0 && distances[at - 1] > here; at--) {
            distances[at] = distances[at - 1];
            out_order[at] = out_order[at - 1];
        }
        distances[at] = here;
        out_order[at] = (unsigned char)i;
        count++;
    }
    return count;
}

size_t hkt__tcp_blob_bytes(const struct hkt__tcp_blob *blob)
{
    return offsetof(struct hkt__tcp_blob, addrs) + blob->addr_count * sizeof blob->addrs[0];
}

bool hkt__tcp_blob_read(const void *bytes, size_t size, struct hkt__tcp_blob *out_blob)
{
    struct hkt__tcp_blob blob = {0};

    if (size < offsetof(struct hkt__tcp_blob, addrs) || size > sizeof blob)
        return false;
    memcpy(&blob, bytes, size);
    if (blob.magic != HKT__TCP_MAGIC_BLOB || blob.version != HKT__TCP_VERSION ||
        blob.addr_count > HKT__TCP_ADDRS_MAX || size != hkt__tcp_blob_bytes(&blob))
        return false;
    for (int i = 0; i < blob.addr_count; i++) {
        struct hkt__tcp_addr *addr = &blob.addrs[i];

        if ((addr->family != 4 && addr->family != 6) || addr->prefix_bits > ip_bytes(addr) * 8)
            return false;
        /* The name is printed: keep it a string of printable characters. */
        addr->name[sizeof addr->name - 1] = '\0';
        for (char *at = addr->name; *at != '\0'; at++)
            if (*at < '!' || *at > '~')
                *at = '?';
    }
    *out_blob = blob;
    return true;
}

void hkt__tcp_addr_text(const struct hkt__tcp_addr *addr, char out_text[HKT__TCP_TEXT_MAX])
{
    char ip[INET6_ADDRSTRLEN] = "?";

    inet_ntop(addr->family == 4 ? AF_INET : AF_INET6, addr->ip, ip, sizeof ip);
    snprintf(out_text, HKT__TCP_TEXT_MAX, addr->family == 4 ? "%s:%u (%s)" : "[%s]:%u (%s)", ip, (unsigned)addr->port,
             addr->name);
}

socklen_t hkt__tcp_addr_to_sock(const struct hkt__tcp_addr *addr, struct sockaddr_storage *out_sock)
{
    memset(out_sock, 0, sizeof *out_sock);
    if (addr->family == 4) {
        struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(addr->port)};

        memcpy(&in.sin_addr, addr->ip, 4);
        memcpy(out_sock, &in, sizeof in);
        return sizeof in;
    }
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(addr->port)};

    memcpy(&in6.sin6_addr, addr->ip, 16);
    memcpy(out_sock, &in6, sizeof in6);
    return sizeof in6;
}

void hkt__tcp_addr_from_sock(const struct sockaddr_storage *sock, struct hkt__tcp_addr *out_addr)
{
    if (sock->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)sock;

        out_addr->family = 4;
        out_addr->port = ntohs(in->sin_port);
        memcpy(out_addr->ip, &in->sin_addr, 4);
    } else {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)sock;

        out_addr->family = 6;
        out_addr->port = ntohs(in6->sin6_port);
        memcpy(out_addr->ip, &in6->sin6_addr, 16);
    }
}

/* A kernel's boot id and the inode of the network namespace: what two processes share when one's loopback is the
 * other's. Clones of one virtual machine may agree wrongly; then a loopback connection fails its proof and the next
 * address is tried. */
uint64_t hkt__tcp_host_id(void)
{
    static const unsigned char key[16] = "hocket host id";
    struct {
        char boot[64];
        char host[64];
        uint64_t namespace_inode, namespace_device;
    } id;
    struct stat info;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");

    memset(&id, 0, sizeof id);
    if (file != NULL) {
        if (fgets(id.boot, sizeof id.boot, file) == NULL)
            id.boot[0] = '\0';
        fclose(file);
    }
    if (id.boot[0] == '\0' && gethostname(id.host, sizeof id.host - 1) != 0)
        id.host[0] = '\0';
    if (stat("/proc/self/ns/net", &info) == 0) {
        id.namespace_inode = info.st_ino;
        id.namespace_device = info.st_dev;
    }
    return hkt__siphash(key, &id, sizeof id);
}
