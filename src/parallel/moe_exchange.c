/* Rows on their way between ranks' slots and the experts: all-to-all with the plan's counts, or the reference that sends
 * everything to everyone and lets each take what is its own. */
#include <stddef.h>
#include <string.h>

#include "parallel/block.h"

_Static_assert(sizeof(size_t) == 8, "counts travel as 64-bit numbers");

/* Rows for each rank from `from`, rows of each rank in `to`. */
struct rows {
    const size_t *send_counts, *send_displs, *recv_counts, *recv_displs;
    const void *from;
    void *to;
};

static void *get(struct hkt__block *block, size_t bytes)
{
    void *data = NULL;

    if (hkt__block_ok(block))
        hkt__block_note(block, hkt__memory_alloc(block->memory, HKT__MEMORY_BUFFER, bytes, &data));
    return data;
}

static void exchange_direct(struct hkt__block *block, const struct rows *rows)
{
    const size_t n = (size_t)block->ep.size, cols = (size_t)block->hidden;
    size_t *elems = get(block, 4 * n * sizeof *elems);

    if (!hkt__block_ok(block))
        return;
    for (size_t i = 0; i < n; i++) {
        elems[i] = rows->send_counts[i] * cols;
        elems[n + i] = rows->send_displs[i] * cols;
        elems[2 * n + i] = rows->recv_counts[i] * cols;
        elems[3 * n + i] = rows->recv_displs[i] * cols;
    }
    const struct hkt_blocks blocks = { elems, elems + n, elems + 2 * n, elems + 3 * n };

    hkt__block_note(block,
                    hkt__link_all_to_all_v(&block->ep, rows->from, rows->to, &blocks, block->ops->store));
    hkt__memory_free(block->memory, elems);
}

/* matrix[i * n + j]: rows that rank i has for rank j, one after the other. */
static void take_own(const struct hkt__block *block, const struct rows *rows, const size_t *matrix, const char *all)
{
    const size_t n = (size_t)block->ep.size, me = (size_t)block->ep.rank;
    const size_t bytes = (size_t)block->hidden * block->ops->store_bytes;
    size_t at = 0;

    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            if (j == me)
                memcpy((char *)rows->to + rows->recv_displs[i] * bytes, all + at * bytes, matrix[i * n + j] * bytes);
            at += matrix[i * n + j];
        }
}

static void exchange_all(struct hkt__block *block, const struct rows *rows)
{
    const size_t n = (size_t)block->ep.size, cols = (size_t)block->hidden;
    size_t *matrix = get(block, (n * n + n) * sizeof *matrix), *totals = matrix == NULL ? NULL : matrix + n * n;
    size_t total = 0;

    if (hkt__block_ok(block))
        hkt__block_note(block, hkt__link_all_gather(&block->ep, rows->send_counts, matrix, (int64_t)n, HKT_UINT64));
    for (size_t i = 0; hkt__block_ok(block) && i < n; i++) {
        totals[i] = 0;
        for (size_t j = 0; j < n; j++)
            totals[i] += matrix[i * n + j] * cols;
        total += totals[i];
    }
    char *all = get(block, total * block->ops->store_bytes);

    if (hkt__block_ok(block))
        hkt__block_note(block, hkt__link_all_gather_v(&block->ep, rows->from, all, totals, block->ops->store));
    if (hkt__block_ok(block))
        take_own(block, rows, matrix, all);
    hkt__memory_free(block->memory, all);
    hkt__memory_free(block->memory, matrix);
}

void hkt__moe_exchange(struct hkt__block *block, const struct hkt_moe_plan *plan, const void *from, void *to,
                       bool is_back)
{
    const struct rows rows = {
        .send_counts = is_back ? plan->recv_counts : plan->send_counts,
        .send_displs = is_back ? plan->recv_displs : plan->send_displs,
        .recv_counts = is_back ? plan->send_counts : plan->recv_counts,
        .recv_displs = is_back ? plan->send_displs : plan->recv_displs,
        .from = from,
        .to = to,
    };

    if (!hkt__block_ok(block))
        return;
    if (block->config->dispatch == HKT__MOE_ALL_GATHER && block->ep.size > 1)
        exchange_all(block, &rows);
    else
        exchange_direct(block, &rows);
}

void hkt__moe_exchange_counts(struct hkt__block *block, const struct hkt_moe_plan *plan, int64_t *counts)
{
    const int n = block->ep.size;
    size_t *elems = get(block, 4 * (size_t)n * sizeof *elems);

    if (!hkt__block_ok(block))
        return;
    for (int i = 0; i < n; i++) {
        const struct hkt_range experts = hkt_shard_even(plan->experts, n, i);

        elems[i] = (size_t)experts.count;
        elems[n + i] = (size_t)experts.first;
        elems[2 * n + i] = (size_t)plan->nlocal;
        elems[3 * n + i] = (size_t)(i * plan->nlocal);
    }
    const struct hkt_blocks blocks = { elems, elems + n, elems + 2 * n, elems + 3 * n };

    hkt__block_note(block, hkt__link_all_to_all_v(&block->ep, plan->kept, counts, &blocks, HKT_INT64));
    hkt__memory_free(block->memory, elems);
}
