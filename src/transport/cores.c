/* See cores.h. Quotas are read where both versions of cgroups keep them: cpu.max, or cpu.cfs_quota_us and cpu.cfs_period_us. In
 * a container the path that /proc/self/cgroup names need not be there; then the limit lies in the folder that is its root. */
#include "transport/cores.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void hkt__cpus_get(struct hkt__cpus *out_cpus)
{
    memset(out_cpus, 0, sizeof *out_cpus);
    if (sched_getaffinity(0, sizeof *out_cpus, out_cpus->part) != 0)
        memset(out_cpus, 0, sizeof *out_cpus);
}

int hkt__cpus_count(const struct hkt__cpus *cpus)
{
    int count = 0;

    for (int i = 0; i < HKT__CPUS_PARTS; i++)
        count += CPU_COUNT(&cpus->part[i]);
    return count;
}

/** The first line of a file below a folder. */
static bool read_line(const char *folder, const char *name, char *out_text, size_t bytes)
{
    char path[1024];
    FILE *file = (size_t)snprintf(path, sizeof path, "%s/%s", folder, name) < sizeof path ? fopen(path, "re") : NULL;
    const bool has = file != NULL && fgets(out_text, (int)bytes, file) != NULL;

    if (file != NULL)
        fclose(file);
    return has;
}

/** What one cgroup allows; 0: no limit, or none that is understood. */
static double read_quota(const char *folder, bool is_v2)
{
    char text[64], *end;
    double period_us;

    if (!read_line(folder, is_v2 ? "cpu.max" : "cpu.cfs_quota_us", text, sizeof text))
        return 0;
    const double quota_us = strtod(text, &end); /* "max", and -1 in version 1: no limit */

    if (end == text || quota_us <= 0)
        return 0;
    if (!is_v2 && !read_line(folder, "cpu.cfs_period_us", text, sizeof text))
        return 0;
    period_us = strtod(is_v2 ? end : text, NULL);
    return period_us > 0 ? quota_us / period_us : 0;
}

/** From `path` below a mounted hierarchy up to its root. */
static void look_up(const char *mount, const char *path, bool is_v2, struct hkt__quota *quota)
{
    char folder[768];
    const int base = (int)strlen(mount);

    if (snprintf(folder, sizeof folder, "%s%s", mount, path) >= (int)sizeof folder)
        return;
    for (;;) {
        const double cpus = read_quota(folder, is_v2);
        struct stat info;
        char *slash = strrchr(folder, '/');

        if (cpus > 0 && (quota->cpus <= 0 || cpus < quota->cpus) && stat(folder, &info) == 0)
            *quota = (struct hkt__quota){.cpus = cpus, .group = (uint64_t)info.st_ino};
        if (slash == NULL || slash - folder < base)
            return;
        *slash = '\0';
    }
}

/** Is it among the comma-separated controllers of a hierarchy of version 1? */
static bool has_cpu(const char *controllers)
{
    for (; *controllers != '\0'; controllers += strcspn(controllers, ","), controllers += *controllers == ',')
        if (strcspn(controllers, ",") == 3 && strncmp(controllers, "cpu", 3) == 0)
            return true;
    return false;
}

void hkt__quota_get(const char *root, struct hkt__quota *out_quota)
{
    char path[1024], mount[256], line[640];
    FILE *file = (size_t)snprintf(path, sizeof path, "%s/proc/self/cgroup", root) < sizeof path ? fopen(path, "re") : NULL;

    *out_quota = (struct hkt__quota){0};
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        /* "0::/path" of version 2, "4:cpu,cpuacct:/path" of version 1 */
        char *controllers = strchr(line, ':'), *at = controllers != NULL ? strchr(controllers + 1, ':') : NULL;

        if (at == NULL)
            continue;
        *at++ = '\0';
        at[strcspn(at, "\n")] = '\0';
        controllers++;
        if (*controllers != '\0' && !has_cpu(controllers))
            continue;
        if ((size_t)snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%s", root, *controllers != '\0' ? "/" : "", controllers) <
            sizeof mount)
            look_up(mount, strcmp(at, "/") == 0 ? "" : at, *controllers == '\0', out_quota);
    }
    if (file != NULL)
        fclose(file);
}

int hkt__cores_within(int cpus, double quota)
{
    if (quota > 0 && quota < cpus)
        cpus = (int)quota + ((int)quota < quota);
    return cpus > 0 ? cpus : 1;
}

int hkt__machine_cores(void)
{
    struct hkt__cpus cpus;
    struct hkt__quota quota;

    hkt__cpus_get(&cpus);
    hkt__quota_get("", &quota);
    return hkt__cores_within(hkt__cpus_count(&cpus), quota.cpus);
}
