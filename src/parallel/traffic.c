/* Counting, and the case of one rank; the rest is libhocket's. */
#include "parallel/traffic.h"

#include <string.h>

#include "hocket/formulas.h"
#include "parallel/fail.h"

static void count(const struct hkt__link *link, enum hkt_coll coll, int64_t elems, enum hkt_dtype dtype)
{
    if (link->traffic == NULL)
        return;
    link->traffic->calls[link->axis][coll]++;
    link->traffic->bytes[link->axis][coll] += (uint64_t)elems * hkt_dtype_size(dtype);
}

int64_t hkt__link_begin(const struct hkt__link *link)
{
    if (link->traffic != NULL && link->stream != NULL)
        hkt__timeline_stream_begin(link->traffic->timeline, link->stream);
    return hkt__timeline_now();
}

void hkt__link_end(const struct hkt__link *link, int64_t begin_ns, const char *name, int64_t bytes)
{
    const struct hkt__span span = { .begin_ns = begin_ns, .name = name, .number = bytes, .axis = link->axis };

    if (link->traffic == NULL)
        return;
    if (link->stream == NULL)
        hkt__timeline_waited(link->traffic->timeline, HKT__SPAN_CALL, &span);
    else
        hkt__timeline_stream_end(link->traffic->timeline, link->stream, &span);
}

static enum hkt_status done(const struct hkt__link *link, enum hkt_status rc)
{
    return rc == HKT_OK ? rc : hkt__parallel_pass(rc, hkt__traffic_axis_name(link->axis));
}

static void copy(const void *from, void *to, int64_t elems, enum hkt_dtype dtype)
{
    if (from != to && elems > 0)
        memcpy(to, from, (size_t)elems * hkt_dtype_size(dtype));
}

enum hkt_status hkt__link_all_reduce(const struct hkt__link *link, void *data, int64_t elems, enum hkt_dtype dtype,
                                     enum hkt_op op)
{
    if (link->size == 1)
        return HKT_OK;
    count(link, HKT_ALL_REDUCE, elems, dtype);
    const int64_t begin = hkt__link_begin(link);
    const enum hkt_status rc = hkt_all_reduce(data, data, (size_t)elems, dtype, op, link->comm, link->stream);

    hkt__link_end(link, begin, "all_reduce", elems * (int64_t)hkt_dtype_size(dtype));
    return done(link, rc);
}

enum hkt_status hkt__link_all_gather(const struct hkt__link *link, const void *from, void *to, int64_t elems,
                                     enum hkt_dtype dtype)
{
    if (link->size == 1) {
        copy(from, to, elems, dtype);
        return HKT_OK;
    }
    count(link, HKT_ALL_GATHER, elems * link->size, dtype);
    const int64_t begin = hkt__link_begin(link);
    const enum hkt_status rc = hkt_all_gather(from, to, (size_t)elems, dtype, link->comm, link->stream);

    hkt__link_end(link, begin, "all_gather", elems * link->size * (int64_t)hkt_dtype_size(dtype));
    return done(link, rc);
}

enum hkt_status hkt__link_reduce_scatter(const struct hkt__link *link, const void *from, void *to, int64_t elems,
                                         enum hkt_dtype dtype)
{
    if (link->size == 1) {
        copy(from, to, elems, dtype);
        return HKT_OK;
    }
    count(link, HKT_REDUCE_SCATTER, elems * link->size, dtype);
    const int64_t begin = hkt__link_begin(link);
    const enum hkt_status rc = hkt_reduce_scatter(from, to, (size_t)elems, dtype, HKT_SUM, link->comm, link->stream);

    hkt__link_end(link, begin, "reduce_scatter", elems * link->size * (int64_t)hkt_dtype_size(dtype));
    return done(link, rc);
}

enum hkt_status hkt__link_all_to_all_v(const struct hkt__link *link, const void *from, void *to,
                                       const struct hkt_blocks *blocks, enum hkt_dtype dtype)
{
    int64_t elems = 0;

    if (link->size == 1) {
        copy((const char *)from + blocks->send_displs[0] * hkt_dtype_size(dtype),
             (char *)to + blocks->recv_displs[0] * hkt_dtype_size(dtype), (int64_t)blocks->send_counts[0], dtype);
        return HKT_OK;
    }
    for (int i = 0; i < link->size; i++)
        elems += (int64_t)blocks->send_counts[i];
    count(link, HKT_ALL_TO_ALL_V, elems, dtype);
    const int64_t begin = hkt__link_begin(link);
    const enum hkt_status rc = hkt_all_to_all_v(from, to, blocks, dtype, link->comm, link->stream);

    hkt__link_end(link, begin, "all_to_all_v", elems * (int64_t)hkt_dtype_size(dtype));
    return done(link, rc);
}

enum hkt_status hkt__link_all_gather_v(const struct hkt__link *link, const void *from, void *to, const size_t *counts,
                                       enum hkt_dtype dtype)
{
    int64_t elems = 0;

    for (int i = 0; i < link->size; i++)
        elems += (int64_t)counts[i];
    if (link->size == 1) {
        copy(from, to, elems, dtype);
        return HKT_OK;
    }
    count(link, HKT_ALL_GATHER_V, elems, dtype);
    const int64_t begin = hkt__link_begin(link);
    const enum hkt_status rc = hkt_all_gather_v(from, counts[link->rank], to, counts, NULL, dtype, link->comm, link->stream);

    hkt__link_end(link, begin, "all_gather_v", elems * (int64_t)hkt_dtype_size(dtype));
    return done(link, rc);
}

enum hkt_status hkt__link_send(const struct hkt__link *link, const void *data, int64_t elems, enum hkt_dtype dtype,
                               int peer)
{
    count(link, HKT_SEND_RECV, elems, dtype);
    return done(link, hkt_send(data, (size_t)elems, dtype, peer, link->comm, link->stream));
}

enum hkt_status hkt__link_recv(const struct hkt__link *link, void *data, int64_t elems, enum hkt_dtype dtype, int peer)
{
    return done(link, hkt_recv(data, (size_t)elems, dtype, peer, link->comm, link->stream));
}

double hkt__traffic_wire(const struct hkt__traffic *traffic, enum hkt__traffic_axis axis, int size)
{
    const uint64_t *bytes = traffic->bytes[axis];

    return hkt_wire_all_reduce((double)bytes[HKT_ALL_REDUCE], size)
           + hkt_wire_reduce_scatter((double)bytes[HKT_REDUCE_SCATTER], size)
           + hkt_wire_all_gather((double)(bytes[HKT_ALL_GATHER] + bytes[HKT_ALL_GATHER_V]), size)
           + hkt_wire_all_to_all((double)(bytes[HKT_ALL_TO_ALL] + bytes[HKT_ALL_TO_ALL_V]), size)
           + (double)bytes[HKT_SEND_RECV];
}
