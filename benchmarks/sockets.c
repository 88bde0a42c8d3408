/* Ways to send bytes over TCP sockets, in turns: which of them pay?
 *
 *   sockets [SECONDS]                     both ends on this machine, over the loopback
 *   sockets --listen ADDRESS:PORT         the receiving end, for one run of the other: in another network namespace, say
 *   sockets --to ADDRESS:PORT [SECONDS]
 *
 * A case is a way, bytes per call and a number of sockets, which calls go round. One round of a case sends 64 MiB and ends when
 * the receiver, which reads them into 1 MiB, has said that it has them all. The figures are medians over rounds: 10^9 bytes/s, and
 * core time of the sender, microseconds per MB. Ways:
 *
 *   send      send() on blocking sockets: what the transport does, but that it does not block
 *   zerocopy  the same with MSG_ZEROCOPY; the kernel's notices are read before a buffer would be used again
 *   uring     io_uring: calls of all sockets in one system call, where liburing was there to build with */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef HAVE_LIBURING
#include <liburing.h>
#endif

enum { SOCKETS_MAX = 4, ROUNDS_MAX = 200, ROUND_BYTES = 64 << 20, BUFFER_BYTES = 4 << 20, READ_BYTES = 1 << 20 };
enum way { SEND, ZEROCOPY, URING, WAYS };
static const char *const way_names[WAYS] = { "send", "zerocopy", "uring" };
static const size_t call_sizes[] = { 16 << 10, 128 << 10, 1 << 20 };
static const int socket_counts[] = { 1, 2, 4 };
enum { SIZES = 3, COUNTS = 3 };

struct sender {
    int nsockets, fds[SOCKETS_MAX];
    const char *buffer;
    int owed[SOCKETS_MAX]; /* zero-copy calls whose buffers the kernel has not given back */
    int given, copied;     /* of those that it has, and where it had copied after all */
};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "sockets: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double seconds_of(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec * 1e-6;
}

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double core_seconds(void)
{
    struct rusage use;

    getrusage(RUSAGE_SELF, &use);
    return seconds_of(use.ru_utime) + seconds_of(use.ru_stime);
}

/* ---- the receiving end ---- */

/* A connection opens with the number of its group's sockets; the first one of a group carries the answer. */
static void serve_group(int listener, char *buffer)
{
    struct pollfd polled[SOCKETS_MAX];
    int32_t nsockets = 1, open = 0;

    for (int i = 0; i < nsockets; i++) {
        errno = EPROTO;
        polled[i] = (struct pollfd){ .fd = accept(listener, NULL, NULL), .events = POLLIN };
        if (polled[i].fd < 0 || recv(polled[i].fd, &nsockets, sizeof nsockets, MSG_WAITALL) != sizeof nsockets || nsockets < 0 ||
            nsockets > SOCKETS_MAX)
            die("accept");
        if (nsockets == 0) { /* the sender is done */
            close(polled[i].fd);
            exit(0);
        }
        open++;
    }
    while (open > 0) {
        if (poll(polled, (nfds_t)nsockets, -1) < 0)
            die("poll");
        for (int i = 0; i < nsockets; i++) {
            if (polled[i].events == 0 || polled[i].revents == 0)
                continue;
            const ssize_t got = recv(polled[i].fd, buffer, READ_BYTES, MSG_DONTWAIT);

            if (got < 0 && errno != EAGAIN)
                die("recv");
            if (got == 0) {
                polled[i].events = 0;
                open--;
            }
        }
    }
    if (send(polled[0].fd, "", 1, MSG_NOSIGNAL) != 1)
        die("answer");
    for (int i = 0; i < nsockets; i++)
        close(polled[i].fd);
}

static _Noreturn void serve(int listener)
{
    char *buffer = malloc(READ_BYTES);

    if (buffer == NULL)
        die("malloc");
    for (;;)
        serve_group(listener, buffer);
}

/* ---- the sending end ---- */

static int connect_to(const struct sockaddr_in *address, int32_t nsockets)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

    if (fd < 0 || connect(fd, (const struct sockaddr *)address, sizeof *address) != 0)
        die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (send(fd, &nsockets, sizeof nsockets, MSG_NOSIGNAL) != sizeof nsockets)
        die("send");
    return fd;
}

static void send_all(int fd, const char *bytes, size_t count, int flags, int *out_calls)
{
    for (size_t done = 0; done < count;) {
        const ssize_t sent = send(fd, bytes + done, count - done, MSG_NOSIGNAL | flags);

        if (sent < 0 && errno != ENOBUFS && errno != EINTR) /* ENOBUFS: too many notices wait */
            die("send");
        if (sent > 0) {
            done += (size_t)sent;
            ++*out_calls;
        }
    }
}

/* Waits for notices of zero-copy calls. */
static void collect_notices(struct sender *s, int socket)
{
    while (s->owed[socket] > 0) {
        char control[128];
        struct msghdr message = { .msg_control = control, .msg_controllen = sizeof control };
        struct pollfd polled = { .fd = s->fds[socket] };

        if (recvmsg(s->fds[socket], &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
            if (errno != EAGAIN || poll(&polled, 1, 1000) < 0)
                die("notices");
            continue;
        }
        const struct sock_extended_err *notice = (const void *)CMSG_DATA(CMSG_FIRSTHDR(&message));

        const int calls = (int)(notice->ee_data - notice->ee_info + 1);

        s->owed[socket] -= calls;
        s->given += calls;
        s->copied += notice->ee_code == SO_EE_CODE_ZEROCOPY_COPIED ? calls : 0;
    }
}

static void send_by_calls(struct sender *s, size_t call_bytes, bool zerocopy)
{
    const int on = 1;

    for (int i = 0; zerocopy && i < s->nsockets; i++)
        if (setsockopt(s->fds[i], SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) != 0)
            die("SO_ZEROCOPY");
    for (size_t call = 0; call < ROUND_BYTES / call_bytes; call++) {
        const int socket = (int)(call % (size_t)s->nsockets);
        int calls = 0;

        if (zerocopy && call * call_bytes % BUFFER_BYTES == 0) /* the buffer is used again */
            for (int i = 0; i < s->nsockets; i++)
                collect_notices(s, i);
        send_all(s->fds[socket], s->buffer + call * call_bytes % BUFFER_BYTES, call_bytes, zerocopy ? MSG_ZEROCOPY : 0, &calls);
        s->owed[socket] += zerocopy ? calls : 0;
    }
    for (int i = 0; i < s->nsockets; i++)
        collect_notices(s, i);
}

#ifdef HAVE_LIBURING
/* One call per socket on its way at a time, as a stream needs. */
static void send_by_uring(struct sender *s, size_t call_bytes)
{
    struct io_uring ring;
    size_t calls = ROUND_BYTES / call_bytes;

    if ((errno = -io_uring_queue_init(2 * SOCKETS_MAX, &ring, 0)) != 0)
        die("io_uring");
    while (calls > 0) {
        const int count = calls < (size_t)s->nsockets ? (int)calls : s->nsockets;

        for (int i = 0; i < count; i++)
            io_uring_prep_send(io_uring_get_sqe(&ring), s->fds[i], s->buffer + (size_t)i * (BUFFER_BYTES / SOCKETS_MAX),
                               call_bytes, MSG_NOSIGNAL | MSG_WAITALL);
        if (io_uring_submit_and_wait(&ring, (unsigned)count) != count)
            die("io_uring_submit_and_wait");
        for (int i = 0; i < count; i++) {
            struct io_uring_cqe *done;

            if (io_uring_wait_cqe(&ring, &done) != 0 || done->res != (int)call_bytes)
                die("io_uring send");
            io_uring_cqe_seen(&ring, done);
        }
        calls -= (size_t)count;
    }
    io_uring_queue_exit(&ring);
}
#else
static void send_by_uring(struct sender *s, size_t call_bytes)
{
    (void)s;
    (void)call_bytes;
}
#endif

struct figures {
    double rate, core, copied; /* 10^9 bytes/s; microseconds per MB; share of zero-copy calls that were copied after all */
};

static struct figures run_round(const struct sockaddr_in *address, const char *buffer, enum way way, size_t call_bytes, int nsockets)
{
    struct sender s = { .nsockets = nsockets, .buffer = buffer };
    char answer;

    for (int i = 0; i < nsockets; i++)
        s.fds[i] = connect_to(address, nsockets);
    const double start = now(), core = core_seconds();

    if (way == URING)
        send_by_uring(&s, call_bytes);
    else
        send_by_calls(&s, call_bytes, way == ZEROCOPY);
    for (int i = 0; i < nsockets; i++)
        shutdown(s.fds[i], SHUT_WR);
    if (recv(s.fds[0], &answer, 1, MSG_WAITALL) != 1)
        die("answer");
    const double took = now() - start;
    const struct figures figures = { ROUND_BYTES / took * 1e-9, (core_seconds() - core) * 1e12 / ROUND_BYTES,
                                     s.given > 0 ? (double)s.copied / s.given : 0 };

    for (int i = 0; i < nsockets; i++)
        close(s.fds[i]);
    return figures;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

static struct figures all[WAYS][SIZES][COUNTS][ROUNDS_MAX];

static void print_medians(int rounds, int ways)
{
    printf("way       bytes/call sockets   10^9 B/s   core us/MB   copied after all (medians of %d rounds)\n", rounds);
    for (int size = 0; size < SIZES; size++)
        for (int count = 0; count < COUNTS; count++)
            for (int way = 0; way < ways; way++) {
                double rates[ROUNDS_MAX], cores[ROUNDS_MAX], copied[ROUNDS_MAX];

                for (int i = 0; i < rounds; i++) {
                    rates[i] = all[way][size][count][i].rate;
                    cores[i] = all[way][size][count][i].core;
                    copied[i] = all[way][size][count][i].copied;
                }
                printf("%-9s %10zu %7d %10.2f %12.0f %10.0f %%\n", way_names[way], call_sizes[size], socket_counts[count],
                       median(rates, rounds), median(cores, rounds), 100 * median(copied, rounds));
            }
}

static void measure(const struct sockaddr_in *address, double seconds, int ways)
{
    char *buffer = aligned_alloc(4096, BUFFER_BYTES);
    const double end = now() + seconds;
    int rounds = 0;

    if (buffer == NULL)
        die("malloc");
    memset(buffer, 1, BUFFER_BYTES);
    for (; rounds < ROUNDS_MAX && (rounds < 3 || now() < end); rounds++)
        for (int size = 0; size < SIZES; size++)
            for (int count = 0; count < COUNTS; count++)
                for (int way = 0; way < ways; way++)
                    all[way][size][count][rounds] =
                        run_round(address, buffer, (enum way)way, call_sizes[size], socket_counts[count]);
    print_medians(rounds, ways);
    close(connect_to(address, 0));
    free(buffer);
}

static struct sockaddr_in parse(const char *text)
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    char ip[64];
    unsigned port;
    char rest;

    if (sscanf(text, "%63[0-9.]:%5u%c", ip, &port, &rest) != 2 || port > 65535 || inet_pton(AF_INET, ip, &address.sin_addr) != 1) {
        fprintf(stderr, "sockets: not an IPv4 address and port: %s\n", text);
        exit(2);
    }
    address.sin_port = htons((uint16_t)port);
    return address;
}

static int listen_on(struct sockaddr_in *address)
{
    const int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    socklen_t bytes = sizeof *address;

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(fd, (const struct sockaddr *)address, bytes) != 0 || listen(fd, SOCKETS_MAX) != 0 ||
        getsockname(fd, (struct sockaddr *)address, &bytes) != 0)
        die("listen");
    return fd;
}

int main(int argc, char **argv)
{
    const bool listens = argc == 3 && strcmp(argv[1], "--listen") == 0, is_remote = argc >= 3 && strcmp(argv[1], "--to") == 0;
    const char *text = argc == (is_remote ? 4 : 2) ? argv[argc - 1] : "20";
    char *end;
    const double seconds = strtod(text, &end);
#ifdef HAVE_LIBURING
    const int ways = WAYS;
#else
    const int ways = URING;
#endif
    struct sockaddr_in address = parse(listens || is_remote ? argv[2] : "127.0.0.1:0");
    int status = 0;

    if (!listens && (argc > (is_remote ? 4 : 2) || end == text || *end != '\0' || !(seconds > 0))) {
        fprintf(stderr, "usage: sockets [SECONDS] | --listen ADDRESS:PORT | --to ADDRESS:PORT [SECONDS]\n");
        return 2;
    }
    if (listens)
        serve(listen_on(&address));
    if (is_remote) {
        measure(&address, seconds, ways);
        return 0;
    }
    const int listener = listen_on(&address);
    const pid_t receiver = fork();

    if (receiver < 0)
        die("fork");
    if (receiver == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing outlives a sender that fails */
        serve(listener);
    }
    close(listener);
    measure(&address, seconds, ways);
    return waitpid(receiver, &status, 0) == receiver && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
