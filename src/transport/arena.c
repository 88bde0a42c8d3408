/* Sparse shared memory: creation, mapping, reference counts, and a first-fit allocator (see arena.h).
 *
 * The registry of this process's arenas is the one mutable global here: ranks that are threads must agree on who unmaps,
 * and they share nothing else but the process. */
#include "transport/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/bits.h"
#include "core/error.h"
#include "core/mem.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

static struct {
    pthread_mutex_t lock;
    struct hkt__arena *first;
} registry = { PTHREAD_MUTEX_INITIALIZER, NULL };

static enum hkt_status open_memfd(size_t bytes, int *out_fd)
{
    struct rlimit limit;

    /* Growing a file beyond this limit is answered with a deadly signal, not an error. */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "a shared segment of %zu bytes is beyond the file size limit of %llu "
                         "bytes: raise it (ulimit -f) or lower HOCKET_SHM_BYTES", bytes,
                         (unsigned long long)limit.rlim_cur);
    int fd = memfd_create("hocket", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

    if (fd < 0 && errno == EINVAL)
        fd = memfd_create("hocket", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot create a shared segment (memfd_create)");
    if (ftruncate(fd, (off_t)bytes) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        const enum hkt_status rc = hkt__fail_sys(HKT_ERR_SYSTEM, "cannot size and seal a shared segment of %zu bytes",
                                                 bytes);

        close(fd);
        return rc;
    }
    *out_fd = fd;
    return HKT_OK;
}

static enum hkt_status no_addresses(size_t bytes)
{
    return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot map %zu bytes of address space for a shared segment: raise the limit "
                         "(ulimit -v) or lower HOCKET_SHM_BYTES", bytes);
}

static enum hkt_status map(struct hkt__arena *arena, int fd, size_t bytes)
{
    /* Address and offset must agree in the bits below a huge page for the kernel to map one: reserve more, cut, put it there. */
    const size_t room = bytes + HKT__ARENA_HUGE;
    unsigned char *reserved = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), *base;

    if (reserved == MAP_FAILED)
        return no_addresses(room);
    base = reserved + (HKT__ARENA_HUGE - (uintptr_t)reserved % HKT__ARENA_HUGE) % HKT__ARENA_HUGE;
    if (base > reserved)
        munmap(reserved, (size_t)(base - reserved));
    munmap(base + bytes, (size_t)(reserved + room - (base + bytes)));
    if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0) == MAP_FAILED) {
        const enum hkt_status rc = no_addresses(bytes);

        munmap(base, bytes);
        return rc;
    }
    /* A core dump would write the whole sparse range; only a hint. */
    (void)madvise(base, bytes, MADV_DONTDUMP);
    arena->base = base;
    arena->bytes = bytes;
    return HKT_OK;
}

enum hkt_status hkt__arena_create(size_t bytes, struct hkt__arena **out_arena)
{
    struct hkt__arena *arena = hkt__calloc(1, sizeof *arena);
    enum hkt_status rc;

    if (arena == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a shared segment's descriptor");
    arena->fd = -1;
    arena->refs = 1;
    pthread_mutex_init(&arena->lock, NULL);
    bytes = hkt__round_up(bytes, HKT__ARENA_ALIGN);
    if (getrandom(arena->id, sizeof arena->id, 0) != (ssize_t)sizeof arena->id)
        rc = hkt__fail_sys(HKT_ERR_SYSTEM, "no random bytes for a shared segment's id");
    else
        rc = open_memfd(bytes, &arena->fd);
    if (rc == HKT_OK)
        rc = map(arena, arena->fd, bytes);
    if (rc < 0) {
        hkt__arena_drop(arena);
        return rc;
    }
    pthread_mutex_lock(&registry.lock);
    arena->next = registry.first;
    registry.first = arena;
    pthread_mutex_unlock(&registry.lock);
    *out_arena = arena;
    return HKT_OK;
}

enum hkt_status hkt__arena_map(int fd, size_t bytes, struct hkt__arena **out_arena)
{
    struct stat status;
    const int seals = fcntl(fd, F_GET_SEALS);

    if (fstat(fd, &status) < 0 || bytes == 0 || (uint64_t)status.st_size < bytes || seals < 0 ||
        (seals & F_SEAL_SHRINK) == 0)
        return hkt__fail(HKT_ERR_SYSTEM, "the file a peer passed is no sealed segment of %zu bytes", bytes);
    struct hkt__arena *arena = hkt__calloc(1, sizeof *arena);

    if (arena == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a shared segment's descriptor");
    arena->fd = -1;
    arena->refs = 1;
    pthread_mutex_init(&arena->lock, NULL);
    const enum hkt_status rc = map(arena, fd, bytes);

    if (rc < 0) {
        hkt__arena_drop(arena);
        return rc;
    }
    *out_arena = arena;
    return HKT_OK;
}

struct hkt__arena *hkt__arena_find(const unsigned char *id)
{
    struct hkt__arena *arena;

    pthread_mutex_lock(&registry.lock);
    for (arena = registry.first; arena != NULL; arena = arena->next)
        if (memcmp(arena->id, id, sizeof arena->id) == 0) {
            arena->refs++;
            break;
        }
    pthread_mutex_unlock(&registry.lock);
    return arena;
}

/* Give back one reference; true when it was the last, the arena then being out of the registry. */
static bool forget(struct hkt__arena *arena)
{
    pthread_mutex_lock(&registry.lock);
    const bool is_last = --arena->refs == 0;

    for (struct hkt__arena **at = &registry.first; is_last && *at != NULL; at = &(*at)->next)
        if (*at == arena) {
            *at = arena->next;
            break;
        }
    pthread_mutex_unlock(&registry.lock);
    return is_last;
}

void hkt__arena_drop(struct hkt__arena *arena)
{
    if (arena == NULL || !forget(arena))
        return;
    if (arena->base != NULL)
        munmap(arena->base, arena->bytes);
    if (arena->fd >= 0)
        close(arena->fd);
    pthread_mutex_destroy(&arena->lock);
    hkt__free(arena);
}

enum hkt_status hkt__arena_alloc(struct hkt__arena *arena, size_t bytes, struct hkt__block *out_block)
{
    const size_t need = hkt__round_up(bytes > 0 ? bytes : 1, HKT__ARENA_ALIGN);
    const size_t align = need >= HKT__ARENA_HUGE ? HKT__ARENA_HUGE : HKT__ARENA_ALIGN;
    size_t offset = 0, used = 0;
    bool is_found = false;

    if (bytes > arena->bytes)
        return hkt__fail(HKT_ERR_NOMEM, "%zu bytes of shared memory are more than the whole segment of %zu bytes: raise "
                         "HOCKET_SHM_BYTES", bytes, arena->bytes);
    pthread_mutex_lock(&arena->lock);
    struct hkt__block **at = &arena->blocks;

    for (;;) {
        const size_t end = *at != NULL ? (*at)->offset : arena->bytes;

        offset = hkt__round_up(offset, align);
        if (end >= offset && end - offset >= need) {
            *out_block = (struct hkt__block){ .offset = offset, .bytes = need, .next = *at };
            *at = out_block;
            is_found = true;
        }
        if (is_found || *at == NULL)
            break;
        used += (*at)->bytes;
        offset = (*at)->offset + (*at)->bytes;
        at = &(*at)->next;
    }
    pthread_mutex_unlock(&arena->lock);
    if (!is_found)
        return hkt__fail(HKT_ERR_NOMEM, "no room for %zu bytes in the shared segment (%zu of %zu bytes in use): raise "
                         "HOCKET_SHM_BYTES, or lower HOCKET_SHM_SLOTS or HOCKET_SHM_SLOT_BYTES", need, used,
                         arena->bytes);
    return HKT_OK;
}

void hkt__arena_free(struct hkt__arena *arena, struct hkt__block *block)
{
    /* While the block is still in the list, nobody else can get it. Where the system cannot punch holes, clear by hand:
     * slower, but the next owner finds zeros all the same. */
    if (fallocate(arena->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)block->offset, (off_t)block->bytes) < 0)
        memset(arena->base + block->offset, 0, block->bytes);
    pthread_mutex_lock(&arena->lock);
    for (struct hkt__block **at = &arena->blocks; *at != NULL; at = &(*at)->next)
        if (*at == block) {
            *at = block->next;
            break;
        }
    pthread_mutex_unlock(&arena->lock);
}

size_t hkt__arena_used(struct hkt__arena *arena)
{
    size_t used = 0;

    pthread_mutex_lock(&arena->lock);
    for (const struct hkt__block *block = arena->blocks; block != NULL; block = block->next)
        used += block->bytes;
    pthread_mutex_unlock(&arena->lock);
    return used;
}
