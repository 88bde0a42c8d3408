/* The cold half of the ring: setting up its ends, and what to think of unexpected values. See memring.h. */
#include "transport/memring.h"

#include <assert.h>

#include "core/bits.h"
#include "core/error.h"

_Static_assert(offsetof(struct hkt__ring_line, bytes) == offsetof(struct hkt__frame_header, bytes) &&
               offsetof(struct hkt__ring_line, stamp) == offsetof(struct hkt__frame_header, stamp) &&
               offsetof(struct hkt__ring_line, payload) == sizeof(struct hkt__frame_header), "one header on all media");

static void check_mem(const struct hkt__ring_mem *mem)
{
    assert(hkt__is_pow2(mem->nslots) && hkt__is_pow2(mem->nlines) && mem->nslots <= mem->nlines);
    assert(mem->slot_bytes >= HKT__RING_SMALL);
    (void)mem;
}

void hkt__ring_tx_init(struct hkt__ring_tx *tx, const struct hkt__ring_mem *mem)
{
    check_mem(mem);
    *tx = (struct hkt__ring_tx){ .mem = *mem, .line_mask = mem->nlines - 1 };
}

void hkt__ring_rx_init(struct hkt__ring_rx *rx, const struct hkt__ring_mem *mem)
{
    const uint32_t credit = mem->nslots < HKT__RING_CREDIT ? mem->nslots : HKT__RING_CREDIT;

    check_mem(mem);
    *rx = (struct hkt__ring_rx){ .mem = *mem, .line_mask = mem->nlines - 1, .credit_mask = credit - 1 };
}

enum hkt_status hkt__ring_refresh(struct hkt__ring_tx *tx, uint32_t window)
{
    /* A2: the consumer's reads of the slots counted are over; pairs with R2 in release */
    const uint32_t taken = atomic_load_explicit(&tx->mem.count->taken, memory_order_acquire);
    const uint32_t in_flight = tx->sent - taken;

    if (in_flight > tx->mem.nlines)
        return hkt__fail(HKT_ERR_CORRUPT, "shared memory damaged: the receiver counts %u frames, but %u were sent", taken,
                         tx->sent);
    tx->seen = taken;
    tx->window = window;
    tx->is_starved = in_flight >= window;
    return tx->is_starved ? HKT_AGAIN : HKT_OK;
}

enum hkt_status hkt__ring_judge(const struct hkt__ring_rx *rx, uint32_t seq, uint32_t bytes)
{
    const uint32_t expected = rx->taken + 1;

    if (seq == expected)
        return hkt__fail(HKT_ERR_CORRUPT, "shared memory damaged: frame %u claims %u bytes in a slot of %zu", seq, bytes,
                         rx->mem.slot_bytes);
    if (seq == expected - rx->mem.nlines || seq == 0)
        return HKT_AGAIN;
    return hkt__fail(HKT_ERR_CORRUPT, "shared memory damaged: frame %u where frame %u was expected", seq, expected);
}
