/* Grids: their blocks are dealt to OS threads of a pool, which grows as needed and is kept; and the list of kernels. */
#include "engine.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct job {
    const struct emu_grid *grid;
    unsigned long nblocks;
    atomic_ulong next;     /* block nobody has taken; relaxed: only the number matters */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int nworkers;          /* at work; under lock */
};

struct worker {
    struct worker *next;
    struct job *job;       /* under pool.lock; NULL: idle */
    pthread_cond_t given;
};

static struct {
    pthread_mutex_t lock;
    struct worker *idle;
} pool = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void work(struct job *job)
{
    const struct emu_dim3 n = job->grid->blocks;

    for (;;) {
        const unsigned long i = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed);

        if (i >= job->nblocks)
            return;
        emu_run_block(job->grid, (struct emu_dim3){ (unsigned)(i % n.x), (unsigned)(i / n.x % n.y), (unsigned)(i / n.x / n.y) });
    }
}

static void end_work(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    if (--job->nworkers == 0)
        pthread_cond_signal(&job->ended);
    pthread_mutex_unlock(&job->lock);
}

static void *worker_main(void *argument)
{
    struct worker *self = argument;
    const bool is_fresh = emu_setting("EMU_FRESH", 0) != 0;

    for (;;) {
        struct job *job;

        pthread_mutex_lock(&pool.lock);
        while (self->job == NULL)
            pthread_cond_wait(&self->given, &pool.lock);
        job = self->job;
        pthread_mutex_unlock(&pool.lock);
        work(job);
        if (!is_fresh) {
            pthread_mutex_lock(&pool.lock);
            self->job = NULL;
            self->next = pool.idle;
            pool.idle = self;
            pthread_mutex_unlock(&pool.lock);
        }
        end_work(job);
        if (is_fresh)
            break;
    }
    emu_block_fini();
    pthread_cond_destroy(&self->given);
    free(self);
    return NULL;
}

/** Hands the job to an idle worker, or to a new one. */
static void give(struct job *job)
{
    struct worker *worker;
    pthread_t thread;

    pthread_mutex_lock(&pool.lock);
    worker = pool.idle;
    if (worker != NULL) {
        pool.idle = worker->next;
        worker->job = job;
        pthread_cond_signal(&worker->given);
        pthread_mutex_unlock(&pool.lock);
        return;
    }
    pthread_mutex_unlock(&pool.lock);
    worker = calloc(1, sizeof *worker);
    if (worker != NULL) {
        pthread_cond_init(&worker->given, NULL);
        worker->job = job;
    }
    if (worker == NULL || pthread_create(&thread, NULL, worker_main, worker) != 0) {
        fprintf(stderr, "emu: no thread for a block\n");
        abort();
    }
    pthread_detach(thread);
}

void emu_run_grid(const struct emu_grid *grid, int resident)
{
    struct job job = { .grid = grid, .nblocks = (unsigned long)grid->blocks.x * grid->blocks.y * grid->blocks.z,
                       .lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER };
    const int nworkers = job.nblocks < (unsigned long)resident ? (int)job.nblocks : resident;

    job.nworkers = nworkers;
    for (int i = 0; i < nworkers; ++i)
        give(&job);
    pthread_mutex_lock(&job.lock);
    while (job.nworkers > 0)
        pthread_cond_wait(&job.ended, &job.lock);
    pthread_mutex_unlock(&job.lock);
    pthread_mutex_destroy(&job.lock);
    pthread_cond_destroy(&job.ended);
}

/* --- Kernels -------------------------------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    struct emu_kernel *first;
} kernels = { .lock = PTHREAD_MUTEX_INITIALIZER };

void emu_register_kernel(struct emu_kernel *kernel)
{
    Dl_info info;

    if (kernel->name[0] == '\0' && dladdr(kernel->address, &info) != 0 && info.dli_sname != NULL)
        snprintf(kernel->name, sizeof kernel->name, "%s", info.dli_sname); /* g++ mangles as nvcc does */
    pthread_mutex_lock(&kernels.lock);
    kernel->next = kernels.first;
    kernels.first = kernel;
    pthread_mutex_unlock(&kernels.lock);
}

struct emu_kernel *emu_find_kernel(const void *address, const char *name)
{
    struct emu_kernel *kernel;

    pthread_mutex_lock(&kernels.lock);
    for (kernel = kernels.first; kernel != NULL; kernel = kernel->next)
        if (address != NULL ? kernel->address == address : strcmp(kernel->name, name) == 0)
            break;
    pthread_mutex_unlock(&kernels.lock);
    return kernel;
}
