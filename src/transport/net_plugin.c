/* Loading plugins, and calling them by the signatures of their version (net_abi.h).
 *
 * Receives are posted one message at a time (count 1, one tag): a group of them would complete only with its last message,
 * while frames are wanted as they come. Memory is the host's, so nothing is flushed and no device sends by itself. */
#include "transport/net_plugin.h"

#include <assert.h>
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "core/error.h"
#include "core/log.h"
#include "core/mem.h"
#include "transport/net_abi.h"

#define TAG 0
#define WORDS_MAX 256

struct hkt__net_plugin {
    struct hkt__net_plugin *next;  /* of those loaded */
    char given[PATH_MAX];          /* the setting's value */
    char name[HKT__NET_NAME_MAX];
    int version;
    bool is_initialised;           /* before version 11; guarded by the lock */
    hkt__net_function *functions[HKT__NET_PLACES]; /* NULL: not in this version */
};

/* Plugins of this process, never unloaded, and what guards them. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hkt__net_plugin *loaded;

/* The last warning of a plugin in this thread: plugins say there what their result only hints at. */
static _Thread_local char last_words[WORDS_MAX];

/* ---- what plugins call ---- */

static enum hkt__log_level log_level_of(int level)
{
    switch (level) {
    case HKT__NET_LOG_ABORT:
        return HKT__LOG_ERROR;
    case HKT__NET_LOG_WARN:
        return HKT__LOG_WARN;
    case HKT__NET_LOG_VERSION:
    case HKT__NET_LOG_INFO:
        return HKT__LOG_DEBUG; /* they are talkative, and ours tells of the choice */
    default:
        return HKT__LOG_TRACE;
    }
}

static void write_log(int level, unsigned long subsystems, const char *file, int line, const char *format, ...)
{
    const enum hkt__log_level ours = log_level_of(level);
    char text[1024];
    va_list args;

    (void)subsystems;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    text[strcspn(text, "\n")] = '\0';
    if (ours <= HKT__LOG_WARN)
        snprintf(last_words, sizeof last_words, "%.*s", WORDS_MAX - 1, text);
    hkt__log(HKT__SUB_TRANSPORT, ours, "net plugin: %s (%s:%d)", text, file != NULL ? file : "", line);
}

static int ignore_event(void **event, int type, void *parent, int64_t plugin_id, void *data)
{
    (void)event;
    (void)type;
    (void)parent;
    (void)plugin_id;
    (void)data;
    return HKT__NET_SUCCESS;
}

/* ---- results ---- */

static const char *result_name(int result)
{
    static const char *const names[] = {"ncclSuccess", "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
                                        "ncclInvalidArgument", "ncclInvalidUsage", "ncclRemoteError", "ncclInProgress"};

    return result >= 0 && (size_t)result < sizeof names / sizeof names[0] ? names[result] : "an unknown result";
}

/** A call of that name gave a result: OK, or its failure, with the plugin's last words. */
static enum hkt_status judge(const struct hkt__net_plugin *plugin, const char *call, int result)
{
    const bool is_outside = result == HKT__NET_SYSTEM_ERROR || result == HKT__NET_REMOTE_ERROR;

    if (result == HKT__NET_SUCCESS)
        return HKT_OK;
    return hkt__fail(is_outside ? HKT_ERR_PEER_LOST : HKT_ERR_SYSTEM, "net: %s of the plugin %s (v%d) failed: %s%s%s%s", call,
                     plugin->name, plugin->version, result_name(result), last_words[0] != '\0' ? ", \"" : "", last_words,
                     last_words[0] != '\0' ? "\"" : "; HOCKET_DEBUG=transport=debug shows what it logs");
}

/** The same where OK without an object means: not yet. */
static enum hkt_status judge_object(const struct hkt__net_plugin *plugin, const char *call, int result, const void *object)
{
    const enum hkt_status rc = judge(plugin, call, result);

    return rc == HKT_OK && object == NULL ? HKT_AGAIN : rc;
}

static hkt__net_function *function_of(const struct hkt__net_plugin *plugin, enum hkt__net_place place)
{
    last_words[0] = '\0';
    return plugin->functions[place];
}

/* ---- loading; under the lock ---- */

static const char *missing_function(const struct hkt__net_plugin *plugin)
{
    static const struct {
        enum hkt__net_place place;
        const char *name;
    } needed[] = {
        {HKT__NET_INIT, "init"}, {HKT__NET_DEVICES, "devices"}, {HKT__NET_PROPERTIES, "getProperties"},
        {HKT__NET_LISTEN, "listen"}, {HKT__NET_CONNECT, "connect"}, {HKT__NET_ACCEPT, "accept"}, {HKT__NET_REG, "regMr"},
        {HKT__NET_DEREG, "deregMr"}, {HKT__NET_ISEND, "isend"}, {HKT__NET_IRECV, "irecv"}, {HKT__NET_TEST, "test"},
        {HKT__NET_CLOSE_SEND, "closeSend"}, {HKT__NET_CLOSE_RECV, "closeRecv"}, {HKT__NET_CLOSE_LISTEN, "closeListen"},
    };

    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (plugin->functions[needed[i].place] == NULL)
            return needed[i].name;
    return NULL;
}

static int count_functions(int version)
{
    return version >= 11 ? HKT__NET_PLACES : version >= 9 ? HKT__NET_VDEVICE + 1
                         : version >= 7 ? HKT__NET_CONSUMED + 1 : HKT__NET_CLOSE_LISTEN + 1;
}

static void take_table(struct hkt__net_plugin *plugin, const struct hkt__net_table *table, int version)
{
    plugin->version = version;
    snprintf(plugin->name, sizeof plugin->name, "%s", table->name != NULL ? table->name : "without a name");
    for (int place = 0; place < count_functions(version); place++) {
        if (version >= 6)
            plugin->functions[place] = table->functions[place];
        else if (place != HKT__NET_REG_DMABUF)
            plugin->functions[place] = table->functions[place - (place > HKT__NET_REG_DMABUF)];
    }
}

static enum hkt_status find_table(struct hkt__net_plugin *plugin, void *library, const char *path)
{
    const void *table = NULL;
    int version = HKT__NET_VERSION_MAX + 1;
    char symbol[32];

    while (table == NULL && --version >= HKT__NET_VERSION_MIN) {
        snprintf(symbol, sizeof symbol, HKT__NET_SYMBOL, version);
        table = dlsym(library, symbol);
    }
    if (table == NULL)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%s has no ncclNetPlugin_v%d to v%d: it is no network plugin, or one of a version "
                         "that hocket does not know", path, HKT__NET_VERSION_MIN, HKT__NET_VERSION_MAX);
    take_table(plugin, table, version);
    const char *missing = missing_function(plugin);

    return missing == NULL ? HKT_OK : hkt__fail(HKT_ERR_UNSUPPORTED, "%s: %s lacks the function %s", path, symbol, missing);
}

static enum hkt_status load(const char *given, struct hkt__net_plugin **out_plugin)
{
    const bool is_path = strchr(given, '/') != NULL || strstr(given, ".so") != NULL;
    struct hkt__net_plugin *plugin = hkt__calloc(1, sizeof *plugin);
    char path[PATH_MAX];

    if (plugin == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "net: no memory for a plugin");
    snprintf(plugin->given, sizeof plugin->given, "%s", given);
    if (is_path)
        snprintf(path, sizeof path, "%s", given);
    else
        snprintf(path, sizeof path, "libnccl-net%s%.200s.so", given[0] != '\0' ? "-" : "", given);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    enum hkt_status rc = HKT_OK;

    if (library == NULL)
        rc = hkt__fail(HKT_ERR_UNSUPPORTED, "no network plugin: %s; HOCKET_NET_PLUGIN names one by its path, or by NAME where "
                       "libnccl-net-NAME.so is in the library path", dlerror());
    else
        rc = find_table(plugin, library, path);
    if (rc < 0) {
        if (library != NULL)
            dlclose(library);
        hkt__free(plugin);
        return rc;
    }
    hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_INFO, "net: loaded the plugin %s (v%d) from %s", plugin->name, plugin->version, path);
    plugin->next = loaded;
    loaded = plugin;
    *out_plugin = plugin;
    return HKT_OK;
}

enum hkt_status hkt__net_plugin_open(const char *name, struct hkt__net_plugin **out_plugin)
{
    enum hkt_status rc = HKT_OK;
    struct hkt__net_plugin *plugin;

    if (strlen(name) >= sizeof plugin->given)
        return hkt__fail(HKT_ERR_INVALID, "HOCKET_NET_PLUGIN=%.100s... is too long", name);
    pthread_mutex_lock(&lock);
    for (plugin = loaded; plugin != NULL && strcmp(plugin->given, name) != 0;)
        plugin = plugin->next;
    if (plugin == NULL)
        rc = load(name, &plugin);
    pthread_mutex_unlock(&lock);
    if (rc == HKT_OK)
        *out_plugin = plugin;
    return rc;
}

const char *hkt__net_plugin_name(const struct hkt__net_plugin *plugin)
{
    return plugin->name;
}

int hkt__net_plugin_version(const struct hkt__net_plugin *plugin)
{
    return plugin->version;
}

/* ---- starting ---- */

/** Version 11 and later: a context of its own each time. */
static enum hkt_status init_context(struct hkt__net_plugin *plugin, void **out_context)
{
    struct hkt__net_config config = {.traffic_class = HKT__NET_CLASS_UNSET};
    uint64_t id = 0;

    (void)!getrandom(&id, sizeof id, GRND_NONBLOCK); /* for logs of plugins: any number will do */
    *out_context = NULL;
    return judge(plugin, "init", ((hkt__net_init_11 *)function_of(plugin, HKT__NET_INIT))(out_context, id, &config, write_log,
                                                                                          ignore_event));
}

static enum hkt_status init_once(struct hkt__net_plugin *plugin)
{
    hkt__net_function *const init = function_of(plugin, HKT__NET_INIT);
    enum hkt_status rc = HKT_OK;

    if (!plugin->is_initialised)
        rc = judge(plugin, "init", plugin->version >= 10 ? ((hkt__net_init_10 *)init)(write_log, ignore_event)
                                                         : ((hkt__net_init_5 *)init)(write_log));
    plugin->is_initialised = rc == HKT_OK;
    return rc;
}

enum hkt_status hkt__net_plugin_init(struct hkt__net_plugin *plugin, void **out_context)
{
    enum hkt_status rc;
    void *context = NULL;

    pthread_mutex_lock(&lock);
    rc = plugin->version >= 11 ? init_context(plugin, &context) : init_once(plugin);
    pthread_mutex_unlock(&lock);
    if (rc < 0)
        return HKT_ERR_UNSUPPORTED;
    *out_context = context;
    return HKT_OK;
}

void hkt__net_plugin_finalize(struct hkt__net_plugin *plugin, void *context)
{
    if (plugin->version < 11 || plugin->functions[HKT__NET_FINALIZE] == NULL)
        return;
    pthread_mutex_lock(&lock);
    if (((hkt__net_close_5 *)function_of(plugin, HKT__NET_FINALIZE))(context) != HKT__NET_SUCCESS)
        hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "net: the plugin %s did not end well: %s", plugin->name, last_words);
    pthread_mutex_unlock(&lock);
}

/* ---- devices ---- */

/** What the versions' properties have in common. */
static void read_device(const union hkt__net_props *props, int version, struct hkt__net_device *out_device)
{
    const char *name = props->v6.name; /* first in all versions; so are those up to ptr_support */
    const int speed = version >= 9 ? props->v9.speed_mbits : version == 8 ? props->v8.speed_mbits : props->v6.speed_mbits;
    const float latency = version >= 9 ? props->v9.latency_us : version == 8 ? props->v8.latency_us : props->v6.latency_us;

    if (name != NULL)
        snprintf(out_device->name, sizeof out_device->name, "%s", name);
    else
        snprintf(out_device->name, sizeof out_device->name, "device %d", out_device->index);
    out_device->can_host = (props->v6.ptr_support & HKT__NET_PTR_HOST) != 0;
    out_device->mbits = speed > 0 ? speed : 0;
    out_device->latency_us = latency > 0 ? (double)latency : 0;
    out_device->message_bytes_max = version >= 12 ? props->v12.p2p_bytes_max : version >= 9 ? props->v9.p2p_bytes_max : 0;
}

enum hkt_status hkt__net_plugin_devices(struct hkt__net_plugin *plugin, struct hkt__net_device *out_devices, int *out_count)
{
    int count = 0;
    enum hkt_status rc =
        judge(plugin, "devices", ((hkt__net_devices_5 *)function_of(plugin, HKT__NET_DEVICES))(&count));

    if (rc == HKT_OK && count <= 0)
        rc = hkt__fail(HKT_ERR_UNSUPPORTED, "net: the plugin %s (v%d) finds no device here", plugin->name, plugin->version);
    if (count > HKT__NET_DEVICES_MAX)
        count = HKT__NET_DEVICES_MAX;
    for (int i = 0; i < count && rc == HKT_OK; i++) {
        hkt__net_properties_5 *properties = (hkt__net_properties_5 *)function_of(plugin, HKT__NET_PROPERTIES);
        union hkt__net_props props;

        memset(&props, 0, sizeof props);
        rc = judge(plugin, "getProperties", properties(i, &props));
        out_devices[i] = (struct hkt__net_device){.index = i};
        if (rc == HKT_OK)
            read_device(&props, plugin->version, &out_devices[i]);
    }
    if (rc < 0)
        return HKT_ERR_UNSUPPORTED;
    *out_count = count;
    return HKT_OK;
}

/* ---- connections ---- */

enum hkt_status hkt__net_plugin_listen(const struct hkt__net_site *site, void *out_handle, void **out_listener)
{
    hkt__net_function *const listen = function_of(site->plugin, HKT__NET_LISTEN);
    void *listener = NULL;
    const int result = site->plugin->version >= 11
                           ? ((hkt__net_listen_11 *)listen)(site->context, site->device, out_handle, &listener)
                           : ((hkt__net_listen_5 *)listen)(site->device, out_handle, &listener);
    const enum hkt_status rc = judge(site->plugin, "listen", result);

    if (rc == HKT_OK && listener == NULL)
        return hkt__fail(HKT_ERR_SYSTEM, "net: listen of the plugin %s (v%d) gave nothing to accept from", site->plugin->name,
                         site->plugin->version);
    *out_listener = listener;
    return rc;
}

static int call_connect(const struct hkt__net_site *site, void *handle, void **out_comm)
{
    hkt__net_function *const connect = function_of(site->plugin, HKT__NET_CONNECT);
    struct hkt__net_config config = {.traffic_class = HKT__NET_CLASS_UNSET};
    const int version = site->plugin->version;
    void *offload = NULL; /* none is asked for */

    if (version >= 11)
        return ((hkt__net_connect_11 *)connect)(site->context, site->device, handle, out_comm, &offload);
    if (version == 10)
        return ((hkt__net_connect_10 *)connect)(site->device, &config, handle, out_comm, &offload);
    if (version >= 7)
        return ((hkt__net_connect_7 *)connect)(site->device, handle, out_comm, &offload);
    return ((hkt__net_connect_5 *)connect)(site->device, handle, out_comm);
}

enum hkt_status hkt__net_plugin_connect(const struct hkt__net_site *site, void *handle, void **out_comm)
{
    *out_comm = NULL;
    const int result = call_connect(site, handle, out_comm);

    return judge_object(site->plugin, "connect", result, *out_comm);
}

enum hkt_status hkt__net_plugin_accept(struct hkt__net_plugin *plugin, void *listener, void **out_comm)
{
    hkt__net_function *const accept = function_of(plugin, HKT__NET_ACCEPT);
    void *offload = NULL;

    *out_comm = NULL;
    const int result = plugin->version >= 7 ? ((hkt__net_accept_7 *)accept)(listener, out_comm, &offload)
                                            : ((hkt__net_accept_5 *)accept)(listener, out_comm);

    return judge_object(plugin, "accept", result, *out_comm);
}

enum hkt_status hkt__net_plugin_reg(struct hkt__net_plugin *plugin, void *comm, void *memory, size_t bytes, void **out_region)
{
    hkt__net_function *const reg = function_of(plugin, HKT__NET_REG);

    assert(bytes <= INT_MAX);
    const int result = plugin->version >= 8
                           ? ((hkt__net_reg_8 *)reg)(comm, memory, bytes, HKT__NET_PTR_HOST, out_region)
                           : ((hkt__net_reg_5 *)reg)(comm, memory, (int)bytes, HKT__NET_PTR_HOST, out_region);

    return judge(plugin, "regMr", result); /* some give no region: then none is needed */
}

void hkt__net_plugin_dereg(struct hkt__net_plugin *plugin, void *comm, void *region)
{
    if (((hkt__net_dereg_5 *)function_of(plugin, HKT__NET_DEREG))(comm, region) != HKT__NET_SUCCESS)
        hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "net: the plugin %s did not take a region back: %s", plugin->name, last_words);
}

void hkt__net_plugin_close(struct hkt__net_plugin *plugin, enum hkt__net_end end, void *comm)
{
    static const enum hkt__net_place places[] = {HKT__NET_CLOSE_SEND, HKT__NET_CLOSE_RECV, HKT__NET_CLOSE_LISTEN};

    if (comm != NULL && ((hkt__net_close_5 *)function_of(plugin, places[end]))(comm) != HKT__NET_SUCCESS)
        hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "net: the plugin %s did not close a connection well: %s", plugin->name,
                 last_words);
}

/* ---- messages ---- */

enum hkt_status hkt__net_plugin_isend(struct hkt__net_plugin *plugin, void *comm, const struct hkt__net_span *span, void **out_request)
{
    hkt__net_function *const isend = function_of(plugin, HKT__NET_ISEND);
    int result;

    *out_request = NULL;
    if (plugin->version >= 10)
        result = ((hkt__net_isend_10 *)isend)(comm, span->data, span->bytes, TAG, span->region, NULL, out_request);
    else if (plugin->version == 9)
        result = ((hkt__net_isend_9 *)isend)(comm, span->data, span->bytes, TAG, span->region, out_request);
    else
        result = ((hkt__net_isend_5 *)isend)(comm, span->data, (int)span->bytes, TAG, span->region, out_request);
    return judge_object(plugin, "isend", result, *out_request);
}

enum hkt_status hkt__net_plugin_irecv(struct hkt__net_plugin *plugin, void *comm, const struct hkt__net_span *span, void **out_request)
{
    hkt__net_function *const irecv = function_of(plugin, HKT__NET_IRECV);
    void *to = span->data, *region = span->region, *event = NULL;
    int bytes = (int)span->bytes, tag = TAG, result;
    size_t size = span->bytes;

    *out_request = NULL; /* on the way in it may ask for more than this */
    if (plugin->version >= 10)
        result = ((hkt__net_irecv_10 *)irecv)(comm, 1, &to, &size, &tag, &region, &event, out_request);
    else if (plugin->version == 9)
        result = ((hkt__net_irecv_9 *)irecv)(comm, 1, &to, &size, &tag, &region, out_request);
    else
        result = ((hkt__net_irecv_5 *)irecv)(comm, 1, &to, &bytes, &tag, &region, out_request);
    return judge_object(plugin, "irecv", result, *out_request);
}

enum hkt_status hkt__net_plugin_test(struct hkt__net_plugin *plugin, void *request, size_t *out_bytes)
{
    int is_done = 0, bytes = 0;
    const enum hkt_status rc =
        judge(plugin, "test", ((hkt__net_test_5 *)function_of(plugin, HKT__NET_TEST))(request, &is_done, &bytes));

    if (rc < 0)
        return rc;
    if (is_done == 0)
        return HKT_AGAIN;
    *out_bytes = bytes > 0 ? (size_t)bytes : 0;
    return HKT_OK;
}
