/* What tests of collectives on devices share: the module that is tested, its emulator's own functions, and calls whose
 * buffers lie on a rank's device, checked byte by byte. */
#ifndef HOCKET_CUDA_EMU_FAR_TEST_H
#define HOCKET_CUDA_EMU_FAR_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>

#include "calls.h"
#include "device/cuda.h"
#include "ranks.h"

#define DEVICES "EMU_DEVICES=2"

enum place { BOTH, ONLY_IN, ONLY_OUT, PLACES };

/** From argv[1], the module's path; false: that is not how it is used. */
bool far_test_begin(int argc, char **argv);
/** "HOCKET_CUDA=path" */
const char *far_module_setting(void);
/** The module is the emulated one. */
bool far_is_emulated(void);
/** Skips the test, and says why, where it is not. */
void far_need_emulation(const char *why);
const struct hkt__cuda_module *module_of(struct ranks_rank *rank);
/** A function of the emulated module: emu.h, or CUDA's. */
void *emulator(struct ranks_rank *rank, const char *name);
/** CUDA's functions as the module has them. */
struct far_cuda {
    cudaError_t (*create)(cudaStream_t *stream, unsigned flags);
    cudaError_t (*destroy)(cudaStream_t stream);
    cudaError_t (*set_device)(int device);
    cudaError_t (*begin)(cudaStream_t stream, enum cudaStreamCaptureMode mode);
    cudaError_t (*end)(cudaStream_t stream, cudaGraph_t *graph);
    cudaError_t (*instantiate)(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags);
    cudaError_t (*launch)(cudaGraphExec_t executable, cudaStream_t stream);
    cudaError_t (*free_graph)(cudaGraph_t graph);
    cudaError_t (*free_executable)(cudaGraphExec_t executable);
};
struct far_cuda far_cuda(struct ranks_rank *rank);
/** 0 on a GPU, where nobody counts them. */
int live_objects(struct ranks_rank *rank);
int ndevices(struct ranks_rank *rank);

/** A rank's device, and both buffers of its calls there. */
struct far {
    struct ranks_rank *rank;
    const struct hkt__cuda_module *cuda;
    struct calls calls;
    int device;
    size_t bytes;
    char *send, *recv;
};
void far_init(struct far *far, struct ranks_rank *rank, size_t room);
void far_fini(struct far *far);
/** Makes a call and looks at every byte of the buffers, wherever they were. */
void far_call(struct far *far, const struct call *call, enum place place, struct hkt_stream *stream);
/** A call of every kind that such tests make: coll in place or not, the i-th of a few counts, dtypes and operations. False:
 *  there is no such call. */
bool far_kind(enum hkt_coll coll, bool in_place, size_t i, int nranks, struct call *out_call);
#define FAR_KINDS 4
/** Bytes of the largest buffer of any call of far_kind. */
size_t far_room(size_t nkinds, int nranks);

#endif
