/* Copying: memcpy, or past the caches where that is faster. */
#include "device/kernels.h"

#include <string.h>

#define STREAM_MIN 1024 /* below, the fence after streaming stores costs more than they save */

void hkt__copy_bytes(void *dst, const void *src, size_t bytes, int streaming)
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
