/* Schedules in virtual time: freely flowing messages, or stages that stand still in every batch. */
#include <string.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/pipe.h"

struct hkt_pipe_times hkt__pipe_times_or_unit(const struct hkt_pipe_times *times)
{
    static const struct hkt_pipe_times unit = HKT_PIPE_TIMES_UNIT;

    return times->f == 0 && times->b == 0 && times->w == 0 && times->send == 0 ? unit : *times;
}

int64_t hkt__pipe_duration(const struct hkt_pipe *pipe, const struct hkt__pipe_clock *clock, int stage,
                           const struct hkt_pipe_op *op)
{
    const struct hkt_pipe_times *times = &clock->times;

    if (clock->uneven != NULL)
        times = &clock->uneven[hkt__pipe_virtual(pipe, stage, op->chunk)];
    if (op->kind == HKT_PIPE_F)
        return times->f;
    if (op->kind == HKT_PIPE_W)
        return times->w;
    return pipe->splits_backward ? times->b : times->b + times->w;
}

/* When what an operation needs is there: -1 not yet. */
static int64_t ready_at(const struct hkt_pipe *pipe, int64_t send, int stage, const struct hkt_pipe_op *op,
                        const int64_t *done)
{
    const int k = hkt__pipe_virtual(pipe, stage, op->chunk), last = pipe->stages * pipe->chunks - 1;
    const int from = op->kind == HKT_PIPE_F && k > 0 ? k - 1 : op->kind == HKT_PIPE_B && k < last ? k + 1 : -1;
    int64_t own = 0, other = 0;

    if (op->kind != HKT_PIPE_F)
        own = done[hkt__pipe_cell(pipe, op->kind == HKT_PIPE_B ? HKT_PIPE_F : HKT_PIPE_B, k, op->micro)];
    if (from >= 0)
        other = done[hkt__pipe_cell(pipe, op->kind, from, op->micro)];
    if (own < 0 || other < 0)
        return -1;
    if (from >= 0 && pipe->stages > 1)
        other += send;
    return own > other ? own : other;
}

bool hkt__pipe_flow(const struct hkt_pipe *pipe, const struct hkt__pipe_clock *clock, struct hkt_pipe_sim *sim,
                    int64_t *done)
{
    int next[HKT_PIPE_STAGES_MAX], left = hkt__pipe_nops(pipe);
    int64_t now[HKT_PIPE_STAGES_MAX];

    memset(done, -1, hkt__pipe_cells(pipe) * sizeof *done);
    memcpy(next, pipe->first, (size_t)pipe->stages * sizeof next[0]);
    memset(now, 0, (size_t)pipe->stages * sizeof now[0]);
    memset(sim->busy, 0, (size_t)pipe->stages * sizeof sim->busy[0]);
    for (int before = left + 1; left < before;) { /* passes over the stages until one of them moves nothing */
        before = left;
        for (int stage = 0; stage < pipe->stages; stage++)
            for (; next[stage] < pipe->first[stage + 1]; next[stage]++, left--) {
                const struct hkt_pipe_op *op = &pipe->ops[next[stage]];

                if (!hkt__pipe_is_compute(op->kind))
                    continue;
                const int64_t ready = ready_at(pipe, clock->times.send, stage, op, done);
                const int64_t duration = hkt__pipe_duration(pipe, clock, stage, op);

                if (ready < 0)
                    break;
                sim->start[next[stage]] = now[stage] > ready ? now[stage] : ready;
                now[stage] = sim->end[next[stage]] = sim->start[next[stage]] + duration;
                done[hkt__pipe_cell(pipe, op->kind, hkt__pipe_virtual(pipe, stage, op->chunk), op->micro)] = now[stage];
                sim->busy[stage] += duration;
            }
    }
    return left == 0;
}

/* Messages that travel: from the end of what makes them. */
static void time_messages(const struct hkt_pipe *pipe, int64_t send, struct hkt_pipe_sim *sim, const int64_t *done)
{
    for (int stage = 0; stage < pipe->stages; stage++)
        for (int i = pipe->first[stage]; i < pipe->first[stage + 1]; i++) {
            const struct hkt_pipe_op *op = &pipe->ops[i];
            const bool is_act = op->kind == HKT_PIPE_SEND_ACT || op->kind == HKT_PIPE_RECV_ACT;
            int k = hkt__pipe_virtual(pipe, stage, op->chunk);

            if (hkt__pipe_is_compute(op->kind))
                continue;
            if (!hkt__pipe_is_send(op->kind))
                k += is_act ? -1 : 1;
            sim->start[i] = k < 0 || k >= pipe->stages * pipe->chunks
                                ? 0
                                : done[hkt__pipe_cell(pipe, is_act ? HKT_PIPE_F : HKT_PIPE_B, k, op->micro)];
            sim->end[i] = sim->start[i] + send;
        }
}

/* A stage in the blocking run: the next operation, or the batch it stands in. */
struct walker {
    int next;
    int posted; /* operations before this one have been posted */
    int64_t clock;
};

/* End of the batch that begins at op i. */
static int batch_end(const struct hkt_pipe *pipe, int stage, int i)
{
    while (i < pipe->first[stage + 1] && !hkt__pipe_is_compute(pipe->ops[i].kind))
        i++;
    return i;
}

/* Post the batch a stage has come to (start[] is when), and leave it if all its messages can pass. */
static bool pass_batch(const struct hkt_pipe *pipe, int stage, const int *partner, int64_t send, struct walker *walkers,
                       struct hkt_pipe_sim *sim)
{
    struct walker *walker = &walkers[stage];
    const int end = batch_end(pipe, stage, walker->next);
    int64_t over = walker->clock;

    for (; walker->posted < end; walker->posted++)
        sim->start[walker->posted] = walker->clock;
    for (int i = walker->next; i < end; i++) {
        const int other = partner[i];

        if (other < 0 || other >= walkers[hkt__pipe_stage_of(pipe, other)].posted)
            return false;
        const int64_t both = sim->start[i] > sim->start[other] ? sim->start[i] : sim->start[other];

        over = both + send > over ? both + send : over;
    }
    for (int i = walker->next; i < end; i++)
        sim->end[i] = over;
    walker->next = end;
    walker->clock = over;
    return true;
}

/* Everything in program order; compute never waits by itself, since its inputs came in earlier batches. */
static bool run_blocking(const struct hkt_pipe *pipe, const struct hkt__pipe_clock *clock, const int *partner,
                         struct walker *walkers, struct hkt_pipe_sim *sim)
{
    int running = pipe->stages;

    for (bool moved = true; moved && running > 0;) {
        moved = false;
        running = 0;
        for (int stage = 0; stage < pipe->stages; stage++) {
            struct walker *walker = &walkers[stage];

            while (walker->next < pipe->first[stage + 1]) {
                const int i = walker->next, posted = walker->posted;

                if (!hkt__pipe_is_compute(pipe->ops[i].kind)) {
                    const bool passed = pass_batch(pipe, stage, partner, clock->times.send, walkers, sim);

                    moved = moved || passed || walker->posted != posted;
                    if (!passed)
                        break;
                    continue;
                }
                const int64_t duration = hkt__pipe_duration(pipe, clock, stage, &pipe->ops[i]);

                sim->start[i] = walker->clock;
                walker->clock = sim->end[i] = walker->clock + duration;
                sim->busy[stage] += duration;
                walker->next = walker->posted = i + 1;
                moved = true;
            }
            running += walker->next < pipe->first[stage + 1];
        }
    }
    return running == 0;
}

static enum hkt_status simulate_blocking(const struct hkt_pipe *pipe, const struct hkt__pipe_clock *clock,
                                         struct hkt_pipe_sim *sim)
{
    int *partner = hkt__parallel_calloc((size_t)hkt__pipe_nops(pipe), sizeof *partner);
    struct walker *walkers = hkt__parallel_calloc((size_t)pipe->stages, sizeof *walkers);
    enum hkt_status rc = partner == NULL || walkers == NULL ? HKT_ERR_NOMEM : hkt__pipe_partners(pipe, partner);

    if (rc == HKT_OK) {
        for (int stage = 0; stage < pipe->stages; stage++)
            walkers[stage].next = walkers[stage].posted = pipe->first[stage];
        rc = run_blocking(pipe, clock, partner, walkers, sim) ? HKT_OK : HKT_ERR_INVALID;
    }
    hkt__parallel_free(partner);
    hkt__parallel_free(walkers);
    return rc;
}

static enum hkt_status simulate_flowing(const struct hkt_pipe *pipe, const struct hkt__pipe_clock *clock,
                                        struct hkt_pipe_sim *sim)
{
    int64_t *done = hkt__parallel_calloc(hkt__pipe_cells(pipe), sizeof *done);
    enum hkt_status rc = HKT_ERR_NOMEM;

    if (done != NULL)
        rc = hkt__pipe_flow(pipe, clock, sim, done) ? HKT_OK : HKT_ERR_INVALID;
    if (rc == HKT_OK)
        time_messages(pipe, clock->times.send, sim, done);
    hkt__parallel_free(done);
    return rc;
}

enum hkt_status hkt_pipe_simulate(const struct hkt_pipe *pipe, const struct hkt_pipe_sim_opts *opts,
                                  struct hkt_pipe_sim **out_sim)
{
    static const struct hkt_pipe_sim_opts defaults = { HKT_PIPE_TIMES_UNIT, 0, NULL };

    if (pipe == NULL || out_sim == NULL || pipe->stages < 1 || pipe->stages > HKT_PIPE_STAGES_MAX)
        return hkt__parallel_fail(HKT_ERR_INVALID, "hkt_pipe_simulate: a NULL, or an impossible number of stages");
    const struct hkt__pipe_clock clock = { hkt__pipe_times_or_unit(opts == NULL ? &defaults.times : &opts->times),
                                           opts == NULL ? NULL : opts->uneven };
    const size_t nops = (size_t)hkt__pipe_nops(pipe);
    struct hkt_pipe_sim *sim = hkt__parallel_calloc(1, sizeof *sim);
    enum hkt_status rc = HKT_ERR_NOMEM;

    if (sim != NULL) {
        sim->stages = pipe->stages;
        sim->start = hkt__parallel_calloc(nops, sizeof *sim->start);
        sim->end = hkt__parallel_calloc(nops, sizeof *sim->end);
        sim->busy = hkt__parallel_calloc((size_t)pipe->stages, sizeof *sim->busy);
        if (sim->start != NULL && sim->end != NULL && sim->busy != NULL)
            rc = opts != NULL && opts->blocking ? simulate_blocking(pipe, &clock, sim)
                                                : simulate_flowing(pipe, &clock, sim);
    }
    if (rc < 0) {
        hkt_pipe_sim_destroy(sim);
        return hkt__parallel_fail(rc,
                                  rc == HKT_ERR_NOMEM ? "no memory to simulate a pipeline of %d stages"
                                                      : "the schedule of %d stages does not run to its end; "
                                                        "hkt_pipe_check says why",
                                  pipe->stages);
    }
    for (size_t i = 0; i < nops; i++)
        sim->makespan = sim->end[i] > sim->makespan ? sim->end[i] : sim->makespan;
    *out_sim = sim;
    return HKT_OK;
}

void hkt_pipe_sim_destroy(struct hkt_pipe_sim *sim)
{
    if (sim == NULL)
        return;
    hkt__parallel_free(sim->start);
    hkt__parallel_free(sim->end);
    hkt__parallel_free(sim->busy);
    hkt__parallel_free(sim);
}

double hkt_pipe_sim_imbalance(const struct hkt_pipe_sim *sim, int *out_stage)
{
    int64_t total = 0;
    int slowest = 0;

    for (int stage = 0; stage < sim->stages; stage++) {
        total += sim->busy[stage];
        slowest = sim->busy[stage] > sim->busy[slowest] ? stage : slowest;
    }
    if (out_stage != NULL)
        *out_stage = slowest;
    return total == 0 ? 1 : (double)sim->busy[slowest] * sim->stages / (double)total;
}

int64_t hkt_pipe_bubble(const struct hkt_pipe_opts *opts)
{
    const struct hkt_pipe_times times = hkt__pipe_times_or_unit(&opts->times);
    const int64_t rest = opts->stages - 1;

    if (opts->kind == HKT_PIPE_FORWARD && (opts->chunks <= 1 || opts->micros % opts->stages == 0))
        return rest * times.f;
    if (opts->kind == HKT_PIPE_GPIPE || opts->kind == HKT_PIPE_1F1B)
        return rest * (times.f + times.b + times.w);
    if (opts->kind == HKT_PIPE_INTERLEAVED && opts->micros % opts->stages == 0)
        return rest * (times.f + times.b + times.w);
    if (opts->kind == HKT_PIPE_ZB_H1 && opts->micros >= opts->stages && times.f >= times.w && times.b >= times.w)
        return rest * (times.f + times.b - times.w);
    return -1;
}
