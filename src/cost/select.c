/* See select.h. */
#include "cost/select.h"

#include "core/error.h"

const char *hkt__unfit(const struct hkt__algo *algo, const struct hkt__select_args *args)
{
    if (algo->user_direct && !args->user_ok && !args->copy_ok)
        return "needs buffers that peers can reach: threads, memory of hkt_mem_alloc, or a system that allows copies "
               "between processes (HOCKET_CMA, ptrace_scope)";
    if (algo->info.needs_direct && !args->direct_ok)
        return "needs memory that all peers can address (ranks of one host, over shm or threads)";
    return algo->restriction == NULL ? "" : algo->restriction(args->nranks, args->in_place);
}

double hkt__predict_ns(const struct hkt__algo *algo, const struct hkt__select_args *args)
{
    const double bytes = (double)args->bytes, volume = algo->volume(args->nranks) * bytes;
    const double rounds = algo->rounds(args->nranks);

    /* A pipelined schedule pays for its depth once per slice in flight, not once per byte: its depth costs the time of
     * one slice per round. Others wait for whole messages in each round, which volume already counts. */
    const double slice = bytes < (double)args->slice_bytes ? bytes : (double)args->slice_bytes;
    const double fill = algo->pipelined ? rounds * slice * args->ns_per_byte : 0.0;

    return rounds * args->latency_ns + volume * args->ns_per_byte + fill;
}

enum hkt_status hkt__select(const struct hkt__select_args *args, const struct hkt__algo **out_algo)
{
    const struct hkt__algo *best = NULL;
    double best_ns = 0;

    for (int i = 0; i < hkt__algo_count; i++) {
        const struct hkt__algo *algo = &hkt__algos[i];

        if (algo->info.coll != args->coll || hkt__unfit(algo, args)[0] != '\0')
            continue;
        const double ns = hkt__predict_ns(algo, args);

        if (best == NULL || ns < best_ns) {
            best = algo;
            best_ns = ns;
        }
    }
    if (best == NULL)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "no algorithm serves %s over %d ranks%s", hkt_coll_name(args->coll),
                         args->nranks, args->in_place ? " in place" : "");
    *out_algo = best;
    return HKT_OK;
}
