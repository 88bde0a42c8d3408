/* Conversions between f32 and the small formats, one element at a time, the format chosen at run time. */
#include "device/device.h"
#include "device/formats.h"

#include <assert.h>

/* Format of a small dtype; NULL for all others. */
static const struct hkt__format *format_of(enum hkt_dtype dtype)
{
    switch (dtype) {
    case HKT_F16: return &hkt__format_f16;
    case HKT_BF16: return &hkt__format_bf16;
    case HKT_F8E4M3: return &hkt__format_f8e4m3;
    case HKT_F8E5M2: return &hkt__format_f8e5m2;
    default: return NULL;
    }
}

float hkt__to_f32(const void *x, enum hkt_dtype dtype)
{
    const struct hkt__format *format = format_of(dtype);
    uint8_t byte;
    uint16_t half;
    float value;

    if (format == NULL) {
        assert(dtype == HKT_F32);
        memcpy(&value, x, sizeof value);
        return value;
    }
    if (format->bits == 8) {
        memcpy(&byte, x, sizeof byte);
        return hkt__decode(byte, *format);
    }
    memcpy(&half, x, sizeof half);
    return hkt__decode(half, *format);
}

void hkt__from_f32(void *x, enum hkt_dtype dtype, float value)
{
    const struct hkt__format *format = format_of(dtype);

    if (format == NULL) {
        assert(dtype == HKT_F32);
        memcpy(x, &value, sizeof value);
    } else if (format->bits == 8) {
        const uint8_t byte = (uint8_t)hkt__encode(value, *format);

        memcpy(x, &byte, sizeof byte);
    } else {
        const uint16_t half = (uint16_t)hkt__encode(value, *format);

        memcpy(x, &half, sizeof half);
    }
}
