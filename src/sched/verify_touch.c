/* Accesses to memory cells, for the race check. Steps are visited in an order that happens-before allows, so two
 * accesses that conflict (one of them writes) are ordered, if at all, as they are visited. It is enough to prove
 *   last writer -> reader,   reader -> next writer,   writer -> writer where nobody read in between,
 * the other conflicts follow. What a step directly follows (its queue, its dependencies, its message) is ordered at
 * once; the rest is noted as a pair of steps, once, for verify_races.c. A later reader of one queue stands for the
 * earlier. */
#include "sched/grow.h"
#include "sched/verify_int.h"

static enum hkt_status note_pair(struct hkt__proof *v, int32_t first, int32_t then)
{
    struct hkt__proof_pair *pairs = hkt__grow(v->pairs, &v->pairs_cap, (int64_t)v->npairs + 1, sizeof *pairs);

    if (pairs == NULL)
        return hkt__proof_nomem();
    v->pairs = pairs;
    pairs[v->npairs++] = (struct hkt__proof_pair){ first, then };
    return HKT_OK;
}

static enum hkt_status note_conflict(struct hkt__proof *v, int32_t first, int32_t then)
{
    v->report->races_checked++;
    if (v->seen[first] == then + 1)
        return HKT_OK;
    v->seen[first] = then + 1;
    return v->queue[first] == v->queue[then] ? HKT_OK : note_pair(v, first, then);
}

void hkt__proof_touch_begin(struct hkt__proof *v, int32_t step)
{
    const struct hkt__step *s = hkt__proof_step(v, step);
    const struct hkt__sched *sched = hkt__proof_sched(v, step);
    const int32_t base = v->base[v->rank_of[step]];

    for (int32_t i = 0; i < s->dep_count; i++)
        v->seen[base + sched->deps[s->dep_first + i]] = step + 1;
    if (hkt__is_rx(s->kind))
        v->seen[v->match[step]] = step + 1;
}

enum hkt_status hkt__proof_touch_remote(struct hkt__proof *v, int32_t step, int32_t owner, int buf)
{
    enum hkt_status rc = note_pair(v, v->nsteps + owner, step);

    v->report->races_checked += buf == HKT__SCRATCH ? 1 : 2;
    return rc == HKT_OK && buf != HKT__SCRATCH ? note_pair(v, step, v->nsteps + owner) : rc;
}

/* A node that holds `step` before `next` (-1: end of list); -1 when memory is out. */
static int32_t new_reader(struct hkt__proof *v, int32_t step, int32_t next)
{
    int32_t node = v->free_reader - 1;

    if (node >= 0) {
        v->free_reader = v->readers[node].next + 1;
    } else {
        struct hkt__proof_reader *readers =
            hkt__grow(v->readers, &v->readers_cap, (int64_t)v->nreaders + 1, sizeof *readers);

        if (readers == NULL)
            return -1;
        v->readers = readers;
        node = v->nreaders++;
    }
    v->readers[node] = (struct hkt__proof_reader){ step, next };
    return node;
}

enum hkt_status hkt__proof_touch_read(struct hkt__proof *v, int32_t step, int64_t cell)
{
    struct hkt__proof_touch *touch = &v->touches[cell];
    enum hkt_status rc = HKT_OK;

    if (touch->writer > 0 && touch->writer != step + 1)
        rc = note_conflict(v, touch->writer - 1, step);
    if (rc != HKT_OK)
        return rc;
    if (touch->readers == 0 || (touch->readers > 0 && v->queue[touch->readers - 1] == v->queue[step])) {
        touch->readers = step + 1;
        return HKT_OK;
    }
    if (touch->readers > 0) { /* the second reader: from one step to a list */
        const int32_t node = new_reader(v, touch->readers - 1, -1);

        if (node < 0)
            return hkt__proof_nomem();
        touch->readers = -(node + 1);
    }
    struct hkt__proof_reader *head = &v->readers[-touch->readers - 1];

    if (v->queue[head->step] == v->queue[step]) {
        head->step = step;
        return HKT_OK;
    }
    const int32_t node = new_reader(v, step, -touch->readers - 1);

    if (node < 0)
        return hkt__proof_nomem();
    touch->readers = -(node + 1);
    return HKT_OK;
}

static enum hkt_status after_readers(struct hkt__proof *v, int32_t step, struct hkt__proof_touch *touch)
{
    enum hkt_status rc = HKT_OK;

    if (touch->readers > 0)
        return touch->readers == step + 1 ? HKT_OK : note_conflict(v, touch->readers - 1, step);
    for (int32_t node = -touch->readers - 1; node >= 0 && rc == HKT_OK;) {
        struct hkt__proof_reader *reader = &v->readers[node];
        const int32_t next = reader->next;

        if (reader->step != step)
            rc = note_conflict(v, reader->step, step);
        reader->next = v->free_reader - 1;
        v->free_reader = node + 1;
        node = next;
    }
    return rc;
}

enum hkt_status hkt__proof_touch_write(struct hkt__proof *v, int32_t step, int64_t cell)
{
    struct hkt__proof_touch *touch = &v->touches[cell];
    enum hkt_status rc = HKT_OK;

    if (touch->writer == step + 1)
        return hkt__proof_fail(v, "%s writes one chunk twice", hkt__proof_step_text(v, step).s);
    if (touch->readers != 0)
        rc = after_readers(v, step, touch);
    else if (touch->writer > 0)
        rc = note_conflict(v, touch->writer - 1, step);
    touch->writer = step + 1;
    touch->readers = 0;
    return rc;
}
