/* Devices, errors, and calls that are made to fail. */
#include "engine.h"
#include "runtime.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define DEVICES_MAX 64

struct emu_runtime emu_runtime = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

static pthread_once_t settings_once = PTHREAD_ONCE_INIT;
static struct {
    int ndevices;
    bool has_driver, has_peers;
} settings;

static _Thread_local int device;
static _Thread_local bool is_bound; /* has a context: calls of the driver need one */
static _Thread_local cudaError_t last_error;
static _Thread_local bool is_waiting; /* asks until something is done */
static bool is_enabled[DEVICES_MAX][DEVICES_MAX]; /* peer access; under emu_runtime.lock */

/* Which call fails. Relaxed: tests set them while nobody else calls. */
static atomic_long calls, fails_at;
static atomic_int fails_with;
static _Atomic(const char *) failed;
#define NAMES 1024
static _Atomic(const char *) names[NAMES]; /* of the last calls, by number */

static void load_settings(void)
{
    const long n = emu_setting("EMU_DEVICES", 2);

    settings.ndevices = n < 0 ? 0 : n > DEVICES_MAX ? DEVICES_MAX : (int)n;
    settings.has_driver = emu_setting("EMU_NO_DRIVER", 0) == 0;
    settings.has_peers = emu_setting("EMU_PEERS", 1) != 0;
}

long emu_calls(void)
{
    return atomic_load_explicit(&calls, memory_order_relaxed);
}

const char *emu_call_name(long call)
{
    return atomic_load_explicit(&names[call % NAMES], memory_order_relaxed);
}

void emu_fail_call(long k, int error)
{
    atomic_store_explicit(&failed, NULL, memory_order_relaxed);
    atomic_store_explicit(&fails_with, error, memory_order_relaxed);
    atomic_store_explicit(&fails_at, k > 0 ? emu_calls() + k : 0, memory_order_relaxed);
}

const char *emu_failed_call(void)
{
    return atomic_load_explicit(&failed, memory_order_relaxed);
}

cudaError_t emu_note(cudaError_t error)
{
    if (error != cudaSuccess && error != cudaErrorNotReady)
        last_error = error;
    return error;
}

cudaError_t emu_answer(bool is_done)
{
    is_waiting = !is_done;
    return is_done ? cudaSuccess : cudaErrorNotReady;
}

/** A call that asks again, or makes a device current for that. */
static bool is_again(const char *function)
{
    static const char *const asking[] = { "cudaGetDevice", "cudaSetDevice", "cudaStreamQuery", "cudaEventQuery" };

    for (size_t i = 0; i < sizeof asking / sizeof *asking && is_waiting; i++)
        if (strcmp(function, asking[i]) == 0)
            return true;
    is_waiting = false;
    return false;
}

cudaError_t emu_enter(const char *function)
{
    if (is_again(function))
        return cudaSuccess;
    const long call = atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed) + 1;

    atomic_store_explicit(&names[call % NAMES], function, memory_order_relaxed);
    pthread_once(&settings_once, load_settings);
    if (call == atomic_load_explicit(&fails_at, memory_order_relaxed)) {
        atomic_store_explicit(&failed, function, memory_order_relaxed);
        return emu_note((cudaError_t)atomic_load_explicit(&fails_with, memory_order_relaxed));
    }
    if (!settings.has_driver)
        return emu_note(cudaErrorInsufficientDriver);
    return settings.ndevices == 0 ? emu_note(cudaErrorNoDevice) : cudaSuccess;
}

bool emu_is_bound(void)
{
    return is_bound;
}

int emu_device(void)
{
    return device;
}

int emu_device_count(void)
{
    return settings.ndevices;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    const cudaError_t rc = emu_enter(__func__);

    if (rc == cudaSuccess)
        *count = settings.ndevices;
    return rc;
}

cudaError_t cudaSetDevice(int number)
{
    const cudaError_t rc = emu_enter(__func__);

    if (rc != cudaSuccess)
        return rc;
    if (number < 0 || number >= settings.ndevices)
        return emu_note(cudaErrorInvalidDevice);
    device = number;
    is_bound = true;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *number)
{
    const cudaError_t rc = emu_enter(__func__);

    if (rc == cudaSuccess)
        *number = device;
    return rc;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int number)
{
    const cudaError_t rc = emu_enter(__func__);

    if (rc != cudaSuccess)
        return rc;
    if (number < 0 || number >= settings.ndevices)
        return emu_note(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
        *value = 4;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
    default:
        return emu_note(cudaErrorInvalidValue);
    }
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int number)
{
    const cudaError_t rc = emu_enter(__func__);

    if (rc != cudaSuccess)
        return rc;
    if (text == NULL || bytes < 13 || number < 0 || number >= settings.ndevices)
        return emu_note(cudaErrorInvalidValue);
    snprintf(text, (size_t)bytes, "0000:%02x:00.0", (unsigned)number + 1);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    const cudaError_t rc = emu_enter(__func__);

    *version = rc == cudaErrorInsufficientDriver ? 0 : CUDART_VERSION; /* 0, and success, where there is no driver */
    return rc == cudaErrorInsufficientDriver || rc == cudaErrorNoDevice ? cudaSuccess : rc;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    const cudaError_t rc = emu_enter(__func__);

    if (rc == cudaSuccess)
        emu_drain(device);
    return rc;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int of, int peer)
{
    const cudaError_t rc = emu_enter(__func__);

    if (rc != cudaSuccess)
        return rc;
    if (of < 0 || of >= settings.ndevices || peer < 0 || peer >= settings.ndevices)
        return emu_note(cudaErrorInvalidDevice);
    *can = settings.has_peers && of != peer;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    cudaError_t rc = emu_enter(__func__);

    if (rc != cudaSuccess)
        return rc;
    if (flags != 0 || peer < 0 || peer >= settings.ndevices || peer == device)
        return emu_note(flags != 0 ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
    if (!settings.has_peers)
        return emu_note(cudaErrorPeerAccessUnsupported);
    pthread_mutex_lock(&emu_runtime.lock);
    rc = is_enabled[device][peer] ? cudaErrorPeerAccessAlreadyEnabled : cudaSuccess;
    is_enabled[device][peer] = true;
    pthread_mutex_unlock(&emu_runtime.lock);
    return emu_note(rc);
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = last_error;

    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define ROW(name, value, text)                                                                                         \
    case name:                                                                                                         \
        return #name;
        EMU_ERROR_TABLE(ROW)
#undef ROW
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define ROW(name, value, text)                                                                                         \
    case name:                                                                                                         \
        return text;
        EMU_ERROR_TABLE(ROW)
#undef ROW
    }
    return "unrecognized error code";
}
