/* Small things every subcommand needs: messages and numbers. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hocket/info.h"
#include "tools.h"

void hkt_tool_say(const char *command, const char *format, ...)
{
    char text[2048];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "hocket%s%s: %s\n", command != NULL ? " " : "", command != NULL ? command : "", text);
}

int hkt_tool_usage(const char *command, const char *format, ...)
{
    char text[2048];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "hocket %s: %s (see hocket %s --help)\n", command, text, command);
    return TOOL_USAGE;
}

bool hkt_tool_is_first(void)
{
    static const char *const names[] = { "HOCKET_RANK", "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (getenv(names[i]) != NULL)
            return strcmp(getenv(names[i]), "0") == 0;
    return true;
}

bool hkt_tool_parse_int(const char *text, long min, long max, long *out_value)
{
    char *end;

    errno = 0;
    const long value = strtol(text, &end, 10);

    if (end == text || *end != '\0' || errno != 0 || value < min || value > max || text[0] == ' ' || text[0] == '+')
        return false;
    *out_value = value;
    return true;
}

int hkt_tool_print_json(const char *command, struct cJSON *root)
{
    char *text = cJSON_Print(root);

    cJSON_Delete(root);
    if (text == NULL) {
        hkt_tool_say(command, "no memory for the JSON text");
        return TOOL_FAILED;
    }
    puts(text);
    cJSON_free(text);
    return TOOL_OK;
}

bool hkt_tool_parse_bytes(const char *text, size_t *out_bytes)
{
    char *end;
    const double value = strtod(text, &end);
    const char *suffixes = "KMGT", *suffix = *end != '\0' ? strchr(suffixes, *end & ~0x20) : NULL;
    double scale = 1;

    if (end == text || !(value >= 0)) /* NaN too */
        return false;
    if (suffix != NULL) {
        for (const char *s = suffixes; s <= suffix; s++)
            scale *= 1024;
        end++;
    }
    if (*end == 'B' || *end == 'b')
        end++;
    if (*end != '\0' || value * scale > 1e15)
        return false;
    *out_bytes = (size_t)(value * scale);
    return true;
}

int hkt_tool_cpus(void)
{
    return hkt_cores();
}

bool hkt_tool_in_place_counts(enum hkt_coll coll)
{
    return coll == HKT_ALL_REDUCE || coll == HKT_REDUCE_SCATTER || coll == HKT_ALL_GATHER || coll == HKT_ALL_TO_ALL;
}

int hkt_tool_count(const struct hkt_topo *topo, enum hkt_topo_kind kind)
{
    const struct hkt_topo_node *node;
    int count = 0;

    for (int i = 0; (node = hkt_topo_node_get(topo, i)) != NULL; i++)
        count += node->kind == kind;
    return count;
}
