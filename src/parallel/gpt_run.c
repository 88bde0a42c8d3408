/* A step: what a schedule's F, B and W do on this stage's layers, and when the engine is told.
 *
 * A slot holds the activations of one chunk and micro-batch from F to the end of B, or of W where it stands apart. Gradients
 * of matrices are made right after each layer's B when the schedule has no W of its own: the same products on the same
 * numbers, so the same bits. */
#include <string.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/gpt_state.h"
#include "parallel/pipe_run.h"

/* One operation: where it is. */
struct turn {
    struct hkt__gpt *gpt;
    struct hkt__block *block;
    struct hkt__gpt_slot *slot;
    int micro, chunk;
    int first, nlayers;      /* layers of the chunk */
    bool is_first, is_last;  /* virtual stage */
};

static struct turn turn_of(struct hkt__gpt *gpt, int chunk, int micro)
{
    const int at = chunk * gpt->pp + gpt->stage;
    const struct turn turn = {
        .gpt = gpt,
        .block = &gpt->block,
        .slot = &gpt->slots[chunk * gpt->step->pipe->micros + micro],
        .micro = micro,
        .chunk = chunk,
        .first = gpt->stage_first[at],
        .nlayers = gpt->stage_first[at + 1] - gpt->stage_first[at],
        .is_first = at == 0,
        .is_last = at == gpt->pp * gpt->chunks - 1,
    };

    return turn;
}

static struct hkt__block_site site_of(const struct turn *turn, int layer)
{
    const struct hkt__gpt *gpt = turn->gpt;
    const struct hkt__gpt_step *step = gpt->step;
    const struct hkt__gpt_micro *micro = &step->micros[turn->micro];
    struct hkt__block_site site = { .step = step->number,
                                    .first_row = micro->first_row,
                                    .layer = layer,
                                    .has_dropout = !step->no_dropout,
                                    .scale = step->scale,
                                    .result = gpt->result };

    if (step->routing != NULL && layer < gpt->config.shape.layers)
        site.routing = &step->routing[turn->micro * gpt->config.shape.layers + layer];
    for (int64_t r = 0; micro->targets != NULL && r < gpt->block.rows; r++)
        site.tokens += micro->targets[r] >= 0;
    return site;
}

/* ---- what the engine is told ---- */

static void use(const struct turn *turn, int unit, enum hkt__gpt_use what)
{
    const struct hkt__gpt_hooks *hooks = turn->gpt->step->hooks;

    if (hkt__block_ok(turn->block) && hooks != NULL && hooks->use != NULL)
        hkt__block_note(turn->block, hooks->use(hooks->arg, unit, what));
}

static void done(const struct turn *turn, int unit, enum hkt__gpt_use what)
{
    const struct hkt__gpt_hooks *hooks = turn->gpt->step->hooks;

    if (hkt__block_ok(turn->block) && hooks != NULL && hooks->done != NULL)
        hkt__block_note(turn->block, hooks->done(hooks->arg, unit, what));
}

static void report(struct hkt__gpt *gpt, int unit, int micro)
{
    const struct hkt__gpt_hooks *hooks = gpt->step->hooks;
    const int is_last = micro == gpt->step->pipe->micros - 1;

    if (is_last || gpt->step->reduces_every)
        hkt__gpt_finish_unit(gpt, unit);
    if (hkt__block_ok(&gpt->block) && hooks != NULL && hooks->grad != NULL)
        hkt__block_note(&gpt->block, hooks->grad(hooks->arg, unit, micro, is_last));
}

static void grad_added(const struct turn *turn, int unit)
{
    if (unit > 0 || !hkt__gpt_is_tied_here(turn->gpt))
        report(turn->gpt, unit, turn->micro);
}

/* The head's units: the last, and with a tied head the first. */
static void use_head(const struct turn *turn, enum hkt__gpt_use what)
{
    use(turn, hkt__gpt_units(turn->gpt) - 1, what);
    if (turn->gpt->config.shape.tied)
        use(turn, 0, what);
}

static void done_head(const struct turn *turn, enum hkt__gpt_use what)
{
    if (turn->gpt->config.shape.tied)
        done(turn, 0, what);
    done(turn, hkt__gpt_units(turn->gpt) - 1, what);
}

/* ---- weights ---- */

static struct hkt__embedding_weights embedding_weights(const struct hkt__gpt *gpt)
{
    const struct hkt__embedding_weights weights = { hkt__gpt_weight(gpt, gpt->index[0][HKT__T_WTE]),
                                                    hkt__gpt_weight(gpt, gpt->index[0][HKT__T_WPE]) };

    return weights;
}

static struct hkt__head_weights head_weights(const struct hkt__gpt *gpt)
{
    const int *index = gpt->index[hkt__gpt_units(gpt) - 1];
    const struct hkt__head_weights weights = {
        { hkt__gpt_weight(gpt, index[HKT__T_NORM_LAST]), hkt__gpt_weight(gpt, index[HKT__T_NORM_LAST_BIAS]) },
        hkt__gpt_weight(gpt, gpt->config.shape.tied ? gpt->index[0][HKT__T_WTE] : index[HKT__T_HEAD])
    };

    return weights;
}

/* ---- the parts of an operation ---- */

static int64_t elems_here(const struct turn *turn)
{
    return turn->block->rows_here * turn->block->hidden;
}

/* The input of layer i, unless it is the executor's. */
static void drop_x(const struct turn *turn, int i)
{
    if (i > 0 || turn->is_first)
        hkt__block_drop(turn->block, &turn->slot->x[i]);
    turn->slot->x[i] = NULL;
}

static void head_forward(const struct turn *turn, bool has_grad)
{
    struct hkt__gpt *gpt = turn->gpt;
    const struct hkt__block_site site = site_of(turn, gpt->config.shape.layers);
    const struct hkt__gpt_micro *micro = &gpt->step->micros[turn->micro];

    use_head(turn, HKT__GPT_FORWARD);
    const struct hkt__head_weights weights = head_weights(gpt);
    const struct hkt__head_call call = { &weights, &site, micro->targets, &turn->slot->head };

    if (micro->targets != NULL)
        hkt__head_forward(turn->block, &call, turn->slot->x[turn->nlayers], has_grad);
    done_head(turn, HKT__GPT_FORWARD);
    if (!has_grad) {
        hkt__head_drop(turn->block, &turn->slot->head);
        drop_x(turn, turn->nlayers);
    }
}

static void embed(const struct turn *turn)
{
    const struct hkt__block_site site = site_of(turn, 0);

    use(turn, 0, HKT__GPT_FORWARD);
    const struct hkt__embedding_weights weights = embedding_weights(turn->gpt);

    turn->slot->x[0] = hkt__embedding_forward(turn->block, &weights, &site, turn->gpt->step->micros[turn->micro].ids);
    done(turn, 0, HKT__GPT_FORWARD);
}

static void forward(const struct turn *turn, const void *in, void *out)
{
    struct hkt__gpt_slot *slot = turn->slot;
    const bool has_grad = turn->gpt->step->pipe->kind != HKT_PIPE_FORWARD;

    if (turn->is_first)
        embed(turn);
    else
        slot->x[0] = (void *)in;
    for (int i = 0; i < turn->nlayers; i++) {
        const int layer = turn->first + i;
        const bool is_sent = i == turn->nlayers - 1 && !turn->is_last;
        const struct hkt__block_site site = site_of(turn, layer);
        struct hkt__layer_weights weights;
        void *y = is_sent ? out : hkt__block_get(turn->block, elems_here(turn));
        const struct hkt__layer_io io = { slot->x[i], y };
        const int64_t begin = hkt__timeline_now();

        slot->x[i + 1] = is_sent ? NULL : y;
        use(turn, 1 + layer, HKT__GPT_FORWARD);
        hkt__gpt_layer_weights(turn->gpt, layer, &weights);
        if (hkt__block_ok(turn->block))
            hkt__layer_forward(turn->block, &weights, &site, &io, &slot->saved[i]);
        done(turn, 1 + layer, HKT__GPT_FORWARD);
        hkt__timeline_computed(turn->gpt->traffic.timeline, "layer", layer, begin);
        if (has_grad)
            hkt__layer_forget(turn->block, &slot->saved[i]);
        else {
            hkt__layer_drop(turn->block, &slot->saved[i], &slot->kept[i]);
            drop_x(turn, i);
        }
    }
    if (turn->is_last)
        head_forward(turn, has_grad);
}

/* Gives the gradient of the last layer's output. */
static void *head_backward(const struct turn *turn, bool is_split)
{
    const struct hkt__block_site site = site_of(turn, turn->gpt->config.shape.layers);

    use_head(turn, HKT__GPT_BACKWARD);
    const struct hkt__head_weights weights = head_weights(turn->gpt);
    const struct hkt__head_call call = { &weights, &site, NULL, &turn->slot->head };
    void *d = hkt__head_backward(turn->block, &call);

    drop_x(turn, turn->nlayers);
    if (!is_split)
        hkt__head_weights(turn->block, &call);
    done_head(turn, HKT__GPT_BACKWARD);
    if (!is_split)
        grad_added(turn, hkt__gpt_units(turn->gpt) - 1);
    return d;
}

static void embedding_backward(const struct turn *turn, void *d, enum hkt__gpt_use what)
{
    const struct hkt__block_site site = site_of(turn, 0);

    use(turn, 0, what);
    const struct hkt__embedding_weights weights = embedding_weights(turn->gpt);

    hkt__embedding_weights(turn->block, &weights, &site, turn->gpt->step->micros[turn->micro].ids, d);
    done(turn, 0, what);
    grad_added(turn, 0);
}

static void layer_backward(const struct turn *turn, int i, const void *dout, void *dx)
{
    struct hkt__gpt_slot *slot = turn->slot;
    const int layer = turn->first + i;
    const struct hkt__block_site site = site_of(turn, layer);
    const bool is_split = turn->gpt->step->pipe->splits_backward;
    struct hkt__layer_weights weights;
    const struct hkt__layer_grad grad = { slot->x[i], dout, dx, &slot->saved[i], &slot->kept[i] };

    const int64_t begin = hkt__timeline_now();

    use(turn, 1 + layer, HKT__GPT_BACKWARD);
    hkt__gpt_layer_weights(turn->gpt, layer, &weights);
    if (hkt__block_ok(turn->block))
        hkt__layer_backward(turn->block, &weights, &site, &grad);
    if (!is_split)
        hkt__layer_weights(turn->block, &weights, &slot->saved[i], &slot->kept[i]);
    done(turn, 1 + layer, HKT__GPT_BACKWARD);
    hkt__timeline_computed(turn->gpt->traffic.timeline, "layer", layer, begin);
    if (!is_split)
        grad_added(turn, 1 + layer);
}

static void backward(const struct turn *turn, const void *in, void *out)
{
    const bool is_split = turn->gpt->step->pipe->splits_backward;
    void *owned = turn->is_last ? head_backward(turn, is_split) : NULL;
    const void *d = turn->is_last ? owned : in;

    for (int i = turn->nlayers - 1; i >= 0; i--) {
        const bool is_sent = i == 0 && !turn->is_first;
        void *dx = is_sent ? out : hkt__block_get(turn->block, elems_here(turn));

        layer_backward(turn, i, d, dx);
        hkt__block_drop(turn->block, &owned);
        drop_x(turn, i);
        d = dx;
        owned = is_sent ? NULL : dx;
    }
    if (turn->is_first && is_split)
        turn->slot->embedding_grad = owned;
    else if (turn->is_first)
        embedding_backward(turn, owned, HKT__GPT_BACKWARD);
}

static void add_weights(const struct turn *turn)
{
    struct hkt__gpt_slot *slot = turn->slot;

    if (turn->is_last) {
        use_head(turn, HKT__GPT_WEIGHT);
        const struct hkt__head_weights weights = head_weights(turn->gpt);
        const struct hkt__head_call call = { &weights, NULL, NULL, &slot->head };

        hkt__head_weights(turn->block, &call);
        done_head(turn, HKT__GPT_WEIGHT);
        grad_added(turn, hkt__gpt_units(turn->gpt) - 1);
    }
    for (int i = turn->nlayers - 1; i >= 0; i--) {
        const int unit = 1 + turn->first + i;
        struct hkt__layer_weights weights;

        use(turn, unit, HKT__GPT_WEIGHT);
        hkt__gpt_layer_weights(turn->gpt, unit - 1, &weights);
        hkt__layer_weights(turn->block, &weights, &slot->saved[i], &slot->kept[i]);
        done(turn, unit, HKT__GPT_WEIGHT);
        grad_added(turn, unit);
    }
    if (turn->is_first) {
        void *d = slot->embedding_grad;

        slot->embedding_grad = NULL;
        embedding_backward(turn, d, HKT__GPT_WEIGHT);
    }
}

static enum hkt_status compute(void *arg, const struct hkt_pipe_op *op, const void *in, void *out)
{
    struct hkt__gpt *gpt = arg;
    const struct turn turn = turn_of(gpt, op->chunk, op->micro);
    const int64_t begin = hkt__timeline_now();

    if (op->kind == HKT_PIPE_F)
        forward(&turn, in, out);
    else if (op->kind == HKT_PIPE_B)
        backward(&turn, in, out);
    else
        add_weights(&turn);
    hkt__timeline_computed(gpt->traffic.timeline,
                           op->kind == HKT_PIPE_F   ? "forward"
                           : op->kind == HKT_PIPE_B ? "backward"
                                                    : "weights",
                           op->micro, begin);
    return gpt->block.status;
}

/* ---- slots ---- */

static void drop_slot(struct hkt__gpt *gpt, int index)
{
    struct hkt__gpt_slot *slot = &gpt->slots[index];
    const int at = index / (gpt->nslots / gpt->chunks) * gpt->pp + gpt->stage;
    const int nlayers = gpt->stage_first[at + 1] - gpt->stage_first[at];

    for (int i = 0; slot->x != NULL && i <= nlayers; i++)
        if (i > 0 || at == 0)
            hkt__memory_free(gpt->block.memory, slot->x[i]);
    for (int i = 0; slot->saved != NULL && slot->kept != NULL && i < nlayers; i++)
        hkt__layer_drop(&gpt->block, &slot->saved[i], &slot->kept[i]);
    hkt__head_drop(&gpt->block, &slot->head);
    hkt__memory_free(gpt->block.memory, slot->embedding_grad);
    hkt__parallel_free(slot->x);
    hkt__parallel_free(slot->saved);
    hkt__parallel_free(slot->kept);
}

void hkt__gpt_drop_slots(struct hkt__gpt *gpt)
{
    for (int i = 0; i < gpt->nslots; i++)
        drop_slot(gpt, i);
    hkt__parallel_free(gpt->slots);
    gpt->slots = NULL;
    gpt->nslots = 0;
}

/* As many slots as the step has; those of the step before are kept when that is the same. */
static enum hkt_status make_slots(struct hkt__gpt *gpt, int micros)
{
    if (gpt->nslots == gpt->chunks * micros)
        return HKT_OK;
    hkt__gpt_drop_slots(gpt);
    gpt->slots = hkt__parallel_calloc((size_t)(gpt->chunks * micros), sizeof *gpt->slots);
    if (gpt->slots == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for %d micro-batches", micros);
    gpt->nslots = gpt->chunks * micros;
    for (int i = 0; i < gpt->nslots; i++) {
        struct hkt__gpt_slot *slot = &gpt->slots[i];
        const int at = i / micros * gpt->pp + gpt->stage;
        const size_t nlayers = (size_t)(gpt->stage_first[at + 1] - gpt->stage_first[at]);

        slot->x = hkt__parallel_calloc(nlayers + 1, sizeof *slot->x);
        slot->saved = hkt__parallel_calloc(nlayers, sizeof *slot->saved);
        slot->kept = hkt__parallel_calloc(nlayers, sizeof *slot->kept);
        if (slot->x == NULL || slot->saved == NULL || slot->kept == NULL)
            return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for %d micro-batches", micros);
    }
    return HKT_OK;
}

static enum hkt_status check_step(const struct hkt__gpt *gpt, const struct hkt__gpt_step *step)
{
    const struct hkt_pipe *pipe = step->pipe;

    if (pipe->stages != gpt->pp || pipe->chunks != gpt->chunks)
        return hkt__parallel_fail(HKT_ERR_INVALID,
                                  "a schedule of %d stages with %d chunks for a model of %d with %d; they must agree",
                                  pipe->stages, pipe->chunks, gpt->pp, gpt->chunks);
    for (int i = 0; i < pipe->micros && pipe->kind != HKT_PIPE_FORWARD; i++)
        if (step->micros[i].targets == NULL)
            return hkt__parallel_fail(HKT_ERR_INVALID, "micro-batch %d has no targets, but gradients are wanted", i);
    return HKT_OK;
}

enum hkt_status hkt__gpt_forward_backward(struct hkt__gpt *gpt, const struct hkt__gpt_step *step,
                                          struct hkt__gpt_result *out_result)
{
    const struct hkt__pipe_run run = {
        .pipe = step->pipe,
        .stage = gpt->stage,
        .link = &gpt->pp_link,
        .memory = gpt->block.memory,
        .elems = gpt->block.rows_here * gpt->block.hidden,
        .dtype = gpt->math.ops->store,
        .compute = compute,
        .arg = gpt,
    };
    enum hkt_status rc = check_step(gpt, step);

    if (rc == HKT_OK)
        rc = make_slots(gpt, step->pipe->micros);
    if (rc < 0)
        return rc;
    memset(out_result, 0, sizeof *out_result);
    gpt->step = step;
    gpt->result = out_result;
    rc = hkt__pipe_run(&run);
    hkt__block_note(&gpt->block, rc);
    if (rc == HKT_OK && hkt__gpt_is_tied_here(gpt) && step->pipe->kind != HKT_PIPE_FORWARD) {
        hkt__gpt_finish_tied(gpt);
        report(gpt, 0, step->pipe->micros - 1);
    }
    gpt->step = NULL;
    gpt->result = NULL;
    return gpt->block.status;
}
