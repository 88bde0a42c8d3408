/* What could break: memory of hkt_mem_alloc_device, or of the user's that was registered, that peers map at another place than kernels
 * look; registering that changes what is in a buffer, takes what cannot be mapped, or leaves a mapping; algorithms that touch peers'
 * buffers chosen where these are not mapped, or on some ranks only; ranks that do not agree whether memory is mapped; memory freed
 * while a peer maps it, or never; a call of CUDA that fails and leaves something behind; networks that read memory of devices
 * before it is written, or other memory; buffers that the CPU touches where only the network may; ranks that do not agree on that.
 *
 * The module is the emulated one, whose kernels run; or, by tests/gpu/run, the real one, of which nothing can be refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "far_test.h"

#define LAUNCH_FAILURE 719
#define USERS "all_reduce=two_shot_user,reduce_scatter=direct_user,all_gather=write_user,broadcast=direct_user," \
              "all_to_all=write_user,gather=direct_user,scatter=direct_user"

/** A group, and what it is made with. */
struct group {
    enum ranks_kind kind;
    int nranks;
    const char *setting;  /* of all ranks; NULL: none */
    bool registers;       /* memory of the user's, instead of hkt_mem_alloc_device */
};

/** Ranks that reach each other by a network, which reads memory of devices. */
static bool is_net(const struct group *group)
{
    return group->setting != NULL && strcmp(group->setting, "HOCKET_TRANSPORT=tcp") == 0;
}

static void run(const struct group *group, ranks_fn *fn)
{
    /* without HOCKET_CMA the host's way has no use for algorithms that touch peers' buffers: they run on devices, or nowhere */
    const char *settings[] = { far_module_setting(), DEVICES, "HOCKET_TIMEOUT=30s", "HOCKET_CUDA_BYTES=4M", "HOCKET_CMA=0",
                               group->setting, is_net(group) ? "HOCKET_FAULTS=lend=1" : NULL, NULL };
    const struct ranks_job job = { .kind = group->kind, .nranks = group->nranks, .settings = settings, .fn = fn,
                                   .arg = (void *)group, .leaves_descriptors = true };

    ranks_run(&job);
}

/** What peers have closed is freed when memory is wanted. */
static void sweep(struct ranks_rank *rank)
{
    void *memory;

    ranks_require_ok(rank, hkt_device_alloc(&memory, 1, 0), "alloc");
    ranks_require_ok(rank, hkt_device_free(memory), "free");
}

/** Destroys the communicator, which has come to `status`, and waits until nothing of it is left. */
static void end_comm(struct ranks_rank *rank, enum hkt_status status)
{
    const int64_t until_ms = ranks_now_ms() + 20000;

    ranks_require_status(rank, hkt_comm_destroy(rank->comm), status, "destroy");
    rank->comm = NULL;
    ranks_meet(rank, 0);
    do
        sweep(rank);
    while (live_objects(rank) != 0 && ranks_now_ms() < until_ms);
    ranks_meet(rank, 1);
    ranks_require(rank, live_objects(rank) == 0, "%d objects of CUDA are left", live_objects(rank));
}

static char *shared(struct ranks_rank *rank, size_t bytes)
{
    void *memory;

    ranks_require_ok(rank, hkt_mem_alloc_device(&memory, bytes, rank->rank % ndevices(rank), rank->comm), "mem_alloc_device");
    return memory;
}

/* --- The user's memory ------------------------------------------------------------------------------------------------ */

enum how { WHOLE, NAMED, NAMELESS, POOLED, MANAGED };

/** Some bytes of a device, allocated as a program may. */
struct own {
    enum how how;
    void *base;
    size_t whole_bytes;
    CUmemGenericAllocationHandle handle;
    char *data;
};

/** By cuMemCreate, in whole pages of the emulator's. */
static void own_map(struct ranks_rank *rank, struct own *own, int device)
{
    CUresult (*create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
    CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
    CUresult (*map)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long);
    CUresult (*access)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t);
    const CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                       .requestedHandleTypes = own->how == NAMED ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                                                                                 : CU_MEM_HANDLE_TYPE_NONE,
                                       .location = { CU_MEM_LOCATION_TYPE_DEVICE, device } };
    const CUmemAccessDesc all = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    CUdeviceptr at = 0;

    *(void **)&create = emulator(rank, "cuMemCreate");
    *(void **)&reserve = emulator(rank, "cuMemAddressReserve");
    *(void **)&map = emulator(rank, "cuMemMap");
    *(void **)&access = emulator(rank, "cuMemSetAccess");
    own->whole_bytes = (own->whole_bytes + 65535) / 65536 * 65536;
    ranks_require(rank, create(&own->handle, own->whole_bytes, &prop, 0) == CUDA_SUCCESS &&
                  reserve(&at, own->whole_bytes, 0, 0, 0) == CUDA_SUCCESS &&
                  map(at, own->whole_bytes, 0, own->handle, 0) == CUDA_SUCCESS &&
                  access(at, own->whole_bytes, &all, 1) == CUDA_SUCCESS, "memory should be mapped");
    own->base = (void *)(uintptr_t)at;
}

/** `bytes` of a larger allocation. On a GPU, where tests do not see CUDA's own calls, always of cudaMalloc's. */
static struct own own_new(struct ranks_rank *rank, enum how how, size_t bytes)
{
    const int device = rank->rank % ndevices(rank);
    struct own own = { .how = far_is_emulated() ? how : WHOLE, .whole_bytes = bytes + 768 };
    cudaError_t (*set_device)(int);
    cudaError_t (*allocate)(void **, size_t, void *) = NULL;
    cudaError_t (*manage)(void **, size_t, unsigned) = NULL;

    if (own.how == NAMED || own.how == NAMELESS) {
        own_map(rank, &own, device);
    } else if (own.how == WHOLE) {
        ranks_require_ok(rank, hkt_device_alloc(&own.base, own.whole_bytes, device), "alloc");
    } else {
        *(void **)&set_device = emulator(rank, "cudaSetDevice");
        *(void **)&allocate = emulator(rank, "cudaMallocAsync");
        *(void **)&manage = emulator(rank, "cudaMallocManaged");
        ranks_require(rank, set_device(device) == cudaSuccess, "there should be a device");
        ranks_require(rank, (own.how == POOLED ? allocate(&own.base, own.whole_bytes, NULL)
                                               : manage(&own.base, own.whole_bytes, cudaMemAttachGlobal)) == cudaSuccess,
                      "there should be memory");
    }
    own.data = (char *)own.base + 256;
    return own;
}

static void own_free(struct ranks_rank *rank, struct own *own)
{
    CUresult (*unmap)(CUdeviceptr, size_t), (*give_back)(CUdeviceptr, size_t);
    CUresult (*release)(CUmemGenericAllocationHandle);

    if (own->how != NAMED && own->how != NAMELESS) {
        ranks_require_ok(rank, hkt_device_free(own->base), "free");
        return;
    }
    *(void **)&unmap = emulator(rank, "cuMemUnmap");
    *(void **)&give_back = emulator(rank, "cuMemAddressFree");
    *(void **)&release = emulator(rank, "cuMemRelease");
    ranks_require(rank, unmap((CUdeviceptr)(uintptr_t)own->base, own->whole_bytes) == CUDA_SUCCESS &&
                  give_back((CUdeviceptr)(uintptr_t)own->base, own->whole_bytes) == CUDA_SUCCESS &&
                  release(own->handle) == CUDA_SUCCESS, "the memory should be given back");
}

/** Bytes of which none is as a pattern of the library's. */
static unsigned char byte_of(const struct ranks_rank *rank, size_t i)
{
    return (unsigned char)((unsigned)rank->rank * 97u + (unsigned)i * 13u + 5u);
}

static void own_fill(struct ranks_rank *rank, const struct own *own, size_t bytes)
{
    unsigned char x[4096];

    for (size_t i = 0; i < bytes; i++)
        x[i] = byte_of(rank, i);
    ranks_require_ok(rank, hkt_device_copy(own->data, x, bytes, rank->rank % ndevices(rank)), "fill");
}

static void own_check(struct ranks_rank *rank, const struct own *own, size_t bytes, const char *when)
{
    unsigned char x[4096];

    ranks_require_ok(rank, hkt_device_copy(x, own->data, bytes, rank->rank % ndevices(rank)), "copy");
    for (size_t i = 0; i < bytes; i++)
        ranks_require(rank, x[i] == byte_of(rank, i), "byte %zu should have stayed as it was: %s", i, when);
}

/** Registers memory of a kind that it cannot. */
static void refused(struct ranks_rank *rank, enum how how, const char *why)
{
    struct own own = own_new(rank, how, 1000);

    ranks_require_status(rank, hkt_comm_register(rank->comm, own.data, 1000), HKT_ERR_UNSUPPORTED, why);
    ranks_require_text(rank, hkt_last_error(), why);
    own_free(rank, &own);
}

/* --- Calls ---------------------------------------------------------------------------------------------------------- */

/** hkt_comm_device tells of two buffers of so many bytes: allocated in units of 2 MiB with what mappings need, or registered. */
static void require_cost(struct ranks_rank *rank, size_t bytes)
{
    const struct group *group = rank->arg;
    const double mib = 1 << 20, slack = 0.2, own = group->registers ? 2 * (double)bytes / mib : 4.0 * (double)(bytes / (2 << 20) + 1);
    const char *line = hkt_comm_device(rank->comm), *cost = strchr(line, ';');
    double all, arena, allocated, registered, mapped;

    if (strncmp(line, "on the devices", 14) != 0)
        return; /* it is allocated otherwise */
    ranks_require(rank, cost != NULL && sscanf(cost, "; %lf MiB of its memory: %lf of the arena, %lf allocated, %lf registered; %lf MiB "
                  "of peers mapped", &all, &arena, &allocated, &registered, &mapped) == 5, "it should tell what it costs: %s", line);
    ranks_require(rank, arena > 1 && arena <= 4 + 2, "the arena should have at most 4 MiB, and 2 for mappings: %s", line);
    ranks_require(rank, all - arena - allocated - registered < slack && all - arena - allocated - registered > -slack, "no sum: %s", line);
    ranks_require(rank, (group->registers ? registered : allocated) - own < slack && (group->registers ? registered : allocated) - own >
                  -slack, "the buffers should have %g MiB: %s", own, line);
    ranks_require(rank, group->kind == RANKS_PROCESSES ? mapped >= (rank->nranks - 1) * (all - slack) : mapped < slack || group->registers,
                  "other processes' is mapped, and no thread's but by descriptor: %s", line);
}

/** All collectives with both buffers in shared memory, then in other memory, unless algorithms that touch peers' are forced. */
static void every_collective(struct ranks_rank *rank)
{
    const struct group *group = rank->arg;
    const bool is_forced = group->setting != NULL && strstr(group->setting, "_user") != NULL;
    const size_t kinds = ranks_small() ? FAR_KINDS - 1 : FAR_KINDS;
    struct hkt_stream *stream;
    struct own own[2];
    struct call call;
    struct far far;

    far_init(&far, rank, far_room(kinds, rank->nranks));
    ranks_require_ok(rank, hkt_device_stream_create(&stream, far.device), "stream");
    char *const plain[2] = { far.send, far.recv }, *mine[2];

    for (int i = 0; i < 2 && group->registers; i++) {
        own[i] = own_new(rank, i == 0 ? WHOLE : NAMED, far.bytes);
        mine[i] = own[i].data;
        ranks_require_ok(rank, hkt_comm_register(rank->comm, mine[i], far.bytes), "register");
    }
    for (int i = 0; i < 2 && !group->registers; i++)
        mine[i] = shared(rank, far.bytes + (size_t)(i * rank->rank)); /* all get as much as the last asks for */
    require_cost(rank, far.bytes);
    for (int coll = 0; coll < HKT_SEND_RECV; coll++)
        for (int in_place = 0; in_place < 2; in_place++)
            for (size_t i = 0; i < kinds; i++) {
                if (!far_kind((enum hkt_coll)coll, in_place != 0, i, rank->nranks, &call) ||
                    (is_forced && coll == HKT_ALL_TO_ALL && in_place != 0)) /* that algorithm needs two buffers */
                    continue;
                far.send = mine[i % 2];
                far.recv = mine[(i + 1) % 2];
                far_call(&far, &call, BOTH, stream);
                far.send = plain[0];
                far.recv = plain[1];
                if (!is_forced)
                    far_call(&far, &call, BOTH, stream);
            }
    for (int i = 0; i < 2 && group->registers; i++) {
        ranks_require_ok(rank, hkt_comm_deregister(rank->comm, mine[i]), "deregister");
        own_free(rank, &own[i]);
    }
    if (!group->registers)
        ranks_require_ok(rank, hkt_mem_free(mine[0], rank->comm), "mem_free");
    if (strncmp(hkt_comm_device(rank->comm), "through", 7) == 0)
        refused(rank, WHOLE, "through memory of the host");
    hkt_stream_destroy(stream);
    far_fini(&far);
    end_comm(rank, HKT_OK); /* and with it mine[1] */
}

/** Rank 0 makes the last call, in other memory: that it is refused shows, too, that those in shared memory run on devices. */
static void other_memory(struct ranks_rank *rank)
{
    const int device = rank->rank % ndevices(rank);
    char *mine = shared(rank, 4000);
    struct hkt_stream *stream;
    void *plain;

    ranks_require_ok(rank, hkt_device_stream_create(&stream, device), "stream");
    ranks_require_ok(rank, hkt_device_alloc(&plain, 4000, device), "alloc");
    ranks_require_ok(rank, hkt_all_reduce(mine, mine, 1000, HKT_F32, HKT_SUM, rank->comm, stream), "shared memory");
    ranks_require_ok(rank, hkt_stream_synchronize(stream), "synchronize");
    ranks_meet(rank, 2);
    if (rank->rank == 0)
        ranks_require_status(rank, hkt_all_reduce(plain, plain, 1000, HKT_F32, HKT_SUM, rank->comm, stream), HKT_ERR_UNSUPPORTED,
                             "other memory, by an algorithm that touches it");
    ranks_meet(rank, 3);
    hkt_stream_destroy(stream);
    ranks_require_ok(rank, hkt_device_free(plain), "free");
    (void)!hkt_comm_destroy(rank->comm); /* others have heard of it, or not yet */
    rank->comm = NULL;
}

static void algorithms_that_touch_other_memory_are_refused(void **state)
{
    static const struct group group = { RANKS_PROCESSES, 2, "HOCKET_ALGO=" USERS, false };

    (void)state;
    run(&group, other_memory);
}

static void collectives_run_in_memory_that_all_ranks_map(void **state)
{
    static const struct group groups[] = {
        { RANKS_PROCESSES, 3, "HOCKET_ALGO=" USERS, true },
        { RANKS_THREADS, 3, "HOCKET_ALGO=" USERS, false },
        { RANKS_PROCESSES, 2, NULL, false },
        { RANKS_THREADS, 4, "HOCKET_ALGO=" USERS, true },
        { RANKS_PROCESSES, 5, "HOCKET_ALGO=" USERS, false },
        { RANKS_THREADS, 1, NULL, true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof groups / sizeof *groups - (ranks_small() ? 3 : 0); i++)
        run(&groups[i], every_collective);
}

static void where_it_cannot_be_mapped_it_is_as_other_memory(void **state)
{
    static const struct group groups[] = {
        { RANKS_THREADS, 2, "HOCKET_CUDA_DIRECT=0", false },
        { RANKS_PROCESSES, 2, "EMU_IPC=0", false },
        { RANKS_THREADS, 2, "EMU_PEERS=0", false },
    };

    (void)state;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (far_is_emulated() || i == 0)
            run(&groups[i], every_collective);
}

/* --- Networks that read memory of devices --------------------------------------------------------------------------- */

/** How a group fares whose ranks reach each other by a network. */
struct net {
    const char *settings[4];  /* beside those of all */
    const char *told;         /* what hkt_comm_dump says of it */
    enum hkt_status status;   /* of the allocation */
    bool is_lent;
};

static void nap(void *unused)
{
    (void)unused;
    (void)nanosleep(&(struct timespec){ .tv_nsec = 30000000 }, NULL);
}

/** The input is written late, on a stream that the default one waits for; what was in the output is read late, to `kept`. */
static void late_input(struct ranks_rank *rank, const struct far *far, void *kept)
{
    const size_t bytes = far->bytes / (size_t)rank->nranks;
    const struct far_cuda cuda = far_cuda(rank);
    char *got = calloc(1, far->bytes);
    cudaStream_t stream = NULL;

    ranks_require(rank, got != NULL && cuda.set_device(far->device) == cudaSuccess && cuda.create(&stream, 0) == cudaSuccess &&
                  far->cuda->stream_set(far->recv, 'o', far->bytes, stream) == 0 && far->cuda->stream_call(stream, nap, NULL) == 0 &&
                  far->cuda->stream_set(far->send, 'a' + rank->rank, bytes, stream) == 0 &&
                  far->cuda->stream_copy(kept, far->recv, bytes, stream) == 0, "a stream should work");
    ranks_require_ok(rank, hkt_all_gather(far->send, far->recv, bytes, HKT_INT8, rank->comm, NULL), "all_gather of late input");
    ranks_require_ok(rank, hkt_device_copy(got, kept, bytes, far->device), "copy");
    for (size_t i = 0; i < bytes; i++)
        ranks_require(rank, got[i] == 'o', "byte %zu of the output was written before the program had read it", i);
    ranks_require_ok(rank, hkt_device_copy(got, far->recv, far->bytes, far->device), "copy");
    for (size_t i = 0; i < bytes * (size_t)rank->nranks; i++)
        ranks_require(rank, got[i] == 'a' + (int)(i / bytes), "byte %zu is %d: it was sent before it was written", i, got[i]);
    ranks_require(rank, cuda.destroy(stream) == cudaSuccess, "destroy");
    free(got);
}

/** Every collective that moves in memory of devices: none is staged where the network reads it. Then some that reduce. */
static void over_a_network(struct ranks_rank *rank)
{
    const struct net *net = rank->arg;
    const size_t kinds = ranks_small() ? FAR_KINDS - 1 : FAR_KINDS;
    char told[4096] = "";
    struct call call;
    struct far far;
    void *memory = NULL;

    far_init(&far, rank, far_room(kinds, rank->nranks));
    char *const plain[2] = { far.send, far.recv };

    ranks_require_status(rank, hkt_mem_alloc_device(&memory, far.bytes, far.device, rank->comm), net->status, "mem_alloc_device");
    FILE *file = fmemopen(told, sizeof told - 1, "w");

    ranks_require(rank, file != NULL && hkt_comm_dump(rank->comm, file, 0) == HKT_OK && fclose(file) == 0, "a dump should work");
    ranks_require_text(rank, told, net->told);
    if (net->status == HKT_OK) {
        far.send = memory;
        far.recv = shared(rank, far.bytes);
        const int before = live_objects(rank);

        for (int pass = 0; pass < 2; pass++) { /* pass 1: those that reduce, which are staged, and keep memory for that */
            for (int coll = 0; coll < HKT_SEND_RECV; coll++)
                for (size_t i = 0; i < 2 * kinds; i++)
                    if (calls_reduces((enum hkt_coll)coll) == (pass == 1) && (pass == 0 || i == 4) &&
                        far_kind((enum hkt_coll)coll, i % 2 != 0, i / 2, rank->nranks, &call))
                        far_call(&far, &call, BOTH, NULL);
            ranks_meet(rank, 2);
            ranks_require(rank, pass == 1 || (live_objects(rank) == before) == net->is_lent, "calls should %sbe staged: %d objects",
                          net->is_lent ? "not " : "", live_objects(rank) - before);
            ranks_meet(rank, 3);
        }
        late_input(rank, &far, plain[0]);
        ranks_require_ok(rank, hkt_mem_free(far.recv, rank->comm), "mem_free");
    }
    far.send = plain[0];
    far.recv = plain[1];
    far_fini(&far);
    end_comm(rank, HKT_OK);
}

static void networks_send_from_memory_of_devices(void **state)
{
    static const struct net nets[] = {
        { { "HOCKET_FAULTS=seed=5,lend=0.8" }, "is sent from where it lies, by tcp\n", HKT_OK, true },
        { { "HOCKET_FAULTS=seed=5,lend=0.8", "EMU_DMABUF=2" }, "through memory of the host: rank 1: device 1 gives no dmabuf", HKT_OK, false },
        { { "HOCKET_FAULTS=seed=5,lend=0.8", "EMU_DMABUF=3" }, "through memory of the host: rank 0: faulty reads other bytes", HKT_OK, false },
        { { "HOCKET_FAULTS=seed=5,lend=0.8", "HOCKET_CUDA_DMABUF=off" }, "rank 0: HOCKET_CUDA_DMABUF is off", HKT_OK, false },
        { { "HOCKET_CUDA_DMABUF=on" }, "rank 0: tcp does not send from memory of devices", HKT_ERR_UNSUPPORTED, false },
    };

    (void)state;
    for (size_t i = 0; i < sizeof nets / sizeof *nets && far_is_emulated(); i++) {
        /* EMU_BLIND: the CPU that touches memory of a device ends the test */
        const char *settings[] = { far_module_setting(), DEVICES, "HOCKET_TIMEOUT=30s", "HOCKET_TRANSPORT=tcp", "HOCKET_CUDA_DIRECT=0",
                                   "EMU_BLIND=1", nets[i].settings[0], nets[i].settings[1], NULL };
        const struct ranks_job job = { .kind = RANKS_THREADS, .nranks = 2 + (i == 0), .settings = settings, .fn = over_a_network,
                                       .arg = (void *)&nets[i], .leaves_descriptors = true };

        ranks_run(&job);
    }
}

/* --- Allocations that fail, frees that do not match ------------------------------------------------------------------- */

static void wrong_registrations(struct ranks_rank *rank)
{
    const bool is_last = rank->rank == rank->nranks - 1;
    struct own own = own_new(rank, WHOLE, 4000), named = own_new(rank, NAMED, 4000);
    char near[4000];
    void *mine;

    own_fill(rank, &own, 4000);
    refused(rank, POOLED, "cudaMallocAsync");
    refused(rank, MANAGED, "managed memory");
    refused(rank, NAMELESS, "requestedHandleTypes");
    ranks_require_status(rank, hkt_comm_register(rank->comm, own.data, is_last ? 2000 : 4000), HKT_ERR_INVALID, "other sizes");
    ranks_require_text(rank, hkt_last_error(), "rank 1 registers 2000 bytes of its device, rank 0 4000");
    ranks_require_status(rank, hkt_comm_register(rank->comm, is_last ? near : own.data, 4000), HKT_ERR_INVALID, "host and device");
    ranks_require_text(rank, hkt_last_error(), "the buffer of rank 1 is memory of the host");
    ranks_require_status(rank, hkt_comm_register(rank->comm, own.data, 7), HKT_ERR_INVALID, "less than can be tried");
    ranks_require_status(rank, hkt_comm_register(rank->comm, own.data, is_last ? 4600 : 4000), HKT_ERR_INVALID,
                         "past the end of 4768 bytes, from 256 on");
    ranks_require_text(rank, hkt_last_error(), "more than one allocation");
    own_check(rank, &own, 4000, "refused");
    ranks_require_ok(rank, hkt_comm_register(rank->comm, own.data, 4000), "register");
    own_check(rank, &own, 4000, "registered");
    ranks_require_status(rank, hkt_comm_register(rank->comm, is_last ? named.data : own.data, 4000), HKT_ERR_INVALID, "twice");
    ranks_require_text(rank, hkt_last_error(), "is registered with");
    mine = shared(rank, 1000);
    ranks_require_status(rank, hkt_comm_register(rank->comm, mine, 1000), HKT_ERR_INVALID, "memory of mem_alloc_device");
    ranks_require_status(rank, hkt_mem_free(own.data, rank->comm), HKT_ERR_INVALID, "free of the user's memory");
    ranks_require_status(rank, hkt_comm_deregister(rank->comm, mine), HKT_ERR_INVALID, "deregister what is not registered");
    ranks_require_ok(rank, hkt_mem_free(mine, rank->comm), "free");
    ranks_require_ok(rank, hkt_comm_register(rank->comm, named.data, 4000), "register memory of cuMemCreate");
    ranks_require_status(rank, hkt_comm_deregister(rank->comm, is_last ? own.data : named.data), HKT_ERR_INVALID, "no match");
    ranks_require_ok(rank, hkt_comm_deregister(rank->comm, own.data), "deregister");
    ranks_require_ok(rank, hkt_comm_deregister(rank->comm, named.data), "deregister");
    ranks_require_status(rank, hkt_comm_deregister(rank->comm, own.data), HKT_ERR_INVALID, "deregister twice");
    own_check(rank, &own, 4000, "deregistered");
    own_free(rank, &own);
    own_free(rank, &named);
}

/** A child takes what was allocated on its parent and what is registered there, and fails where it leaves a buffer registered. */
static void children(struct ranks_rank *rank)
{
    const struct own own = own_new(rank, WHOLE, 4000);
    struct own mine = own;
    struct hkt_comm *child;
    struct hkt_stream *stream;
    int32_t x[1000];
    void *memory = shared(rank, 4000);

    ranks_require_ok(rank, hkt_comm_register(rank->comm, own.data, 4000), "register with the parent");
    ranks_require_ok(rank, hkt_comm_split(rank->comm, 0, -rank->rank, NULL, &child), "split");
    ranks_require_ok(rank, hkt_comm_register(child, own.data, 4000), "register with the child");
    ranks_require_ok(rank, hkt_comm_register(child, memory, 4000), "register memory of the parent");
    ranks_require_ok(rank, hkt_device_stream_create(&stream, rank->rank % ndevices(rank)), "stream");
    for (int i = 0; i < 1000; i++)
        x[i] = rank->rank + i;
    ranks_require_ok(rank, hkt_device_copy(own.data, x, 4000, rank->rank % ndevices(rank)), "fill");
    ranks_require_ok(rank, hkt_all_reduce(own.data, memory, 1000, HKT_INT32, HKT_SUM, child, stream), "all_reduce");
    ranks_require_ok(rank, hkt_stream_synchronize(stream), "synchronize");
    ranks_require_ok(rank, hkt_device_copy(x, memory, 4000, rank->rank % ndevices(rank)), "copy");
    for (int i = 0; i < 1000; i++)
        ranks_require(rank, x[i] == 2 * i + 1, "element %d of the child's sum is %d", i, (int)x[i]);
    hkt_stream_destroy(stream);
    ranks_require_ok(rank, hkt_comm_deregister(child, memory), "deregister");
    ranks_require_status(rank, hkt_comm_destroy(child), HKT_ERR_INVALID, "destroy with a buffer registered");
    ranks_require_text(rank, hkt_last_error(), "1 buffer of devices registered");
    ranks_require_ok(rank, hkt_comm_deregister(rank->comm, own.data), "deregister");
    ranks_require_ok(rank, hkt_mem_free(memory, rank->comm), "free");
    own_free(rank, &mine);
}

static void wrong_calls(struct ranks_rank *rank)
{
    const int device = rank->rank % ndevices(rank);
    const bool is_last = rank->rank == rank->nranks - 1;
    void *memory = rank, *first, *second;

    ranks_require_status(rank, hkt_mem_alloc_device(NULL, 1, device, rank->comm), HKT_ERR_INVALID, "memory for nobody");
    ranks_require_status(rank, hkt_mem_alloc_device(&memory, is_last ? (size_t)64 << 20 : 1, device, rank->comm), HKT_ERR_NOMEM,
                         "more than there is, on one rank");
    ranks_require_status(rank, hkt_mem_alloc_device(&memory, is_last ? SIZE_MAX : 1, device, rank->comm), HKT_ERR_NOMEM,
                         "more than any address");
    ranks_require_status(rank, hkt_mem_alloc_device(&memory, 1, is_last ? 1000 : device, rank->comm), HKT_ERR_INVALID,
                         "a device that is not, on one rank");
    ranks_require(rank, memory == rank, "a failure should leave the pointer alone");
    first = shared(rank, 0);
    second = shared(rank, 100);
    ranks_require_status(rank, hkt_mem_alloc_device(&memory, 1, is_last ? 1 - device : device, rank->comm), HKT_ERR_INVALID,
                         "another device, on one rank");
    ranks_require_status(rank, hkt_mem_free(is_last ? first : second, rank->comm), HKT_ERR_INVALID, "frees that do not match");
    ranks_require_status(rank, hkt_mem_free((char *)first + 1, rank->comm), HKT_ERR_INVALID, "no start of memory");
    ranks_require_ok(rank, hkt_mem_free(first, rank->comm), "free");
    first = shared(rank, 200); /* where the first was */
    ranks_require_ok(rank, hkt_mem_free(second, rank->comm), "free");
    ranks_require_ok(rank, hkt_mem_free(first, rank->comm), "free");
    ranks_require_ok(rank, hkt_mem_free(NULL, rank->comm), "free of nothing");
    wrong_registrations(rank);
    children(rank);
    end_comm(rank, HKT_OK);
}

/** More ranks than devices can serve in one launch. */
static void too_many(struct ranks_rank *rank)
{
    struct own own = own_new(rank, WHOLE, 4000);

    own_fill(rank, &own, 4000);
    ranks_require_status(rank, hkt_comm_register(rank->comm, own.data, 4000), HKT_ERR_UNSUPPORTED, "too many ranks");
    ranks_require_text(rank, hkt_last_error(), "more ranks");
    own_check(rank, &own, 4000, "refused");
    own_free(rank, &own);
    end_comm(rank, HKT_OK);
}

static void what_is_wrong_on_one_rank_is_refused_on_all(void **state)
{
    static const struct group many = { RANKS_THREADS, HKT__PLAN_RANKS_MAX + 2, NULL, true };
    static const struct group groups[] = { { RANKS_THREADS, 2, "EMU_MEMORY_MB=32", false },
                                           { RANKS_PROCESSES, 2, "EMU_MEMORY_MB=32", false } };

    (void)state;
    far_need_emulation("of a GPU the memory is not small");
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        run(&groups[i], wrong_calls);
    if (!ranks_small()) /* so many threads take long */
        run(&many, too_many);
}

/** The last rank ends the communicator while others hold memory, and have launched what it will not take part in. */
static void left_alone(struct ranks_rank *rank)
{
    const int device = rank->rank % ndevices(rank);
    char *memory = shared(rank, 8000), *other = shared(rank, 8000);
    struct hkt_stream *stream;

    ranks_require_ok(rank, hkt_device_stream_create(&stream, device), "stream");
    ranks_require_ok(rank, hkt_all_reduce(memory, other, 1000, HKT_F32, HKT_MAX, rank->comm, stream), "first call");
    ranks_require_ok(rank, hkt_stream_synchronize(stream), "first synchronize");
    if (rank->rank < rank->nranks - 1)
        ranks_require_ok(rank, hkt_all_reduce(memory, other, 1000, HKT_F32, HKT_MAX, rank->comm, stream), "second call");
    ranks_meet(rank, 2);
    if (rank->rank == rank->nranks - 1)
        hkt_comm_revoke(rank->comm);
    ranks_require_status(rank, hkt_mem_free(memory, rank->comm), HKT_ERR_ABORTED, "free after the end");
    hkt_stream_destroy(stream);
    end_comm(rank, HKT_ERR_ABORTED); /* and with it the other */
}

static void memory_is_freed_when_the_communicator_has_failed(void **state)
{
    static const struct group groups[] = { { RANKS_THREADS, 2, NULL, false }, { RANKS_PROCESSES, 3, NULL, false } };

    (void)state;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        run(&groups[i], left_alone);
}

/** An allocation (own: NULL), or a registration, with the k-th call of CUDA failing, on whichever rank makes it; fresh: the first of
 *  a communicator. False: there were fewer calls. */
static bool fails_at(struct ranks_rank *rank, const struct own *own, long k, bool is_fresh)
{
    struct hkt_comm *comm = rank->comm;
    void (*fail_call)(long k, int error);
    const char *(*failed_call)(void);
    const int device = rank->rank % ndevices(rank);
    void *memory = NULL;

    *(void **)&fail_call = emulator(rank, "emu_fail_call");
    *(void **)&failed_call = emulator(rank, "emu_failed_call");
    if (is_fresh)
        ranks_require_ok(rank, hkt_comm_split(rank->comm, 0, rank->rank, NULL, &comm), "split");
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "all is quiet");
    const int before = live_objects(rank);

    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "all have counted");
    if (rank->rank == 0)
        fail_call(k, LAUNCH_FAILURE);
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "the failure is set");
    const enum hkt_status rc = own == NULL ? hkt_mem_alloc_device(&memory, 100, device, comm)
                                           : hkt_comm_register(comm, own->data, 100);

    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "all have allocated");
    const char *failed = failed_call();

    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "all have asked");
    if (rank->rank == 0)
        fail_call(0, 0);
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "nothing fails any more");
    ranks_require(rank, rc == HKT_OK || failed != NULL, "nothing failed, and the call said %s", hkt_last_error());
    if (rc < 0)
        ranks_require_text(rank, hkt_last_error(), "rank ");
    if (own != NULL)
        own_check(rank, own, 100, failed != NULL ? failed : "nothing failed");
    if (rc == HKT_OK)
        ranks_require_ok(rank, own == NULL ? hkt_mem_free(memory, comm) : hkt_comm_deregister(comm, own->data), "free");
    if (is_fresh)
        ranks_require_ok(rank, hkt_comm_destroy(comm), "destroy");
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "all have freed");
    sweep(rank);
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "all have swept");
    ranks_require(rank, live_objects(rank) == before || (failed != NULL && strstr(failed, "Destroy") != NULL),
                  "%d objects of CUDA are left after call %ld (%s) failed", live_objects(rank) - before, k,
                  failed != NULL ? failed : "none");
    ranks_require_ok(rank, hkt_barrier(rank->comm, NULL), "all have looked");
    return failed != NULL;
}

static void every_call_fails(struct ranks_rank *rank)
{
    struct own own[3] = { { .how = WHOLE }, own_new(rank, WHOLE, 100), own_new(rank, NAMED, 100) };
    const bool is_fresh = is_net(rank->arg);
    void *memory = shared(rank, 100); /* with all that is made once */

    ranks_require_ok(rank, hkt_mem_free(memory, rank->comm), "free");
    sweep(rank);
    for (int i = 0; i < 3; i++) {
        long k = 1;

        if (i > 0)
            own_fill(rank, &own[i], 100);
        while (!(is_fresh && i > 0) && fails_at(rank, i > 0 ? &own[i] : NULL, k, is_fresh))
            k += ranks_small() ? 29 : is_fresh ? 3 : 1; /* most of what begins a communicator fails elsewhere too */
        ranks_require(rank, k > 20 || (is_fresh && i > 0), "only %ld calls of CUDA were made", k - 1);
        if (i > 0)
            own_free(rank, &own[i]);
    }
    ranks_meet(rank, 2); /* an abort may overtake what is left of the last barrier */
    hkt_comm_abort(rank->comm);
    rank->comm = NULL;
}

static void a_call_of_cuda_that_fails_leaves_nothing(void **state)
{
    static const struct group groups[] = { { RANKS_THREADS, 2, NULL, false }, { RANKS_THREADS, 2, "HOCKET_TRANSPORT=tcp", false } };

    (void)state;
    far_need_emulation("of a GPU no call of CUDA can be made to fail");
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        run(&groups[i], every_call_fails);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_run_in_memory_that_all_ranks_map),
        cmocka_unit_test(algorithms_that_touch_other_memory_are_refused),
        cmocka_unit_test(where_it_cannot_be_mapped_it_is_as_other_memory),
        cmocka_unit_test(networks_send_from_memory_of_devices),
        cmocka_unit_test(what_is_wrong_on_one_rank_is_refused_on_all),
        cmocka_unit_test(memory_is_freed_when_the_communicator_has_failed),
        cmocka_unit_test(a_call_of_cuda_that_fails_leaves_nothing),
    };

    return far_test_begin(argc, argv) ? cmocka_run_group_tests(tests, NULL, NULL) : 2;
}
