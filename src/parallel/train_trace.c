/* The trace of a training run: every rank writes its spans into memory, rank 0 all of them into one file, rank after rank. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "parallel/alloc.h"
#include "parallel/checkpoint.h"
#include "parallel/fail.h"
#include "parallel/train_state.h"

enum hkt_status hkt_trainer_trace(struct hkt_trainer *t, int is_on)
{
    /* Ranks leave a barrier together: from there times count, also between hosts whose clocks differ. */
    const enum hkt_status rc = is_on && t->comm != NULL ? hkt_barrier(t->comm, NULL) : HKT_OK;

    if (rc < 0)
        return hkt__parallel_pass(rc, "the barrier of a trace");
    if (is_on)
        t->trace_begin_ns = hkt__timeline_now();
    t->timeline.is_on = is_on != 0;
    return HKT_OK;
}

double hkt_trainer_waited(const struct hkt_trainer *t, const char *axis)
{
    for (int a = 0; a < HKT__TRAFFIC_COUNT; a++)
        if (strcmp(hkt__traffic_axis_name((enum hkt__traffic_axis)a), axis) == 0)
            return (double)t->timeline.waited_ns[a] * 1e-9;
    return 0;
}

/* This rank's events as text, released by hkt__parallel_free. */
static enum hkt_status print_here(const struct hkt_trainer *t, char **out_text, size_t *out_bytes)
{
    const size_t room = (size_t)(t->timeline.count + HKT__TRACE_HEAD_LINES) * HKT__TRACE_LINE_MAX;
    char *text = hkt__parallel_calloc(room, 1);
    FILE *file = text != NULL ? fmemopen(text, room, "w") : NULL;

    if (file != NULL) {
        hkt__timeline_print(&t->timeline, t->rank, t->trace_begin_ns, file);
        *out_bytes = (size_t)ftell(file);
    }
    if (file == NULL || fclose(file) != 0) {
        hkt__parallel_free(text);
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for the trace of %lld spans", (long long)t->timeline.count);
    }
    *out_text = text;
    return HKT_OK;
}

/* Rank 0: its own text, then the others', one at a time. `bytes` tells how long each is. */
static enum hkt_status write_all(struct hkt_trainer *t, FILE *file, const char *own, const uint64_t *bytes)
{
    enum hkt_status rc = HKT_OK;

    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":0,\"name\":\"trace\"}", file);
    fwrite(own, 1, (size_t)bytes[0], file);
    for (int rank = 1; rank < t->nranks && rc == HKT_OK; rank++) {
        char *text = hkt__parallel_calloc((size_t)bytes[rank] + 1, 1);

        if (text == NULL)
            return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for the trace of rank %d", rank);
        rc = hkt_recv(text, (size_t)bytes[rank], HKT_UINT8, rank, t->comm, NULL);
        fwrite(text, 1, (size_t)bytes[rank], file);
        hkt__parallel_free(text);
    }
    fputs("\n]}\n", file);
    return rc < 0 ? hkt__parallel_pass(rc, "gathering a trace") : HKT_OK;
}

/* Whoever cannot go on says so to all before anyone sends. */
static enum hkt_status exchange(struct hkt_trainer *t, const char *path, const char *text, uint64_t *bytes)
{
    FILE *file = t->rank == 0 ? fopen(path, "w") : NULL;
    enum hkt_status rc = HKT_OK;

    if (t->rank == 0 && file == NULL)
        rc = hkt__parallel_fail(HKT_ERR_SYSTEM, "the trace %s cannot be written: %s", path, strerror(errno));
    rc = hkt__agree(t->comm, rc, "writing a trace");
    if (rc == HKT_OK && t->comm != NULL) {
        rc = hkt_all_gather(&bytes[t->rank], bytes, 1, HKT_UINT64, t->comm, NULL);
        if (rc == HKT_OK && t->rank > 0)
            rc = hkt_send(text, (size_t)bytes[t->rank], HKT_UINT8, 0, t->comm, NULL);
        if (rc < 0)
            rc = hkt__parallel_pass(rc, "gathering a trace");
    }
    if (rc == HKT_OK && file != NULL)
        rc = write_all(t, file, text, bytes);
    if (file == NULL)
        return rc;
    const int failed = ferror(file);

    if ((fclose(file) != 0 || failed) && rc == HKT_OK)
        rc = hkt__parallel_fail(HKT_ERR_SYSTEM, "the trace %s cannot be written: %s", path, strerror(errno));
    return rc;
}

enum hkt_status hkt_trainer_trace_write(struct hkt_trainer *t, const char *path)
{
    uint64_t *bytes = hkt__parallel_calloc((size_t)t->nranks, sizeof *bytes);
    char *text = NULL;
    size_t count = 0;
    enum hkt_status rc = HKT_OK;

    hkt__timeline_settle(&t->timeline);
    rc = bytes == NULL ? hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for the trace of %d ranks", t->nranks)
                       : print_here(t, &text, &count);
    rc = hkt__agree(t->comm, rc, "writing a trace");
    if (rc == HKT_OK) {
        bytes[t->rank] = count;
        rc = exchange(t, path, text, bytes);
    }
    hkt__parallel_free(text);
    hkt__parallel_free(bytes);
    return rc;
}
