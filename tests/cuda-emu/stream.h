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

/** A new operation for `stream` (NULL: the default one); NULL: no memory. */
struct emu_op *emu_op_new(void (*run)(struct emu_op *op));
/** Takes the operation; it runs when all before it are done. */
cudaError_t emu_enqueue(cudaStream_t stream, struct emu_op *op);

#endif
