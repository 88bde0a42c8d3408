/* What tests of the executor on the device share: ranks of one process, each with an arena, a stream and room for buffers. And
 * the tests of its messages: plan_messages.c. */
#ifndef HOCKET_CUDA_EMU_PLAN_GROUP_H
#define HOCKET_CUDA_EMU_PLAN_GROUP_H

#include "device/cuda_plan.h"
#include "device_test.h"
#include "plan_host.h"

#define PLAN_ROOM_BYTES ((size_t)4 << 20) /* of a rank, for the buffers of all calls in flight */

/** Ranks that share arenas, whatever they run. */
struct plan_group {
    int nranks, ndevices;
    struct hkt__cuda_peers peers[PLAN_HOST_RANKS];
    void *arenas[PLAN_HOST_RANKS];
    cudaStream_t streams[PLAN_HOST_RANKS];
    char *device_room[PLAN_HOST_RANKS], *host_room[PLAN_HOST_RANKS]; /* of calls in flight: buffers, and what they are filled
                                                                        with and leave */
    size_t used;
};

/** is_large: the arenas that users get; else small ones, which many small frames pass. */
void plan_group_open(struct plan_group *g, int nranks, bool is_large);
void plan_group_close(struct plan_group *g);
/** Waits for the streams of all ranks, not for ever. */
void plan_group_settle(struct plan_group *g, const char *what);
/** For cudaLaunchHostFunc: sleeps for that many microseconds. */
void plan_dawdle(void *microseconds);
/** HOCKET_TEST_SMALL is set. */
bool plan_test_small(void);

/* plan_messages.c */
void messages_arrive_in_order(void **state);
void many_messages_go_with_one_launch(void **state);
void all_messages_of_a_launch_are_under_way(void **state);

#endif
