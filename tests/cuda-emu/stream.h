/* Streams as stream.c keeps them: a queue of operations and the thread that works on it, one operation after another. */
#ifndef HOCKET_CUDA_EMU_STREAM_H
#define HOCKET_CUDA_EMU_STREAM_H

#include "engine.h"
#include "runtime.h"

struct emu_op {
    struct emu_op *next;
    void (*run)(struct emu_op *op); /* without the lock; NULL: the wait, or the record, below */
    /* Waits until `stream` has completed `count` operations, or `event` has had its record number `count`. */
    struct CUstream_st *stream;
    struct CUevent_st *event;
    bool is_record; /* of `event`: this is its record number `count` */
    uint64_t count;
    union {
        struct {
            void *dst;
            const void *src; /* NULL: set to `value` */
            size_t bytes;
            int value;
            void *staged;    /* what src points to when the call staged it */
        } copy;
        struct {
            cudaHostFn_t function;
            void *user;
        } host;
        struct {
            struct emu_grid grid;
            void *packed;
        } launch;
    } u;
};

/** What an operation becomes part of instead of a stream's queue while the stream is captured: graph.c. */
struct CUgraph_st {
    struct emu_op *first, **tail;
    enum cudaStreamCaptureMode mode;
    bool is_invalid;
};

/** The graph of a stream; NULL in it: the stream is not captured. Under the lock. */
struct CUgraph_st **emu_stream_graph(cudaStream_t stream);
/** Counts objects that live. Under the lock. */
void emu_count_objects(int more);
/** Spoils all captures that forbid calls like this one to the calling thread: then it must not be made. Under the lock. */
bool emu_spoils_capture(void);
/** Does so, takes and leaves the lock, and says which error the call must return. */
cudaError_t emu_unsafe_call(void);
/** A copy that may be enqueued; NULL: no memory. */
struct emu_op *emu_op_copy(const struct emu_op *op);
/** Frees one that was not enqueued. */
void emu_op_free(struct emu_op *op);

/** A new operation for `stream` (NULL: the default one); NULL: no memory. */
struct emu_op *emu_op_new(void (*run)(struct emu_op *op));
/** Takes the operation; it runs when all before it are done. */
cudaError_t emu_enqueue(cudaStream_t stream, struct emu_op *op);

#endif
