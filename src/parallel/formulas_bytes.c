/* Bytes: of state, of what ranks send, of activations. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "hocket/formulas.h"
#include "parallel/fail.h"

static const struct hkt_param_bytes recipes[] = {
    { "mixed16", 2, 2, 0, 4, 4, 4 }, { "bf16-12", 2, 2, 0, 0, 4, 4 }, { "mixed18", 2, 4, 0, 4, 4, 4 },
    { "mixed20", 2, 2, 4, 4, 4, 4 }, { "f32-16", 4, 4, 0, 0, 4, 4 },
};
#define RECIPES ((int)(sizeof recipes / sizeof recipes[0]))

const struct hkt_param_bytes *hkt_param_bytes_get(int index)
{
    return index >= 0 && index < RECIPES ? &recipes[index] : NULL;
}

enum hkt_status hkt_param_bytes_parse(const char *text, struct hkt_param_bytes *out_bytes)
{
    double numbers[5];
    const char *at = text;
    int count = 0;

    for (int i = 0; text != NULL && i < RECIPES; i++)
        if (strcmp(text, recipes[i].name) == 0) {
            *out_bytes = recipes[i];
            return HKT_OK;
        }
    for (; at != NULL && count < 5; count++) {
        char *end;

        numbers[count] = strtod(at, &end);
        if (end == at || !(numbers[count] >= 0 && numbers[count] <= 64) || *end != (count == 4 ? '\0' : ','))
            break;
        at = end + 1;
    }
    if (count < 5)
        return hkt__parallel_fail(HKT_ERR_INVALID,
                                  "\"%s\" is no recipe of bytes per parameter; there are mixed16, bf16-12, mixed18, "
                                  "mixed20, f32-16, or five numbers param,grad,master,moment1,moment2 as in 2,2,4,4,4",
                                  text == NULL ? "" : text);
    *out_bytes = (struct hkt_param_bytes){ "given", numbers[0], numbers[1], 0, numbers[2], numbers[3], numbers[4] };
    return HKT_OK;
}

struct hkt_state_bytes hkt_count_state(double params, const struct hkt_param_bytes *bytes, int zero, int shards)
{
    const double optimizer = bytes->main_grad + bytes->master + bytes->moment1 + bytes->moment2;
    struct hkt_state_bytes state;

    state.param = params * bytes->param / (zero >= 3 ? shards : 1);
    state.grad = params * bytes->grad / (zero >= 2 ? shards : 1);
    state.optimizer = params * optimizer / (zero >= 1 ? shards : 1);
    state.total = state.param + state.grad + state.optimizer;
    return state;
}

struct hkt_offload_bytes hkt_count_offload(double params, const struct hkt_param_bytes *bytes)
{
    const double optimizer = bytes->master + bytes->moment1 + bytes->moment2;
    const struct hkt_offload_bytes offload = { params * bytes->param, params * (optimizer + 4), params * optimizer,
                                               params * (bytes->grad + bytes->param) };

    return offload;
}

/* ---- what a rank sends ---- */

double hkt_wire_all_reduce(double bytes, int n)
{
    return 2 * bytes * (n - 1) / n;
}

double hkt_wire_reduce_scatter(double bytes, int n)
{
    return bytes * (n - 1) / n;
}

double hkt_wire_all_gather(double bytes, int n)
{
    return bytes * (n - 1) / n;
}

double hkt_wire_all_to_all(double bytes, int n)
{
    return bytes * (n - 1) / n;
}

struct hkt_dp_bytes hkt_count_dp(const struct hkt_dp_opts *opts)
{
    const int micros = opts->micros == 0 ? 1 : opts->micros, reductions = opts->reduce_every ? micros : 1;
    const int gathers = opts->zero < 3 ? opts->zero > 0 : micros * (opts->keep_gathered ? 1 : 2);
    const double scatter = hkt_wire_reduce_scatter(opts->grad_bytes, opts->inner);
    struct hkt_dp_bytes bytes;

    bytes.reduce = reductions * scatter * (opts->zero == 0 ? 2 : 1); /* an all-reduce is both halves */
    bytes.gather = gathers * hkt_wire_all_gather(opts->param_bytes, opts->inner);
    bytes.replica = opts->outer > 1 ? reductions * hkt_wire_all_reduce(opts->grad_bytes / opts->inner, opts->outer) : 0;
    bytes.total = bytes.reduce + bytes.gather + bytes.replica;
    return bytes;
}

double hkt_message_bytes(int64_t seq, int64_t batch, int64_t hidden, double element_bytes)
{
    return (double)seq * (double)batch * (double)hidden * element_bytes;
}

double hkt_tp_layer_bytes(double message, int tp, int allreduces)
{
    return allreduces * hkt_wire_all_reduce(message, tp);
}

double hkt_pp_message_bytes(double message, int tp, int sequence_parallel)
{
    return sequence_parallel ? message / tp : message;
}

double hkt_ep_layer_bytes(double tokens, int top_k, int64_t hidden, double element_bytes, int ep)
{
    return 4 * hkt_wire_all_to_all(tokens * top_k * (double)hidden * element_bytes, ep);
}

/* ---- activations ---- */

/* Korthikanti et al. 2022, equations 1 to 6: of the 34, 10 are outside the cut of tensor parallelism (norms, dropout,
 * inputs); the scores take 5 a s^2 b, unless they are computed again or never stored. */
double hkt_act_layer_bytes(const struct hkt_act_opts *opts)
{
    const double s = (double)opts->seq, b = (double)opts->batch, unit = s * b * (double)opts->hidden;
    const double t = opts->tp == 0 ? 1 : opts->tp;
    const int stores_scores = opts->recompute == HKT_RECOMPUTE_NONE && !opts->online_softmax;
    const double scores = stores_scores ? 5 * (double)opts->heads * s * s * b : 0;

    if (opts->recompute == HKT_RECOMPUTE_FULL)
        return unit * 2 / (opts->sharded_checkpoints ? t : 1);
    return opts->sequence_parallel ? (34 * unit + scores) / t : 10 * unit + (24 * unit + scores) / t;
}

double hkt_act_stage_bytes(double layer_bytes, int64_t layers, int pp, int chunks)
{
    const double more = chunks > 1 ? (double)(pp - 1) / ((double)pp * chunks) : 0;

    return layer_bytes * (double)layers * (1 + more);
}

double hkt_recompute_share(enum hkt_recompute recompute, int64_t seq, int64_t hidden)
{
    if (recompute == HKT_RECOMPUTE_SELECTIVE)
        return (double)seq / (6 * (double)hidden);
    return recompute == HKT_RECOMPUTE_FULL ? 1.0 / 3 : 0;
}

double hkt_kv_bytes(int64_t layers, int64_t batch, int64_t seq, int64_t kv_width, double element_bytes)
{
    return 2 * (double)layers * (double)batch * (double)seq * (double)kv_width * element_bytes;
}
