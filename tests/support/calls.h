/* A collective call as data: fill its buffers, issue it, check every byte. Buffers stand between guard bytes; the bytes
 * that a call must not touch (guards, gaps between blocks, the input out of place) are checked too. Buffers that a rank's
 * role ignores are passed as NULL. */
#ifndef HOCKET_TESTS_CALLS_H
#define HOCKET_TESTS_CALLS_H

#include <stdbool.h>
#include <stddef.h>

#include "exact.h"

struct call {
    enum hkt_coll coll;
    enum hkt_dtype dtype;
    enum exact_kind kind;      /* EXACT_PLAIN unless the collective reduces */
    enum hkt_op op;            /* what is passed: a built-in, or the handle of a user operation */
    int root;
    size_t count;              /* as the API takes it; v-variants: about the size of a block */
    bool in_place;
    bool is_mixed;             /* in place, but on even ranks only: v-variants */
    size_t offset;             /* bytes by which the buffers miss a cache line's start */
};

/** One rank's buffers. */
struct calls {
    struct hkt_comm *comm;
    int rank, nranks;
    uint64_t seed;
    struct exact exact;
    size_t room;               /* bytes of the largest buffer */
    unsigned char *send, *recv, *expect;
    size_t send_counts[EXACT_RANKS_MAX], send_displs[EXACT_RANKS_MAX];
    size_t recv_counts[EXACT_RANKS_MAX], recv_displs[EXACT_RANKS_MAX];
    const void *in;            /* as the call in preparation passes them */
    void *out;
    size_t send_elems, recv_elems;
};

bool calls_reduces(enum hkt_coll coll);
bool calls_has_root(enum hkt_coll coll);

/** Room for buffers of room bytes; false: no memory. */
bool calls_init(struct calls *calls, struct hkt_comm *comm, size_t room);
void calls_fini(struct calls *calls);
/** Bytes of the larger buffer of a call at any rank. */
size_t calls_room(const struct call *call, int nranks);
/** Fill the buffers for a call. */
void calls_fill(struct calls *calls, const struct call *call);
/** Make the call on the buffers as they are. */
enum hkt_status calls_issue(const struct calls *calls, const struct call *call, struct hkt_stream *stream);
/** Wrong bytes or elements, 0 if all is right; the text says where and what. */
size_t calls_check(struct calls *calls, const struct call *call, char *out_text, size_t text_bytes);
/** "reduce_scatter float sum count=7 root=2 in place". */
void calls_print(const struct call *call, char *out_text, size_t text_bytes);

#endif
