/* Compile a lowered schedule: sort its steps into queues, and turn dependencies on steps into dependencies on how far
 * a queue has come. Within a queue program order holds by construction, so those dependencies vanish; of several on one
 * other queue the latest implies the rest. */
#include "exec/plan.h"

#include <string.h>

#include "core/error.h"
#include "core/mem.h"

static enum hkt__queue_kind queue_kind(const struct hkt__step *step)
{
    switch (step->kind) {
    case HKT__SEND:
    case HKT__SIGNAL:
        return HKT__QUEUE_TX;
    case HKT__RECV:
    case HKT__RECV_REDUCE:
    case HKT__WAIT:
        return HKT__QUEUE_RX;
    default:
        return HKT__QUEUE_LOCAL;
    }
}

/** Where each step went. */
struct placement {
    int32_t *queue_of, *pos_of;  /* [nsteps] */
    int32_t *slot_queue;         /* [(peer * 2 + is_tx) * lanes + lane, then local lanes] -> queue, -1 */
};

static void placement_fini(struct placement *place)
{
    hkt__free(place->queue_of);
    hkt__free(place->pos_of);
    hkt__free(place->slot_queue);
}

static size_t queue_slot(const struct hkt__sched *sched, const struct hkt__step *step)
{
    const enum hkt__queue_kind kind = queue_kind(step);
    const size_t lanes = (size_t)sched->nlanes;

    if (kind == HKT__QUEUE_LOCAL)
        return (size_t)sched->nranks * 2 * lanes + step->lane;
    return ((size_t)step->peer * 2 + (kind == HKT__QUEUE_TX)) * lanes + step->lane;
}

/** First pass: which queues there are and how long they get. TX queues are polled first: what is sent keeps peers going, and
 *  a look at a line that a peer is writing holds up the stores after it. */
static enum hkt_status place_steps(const struct hkt__sched *sched, struct placement *place, struct hkt__plan *plan)
{
    static const enum hkt__queue_kind order[] = {HKT__QUEUE_TX, HKT__QUEUE_LOCAL, HKT__QUEUE_RX};
    const size_t slots = ((size_t)sched->nranks * 2 + 1) * (size_t)sched->nlanes;

    place->queue_of = hkt__calloc((size_t)sched->nsteps, sizeof(int32_t));
    place->pos_of = hkt__calloc((size_t)sched->nsteps, sizeof(int32_t));
    place->slot_queue = hkt__calloc(slots, sizeof(int32_t));
    plan->queues = hkt__calloc((size_t)sched->nsteps, sizeof *plan->queues);
    if (place->queue_of == NULL || place->pos_of == NULL || place->slot_queue == NULL || plan->queues == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a plan of %d steps", sched->nsteps);
    memset(place->slot_queue, -1, slots * sizeof(int32_t));
    for (int pass = 0; pass < 3; pass++) {
        for (int32_t i = 0; i < sched->nsteps; i++) {
            const struct hkt__step *step = &sched->steps[i];
            int32_t *queue = &place->slot_queue[queue_slot(sched, step)];

            if (queue_kind(step) != order[pass])
                continue;
            if (*queue < 0) {
                *queue = plan->nqueues++;
                plan->nlinks += order[pass] != HKT__QUEUE_LOCAL;
                plan->queues[*queue] = (struct hkt__plan_queue){
                    .kind = (uint8_t)order[pass], .lane = step->lane,
                    .peer = order[pass] == HKT__QUEUE_LOCAL ? -1 : step->peer};
            }
            place->queue_of[i] = *queue;
            place->pos_of[i] = plan->queues[*queue].count++;
        }
    }
    return HKT_OK;
}

static bool operand_in_scratch(const struct hkt__operand *x)
{
    return x->count > 0 && x->buf == HKT__SCRATCH;
}

static bool step_uses_scratch(const struct hkt__sched *sched, const struct hkt__step *step)
{
    bool uses = operand_in_scratch(&step->dst);

    for (int32_t i = 0; i < step->arg_count; i++)
        uses |= operand_in_scratch(&sched->args[step->arg_first + i].x);
    return uses;
}

/** Record a dependency on an entry, once per queue with the largest count. */
static void add_dep(struct hkt__plan *plan, struct hkt__entry *entry, int32_t queue, int32_t count)
{
    for (int32_t i = 0; i < entry->dep_count; i++) {
        struct hkt__plan_dep *dep = &plan->deps[entry->dep_first + i];

        if (dep->queue == queue) {
            if (dep->count < count)
                dep->count = count;
            return;
        }
    }
    plan->deps[entry->dep_first + entry->dep_count++] = (struct hkt__plan_dep){queue, count};
}

static void fill_entry(const struct hkt__sched *sched, const struct placement *place, int32_t i, struct hkt__plan *plan)
{
    const struct hkt__step *step = &sched->steps[i];
    const int32_t queue = place->queue_of[i];
    struct hkt__entry *entry = &plan->entries[plan->queues[queue].first + place->pos_of[i]];

    *entry = (struct hkt__entry){.kind = step->kind, .uses_scratch = step_uses_scratch(sched, step), .dst = step->dst,
                                 .arg_first = step->arg_first, .arg_count = step->arg_count,
                                 .dep_first = step->dep_first, .feeder = -1};
    if (step->kind == HKT__SEND && step->fused >= 0) {
        entry->feeder = place->queue_of[step->fused];
        entry->feeder_pos = place->pos_of[step->fused];
    }
    for (int32_t d = 0; d < step->dep_count; d++) {
        const int32_t on = sched->deps[step->dep_first + d], on_queue = place->queue_of[on];

        if (on_queue != queue && !(entry->feeder >= 0 && on == step->fused))
            add_dep(plan, entry, on_queue, place->pos_of[on] + 1);
    }
}

/** Find the sends whose bytes nothing writes afterwards. A step that wrote them would come after the send, in another queue (those
 * of a send's own queue only read), so something would depend on the send or on a later entry of its queue. */
static enum hkt_status mark_lasting(struct hkt__plan *plan)
{
    int32_t *last = hkt__calloc((size_t)plan->nqueues + 1, sizeof *last);

    if (last == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a plan of %d queues", plan->nqueues);
    for (int32_t i = 0; i < plan->shape.nsteps; i++)
        for (int32_t d = 0; d < plan->entries[i].dep_count; d++) {
            const struct hkt__plan_dep *dep = &plan->deps[plan->entries[i].dep_first + d];

            last[dep->queue] = dep->count > last[dep->queue] ? dep->count : last[dep->queue];
        }
    for (int32_t q = 0; q < plan->nqueues && !plan->direct; q++)
        for (int32_t i = last[q]; i < plan->queues[q].count; i++) {
            struct hkt__entry *entry = &plan->entries[plan->queues[q].first + i];

            entry->is_lasting = entry->kind == HKT__SEND && !entry->uses_scratch;
        }
    hkt__free(last);
    return HKT_OK;
}

static bool same_operand(const struct hkt__operand *a, const struct hkt__operand *b)
{
    return a->buf == b->buf && a->count == b->count && a->at.start == b->at.start && a->at.stride == b->at.stride &&
           a->at.modulus == b->at.modulus;
}

/** Find each REDUCE whose result the next entry writes to other places, so that both can be done in one pass. */
static void mark_spreads(struct hkt__plan *plan)
{
    for (int32_t q = 0; q < plan->nqueues; q++) {
        struct hkt__entry *entries = &plan->entries[plan->queues[q].first];

        for (int32_t i = 0; i + 1 < plan->queues[q].count; i++)
            entries[i].is_spread = entries[i].kind == HKT__REDUCE && entries[i + 1].kind == HKT__WRITE &&
                                   same_operand(&plan->args[entries[i + 1].arg_first].x, &entries[i].dst);
    }
}

/** Can the first entry of a queue be sent when the call starts? Not in direct plans, where peers may read what lies there. */
static bool is_prompt(const struct hkt__plan *plan, const struct hkt__plan_queue *queue)
{
    const struct hkt__entry *first = &plan->entries[queue->first];

    return !plan->direct && first->kind == HKT__SEND && first->dep_count == 0 && first->feeder < 0 && !first->uses_scratch &&
           plan->args[first->arg_first].x.count == 1;
}

enum hkt_status hkt__plan_create(const struct hkt__sched *sched, bool direct, bool user_direct,
                                 struct hkt__plan **out_plan)
{
    struct placement place = {0};
    struct hkt__plan *plan = hkt__calloc(1, sizeof *plan);
    enum hkt_status rc;

    if (plan == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a plan");
    plan->shape = *sched;
    plan->shape.steps = NULL;
    plan->shape.args = NULL;
    plan->shape.deps = NULL;
    plan->user_direct = user_direct;
    plan->direct = direct;
    rc = place_steps(sched, &place, plan);
    if (rc < 0)
        goto destroy;
    plan->entries = hkt__calloc((size_t)sched->nsteps, sizeof *plan->entries);
    plan->args = hkt__calloc((size_t)sched->nargs, sizeof *plan->args);
    plan->deps = hkt__calloc((size_t)sched->ndeps, sizeof *plan->deps);
    if (plan->entries == NULL || plan->args == NULL || plan->deps == NULL) {
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory for a plan of %d steps", sched->nsteps);
        goto destroy;
    }
    if (sched->nargs > 0)
        memcpy(plan->args, sched->args, (size_t)sched->nargs * sizeof *plan->args);
    for (int32_t q = 0, first = 0; q < plan->nqueues; first += plan->queues[q++].count)
        plan->queues[q].first = first;
    for (int32_t i = 0; i < sched->nsteps; i++)
        fill_entry(sched, &place, i, plan);
    mark_spreads(plan);
    plan->only_receives = plan->nlinks > 0;
    for (int32_t q = 0; q < plan->nqueues; q++) {
        plan->queues[q].is_prompt = is_prompt(plan, &plan->queues[q]);
        plan->only_receives &= plan->queues[q].kind != HKT__QUEUE_TX;
    }
    rc = mark_lasting(plan);
    if (rc < 0)
        goto destroy;
    placement_fini(&place);
    *out_plan = plan;
    return HKT_OK;

destroy:
    placement_fini(&place);
    hkt__plan_destroy(plan);
    return rc;
}

void hkt__plan_destroy(struct hkt__plan *plan)
{
    if (plan == NULL)
        return;
    hkt__free(plan->queues);
    hkt__free(plan->entries);
    hkt__free(plan->args);
    hkt__free(plan->deps);
    hkt__free(plan);
}

const struct hkt__sched *hkt__plan_shape(const struct hkt__plan *plan)
{
    return &plan->shape;
}

bool hkt__plan_is_direct(const struct hkt__plan *plan)
{
    return plan->direct;
}

bool hkt__plan_only_receives(const struct hkt__plan *plan)
{
    return plan->only_receives;
}

int hkt__plan_links(const struct hkt__plan *plan)
{
    return plan->nlinks;
}

void hkt__plan_link(const struct hkt__plan *plan, int index, int *out_peer, int *out_lane)
{
    for (int32_t q = 0; q < plan->nqueues; q++) {
        if (plan->queues[q].peer >= 0 && index-- == 0) {
            *out_peer = plan->queues[q].peer;
            *out_lane = plan->queues[q].lane;
            return;
        }
    }
}
