/* The ways to get a communicator: unique id, environment, all ranks in one process, split. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "comm/call.h"
#include "core/log.h"
#include "core/mem.h"

enum hkt_status hkt_get_unique_id(struct hkt_unique_id *out_id)
{
    struct hkt__boot_id id;

    if (out_id == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_get_unique_id: out_id is NULL");
    const enum hkt_status rc = hkt__boot_id_create(&id);

    if (rc == HKT_OK)
        hkt__boot_id_pack(&id, out_id);
    return rc;
}

/** Exchanges of the world communicator run over the bootstrap tree. */
static enum hkt_status exchange_boot(void *arg, const void *in, size_t bytes, void *out)
{
    struct hkt__job *job = arg;

    if (job->boot != NULL)
        return hkt__boot_all_gather(job->boot, in, bytes, out);
    memcpy(out, in, bytes);
    return HKT_OK;
}

/** An id for a communicator whose first rank is `job_rank` in the job; 0 is the whole job. */
static uint32_t comm_id(int job_rank, unsigned led)
{
    return ((uint32_t)job_rank << 15 | (led & 0x7fff)) + 1;
}

static enum hkt_status join(const struct hkt__boot_id *id, int nranks, int rank, const struct hkt_config *config,
                            struct hkt_comm **out_comm)
{
    struct hkt__job *job;
    struct hkt_comm *comm = NULL;
    int32_t *job_ranks = NULL;
    enum hkt_status rc = hkt__job_create(id, nranks, rank, config != NULL ? config->transport : NULL, &job);

    if (rc < 0)
        return rc;
    hkt__log_set_rank(rank);
    job_ranks = hkt__calloc((size_t)nranks, sizeof *job_ranks);
    if (job_ranks == NULL) {
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory for %d ranks", nranks);
        goto release;
    }
    for (int r = 0; r < nranks; r++)
        job_ranks[r] = r;
    const struct hkt__comm_params params = {.job = job, .id = comm_id(0, 0), .nranks = nranks, .rank = rank,
                                            .job_ranks = job_ranks, .config = config, .exchange = exchange_boot,
                                            .exchange_arg = job};

    job->comms_led = 1;
    rc = hkt__comm_create(&params, &comm);
    if (rc == HKT_OK) {
        rc = hkt__job_watch(job);
        if (rc < 0)
            (void)!hkt_comm_destroy(comm);
    }

release:
    hkt__free(job_ranks);
    hkt__job_release(job);
    if (rc == HKT_OK)
        *out_comm = comm;
    return rc;
}

enum hkt_status hkt_comm_init_rank(struct hkt_comm **out_comm, int nranks, const struct hkt_unique_id *id, int rank,
                                   const struct hkt_config *config)
{
    struct hkt__boot_id boot_id;

    if (out_comm == NULL || id == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_comm_init_rank: out_comm and id must not be NULL");
    if (nranks < 1 || nranks > HKT_RANKS_MAX || rank < 0 || rank >= nranks)
        return hkt__fail(HKT_ERR_INVALID, "hkt_comm_init_rank: rank %d of %d: need 0 <= rank < nranks <= %d", rank, nranks,
                         HKT_RANKS_MAX);
    const enum hkt_status rc = hkt__boot_id_unpack(id, &boot_id);

    return rc < 0 ? rc : join(&boot_id, nranks, rank, config, out_comm);
}

enum hkt_status hkt_comm_init_env(struct hkt_comm **out_comm, const struct hkt_config *config)
{
    struct hkt__boot_env env;

    if (out_comm == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_comm_init_env: out_comm is NULL");
    const enum hkt_status rc = hkt__boot_env_find(getenv, &env);

    if (rc < 0)
        return rc;
    hkt__log(HKT__SUB_BOOT, HKT__LOG_INFO, "rank %d of %d by %s", env.rank, env.nranks, env.launcher);
    return env.rank < 0 ? join(&env.id, 1, 0, config, out_comm) : join(&env.id, env.nranks, env.rank, config, out_comm);
}

/** One thread per rank, for the time of the meeting. */
struct joiner {
    pthread_t thread;
    const struct hkt__boot_id *id;
    const struct hkt_config *config;
    int nranks, rank;
    struct hkt_comm **out_comm;
    enum hkt_status status;
    struct hkt__error error;
    _Atomic int *nfailed;        /* of all joiners */
    int place;                   /* among those that failed: 0 is the first, on whom the others may have waited in vain */
};

static void *run_joiner(void *arg)
{
    struct joiner *joiner = arg;

    joiner->status = join(joiner->id, joiner->nranks, joiner->rank, joiner->config, joiner->out_comm);
    joiner->error = *hkt__error_here();
    if (joiner->status < 0)
        joiner->place = atomic_fetch_add_explicit(joiner->nfailed, 1, memory_order_relaxed); /* read after the joins */
    return NULL;
}

enum hkt_status hkt_comm_init_all(struct hkt_comm **out_comms, int nranks, const struct hkt_config *config)
{
    struct joiner *joiners;
    struct hkt__boot_id id;
    _Atomic int nfailed = 0;
    int started = 0;
    enum hkt_status rc;

    if (out_comms == NULL || nranks < 1 || nranks > HKT_RANKS_MAX)
        return hkt__fail(HKT_ERR_INVALID, "hkt_comm_init_all: out_comms must not be NULL, nranks is %d of 1..%d", nranks,
                         HKT_RANKS_MAX);
    rc = hkt__boot_id_create(&id);
    if (rc < 0)
        return rc;
    joiners = hkt__calloc((size_t)nranks, sizeof *joiners);
    struct hkt_comm **comms = hkt__calloc((size_t)nranks, sizeof *comms);

    if (joiners == NULL || comms == NULL)
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory for %d ranks", nranks);
    for (int r = 0; r < nranks && rc == HKT_OK; r++) {
        joiners[r] = (struct joiner){.id = &id, .config = config, .nranks = nranks, .rank = r, .out_comm = &comms[r],
                                     .nfailed = &nfailed};
        if (pthread_create(&joiners[r].thread, NULL, run_joiner, &joiners[r]) != 0)
            rc = hkt__fail(HKT_ERR_SYSTEM, "cannot start a thread for rank %d (ulimit -u)", r);
        started += rc == HKT_OK;
    }
    if (rc < 0 && started > 0)
        hkt__boot_give_up(&id, nranks, started); /* else those that run would wait for it */
    for (int r = 0; r < started; r++)
        pthread_join(joiners[r].thread, NULL);
    for (int r = 0; r < started && rc == HKT_OK; r++) {
        if (joiners[r].status < 0 && joiners[r].place == 0) {
            rc = joiners[r].status;
            *hkt__error_here() = joiners[r].error;
        }
    }
    if (rc < 0) {
        const struct hkt__error first = *hkt__error_here();

        hkt__boot_id_drop(&id); /* rank 0 may not have taken its port over */
        *hkt__error_here() = first;
    }
    for (int r = 0; r < started; r++) {
        if (rc == HKT_OK)
            out_comms[r] = comms[r];
        else if (joiners[r].status == HKT_OK)
            (void)!hkt_comm_destroy(comms[r]);
    }
    hkt__free(comms);
    hkt__free(joiners);
    return rc;
}

/** What each rank of the parent says in a split. */
struct split_entry {
    int32_t color, key, job_rank;
    uint32_t id;                     /* what the new communicator is called if this rank leads it */
};

/** Exchange among the members of the new communicator, over the parent: all of the parent's ranks take part, so that
 *  groups of different sizes need no order among them. */
struct split_exchange {
    struct hkt_comm *parent;
    const int32_t *members;          /* parent ranks */
    int nmembers;
    bool has_begun;                  /* this rank has taken part, or failed the parent */
};

static enum hkt_status exchange_parent(void *arg, const void *in, size_t bytes, void *out)
{
    struct split_exchange *x = arg;
    char *all = hkt__calloc((size_t)x->parent->nranks, bytes);
    enum hkt_status rc;

    x->has_begun = true;
    /* Without memory this rank cannot take part: the parent fails on all ranks. */
    if (all == NULL)
        return hkt__comm_fail_here(x->parent, hkt__fail(HKT_ERR_NOMEM, "no memory to exchange addresses"), "split");
    rc = hkt__internal_all_gather(in, all, bytes, x->parent);
    for (int i = 0; i < x->nmembers && rc == HKT_OK; i++)
        memcpy((char *)out + (size_t)i * bytes, all + (size_t)x->members[i] * bytes, bytes);
    hkt__free(all);
    return rc;
}

/** Parent ranks of this rank's color in order of (key, rank). Insertion keeps equal keys in rank order. */
static int choose_members(const struct split_entry *entries, int nranks, int color, int32_t *out_members)
{
    int n = 0;

    for (int r = 0; r < nranks; r++) {
        int at = n;

        if (entries[r].color != color)
            continue;
        for (; at > 0 && entries[out_members[at - 1]].key > entries[r].key; at--)
            out_members[at] = out_members[at - 1];
        out_members[at] = r;
        n++;
    }
    return n;
}

/** Ranks without a color still take part in the exchange that connects the others. */
static enum hkt_status sit_out(struct hkt_comm *parent)
{
    struct split_exchange exchange = {.parent = parent};
    void *nothing = hkt__calloc(1, hkt__comm_contribution_bytes());
    enum hkt_status rc;

    if (nothing == NULL)
        return hkt__comm_fail_here(parent, hkt__fail(HKT_ERR_NOMEM, "no memory for a split"), "split");
    rc = exchange_parent(&exchange, nothing, hkt__comm_contribution_bytes(), NULL);
    hkt__free(nothing);
    return rc;
}

static enum hkt_status split_members(struct hkt_comm *parent, const struct split_entry *entries, int color,
                                     const struct hkt_config *config, struct hkt_comm **out_comm)
{
    const size_t n = (size_t)parent->nranks;
    int32_t *members = hkt__calloc(n, sizeof *members), *job_ranks = hkt__calloc(n, sizeof *job_ranks);
    enum hkt_status rc;

    if (members == NULL || job_ranks == NULL) {
        rc = hkt__comm_fail_here(parent, hkt__fail(HKT_ERR_NOMEM, "no memory for a split"), "split");
        goto free_all;
    }
    struct split_exchange exchange = {.parent = parent, .members = members};
    struct hkt__comm_params params = {.job = parent->job, .job_ranks = job_ranks, .config = config,
                                      .exchange = exchange_parent, .exchange_arg = &exchange};

    exchange.nmembers = params.nranks = choose_members(entries, parent->nranks, color, members);
    for (int i = 0; i < params.nranks; i++) {
        job_ranks[i] = entries[members[i]].job_rank;
        if (members[i] == parent->rank)
            params.rank = i;
    }
    params.id = entries[members[0]].id;
    if (members[0] == parent->rank)
        parent->job->comms_led++;
    rc = hkt__comm_create(&params, out_comm);
    if (rc < 0 && !exchange.has_begun)
        rc = hkt__comm_fail_here(parent, rc, "split");

free_all:
    hkt__free(members);
    hkt__free(job_ranks);
    return rc;
}

enum hkt_status hkt_comm_split(struct hkt_comm *comm, int color, int key, const struct hkt_config *config,
                               struct hkt_comm **out_comm)
{
    struct split_entry own, *entries;
    enum hkt_status rc;

    if (comm == NULL || out_comm == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_comm_split: comm and out_comm must not be NULL");
    if (hkt__group_is_open())
        return hkt__fail(HKT_ERR_INVALID, "hkt_comm_split inside a group");
    hkt__turn_drain(&comm->turn);
    own = (struct split_entry){.color = color < 0 ? -1 : color, .key = key, .job_rank = comm->job->rank,
                               .id = comm_id(comm->job->rank, comm->job->comms_led)};
    entries = hkt__calloc((size_t)comm->nranks, sizeof *entries);
    if (entries == NULL)
        return hkt__comm_fail_here(comm, hkt__fail(HKT_ERR_NOMEM, "no memory for a split"), "split");
    rc = hkt__internal_all_gather(&own, entries, sizeof own, comm);
    if (rc == HKT_OK && color < 0) {
        rc = sit_out(comm);
        if (rc == HKT_OK)
            *out_comm = NULL;
    } else if (rc == HKT_OK) {
        rc = split_members(comm, entries, color, config, out_comm);
    }
    hkt__free(entries);
    return rc;
}
