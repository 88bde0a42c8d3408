/* See recorder.h. hkt_comm_dump is here: it is the recorder's reader. */
#include "comm/recorder.h"

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

uint64_t hkt__recorder_count(const struct hkt__recorder *recorder)
{
    return atomic_load_explicit(&recorder->written, memory_order_acquire); /* A1 */
}

bool hkt__recorder_read(const struct hkt__recorder *recorder, uint64_t index, struct hkt__recorded *out_record)
{
    const struct hkt__record *record = &recorder->ring[index & (recorder->capacity - 1)];

    if (index >= hkt__recorder_count(recorder))
        return false;
    const struct hkt__recorded copy = { /* A2 */
        .stamp = {.op_seq = atomic_load_explicit(&record->op_seq, memory_order_acquire),
                  .call = atomic_load_explicit(&record->call, memory_order_acquire),
                  .root = atomic_load_explicit(&record->root, memory_order_acquire),
                  .count = atomic_load_explicit(&record->count, memory_order_acquire)},
        .algo = atomic_load_explicit(&record->algo, memory_order_acquire),
        .started = atomic_load_explicit(&record->started, memory_order_acquire),
        .ended = atomic_load_explicit(&record->ended, memory_order_acquire),
        .peer = atomic_load_explicit(&record->peer, memory_order_acquire),
        .status = atomic_load_explicit(&record->status, memory_order_acquire),
        .state = (enum hkt__record_state)atomic_load_explicit(&record->state, memory_order_acquire)};

    /* At index + capacity the slot may be in the writer's hands again. */
    if (hkt__recorder_count(recorder) - index >= recorder->capacity)
        return false;
    *out_record = copy;
    return true;
}

/** The newest collective that is not past op_seq; past_all: the newest. */
static bool find_back(const struct hkt__recorder *recorder, bool past_all, uint32_t op_seq,
                      struct hkt__recorded *out_record)
{
    struct hkt__recorded record;

    for (uint64_t index = hkt__recorder_count(recorder); index > 0; index--) {
        if (!hkt__recorder_read(recorder, index - 1, &record))
            return false;
        if (hkt__call_coll(record.stamp.call) != HKT_SEND_RECV &&
            (past_all || (int32_t)(record.stamp.op_seq - op_seq) <= 0)) {
            *out_record = record;
            return true;
        }
    }
    return false;
}

void hkt__recorder_newest(const struct hkt__recorder *recorder, struct hkt__recorded *out_record)
{
    if (find_back(recorder, true, 0, out_record))
        return;
    *out_record = (struct hkt__recorded){
        .stamp = {.op_seq = atomic_load_explicit(&recorder->entered, memory_order_acquire), .call = HKT__CALL_UNKNOWN},
        .state = HKT__RECORD_DONE};
}

bool hkt__recorder_find(const struct hkt__recorder *recorder, uint32_t op_seq, struct hkt__recorded *out_record)
{
    struct hkt__recorded record;

    if (!find_back(recorder, false, op_seq, &record) || record.stamp.op_seq != op_seq)
        return false;
    *out_record = record;
    return true;
}

static double ticks_us(uint64_t from, uint64_t to)
{
    return to > from ? hkt__ticks_ns(to - from) / 1e3 : 0.0;
}

static void dump_record(const struct hkt__recorder *recorder, const struct hkt__recorded *record, FILE *file, int json,
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

static void dump_records(const struct hkt__recorder *recorder, FILE *file, int json)
{
    const uint64_t count = hkt__recorder_count(recorder);
    struct hkt__recorded record;
    int is_first = 1;

    for (uint64_t i = count > recorder->capacity ? count - recorder->capacity : 0; i < count; i++) {
        if (!hkt__recorder_read(recorder, i, &record))
            continue;
        dump_record(recorder, &record, file, json, is_first);
        is_first = 0;
    }
}

/** Text of users and of the system as a JSON string. */
static void print_string(const char *text, FILE *file)
{
    fputc('"', file);
    for (const char *at = text; *at != '\0'; at++) {
        if (*at == '"' || *at == '\\')
            fprintf(file, "\\%c", *at);
        else if ((unsigned char)*at < 0x20)
            fprintf(file, "\\u%04x", (unsigned)*at);
        else
            fputc(*at, file);
    }
    fputc('"', file);
}

static void dump_head(const struct hkt_comm *comm, FILE *file, int json)
{
    const char *status = hkt_status_name(hkt_comm_status(comm));

    if (!json) {
        fprintf(file, "%s: rank %d of %d, %s\n", comm->name, comm->rank, comm->nranks, status);
        if (hkt__far_net_text(comm)[0] != '\0')
            fprintf(file, "  memory of devices is sent %s\n", hkt__far_net_text(comm));
        return;
    }
    fprintf(file, "{\"comm\": ");
    print_string(comm->name, file);
    fprintf(file, ", \"rank\": %d, \"nranks\": %d, \"status\": \"%s\", \"failure\": ", comm->rank, comm->nranks, status);
    print_string(hkt_comm_last_error(comm), file);
    fprintf(file, ", \"device_memory\": ");
    print_string(hkt__far_net_text(comm), file);
    fprintf(file, ", \"operations\": [");
}

enum hkt_status hkt_comm_dump(const struct hkt_comm *comm, FILE *file, int json)
{
    if (comm == NULL || file == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_comm_dump: comm and file must not be NULL");
    dump_head(comm, file, json);
    dump_records(&comm->watch.recorder, file, json);
    if (json)
        fprintf(file, "\n], \"ranks\": [");
    hkt__notes_dump(comm, file, json);
    if (json)
        fprintf(file, "\n]}\n");
    else if (hkt_comm_status(comm) < 0)
        fprintf(file, "  first failure: %s\n", hkt_comm_last_error(comm));
    if (fflush(file) != 0 || ferror(file))
        return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot write the flight recorder");
    return HKT_OK;
}
