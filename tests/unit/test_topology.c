/* What could break: equal machines with unequal graphs (order of discovery, hwloc against /sys), a core listed that this
 * process may not use, a part lost because its CPU set is odd (L3 around NUMA nodes, memory without CPUs), routes through the
 * wrong links, ranks dealt twice to one core, a place that is too narrow. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/error.h"
#include "core/mem.h"
#include "topology/detect.h"
#include "topology/order.h"
#include "topology/sysfs.h"
#include "topology/text.h"

static struct hkt_topo *machine(const char *line)
{
    struct hkt_topo *topo = NULL;

    if (hkt_topo_synthetic(line, &topo) != HKT_OK)
        fail_msg("%s: %s", line, hkt_last_error());
    return topo;
}

/** "host0/core3" style to node. */
static int node(const struct hkt_topo *topo, int host, enum hkt_topo_kind kind, int index)
{
    const int found = hkt__topo_find(topo, hkt__topo_find(topo, 0, HKT_TOPO_HOST, host), kind, index);

    assert_true(found >= 0);
    return found;
}

/** The kinds and numbers of a graph: "net0(host0(numa0(core0 core1)))". */
static void shape(const struct hkt_topo *topo, char *out, size_t bytes)
{
    int32_t ends[HKT__TOPO_DEPTH_MAX];
    size_t used = 0;
    int depth = 0;

    for (int32_t i = 0; i < topo->nnodes; i++) {
        const struct hkt_topo_node *it = &topo->nodes[i];
        const bool holds = it->end > i + 1;

        used += (size_t)snprintf(out + used, bytes - used, "%s%d%s", hkt_topo_kind_name(it->kind), it->index,
                                 holds ? "(" : "");
        if (holds) {
            ends[depth++] = it->end;
            continue;
        }
        for (; depth > 0 && ends[depth - 1] == i + 1; depth--)
            used += (size_t)snprintf(out + used, bytes - used, ")");
        used += (size_t)snprintf(out + used, bytes - used, "%s", depth > 0 ? " " : "");
        assert_true(used + 64 < bytes);
    }
}

static void assert_shape(const struct hkt_topo *topo, const char *want)
{
    char text[8192];

    shape(topo, text, sizeof text);
    assert_string_equal(text, want);
}

/* Drafts. */

static int32_t add(struct hkt__topo_draft *draft, int32_t parent, enum hkt_topo_kind kind, int32_t index)
{
    const struct hkt_topo_node new = { .parent = parent, .kind = kind, .index = index };

    return hkt__topo_draft_add(draft, &new);
}

static void order_of_discovery_does_not_matter(void **state)
{
    struct hkt__topo_draft *x = hkt__topo_draft_create(), *y = hkt__topo_draft_create();
    struct hkt_topo *a, *b;
    int32_t host, package;

    (void)state;
    host = add(x, add(x, -1, HKT_TOPO_NET, 0), HKT_TOPO_HOST, 0);
    package = add(x, host, HKT_TOPO_PACKAGE, 1);
    add(x, add(x, host, HKT_TOPO_PACKAGE, 0), HKT_TOPO_CORE, 0);
    add(x, package, HKT_TOPO_CORE, 2);
    add(x, package, HKT_TOPO_CORE, 1);
    add(x, host, HKT_TOPO_NIC, 0);
    host = add(y, add(y, -1, HKT_TOPO_NET, 0), HKT_TOPO_HOST, 0);
    add(y, host, HKT_TOPO_NIC, 0);
    package = add(y, host, HKT_TOPO_PACKAGE, 0);
    add(y, package, HKT_TOPO_CORE, 0);
    package = add(y, host, HKT_TOPO_PACKAGE, 1);
    add(y, package, HKT_TOPO_CORE, 1);
    add(y, package, HKT_TOPO_CORE, 2);
    hkt__topo_draft_assume(x);
    hkt__topo_draft_assume(y);
    assert_int_equal(hkt__topo_draft_finish(x, &a), HKT_OK);
    assert_int_equal(hkt__topo_draft_finish(y, &b), HKT_OK);
    assert_shape(a, "net0(host0(package0(core0) package1(core1 core2) nic0))");
    assert_true(hkt__topo_equal(a, b));
    for (int32_t i = 1; i < a->nnodes; i++) {
        assert_true(a->nodes[i].parent < i && a->nodes[a->nodes[i].parent].end >= a->nodes[i].end);
        assert_int_equal(a->links[a->nodes[i].uplink].a, a->nodes[i].parent);
        assert_int_equal(a->links[a->nodes[i].uplink].b, i);
    }
    hkt_topo_destroy(a);
    hkt_topo_destroy(b);
}

static void assert_refused(struct hkt__topo_draft *draft, const char *why)
{
    struct hkt_topo *topo = NULL;

    assert_int_equal(hkt__topo_draft_finish(draft, &topo), HKT_ERR_INVALID);
    assert_null(topo);
    if (strstr(hkt_last_error(), why) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", hkt_last_error(), why);
}

static void drafts_refuse_what_is_no_machine(void **state)
{
    struct hkt__topo_draft *draft = hkt__topo_draft_create();
    struct hkt_topo_link link = { .a = 0, .b = 1, .kind = HKT_TOPO_NETWORK };

    (void)state;
    assert_refused(draft, "without nodes");
    draft = hkt__topo_draft_create();
    assert_int_equal(add(draft, -1, HKT_TOPO_HOST, 0), -1);
    assert_int_equal(add(draft, -1, HKT_TOPO_NET, 0), -1); /* the first failure sticks */
    assert_refused(draft, "host 0 lies in nothing");
    draft = hkt__topo_draft_create();
    add(draft, add(draft, add(draft, -1, HKT_TOPO_NET, 0), HKT_TOPO_HOST, 0), HKT_TOPO_RACK, 0);
    assert_refused(draft, "a rack cannot lie in a host");
    draft = hkt__topo_draft_create();
    const int32_t host = add(draft, add(draft, -1, HKT_TOPO_NET, 0), HKT_TOPO_HOST, 0);

    add(draft, add(draft, host, HKT_TOPO_PACKAGE, 0), HKT_TOPO_CORE, 7);
    add(draft, add(draft, host, HKT_TOPO_PACKAGE, 1), HKT_TOPO_CORE, 7);
    assert_refused(draft, "two of core 7 in one host");
    draft = hkt__topo_draft_create();
    add(draft, add(draft, -1, HKT_TOPO_NET, 0), HKT_TOPO_HOST, 0);
    link.b = 0;
    hkt__topo_draft_link(draft, &link);
    assert_refused(draft, "itself");
    draft = hkt__topo_draft_create();
    add(draft, add(draft, -1, HKT_TOPO_NET, 0), HKT_TOPO_HOST, 0);
    link.b = 1;
    hkt__topo_draft_link(draft, &link);
    hkt__topo_draft_link(draft, &link);
    assert_refused(draft, "two network links join net0 and host0");
}

/* Routes: the sums that kinds.c promises. */

static void assert_route(const struct hkt_topo *topo, int a, int b, uint64_t bytes_per_s, uint32_t latency_ns)
{
    struct hkt_topo_link route;

    for (int turn = 0; turn < 2; turn++) {
        hkt_topo_route(topo, turn ? b : a, turn ? a : b, &route);
        assert_int_equal(route.bytes_per_s, bytes_per_s);
        assert_int_equal(route.latency_ns, latency_ns);
        assert_true(route.a <= route.b);
    }
}

static void routes_go_up_and_down_the_tree(void **state)
{
    struct hkt_topo *topo = machine("host:2 package:2 numa:2 l3:2 core:2");
    const int core = node(topo, 0, HKT_TOPO_CORE, 0);
    struct hkt_topo_link route;

    (void)state;
    assert_route(topo, core, core, 0, 0);
    assert_route(topo, core, node(topo, 0, HKT_TOPO_CORE, 1), 15000000000, 60);
    assert_route(topo, core, node(topo, 0, HKT_TOPO_CORE, 2), 15000000000, 100);
    assert_route(topo, core, node(topo, 0, HKT_TOPO_CORE, 4), 15000000000, 120);
    assert_route(topo, core, node(topo, 0, HKT_TOPO_CORE, 8), 15000000000, 220);
    assert_route(topo, core, node(topo, 1, HKT_TOPO_CORE, 0), 12000000000, 5220);
    hkt_topo_route(topo, core, node(topo, 1, HKT_TOPO_CORE, 0), &route);
    assert_int_equal(route.kind, HKT_TOPO_NETWORK); /* the narrowest */
    hkt_topo_destroy(topo);
}

static void routes_take_switches_and_direct_links(void **state)
{
    struct hkt_topo *topo = machine("package:2 gpu:4 nvswitch:2@100GB/s,400ns"), *direct = NULL;
    static const char text[] = "hocket-topology 1\nnet 0\n  host 0\n    gpu 0 link=pcie:12GB/s:500ns:given\n"
                               "    gpu 1 link=pcie:10GB/s:500ns:given\n    gpu 2 link=pcie:-:-:hwloc\n"
                               "link host0/gpu0 host0/gpu1 nvlink:50GB/s:-:measured\n";

    (void)state;
    assert_route(topo, node(topo, 0, HKT_TOPO_GPU, 0), node(topo, 0, HKT_TOPO_GPU, 3), 200000000000, 800);
    assert_int_equal(hkt__topo_parse(text, sizeof text - 1, "text", &direct), HKT_OK);
    assert_route(direct, node(direct, 0, HKT_TOPO_GPU, 0), node(direct, 0, HKT_TOPO_GPU, 1), 50000000000, 0);
    /* What is not known does not count. */
    assert_route(direct, node(direct, 0, HKT_TOPO_GPU, 1), node(direct, 0, HKT_TOPO_GPU, 2), 10000000000, 500);
    hkt_topo_destroy(topo);
    hkt_topo_destroy(direct);
}

/* Nesting by CPU sets. */

static void put(struct hkt__topo_items *items, enum hkt_topo_kind kind, int index, const char *cpus)
{
    struct hkt__topo_item item = { .kind = kind, .index = index, .inside = -1 };

    assert_true(hkt__parse_cpu_list(cpus, &item.cpus));
    assert_int_equal(hkt__topo_items_add(items, &item), HKT_OK);
}

static struct hkt_topo *nest(struct hkt__topo_items *items, const char *allowed_cpus)
{
    struct hkt__topo_draft *draft = hkt__topo_draft_create();
    struct hkt_topo *topo = NULL;
    cpu_set_t allowed;
    const int32_t host = add(draft, add(draft, -1, HKT_TOPO_NET, 0), HKT_TOPO_HOST, 0);

    assert_true(hkt__parse_cpu_list(allowed_cpus, &allowed));
    assert_int_equal(hkt__topo_nest(draft, host, items, &allowed), HKT_OK);
    assert_int_equal(hkt__topo_draft_finish(draft, &topo), HKT_OK);
    hkt__topo_items_free(items);
    return topo;
}

static void put_pus(struct hkt__topo_items *items, int count)
{
    char cpu[16];

    for (int i = 0; i < count; i++) {
        snprintf(cpu, sizeof cpu, "%d", i);
        put(items, HKT_TOPO_PU, i, cpu);
    }
}

static void parts_nest_by_their_cpus(void **state)
{
    struct hkt__topo_items items = { 0 };
    struct hkt_topo *topo;

    (void)state;
    /* Hardware threads of a core are far apart in number, as Linux counts them. */
    put_pus(&items, 8);
    put(&items, HKT_TOPO_CORE, -1, "3,7");
    put(&items, HKT_TOPO_CORE, -1, "2,6");
    put(&items, HKT_TOPO_CORE, -1, "1,5");
    put(&items, HKT_TOPO_CORE, -1, "0,4");
    put(&items, HKT_TOPO_L3, -1, "2-3,6-7");
    put(&items, HKT_TOPO_L3, -1, "0-1,4-5");
    put(&items, HKT_TOPO_NUMA, 0, "0-7");
    put(&items, HKT_TOPO_PACKAGE, 0, "0-7");
    topo = nest(&items, "0-7");
    assert_shape(topo,
                 "net0(host0(package0(numa0(l30(core0(pu0 pu4) core1(pu1 pu5)) l32(core2(pu2 pu6) core3(pu3 pu7))))))");
    hkt_topo_destroy(topo);
}

static void odd_machines_nest_too(void **state)
{
    struct hkt__topo_items items = { 0 };
    struct hkt_topo *topo;

    (void)state;
    /* One L3 around two NUMA nodes (sub-NUMA clusters), a NUMA node of fast memory with the CPUs of another, and one without
     * CPUs. */
    put_pus(&items, 4);
    put(&items, HKT_TOPO_NUMA, 0, "0-1");
    put(&items, HKT_TOPO_NUMA, 1, "2-3");
    put(&items, HKT_TOPO_NUMA, 2, "0-1");
    put(&items, HKT_TOPO_NUMA, 3, "");
    put(&items, HKT_TOPO_L3, -1, "0-3");
    put(&items, HKT_TOPO_PACKAGE, 5, "0-3");
    topo = nest(&items, "0-3");
    assert_shape(topo, "net0(host0(package5(l30(numa0(pu0 pu1) numa1(pu2 pu3)))))");
    hkt_topo_destroy(topo);
    /* Sets that overlap without being nested: a bug of some firmware. Nothing is lost, each lies in what holds all of it. */
    put_pus(&items, 4);
    put(&items, HKT_TOPO_NUMA, 0, "0-2");
    put(&items, HKT_TOPO_L3, -1, "2-3");
    put(&items, HKT_TOPO_PACKAGE, 0, "0-3");
    topo = nest(&items, "0-3");
    assert_int_equal(hkt__topo_count(topo, 0, HKT_TOPO_PU), 4);
    assert_int_equal(hkt__topo_count(topo, 0, HKT_TOPO_L3), 1);
    hkt_topo_destroy(topo);
    /* Nothing but CPUs: a small virtual machine. */
    put_pus(&items, 2);
    topo = nest(&items, "0-1");
    assert_shape(topo, "net0(host0(pu0 pu1))");
    hkt_topo_destroy(topo);
}

static void only_allowed_cpus_are_listed_and_what_devices_hang_on(void **state)
{
    struct hkt__topo_items items = { 0 };
    struct hkt__topo_item nic = {
        .kind = HKT_TOPO_NIC, .inside = -1, .net_bytes_per_s = 25000000000, .name = "mlx5 0"
    };
    struct hkt_topo *topo;

    (void)state;
    for (int with_nic = 0; with_nic < 2; with_nic++) {
        put_pus(&items, 8);
        put(&items, HKT_TOPO_L3, -1, "0-1");
        put(&items, HKT_TOPO_L3, -1, "2-3");
        put(&items, HKT_TOPO_PACKAGE, 0, "0-3");
        put(&items, HKT_TOPO_PACKAGE, 1, "4-7");
        put(&items, HKT_TOPO_NUMA, 0, "0-3");
        put(&items, HKT_TOPO_NUMA, 1, "4-7");
        assert_true(hkt__parse_cpu_list("4-7", &nic.cpus));
        if (with_nic)
            assert_int_equal(hkt__topo_items_add(&items, &nic), HKT_OK);
        topo = nest(&items, "3,9");
        assert_shape(topo, with_nic ? "net0(host0(package0(numa0(l32(pu3))) package1(numa1(nic0))))"
                                    : "net0(host0(package0(numa0(l32(pu3)))))");
        if (with_nic) {
            assert_string_equal(topo->nodes[topo->nnodes - 1].name, "mlx5_0");
            assert_int_equal(topo->links[topo->nlinks - 1].bytes_per_s, 25000000000);
            assert_int_equal(topo->links[topo->nlinks - 1].kind, HKT_TOPO_NETWORK);
        }
        hkt_topo_destroy(topo);
    }
}

static void switches_hold_switches(void **state)
{
    struct hkt__topo_items items = { 0 };
    struct hkt__topo_item outer = { .kind = HKT_TOPO_SWITCH, .index = 0, .inside = -1 };
    struct hkt__topo_item inner = { .kind = HKT_TOPO_SWITCH, .index = 1, .inside = 2 };
    struct hkt__topo_item gpu = { .kind = HKT_TOPO_GPU, .index = 0, .inside = 3 };
    struct hkt_topo *topo;

    (void)state;
    put_pus(&items, 2);
    assert_int_equal(hkt__topo_items_add(&items, &outer), HKT_OK);
    assert_int_equal(hkt__topo_items_add(&items, &inner), HKT_OK);
    assert_int_equal(hkt__topo_items_add(&items, &gpu), HKT_OK);
    topo = nest(&items, "0-1");
    assert_shape(topo, "net0(host0(pu0 pu1 switch0(switch1(gpu0))))");
    hkt_topo_destroy(topo);
}

static void cpu_lists(void **state)
{
    static const char *const wrong[] = { "x", "1-", "-1", "3-1", "1,", ",1", "1 2", "1,,2", "0x1", "1-2-3" };
    cpu_set_t cpus;

    (void)state;
    assert_true(hkt__parse_cpu_list("", &cpus));
    assert_int_equal(CPU_COUNT(&cpus), 0);
    assert_true(hkt__parse_cpu_list("0-3,8,10-11", &cpus));
    assert_int_equal(CPU_COUNT(&cpus), 7);
    assert_true(CPU_ISSET(3, &cpus) && !CPU_ISSET(4, &cpus) && CPU_ISSET(11, &cpus));
    assert_true(hkt__parse_cpu_list("1020-99999999999999999999", &cpus)); /* beyond the set: dropped, without end */
    assert_int_equal(CPU_COUNT(&cpus), 4);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (hkt__parse_cpu_list(wrong[i], &cpus))
            fail_msg("\"%s\" was taken", wrong[i]);
}

/* A /sys of files. */

static char root[] = "/tmp/hocket_sys_XXXXXX";

static int make_root(void **state)
{
    (void)state;
    memcpy(root, "/tmp/hocket_sys_XXXXXX", sizeof root);
    return mkdtemp(root) == NULL;
}

static int remove_root(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static void write_file(const char *path, const char *text)
{
    char full[256];

    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *slash = full + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/** 2 packages, a NUMA node and an L3 each, 2 cores each, 2 threads each; old: names of kernels before 5.2. */
static void write_sys(bool old, bool caches)
{
    char path[128], text[32];

    write_file("devices/system/cpu/online", "0-7\n");
    write_file("devices/system/node/online", "0-1\n");
    for (int cpu = 0; cpu < 8; cpu++) {
        const int package = cpu / 2 % 2;
        const char *const packages[] = { "0-1,4-5\n", "2-3,6-7\n" };

        snprintf(path, sizeof path, "devices/system/cpu/cpu%d/topology/physical_package_id", cpu);
        write_file(path, package ? "1\n" : "0\n");
        snprintf(path, sizeof path, "devices/system/cpu/cpu%d/topology/%s", cpu,
                 old ? "thread_siblings_list" : "core_cpus_list");
        snprintf(text, sizeof text, "%d,%d\n", cpu % 4, cpu % 4 + 4);
        write_file(path, text);
        snprintf(path, sizeof path, "devices/system/cpu/cpu%d/topology/%s", cpu,
                 old ? "core_siblings_list" : "package_cpus_list");
        write_file(path, packages[package]);
        if (!caches)
            continue;
        snprintf(path, sizeof path, "devices/system/cpu/cpu%d/cache/index0/level", cpu);
        write_file(path, "1\n");
        snprintf(path, sizeof path, "devices/system/cpu/cpu%d/cache/index3/level", cpu);
        write_file(path, "3\n");
        snprintf(path, sizeof path, "devices/system/cpu/cpu%d/cache/index3/shared_cpu_list", cpu);
        write_file(path, packages[package]);
        snprintf(path, sizeof path, "devices/system/cpu/cpu%d/cache/index3/size", cpu);
        write_file(path, "32768K\n");
    }
    write_file("devices/system/node/node0/cpulist", "0-1,4-5\n");
    write_file("devices/system/node/node1/cpulist", "2-3,6-7\n");
    write_file("devices/system/node/node0/meminfo", "Node 0 MemTotal:       4194304 kB\n");
}

static struct hkt_topo *read_sys(const char *allowed_cpus)
{
    cpu_set_t allowed;
    const struct hkt__topo_detect_opts opts = { .reader = HKT__TOPO_READ_SYSFS, .sysfs = root, .allowed = &allowed };
    struct hkt_topo *topo = NULL;

    assert_true(hkt__parse_cpu_list(allowed_cpus, &allowed));
    if (hkt__topo_detect(&opts, &topo) != HKT_OK)
        fail_msg("%s", hkt_last_error());
    return topo;
}

static void sys_is_read(void **state)
{
    static const char whole[] = "net0(host0(package0(numa0(l30(core0(pu0 pu4) core1(pu1 pu5)))) "
                                "package1(numa1(l32(core2(pu2 pu6) core3(pu3 pu7))))))";
    struct hkt_topo *topo;

    (void)state;
    for (int old = 0; old < 2; old++) {
        write_sys(old, true);
        topo = read_sys("0-7");
        assert_shape(topo, whole);
        assert_int_equal(topo->nodes[node(topo, 0, HKT_TOPO_L3, 2)].bytes, 32 << 20);
        assert_int_equal(topo->nodes[node(topo, 0, HKT_TOPO_NUMA, 0)].bytes, UINT64_C(4) << 30);
        assert_int_equal(topo->nodes[node(topo, 0, HKT_TOPO_NUMA, 1)].bytes, 0);
        assert_int_not_equal(topo->nodes[1].id, 0);
        hkt_topo_destroy(topo);
        remove_root(state);
        make_root(state);
    }
    write_sys(false, false);
    topo = read_sys("5");
    assert_shape(topo, "net0(host0(package0(numa0(core1(pu5)))))");
    hkt_topo_destroy(topo);
}

static void a_sys_that_shows_little_is_enough(void **state)
{
    const struct hkt__topo_detect_opts opts = { .reader = HKT__TOPO_READ_SYSFS, .sysfs = root };
    struct hkt_topo *topo = NULL;

    (void)state;
    assert_int_equal(hkt__topo_detect(&opts, &topo), HKT_ERR_SYSTEM);
    assert_non_null(strstr(hkt_last_error(), "cpu/online"));
    write_file("devices/system/cpu/online", "0-1\n");
    topo = read_sys("0-1");
    assert_shape(topo, "net0(host0(core0(pu0) core1(pu1)))");
    hkt_topo_destroy(topo);
    write_file("devices/system/cpu/online", "zero\n");
    assert_int_equal(hkt__topo_detect(&opts, &topo), HKT_ERR_SYSTEM);
}

static void nic_rates(void **state)
{
    (void)state;
    write_file("class/net/eth0/speed", "25000\n");
    write_file("class/net/down/speed", "-1\n");
    write_file("class/infiniband/mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)\n");
    write_file("class/infiniband/mlx5_0/ports/2/rate", "2.5 Gb/sec (1X SDR)\n");
    write_file("class/infiniband/odd/ports/1/rate", "fast\n");
    assert_int_equal(hkt__topo_sysfs_nic_rate(root, "eth0"), 3125000000);
    assert_int_equal(hkt__topo_sysfs_nic_rate(root, "down"), 0);
    assert_int_equal(hkt__topo_sysfs_nic_rate(root, "none"), 0);
    assert_int_equal(hkt__topo_sysfs_nic_rate(root, "mlx5_0"), 12812500000);
    assert_int_equal(hkt__topo_sysfs_nic_rate(root, "odd"), 0);
}

/* This machine. */

static struct hkt_topo *read_machine(enum hkt__topo_reader reader, const cpu_set_t *allowed)
{
    const struct hkt__topo_detect_opts opts = { .reader = reader, .allowed = allowed };
    struct hkt_topo *topo = NULL;
    const enum hkt_status rc = hkt__topo_detect(&opts, &topo);

    if (rc == HKT_ERR_UNSUPPORTED || rc == HKT_ERR_SYSTEM)
        return NULL;
    if (rc != HKT_OK)
        fail_msg("%s", hkt_last_error());
    return topo;
}

static void hwloc_and_sys_see_the_same(void **state)
{
    cpu_set_t own, one;

    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof own, &own), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &own))
            CPU_SET(cpu, &one);
    for (int turn = 0; turn < 2; turn++) {
        const cpu_set_t *allowed = turn == 0 ? &own : &one;
        struct hkt_topo *hwloc = read_machine(HKT__TOPO_READ_HWLOC, allowed);
        struct hkt_topo *sys = read_machine(HKT__TOPO_READ_SYSFS, allowed);
        static char x[65536], y[65536];

        if (hwloc == NULL || sys == NULL) {
            hkt_topo_destroy(hwloc);
            hkt_topo_destroy(sys);
            skip();
        }
        shape(hwloc, x, sizeof x);
        shape(sys, y, sizeof y);
        assert_string_equal(x, y);
        assert_int_equal(hkt__topo_count(sys, 0, HKT_TOPO_PU), CPU_COUNT(allowed));
        assert_int_equal(hwloc->nodes[1].id, sys->nodes[1].id);
        hkt_topo_destroy(hwloc);
        hkt_topo_destroy(sys);
    }
}

/* hwloc builds the same machines from its own lines: numbers must come out alike. */
static void hwloc_synthetic_and_own_synthetic_agree(void **state)
{
    static const struct {
        const char *hwloc, *own;
    } cases[] = {
        { "pack:2 numa:4 l3:2 core:4 pu:1", "package:2 numa:4 l3:2 core:4" },
        { "pack:2 l3:4 core:2 pu:2", "package:2 numa:1 l3:4 core:2 pu:2" },
        { "pack:1 core:6 pu:1", "package:1 numa:1 core:6" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hkt_topo *own = machine(cases[i].own), *theirs;
        static char x[65536], y[65536];

        setenv("HWLOC_SYNTHETIC", cases[i].hwloc, 1);
        theirs = read_machine(HKT__TOPO_READ_HWLOC, NULL);
        unsetenv("HWLOC_SYNTHETIC");
        if (theirs == NULL) {
            hkt_topo_destroy(own);
            skip();
        }
        shape(theirs, x, sizeof x);
        shape(own, y, sizeof y);
        /* Without a word for it, hwloc has one NUMA node for all, around or in the packages: not compared. */
        if (i == 0)
            assert_string_equal(x, y);
        assert_int_equal(hkt__topo_count(theirs, 0, HKT_TOPO_CORE), hkt__topo_count(own, 0, HKT_TOPO_CORE));
        assert_int_equal(hkt__topo_count(theirs, 0, HKT_TOPO_PU), hkt__topo_count(own, 0, HKT_TOPO_PU));
        assert_int_equal(hkt__topo_count(theirs, 0, HKT_TOPO_L3), hkt__topo_count(own, 0, HKT_TOPO_L3));
        hkt_topo_destroy(own);
        hkt_topo_destroy(theirs);
    }
}

/* A server as hwloc saves it: two GPUs of two makers, a NIC behind the same PCI switch as one of them, the graphics of the
 * board's service processor, which are no GPU. */
static void pci_devices_of_a_server(void **state)
{
    const struct hkt__topo_detect_opts opts = { .reader = HKT__TOPO_READ_HWLOC, .devices = true };
    const char *source = getenv("HOCKET_SOURCE_ROOT");
    struct hkt_topo *topo = NULL;
    char path[512];

    (void)state;
    snprintf(path, sizeof path, "%s/tests/golden/topo_hwloc_server.xml", source != NULL ? source : ".");
    setenv("HWLOC_XMLFILE", path, 1);
    const enum hkt_status rc = hkt__topo_detect(&opts, &topo);

    unsetenv("HWLOC_XMLFILE");
    if (rc == HKT_ERR_UNSUPPORTED)
        skip();
    if (rc != HKT_OK)
        fail_msg("%s", hkt_last_error());
    assert_shape(topo, "net0(host0(package0(numa0(l30(core0(pu0) core1(pu1)) switch0(gpu0 nic0))) "
                       "package1(numa1(l32(core2(pu2) core3(pu3)) gpu1))))");
    const struct hkt_topo_node *gpu = &topo->nodes[node(topo, 0, HKT_TOPO_GPU, 0)];

    assert_string_equal(gpu->name, "0000:03:00.0");
    assert_int_equal(topo->links[gpu->uplink].bytes_per_s, 15754000000);
    assert_int_equal(topo->links[gpu->uplink].source, HKT_TOPO_HWLOC);
    assert_string_equal(topo->nodes[gpu->parent].name, "0000:01:00.0");
    assert_int_equal(topo->links[topo->nodes[gpu->parent].uplink].bytes_per_s, 31508000000);
    assert_string_equal(topo->nodes[node(topo, 0, HKT_TOPO_NIC, 0)].name, "hocket-test-ib");
    gpu = &topo->nodes[node(topo, 0, HKT_TOPO_GPU, 1)];
    assert_int_equal(topo->links[gpu->uplink].source, HKT_TOPO_ASSUMED); /* hwloc does not know */
    hkt_topo_destroy(topo);
}

static void detecting_survives_every_failed_allocation(void **state)
{
    (void)state;
    for (int reader = HKT__TOPO_READ_ANY; reader <= HKT__TOPO_READ_SYSFS; reader++) {
        const struct hkt__topo_detect_opts opts = { .reader = (enum hkt__topo_reader)reader };
        enum hkt_status rc = HKT_ERR_NOMEM;

        for (int64_t k = 1; rc == HKT_ERR_NOMEM; k++) {
            struct hkt_topo *topo = NULL;

            hkt__mem_fail_at(k);
            rc = hkt__topo_detect(&opts, &topo);
            hkt__mem_fail_at(0);
            assert_int_equal(topo != NULL, rc == HKT_OK);
            hkt_topo_destroy(topo);
            assert_true(k < 1000);
        }
        assert_true(rc == HKT_OK || (rc == HKT_ERR_UNSUPPORTED && reader == HKT__TOPO_READ_HWLOC));
    }
}

/* Dealing and places. */

static void ranks_are_dealt_compact_or_spread(void **state)
{
    struct hkt_topo *topo = machine("package:2 numa:2 core:4");
    int nodes[40];

    (void)state;
    assert_int_equal(hkt_topo_deal(topo, 3, HKT_TOPO_CORE, HKT_TOPO_COMPACT, nodes), HKT_OK);
    for (int r = 0; r < 3; r++)
        assert_int_equal(nodes[r], node(topo, 0, HKT_TOPO_CORE, r));
    assert_int_equal(hkt_topo_deal(topo, 4, HKT_TOPO_CORE, HKT_TOPO_SPREAD, nodes), HKT_OK);
    for (int r = 0; r < 4; r++)
        assert_int_equal(nodes[r], node(topo, 0, HKT_TOPO_CORE, 4 * r));
    assert_int_equal(hkt_topo_deal(topo, 8, HKT_TOPO_NUMA, HKT_TOPO_SPREAD, nodes), HKT_OK);
    for (int r = 0; r < 8; r++)
        assert_int_equal(nodes[r], node(topo, 0, HKT_TOPO_NUMA, r / 2));
    assert_int_equal(hkt_topo_deal(topo, 16, HKT_TOPO_PACKAGE, HKT_TOPO_SPREAD, nodes), HKT_OK);
    for (int r = 0; r < 16; r++)
        assert_int_equal(nodes[r], node(topo, 0, HKT_TOPO_PACKAGE, r / 8));
    assert_int_equal(hkt_topo_deal(topo, 17, HKT_TOPO_CORE, HKT_TOPO_SPREAD, nodes), HKT_ERR_UNSUPPORTED);
    assert_non_null(strstr(hkt_last_error(), "17 ranks, but 16 cores"));
    assert_int_equal(hkt_topo_deal(topo, 40, HKT_TOPO_CORE, HKT_TOPO_SHARE, nodes), HKT_OK);
    for (int r = 0; r < 40; r++)
        assert_int_equal(nodes[r], node(topo, 0, HKT_TOPO_CORE, r * 16 / 40));
    assert_int_equal(hkt_topo_deal(topo, 2, HKT_TOPO_GPU, HKT_TOPO_SHARE, nodes), HKT_ERR_UNSUPPORTED);
    assert_int_equal(hkt_topo_deal(topo, 2, HKT_TOPO_GPU, HKT_TOPO_SPREAD, nodes), HKT_ERR_UNSUPPORTED);
    assert_int_equal(hkt_topo_deal(topo, 2, HKT_TOPO_L3, HKT_TOPO_SPREAD, nodes), HKT_ERR_UNSUPPORTED);
    assert_non_null(strstr(hkt_last_error(), "shows no l3"));
    assert_int_equal(hkt_topo_deal(topo, 2, HKT_TOPO_NIC, HKT_TOPO_SPREAD, nodes), HKT_ERR_INVALID);
    assert_int_equal(hkt_topo_deal(topo, 0, HKT_TOPO_CORE, HKT_TOPO_SPREAD, nodes), HKT_ERR_INVALID);
    hkt_topo_destroy(topo);
}

static struct hkt__topo_place place_on(const struct hkt_topo *topo, const char *cpu_list)
{
    struct hkt__topo_place place;
    cpu_set_t cpus;

    assert_true(hkt__parse_cpu_list(cpu_list, &cpus));
    hkt__topo_place_cpus(topo, hkt__topo_find(topo, 0, HKT_TOPO_HOST, 0), &cpus, &place);
    return place;
}

static void a_place_is_the_innermost_part_that_holds_all_cpus(void **state)
{
    static const struct {
        const char *cpus;
        int32_t package, numa, l3, core, unit;
    } cases[] = {
        { "5", 0, 0, 4, 4, 5 },         { "4-5", 0, 0, 4, 4, -1 },    { "4,6", 0, 0, 4, -1, -1 },
        { "3-4", 0, 0, -1, -1, -1 },    { "0,8", 0, -1, -1, -1, -1 }, { "0,16", -1, -1, -1, -1, -1 },
        { "0-31", -1, -1, -1, -1, -1 }, { "", -1, -1, -1, -1, -1 },   { "900", -1, -1, -1, -1, -1 },
        { "31,900", 1, 3, 28, 30, 31 }, /* CPUs the machine does not show are ignored */
    };
    struct hkt_topo *topo = machine("package:2 numa:2 l3:2 core:2 pu:2");

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct hkt__topo_place place = place_on(topo, cases[i].cpus);

        assert_int_equal(place.host, topo->nodes[1].id);
        assert_int_equal(place.rack, -1);
        assert_int_equal(place.package, cases[i].package);
        assert_int_equal(place.numa, cases[i].numa);
        assert_int_equal(place.l3, cases[i].l3);
        assert_int_equal(place.core, cases[i].core);
        assert_int_equal(place.unit, cases[i].unit);
    }
    hkt_topo_destroy(topo);
}

static void own_place_is_that_of_the_affinity(void **state)
{
    struct hkt__topo_place place, narrow;
    cpu_set_t own, one;

    (void)state;
    hkt__topo_place_here(&place);
    assert_int_equal(place.host, hkt__topo_host_id());
    assert_int_equal(sched_getaffinity(0, sizeof own, &own), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &own))
            CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    hkt__topo_place_here(&narrow);
    assert_int_equal(sched_setaffinity(0, sizeof own, &own), 0);
    assert_int_equal(narrow.host, place.host);
    if (narrow.core >= 0) /* /sys can be read */
        assert_true(CPU_ISSET(narrow.unit, &one));
    /* Where memory is out, the host is known all the same. */
    assert_int_equal(hkt__fail(HKT_ERR_BUG, "an earlier failure"), HKT_ERR_BUG);
    hkt__mem_fail_at(1);
    hkt__topo_place_here(&narrow);
    hkt__mem_fail_at(0);
    assert_string_equal(hkt_last_error(), "an earlier failure");
    assert_int_equal(narrow.host, place.host);
    assert_int_equal(narrow.package, -1);
}

static void names(void **state)
{
    enum hkt_topo_kind kind;

    (void)state;
    for (int i = 0; i < HKT_TOPO_KIND_COUNT; i++) {
        assert_int_equal(hkt_topo_kind_parse(hkt_topo_kind_name((enum hkt_topo_kind)i), &kind), HKT_OK);
        assert_int_equal(kind, i);
    }
    assert_int_equal(hkt_topo_kind_parse("numb", &kind), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "numa"));
    assert_string_equal(hkt_topo_kind_name((enum hkt_topo_kind)99), "?");
    assert_string_equal(hkt_topo_link_name((enum hkt_topo_link_kind)99), "?");
    assert_string_equal(hkt_topo_source_name((enum hkt_topo_source)99), "?");
    assert_string_equal(hkt_topo_level_name((enum hkt_topo_level)99), "?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(order_of_discovery_does_not_matter),
        cmocka_unit_test(drafts_refuse_what_is_no_machine),
        cmocka_unit_test(routes_go_up_and_down_the_tree),
        cmocka_unit_test(routes_take_switches_and_direct_links),
        cmocka_unit_test(parts_nest_by_their_cpus),
        cmocka_unit_test(odd_machines_nest_too),
        cmocka_unit_test(only_allowed_cpus_are_listed_and_what_devices_hang_on),
        cmocka_unit_test(switches_hold_switches),
        cmocka_unit_test(cpu_lists),
        cmocka_unit_test_setup_teardown(sys_is_read, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_sys_that_shows_little_is_enough, make_root, remove_root),
        cmocka_unit_test_setup_teardown(nic_rates, make_root, remove_root),
        cmocka_unit_test(hwloc_and_sys_see_the_same),
        cmocka_unit_test(hwloc_synthetic_and_own_synthetic_agree),
        cmocka_unit_test(pci_devices_of_a_server),
        cmocka_unit_test(detecting_survives_every_failed_allocation),
        cmocka_unit_test(ranks_are_dealt_compact_or_spread),
        cmocka_unit_test(a_place_is_the_innermost_part_that_holds_all_cpus),
        cmocka_unit_test(own_place_is_that_of_the_affinity),
        cmocka_unit_test(names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
