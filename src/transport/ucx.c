/* ucx: whatever network UCX (openucx.org) reaches, by its UCP layer. See ucx.h for the story. Which device and protocol to
 * use is UCX's choice; hocket adds no settings of its own for that, UCX_* in the environment are UCX's. */
#include "transport/ucx.h"

#include <dlfcn.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <ucs/debug/debug.h>

#include "core/mem.h"
#include "core/settings.h"
#include "transport/module.h"

/* Within a host, the only place where these count (links between hosts have prices of their own): UCX's shared memory.
 * `ucx_perftest -t ucp_am_lat -s 8` and `-t ucp_am_bw -s 65536` with UCX_TLS=posix,cma on 2 virtual cores of a Xeon: 0.9 us
 * one way, 6 to 12 GB/s; here two copies and a lock come on top. */
#define LOCAL_LATENCY_NS 1500
#define LOCAL_NS_PER_BYTE 0.25

static enum hkt_status ucx_probe(const struct hkt__settings *settings)
{
    unsigned major, minor, release;

    (void)settings;
    ucp_get_version(&major, &minor, &release);
    if (major != UCP_API_MAJOR || minor < 12)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "UCX %u.%u.%u is here, 1.12 or a later 1.x is needed", major, minor, release);
    return HKT_OK;
}

static void ucx_describe(char *out_text, size_t bytes)
{
    snprintf(out_text, bytes, "whatever UCX reaches (version %s); used where HOCKET_TRANSPORT names it",
             ucp_get_version_string());
}

static void ucx_query(const struct hkt__tp *tp, struct hkt__tp_caps *out_caps)
{
    (void)tp;
    *out_caps = (struct hkt__tp_caps){.latency_ns = LOCAL_LATENCY_NS, .ns_per_byte = LOCAL_NS_PER_BYTE};
}

/* The interface that is pinned for tcp holds for UCX too, where it is the name of one. */
static enum hkt_status pin(ucp_config_t *config, const char *interface)
{
    if (interface[0] == '\0' || if_nametoindex(interface) == 0)
        return HKT_OK;
    const ucs_status_t rc = ucp_config_modify(config, "NET_DEVICES", interface);

    return rc == UCS_OK ? HKT_OK : hkt__ucx_fail(rc, "to keep UCX to one interface (HOCKET_INTERFACE)");
}

static enum hkt_status make_context(struct hkt__ucx *ucx, const char *interface)
{
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP, .mt_workers_shared = 1,
        .estimated_num_eps = (size_t)ucx->job_nranks};
    ucp_config_t *config;
    ucs_status_t rc = ucp_config_read(NULL, NULL, &config);

    if (rc != UCS_OK)
        return hkt__ucx_fail(rc, "to read UCX's settings (UCX_* in the environment)");
    enum hkt_status status = pin(config, interface);

    if (status == HKT_OK) {
        rc = ucp_init(&params, config, &ucx->context);
        if (rc != UCS_OK)
            status = hkt__ucx_fail(rc, "to start UCX (see `ucx_info -d` for its devices)");
    }
    ucp_config_release(config);
    return status;
}

static void ucx_close(struct hkt__tp *tp)
{
    struct hkt__ucx *ucx = (struct hkt__ucx *)tp;

    if (ucx == NULL)
        return;
    if (ucx->context != NULL)
        ucp_cleanup(ucx->context);
    hkt__free(ucx->peers);
    hkt__free(ucx);
}

/* Which kernel runs this process, and how it is known there. */
static void introduce(struct hkt__ucx_blob *out_own)
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    struct stat space;

    *out_own = (struct hkt__ucx_blob){.magic = HKT__UCX_MAGIC, .version = HKT__UCX_VERSION, .pid = getpid()};
    if (file != NULL && fgets(out_own->boot_id, sizeof out_own->boot_id, file) == NULL)
        out_own->boot_id[0] = '\0';
    if (file != NULL)
        fclose(file);
    if (stat("/proc/self/ns/pid", &space) == 0)
        out_own->pid_space = space.st_ino;
}

/* UCX handles the signals of crashes, to print backtraces; a library has no business with the signals of its program. */
static void keep_off_signals(void)
{
    static const int signals[] = {SIGHUP, SIGILL, SIGBUS, SIGFPE, SIGSEGV};

    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct sigaction now;
        void *handler = NULL;
        Dl_info owner;

        if (sigaction(signals[i], NULL, &now) == 0)
            memcpy(&handler, &now.sa_handler, sizeof handler);
        if (handler != NULL && dladdr(handler, &owner) != 0 && owner.dli_fname != NULL &&
            strstr(owner.dli_fname, "libucs") != NULL)
            ucs_debug_disable_signal(signals[i]); /* only its own: it complains of others */
    }
}

static enum hkt_status ucx_open(const struct hkt__tp_params *params, struct hkt__tp **out_tp)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct hkt__ucx *ucx = hkt__calloc(1, sizeof *ucx);

    if (ucx == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for UCX");
    pthread_once(&once, keep_off_signals);
    ucx->job_rank = params->job_rank;
    ucx->job_nranks = params->job_nranks;
    ucx->abort_word = params->abort_word;
    introduce(&ucx->own);
    ucx->peers = hkt__calloc((size_t)ucx->job_nranks, sizeof *ucx->peers);
    const enum hkt_status rc = ucx->peers == NULL ? hkt__fail(HKT_ERR_NOMEM, "no memory for UCX")
                                                     : make_context(ucx, params->settings->interface);

    if (rc < 0) {
        ucx_close(&ucx->tp);
        return rc;
    }
    *out_tp = &ucx->tp;
    return HKT_OK;
}

static enum hkt_status ucx_address(struct hkt__tp *tp, void *out_blob, size_t *out_bytes)
{
    const struct hkt__ucx *ucx = (const struct hkt__ucx *)tp;

    memcpy(out_blob, &ucx->own, sizeof ucx->own);
    *out_bytes = sizeof ucx->own;
    return HKT_OK;
}

/* Whoever has it open is taken to be reachable: UCX itself finds out when an endpoint is made. */
static enum hkt_status ucx_reach(struct hkt__tp *tp, const unsigned char *blobs, const size_t *bytes, int64_t deadline_ns,
                                 unsigned char *out_ok)
{
    struct hkt__ucx *ucx = (struct hkt__ucx *)tp;

    (void)deadline_ns;
    for (int rank = 0; rank < ucx->job_nranks; rank++) {
        struct hkt__ucx_blob *theirs = &ucx->peers[rank];

        if (bytes[rank] == sizeof *theirs)
            memcpy(theirs, blobs + (size_t)rank * HKT__TP_BLOB_MAX, sizeof *theirs);
        out_ok[rank] = rank == ucx->job_rank ||
                       (theirs->magic == HKT__UCX_MAGIC && theirs->version == HKT__UCX_VERSION);
    }
    return HKT_OK;
}

static const struct hkt__tp_ops ucx_ops = {
    .name = "ucx",
    .summary = "whatever UCX reaches",
    .probe = ucx_probe,
    .describe = ucx_describe,
    .query = ucx_query,
    .open = ucx_open,
    .close = ucx_close,
    .address = ucx_address,
    .reach = ucx_reach,
    .dom_open = hkt__ucx_dom_open,
    .dom_connect = hkt__ucx_dom_connect,
    .dom_close = hkt__ucx_dom_close,
    .chan_open = hkt__ucx_chan_open,
    .park = hkt__ucx_park,
    .wake = hkt__ucx_wake,
};
const struct hkt__tp_ops *const hkt__module_transport = &ucx_ops;
