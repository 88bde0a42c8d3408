/* Reading the text form of a graph (text.h). Lines are taken one by one; the indentation says in which of the open nodes the
 * next one lies. Whatever fails, the error begins with "NAME:LINE: ". */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/mem.h"
#include "topology/text.h"
#include "topology/units.h"

/** A host that says who it is. */
struct known_host {
    uint64_t id;
    int line;
};

struct reader {
    struct hkt__topo_draft *draft;
    struct known_host *hosts; /* [nhosts] those with id= */
    int nhosts, host_room, line; /* line: of the file, the one that is read */
    int32_t open[HKT__TOPO_DEPTH_MAX]; /* node that is open at each depth */
    int depth;                         /* open nodes */
    bool has_links;                    /* nodes may not follow */
};

/** The next word; ends it with a NUL and moves *text behind it. NULL at the end of the line. */
static char *next_word(char **text)
{
    char *word = *text + strspn(*text, " ");

    if (*word == '\0')
        return NULL;
    *text = word + strcspn(word, " ");
    if (**text != '\0')
        *(*text)++ = '\0';
    return word;
}

/** Decimal, without sign, at most INT32_MAX. */
static bool parse_number(const char *text, int32_t *out)
{
    const size_t digits = strspn(text, "0123456789");
    const unsigned long value =
        digits > 0 && digits <= 10 && text[digits] == '\0' ? strtoul(text, NULL, 10) : ULONG_MAX;

    if (value > INT32_MAX)
        return false;
    *out = (int32_t)value;
    return true;
}

enum hkt_status hkt__topo_parse_link(char *text, struct hkt_topo_link *out_link)
{
    char *fields[4] = { text, NULL, NULL, NULL };
    uint64_t latency_ns = 0;

    for (int i = 1; i < 4; i++) {
        fields[i] = strchr(fields[i - 1], ':');
        if (fields[i] == NULL)
            return hkt__fail(HKT_ERR_INVALID,
                             "a link is KIND:BANDWIDTH:LATENCY:SOURCE, for instance pcie:12GB/s:500ns:given");
        *fields[i]++ = '\0';
    }
    const int kind = hkt__topo_link_find(fields[0]), source = hkt__topo_source_find(fields[3]);

    out_link->bytes_per_s = 0;
    if (kind < 0)
        return hkt__fail(HKT_ERR_INVALID, "link kind \"%.32s\": cache, memory, socket, nvlink, pcie or network",
                         fields[0]);
    if (source < 0)
        return hkt__fail(HKT_ERR_INVALID, "source \"%.32s\": assumed, given, hwloc, sysfs or measured", fields[3]);
    if (strcmp(fields[1], "-") != 0 && !hkt__parse_rate(fields[1], &out_link->bytes_per_s))
        return hkt__fail(HKT_ERR_INVALID, "bandwidth \"%.32s\": for instance 12.5GB/s, or - when it is not known",
                         fields[1]);
    if (strcmp(fields[2], "-") != 0 && (!hkt__parse_time(fields[2], &latency_ns) || latency_ns > HKT__TOPO_LATENCY_MAX))
        return hkt__fail(HKT_ERR_INVALID,
                         "latency \"%.32s\": for instance 90ns or 2.5us, up to 100ms, or - when it is not known",
                         fields[2]);
    out_link->kind = (enum hkt_topo_link_kind)kind;
    out_link->source = (enum hkt_topo_source)source;
    out_link->latency_ns = (uint32_t)latency_ns;
    return HKT_OK;
}

enum key { KEY_NAME, KEY_ID, KEY_BYTES, KEY_LINK, KEY_COUNT };

/** One "key=value" of a node. *seen: bits of the keys so far. */
static enum hkt_status take_key(char *word, unsigned *seen, struct hkt_topo_node *node, struct hkt_topo_link *link)
{
    static const char *const keys[KEY_COUNT] = { "name", "id", "bytes", "link" };
    char *value = strchr(word, '='), *end;
    int key = 0;

    if (value != NULL)
        *value++ = '\0';
    while (key < KEY_COUNT && (value == NULL || strcmp(keys[key], word) != 0))
        key++;
    if (key == KEY_COUNT)
        return hkt__fail(HKT_ERR_INVALID, "\"%.32s\": after kind and number come name=, id=, bytes=, link=", word);
    if (*seen & 1u << key)
        return hkt__fail(HKT_ERR_INVALID, "%s= is given twice", word);
    *seen |= 1u << key;
    switch ((enum key)key) {
    case KEY_NAME:
        if (*value == '\0' || strlen(value) >= HKT_TOPO_NAME_MAX)
            return hkt__fail(HKT_ERR_INVALID, "a name has 1 to %d characters", HKT_TOPO_NAME_MAX - 1);
        memcpy(node->name, value, strlen(value) + 1);
        return HKT_OK;
    case KEY_ID:
        node->id = strtoull(value, &end, 16);
        if (node->kind != HKT_TOPO_HOST || strspn(value, "0123456789abcdef") != strlen(value) || *value == '\0'
            || strlen(value) > 16)
            return hkt__fail(HKT_ERR_INVALID, "id=%.32s: of hosts, up to 16 hexadecimal digits", value);
        return HKT_OK;
    case KEY_BYTES:
        if ((node->kind != HKT_TOPO_NUMA && node->kind != HKT_TOPO_L3) || !hkt__parse_size(value, &node->bytes))
            return hkt__fail(HKT_ERR_INVALID, "bytes=%.32s: of numa and l3, for instance 32MiB", value);
        return HKT_OK;
    case KEY_LINK:
    case KEY_COUNT:
        break;
    }
    return hkt__topo_parse_link(value, link);
}

static enum hkt_status note_host(struct reader *reader, uint64_t id)
{
    if (reader->nhosts == reader->host_room) {
        const int room = reader->host_room == 0 ? 16 : reader->host_room * 2;
        struct known_host *hosts = hkt__realloc(reader->hosts, (size_t)room, sizeof *hosts);

        if (hosts == NULL)
            return hkt__fail(HKT_ERR_NOMEM, "no memory for the ids of %d hosts", room);
        reader->hosts = hosts;
        reader->host_room = room;
    }
    reader->hosts[reader->nhosts++] = (struct known_host){ id, reader->line };
    return HKT_OK;
}

static int compare_known(const void *x, const void *y)
{
    const struct known_host *a = x, *b = y;

    if (a->id != b->id)
        return a->id < b->id ? -1 : 1;
    return a->line < b->line ? -1 : 1;
}

/** Hosts of one id would be one machine to whoever compares them: the first line that repeats one is wrong. */
static enum hkt_status check_hosts(struct reader *reader, const char *name)
{
    const struct known_host *twice = NULL;

    if (reader->nhosts > 0)
        qsort(reader->hosts, (size_t)reader->nhosts, sizeof *reader->hosts, compare_known);
    for (int i = 1; i < reader->nhosts; i++)
        if (reader->hosts[i].id == reader->hosts[i - 1].id && (twice == NULL || reader->hosts[i].line < twice->line))
            twice = &reader->hosts[i];
    if (twice == NULL)
        return HKT_OK;
    return hkt__fail(HKT_ERR_INVALID, "%s:%d: id=%" PRIx64 " is that of the host of line %d: each host has its own, or none", name,
                     twice->line, twice->id, twice[-1].line);
}

static enum hkt_status read_node(struct reader *reader, int depth, char *line)
{
    struct hkt_topo_node node = { .parent = depth > 0 ? reader->open[depth - 1] : -1 };
    struct hkt_topo_link link = { 0 };
    unsigned seen = 0;
    char *word = next_word(&line), *number = next_word(&line);

    if (reader->has_links)
        return hkt__fail(HKT_ERR_INVALID, "nodes come before links");
    enum hkt_status rc = hkt_topo_kind_parse(word, &node.kind);

    if (rc < 0)
        return rc;
    if (number == NULL || !parse_number(number, &node.index))
        return hkt__fail(HKT_ERR_INVALID, "after \"%s\" comes its number, 0 to %d", word, INT32_MAX);
    while ((word = next_word(&line)) != NULL) {
        rc = take_key(word, &seen, &node, &link);
        if (rc < 0)
            return rc;
    }
    const int32_t id = hkt__topo_draft_add(reader->draft, &node);

    if (id < 0)
        return hkt__topo_draft_status(reader->draft);
    rc = node.id != 0 ? note_host(reader, node.id) : HKT_OK; /* 0: none */
    if (rc < 0)
        return rc;
    if (seen & 1u << KEY_LINK) {
        if (node.parent < 0)
            return hkt__fail(HKT_ERR_INVALID, "the net lies in nothing that a link could lead to");
        link.a = node.parent;
        link.b = id;
        hkt__topo_draft_link(reader->draft, &link);
    }
    reader->open[depth] = id;
    reader->depth = depth + 1;
    return hkt__topo_draft_status(reader->draft);
}

/** "kind7" within a host (-1: outside) to its node, -1: none. */
static int32_t find_part(const struct reader *reader, int32_t host, const char *text)
{
    for (int kind = 0; kind < HKT_TOPO_KIND_COUNT; kind++) {
        const char *name = hkt_topo_kind_name((enum hkt_topo_kind)kind);
        int32_t index;

        if (strncmp(text, name, strlen(name)) == 0 && parse_number(text + strlen(name), &index))
            return hkt__topo_draft_find(reader->draft, host, (enum hkt_topo_kind)kind, index);
    }
    return -1;
}

static enum hkt_status find_end(const struct reader *reader, char *text, int32_t *out_node)
{
    char whole[64];
    char *slash = strchr(text, '/');
    int32_t node;

    snprintf(whole, sizeof whole, "%s", text);
    if (slash != NULL)
        *slash = '\0';
    node = find_part(reader, -1, text);
    if (slash != NULL && node >= 0)
        node = hkt__topo_draft_host(reader->draft, node) == node ? find_part(reader, node, slash + 1) : -1;
    if (node < 0)
        return hkt__fail(HKT_ERR_INVALID, "\"%s\" is no node above; write host0/gpu1, or net0", whole);
    *out_node = node;
    return HKT_OK;
}

static enum hkt_status read_link(struct reader *reader, char *line)
{
    struct hkt_topo_link link = { 0 };
    char *words[4];

    for (int i = 0; i < 4; i++)
        words[i] = next_word(&line);
    if (words[2] == NULL || words[3] != NULL)
        return hkt__fail(HKT_ERR_INVALID, "a link line is: link NODE NODE KIND:BANDWIDTH:LATENCY:SOURCE");
    reader->has_links = true;
    enum hkt_status rc = find_end(reader, words[0], &link.a);

    if (rc == HKT_OK)
        rc = find_end(reader, words[1], &link.b);
    if (rc == HKT_OK)
        rc = hkt__topo_parse_link(words[2], &link);
    if (rc < 0)
        return rc;
    hkt__topo_draft_link(reader->draft, &link);
    return hkt__topo_draft_status(reader->draft);
}

static enum hkt_status read_line(struct reader *reader, char *line)
{
    const size_t indent = strspn(line, " ");

    if (line[indent] == '\0' || line[indent] == '#')
        return HKT_OK;
    for (const char *c = line; *c != '\0'; c++)
        if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
            return hkt__fail(HKT_ERR_INVALID, "byte 0x%02x: a topology is plain ASCII without tabs", (unsigned char)*c);
    if (indent == 0 && strncmp(line, "link ", 5) == 0) {
        line += 5;
        return read_link(reader, line);
    }
    if (indent % 2 != 0 || (int)(indent / 2) > reader->depth || indent / 2 >= HKT__TOPO_DEPTH_MAX)
        return hkt__fail(HKT_ERR_INVALID, "indented by %zu: two spaces more than the line of the node it lies in",
                         indent);
    return read_node(reader, (int)(indent / 2), line + indent);
}

static enum hkt_status read_all(struct reader *reader, const char *text, size_t bytes, const char *name)
{
    static const char header[] = "hocket-topology 1";
    char line[HKT__TOPO_LINE_MAX];
    int number = 0;

    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        const size_t length = (end != NULL ? (size_t)(end - text) : bytes) - at;
        enum hkt_status rc;

        reader->line = ++number;
        if (length >= sizeof line)
            return hkt__fail(HKT_ERR_INVALID, "%s:%d: a line has at most %d characters", name, number,
                             HKT__TOPO_LINE_MAX - 1);
        memcpy(line, text + at, length);
        line[length] = '\0';
        at += length + 1;
        if (memchr(line, '\0', length) != NULL)
            rc = hkt__fail(HKT_ERR_INVALID, "byte 0x00: a topology is plain ASCII");
        else if (number == 1)
            rc = strcmp(line, header) == 0 ? HKT_OK : hkt__fail(HKT_ERR_INVALID, "the first line is: %s", header);
        else
            rc = read_line(reader, line);
        if (rc < 0)
            return hkt__error_context(rc, "%s:%d", name, number);
    }
    return number > 0 ? HKT_OK : hkt__fail(HKT_ERR_INVALID, "%s:1: it is empty; the first line is: %s", name, header);
}

enum hkt_status hkt__topo_parse(const char *text, size_t bytes, const char *name, struct hkt_topo **out_topo)
{
    struct reader reader = { .draft = hkt__topo_draft_create() };
    enum hkt_status rc;

    if (reader.draft == NULL)
        return HKT_ERR_NOMEM;
    rc = read_all(&reader, text, bytes, name);
    if (rc == HKT_OK)
        rc = check_hosts(&reader, name);
    hkt__free(reader.hosts);
    if (rc < 0) {
        hkt__topo_draft_destroy(reader.draft);
        return rc;
    }
    rc = hkt__topo_draft_finish(reader.draft, out_topo);
    return rc < 0 ? hkt__error_context(rc, "%s", name) : rc;
}

/** Whole file into memory: *out_text is the caller's to free. */
static enum hkt_status read_file(FILE *file, const char *path, char **out_text, size_t *out_bytes)
{
    size_t used = 0, room = 0;
    char *text = NULL;

    while (!feof(file) && !ferror(file) && used < HKT__TOPO_FILE_MAX) {
        if (used == room) {
            room = room == 0 ? 65536 : room * 2;
            char *grown = hkt__realloc(text, room, 1);

            if (grown == NULL) {
                hkt__free(text);
                return hkt__fail(HKT_ERR_NOMEM, "%s: no memory to read it", path);
            }
            text = grown;
        }
        used += fread(text + used, 1, room - used, file);
    }
    if (ferror(file) || used >= HKT__TOPO_FILE_MAX) {
        hkt__free(text);
        return ferror(file) ? hkt__fail_sys(HKT_ERR_SYSTEM, "%s cannot be read", path)
                            : hkt__fail(HKT_ERR_INVALID, "%s: more than %d bytes", path, HKT__TOPO_FILE_MAX);
    }
    *out_text = text;
    *out_bytes = used;
    return HKT_OK;
}

enum hkt_status hkt_topo_load(const char *path, struct hkt_topo **out_topo)
{
    FILE *file = fopen(path, "re");
    char *text = NULL;
    size_t bytes = 0;

    if (file == NULL)
        return hkt__fail_sys(errno == ENOMEM ? HKT_ERR_NOMEM : HKT_ERR_INVALID, "%s cannot be opened", path);
    enum hkt_status rc = read_file(file, path, &text, &bytes);

    fclose(file);
    if (rc == HKT_OK)
        rc = hkt__topo_parse(text, bytes, path, out_topo);
    hkt__free(text);
    return rc;
}
