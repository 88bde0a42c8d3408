/* The registry: which transports there are, in order of preference, with defaults for what they leave out. */
#include "transport/transport.h"

#include <assert.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "transport/modules.h"
#include "transport/tables.h"

/* Nearest first: a pair of ranks uses the first one that both sides reach. Modules stand before the last: they are for
 * networks that are faster than sockets. */
static const struct hkt__tp_ops *const raw_tables[] = {
    &hkt__tp_thread,
    &hkt__tp_shm,
    &hkt__tp_net,
    &hkt__tp_tcp,
};

#define RAW_COUNT ((int)(sizeof raw_tables / sizeof raw_tables[0]))
#define TABLES_MAX 8

/* Written once by fill, then constant. */
static struct hkt__tp_ops tables[TABLES_MAX];
static int table_count;

static enum hkt_status default_probe(const struct hkt__settings *settings)
{
    (void)settings;
    return HKT_OK;
}

static bool default_is_wanted(void)
{
    return true;
}

static void *default_window(struct hkt__tp_dom *dom, int peer)
{
    (void)dom;
    (void)peer;
    return NULL;
}

/* Nothing to wait for but time; the executor looks again afterwards. A millisecond bounds what that costs. */
static void default_park(struct hkt__tp_dom *dom, int64_t timeout_ns)
{
    (void)dom;
    (void)poll(NULL, 0, timeout_ns > 0 ? 1 : 0);
}

static void default_wake(struct hkt__tp_dom *dom)
{
    (void)dom;
}

static enum hkt_status default_mem_alloc(struct hkt__tp *tp, size_t bytes, void **out_memory)
{
    (void)bytes;
    (void)out_memory;
    return hkt__fail(HKT_ERR_UNSUPPORTED, "%s has no memory that peers can address", tp->ops->name);
}

static void default_mem_free(struct hkt__tp *tp, void *memory)
{
    (void)tp;
    (void)memory;
}

static bool default_mem_locate(struct hkt__tp *tp, const void *data, size_t bytes, uint64_t *out_offset)
{
    (void)tp;
    (void)data;
    (void)bytes;
    (void)out_offset;
    return false;
}

static bool default_peer_copies(const struct hkt__tp *tp, int job_rank)
{
    (void)tp;
    (void)job_rank;
    return false;
}

static enum hkt_status default_peer_read(struct hkt__tp_dom *dom, int peer, void *to, uint64_t from, size_t bytes)
{
    (void)to;
    (void)from;
    (void)bytes;
    return hkt__fail_peer(HKT_ERR_UNSUPPORTED, peer, "%s cannot copy from memory of rank %d", dom->ops->name, peer);
}

static enum hkt_status default_peer_write(struct hkt__tp_dom *dom, int peer, uint64_t to, const void *from, size_t bytes)
{
    (void)to;
    (void)from;
    (void)bytes;
    return hkt__fail_peer(HKT_ERR_UNSUPPORTED, peer, "%s cannot copy to memory of rank %d", dom->ops->name, peer);
}

static bool default_mem_pin(struct hkt__tp_dom *dom, const void *data, size_t bytes)
{
    (void)dom;
    (void)data;
    (void)bytes;
    return false;
}

static void default_mem_unpin(struct hkt__tp_dom *dom, const void *data)
{
    (void)dom;
    (void)data;
}

static enum hkt_status default_mem_pin_device(struct hkt__tp_dom *dom, const struct hkt__tp_device_memory *memory)
{
    (void)memory;
    return hkt__fail(HKT_ERR_UNSUPPORTED, "%s does not send from memory of devices", dom->ops->name);
}

static enum hkt_status default_mem_prove(struct hkt__tp_dom *dom, const void *data, const void *expected, size_t bytes)
{
    (void)data;
    (void)expected;
    (void)bytes;
    return hkt__fail(HKT_ERR_UNSUPPORTED, "%s does not send from memory of devices", dom->ops->name);
}

/** Operations on memory of peers: all or none of them, mostly. */
static void fill_memory(struct hkt__tp_ops *table)
{
    if (table->window == NULL)
        table->window = default_window;
    if (table->mem_alloc == NULL)
        table->mem_alloc = default_mem_alloc;
    if (table->mem_free == NULL)
        table->mem_free = default_mem_free;
    if (table->mem_locate == NULL)
        table->mem_locate = default_mem_locate;
    if (table->peer_base == NULL)
        table->peer_base = default_window;
    if (table->peer_copies == NULL)
        table->peer_copies = default_peer_copies;
    if (table->peer_read == NULL)
        table->peer_read = default_peer_read;
    if (table->peer_write == NULL)
        table->peer_write = default_peer_write;
    if (table->mem_pin == NULL)
        table->mem_pin = default_mem_pin;
    if (table->mem_unpin == NULL)
        table->mem_unpin = default_mem_unpin;
    if (table->mem_pin_device == NULL)
        table->mem_pin_device = default_mem_pin_device;
    if (table->mem_prove == NULL)
        table->mem_prove = default_mem_prove;
}

void hkt__transport_fill(struct hkt__tp_ops *table)
{
    assert(table->name != NULL && table->summary != NULL && table->query != NULL);
    assert(table->open != NULL && table->close != NULL && table->address != NULL && table->reach != NULL);
    assert(table->dom_open != NULL && table->dom_connect != NULL && table->dom_close != NULL);
    assert(table->chan_open != NULL);
    if (table->probe == NULL)
        table->probe = default_probe;
    if (table->is_wanted == NULL)
        table->is_wanted = default_is_wanted;
    fill_memory(table);
    if (table->park == NULL)
        table->park = default_park;
    if (table->wake == NULL)
        table->wake = default_wake;
}

static void fill(void)
{
    const struct hkt__tp_ops *stub;

    for (int i = 0; i < RAW_COUNT; i++) {
        for (int m = 0; i == RAW_COUNT - 1 && (stub = hkt__module_stub(m)) != NULL; m++)
            tables[table_count++] = *stub;
        tables[table_count] = *raw_tables[i];
        hkt__transport_fill(&tables[table_count++]);
    }
    assert(table_count <= TABLES_MAX);
}

const struct hkt__tp_ops *hkt__transport_get(int index)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, fill);
    return index >= 0 && index < table_count ? &tables[index] : NULL;
}

void hkt__transport_describe(const struct hkt__tp_ops *ops, char *out_text, size_t bytes)
{
    if (ops->describe != NULL)
        ops->describe(out_text, bytes);
    else
        snprintf(out_text, bytes, "%s", ops->summary);
}

/* "thread, shm, tcp" */
void hkt__transport_names(char *out_text, size_t bytes)
{
    const struct hkt__tp_ops *table;
    size_t used = 0;

    for (int i = 0; (table = hkt__transport_get(i)) != NULL && used < bytes; i++) {
        const int n = snprintf(out_text + used, bytes - used, "%s%s", i > 0 ? ", " : "", table->name);

        used += n > 0 ? (size_t)n : 0;
    }
}

static const struct hkt__tp_ops *find(const char *name, size_t bytes)
{
    const struct hkt__tp_ops *table;

    for (int i = 0; (table = hkt__transport_get(i)) != NULL; i++)
        if (strlen(table->name) == bytes && memcmp(table->name, name, bytes) == 0)
            return table;
    return NULL;
}

const struct hkt__tp_ops *hkt__transport_find(const char *name)
{
    return find(name, strlen(name));
}

static bool is_wanted(const char *name)
{
    const struct hkt__tp_ops *table = hkt__transport_find(name);

    return table != NULL && table->is_wanted();
}

enum hkt_status hkt__transport_allowed(const char *list, const char *name, bool *out_allowed)
{
    const bool is_inverted = list != NULL && list[0] == '^';
    bool is_listed = false;
    char names[128];

    if (list == NULL || list[0] == '\0') {
        *out_allowed = is_wanted(name);
        return HKT_OK;
    }
    for (const char *item = list + is_inverted;;) {
        const size_t bytes = strcspn(item, ",");
        const struct hkt__tp_ops *table = find(item, bytes);

        if (table == NULL) {
            hkt__transport_names(names, sizeof names);
            return hkt__fail(HKT_ERR_INVALID, "transport list \"%s\": \"%.*s\" is no transport of this build; there are "
                             "%s; write them with commas, a leading ^ forbids instead of allowing", list, (int)bytes, item,
                             names);
        }
        is_listed |= strcmp(table->name, name) == 0;
        if (item[bytes] == '\0')
            break;
        item += bytes + 1;
    }
    *out_allowed = is_inverted ? !is_listed && is_wanted(name) : is_listed;
    return HKT_OK;
}
