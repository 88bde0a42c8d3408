/* What hwloc reports about this machine, as a list of parts. All CPUs are asked for, whether allowed or not, so that devices
 * find their place and parts get the same numbers in every process; nest.c leaves out what this process may not use.
 * hwloc's components that start GPU runtimes are shut off: they are slow, and a process that forks later must not have
 * started CUDA. What is needed of GPUs is on the PCI bus, which is read from /sys: the component on libpciaccess leaks. */
#include "core/error.h"
#include "topology/detect.h"

#ifdef HKT__HAVE_HWLOC
#include <hwloc.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "topology/sysfs.h"

const char *hkt__topo_hwloc_version(void)
{
    static const char text[] = HWLOC_VERSION;

    return text;
}

static void copy_set(hwloc_const_bitmap_t from, cpu_set_t *to)
{
    CPU_ZERO(to);
    if (from == NULL)
        return;
    for (int cpu = hwloc_bitmap_first(from); cpu >= 0 && cpu < CPU_SETSIZE; cpu = hwloc_bitmap_next(from, cpu))
        CPU_SET(cpu, to);
}

static enum hkt_status add_parts(hwloc_topology_t hw, hwloc_obj_type_t type, enum hkt_topo_kind kind,
                                 struct hkt__topo_items *items)
{
    const bool counted = kind == HKT_TOPO_L3 || kind == HKT_TOPO_CORE; /* hwloc numbers cores per package */
    enum hkt_status rc = HKT_OK;

    for (hwloc_obj_t obj = NULL; rc == HKT_OK && (obj = hwloc_get_next_obj_by_type(hw, type, obj)) != NULL;) {
        struct hkt__topo_item item = { .kind = kind, .index = -1, .inside = -1 };

        if (!counted && obj->os_index != HWLOC_UNKNOWN_INDEX)
            item.index = (int32_t)obj->os_index;
        if (kind == HKT_TOPO_NUMA)
            item.bytes = obj->attr->numanode.local_memory;
        else if (kind == HKT_TOPO_L3)
            item.bytes = obj->attr->cache.size;
        copy_set(obj->complete_cpuset, &item.cpus);
        if (kind != HKT_TOPO_PU || item.index < CPU_SETSIZE)
            rc = hkt__topo_items_add(items, &item);
    }
    return rc;
}

static void name_device(hwloc_obj_t pci, char out[HKT_TOPO_NAME_MAX])
{
    const struct hwloc_pcidev_attr_s *attr = &pci->attr->pcidev;

    snprintf(out, HKT_TOPO_NAME_MAX, "%04x:%02x:%02x.%x", attr->domain, attr->bus, attr->dev, attr->func);
}

/** Display controllers and accelerators of those who make GPUs; the graphics of a board's service processor is none. */
static bool is_gpu(hwloc_obj_t pci)
{
    const unsigned vendor = pci->attr->pcidev.vendor_id, class_id = pci->attr->pcidev.class_id;

    if (vendor == 0x10de || vendor == 0x1002)
        return class_id >> 8 == 0x03 || class_id >> 8 == 0x12;
    return vendor == 0x8086 && (class_id == 0x0302 || class_id == 0x0380);
}

/** The network interface of a PCI device, by its InfiniBand name when it has one; NULL: it is no NIC. */
static hwloc_obj_t interface_of(hwloc_obj_t pci)
{
    hwloc_obj_t found = NULL;

    for (hwloc_obj_t os = pci->io_first_child; os != NULL; os = os->next_sibling) {
        if (os->type != HWLOC_OBJ_OS_DEVICE)
            continue;
        if (os->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS)
            return os;
        if (os->attr->osdev.type == HWLOC_OBJ_OSDEV_NETWORK && found == NULL)
            found = os;
    }
    return found;
}

/* Of bridges: how many GPUs and NICs are below. Bridges' userdata is ours. */
static uintptr_t below(hwloc_obj_t bridge)
{
    return (uintptr_t)bridge->userdata;
}

static bool is_switch_part(hwloc_obj_t obj)
{
    return obj->type == HWLOC_OBJ_BRIDGE && obj->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI;
}

static void count_above(hwloc_obj_t pci)
{
    for (hwloc_obj_t up = pci->parent; up != NULL && up->type == HWLOC_OBJ_BRIDGE; up = up->parent)
        up->userdata =
            (void *)(below(up) + 1); // NOLINT(performance-no-int-to-ptr): a counter in the field hwloc gives us
}

/** hwloc gives GB/s in binary floating point: whole megabytes are what is meant. */
static uint64_t link_rate(const struct hwloc_pcidev_attr_s *pci)
{
    return (uint64_t)((double)pci->linkspeed * 1000 + 0.5) * 1000000;
}

/** Item of the switch that a device hangs on: the nearest bridge with more devices below than what comes from here. */
static enum hkt_status find_switch(hwloc_obj_t device, const struct hkt__topo_item *like, struct hkt__topo_items *items,
                                   int32_t *out_item)
{
    uintptr_t count = device->type == HWLOC_OBJ_BRIDGE ? below(device) : 1;
    struct hkt__topo_item item = { .kind = HKT_TOPO_SWITCH, .index = 0, .inside = -1, .cpus = like->cpus };
    hwloc_obj_t up = device->parent;

    *out_item = -1;
    while (up != NULL && is_switch_part(up) && below(up) == count)
        up = up->parent;
    if (up == NULL || !is_switch_part(up))
        return HKT_OK;
    name_device(up, item.name);
    for (int32_t i = 0; i < items->count; i++) {
        if (items->list[i].kind != HKT_TOPO_SWITCH)
            continue;
        item.index++;
        if (strcmp(items->list[i].name, item.name) == 0) {
            *out_item = i;
            return HKT_OK;
        }
    }
    item.up_bytes_per_s = link_rate(&up->attr->bridge.upstream.pci);
    *out_item = items->count;
    return hkt__topo_items_add(items, &item);
}

static enum hkt_status add_device(hwloc_topology_t hw, hwloc_obj_t pci, struct hkt__topo_items *items)
{
    const hwloc_obj_t os = interface_of(pci), near = hwloc_get_non_io_ancestor_obj(hw, pci);
    struct hkt__topo_item item = { .kind = is_gpu(pci) ? HKT_TOPO_GPU : HKT_TOPO_NIC, .inside = -1 };

    for (int32_t i = 0; i < items->count; i++)
        item.index += items->list[i].kind == item.kind;
    copy_set(near != NULL ? near->complete_cpuset : NULL, &item.cpus);
    name_device(pci, item.name);
    if (item.kind == HKT_TOPO_NIC) {
        snprintf(item.name, sizeof item.name, "%s", os->name);
        item.net_bytes_per_s = hkt__topo_sysfs_nic_rate("/sys", os->name);
    }
    item.up_bytes_per_s = link_rate(&pci->attr->pcidev);
    const enum hkt_status rc = find_switch(pci, &item, items, &item.inside);

    return rc < 0 ? rc : hkt__topo_items_add(items, &item);
}

static enum hkt_status add_devices(hwloc_topology_t hw, struct hkt__topo_items *items)
{
    enum hkt_status rc = HKT_OK;

    for (hwloc_obj_t pci = NULL; (pci = hwloc_get_next_pcidev(hw, pci)) != NULL;)
        if (is_gpu(pci) || interface_of(pci) != NULL)
            count_above(pci);
    for (hwloc_obj_t pci = NULL; rc == HKT_OK && (pci = hwloc_get_next_pcidev(hw, pci)) != NULL;)
        if (is_gpu(pci) || interface_of(pci) != NULL)
            rc = add_device(hw, pci, items);
    return rc;
}

static enum hkt_status load(bool devices, hwloc_topology_t *out_hw)
{
    static const char *const unwanted[] = { "cuda", "nvml", "opencl", "rsmi", "levelzero", "gl", "pci" };
    hwloc_topology_t hw;

    if (hwloc_topology_init(&hw) != 0)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "hwloc cannot start");
    for (size_t i = 0; i < sizeof unwanted / sizeof unwanted[0]; i++)
        hwloc_topology_set_components(hw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, unwanted[i]);
    hwloc_topology_set_flags(hw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    if (devices)
        hwloc_topology_set_io_types_filter(hw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(hw) != 0) {
        const enum hkt_status rc = hkt__fail_sys(HKT_ERR_SYSTEM, "hwloc cannot read this machine");

        hwloc_topology_destroy(hw);
        return rc;
    }
    *out_hw = hw;
    return HKT_OK;
}

enum hkt_status hkt__topo_hwloc_items(bool devices, struct hkt__topo_items *items, bool *out_here)
{
    static const struct {
        hwloc_obj_type_t type;
        enum hkt_topo_kind kind;
    } types[] = { { HWLOC_OBJ_PACKAGE, HKT_TOPO_PACKAGE },
                  { HWLOC_OBJ_NUMANODE, HKT_TOPO_NUMA },
                  { HWLOC_OBJ_L3CACHE, HKT_TOPO_L3 },
                  { HWLOC_OBJ_CORE, HKT_TOPO_CORE },
                  { HWLOC_OBJ_PU, HKT_TOPO_PU } };
    static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER; /* libudev, which hwloc asks, has unguarded state of the process */
    hwloc_topology_t hw = NULL;

    pthread_mutex_lock(&loading);
    enum hkt_status rc = load(devices, &hw);

    pthread_mutex_unlock(&loading);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < sizeof types / sizeof types[0] && rc == HKT_OK; i++)
        rc = add_parts(hw, types[i].type, types[i].kind, items);
    if (rc == HKT_OK && devices)
        rc = add_devices(hw, items);
    *out_here = hwloc_topology_is_thissystem(hw) != 0;
    hwloc_topology_destroy(hw);
    return rc;
}

#else /* without hwloc */

const char *hkt__topo_hwloc_version(void)
{
    return "";
}

enum hkt_status hkt__topo_hwloc_items(bool devices, struct hkt__topo_items *items, bool *out_here)
{
    (void)devices;
    (void)items;
    (void)out_here;
    return hkt__fail(HKT_ERR_UNSUPPORTED, "this build has no hwloc: install libhwloc-dev and build again");
}

#endif
