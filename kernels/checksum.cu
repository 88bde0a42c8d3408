/* CRC-32C of a buffer by many threads. A message is a polynomial over GF(2), its checksum the remainder modulo P; so
 * the checksum of a message in segments is the sum of those of the segments, each multiplied by x^(8 * bytes that
 * follow it). Numbers are reflected: the coefficient of x^0 is bit 31, as in hkt__crc32c, whose result this has. */
#include "kernels/fold.cuh"

#define SEGMENT_BYTES ((size_t)1024)
#define POLYNOMIAL 0x82f63b78u

__host__ __device__ constexpr uint32_t times_x(uint32_t a)
{
    return a >> 1 ^ (a & 1 ? POLYNOMIAL : 0);
}

__host__ __device__ constexpr uint32_t product(uint32_t a, uint32_t b)
{
    uint32_t sum = 0;

    for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
        sum ^= a & bit ? b : 0;
        b = times_x(b);
    }
    return sum;
}

struct crc_tables {
    uint32_t of_byte[256]; /* the remainder a byte leaves */
    uint32_t powers[64];   /* x^(8 * 2^k) */
};

constexpr crc_tables make_tables()
{
    crc_tables t = {};

    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t rest = byte;

        for (int i = 0; i < 8; ++i)
            rest = times_x(rest);
        t.of_byte[byte] = rest;
    }
    t.powers[0] = 0x80000000u >> 8;
    for (int k = 1; k < 64; ++k)
        t.powers[k] = product(t.powers[k - 1], t.powers[k - 1]);
    return t;
}

static __constant__ const crc_tables tables = make_tables();

/** rest * x^(8 * bytes): what it is after so many zero bytes. */
HKT__DEVICE uint32_t followed_by(uint32_t rest, size_t bytes)
{
#pragma unroll 1
    for (int k = 0; bytes != 0; ++k, bytes >>= 1)
        if (bytes & 1)
            rest = product(tables.powers[k], rest);
    return rest;
}

/** *a.out must be 0 before: the threads add their shares. */
__global__ void __launch_bounds__(HKT__KERNEL_THREADS) checksum(const __grid_constant__ hkt__checksum_args a)
{
    __shared__ uint32_t of_byte[256]; /* lanes look up different bytes, which constant memory would serve one by one */
    const workers w = whole_grid();
    const size_t segments = (a.bytes + SEGMENT_BYTES - 1) / SEGMENT_BYTES;
    uint32_t share = w.self == 0 ? ~followed_by(~a.crc, a.bytes) : 0;

    for (unsigned i = threadIdx.x; i < 256; i += blockDim.x)
        of_byte[i] = tables.of_byte[i];
    __syncthreads();
    for (size_t s = w.self; s < segments; s += w.count) {
        const size_t first = s * SEGMENT_BYTES;
        const size_t last = a.bytes - first < SEGMENT_BYTES ? a.bytes : first + SEGMENT_BYTES;
        uint32_t rest = 0;

        for (size_t i = first; i < last; ++i)
            rest = rest >> 8 ^ of_byte[(rest ^ load_bytes<uint8_t>(bytes_at(a.src, i))) & 0xff];
        share ^= followed_by(rest, a.bytes - last);
    }
    if (share != 0)
        atomicXor(a.out, share);
}

const void *hkt__kernel_checksum(void)
{
    return HKT__KERNEL_ADDRESS(checksum);
}
