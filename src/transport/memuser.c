/* Memory that the user asked for (hkt_mem_alloc): blocks of the own arena, so that peers on the host address it as they do
 * windows. And the other way to a peer's memory, for what was allocated elsewhere: process_vm_readv and writev (CMA), one
 * copy by the kernel. Containers and ptrace_scope often forbid it, so it is tried with each peer before it is offered. */
#include <errno.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "core/error.h"
#include "core/mem.h"
#include "transport/memdom.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1; the C library of Debian 12 does not name it */
#endif

struct hkt__mem_user {
    struct hkt__block block;
    struct hkt__mem_user *next;
};

/** Ask for huge pages, and for them to be made now: some 5 % of a large collective. Kernels before 6.1 know no
 *  MADV_COLLAPSE, and give huge pages where the administrator set shmem_enabled to advise; a refusal changes nothing. */
static void make_huge(void *memory, size_t bytes)
{
    const size_t whole = bytes / HKT__ARENA_HUGE * HKT__ARENA_HUGE;

    if (whole == 0)
        return;
    (void)madvise(memory, whole, MADV_HUGEPAGE);
    for (size_t at = 0; at < whole; at += HKT__ARENA_HUGE) /* of what has no page yet nothing is made */
        *(volatile unsigned char *)((unsigned char *)memory + at) = 0;
    (void)madvise(memory, whole, MADV_COLLAPSE);
}

enum hkt_status hkt__mem_user_alloc(struct hkt__tp *base, size_t bytes, void **out_memory)
{
    struct hkt__mem_tp *tp = (struct hkt__mem_tp *)base;
    struct hkt__mem_user *user = hkt__calloc(1, sizeof *user);

    if (user == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to note a block of shared memory");
    const enum hkt_status rc = hkt__arena_alloc(tp->arena, bytes > 0 ? bytes : 1, &user->block);

    if (rc < 0) {
        hkt__free(user);
        return rc;
    }
    make_huge(tp->arena->base + user->block.offset, user->block.bytes);
    pthread_mutex_lock(&tp->lock);
    user->next = tp->users;
    tp->users = user;
    pthread_mutex_unlock(&tp->lock);
    *out_memory = tp->arena->base + user->block.offset;
    return HKT_OK;
}

void hkt__mem_user_free(struct hkt__tp *base, void *memory)
{
    struct hkt__mem_tp *tp = (struct hkt__mem_tp *)base;
    struct hkt__mem_user *user = NULL;

    pthread_mutex_lock(&tp->lock);
    for (struct hkt__mem_user **link = &tp->users; *link != NULL && user == NULL; link = &(*link)->next) {
        if (tp->arena->base + (*link)->block.offset == (unsigned char *)memory) {
            user = *link;
            *link = user->next;
            break;
        }
    }
    pthread_mutex_unlock(&tp->lock);
    if (user == NULL)
        return;
    hkt__arena_free(tp->arena, &user->block);
    hkt__free(user);
}

void hkt__mem_user_fini(struct hkt__mem_tp *tp)
{
    while (tp->users != NULL)
        hkt__mem_user_free(&tp->base, tp->arena->base + tp->users->block.offset);
}

bool hkt__mem_user_locate(struct hkt__tp *base, const void *data, size_t bytes, uint64_t *out_offset)
{
    const struct hkt__mem_tp *tp = (struct hkt__mem_tp *)base;
    const uintptr_t first = (uintptr_t)tp->arena->base, at = (uintptr_t)data;

    if (at < first || at - first > tp->arena->bytes || bytes > tp->arena->bytes - (at - first))
        return false;
    *out_offset = at - first;
    return true;
}

void *hkt__mem_peer_base(struct hkt__tp_dom *dom, int peer)
{
    const struct hkt__mem_peer *of = &hkt__mem_dom_instance(dom)->peers[hkt__mem_dom_job_rank(dom, peer)];

    return of->arena != NULL ? of->arena->base : NULL;
}

bool hkt__mem_peer_copies(const struct hkt__tp *base, int job_rank)
{
    return ((const struct hkt__mem_tp *)base)->peers[job_rank].can_copy;
}

typedef ssize_t transfer_fn(pid_t pid, const struct iovec *local, unsigned long nlocal, const struct iovec *remote,
                            unsigned long nremote, unsigned long flags);

static enum hkt_status transfer(struct hkt__tp_dom *dom, int peer, transfer_fn *move, struct iovec local,
                                struct iovec remote)
{
    const pid_t pid = hkt__mem_dom_instance(dom)->peers[hkt__mem_dom_job_rank(dom, peer)].pid;

    while (local.iov_len > 0) {
        const ssize_t moved = move(pid, &local, 1, &remote, 1, 0);

        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return errno == ESRCH
                       ? hkt__fail_peer(HKT_ERR_PEER_LOST, peer, "rank %d (pid %d) is gone", peer, (int)pid)
                       : hkt__fail_sys(HKT_ERR_SYSTEM, "cannot copy %zu bytes to or from rank %d (pid %d)",
                                       local.iov_len, peer, (int)pid);
        local.iov_base = (char *)local.iov_base + moved;
        local.iov_len -= (size_t)moved;
        remote.iov_base = (char *)remote.iov_base + moved;
        remote.iov_len -= (size_t)moved;
    }
    return HKT_OK;
}

enum hkt_status hkt__mem_peer_read(struct hkt__tp_dom *dom, int peer, void *to, uint64_t from, size_t bytes)
{
    return transfer(dom, peer, process_vm_readv, (struct iovec){ to, bytes },
                    (struct iovec){ (void *)(uintptr_t)from, bytes });
}

enum hkt_status hkt__mem_peer_write(struct hkt__tp_dom *dom, int peer, uint64_t to, const void *from, size_t bytes)
{
    return transfer(dom, peer, process_vm_writev, (struct iovec){ (void *)(uintptr_t)from, bytes },
                    (struct iovec){ (void *)(uintptr_t)to, bytes });
}

bool hkt__mem_try_copy(pid_t pid, uint64_t address, uint64_t expected)
{
    uint64_t word = 0;
    const struct iovec local = { &word, sizeof word }, remote = { (void *)(uintptr_t)address, sizeof word };

    return pid > 0 && process_vm_readv(pid, &local, 1, &remote, 1, 0) == (ssize_t)sizeof word && word == expected &&
           process_vm_writev(pid, &local, 1, &remote, 1, 0) == (ssize_t)sizeof word;
}
