/* What the plugin does; see plugin.h. A message is a tag, its size, and its bytes, on a socket of its own per connection.
 * Messages are written and read in order; one that arrives goes to the oldest posted group that has a place for its tag. */
#include "plugin.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REQUESTS_MAX 8 /* per connection, as the interface promises */
#define GROUP_MAX 4    /* receives of one request: maxRecvs */
#define SHY 3          /* one call of so many is refused for now */

struct head {
    uint32_t tag, bytes;
};

/** A place of a posted group, or the message of a send. */
struct part {
    unsigned char *data;
    size_t bytes, room;
    int tag;
    bool is_filled;
};

struct comm;

struct request {
    struct comm *comm;
    bool is_used, is_done;
    int nparts;
    struct part parts[GROUP_MAX];
};

/** Requests are used in a ring: from `first`, `count` of them. */
struct comm {
    int fd;
    bool is_sender;
    unsigned calls;
    struct request requests[REQUESTS_MAX];
    unsigned first, count;
    struct head head;             /* of the message under way */
    size_t head_done, body_done;
    struct part *part;            /* where it goes; NULL: not known yet */
};

struct region {
    struct comm *comm;
    unsigned char *data;
    size_t bytes;
};

/** In a handle; fd is the connector's, between its calls. */
struct handle {
    struct sockaddr_in address;
    int fd, calls;
};

static logger *say;
static _Atomic long fault_left = -1;
static char fault_call[32];
static bool is_deadly;
_Atomic int plug_alive;

int netplug_alive(void);

__attribute__((visibility("default"))) int netplug_alive(void)
{
    return atomic_load(&plug_alive);
}

/* ---- faults ---- */

static void read_fault(void)
{
    const char *text = getenv("NETPLUG_FAULT");
    const char *colon = text != NULL ? strchr(text, ':') : NULL;

    atomic_store(&fault_left, -1);
    if (colon == NULL)
        return;
    snprintf(fault_call, sizeof fault_call, "%.*s", (int)(colon - text), text);
    is_deadly = strstr(text, ":die") != NULL;
    atomic_store(&fault_left, strtol(colon + 1, NULL, 10));
}

/** Is it this call that fails? */
static bool is_faulty(const char *call)
{
    if (atomic_load(&fault_left) <= 0 || strcmp(call, fault_call) != 0 || atomic_fetch_sub(&fault_left, 1) != 1)
        return false;
    if (is_deadly)
        raise(SIGKILL);
    say(2, 0x10, __FILE__, __LINE__, "the %s was asked to fail", call);
    return true;
}

/* ---- devices ---- */

int plug_init(logger *log)
{
    say = log;
    read_fault();
    say(3, 0x10, __FILE__, __LINE__, "netplug starts");
    return is_faulty("init") ? SYSTEM_ERROR : OK;
}

static long number(const char *name, long fallback)
{
    const char *text = getenv(name);

    return text != NULL ? strtol(text, NULL, 10) : fallback;
}

int plug_devices(int *out_count)
{
    *out_count = (int)number("NETPLUG_DEVICES", 3);
    return is_faulty("devices") ? SYSTEM_ERROR : OK;
}

int plug_device(int device, struct plug_device *out_device)
{
    static char names[3][8] = {"plug0", "plug1", "plug2"};

    if (device < 0 || device > 2 || is_faulty("getProperties"))
        return device < 0 || device > 2 ? INVALID_ARGUMENT : SYSTEM_ERROR;
    out_device->name = names[device];
    out_device->ptr = (int)number("NETPLUG_PTR", 1);
    out_device->speed = device == 2 ? 1000 : 25000;
    out_device->bytes_max = (size_t)number("NETPLUG_BYTES", 0);
    return OK;
}

/* ---- connections ---- */

int plug_listen(int device, void *handle, void **out_listener)
{
    struct handle fresh = {.address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, .fd = -1};
    socklen_t bytes = sizeof fresh.address;
    int *listener = malloc(sizeof *listener);

    if (listener == NULL || device < 0 || device > 1 || is_faulty("listen")) {
        free(listener);
        return device == 2 ? INVALID_USAGE : SYSTEM_ERROR; /* the slow one is not to be used */
    }
    *listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (bind(*listener, (struct sockaddr *)&fresh.address, bytes) != 0 || listen(*listener, 1) != 0 ||
        getsockname(*listener, (struct sockaddr *)&fresh.address, &bytes) != 0) {
        close(*listener);
        free(listener);
        return SYSTEM_ERROR;
    }
    memcpy(handle, &fresh, sizeof fresh);
    *out_listener = listener;
    atomic_fetch_add(&plug_alive, 1);
    return OK;
}

static int make_comm(int fd, bool is_sender, void **out_comm)
{
    struct comm *comm = calloc(1, sizeof *comm);

    if (comm == NULL)
        return SYSTEM_ERROR;
    comm->fd = fd;
    comm->is_sender = is_sender;
    for (int i = 0; i < REQUESTS_MAX; i++)
        comm->requests[i].comm = comm;
    *out_comm = comm;
    atomic_fetch_add(&plug_alive, 1);
    return OK;
}

int plug_connect(int device, void *handle, void **out_comm)
{
    struct handle state;
    const int small = 65536; /* so that a message of the largest size does not fit */

    (void)device;
    *out_comm = NULL;
    if (is_faulty("connect"))
        return SYSTEM_ERROR;
    memcpy(&state, handle, sizeof state);
    if (state.calls++ == 0) {
        state.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        (void)setsockopt(state.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    }
    memcpy(handle, &state, sizeof state);
    if (state.calls == 1)
        return OK;
    if (connect(state.fd, (struct sockaddr *)&state.address, sizeof state.address) != 0 && errno != EISCONN) {
        if (errno == EINPROGRESS || errno == EALREADY)
            return OK;
        close(state.fd);
        return REMOTE_ERROR;
    }
    return make_comm(state.fd, true, out_comm);
}

int plug_accept(void *listener, void **out_comm)
{
    *out_comm = NULL;
    if (is_faulty("accept"))
        return SYSTEM_ERROR;
    const int fd = accept4(*(int *)listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0)
        return errno == EAGAIN ? OK : SYSTEM_ERROR;
    return make_comm(fd, false, out_comm);
}

int plug_close(void *data)
{
    struct comm *comm = data;

    close(comm->fd);
    free(comm);
    atomic_fetch_sub(&plug_alive, 1);
    return is_faulty("close") ? SYSTEM_ERROR : OK;
}

int plug_close_listen(void *listener)
{
    close(*(int *)listener);
    free(listener);
    atomic_fetch_sub(&plug_alive, 1);
    return OK;
}

int plug_reg(void *comm, void *data, size_t bytes, int type, void **out_region)
{
    struct region *region = malloc(sizeof *region);

    if (region == NULL || type != 1 || is_faulty("regMr")) {
        free(region);
        return type != 1 ? INVALID_ARGUMENT : SYSTEM_ERROR;
    }
    *region = (struct region){comm, data, bytes};
    *out_region = region;
    atomic_fetch_add(&plug_alive, 1);
    return OK;
}

int plug_dereg(void *comm, void *data)
{
    struct region *region = data;

    if (region->comm != comm)
        return INVALID_ARGUMENT;
    free(region);
    atomic_fetch_sub(&plug_alive, 1);
    return OK;
}

/* ---- messages ---- */

static bool is_inside(const struct comm *comm, const struct region *region, const unsigned char *data, size_t bytes)
{
    return region != NULL && region->comm == comm && data >= region->data && data + bytes <= region->data + region->bytes;
}

/** The next free request; NULL: as many are in use as may be, or it is shy. */
static struct request *take_request(struct comm *comm)
{
    struct request *request = &comm->requests[(comm->first + comm->count) % REQUESTS_MAX];

    if (++comm->calls % SHY == 0 || comm->count == REQUESTS_MAX)
        return NULL;
    comm->count++;
    request->is_used = true;
    request->is_done = false;
    return request;
}

int plug_isend(void *data, void *from, size_t bytes, int tag, void *region, void **out_request)
{
    struct comm *comm = data;

    if (!comm->is_sender || !is_inside(comm, region, from, bytes))
        return INVALID_ARGUMENT;
    if (is_faulty("isend"))
        return SYSTEM_ERROR;
    struct request *request = take_request(comm);

    *out_request = request;
    if (request == NULL)
        return OK;
    request->nparts = 1;
    request->parts[0] = (struct part){.data = from, .bytes = bytes, .tag = tag};
    return OK;
}

int plug_irecv(void *data, int n, void **to, size_t *sizes, int *tags, void **regions, void **out_request)
{
    struct comm *comm = data;

    if (comm->is_sender || n < 1 || n > GROUP_MAX || *out_request != NULL)
        return INVALID_ARGUMENT;
    for (int i = 0; i < n; i++)
        if (!is_inside(comm, regions[i], to[i], sizes[i]))
            return INVALID_ARGUMENT;
    if (is_faulty("irecv"))
        return SYSTEM_ERROR;
    struct request *request = take_request(comm);

    *out_request = request;
    if (request == NULL)
        return OK;
    request->nparts = n;
    for (int i = 0; i < n; i++)
        request->parts[i] = (struct part){.data = to[i], .room = sizes[i], .tag = tags[i]};
    return OK;
}

int plug_iflush(void *comm, int n, void **data, int *sizes, void **regions, void **out_request)
{
    (void)comm;
    (void)n;
    (void)data;
    (void)sizes;
    (void)regions;
    *out_request = NULL;
    return INTERNAL_ERROR; /* memory of the host needs no flush */
}

/** Move bytes on the socket: 1: all of them are through; 0: not yet; negative: an error. */
static int move_bytes(struct comm *comm, void *data, size_t bytes, size_t *done)
{
    while (*done < bytes) {
        unsigned char *at = (unsigned char *)data + *done;
        const ssize_t n = comm->is_sender ? send(comm->fd, at, bytes - *done, MSG_NOSIGNAL) : recv(comm->fd, at, bytes - *done, 0);

        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return -REMOTE_ERROR;
        if (n < 0)
            return 0;
        *done += (size_t)n;
    }
    return 1;
}

/** The oldest posted place with the tag of what arrives, in the oldest group that is not full. */
static int find_part(struct comm *comm)
{
    for (unsigned i = 0; i < comm->count; i++) {
        struct request *request = &comm->requests[(comm->first + i) % REQUESTS_MAX];

        if (request->is_done)
            continue;
        for (int k = 0; k < request->nparts; k++)
            if (!request->parts[k].is_filled && request->parts[k].tag == (int)comm->head.tag) {
                comm->part = &request->parts[k];
                return comm->head.bytes <= request->parts[k].room ? OK : INVALID_USAGE;
            }
        return INVALID_USAGE; /* a tag that the group does not have */
    }
    return INTERNAL_ERROR;
}

static void finish_part(struct comm *comm)
{
    comm->part->is_filled = true;
    comm->part = NULL;
    comm->head_done = comm->body_done = 0;
    for (unsigned i = 0; i < comm->count; i++) {
        struct request *request = &comm->requests[(comm->first + i) % REQUESTS_MAX];
        bool is_done = true;

        for (int k = 0; k < request->nparts; k++)
            is_done &= request->parts[k].is_filled;
        request->is_done = is_done;
    }
}

static bool has_work(struct comm *comm)
{
    for (unsigned i = 0; i < comm->count; i++)
        if (!comm->requests[(comm->first + i) % REQUESTS_MAX].is_done)
            return true;
    return false;
}

/** Go on with the message under way, then with the next one. */
static int progress(struct comm *comm)
{
    while (has_work(comm)) {
        int rc;

        if (comm->part == NULL && comm->is_sender) {
            for (unsigned i = 0; comm->part == NULL; i++)
                if (!comm->requests[(comm->first + i) % REQUESTS_MAX].is_done)
                    comm->part = &comm->requests[(comm->first + i) % REQUESTS_MAX].parts[0];
            comm->head = (struct head){(uint32_t)comm->part->tag, (uint32_t)comm->part->bytes};
        }
        rc = move_bytes(comm, &comm->head, sizeof comm->head, &comm->head_done);
        if (rc <= 0)
            return -rc;
        if (comm->part == NULL && (rc = find_part(comm)) != OK)
            return rc;
        rc = move_bytes(comm, comm->part->data, comm->head.bytes, &comm->body_done);
        if (rc <= 0)
            return -rc;
        comm->part->bytes = comm->head.bytes;
        finish_part(comm);
    }
    return OK;
}

int plug_test(void *data, int *out_done, int *sizes)
{
    struct request *request = data;
    struct comm *comm = request->comm;

    *out_done = 0;
    if (!request->is_used || request != &comm->requests[comm->first])
        return INTERNAL_ERROR; /* neither an old one, nor out of turn: as strict as no plugin is */
    if (is_faulty("test"))
        return SYSTEM_ERROR;
    const int rc = request->is_done ? OK : progress(comm);

    if (!request->is_done)
        return rc;
    for (int k = 0; k < request->nparts; k++)
        sizes[k] = (int)request->parts[k].bytes;
    request->is_used = false;
    comm->first = (comm->first + 1) % REQUESTS_MAX;
    comm->count--;
    *out_done = 1;
    return OK;
}
