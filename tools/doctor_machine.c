/* `hocket doctor`: limits of this process and of its cgroup, and /dev/shm. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "doctor.h"
#include "hocket/info.h"

#define MIB ((unsigned long long)1 << 20)

static void bytes_text(unsigned long long bytes, char *out, size_t size)
{
    if (bytes >= 10240 * MIB)
        snprintf(out, size, "%llu GiB", bytes >> 30);
    else if (bytes >= MIB)
        snprintf(out, size, "%llu MiB", bytes >> 20);
    else
        snprintf(out, size, "%llu KiB", bytes >> 10);
}

/* RDMA registers (pins) every buffer that the network card reads or writes; nothing else here locks memory. */
static void look_at_memlock(struct doctor_report *report, bool has_rdma)
{
    struct rlimit limit;
    char text[32];

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        return;
    bytes_text(limit.rlim_cur, text, sizeof text);
    if (limit.rlim_cur == RLIM_INFINITY)
        hkt_doctor_add(report, "memlock", DOCTOR_OK, "", "unlimited");
    else if (!has_rdma)
        hkt_doctor_add(report, "memlock", DOCTOR_OK, "", "%s; of use for RDMA alone, which is not here", text);
    else
        hkt_doctor_add(report, "memlock", limit.rlim_cur < 64 * MIB ? DOCTOR_FAIL : DOCTOR_WARN,
                       "ulimit -l unlimited; for good: \"* - memlock unlimited\" in /etc/security/limits.conf, "
                       "LimitMEMLOCK=infinity for services, --ulimit memlock=-1 for containers", "%s may be registered "
                       "with RDMA devices", text);
}

static void look_at_files(struct doctor_report *report)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    hkt_doctor_add(report, "open files", limit.rlim_cur < 256 ? DOCTOR_FAIL : limit.rlim_cur < 1024 ? DOCTOR_WARN : DOCTOR_OK,
                   "ulimit -n 65536, or \"* - nofile 65536\" in /etc/security/limits.conf: sockets to peers take two or more "
                   "per peer and communicator", "%llu", (unsigned long long)limit.rlim_cur);
}

static void look_at_shm(struct doctor_report *report, const char *root)
{
    const char *mend = "mount -t tmpfs tmpfs /dev/shm, or --shm-size=1g for containers";
    struct statvfs fs;
    char path[512], text[32];

    snprintf(path, sizeof path, "%s/dev/shm", root);
    if (statvfs(path, &fs) != 0) {
        hkt_doctor_add(report, "/dev/shm", DOCTOR_WARN, mend, "absent: hocket does not need it, UCX and MPI do");
        return;
    }
    bytes_text((unsigned long long)fs.f_blocks * fs.f_frsize, text, sizeof text);
    hkt_doctor_add(report, "/dev/shm", (unsigned long long)fs.f_blocks * fs.f_frsize < 256 * MIB ? DOCTOR_WARN : DOCTOR_OK,
                   mend, "%s: hocket does not need it, UCX and MPI do", text);
}

void hkt_doctor_limits(struct doctor_report *report, const char *root)
{
    look_at_memlock(report, hkt_doctor_has_rdma(root));
    look_at_files(report);
    look_at_shm(report, root);
}

/** The smallest limit named `file` from the cgroup of this process up to the root; 0: none. */
static unsigned long long cgroup_least(const char *root, char *path, const char *file)
{
    unsigned long long least = 0;
    char name[640], text[64];

    for (;;) {
        snprintf(name, sizeof name, "/sys/fs/cgroup%s/%s", path, file);
        if (hkt_doctor_read(root, name, text, sizeof text) && strncmp(text, "max", 3) != 0) {
            const unsigned long long value = strtoull(text, NULL, 10);

            least = least == 0 || value < least ? value : least;
        }
        char *slash = strrchr(path, '/');

        if (slash == NULL)
            return least;
        *slash = '\0';
    }
}

void hkt_doctor_cgroup(struct doctor_report *report, const char *root)
{
    char line[512], path[512], text[32];
    const bool has_cgroup = hkt_doctor_read(root, "/proc/self/cgroup", line, sizeof line) && strncmp(line, "0::", 3) == 0;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const double cpus = hkt_cpu_quota(root);

    if (cpus > 0)
        hkt_doctor_add(report, "cgroup cpu", cpus < (double)cores ? DOCTOR_WARN : DOCTOR_OK,
                       "start no more ranks than that, or raise cpu.max (docker run --cpus; version 1: cpu.cfs_quota_us): ranks "
                       "beyond it are stopped for whole periods", "%.2f cores of %ld", cpus, cores);
    snprintf(path, sizeof path, "%s", has_cgroup ? line + 3 : "");
    const unsigned long long memory = cgroup_least(root, path, "memory.max");

    bytes_text(memory, text, sizeof text);
    if (memory > 0)
        hkt_doctor_add(report, "cgroup memory", memory < 1024 * MIB ? DOCTOR_WARN : DOCTOR_OK,
                       "raise memory.max (docker run --memory): shared segments count too", "%s", text);
    snprintf(path, sizeof path, "%s", has_cgroup ? line + 3 : "");
    const unsigned long long pids = cgroup_least(root, path, "pids.max");

    if (pids > 0)
        hkt_doctor_add(report, "cgroup pids", pids < 256 ? DOCTOR_WARN : DOCTOR_OK,
                       "raise pids.max (docker run --pids-limit): a rank has several threads", "%llu processes and threads",
                       pids);
    if (cpus <= 0 && memory == 0 && pids == 0)
        hkt_doctor_add(report, "cgroup", DOCTOR_OK, "", "no limits");
}
