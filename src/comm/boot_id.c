/* Unique ids, and the listeners that wait in this process for their rank 0.
 *
 * The public id is 128 bytes: magic "hktid", version, port, token, host, checksum. Nothing in it depends on the byte
 * order of the machine, so ids may travel between any two. */
#include "comm/boot_int.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/mem.h"
#include "core/settings.h"
#include "core/siphash.h"

#define ID_VERSION 1

/* Offsets in the public id. */
enum { ID_MAGIC = 0, ID_VERSION_AT = 6, ID_PORT = 8, ID_TOKEN = 16, ID_HOST = 32, ID_CHECK = 120, ID_BYTES = 128 };

_Static_assert(sizeof(struct hkt_unique_id) == ID_BYTES, "the unique id is a wire format");
_Static_assert(sizeof(((struct hkt__boot_id *)NULL)->host) <= ID_CHECK - ID_HOST, "the host fits");

static const unsigned char id_magic[6] = {'h', 'k', 't', 'i', 'd', 0};

/* Not a secret: finds ids that were cut or damaged on their way. */
static const unsigned char checksum_key[16] = "hocket unique id";

static uint64_t checksum(const struct hkt_unique_id *id)
{
    return hkt__siphash(checksum_key, id->bytes, ID_CHECK);
}

void hkt__boot_id_pack(const struct hkt__boot_id *id, struct hkt_unique_id *out_id)
{
    unsigned char *bytes = out_id->bytes;

    memset(bytes, 0, ID_BYTES);
    memcpy(bytes + ID_MAGIC, id_magic, sizeof id_magic);
    bytes[ID_VERSION_AT] = ID_VERSION;
    bytes[ID_PORT] = (unsigned char)(id->port & 0xff);
    bytes[ID_PORT + 1] = (unsigned char)(id->port >> 8);
    memcpy(bytes + ID_TOKEN, id->token, HKT__TOKEN_BYTES);
    memcpy(bytes + ID_HOST, id->host, strnlen(id->host, sizeof id->host - 1));
    const uint64_t check = checksum(out_id);

    for (int i = 0; i < 8; i++)
        bytes[ID_CHECK + i] = (unsigned char)(check >> (8 * i));
}

enum hkt_status hkt__boot_id_unpack(const struct hkt_unique_id *id, struct hkt__boot_id *out_id)
{
    const unsigned char *bytes = id->bytes;
    struct hkt__boot_id out = {.port = (uint16_t)(bytes[ID_PORT] | bytes[ID_PORT + 1] << 8)};
    uint64_t check = 0;

    if (memcmp(bytes + ID_MAGIC, id_magic, sizeof id_magic) != 0)
        return hkt__fail(HKT_ERR_INVALID, "these bytes are no unique id of hocket (they do not begin with its mark): "
                         "pass all %d bytes that hkt_get_unique_id gave", ID_BYTES);
    if (bytes[ID_VERSION_AT] != ID_VERSION)
        return hkt__fail(HKT_ERR_INVALID, "the unique id has version %d, this library knows version %d: use the same "
                         "hocket on all hosts", bytes[ID_VERSION_AT], ID_VERSION);
    for (int i = 0; i < 8; i++)
        check |= (uint64_t)bytes[ID_CHECK + i] << (8 * i);
    if (check != checksum(id))
        return hkt__fail(HKT_ERR_INVALID, "the unique id was damaged on its way (its checksum is wrong): all %d bytes "
                         "must arrive unchanged", ID_BYTES);
    memcpy(out.token, bytes + ID_TOKEN, HKT__TOKEN_BYTES);
    memcpy(out.host, bytes + ID_HOST, sizeof out.host - 1);
    if (out.port == 0 || out.host[0] == '\0')
        return hkt__fail(HKT_ERR_INVALID, "the unique id names no address");
    *out_id = out;
    return HKT_OK;
}

void hkt__boot_token_of(const char *text, unsigned char out_token[HKT__TOKEN_BYTES])
{
    static const unsigned char keys[2][16] = {"hocket token k0", "hocket token k1"};

    for (int half = 0; half < 2; half++) {
        const uint64_t hash = hkt__siphash(keys[half], text, strlen(text));

        for (int i = 0; i < 8; i++)
            out_token[8 * half + i] = (unsigned char)(hash >> (8 * i));
    }
}

/* ---- listeners of this process ---- */

struct waiting {
    struct waiting *next;
    int fd;
    uint16_t port;
    unsigned char token[HKT__TOKEN_BYTES];
};

/* The one piece of state outside objects: an id carries no pointer, so its listener must be found by its port. */
static pthread_mutex_t waiting_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct waiting *waiting_list;

static enum hkt_status listener_keep(int fd, const struct hkt__boot_id *id)
{
    struct waiting *entry = hkt__calloc(1, sizeof *entry);

    if (entry == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a unique id");
    entry->fd = fd;
    entry->port = id->port;
    memcpy(entry->token, id->token, sizeof entry->token);
    pthread_mutex_lock(&waiting_mutex);
    entry->next = waiting_list;
    waiting_list = entry;
    pthread_mutex_unlock(&waiting_mutex);
    return HKT_OK;
}

int hkt__boot_listener_take(const struct hkt__boot_id *id)
{
    struct waiting *entry;
    int fd = -1;

    pthread_mutex_lock(&waiting_mutex);
    for (struct waiting **at = &waiting_list; (entry = *at) != NULL; at = &entry->next)
        if (entry->port == id->port && memcmp(entry->token, id->token, sizeof entry->token) == 0) {
            *at = entry->next;
            break;
        }
    pthread_mutex_unlock(&waiting_mutex);
    if (entry != NULL)
        fd = entry->fd;
    hkt__free(entry);
    return fd;
}

void hkt__boot_id_drop(const struct hkt__boot_id *id)
{
    const int fd = hkt__boot_listener_take(id);

    if (fd >= 0)
        close(fd);
}

/* As many of this host's addresses as fit, comma-separated: whoever reads the id tries them in turn. */
static enum hkt_status hosts_of(const struct hkt__settings *settings, char *out_hosts, size_t hosts_bytes)
{
    struct hkt__net_addresses own;
    struct hkt__net_targets targets;
    size_t used = 0;
    const enum hkt_status status = hkt__net_own_addresses(settings->interface, NULL, &own);

    if (status < 0)
        return status;
    hkt__net_targets_of(&own, &targets);
    out_hosts[0] = '\0';
    for (int i = 0; i < targets.count; i++) {
        char name[HKT__NET_NAME_MAX];

        hkt__net_host(&targets.at[i].address, name);
        const size_t length = strlen(name), comma = used > 0;

        if (used + comma + length + 1 > hosts_bytes)
            break;
        if (comma > 0)
            out_hosts[used++] = ',';
        memcpy(out_hosts + used, name, length + 1);
        used += length;
    }
    if (used == 0)
        snprintf(out_hosts, hosts_bytes, "127.0.0.1");
    return HKT_OK;
}

enum hkt_status hkt__boot_id_create(struct hkt__boot_id *out_id)
{
    const struct hkt__settings *settings;
    struct hkt__boot_id id = {.port = 0};
    int fd = -1;
    enum hkt_status status = hkt__settings_get(&settings);

    if (status < 0)
        return status;
    const char *address = settings->address;

    if (strlen(address) >= sizeof id.host)
        return hkt__fail(HKT_ERR_INVALID, "HOCKET_ADDRESS is \"%s\": at most %zu characters are possible", address,
                         sizeof id.host - 1);
    if (address[0] != '\0')
        snprintf(id.host, sizeof id.host, "%.*s", (int)sizeof id.host - 1, address);
    else
        status = hosts_of(settings, id.host, sizeof id.host);
    if (status == HKT_OK)
        status = hkt__boot_random(id.token, sizeof id.token);
    if (status == HKT_OK)
        status = hkt__net_listen(address[0] != '\0' || hkt__net_is_loopback_name(id.host) ? id.host : NULL, 0, 0, &fd);
    if (status < 0)
        return address[0] != '\0' ? hkt__error_context(status, "HOCKET_ADDRESS=%s", address) : status;
    id.port = hkt__net_port(fd);
    status = listener_keep(fd, &id);
    if (status < 0) {
        close(fd);
        return status;
    }
    *out_id = id;
    return HKT_OK;
}
