/* The CPUs of this machine as /sys shows them: the source for builds without hwloc. Every part is taken once, at the first
 * of its CPUs that is visited; only CPUs that matter are, since a large machine has thousands of these files. What a system does not show (packages and caches in some virtual machines) is left out. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "topology/sysfs.h"

#define PATH_ROOM 512

/** The first line of ROOT/FOLDERnumber/NAME, without its newline; false: there is none. number -1: left out. */
static bool read_line(const char *root, const char *folder, int number, const char *name, char *out_text, size_t bytes)
{
    char path[PATH_ROOM], digits[16] = "";

    if (number >= 0)
        snprintf(digits, sizeof digits, "%d", number);
    if (snprintf(path, sizeof path, "%s/%s%s/%s", root, folder, digits, name) >= (int)sizeof path)
        return false;
    FILE *file = fopen(path, "re");

    if (file == NULL)
        return false;
    const bool ok = fgets(out_text, (int)bytes, file) != NULL;

    fclose(file);
    if (ok)
        out_text[strcspn(out_text, "\n")] = '\0';
    return ok;
}

bool hkt__parse_cpu_list(const char *text, cpu_set_t *out_cpus)
{
    CPU_ZERO(out_cpus);
    while (*text != '\0') {
        char *end;

        if (!isdigit((unsigned char)*text))
            return false;
        const unsigned long first = strtoul(text, &end, 10);
        unsigned long last = first;

        if (*end == '-') {
            if (!isdigit((unsigned char)end[1]))
                return false;
            last = strtoul(end + 1, &end, 10);
        }
        if (last < first || (*end != ',' && *end != '\0') || (*end == ',' && end[1] == '\0'))
            return false;
        for (unsigned long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++)
            CPU_SET(cpu, out_cpus);
        text = *end == ',' ? end + 1 : end;
    }
    return true;
}

static bool read_set(const char *root, const char *folder, int number, const char *name, cpu_set_t *out_cpus)
{
    char text[4096];

    return read_line(root, folder, number, name, text, sizeof text) && hkt__parse_cpu_list(text, out_cpus);
}

static long read_long(const char *root, const char *folder, int number, const char *name)
{
    char text[64], *end;

    if (!read_line(root, folder, number, name, text, sizeof text))
        return -1;
    const long value = strtol(text, &end, 10);

    return end != text && *end == '\0' ? value : -1;
}

struct reading {
    const char *root;
    cpu_set_t visited; /* CPUs whose files are read */
    struct hkt__topo_items *items;
};

/** Add a part when `cpu` is the first visited of its CPUs. */
static enum hkt_status add_once(const struct reading *reading, const struct hkt__topo_item *item, int cpu)
{
    for (int lower = 0; lower < cpu; lower++)
        if (CPU_ISSET(lower, &item->cpus) && CPU_ISSET(lower, &reading->visited))
            return HKT_OK;
    return CPU_ISSET(cpu, &item->cpus) ? hkt__topo_items_add(reading->items, item) : HKT_OK;
}

static enum hkt_status add_l3(const struct reading *reading, int cpu)
{
    const char *root = reading->root;
    struct hkt__topo_item item = { .kind = HKT_TOPO_L3, .index = -1, .inside = -1 };
    char folder[64], size[32], *unit;

    for (int i = 0; i < 8; i++) {
        snprintf(folder, sizeof folder, "devices/system/cpu/cpu%d/cache/index", cpu);
        if (read_long(root, folder, i, "level") != 3 || !read_set(root, folder, i, "shared_cpu_list", &item.cpus))
            continue;
        if (read_line(root, folder, i, "size", size, sizeof size)) {
            const unsigned long number = strtoul(size, &unit, 10);

            item.bytes = strcmp(unit, "K") == 0   ? (uint64_t)number << 10
                         : strcmp(unit, "M") == 0 ? (uint64_t)number << 20
                                                  : 0;
        }
        return add_once(reading, &item, cpu);
    }
    return HKT_OK;
}

static enum hkt_status add_cpu(const struct reading *reading, int cpu)
{
    const char *root = reading->root;
    static const char folder[] = "devices/system/cpu/cpu";
    struct hkt__topo_item pu = { .kind = HKT_TOPO_PU, .index = cpu, .inside = -1 };
    struct hkt__topo_item core = { .kind = HKT_TOPO_CORE, .index = -1, .inside = -1 };
    struct hkt__topo_item package = { .kind = HKT_TOPO_PACKAGE, .index = -1, .inside = -1 };
    const long number = read_long(root, folder, cpu, "topology/physical_package_id");

    CPU_SET(cpu, &pu.cpus);
    enum hkt_status rc = hkt__topo_items_add(reading->items, &pu);

    /* The second name is that of kernels before 5.2; without either, each CPU is a core. */
    if (!read_set(root, folder, cpu, "topology/core_cpus_list", &core.cpus)
        && !read_set(root, folder, cpu, "topology/thread_siblings_list", &core.cpus))
        core.cpus = pu.cpus;
    if (rc == HKT_OK)
        rc = add_once(reading, &core, cpu);
    if (rc == HKT_OK)
        rc = add_l3(reading, cpu);
    if (rc == HKT_OK
        && (read_set(root, folder, cpu, "topology/package_cpus_list", &package.cpus)
            || read_set(root, folder, cpu, "topology/core_siblings_list", &package.cpus))) {
        package.index = number >= 0 && number <= INT32_MAX ? (int32_t)number : -1;
        rc = add_once(reading, &package, cpu);
    }
    return rc;
}

/** "Node 0 MemTotal:  6776832 kB" of the node's meminfo, in bytes. */
static uint64_t node_bytes(const char *root, int node)
{
    char text[128];
    const char *number;

    if (!read_line(root, "devices/system/node/node", node, "meminfo", text, sizeof text))
        return 0;
    number = strstr(text, "MemTotal:");
    return number != NULL ? (uint64_t)strtoull(number + 9, NULL, 10) << 10 : 0;
}

static enum hkt_status add_numa(const char *root, struct hkt__topo_items *items)
{
    cpu_set_t nodes;
    enum hkt_status rc = HKT_OK;

    if (!read_set(root, "devices/system/node", -1, "online", &nodes))
        return HKT_OK; /* a kernel without NUMA */
    for (int node = 0; node < CPU_SETSIZE && rc == HKT_OK; node++) {
        struct hkt__topo_item item = { .kind = HKT_TOPO_NUMA, .index = node, .inside = -1 };

        if (!CPU_ISSET(node, &nodes) || !read_set(root, "devices/system/node/node", node, "cpulist", &item.cpus))
            continue;
        item.bytes = node_bytes(root, node);
        rc = hkt__topo_items_add(items, &item);
    }
    return rc;
}

enum hkt_status hkt__topo_sysfs_items(const char *root, const cpu_set_t *allowed, struct hkt__topo_items *items)
{
    struct reading reading = { .root = root, .items = items };
    cpu_set_t online;
    enum hkt_status rc = HKT_OK;

    if (!read_set(root, "devices/system/cpu", -1, "online", &online) || CPU_COUNT(&online) == 0)
        return hkt__fail(HKT_ERR_SYSTEM,
                         "%s/devices/system/cpu/online cannot be read: mount /sys, or describe this machine in a "
                         "file",
                         root);
    CPU_AND(&reading.visited, &online, allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE && rc == HKT_OK; cpu++)
        if (CPU_ISSET(cpu, &reading.visited))
            rc = add_cpu(&reading, cpu);
    return rc == HKT_OK ? add_numa(root, items) : rc;
}

uint64_t hkt__topo_sysfs_nic_rate(const char *root, const char *name)
{
    char folder[160], text[64], *unit;
    uint64_t rate = 0;

    snprintf(folder, sizeof folder, "class/net/%s", name);
    const long megabits = read_long(root, folder, -1, "speed");

    if (megabits > 0)
        return (uint64_t)megabits * 1000000 / 8;
    /* "100 Gb/sec (4X EDR)" of each port. */
    snprintf(folder, sizeof folder, "class/infiniband/%s/ports/", name);
    for (int port = 1; port <= 8; port++) {
        if (!read_line(root, folder, port, "rate", text, sizeof text))
            break;
        const double gigabits = strtod(text, &unit);

        if (gigabits > 0 && gigabits < 1e5 && strncmp(unit, " Gb/sec", 7) == 0)
            rate += (uint64_t)(gigabits * 1e9 / 8);
    }
    return rate;
}
