/* Making and freeing communicators. A rank that fails on the way still takes part in the exchange, with its error, so
 * that all members fail together. */
#include <stdio.h>
#include <string.h>

#include "comm/call.h"
#include "comm/comm_int.h"
#include "comm/far.h"
#include "comm/far_net.h"
#include "comm/stage.h"
#include "core/mem.h"
#include "exec/seats.h"

enum { SLICE_MOST = 16 << 20 }; /* of HOCKET_SLICE_BYTES too */

/** What decides how messages are cut, checked and placed: ranks that differ here would misread each other's bytes. */
enum { AGREED_SLICE, AGREED_LANES, AGREED_CRC, AGREED_SCRATCH, AGREED_COUNT };
static const char *const agreed_names[AGREED_COUNT] = {"HOCKET_SLICE_BYTES", "HOCKET_LANES", "HOCKET_CRC",
                                                            "HOCKET_SCRATCH_BYTES"};

/** What each member tells the others when a communicator is made. */
struct contribution {
    int32_t status;
    uint32_t copies;                 /* 1: this rank can copy from and to the memory of all others */
    char text[248];
    uint64_t agreed[AGREED_COUNT]; /* see agreed_names */
    struct hkt__prices prices;       /* the first member's are everybody's, */
    int32_t tuned;                   /* as is its table of measured choices: all must choose alike */
    int32_t keeps_cores;             /* and whether it is known which ranks share cores */
    uint64_t slice_bytes, slice_bytes_least; /* what the transports that this rank uses like; the least of all is everybody's */
    uint32_t bytes[HKT__TRANSPORTS_MAX];
    unsigned char blobs[HKT__TRANSPORTS_MAX][HKT__TP_BLOB_MAX];
};

size_t hkt__comm_contribution_bytes(void)
{
    return sizeof(struct contribution);
}

static bool is_memory(const struct hkt__job *job, int t, unsigned flag)
{
    struct hkt__tp_caps caps;

    job->tps[t]->ops->query(job->tps[t], &caps);
    return (caps.flags & flag) != 0;
}

/** Each pair takes the first transport that both ends may use. Peers in this process are reached as other local ones are,
 *  so that one window serves all: a second memory transport gives way to the last. */
static enum hkt_status choose_routes(struct hkt_comm *comm)
{
    const struct hkt__job *job = comm->job;
    struct hkt__routes *routes = &comm->routes;
    int last_memory = -1;
    char why[HKT__ERROR_TEXT_MAX - 256];

    for (int r = 0; r < comm->nranks; r++) {
        const unsigned char *usable = job->usable + (size_t)comm->job_ranks[r] * HKT__TRANSPORTS_MAX;

        routes->tp_of[r] = HKT__TP_NONE;
        for (int t = 0; t < job->ntransports && routes->tp_of[r] == HKT__TP_NONE && r != comm->rank; t++)
            if (job->tps[t] != NULL && usable[t])
                routes->tp_of[r] = (unsigned char)t;
        if (routes->tp_of[r] == HKT__TP_NONE && r != comm->rank) {
            hkt__job_explain_unreachable(job, why, sizeof why);
            return hkt__fail_peer(HKT_ERR_UNSUPPORTED, r, "no transport reaches rank %d (%s): allow one on both sides "
                                  "with HOCKET_TRANSPORT", r, why);
        }
        if (r != comm->rank && is_memory(job, routes->tp_of[r], HKT__TP_MEMORY) && routes->tp_of[r] > last_memory)
            last_memory = routes->tp_of[r];
    }
    for (int r = 0; r < comm->nranks && last_memory >= 0; r++) {
        const unsigned char *usable = job->usable + (size_t)comm->job_ranks[r] * HKT__TRANSPORTS_MAX;

        if (r != comm->rank && usable[last_memory] && is_memory(job, routes->tp_of[r], HKT__TP_MEMORY))
            routes->tp_of[r] = (unsigned char)last_memory;
    }
    return HKT_OK;
}

/** The transports in use, by name. */
static void label_routes(struct hkt_comm *comm)
{
    struct hkt__routes *routes = &comm->routes;
    size_t used = 0;

    for (int t = 0; t < comm->job->ntransports; t++) {
        bool is_used = false;

        for (int r = 0; r < comm->nranks; r++)
            is_used |= routes->tp_of[r] == t;
        if (is_used && used < sizeof routes->label)
            used += (size_t)snprintf(routes->label + used, sizeof routes->label - used, "%s%s", used > 0 ? "+" : "",
                                     hkt__transport_get(t)->name);
    }
}

/** How to wait depends on what is polled. */
static void choose_waits(struct hkt_comm *comm)
{
    const struct hkt__settings *settings = comm->job->settings;
    const struct hkt__wait_place place = {.host_ranks = comm->job->host_ranks, .cores = comm->job->cpus,
                                          .is_short = comm->job->is_short,
                                          .is_network = !comm->routes.all_polled};

    hkt__wait_policy_init(&comm->options.wait, settings->spin, settings->yield, &place);
}

/** What moving things over the routes costs, as this rank sees it. Peers of other hosts have prices of their own. */
static void price_routes(struct hkt_comm *comm)
{
    struct hkt__routes *routes = &comm->routes;
    const double crowd = (double)comm->job->host_ranks / comm->job->cores;
    struct hkt__tp_caps local = {0};
    double link_ns_per_byte = 0;
    bool has_local = false, is_memory = true;

    routes->all_memory = routes->all_user = routes->all_polled = true;
    routes->slice_bytes = routes->slice_bytes_least = HKT__SLICE_BYTES;
    for (int r = 0; r < comm->nranks; r++) {
        struct hkt__tp_caps caps;

        if (r == comm->rank)
            continue;
        struct hkt__tp *tp = comm->job->tps[routes->tp_of[r]];

        tp->ops->query(tp, &caps);
        routes->all_memory &= (caps.flags & HKT__TP_MEMORY) != 0;
        routes->all_user &= (caps.flags & HKT__TP_USER) != 0;
        routes->all_polled &= (caps.flags & (HKT__TP_MEMORY | HKT__TP_POLLED)) != 0;
        if (caps.slice_bytes > routes->slice_bytes) {
            routes->slice_bytes = caps.slice_bytes;
            routes->slice_bytes_least = caps.slice_bytes_least > 0 ? caps.slice_bytes_least : caps.slice_bytes;
        }
        if (hkt__site_link(&comm->site, comm->rank, r).is_net) {
            link_ns_per_byte = caps.link_ns_per_byte > link_ns_per_byte ? caps.link_ns_per_byte : link_ns_per_byte;
            continue;
        }
        has_local = true;
        is_memory &= (caps.flags & HKT__TP_MEMORY) != 0;
        local.latency_ns = caps.latency_ns > local.latency_ns ? caps.latency_ns : local.latency_ns;
        local.ns_per_byte = caps.ns_per_byte > local.ns_per_byte ? caps.ns_per_byte : local.ns_per_byte;
    }
    if (!has_local) /* nobody pays these prices, unless other hosts have more ranks: memory's */
        hkt__transport_get(0)->query(NULL, &local);
    hkt__prices_init(&routes->prices, local.latency_ns, local.ns_per_byte, is_memory, crowd);
    if (link_ns_per_byte > 0)
        hkt__prices_net(&routes->prices, 1e9 / link_ns_per_byte, 0);
    choose_waits(comm);
    label_routes(comm);
    routes->tuned = hkt__tune_find(comm->job->tune, routes->label);
    if (routes->tuned >= 0)
        memcpy(routes->prices.price, comm->job->tune->tables[routes->tuned].price, sizeof routes->prices.price);
}

/** Can this rank copy from and to the memory of all peers? */
static bool copies_all(const struct hkt_comm *comm)
{
    for (int r = 0; r < comm->nranks; r++) {
        if (r == comm->rank)
            continue;
        const struct hkt__tp *tp = comm->job->tps[comm->routes.tp_of[r]];

        if (!tp->ops->peer_copies(tp, comm->job_ranks[r]))
            return false;
    }
    return true;
}

static enum hkt_status open_domains(struct hkt_comm *comm, struct contribution *own)
{
    const struct hkt__tp_members members = {
        .comm_id = comm->listed.id, .nranks = comm->nranks, .rank = comm->rank, .job_ranks = comm->job_ranks,
        .lanes = HKT__COMM_LANES, .window_bytes = sizeof(struct hkt__window_head) + comm->env.scratch_bytes,
        .crc = comm->options.crc};
    enum hkt_status rc = choose_routes(comm);

    if (rc == HKT_OK) {
        price_routes(comm);
        own->prices = comm->routes.prices;
        own->tuned = comm->routes.tuned;
        own->keeps_cores = comm->job->homes[0] < 0 || comm->routes.all_memory; /* ranks look for their homes as they poll memory */
        own->slice_bytes = comm->routes.slice_bytes;
        own->slice_bytes_least = comm->routes.slice_bytes_least;
    }
    for (int r = 0; r < comm->nranks && rc == HKT_OK; r++) {
        const int t = comm->routes.tp_of[r];
        size_t bytes = 0;

        if (t == HKT__TP_NONE || comm->routes.doms[t] != NULL)
            continue;
        rc = comm->job->tps[t]->ops->dom_open(comm->job->tps[t], &members, &comm->routes.doms[t], own->blobs[t], &bytes);
        if (rc == HKT_OK)
            comm->routes.ndoms++;
        own->bytes[t] = (uint32_t)bytes;
    }
    own->copies = rc == HKT_OK && copies_all(comm);
    return rc;
}

static enum hkt_status connect_domain(struct hkt_comm *comm, int t, const struct contribution *all)
{
    const size_t n = (size_t)comm->nranks;
    unsigned char *blobs = hkt__calloc(n, HKT__TP_BLOB_MAX), *use = hkt__calloc(n, 1);
    size_t *bytes = hkt__calloc(n, sizeof *bytes);
    enum hkt_status rc = HKT_OK;

    if (blobs == NULL || use == NULL || bytes == NULL)
        rc = hkt__fail(HKT_ERR_NOMEM, "no memory to connect %d ranks", comm->nranks);
    for (size_t r = 0; r < n && rc == HKT_OK; r++) {
        memcpy(blobs + r * HKT__TP_BLOB_MAX, all[r].blobs[t], HKT__TP_BLOB_MAX);
        bytes[r] = all[r].bytes[t];
        use[r] = comm->routes.tp_of[r] == t;
    }
    if (rc == HKT_OK)
        rc = comm->routes.doms[t]->ops->dom_connect(comm->routes.doms[t], blobs, bytes, use);
    hkt__free(blobs);
    hkt__free(use);
    hkt__free(bytes);
    return rc;
}

/** The windows and memory of all peers, when all can be addressed; the own ones then are like theirs. */
static enum hkt_status map_memory(struct hkt_comm *comm)
{
    struct hkt__exec_env *env = &comm->env;
    struct hkt__window_head **windows = hkt__calloc((size_t)comm->nranks, sizeof *windows);

    env->windows = windows;
    env->memory = hkt__calloc((size_t)comm->nranks, sizeof *env->memory);
    env->srcs = hkt__calloc((size_t)comm->nranks, sizeof *env->srcs);
    env->places = hkt__calloc((size_t)comm->nranks, sizeof *env->places);
    env->bounce = hkt__pages_alloc(HKT__BOUNCE_BYTES);
    if (windows == NULL || env->memory == NULL || env->srcs == NULL || env->places == NULL || env->bounce == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a communicator");
    if (comm->nranks == 1 || !comm->routes.all_memory)
        return HKT_OK;
    for (int r = 0; r < comm->nranks; r++) {
        struct hkt__tp_dom *dom = comm->routes.doms[comm->routes.tp_of[r == comm->rank ? (r + 1) % comm->nranks : r]];

        windows[r] = dom->ops->window(dom, r);
        env->memory[r] = (struct hkt__peer_memory){.is_same_process = comm->routes.all_user,
                                                   .base = dom->ops->peer_base(dom, r), .dom = dom};
    }
    comm->routes.memory_tp = env->memory_tp = comm->job->tps[comm->routes.tp_of[(comm->rank + 1) % comm->nranks]];
    return HKT_OK;
}

/** Where ranks share cores, the communicator of all of the host evens out who is where. */
static enum hkt_status share_cores(struct hkt_comm *comm)
{
    const struct hkt__job *job = comm->job;

    if (!job->settings->spread || !comm->routes.all_memory || comm->nranks != job->host_ranks || job->cpus == 1 ||
        job->host_ranks <= job->cpus)
        return HKT_OK;
    return hkt__seats_create(&comm->env, job->cpus, job->homes[comm->job_ranks[comm->rank]], &comm->options.wait.seats);
}

static void fill_agreed(const struct hkt_comm *comm, uint64_t agreed[AGREED_COUNT])
{
    agreed[AGREED_SLICE] = comm->options.slice_bytes_set;
    agreed[AGREED_LANES] = (uint64_t)comm->options.channels;
    agreed[AGREED_CRC] = comm->options.crc;
    agreed[AGREED_SCRATCH] = comm->env.scratch_bytes;
}

/** The first member that cannot go on, or differs from rank 0, fails all alike. */
static enum hkt_status check_contributions(const struct hkt_comm *comm, const struct contribution *all)
{
    for (int r = 0; r < comm->nranks; r++)
        if (all[r].status < 0)
            return hkt__fail_peer((enum hkt_status)all[r].status, r, "rank %d could not make %s: %.*s", r, comm->name,
                                  (int)sizeof all[r].text, all[r].text);
    for (int r = 1; r < comm->nranks; r++)
        for (int i = 0; i < AGREED_COUNT; i++)
            if (all[r].agreed[i] != all[0].agreed[i])
                return hkt__fail_peer(HKT_ERR_INVALID, r, "%s: %s is %llu on rank %d, %llu on rank 0: settings and "
                                      "hkt_config must agree on all ranks", comm->name, agreed_names[i],
                                      (unsigned long long)all[r].agreed[i], r, (unsigned long long)all[0].agreed[i]);
    return HKT_OK;
}

/** Large slices are wanted by who has a fast link to itself: they are used where all have. */
static void agree_slices(struct hkt_comm *comm, const struct contribution *all)
{
    struct hkt__comm_options *options = &comm->options;

    options->slice_bytes = options->slice_bytes_least = options->slice_bytes_set;
    for (int r = 0; r < comm->nranks && options->slice_bytes_set == 0; r++) {
        if (r == 0 || all[r].slice_bytes < options->slice_bytes)
            options->slice_bytes = (size_t)all[r].slice_bytes;
        if (r == 0 || all[r].slice_bytes_least < options->slice_bytes_least)
            options->slice_bytes_least = (size_t)all[r].slice_bytes_least;
    }
}

static enum hkt_status connect_members(struct hkt_comm *comm, const struct hkt__comm_params *params,
                                       enum hkt_status status)
{
    struct contribution *all = hkt__calloc((size_t)comm->nranks + 1, sizeof *all);
    enum hkt_status rc;

    if (all == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to connect %d ranks", comm->nranks);
    struct contribution *own = &all[comm->nranks];

    own->status = status < 0 ? status : open_domains(comm, own);
    if (own->status < 0)
        snprintf(own->text, sizeof own->text, "%s", hkt_last_error());
    fill_agreed(comm, own->agreed);
    rc = params->exchange(params->exchange_arg, own, sizeof *own, all);
    if (rc == HKT_OK)
        rc = check_contributions(comm, all);
    const bool is_agreed = rc == HKT_OK; /* all go on: who then cannot must tell the others */

    comm->routes.all_copy = is_agreed;
    for (int r = 0; r < comm->nranks && rc == HKT_OK; r++)
        comm->routes.all_copy &= all[r].copies != 0;
    for (int t = 0; t < HKT__TRANSPORTS_MAX && rc == HKT_OK; t++)
        if (comm->routes.doms[t] != NULL)
            rc = connect_domain(comm, t, all);
    comm->routes.prices = all[0].prices;
    hkt__site_crowd(&comm->site, all[0].keeps_cores ? comm->routes.prices.crowd : 1, comm->routes.prices.over_sockets);
    comm->routes.tuned = all[0].tuned;
    agree_slices(comm, all);
    hkt__free(all);
    if (rc == HKT_OK)
        rc = map_memory(comm);
    if (rc == HKT_OK)
        rc = share_cores(comm);
    return rc < 0 && is_agreed ? hkt__comm_fail_here(comm, rc, "connecting") : rc;
}

static enum hkt_status read_options(struct hkt_comm *comm, const struct hkt_config *config)
{
    const struct hkt__settings *settings = comm->job->settings;
    static const struct hkt_config none = HKT_CONFIG_INIT;
    const struct hkt_config *c = config != NULL ? config : &none;
    struct hkt__comm_options *options = &comm->options;
    const int64_t timeout_ms = c->timeout_ms > 0 ? c->timeout_ms : settings->timeout_ms;

    snprintf(comm->name, sizeof comm->name, "comm%u", comm->listed.id);
    if (c->struct_bytes != sizeof *c)
        return hkt__fail(HKT_ERR_INVALID, "hkt_config: struct_bytes is %zu, not %zu: start from HKT_CONFIG_INIT",
                         c->struct_bytes, sizeof *c);
    if (c->timeout_ms < 0 || c->lanes < 0 || c->lanes > HKT__COLL_LANES || c->crc < -1 || c->crc > 1 ||
        (c->slice_bytes != 0 && (c->slice_bytes < HKT__SLICE_LEAST || c->slice_bytes > SLICE_MOST)))
        return hkt__fail(HKT_ERR_INVALID, "hkt_config: timeout_ms >= 0, lanes 0..%d, crc -1..1, slice_bytes 0 or %d..%d (got "
                         "timeout_ms %lld, lanes %d, crc %d, slice_bytes %zu)", HKT__COLL_LANES, HKT__SLICE_LEAST, SLICE_MOST,
                         (long long)c->timeout_ms, c->lanes, c->crc, c->slice_bytes);
    options->wait.timeout_ns = timeout_ms * 1000000;
    options->slice_bytes_set = c->slice_bytes > 0 ? c->slice_bytes : (size_t)settings->slice_bytes;
    options->channels = c->lanes > 0 ? c->lanes : (int)settings->lanes;
    if (options->channels > HKT__COLL_LANES)
        options->channels = HKT__COLL_LANES;
    options->crc = c->crc != 0 ? c->crc > 0 : settings->crc != 0;
    options->ordered = settings->deterministic[0] != '\0'; /* else "rank_order", the only value */
    if (c->name != NULL)
        snprintf(comm->name, sizeof comm->name, "%s", c->name);
    return hkt__algo_list_parse(c->algo != NULL ? c->algo : settings->algo, &options->wish);
}

/** Orders and groups, from the places of the members. */
static enum hkt_status find_site(struct hkt_comm *comm)
{
    struct hkt__topo_place *places = hkt__calloc((size_t)comm->nranks, sizeof *places);

    if (places == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the places of %d ranks", comm->nranks);
    for (int r = 0; r < comm->nranks; r++) {
        const int32_t home = comm->job->homes[comm->job_ranks[r]];

        places[r] = comm->job->places[comm->job_ranks[r]];
        places[r].core = home >= 0 ? home : places[r].core;
    }
    const enum hkt_status rc = hkt__site_make(places, comm->nranks, &comm->site);

    hkt__free(places);
    return rc;
}

static enum hkt_status allocate(struct hkt_comm *comm, const struct hkt__comm_params *params)
{
    const size_t n = (size_t)comm->nranks;

    comm->job_ranks = hkt__calloc(n, sizeof(int32_t));
    comm->routes.tp_of = hkt__calloc(n, 1);
    comm->env.tx = hkt__calloc(n * HKT__COMM_LANES, sizeof *comm->env.tx);
    comm->env.rx = hkt__calloc(n * HKT__COMM_LANES, sizeof *comm->env.rx);
    comm->planning.plans.table = hkt__calloc(HKT__PLANS_MAX, sizeof *comm->planning.plans.table);
    comm->planning.prepared = hkt__pages_alloc(HKT__PREPARED_MAX * sizeof *comm->planning.prepared);
    comm->user_ops = hkt__calloc(HKT__USER_OPS_MAX, sizeof *comm->user_ops);
    if (comm->job_ranks == NULL || comm->routes.tp_of == NULL || comm->env.tx == NULL || comm->env.rx == NULL ||
        comm->planning.plans.table == NULL || comm->planning.prepared == NULL || comm->user_ops == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a communicator of %d ranks", comm->nranks);
    memcpy(comm->job_ranks, params->job_ranks, n * sizeof(int32_t));
    enum hkt_status rc = find_site(comm);

    if (rc < 0)
        return rc;
    comm->env.nranks = comm->nranks;
    comm->env.rank = comm->rank;
    comm->env.lanes = HKT__COMM_LANES;
    comm->env.scratch_bytes = (size_t)comm->job->settings->scratch_bytes;
    comm->env.window_bytes = sizeof(struct hkt__window_head) + comm->env.scratch_bytes;
    comm->env.scratch = hkt__pages_alloc(comm->env.scratch_bytes);
    if (comm->env.scratch == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for %zu bytes of scratch (HOCKET_SCRATCH_BYTES)",
                         comm->env.scratch_bytes);
    rc = hkt__run_create(&comm->env, &comm->run);
    if (rc == HKT_OK)
        rc = hkt__work_table_create(&comm->planning.work);
    return rc < 0 ? rc : hkt__recorder_init(&comm->watch.recorder, comm->job->settings->recorder);
}

enum hkt_status hkt__comm_create(const struct hkt__comm_params *params, struct hkt_comm **out_comm)
{
    struct hkt_comm *comm = hkt__calloc(1, sizeof *comm);
    enum hkt_status rc;

    if (comm == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a communicator");
    comm->job = params->job;
    comm->listed.id = params->id;
    comm->rank = params->rank;
    comm->nranks = params->nranks;
    comm->checked.coll = HKT_COLL_COUNT;
    pthread_mutex_init(&comm->watch.failure.lock, NULL);
    rc = hkt__turn_init(&comm->turn);
    if (rc < 0) {
        pthread_mutex_destroy(&comm->watch.failure.lock);
        hkt__free(comm);
        return rc;
    }
    rc = allocate(comm, params);
    if (rc == HKT_OK)
        rc = read_options(comm, params->config);
    const bool is_listed = rc == HKT_OK;

    /* From here on members may fail the communicator: it must hear of it. */
    if (is_listed)
        hkt__job_enter(comm->job, comm);
    rc = connect_members(comm, params, rc);
    if (rc < 0) {
        if (is_listed)
            hkt__job_forget(comm->job, comm);
        hkt__comm_free(comm);
        return rc;
    }
    comm->env.crc = comm->options.crc;
    comm->cuda = hkt__cuda_in_use(comm->job->settings->cuda);
    atomic_store_explicit(&comm->listed.is_open, 1, memory_order_release); /* O1: publishes the routes */
    hkt__job_hold(comm->job);
    *out_comm = comm;
    return HKT_OK;
}

void hkt__comm_free(struct hkt_comm *comm)
{
    if (comm == NULL)
        return;
    hkt__far_fini(comm);
    hkt__far_net_fini(comm);
    hkt__p2p_destroy(comm->p2p);
    hkt__registered_fini(comm);
    hkt__plans_fini(&comm->planning.plans);
    hkt__run_destroy(comm->run);
    hkt__seats_destroy(comm->options.wait.seats);
    hkt__work_table_destroy(comm->planning.work);
    hkt__site_fini(&comm->site);
    hkt__recorder_fini(&comm->watch.recorder);
    for (int t = 0; t < HKT__TRANSPORTS_MAX; t++)
        if (comm->routes.doms[t] != NULL)
            comm->routes.doms[t]->ops->dom_close(comm->routes.doms[t]);
    hkt__turn_fini(&comm->turn);
    pthread_mutex_destroy(&comm->watch.failure.lock);
    hkt__free(comm->watch.heard);
    hkt__free((void *)(uintptr_t)comm->env.windows);
    hkt__free(comm->env.memory);
    hkt__free(comm->env.srcs);
    hkt__free(comm->env.places);
    hkt__pages_free(comm->env.bounce, HKT__BOUNCE_BYTES);
    hkt__pages_free(comm->env.scratch, comm->env.scratch_bytes);
    hkt__free(comm->env.tx);
    hkt__free(comm->env.rx);
    hkt__free(comm->routes.tp_of);
    hkt__pages_free(comm->planning.prepared, HKT__PREPARED_MAX * sizeof *comm->planning.prepared);
    hkt__free(comm->user_ops);
    hkt__free(comm->job_ranks);
    hkt__free(comm->room.displs);
    hkt__pages_free(comm->room.temp, comm->room.temp_bytes);
    hkt__stage_free(&comm->room.stage);
    hkt__free(comm);
}

void hkt__comm_park(struct hkt_comm *comm, int route, int64_t timeout_ns)
{
    /* A sleeper on one transport misses the others. Where they may matter it sleeps briefly, on the slowest, which is the last;
     * and who sleeps on another one has the frames sent that the last has not taken yet, before and now and then. */
    const int64_t brief_ns = timeout_ns > 100000 ? 100000 : timeout_ns;
    bool is_last = true;

    for (int t = HKT__TRANSPORTS_MAX - 1; t >= 0; t--) {
        struct hkt__tp_dom *dom = comm->routes.doms[t];

        if (dom == NULL)
            continue;
        if (route < 0 || route == t) {
            dom->ops->park(dom, comm->routes.ndoms == 1 || (is_last && route == t) ? timeout_ns : brief_ns);
            return;
        }
        dom->ops->park(dom, 0);
        is_last = false;
    }
}

enum hkt_status hkt_comm_destroy(struct hkt_comm *comm)
{
    if (comm == NULL)
        return HKT_OK;
    hkt__turn_drain(&comm->turn);
    if (comm->far != NULL)
        (void)hkt__far_drain(comm->far); /* while failures of peers are still heard of */
    const int left = hkt__far_registered_left(comm);
    enum hkt_status rc = hkt__comm_report(comm);
    struct hkt__job *job = comm->job;

    if (rc == HKT_OK && left > 0) /* what peers still map may not be freed, and nobody has waited for them */
        rc = hkt__fail(HKT_ERR_INVALID, "%s was destroyed with %d buffer%s of devices registered: hkt_comm_deregister waits until no "
                       "peer maps one", comm->name, left, left == 1 ? "" : "s");
    hkt__job_forget(job, comm);
    hkt__comm_free(comm);
    hkt__job_release(job);
    return rc;
}

void hkt_comm_abort(struct hkt_comm *comm)
{
    if (comm == NULL)
        return;
    hkt_comm_revoke(comm);
    /* Operations in flight on streams end with the revocation; the destroy waits for just that. */
    (void)!hkt_comm_destroy(comm);
}

int hkt_comm_rank(const struct hkt_comm *comm)
{
    return comm != NULL ? comm->rank : -1;
}

int hkt_comm_size(const struct hkt_comm *comm)
{
    return comm != NULL ? comm->nranks : 0;
}

const char *hkt_comm_transport(const struct hkt_comm *comm, int peer)
{
    if (comm == NULL || peer < 0 || peer >= comm->nranks)
        return NULL;
    return peer == comm->rank ? "self" : comm->job->tps[comm->routes.tp_of[peer]]->ops->name;
}

void hkt_comm_get_stats(const struct hkt_comm *comm, struct hkt_comm_stats *out_stats)
{
    if (out_stats == NULL)
        return;
    *out_stats = (struct hkt_comm_stats){0};
    if (comm != NULL)
        *out_stats = (struct hkt_comm_stats){.ops = comm->watch.recorder.finished, .bytes_sent = comm->env.bytes_sent,
                                             .bytes_received = comm->env.bytes_received,
                                             .bytes_direct = comm->env.bytes_direct,
                                             .plans_built = comm->planning.plans.built,
                                             .yields = comm->counts.yields, .parks = comm->counts.parks};
}
