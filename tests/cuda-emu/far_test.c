#include "far_test.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define MARGINS 256 /* bytes that calls.h keeps before and behind a buffer */

static char module_setting[4096]; /* "HOCKET_CUDA=path" */
static bool is_emulated;

bool far_test_begin(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s MODULE\n", argv[0]);
        return false;
    }
    snprintf(module_setting, sizeof module_setting, "HOCKET_CUDA=%s", argv[1]);
    is_emulated = strstr(argv[1], "_emu") != NULL;
    return true;
}

const char *far_module_setting(void)
{
    return module_setting;
}

bool far_is_emulated(void)
{
    return is_emulated;
}

void far_need_emulation(const char *why)
{
    if (is_emulated)
        return;
    print_message("skipped: %s\n", why);
    skip();
}

const struct hkt__cuda_module *module_of(struct ranks_rank *rank)
{
    char why[512];
    const struct hkt__cuda_module *module = hkt__cuda_open(module_setting + strlen("HOCKET_CUDA="), why, sizeof why);

    ranks_require(rank, module != NULL, "the emulated module should open: %s", why);
    return module;
}

void *emulator(struct ranks_rank *rank, const char *name)
{
    void *handle = dlopen(module_setting + strlen("HOCKET_CUDA="), RTLD_NOW | RTLD_NOLOAD);
    void *function = handle != NULL ? dlsym(handle, name) : NULL;

    ranks_require(rank, function != NULL, "%s should be in the module", name);
    dlclose(handle);
    return function;
}

struct far_cuda far_cuda(struct ranks_rank *rank)
{
    struct far_cuda cuda;

    *(void **)&cuda.create = emulator(rank, "cudaStreamCreateWithFlags");
    *(void **)&cuda.destroy = emulator(rank, "cudaStreamDestroy");
    *(void **)&cuda.set_device = emulator(rank, "cudaSetDevice");
    *(void **)&cuda.begin = emulator(rank, "cudaStreamBeginCapture");
    *(void **)&cuda.end = emulator(rank, "cudaStreamEndCapture");
    *(void **)&cuda.instantiate = emulator(rank, "cudaGraphInstantiate");
    *(void **)&cuda.launch = emulator(rank, "cudaGraphLaunch");
    *(void **)&cuda.free_graph = emulator(rank, "cudaGraphDestroy");
    *(void **)&cuda.free_executable = emulator(rank, "cudaGraphExecDestroy");
    return cuda;
}

int live_objects(struct ranks_rank *rank)
{
    int (*live)(void);

    if (!is_emulated)
        return 0;
    *(void **)&live = emulator(rank, "emu_live_objects");
    return live();
}

int ndevices(struct ranks_rank *rank)
{
    int n = 0;

    ranks_require(rank, module_of(rank)->device_count(&n) == 0 && n > 0, "there should be a device");
    return n;
}

void far_init(struct far *far, struct ranks_rank *rank, size_t room)
{
    void *p;

    *far = (struct far){ .rank = rank, .cuda = module_of(rank), .bytes = room + MARGINS };
    far->device = rank->rank % ndevices(rank);
    ranks_require(rank, calls_init(&far->calls, rank->comm, room), "no memory");
    ranks_require(rank, far->cuda->device_alloc(&p, far->bytes, far->device) == 0, "no memory on the device");
    far->send = p;
    ranks_require(rank, far->cuda->device_alloc(&p, far->bytes, far->device) == 0, "no memory on the device");
    far->recv = p;
}

void far_fini(struct far *far)
{
    ranks_require(far->rank, far->cuda->device_free(far->send) == 0 && far->cuda->device_free(far->recv) == 0,
                  "memory of the device should be freed");
    calls_fini(&far->calls);
}

static void far_copy(const struct far *far, void *dst, const void *src)
{
    ranks_require(far->rank, far->cuda->copy_wait(dst, src, far->bytes, far->device) == 0, "a copy should work");
}

/** The buffers' image on the device; the call's pointers go there as `place` says. */
static void far_place(struct far *far, enum place place)
{
    struct calls *c = &far->calls;
    const unsigned char *in = c->in, *out = c->out;
    const bool in_send = in >= c->send && in < c->send + far->bytes, out_send = out >= c->send && out < c->send + far->bytes;

    far_copy(far, far->send, c->send);
    far_copy(far, far->recv, c->recv);
    if (in != NULL && place != ONLY_OUT)
        c->in = in_send ? far->send + (in - c->send) : far->recv + (in - c->recv);
    if (out != NULL && place != ONLY_IN)
        c->out = out_send ? far->send + (out - c->send) : far->recv + (out - c->recv);
}

void far_call(struct far *far, const struct call *call, enum place place, struct hkt_stream *stream)
{
    char what[256], wrong[256];

    calls_fill(&far->calls, call);
    far_place(far, place);
    calls_print(call, what, sizeof what);
    ranks_require_ok(far->rank, calls_issue(&far->calls, call, stream), what);
    if (stream != NULL)
        ranks_require_ok(far->rank, hkt_stream_synchronize(stream), what);
    if (place != ONLY_OUT)
        far_copy(far, far->calls.send, far->send);
    if (place != ONLY_IN)
        far_copy(far, far->calls.recv, far->recv);
    ranks_require(far->rank, calls_check(&far->calls, call, wrong, sizeof wrong) == 0, "%s, place %d: %s", what,
                  (int)place, wrong);
}

static const size_t counts[FAR_KINDS] = { 0, 1, 777, 40000 };

/** Bytes of the largest buffer of any collective of so many elements. */
static size_t room_for(size_t count, int nranks)
{
    size_t room = 0;

    for (int coll = 0; coll < HKT_SEND_RECV; coll++) {
        const struct call call = { .coll = (enum hkt_coll)coll, .dtype = HKT_F64, .count = count, .offset = 8 };
        const size_t need = calls_room(&call, nranks);

        room = need > room ? need : room;
    }
    return room;
}

size_t far_room(size_t nkinds, int nranks)
{
    return room_for(counts[nkinds - 1], nranks);
}

bool far_kind(enum hkt_coll coll, bool in_place, size_t i, int nranks, struct call *out_call)
{
    static const enum hkt_dtype dtypes[] = { HKT_F32, HKT_INT8, HKT_F64 };

    if (coll == HKT_BARRIER || (coll == HKT_ALL_TO_ALL_V && in_place))
        return false;
    *out_call = (struct call){ .coll = coll, .dtype = dtypes[i % 3], .op = i % 2 == 0 ? HKT_SUM : HKT_AVG, .count = counts[i],
                               .kind = calls_reduces(coll) ? EXACT_BUILTIN : EXACT_PLAIN, .in_place = in_place,
                               .root = calls_has_root(coll) ? nranks - 1 : 0, .offset = i % 2 == 0 ? 0 : 8 };
    return true;
}
