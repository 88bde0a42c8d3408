/* The public calls on memory of devices. */
#include "hocket/device.h"

#include "core/error.h"
#include "core/settings.h"
#include "device/cuda_group.h"

/** The module, or the failure that says why there is none. */
static enum hkt_status open_module(const struct hkt__cuda_module **out_module)
{
    const struct hkt__settings *settings;
    const enum hkt_status rc = hkt__settings_get(&settings);
    char why[HKT__ERROR_TEXT_MAX / 2];

    if (rc < 0)
        return rc;
    *out_module = hkt__cuda_open(settings->cuda, why, sizeof why);
    return *out_module != NULL ? HKT_OK : hkt__fail(HKT_ERR_UNSUPPORTED, "no CUDA device: %s", why);
}

static enum hkt_status check_device(const struct hkt__cuda_module *module, int device)
{
    int count = 0;
    const int rc = module->device_count(&count);

    if (rc != 0)
        return hkt__fail(HKT_ERR_SYSTEM, "CUDA cannot count its devices: %s", module->error_text(rc));
    return device >= 0 && device < count ? HKT_OK : hkt__fail(HKT_ERR_INVALID, "there is no device %d: there are %d", device, count);
}

enum hkt_status hkt_device_count(int *out_count)
{
    const struct hkt__cuda_module *module;
    enum hkt_status rc;

    if (out_count == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_device_count: out_count must not be NULL");
    rc = open_module(&module);
    if (rc < 0)
        return rc;
    const int error = module->device_count(out_count);

    return error == 0 ? HKT_OK : hkt__fail(HKT_ERR_SYSTEM, "CUDA cannot count its devices: %s", module->error_text(error));
}

enum hkt_status hkt_device_alloc(void **out_memory, size_t bytes, int device)
{
    const struct hkt__cuda_module *module;
    enum hkt_status rc;

    if (out_memory == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_device_alloc: out_memory must not be NULL");
    rc = open_module(&module);
    if (rc == HKT_OK)
        rc = check_device(module, device);
    if (rc < 0)
        return rc;
    hkt__cuda_arenas_sweep(); /* what peers have given up since may be what is missing */
    const int error = module->device_alloc(out_memory, bytes > 0 ? bytes : 1, device);

    return error == 0 ? HKT_OK : hkt__fail(HKT_ERR_NOMEM, "CUDA: no %zu bytes on device %d: %s", bytes, device,
                                           module->error_text(error));
}

enum hkt_status hkt_device_free(void *memory)
{
    const struct hkt__cuda_module *module;
    enum hkt_status rc;

    if (memory == NULL)
        return HKT_OK;
    rc = open_module(&module);
    if (rc < 0)
        return rc;
    const int error = module->device_free(memory);

    return error == 0 ? HKT_OK : hkt__fail(HKT_ERR_SYSTEM, "CUDA cannot free %p: %s", memory, module->error_text(error));
}

enum hkt_status hkt_device_copy(void *dst, const void *src, size_t bytes, int device)
{
    const struct hkt__cuda_module *module;
    enum hkt_status rc;

    if (bytes > 0 && (dst == NULL || src == NULL))
        return hkt__fail(HKT_ERR_INVALID, "hkt_device_copy: dst and src must not be NULL");
    rc = open_module(&module);
    if (rc == HKT_OK)
        rc = check_device(module, device);
    if (rc < 0 || bytes == 0)
        return rc;
    const int error = module->copy_wait(dst, src, bytes, device);

    return error == 0 ? HKT_OK : hkt__fail(HKT_ERR_SYSTEM, "CUDA: cannot copy %zu bytes on device %d: %s", bytes, device,
                                           module->error_text(error));
}
