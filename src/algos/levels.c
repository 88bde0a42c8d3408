/* See levels.h. */
#include "algos/levels.h"

#include "algos/patterns.h"
#include "core/error.h"

struct hkt__levels hkt__levels_default(int nranks)
{
    struct hkt__levels levels = { 1, { nranks }, 0 };

    for (int i = 0; i < levels.count;) {
        const int size = levels.sizes[i], inner = hkt__near_square(size);

        if (inner == 1 || (size <= HKT__LEVEL_SPLIT_ABOVE && levels.count > 1)) {
            i++;
            continue;
        }
        for (int k = levels.count++; k > i; k--)
            levels.sizes[k] = levels.sizes[k - 1];
        levels.sizes[i] = inner;
        levels.sizes[i + 1] = size / inner;
    }
    return levels;
}

struct hkt__levels hkt__levels_of(const struct hkt__builder *b)
{
    return b->levels != NULL ? *b->levels : hkt__levels_default(b->nranks);
}

int hkt__levels_led(const struct hkt__levels *levels)
{
    const int near_count = levels->near_count > 0 ? levels->near_count : 1;

    return near_count < levels->count ? near_count : levels->count - 1;
}

enum hkt_status hkt__levels_check(const struct hkt__levels *levels, int nranks)
{
    int64_t product = 1;

    if (levels->count < 1 || levels->count > HKT__LEVELS_MAX)
        return hkt__fail(HKT_ERR_INVALID, "%d levels of ranks: there are 1 to %d", levels->count, HKT__LEVELS_MAX);
    for (int i = 0; i < levels->count; i++) {
        if (levels->sizes[i] < (nranks > 1 ? 2 : 1) || levels->sizes[i] > nranks)
            return hkt__fail(HKT_ERR_INVALID, "level %d of ranks has groups of %d: they must have 2 to %d, all ranks",
                             i, levels->sizes[i], nranks);
        product *= levels->sizes[i];
        if (product > nranks)
            break;
    }
    if (product != nranks)
        return hkt__fail(HKT_ERR_INVALID,
                         "levels of ranks must multiply to %d, the number of ranks: groups must be of one size",
                         nranks);
    return HKT_OK;
}

struct hkt__level hkt__level(const struct hkt__levels *levels, int index, int rank)
{
    int stride = 1;

    for (int i = 0; i < index; i++)
        stride *= levels->sizes[i];
    const int size = levels->sizes[index];

    return (struct hkt__level){ size, rank / stride % size, stride, size * stride };
}
