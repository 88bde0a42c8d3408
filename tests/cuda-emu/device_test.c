#include "device_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"

static uint64_t random_state = DEVICE_TEST_SEED;

void must_at(int rc, const char *what, const char *file, int line)
{
    if (rc != 0) {
        fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, cudaGetErrorString((cudaError_t)rc));
        fail();
    }
}

/* splitmix64 */
uint64_t random_bits(void)
{
    uint64_t z = random_state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/** A number of moderate size, of either sign. */
static void random_number(void *out, enum hkt_dtype dtype)
{
    const uint64_t r = random_bits();
    const double x = ((double)(r & 0xffffff) - 0x800000) / (double)(UINT64_C(1) << (r >> 24) % 30);

    if (dtype == HKT_F64)
        memcpy(out, &x, sizeof x);
    else
        hkt__from_f32(out, dtype, (float)x);
}

void random_elements(void *out, size_t count, enum hkt_dtype dtype)
{
    static const uint64_t f64s[] = { 0, 1, UINT64_C(0x7ff0000000000000), UINT64_C(0x7ff8000000000001),
                                     UINT64_C(0x7fefffffffffffff), UINT64_C(0x000fffffffffffff) };
    static const float floats[] = { 0, 0x1p-149f, 0x1p-126f, 0x1.fffffep127f, 0x1p-24f, 0x1p-9f, 448, 65504 };
    const size_t size = hkt_dtype_size(dtype);
    const int is_float = dtype >= HKT_F16 && dtype <= HKT_F8E5M2;

    for (size_t i = 0; i < count; ++i) {
        char *p = (char *)out + i * size;
        uint64_t r = random_bits();

        if (!is_float)
            r = r % 4 == 0 ? (r >> 8) % 3 - 1 : r; /* 0, 1 and all ones often */
        memcpy(p, &r, size);
        if (is_float && r % 3 == 0)
            random_number(p, dtype);
        else if (dtype == HKT_F64 && r % 3 == 1)
            memcpy(p, &f64s[(r >> 8) % 6], size);
        else if (is_float && r % 3 == 1)
            hkt__from_f32(p, dtype, floats[(r >> 8) % 8]);
        if (is_float && r % 3 == 1 && r >> 63)
            p[size - 1] = (char)(p[size - 1] ^ 0x80); /* the sign */
        if (dtype == HKT_BOOL && r % 2 == 0)
            *p = 0;
    }
}

struct area area_make(size_t bytes, unsigned remainder)
{
    struct area area = { .whole = AREA_MARGIN + remainder + bytes + AREA_MARGIN };
    void *p;

    must(cudaMalloc(&p, area.whole));
    area.device = p;
    area.host = malloc(area.whole);
    assert_non_null(area.host);
    for (size_t i = 0; i < area.whole; ++i)
        area.host[i] = (char)random_bits();
    area.data = area.device + AREA_MARGIN + remainder;
    area.want = area.host + AREA_MARGIN + remainder;
    return area;
}

void area_upload(const struct area *area, cudaStream_t stream)
{
    must(cudaMemcpyAsync(area->device, area->host, area->whole, cudaMemcpyHostToDevice, stream));
}

void area_check(const struct area *area, cudaStream_t stream, const char *what)
{
    char *got = malloc(area->whole);

    assert_non_null(got);
    must(cudaMemcpyAsync(got, area->device, area->whole, cudaMemcpyDeviceToHost, stream));
    must(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < area->whole; ++i)
        if (got[i] != area->host[i]) {
            fprintf(stderr, "%s: byte %td of the data is %02x, not %02x (seed %llu)\n", what,
                    (area->host + i) - area->want, (unsigned char)got[i], (unsigned char)area->host[i],
                    (unsigned long long)DEVICE_TEST_SEED);
            free(got);
            fail();
        }
    free(got);
}

void area_free(struct area *area)
{
    must(cudaFree(area->device));
    free(area->host);
    *area = (struct area){ 0 };
}
