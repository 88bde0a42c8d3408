/* What this build and machine offer. */
#include "hocket/info.h"

#include <stdio.h>
#include <string.h>

#include "comm/call.h"
#include "core/settings.h"
#include "device/cuda.h"
#include "transport/cores.h"
#include "transport/machine.h"

int hkt_cores(void)
{
    return hkt__machine_cores();
}

double hkt_cpu_quota(const char *root)
{
    struct hkt__quota quota;

    hkt__quota_get(root, &quota);
    return quota.cpus;
}

int hkt_version(void)
{
    return HKT_VERSION_MAJOR * 10000 + HKT_VERSION_MINOR * 100 + HKT_VERSION_PATCH;
}

static void transport_feature(const struct hkt__tp_ops *ops, struct hkt_feature *out)
{
    static _Thread_local char why[HKT__ERROR_TEXT_MAX];
    const struct hkt__settings *settings;
    enum hkt_status rc = hkt__settings_get(&settings);

    if (rc == HKT_OK)
        rc = ops->probe(settings);
    if (rc == HKT_OK)
        hkt__transport_describe(ops, why, sizeof why);
    else
        snprintf(why, sizeof why, "%s", hkt_last_error());
    *out = (struct hkt_feature){.kind = "transport", .name = ops->name, .present = rc == HKT_OK, .reason = why};
}

static bool machine_cores(char *out_why, size_t bytes)
{
    const int cores = hkt__machine_cores();
    const double quota = hkt_cpu_quota("");
    char text[96] = "";

    if (quota > 0)
        snprintf(text, sizeof text, "; the quota of its cgroup: %.4g CPUs (docker run --cpus)", quota);
    snprintf(out_why, bytes, cores > 1 ? "%d CPUs that this process may use%s"
                                       : "%d CPU that this process may use: ranks of this host take turns on it%s", cores, text);
    return cores > 1;
}

static bool machine_copies(char *out_why, size_t bytes)
{
    const struct hkt__settings *settings;
    enum hkt_status rc = hkt__settings_get(&settings);

    if (rc == HKT_OK)
        rc = hkt__machine_copies(settings);
    snprintf(out_why, bytes, "%s", rc == HKT_OK ? "between processes in one step (process_vm_readv)" : hkt_last_error());
    return rc == HKT_OK;
}

/** What containers take away. */
static const struct {
    const char *name;
    bool (*ask)(char *out_why, size_t bytes);
} machine[] = {
    {"cores", machine_cores},
    {"copies", machine_copies},
    {"/dev/shm", hkt__machine_shm_dir},
};

/** The module for GPUs. */
static bool module_cuda(char *out_why, size_t bytes)
{
    const struct hkt__settings *settings;
    const struct hkt__cuda_module *module = NULL;

    if (hkt__settings_get(&settings) == HKT_OK)
        module = hkt__cuda_open(settings->cuda, out_why, bytes);
    else
        snprintf(out_why, bytes, "%s", hkt_last_error());
    if (module != NULL)
        hkt__cuda_describe(module, out_why, bytes);
    return module != NULL;
}

static void asked_feature(const char *kind, const char *name, bool (*ask)(char *out_why, size_t bytes),
                          struct hkt_feature *out)
{
    static _Thread_local char why[HKT__ERROR_TEXT_MAX];
    const bool present = ask(why, sizeof why);

    *out = (struct hkt_feature){.kind = kind, .name = name, .present = present, .reason = why};
}

/** CPU features by kernel set; then the module for GPUs. */
static const struct {
    const char *kind, *name, *yes, *no;
    int isa;
    bool (*ask)(char *out_why, size_t bytes); /* NULL: isa tells */
} fixed[] = {
    {"cpu", "sse2", "16-byte kernels", "the CPU lacks SSE2: plain C kernels are used", HKT__ISA_SSE2, NULL},
    {"cpu", "avx2", "32-byte kernels", "not offered by this CPU or capped by HOCKET_ISA", HKT__ISA_AVX2, NULL},
    {"cpu", "avx512", "64-byte kernels", "not offered by this CPU or capped by HOCKET_ISA", HKT__ISA_AVX512, NULL},
    {"module", "cuda", "", "", HKT__ISA_COUNT, module_cuda},
};

enum hkt_status hkt_feature_get(int index, struct hkt_feature *out_feature)
{
    int i = index;

    for (int t = 0; i >= 0 && hkt__transport_get(t) != NULL; t++) {
        if (i-- == 0) {
            transport_feature(hkt__transport_get(t), out_feature);
            return HKT_OK;
        }
    }
    if (i >= 0 && i < (int)(sizeof machine / sizeof machine[0])) {
        asked_feature("machine", machine[i].name, machine[i].ask, out_feature);
        return HKT_OK;
    }
    i -= (int)(sizeof machine / sizeof machine[0]);
    if (i < 0 || i >= (int)(sizeof fixed / sizeof fixed[0]))
        return hkt__fail(HKT_ERR_INVALID, "hkt_feature_get: there is no feature %d", index);
    if (fixed[i].ask != NULL) {
        asked_feature(fixed[i].kind, fixed[i].name, fixed[i].ask, out_feature);
        return HKT_OK;
    }
    const bool present = fixed[i].isa <= (int)hkt__isa_best();

    *out_feature = (struct hkt_feature){.kind = fixed[i].kind, .name = fixed[i].name, .present = present,
                                        .reason = present ? fixed[i].yes : fixed[i].no};
    return HKT_OK;
}
