/* See recorder.h. hkt_comm_dump is here: it is the recorder's reader. */
#include "comm/recorder.h"

#include <string.h>

#include "comm/comm_int.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/mem.h"
#include "exec/call.h"

enum hkt_status hkt__recorder_init(struct hkt__recorder *recorder, int64_t capacity)
{
    uint32_t power = 16;

    while (power < capacity)
        power *= 2;
    recorder->ring = hkt__calloc(power, sizeof *recorder->ring);
    if (recorder->ring == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a flight recorder of %u operations", power);
    recorder->capacity = power;
    recorder->origin = hkt__ticks();
    return HKT_OK;
}

void hkt__recorder_fini(struct hkt__recorder *recorder)
{
    hkt__free(recorder->ring);
}

struct hkt__record *hkt__recorder_begin(struct hkt__recorder *recorder, const struct hkt__stamp *stamp,
                                        const char *algo, int peer)
{
    struct hkt__record *record = &recorder->ring[recorder->written++ & (recorder->capacity - 1)];

    record->stamp = *stamp;
    record->algo = algo;
    record->peer = peer;
    record->started = hkt__ticks();
    record->ended = 0;
    record->status = HKT_IN_PROGRESS;
    record->state = HKT__RECORD_RUNNING;
    return record;
}

void hkt__recorder_end(struct hkt__recorder *recorder, struct hkt__record *record, enum hkt_status status)
{
    record->ended = hkt__ticks();
    record->status = status;
    record->state = status == HKT_OK ? HKT__RECORD_DONE : HKT__RECORD_FAILED;
    recorder->finished++;
}

static double ticks_us(uint64_t from, uint64_t to)
{
    return to > from ? hkt__ticks_ns(to - from) / 1e3 : 0.0;
}

static void dump_record(const struct hkt__recorder *recorder, const struct hkt__record *record, FILE *file, int json,
                        int is_first)
{
    static const char *const states[] = {"free", "running", "done", "failed"};
    const uint64_t ended = record->ended != 0 ? record->ended : hkt__ticks();
    char call[192];

    hkt__call_print(&record->stamp, call, sizeof call);
    if (json)
        fprintf(file, "%s\n    {\"seq\": %u, \"call\": \"%s\", \"algo\": \"%s\", \"peer\": %d, \"state\": \"%s\", "
                      "\"status\": \"%s\", \"start_us\": %.3f, \"duration_us\": %.3f}",
                is_first ? "" : ",", record->stamp.op_seq, call, record->algo, record->peer, states[record->state],
                hkt_status_name((enum hkt_status)record->status), ticks_us(recorder->origin, record->started),
                ticks_us(record->started, ended));
    else
        fprintf(file, "  %12.1f us  %-8s %10.1f us  %s, %s\n", ticks_us(recorder->origin, record->started),
                states[record->state], ticks_us(record->started, ended), call, record->algo);
}

enum hkt_status hkt_comm_dump(const struct hkt_comm *comm, FILE *file, int json)
{
    if (comm == NULL || file == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_comm_dump: comm and file must not be NULL");
    const struct hkt__recorder *recorder = &comm->recorder;
    const uint64_t first = recorder->written > recorder->capacity ? recorder->written - recorder->capacity : 0;

    fprintf(file, json ? "{\"comm\": \"%s\", \"rank\": %d, \"nranks\": %d, \"status\": \"%s\", \"operations\": ["
                       : "%s: rank %d of %d, %s\n",
            comm->name, comm->rank, comm->nranks, hkt_status_name(hkt_comm_status(comm)));
    for (uint64_t i = first; i < recorder->written; i++)
        dump_record(recorder, &recorder->ring[i & (recorder->capacity - 1)], file, json, i == first);
    if (json)
        fprintf(file, "\n]}\n");
    else if (hkt_comm_status(comm) < 0)
        fprintf(file, "  first failure: %s\n", hkt_comm_last_error(comm));
    if (fflush(file) != 0 || ferror(file))
        return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot write the flight recorder");
    return HKT_OK;
}
