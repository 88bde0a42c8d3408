/* Sends and receives of a rank in one launch of a plan: a queue for each peer and direction, whose messages the launch's
 * parameters say. Messages of a queue follow each other, as those that they meet do on the other side; queues do not wait for
 * each other. Large messages are cut in parts for several replicas, by their size alone, so that both sides cut alike.
 *
 * What a peer does may depend on any of the messages: so all replicas must run at a time, and the widest that ranks use is the
 * least of what hkt__cuda_messages_channels says on each. Not all ranks of the group need take part. Order of launches, arenas
 * and failures: cuda_plan.h. */
#ifndef HOCKET_DEVICE_CUDA_MESSAGES_H
#define HOCKET_DEVICE_CUDA_MESSAGES_H

#include "device/cuda_plan.h"

#define HKT__CUDA_MESSAGES_MAX 4096 /* of a launch: as a group holds */

struct hkt__cuda_message {
    int32_t peer;           /* another rank */
    bool is_send;
    const void *memory;     /* of a receive it is written */
    size_t bytes;           /* 0: nothing is sent, nor waited for */
};

struct hkt__cuda_messages;

/** Allocates on the device and on the host, for all launches. Waits. */
HKT_NODISCARD enum hkt_status hkt__cuda_messages_make(const struct hkt__cuda_module *module,
                                                      const struct hkt__cuda_peers *peers,
                                                      struct hkt__cuda_messages **out_messages);
/** No launch of it may run. NULL is allowed. */
void hkt__cuda_messages_free(struct hkt__cuda_messages *messages);
/** Replicas of which all run at a time, on blocks_max blocks. At least 1. */
int32_t hkt__cuda_messages_channels(const struct hkt__cuda_messages *messages, int32_t blocks_max);

struct hkt__cuda_messages_call {
    const struct hkt__cuda_message *list;
    size_t count;           /* at most HKT__CUDA_MESSAGES_MAX */
    void *stream;           /* a cudaStream_t of peers->device */
    int32_t blocks_max;     /* as struct hkt__cuda_call */
    int32_t channels;       /* parts of a message at most: all ranks alike, and no more than channels() says on any */
    uint32_t part_bytes;    /* that a replica is worth; 0: chosen here. All ranks alike */
    bool no_ll;             /* keep to the Simple protocol. All ranks alike */
};
/** Enqueues them, and returns. More than HKT__PLAN_MESSAGES_HERE take a small launch per as many before. */
HKT_NODISCARD enum hkt_status hkt__cuda_messages_launch(struct hkt__cuda_messages *messages,
                                                        const struct hkt__cuda_messages_call *call);

#endif
