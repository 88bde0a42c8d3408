/* `hocket info`: the version, what this machine offers and why the rest is absent, and every setting. */
#include <cjson/cJSON.h>
#include <getopt.h>
#include <string.h>

#include "hocket/hocket.h"
#include "tools.h"

static const char help_text[] =
    "usage: hocket info [--settings] [--json]\n\n"
    "Says what is here: version, transports, what the machine allows, CPU features, modules; and why what is absent\n"
    "is absent, and what that costs.\n\n"
    "  -s, --settings  the environment variables hocket reads: value in force, default, range, meaning\n"
    "  -j, --json      everything (settings included) as JSON\n"
    "  -h, --help      this text\n";

static void version_text(char *out, size_t bytes)
{
    const int version = hkt_version();

    snprintf(out, bytes, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

/* What hkt_topo_detect has to read this machine with. */
static const char *topology_source(bool *out_hwloc, char *text, size_t bytes)
{
    const char *hwloc = hkt_topo_hwloc_version();

    *out_hwloc = hwloc[0] != '\0';
    if (*out_hwloc)
        snprintf(text, bytes, "%s: packages, NUMA nodes, L3 caches, cores, GPUs, NICs", hwloc);
    else
        snprintf(text, bytes,
                 "built without: GPUs and NICs are not seen, the rest is read from /sys; install libhwloc-dev and "
                 "build again");
    return text;
}

/* Which parts this process may use. */
static void print_topology(void)
{
    int counts[HKT_TOPO_KIND_COUNT] = { 0 };
    struct hkt_topo *topo;
    char text[160];
    bool hwloc;

    topology_source(&hwloc, text, sizeof text);
    printf("\ntopology\n  %-8s %-4s %s\n", "hwloc", hwloc ? "yes" : "no", text);
    if (hkt_topo_detect(&topo) != HKT_OK) {
        printf("  machine  no   %s\n", hkt_last_error());
        return;
    }
    for (int i = 0; i < hkt_topo_node_count(topo); i++)
        counts[hkt_topo_node_get(topo, i)->kind]++;
    fputs("  machine  yes ", stdout);
    for (int kind = HKT_TOPO_PACKAGE; kind < HKT_TOPO_KIND_COUNT; kind++)
        if (counts[kind] > 0)
            printf(" %d %s", counts[kind], hkt_topo_kind_name((enum hkt_topo_kind)kind));
    puts(" that this process may use; `hocket topo` shows them");
    hkt_topo_destroy(topo);
}

static void print_features(void)
{
    struct hkt_feature feature;
    char version[32], kind[32] = "";

    version_text(version, sizeof version);
    printf("hocket %s\n", version);
    for (int i = 0; hkt_feature_get(i, &feature) == HKT_OK; i++) {
        if (strcmp(kind, feature.kind) != 0)
            printf("\n%s\n", feature.kind);
        snprintf(kind, sizeof kind, "%s", feature.kind);
        printf("  %-8s %-4s %s\n", feature.name, feature.present ? "yes" : "no", feature.reason);
    }
    print_topology();
    puts("\n`hocket info --settings` lists the environment variables.");
}

static void print_settings(void)
{
    struct hkt_setting setting;

    puts("Environment variables; * marks those set now.\n");
    for (int i = 0; hkt_setting_get(i, &setting) == HKT_OK; i++) {
        printf("%c %-24s %s\n", setting.is_set ? '*' : ' ', setting.name,
               setting.value[0] != '\0' ? setting.value : "-");
        printf("    %s (%s %s; default %s)\n", setting.help, setting.type, setting.range,
               setting.fallback[0] != '\0' ? setting.fallback : "-");
    }
}

static cJSON *hwloc_json(void)
{
    cJSON *row = cJSON_CreateObject();
    char text[160];
    bool hwloc;

    cJSON_AddStringToObject(row, "kind", "topology");
    cJSON_AddStringToObject(row, "name", "hwloc");
    cJSON_AddStringToObject(row, "reason", topology_source(&hwloc, text, sizeof text));
    cJSON_AddBoolToObject(row, "present", hwloc);
    return row;
}

static cJSON *features_json(void)
{
    struct hkt_feature feature;
    cJSON *list = cJSON_CreateArray();

    for (int i = 0; hkt_feature_get(i, &feature) == HKT_OK; i++) {
        cJSON *row = cJSON_CreateObject();

        cJSON_AddStringToObject(row, "kind", feature.kind);
        cJSON_AddStringToObject(row, "name", feature.name);
        cJSON_AddBoolToObject(row, "present", feature.present);
        cJSON_AddStringToObject(row, "reason", feature.reason);
        cJSON_AddItemToArray(list, row);
    }
    cJSON_AddItemToArray(list, hwloc_json());
    return list;
}

static cJSON *settings_json(void)
{
    struct hkt_setting setting;
    cJSON *list = cJSON_CreateArray();

    for (int i = 0; hkt_setting_get(i, &setting) == HKT_OK; i++) {
        cJSON *row = cJSON_CreateObject();

        cJSON_AddStringToObject(row, "name", setting.name);
        cJSON_AddStringToObject(row, "type", setting.type);
        cJSON_AddStringToObject(row, "range", setting.range);
        cJSON_AddStringToObject(row, "default", setting.fallback);
        cJSON_AddStringToObject(row, "value", setting.value);
        cJSON_AddBoolToObject(row, "set", setting.is_set);
        cJSON_AddStringToObject(row, "help", setting.help);
        cJSON_AddItemToArray(list, row);
    }
    return list;
}

static int print_json(void)
{
    char version[32];
    cJSON *root = cJSON_CreateObject();

    version_text(version, sizeof version);
    cJSON_AddStringToObject(root, "version", version);
    cJSON_AddItemToObject(root, "features", features_json());
    cJSON_AddItemToObject(root, "settings", settings_json());
    return hkt_tool_print_json("info", root);
}

int hkt_tool_info(int argc, char **argv)
{
    static const struct option options[] = {
        { "settings", no_argument, NULL, 's' },
        { "json", no_argument, NULL, 'j' },
        { "help", no_argument, NULL, 'h' },
        { NULL, 0, NULL, 0 },
    };
    bool settings = false, json = false;

    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, "sjh", options, NULL)) != -1;) {
        switch (c) {
        case 's':
            settings = true;
            break;
        case 'j':
            json = true;
            break;
        case 'h':
            fputs(help_text, stdout);
            return TOOL_OK;
        default:
            return hkt_tool_usage("info", "there is no option %s", argv[optind - 1]);
        }
    }
    if (optind < argc)
        return hkt_tool_usage("info", "\"%s\" is one argument too many", argv[optind]);
    if (json)
        return print_json();
    if (settings)
        print_settings();
    else
        print_features();
    return TOOL_OK;
}
