/* Arrays that grow by doubling, for setup code. */
#ifndef HOCKET_SCHED_GROW_H
#define HOCKET_SCHED_GROW_H

#include <stdint.h>

#include "core/mem.h"

/** An array with room for `need` elements: `old` itself, or a larger copy whose new part is not initialised, and *cap
 *  adjusted. NULL when memory is out or need exceeds int32; old and *cap stay valid then. */
static inline void *hkt__grow(void *old, int32_t *cap, int64_t need, size_t elem_bytes)
{
    if (need <= *cap && old != NULL)
        return old;
    if (need > INT32_MAX)
        return NULL;
    int64_t room = *cap < 16 ? 16 : (int64_t)*cap * 2;

    if (room < need)
        room = need;
    if (room > INT32_MAX)
        room = INT32_MAX;
    void *grown = hkt__realloc(old, (size_t)room, elem_bytes);

    if (grown != NULL)
        *cap = (int32_t)room;
    return grown;
}

#endif
