/* Adapters that register memory of devices, for tests: Soft-RoCE, which knows no dmabuf, is told of the same pages by a mapping of
 * them. To be preloaded. What stands for a dmabuf is a file positioned where it begins (tests/cuda-emu/emu.h).
 *
 * SHIM_DMABUF=wrong: other pages are registered. */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MRS_MAX 256

/* Registrations that live. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    struct ibv_mr *mr;
    void *map;
    size_t bytes;
} mrs[MRS_MAX];

static void list(struct ibv_mr *mr, void *map, size_t bytes)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MRS_MAX; i++)
        if (mrs[i].mr == NULL) {
            mrs[i].mr = mr;
            mrs[i].map = map;
            mrs[i].bytes = bytes;
            break;
        }
    pthread_mutex_unlock(&lock);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
    const char *how = getenv("SHIM_DMABUF");
    const bool is_wrong = how != NULL && strcmp(how, "wrong") == 0;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (size_t)offset % page, bytes = before + length;
    const off_t at = lseek(fd, 0, SEEK_CUR) + (off_t)((size_t)offset - before);
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, is_wrong ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, is_wrong ? -1 : fd,
                     is_wrong ? 0 : at);

    if (map == MAP_FAILED)
        return NULL;
    struct ibv_mr *mr = ibv_reg_mr_iova(pd, (char *)map + before, length, iova, (unsigned)access);

    if (mr == NULL)
        munmap(map, bytes);
    else
        list(mr, map, bytes);
    return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
    int (*real)(struct ibv_mr *mr);
    void *map = NULL;
    size_t bytes = 0;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < MRS_MAX; i++)
        if (mrs[i].mr == mr) {
            map = mrs[i].map;
            bytes = mrs[i].bytes;
            mrs[i].mr = NULL;
        }
    pthread_mutex_unlock(&lock);
    *(void **)&real = dlsym(RTLD_NEXT, "ibv_dereg_mr");
    const int rc = real(mr);

    if (map != NULL)
        munmap(map, bytes);
    return rc;
}
