/* How a call is packed in a stamp, and printed from one. */
#ifndef HOCKET_EXEC_CALL_H
#define HOCKET_EXEC_CALL_H

#include "transport/transport.h"

#define HKT__CALL_NO_OP 63u       /* op field of calls that do not reduce */
#define HKT__CALL_UNKNOWN 31u     /* in place of a packed call: one that is forgotten */
#define HKT__CALL_IN_PLACE 1u     /* flags */
#define HKT__CALL_REGISTERED 2u   /* never sent, as the next ones: tells kinds of calls apart within a rank */
#define HKT__CALL_INTERNAL 4u
#define HKT__CALL_ON_DEVICE 8u

static inline uint32_t hkt__call_pack(enum hkt_coll coll, enum hkt_dtype dtype, unsigned op, unsigned algo, unsigned flags)
{
    return (uint32_t)coll | (uint32_t)dtype << 5 | op << 10 | (algo & 255u) << 16 | flags << 24;
}

/** Slices and lanes, in what is left of the word: ranks that cut a call otherwise would take each other's bytes for other ones. No
 *  more than 32 values, so that of different cuts all but a few show. Added to what hkt__call_pack gives. */
static inline uint32_t hkt__call_cut(int32_t nslices, int32_t lanes)
{
    return ((uint32_t)nslices * 5u + (uint32_t)lanes) % 32u << 27;
}

/** The collective of a packed call: HKT_COLL_COUNT or more in one that is unknown, or came as garbage. */
static inline enum hkt_coll hkt__call_coll(uint32_t call)
{
    return (enum hkt_coll)(call & 31u);
}

/** In calls whose blocks differ, but by counts that all ranks pass, the stamp's root is a digest of these counts. */
static inline bool hkt__call_has_digest(enum hkt_coll coll)
{
    return coll == HKT_ALL_GATHER_V || coll == HKT_REDUCE_SCATTER_V;
}

/** "all_reduce(count=4, float, sum) as operation 7". */
void hkt__call_print(const struct hkt__stamp *stamp, char *out_text, size_t bytes);

/** The frame's stamp differs from this call's: record who called what (MISMATCH). */
enum hkt_status hkt__stamp_mismatch(int peer, const struct hkt__stamp *own, const struct hkt__stamp *theirs);

#endif
