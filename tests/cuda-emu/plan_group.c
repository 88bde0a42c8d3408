#include "plan_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"

#define PATIENCE_NS INT64_C(60000000000)

static int device_of(const struct plan_group *g, int rank)
{
    return rank % g->ndevices;
}

void plan_group_open(struct plan_group *g, int nranks, bool is_large)
{
    const struct hkt__cuda_module *module = hkt__cuda_module();

    *g = (struct plan_group){.nranks = nranks};
    must(cudaGetDeviceCount(&g->ndevices));
    for (int r = 0; r < nranks; r++) {
        struct hkt__cuda_peers *peers = &g->peers[r];
        void *room;

        *peers = (struct hkt__cuda_peers){.rank = r, .nranks = nranks, .device = device_of(g, r), .arenas = g->arenas,
                                          .is_one_process = true};
        hkt__cuda_shape_default(nranks, &peers->shape);
        if (!is_large) { /* small slots: many frames of few bytes */
            peers->shape.lanes = 4;
            peers->shape.slot_bytes = 256;
            peers->shape.ll_bytes = 128;
            peers->shape.scratch_bytes = 16384;
        }
        for (int other = 0; other < nranks; other++) {
            peers->ranks_here += device_of(g, other) == device_of(g, r);
            must(module->peer_enable(device_of(g, r), device_of(g, other)));
        }
        must(module->device_alloc(&g->arenas[r], hkt__cuda_arena_bytes(&peers->shape), peers->device));
        assert_int_equal(hkt__cuda_watch_make(module, peers->device, &peers->watch, &peers->watch_on_device), HKT_OK);
        assert_int_equal(hkt__cuda_arena_clear(module, peers), HKT_OK);
        must(module->stream_create((void **)&g->streams[r], peers->device));
        must(module->device_alloc(&room, PLAN_ROOM_BYTES, peers->device));
        g->device_room[r] = room;
        must(cudaHostAlloc(&room, 2 * PLAN_ROOM_BYTES, cudaHostAllocPortable));
        g->host_room[r] = room;
    }
}

void plan_group_close(struct plan_group *g)
{
    const struct hkt__cuda_module *module = hkt__cuda_module();

    for (int r = 0; r < g->nranks; r++) {
        must(module->stream_destroy(g->streams[r]));
        must(module->device_free(g->arenas[r]));
        must(module->device_free(g->device_room[r]));
        must(cudaFreeHost(g->host_room[r]));
        hkt__cuda_watch_free(module, g->peers[r].watch);
    }
}

void plan_group_settle(struct plan_group *g, const char *what)
{
    const int64_t deadline = hkt__now_ns() + PATIENCE_NS;

    for (int r = 0; r < g->nranks; r++) {
        int rc;

        while ((rc = hkt__cuda_module()->stream_query(g->streams[r], g->peers[r].device)) == HKT__CUDA_NOT_READY) {
            if (hkt__now_ns() > deadline) {
                fprintf(stderr, "%s: rank %d hangs\n", what, r);
                abort(); /* kernels that never end cannot be cleaned up after */
            }
            usleep(50);
        }
        must(rc);
    }
    g->used = 0;
}

void plan_dawdle(void *microseconds)
{
    usleep((useconds_t)(uintptr_t)microseconds);
}

bool plan_test_small(void)
{
    const char *small = getenv("HOCKET_TEST_SMALL");

    return small != NULL && small[0] != '\0' && strcmp(small, "0") != 0;
}
