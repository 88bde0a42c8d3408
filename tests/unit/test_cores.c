/* What could break: a quota that is not found, of the wrong cgroup, or misread, so that ranks wait as if they had whole CPUs; a
 * machine of more CPUs than a cpu_set_t holds that counts as one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/cores.h"

#define DEPTH 12

static int kernel_cpus; /* 0: the true one's */

int __real_sched_getaffinity(pid_t tid, size_t bytes, cpu_set_t *cpus);
int __wrap_sched_getaffinity(pid_t tid, size_t bytes, cpu_set_t *cpus);

int __wrap_sched_getaffinity(pid_t tid, size_t bytes, cpu_set_t *cpus)
{
    if (kernel_cpus == 0)
        return __real_sched_getaffinity(tid, bytes, cpus);
    if (bytes * 8 < (size_t)kernel_cpus) {
        errno = EINVAL;
        return -1;
    }
    memset(cpus, 0, bytes);
    for (int i = 0; i < kernel_cpus; i++)
        CPU_SET_S(i, bytes, cpus);
    return 0;
}

static void large_machines_are_counted(void **state)
{
    static const int counts[] = {1, 1024, 1025, 1536, 8192};
    struct hkt__cpus cpus;

    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        kernel_cpus = counts[i];
        hkt__cpus_get(&cpus);
        assert_int_equal(hkt__cpus_count(&cpus), counts[i]);
    }
    kernel_cpus = 0;
    hkt__cpus_get(&cpus);
    assert_true(hkt__cpus_count(&cpus) >= 1);
}

static void quotas_bound_the_cores(void **state)
{
    static const struct {
        int cpus;
        double quota;
        int cores;
    } rows[] = {{8, 0, 8}, {8, 1, 1}, {8, 0.25, 1}, {8, 1.5, 2}, {8, 8, 8}, {8, 64, 8}, {0, 0, 1}, {2, 1.99, 2}};

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(hkt__cores_within(rows[i].cpus, rows[i].quota), rows[i].cores);
}

/** Shell text that makes a tree below the current folder; the quota found there. */
static void expect_quota(const char *make, double cpus)
{
    char root[] = "/tmp/hocket-cores-XXXXXX", command[1024];
    struct hkt__quota quota;

    assert_non_null(mkdtemp(root));
    snprintf(command, sizeof command, "cd %s && mkdir -p proc/self && %s", root, make);
    assert_int_equal(system(command), 0);
    hkt__quota_get(root, &quota);
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
    if (quota.cpus < cpus - 1e-9 || quota.cpus > cpus + 1e-9)
        fail_msg("%g, not %g: %s", quota.cpus, cpus, make);
    assert_int_equal(quota.group != 0, cpus > 0);
}

static void quotas_are_found(void **state)
{
    (void)state;
    expect_quota("true", 0);
    expect_quota("echo 0::/ > proc/self/cgroup", 0);
    expect_quota("echo 0::/a/b > proc/self/cgroup; mkdir -p sys/fs/cgroup/a/b; echo max 100000 > sys/fs/cgroup/a/b/cpu.max", 0);
    /* of several the least */
    expect_quota("echo 0::/a/b > proc/self/cgroup; mkdir -p sys/fs/cgroup/a/b; echo 300000 100000 > sys/fs/cgroup/a/b/cpu.max;"
                 "echo 50000 20000 > sys/fs/cgroup/a/cpu.max", 2.5);
    /* a container's path that is not there: the root's */
    expect_quota("echo 0::/../x > proc/self/cgroup; mkdir -p sys/fs/cgroup; echo 150000 100000 > sys/fs/cgroup/cpu.max", 1.5);
    expect_quota("printf '4:memory:/m\\n1:cpu,cpuacct:/docker/x\\n0::/\\n' > proc/self/cgroup; mkdir -p sys/fs/cgroup/cpu,cpuacct;"
                 "echo 50000 > sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us;"
                 "echo 100000 > sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", 0.5);
    expect_quota("echo 1:cpu:/x > proc/self/cgroup; mkdir -p sys/fs/cgroup/cpu/x; echo -1 > sys/fs/cgroup/cpu/x/cpu.cfs_quota_us;"
                 "echo 100000 > sys/fs/cgroup/cpu/x/cpu.cfs_period_us", 0);
    expect_quota("echo 1:cpuset:/x > proc/self/cgroup; mkdir -p sys/fs/cgroup/cpuset; echo 1 > sys/fs/cgroup/cpuset/cpu.cfs_quota_us;"
                 "echo 1 > sys/fs/cgroup/cpuset/cpu.cfs_period_us", 0);
    expect_quota("echo 0::/ > proc/self/cgroup; mkdir -p sys/fs/cgroup; echo no number > sys/fs/cgroup/cpu.max", 0);
    expect_quota("echo 0::/ > proc/self/cgroup; mkdir -p sys/fs/cgroup; echo 100000 > sys/fs/cgroup/cpu.max", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_machines_are_counted),
        cmocka_unit_test(quotas_bound_the_cores),
        cmocka_unit_test(quotas_are_found),
    };

    return cmocka_run_group_tests_name("cores", tests, NULL, NULL);
}
