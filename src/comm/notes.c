/* What ranks tell each other of their calls, over the control plane, when they have waited for long: the slow road by which
 * they still meet when no message of theirs does.
 *
 * A rank that waits notes in which call (exec/wait.h says when). Whoever gets the note and has made another call as that
 *   operation, now or as far back as its recorder goes, has found a mismatch, whatever either waits for and though it may be
 *   done with it long since. A rank that has not come to that operation says nothing: it may come.
 * When a wait expires, and for dumps, a rank asks, and all members answer with their newest collective. Those that do not
 *   are stopped, or have left the communicator.
 * Messages between two ranks count by themselves and take no part in this.
 * Invariant: notes arrive in the monitor thread, under job->lock, which also guards comm->watch.heard. */
#include <stdio.h>
#include <string.h>

#include "comm/comm_int.h"
#include "core/clock.h"
#include "core/mem.h"
#include "exec/call.h"

#define ANSWER_NS 300000000 /* answers come in milliseconds, if they come; crowded cores take longer */

/** What the newest collective of this rank is. */
static struct hkt__boot_note own_answer(const struct hkt_comm *comm)
{
    struct hkt__recorded newest;

    hkt__recorder_newest(&comm->watch.recorder, &newest);
    return (struct hkt__boot_note){.kind = HKT__NOTE_ANSWERS, .comm_id = comm->listed.id, .rank = comm->job->rank,
                                   .is_running = newest.state != HKT__RECORD_DONE, .stamp = newest.stamp};
}

static void answer(const struct hkt_comm *comm)
{
    const struct hkt__boot_note note = own_answer(comm);

    hkt__boot_note(comm->job->boot, &note);
}

void hkt__notes_tell(const struct hkt_comm *comm, const struct hkt__stamp *stamp)
{
    const struct hkt__boot_note note = {.kind = HKT__NOTE_WAITS, .comm_id = comm->listed.id, .rank = comm->job->rank,
                                        .is_running = true, .stamp = *stamp};

    if (comm->job->boot != NULL)
        hkt__boot_note(comm->job->boot, &note);
}

/* ---- in the monitor thread ---- */

/** Has this rank made another call as the same operation? */
static void compare(struct hkt_comm *comm, int peer, const struct hkt__stamp *theirs)
{
    struct hkt__recorded own;
    char call[192];

    if (theirs->op_seq == 0 || hkt__call_coll(theirs->call) >= HKT_SEND_RECV || hkt__comm_failed(comm) != HKT_OK ||
        !hkt__recorder_find(&comm->watch.recorder, theirs->op_seq, &own))
        return;
    if (own.stamp.call == theirs->call && own.stamp.root == theirs->root && own.stamp.count == theirs->count)
        return;
    hkt__call_print(&own.stamp, call, sizeof call);
    hkt__comm_fail_here(comm, hkt__stamp_mismatch(peer, &own.stamp, theirs), call);
}

static void keep(struct hkt_comm *comm, int peer, const struct hkt__boot_note *note)
{
    if (comm->watch.heard == NULL)
        comm->watch.heard = hkt__calloc((size_t)comm->nranks, sizeof *comm->watch.heard);
    if (comm->watch.heard != NULL) /* else the rank seems silent */
        comm->watch.heard[peer] = (struct hkt__heard){.when_ns = hkt__now_ns(), .stamp = note->stamp,
                                                .is_running = note->is_running};
}

void hkt__comm_on_note(struct hkt_comm *comm, const struct hkt__boot_note *note)
{
    const int peer = hkt__comm_rank_of(comm, note->rank);

    if (peer < 0 || peer == comm->rank)
        return;
    if (note->kind == HKT__NOTE_ASKS) {
        answer(comm);
        return;
    }
    compare(comm, peer, &note->stamp);
    if (note->kind == HKT__NOTE_ANSWERS)
        keep(comm, peer, note);
}

/* ---- asking ---- */

static bool all_answered(const struct hkt_comm *comm, int64_t since_ns)
{
    bool all = true;

    pthread_mutex_lock(&comm->job->lock);
    for (int r = 0; r < comm->nranks && all; r++)
        all = r == comm->rank || (comm->watch.heard != NULL && comm->watch.heard[r].when_ns >= since_ns);
    pthread_mutex_unlock(&comm->job->lock);
    return all;
}

/** Ask where all are and wait a moment for the answers. Returns since when answers count: the same may have been asked by
 *  another rank shortly before, or at the very moment, and such questions stop each other; hence the own answer. */
static int64_t ask(const struct hkt_comm *comm)
{
    const struct hkt__boot_note note = {.kind = HKT__NOTE_ASKS, .comm_id = comm->listed.id, .rank = comm->job->rank};
    const int64_t now_ns = hkt__now_ns(), since_ns = now_ns - HKT__BOOT_NOTE_REPEAT_MS * INT64_C(1000000);

    hkt__boot_note(comm->job->boot, &note);
    answer(comm);
    while (!all_answered(comm, since_ns) && hkt__comm_failed(comm) == HKT_OK && hkt__now_ns() < now_ns + ANSWER_NS)
        hkt__sleep_ns(1000000);
    return since_ns;
}

/** A copy of what was heard, the own rank's newest call put in; NULL: no memory. */
static struct hkt__heard *copy_heard(const struct hkt_comm *comm)
{
    const struct hkt__boot_note own = own_answer(comm);
    struct hkt__heard *copy = hkt__calloc((size_t)comm->nranks, sizeof *copy);

    if (copy == NULL)
        return NULL;
    pthread_mutex_lock(&comm->job->lock);
    if (comm->watch.heard != NULL)
        memcpy(copy, comm->watch.heard, (size_t)comm->nranks * sizeof *copy);
    pthread_mutex_unlock(&comm->job->lock);
    copy[comm->rank] = (struct hkt__heard){.when_ns = hkt__now_ns(), .stamp = own.stamp, .is_running = own.is_running};
    return copy;
}

/** Where a rank is, seen from an operation. */
enum whereabouts { SILENT, ABSENT, INSIDE, FINISHED };

static enum whereabouts find_rank(const struct hkt__heard *heard, int64_t since_ns, uint32_t op_seq)
{
    const int32_t ahead = (int32_t)(heard->stamp.op_seq - op_seq);

    if (heard->when_ns == 0 || heard->when_ns < since_ns)
        return SILENT;
    return ahead < 0 ? ABSENT : ahead == 0 && heard->is_running ? INSIDE : FINISHED;
}

/** Append "label 2, 5-7" of the ranks whose group is `group`; nothing when there are none. Returns how many there are. */
static int list_group(const unsigned char *groups, int nranks, int group, const char *label, char *text, size_t bytes)
{
    size_t used = strlen(text);
    int count = 0;

    for (int first = 0, last; first < nranks; first = last + 1) {
        char range[32];

        for (last = first; last + 1 < nranks && groups[last] == group && groups[last + 1] == group;)
            last++;
        if (groups[first] != group)
            continue;
        const size_t room = bytes - used;

        snprintf(range, sizeof range, last > first ? "%d-%d" : "%d", first, last);
        const int n = snprintf(text + used, room, "%s%s", count == 0 ? label : ", ", range);

        count += last - first + 1;
        if ((size_t)n >= room) { /* full: what does not fit whole is left out */
            text[used] = '\0';
            break;
        }
        used += (size_t)n;
    }
    return count;
}

void hkt__notes_absent(const struct hkt_comm *comm, uint32_t op_seq, char *out_text, size_t bytes)
{
    unsigned char *groups = hkt__calloc((size_t)comm->nranks, 1);
    struct hkt__heard *heard = NULL;

    out_text[0] = '\0';
    if (comm->job->boot != NULL && groups != NULL) {
        const int64_t since_ns = ask(comm);

        heard = copy_heard(comm);
        for (int r = 0; r < comm->nranks && heard != NULL; r++)
            groups[r] = r == comm->rank ? INSIDE : (unsigned char)find_rank(&heard[r], since_ns, op_seq);
    }
    if (heard != NULL) {
        const int absent = list_group(groups, comm->nranks, ABSENT, "; not entered yet: rank ", out_text, bytes);
        const int silent = list_group(groups, comm->nranks, SILENT, "; stopped or gone, gives no answer: rank ", out_text,
                                      bytes);
        const size_t used = strlen(out_text);

        if (absent + silent == 0)
            snprintf(out_text + used, bytes - used, "; all ranks have entered it");
        (void)list_group(groups, comm->nranks, FINISHED, "; finished by rank ", out_text, bytes);
    }
    hkt__free(heard);
    hkt__free(groups);
}

/* ---- dumps ---- */

static bool is_same_place(const struct hkt__heard *a, const struct hkt__heard *b)
{
    return (a->when_ns == 0) == (b->when_ns == 0) && a->is_running == b->is_running && a->stamp.op_seq == b->stamp.op_seq &&
           a->stamp.call == b->stamp.call && a->stamp.count == b->stamp.count && a->stamp.root == b->stamp.root;
}

/** One line for all ranks that are where `first` is; nothing if an earlier rank's line has told. */
static void dump_like(const struct hkt_comm *comm, const struct hkt__heard *heard, int first, unsigned char *groups,
                      FILE *file)
{
    const struct hkt__heard *at = &heard[first];
    char ranks[512] = "", call[192];

    for (int r = 0; r < first; r++)
        if (is_same_place(&heard[r], at))
            return;
    for (int r = 0; r < comm->nranks; r++)
        groups[r] = is_same_place(&heard[r], at);
    (void)list_group(groups, comm->nranks, 1, "rank ", ranks, sizeof ranks);
    hkt__call_print(&at->stamp, call, sizeof call);
    if (at->when_ns == 0)
        fprintf(file, "  %s: no answer: stopped or gone\n", ranks);
    else if (at->stamp.op_seq == 0)
        fprintf(file, "  %s: has begun no operation\n", ranks);
    else if (hkt__call_coll(at->stamp.call) >= HKT_COLL_COUNT)
        fprintf(file, "  %s: has finished operation %u\n", ranks, at->stamp.op_seq);
    else
        fprintf(file, "  %s: %s %s\n", ranks, at->is_running ? "in" : "has finished", call);
}

static void dump_json(const struct hkt__heard *at, int rank, FILE *file)
{
    const bool is_known = at->stamp.op_seq != 0 && hkt__call_coll(at->stamp.call) < HKT_COLL_COUNT;
    char call[192] = "";

    if (is_known)
        hkt__call_print(&at->stamp, call, sizeof call);
    fprintf(file, "%s\n    {\"rank\": %d, \"state\": \"%s\", \"seq\": %u, \"call\": \"%s\"}", rank == 0 ? "" : ",", rank,
            at->when_ns == 0 ? "silent" : at->is_running ? "running" : "done", at->stamp.op_seq, call);
}

static bool has_heard(const struct hkt_comm *comm)
{
    pthread_mutex_lock(&comm->job->lock);
    const bool has = comm->watch.heard != NULL;

    pthread_mutex_unlock(&comm->job->lock);
    return has;
}

void hkt__notes_dump(const struct hkt_comm *comm, FILE *file, int json)
{
    /* After a failure ranks leave, one by one: then what was heard before it counts, if anything was. */
    const bool has_failed = hkt__comm_failed(comm) != HKT_OK;

    if (comm->job->boot == NULL || (has_failed && !has_heard(comm)))
        return;
    const int64_t since_ns = has_failed ? 1 : ask(comm);
    unsigned char *groups = hkt__calloc((size_t)comm->nranks, 1);
    struct hkt__heard *heard = copy_heard(comm);

    for (int r = 0; heard != NULL && groups != NULL && r < comm->nranks; r++) {
        if (heard[r].when_ns < since_ns)
            heard[r] = (struct hkt__heard){0};
        if (json)
            dump_json(&heard[r], r, file);
        else
            dump_like(comm, heard, r, groups, file);
    }
    hkt__free(heard);
    hkt__free(groups);
}
