/* Copying: memcpy, or past the caches where that is faster. */
#include "device/kernels.h"

#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define STREAM_MIN 1024 /* below, the fence after streaming stores costs more than they save */

void hkt__copy_loosely(void *dst, const void *src, size_t bytes, int streaming)
{
    if (dst == src || bytes == 0)
        return;
    if (streaming && bytes >= STREAM_MIN) {
        const struct hkt__kernels *kernels = hkt__kernels_get(hkt__isa_best());

        if (kernels->copy_streaming != NULL) {
            kernels->copy_streaming(dst, src, bytes);
            return;
        }
    }
    memcpy(dst, src, bytes);
}

void hkt__stores_settle(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

void hkt__copy_bytes(void *dst, const void *src, size_t bytes, int streaming)
{
    hkt__copy_loosely(dst, src, bytes, streaming);
    if (streaming)
        hkt__stores_settle();
}
