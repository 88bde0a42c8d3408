/* What a container or a hardened kernel may take from ranks that share a host, and what it costs: asked of the system, and
 * said in the words of `hocket info`. The transports do not rely on it: they try (hkt__mem_try_copy). */
#include "transport/machine.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/error.h"

#define CAP_SYS_PTRACE_BIT 19     /* include/uapi/linux/capability.h */
#define COST "large messages are then copied twice, through shared memory"

/** The first number of a file of /proc in a base, after `label`, -1 if there is none. */
static long long read_number(const char *path, const char *label, int base)
{
    char line[256];
    long long number = -1;
    FILE *file = fopen(path, "re");

    if (file == NULL)
        return -1;
    while (number < 0 && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, label, strlen(label)) == 0)
            number = (long long)strtoull(line + strlen(label), NULL, base);
    fclose(file);
    return number;
}

static bool may_trace(void)
{
    const long long effective = read_number("/proc/self/status", "CapEff:", 16);

    return effective >= 0 && (effective >> CAP_SYS_PTRACE_BIT & 1) != 0;
}

enum hkt_status hkt__machine_copies(const struct hkt__settings *settings)
{
    uint64_t from = 1, to = 0;
    const struct iovec local = {&to, sizeof to}, remote = {&from, sizeof from};

    if (!settings->cma)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "turned off by HOCKET_CMA=0: " COST);
    /* A process may always copy from itself, unless the system call is refused as such. */
    if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) < 0)
        return hkt__fail_sys(HKT_ERR_UNSUPPORTED, "process_vm_readv is refused, by a container's seccomp filter as a rule "
                             "(docker run --cap-add SYS_PTRACE allows it): " COST);
    const long long scope = read_number("/proc/sys/kernel/yama/ptrace_scope", "", 10);

    if (scope > 0 && (scope > 2 || !may_trace()))
        return hkt__fail(HKT_ERR_UNSUPPORTED, "kernel.yama.ptrace_scope is %lld: ranks may not copy from each other (allow it "
                         "with sysctl kernel.yama.ptrace_scope=0): " COST, scope);
    return HKT_OK;
}

bool hkt__machine_shm_dir(char *out_text, size_t bytes)
{
    static const char why[] = "shared memory is anonymous (memfd)";
    struct statvfs fs;

    if (statvfs("/dev/shm", &fs) != 0) {
        snprintf(out_text, bytes, "absent, and not needed: %s", why);
        return false;
    }
    snprintf(out_text, bytes, "%llu MiB, of which none is used: %s",
             (unsigned long long)fs.f_blocks * fs.f_frsize >> 20, why);
    return true;
}

bool hkt__machine_has_rdma(void)
{
    DIR *dir = opendir("/sys/class/infiniband");
    const struct dirent *entry;
    bool has = false;

    while (dir != NULL && !has && (entry = readdir(dir)) != NULL)
        has = entry->d_name[0] != '.';
    if (dir != NULL)
        closedir(dir);
    return has;
}
