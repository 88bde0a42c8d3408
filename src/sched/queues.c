/* Numbers the queues that a schedule uses. */
#include "sched/queues.h"

#include <assert.h>

#include "core/error.h"
#include "core/mem.h"

/* Place of a step's queue among all queues a rank could have. */
static size_t queue_key(const struct hkt__sched *sched, const struct hkt__step *step)
{
    const enum hkt__queue_kind kind = hkt__queue_kind(step);

    assert(step->lane < HKT__LANES_MAX);
    if (kind == HKT__QUEUE_LOCAL)
        return (size_t)sched->nranks * HKT__LANES_MAX * 2 + step->lane;
    assert(step->peer >= 0 && step->peer < sched->nranks);
    return ((size_t)step->peer * HKT__LANES_MAX + step->lane) * 2 + (kind == HKT__QUEUE_RX);
}

enum hkt_status hkt__queues_init(struct hkt__queues *queues, const struct hkt__sched *sched)
{
    const size_t nkeys = ((size_t)sched->nranks * 2 + 1) * HKT__LANES_MAX;
    struct seen {
        int32_t queue_plus_1, steps;
    } *seen = hkt__calloc(nkeys, sizeof *seen);

    queues->count = 0;
    queues->of_step = hkt__calloc((size_t)sched->nsteps, sizeof *queues->of_step);
    queues->position = hkt__calloc((size_t)sched->nsteps, sizeof *queues->position);
    if (seen == NULL || queues->of_step == NULL || queues->position == NULL) {
        hkt__free(seen);
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the queues of a schedule of %d steps", (int)sched->nsteps);
    }
    for (int32_t i = 0; i < sched->nsteps; i++) {
        struct seen *key = &seen[queue_key(sched, &sched->steps[i])];

        if (key->queue_plus_1 == 0)
            key->queue_plus_1 = ++queues->count;
        queues->of_step[i] = key->queue_plus_1 - 1;
        queues->position[i] = key->steps++;
    }
    hkt__free(seen);
    return HKT_OK;
}

void hkt__queues_fini(struct hkt__queues *queues)
{
    hkt__free(queues->of_step);
    hkt__free(queues->position);
    *queues = (struct hkt__queues){ 0, NULL, NULL };
}
