/* Setting a job up: meet, open transports, find out who reaches whom, agree. No rank decides alone: a transport serves a
 * pair only when both its ends said so, and a rank that fails on the way still takes part in the exchanges, so that all
 * ranks fail together and say why. */
#include "comm/job.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "comm/comm_int.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "transport/cores.h"

/** What each rank tells all others about itself. */
struct introduction {
    int32_t status;                       /* < 0: this rank cannot go on */
    char text[256];                       /* why */
    struct hkt__topo_place place;         /* host, package, NUMA node, cache, core */
    int32_t spreads;                      /* it moves where others share its core (HOCKET_SPREAD) */
    uint32_t blob_bytes[HKT__TRANSPORTS_MAX];
    struct hkt__cpus cpus;
    struct hkt__quota quota;
};

static enum hkt_status open_transports(struct hkt__job *job, const struct hkt__boot_id *id, const char *allowed)
{
    const struct hkt__tp_params params = {.job_rank = job->rank, .job_nranks = job->nranks, .token = id->token,
                                          .settings = job->settings, .abort_word = &job->aborted};
    const struct hkt__tp_ops *ops;

    for (int t = 0; t < HKT__TRANSPORTS_MAX && (ops = hkt__transport_get(t)) != NULL; t++) {
        const struct hkt__tp_ops *faulty = hkt__faulty_wrap(ops, job->settings);
        bool use = false;
        enum hkt_status rc = hkt__transport_allowed(allowed, ops->name, &use);

        job->ntransports = t + 1;
        if (rc < 0)
            return rc;
        if (!use)
            continue;
        if (ops->probe(job->settings) < 0) {
            snprintf(job->absent[t], sizeof job->absent[t], "%s", hkt_last_error());
            hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_INFO, "%s is not usable: %s", ops->name, hkt_last_error());
            continue;
        }
        rc = (faulty != NULL ? faulty : ops)->open(&params, &job->tps[t]);
        if (rc < 0)
            return hkt__error_context(rc, "transport %s", ops->name);
    }
    return HKT_OK;
}

/** The first rank that could not go on fails everybody, with its own words. */
static enum hkt_status check_introductions(const struct introduction *all, int nranks)
{
    for (int r = 0; r < nranks; r++)
        if (all[r].status < 0)
            return hkt__fail_peer((enum hkt_status)all[r].status, r, "rank %d could not join: %.*s", r,
                                  (int)sizeof all[r].text, all[r].text);
    return HKT_OK;
}

/** What the cgroups of this host's ranks allow together; 0: one of them has no limit. */
static double add_quotas(const struct hkt__job *job, const struct introduction *all)
{
    const uint64_t host = all[job->rank].place.host;
    double cpus = 0;

    for (int r = 0; r < job->nranks; r++) {
        int first = 0;

        if (all[r].place.host != host)
            continue;
        if (all[r].quota.cpus <= 0)
            return 0;
        while (all[first].place.host != host || all[first].quota.group != all[r].quota.group)
            first++;
        cpus += first == r ? all[r].quota.cpus : 0;
    }
    return cpus;
}

/** Where all ranks run; how many of them on this host, on how many cores. */
static void take_places(struct hkt__job *job, const struct introduction *all)
{
    struct hkt__cpus cpus;

    memset(&cpus, 0, sizeof cpus);
    job->host_ranks = 0;
    for (int r = 0; r < job->nranks; r++) {
        job->places[r] = all[r].place;
        if (all[r].place.host != all[job->rank].place.host)
            continue;
        job->host_ranks++;
        for (int i = 0; i < HKT__CPUS_PARTS; i++)
            CPU_OR(&cpus.part[i], &cpus.part[i], &all[r].cpus.part[i]);
    }
    const double quota = add_quotas(job, all);

    job->cpus = hkt__cores_within(hkt__cpus_count(&cpus), 0);
    job->cores = hkt__cores_within(job->cpus, quota);
    job->is_short = quota > 0 && quota < job->host_ranks;
}

/** Where all ranks are on one host, may run on all its CPUs, and are a multiple of them, each gets one of its own to keep to,
 *  neighbours the same. So all know who takes turns with whom, which the choice of algorithms hangs on. Not under a quota: there
 *  the CPUs are others' too. */
static void find_homes(struct hkt__job *job, const struct introduction *all)
{
    const int share = job->nranks / job->cores;
    bool is_even = job->host_ranks == job->nranks && job->cores == job->cpus && job->cores > 1 && share > 1 && job->nranks % job->cores == 0;
    int rank = 0;

    for (int r = 0; r < job->nranks; r++) {
        job->homes[r] = -1;
        is_even &= all[r].spreads && memcmp(&all[r].cpus, &all[0].cpus, sizeof all[r].cpus) == 0;
    }
    for (int cpu = 0; cpu < HKT__CPUS_PARTS * CPU_SETSIZE && is_even; cpu++)
        for (int i = 0; i < share && CPU_ISSET_S(cpu, sizeof all[0].cpus, all[0].cpus.part); i++)
            job->homes[rank++] = cpu;
}

static enum hkt_status introduce(struct hkt__job *job, enum hkt_status status, struct introduction *all,
                                 unsigned char *blobs)
{
    struct introduction own = {.status = status, .spreads = job->settings->spread != 0};
    unsigned char *blob = blobs + (size_t)job->rank * HKT__TRANSPORTS_MAX * HKT__TP_BLOB_MAX;
    enum hkt_status rc;

    hkt__topo_place_here(&own.place);
    hkt__cpus_get(&own.cpus);
    hkt__quota_get("", &own.quota);
    for (int t = 0; t < job->ntransports && own.status >= 0; t++) {
        size_t bytes = 0;

        if (job->tps[t] == NULL)
            continue;
        own.status = job->tps[t]->ops->address(job->tps[t], blob + t * HKT__TP_BLOB_MAX, &bytes);
        own.blob_bytes[t] = (uint32_t)bytes;
    }
    if (own.status < 0)
        snprintf(own.text, sizeof own.text, "%s", hkt_last_error());
    rc = hkt__boot_all_gather(job->boot, &own, sizeof own, all);
    if (rc < 0)
        return rc;
    rc = check_introductions(all, job->nranks);
    if (rc < 0)
        return rc;
    unsigned char *mine = hkt__calloc(HKT__TRANSPORTS_MAX, HKT__TP_BLOB_MAX);

    if (mine == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to exchange addresses");
    memcpy(mine, blob, (size_t)HKT__TRANSPORTS_MAX * HKT__TP_BLOB_MAX);
    rc = hkt__boot_all_gather(job->boot, mine, (size_t)HKT__TRANSPORTS_MAX * HKT__TP_BLOB_MAX, blobs);
    hkt__free(mine);
    return rc;
}

/** Addresses of one transport, gathered out of the blobs of all. */
struct address_view {
    unsigned char *blobs;
    size_t *bytes;
    unsigned char *ok;
};

static bool reaches_all(const struct address_view *view, int nranks)
{
    for (int r = 0; r < nranks; r++)
        if (!view->ok[r])
            return false;
    return true;
}

static enum hkt_status reach_all(struct hkt__job *job, const struct introduction *all, const unsigned char *blobs,
                                 struct address_view *view, unsigned char *ok)
{
    const int64_t deadline_ns = hkt__now_ns() + job->settings->init_timeout_ms * 1000000;
    bool has_memory = false;

    for (int t = 0; t < job->ntransports; t++) {
        struct hkt__tp_caps caps;

        if (job->tps[t] == NULL)
            continue;
        job->tps[t]->ops->query(job->tps[t], &caps);
        for (int r = 0; r < job->nranks; r++) {
            /* Ranks that all share memory already need not map each other once more: that is much address space. */
            const bool skip = has_memory && (caps.flags & HKT__TP_MEMORY) != 0 && r != job->rank;

            view->bytes[r] = skip ? 0 : all[r].blob_bytes[t];
            memcpy(view->blobs + (size_t)r * HKT__TP_BLOB_MAX,
                   blobs + ((size_t)r * HKT__TRANSPORTS_MAX + (size_t)t) * HKT__TP_BLOB_MAX, HKT__TP_BLOB_MAX);
        }
        memset(view->ok, 0, (size_t)job->nranks);
        const enum hkt_status rc = job->tps[t]->ops->reach(job->tps[t], view->blobs, view->bytes, deadline_ns, view->ok);

        if (rc < 0)
            return hkt__error_context(rc, "transport %s", job->tps[t]->ops->name);
        has_memory |= (caps.flags & HKT__TP_MEMORY) != 0 && reaches_all(view, job->nranks);
        for (int r = 0; r < job->nranks; r++)
            ok[(size_t)r * HKT__TRANSPORTS_MAX + (size_t)t] = view->bytes[r] > 0 && view->ok[r];
    }
    return HKT_OK;
}

/** Exchange what each rank reaches; a pair may use what both ends reach. */
static enum hkt_status vote(struct hkt__job *job, enum hkt_status status, const unsigned char *ok)
{
    const size_t row = (size_t)job->nranks * HKT__TRANSPORTS_MAX;
    unsigned char *mine = hkt__calloc(1, row + 1), *table = hkt__calloc((size_t)job->nranks, row + 1);
    enum hkt_status rc = HKT_OK;

    if (mine == NULL || table == NULL) {
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory to agree on transports");
        goto free_tables;
    }
    memcpy(mine, ok, row);
    mine[row] = status < 0;
    rc = hkt__boot_all_gather(job->boot, mine, row + 1, table);
    if (rc < 0 || status < 0)
        goto free_tables;
    for (int r = 0; r < job->nranks; r++) {
        const unsigned char *theirs = table + (size_t)r * (row + 1);

        if (theirs[row]) {
            rc = hkt__fail_peer(HKT_ERR_FAILED, r, "rank %d failed to set up its transports; its own error says why", r);
            goto free_tables;
        }
        for (size_t t = 0; t < HKT__TRANSPORTS_MAX; t++)
            job->usable[(size_t)r * HKT__TRANSPORTS_MAX + t] =
                ok[(size_t)r * HKT__TRANSPORTS_MAX + t] && theirs[(size_t)job->rank * HKT__TRANSPORTS_MAX + t];
    }

free_tables:
    hkt__free(mine);
    hkt__free(table);
    return status < 0 ? status : rc;
}

static enum hkt_status set_up_transports(struct hkt__job *job, const struct hkt__boot_id *id, const char *allowed)
{
    const size_t n = (size_t)job->nranks;
    struct introduction *all = hkt__calloc(n, sizeof *all);
    unsigned char *blobs = hkt__calloc(n * HKT__TRANSPORTS_MAX, HKT__TP_BLOB_MAX);
    unsigned char *ok = hkt__calloc(n, HKT__TRANSPORTS_MAX);
    struct address_view view = {hkt__calloc(n, HKT__TP_BLOB_MAX), hkt__calloc(n, sizeof(size_t)), hkt__calloc(n, 1)};
    enum hkt_status rc;

    if (all == NULL || blobs == NULL || ok == NULL || view.blobs == NULL || view.bytes == NULL || view.ok == NULL) {
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory to introduce %d ranks", job->nranks);
        goto free_all;
    }
    rc = introduce(job, open_transports(job, id, allowed), all, blobs);
    if (rc < 0)
        goto free_all;
    take_places(job, all);
    find_homes(job, all);
    rc = hkt__job_share_tune(job);
    if (rc < 0)
        goto free_all;
    rc = vote(job, reach_all(job, all, blobs, &view, ok), ok);

free_all:
    hkt__free(all);
    hkt__free(blobs);
    hkt__free(ok);
    hkt__free(view.blobs);
    hkt__free(view.bytes);
    hkt__free(view.ok);
    return rc;
}

static void job_destroy(struct hkt__job *job)
{
    if (job == NULL)
        return;
    hkt__boot_destroy(job->boot);
    for (int t = 0; t < job->ntransports; t++)
        if (job->tps[t] != NULL)
            job->tps[t]->ops->close(job->tps[t]);
    pthread_mutex_destroy(&job->lock);
    hkt__free(job->tune);
    hkt__free(job->usable);
    hkt__free(job->lost);
    hkt__free(job->places);
    hkt__free(job->homes);
    hkt__free(job);
}

static enum hkt_status job_new(int nranks, int rank, const struct hkt__settings *settings, struct hkt__job **out_job)
{
    struct hkt__job *job = hkt__calloc(1, sizeof *job);

    if (job == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a job");
    pthread_mutex_init(&job->lock, NULL);
    job->settings = settings;
    job->rank = rank;
    job->nranks = nranks;
    job->host_ranks = 1;
    job->cpus = job->cores = 1;
    job->references = 1;
    job->usable = hkt__calloc((size_t)nranks, HKT__TRANSPORTS_MAX);
    job->lost = hkt__calloc((size_t)nranks, 1);
    job->places = hkt__calloc((size_t)nranks, sizeof *job->places);
    job->homes = hkt__calloc((size_t)nranks, sizeof *job->homes);
    if (job->usable == NULL || job->lost == NULL || job->places == NULL || job->homes == NULL) {
        job_destroy(job);
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a job of %d ranks", nranks);
    }
    *out_job = job;
    return HKT_OK;
}

enum hkt_status hkt__job_create(const struct hkt__boot_id *id, int nranks, int rank, const char *transports,
                                struct hkt__job **out_job)
{
    const struct hkt__settings *settings;
    struct hkt__job *job = NULL;
    enum hkt_status rc = hkt__settings_get(&settings);

    if (nranks == 1)
        hkt__boot_id_drop(id); /* nobody to meet */
    if (rc == HKT_OK)
        rc = job_new(nranks, rank, settings, &job);
    if (rc < 0) {
        hkt__boot_give_up(id, nranks, rank);
        return rc;
    }
    if (transports == NULL)
        transports = settings->transport;
    if (nranks > 1) {
        rc = hkt__boot_meet(id, nranks, rank, settings->init_timeout_ms, &job->boot);
        if (rc < 0)
            goto destroy;
        rc = set_up_transports(job, id, transports);
    } else {
        bool use;

        job->homes[0] = -1;
        rc = hkt__transport_allowed(transports, "thread", &use); /* a wrong list is wrong for one rank too */
    }
    if (rc < 0)
        goto destroy;
    *out_job = job;
    return HKT_OK;

destroy:
    job_destroy(job);
    return rc;
}

/** Monitor thread: a failure somewhere in the job. */
static void on_event(void *arg, const struct hkt__boot_event *event)
{
    struct hkt__job *job = arg;

    pthread_mutex_lock(&job->lock);
    if (event->status == HKT_ERR_PEER_LOST && event->culprit >= 0 && event->culprit < job->nranks)
        job->lost[event->culprit] = 1;
    for (struct hkt_comm *comm = job->comms; comm != NULL; comm = comm->listed.next)
        hkt__comm_on_event(comm, event);
    pthread_mutex_unlock(&job->lock);
}

/** Monitor thread: a rank that waits for long says so. */
static void on_note(void *arg, const struct hkt__boot_note *note)
{
    struct hkt__job *job = arg;

    pthread_mutex_lock(&job->lock);
    for (struct hkt_comm *comm = job->comms; comm != NULL; comm = comm->listed.next)
        if (comm->listed.id == note->comm_id)
            hkt__comm_on_note(comm, note);
    pthread_mutex_unlock(&job->lock);
}

enum hkt_status hkt__job_watch(struct hkt__job *job)
{
    const struct hkt__boot_handlers handlers = {.on_event = on_event, .on_note = on_note, .arg = job};

    return job->boot == NULL ? HKT_OK : hkt__boot_monitor_start(job->boot, &handlers);
}

void hkt__job_enter(struct hkt__job *job, struct hkt_comm *comm)
{
    pthread_mutex_lock(&job->lock);
    comm->listed.next = job->comms;
    job->comms = comm;
    for (int r = 0; r < comm->nranks; r++) {
        struct hkt__boot_event event = {.reporter = job->rank, .culprit = comm->job_ranks[r],
                                        .status = HKT_ERR_PEER_LOST};

        if (job->lost[comm->job_ranks[r]])
            hkt__comm_on_event(comm, &event);
    }
    pthread_mutex_unlock(&job->lock);
}

void hkt__job_forget(struct hkt__job *job, struct hkt_comm *comm)
{
    pthread_mutex_lock(&job->lock);
    for (struct hkt_comm **link = &job->comms; *link != NULL; link = &(*link)->listed.next) {
        if (*link == comm) {
            *link = comm->listed.next;
            break;
        }
    }
    pthread_mutex_unlock(&job->lock);
}

void hkt__job_hold(struct hkt__job *job)
{
    pthread_mutex_lock(&job->lock);
    job->references++;
    pthread_mutex_unlock(&job->lock);
}

void hkt__job_release(struct hkt__job *job)
{
    pthread_mutex_lock(&job->lock);
    const bool last = --job->references <= 0;

    pthread_mutex_unlock(&job->lock);
    if (last)
        job_destroy(job);
}

/** Append to a text of `bytes`; what does not fit is cut. */
static void append(char *text, size_t bytes, const char *separator, const char *what)
{
    const size_t used = strlen(text);

    snprintf(text + used, bytes - used, "%s%s", used > 0 ? separator : "", what);
}

void hkt__job_explain_unreachable(const struct hkt__job *job, char *out_text, size_t bytes)
{
    char denied[256] = "";

    out_text[0] = '\0';
    for (int t = 0; t < job->ntransports; t++) {
        const char *name = hkt__transport_get(t)->name, *absent = job->absent[t];
        char why[sizeof job->absent[t] + 32];

        if (job->tps[t] == NULL && absent[0] == '\0') {
            append(denied, sizeof denied, ", ", name);
            continue;
        }
        snprintf(why, sizeof why, "%s: %s", name, job->tps[t] != NULL ? "does not reach it" : absent);
        append(out_text, bytes, "; ", why);
    }
    if (denied[0] != '\0') {
        append(out_text, bytes, "; ", "not allowed: ");
        append(out_text, bytes, "", denied);
    }
}
