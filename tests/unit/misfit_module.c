/* A module that plays what MISFIT says: for test_modules.c. */
#include <stdlib.h>
#include <string.h>

#include "core/settings.h"
#include "transport/module.h"

static const struct hkt__module_host *host;

const struct hkt__module *hocket_module(const struct hkt__module_host *from);

static enum hkt_status probe(const struct hkt__settings *settings)
{
    (void)settings;
    return strcmp(getenv("MISFIT"), "unfit") == 0
               ? host->fail(HKT_ERR_UNSUPPORTED, 0, -1, "there is no fabric in the misfit") : HKT_OK;
}

static void query(const struct hkt__tp *tp, struct hkt__tp_caps *out_caps)
{
    (void)tp;
    *out_caps = (struct hkt__tp_caps){.latency_ns = 1000, .ns_per_byte = 1};
}

/* Operations that are never called: they must be there. */
static enum hkt_status tp_open(const struct hkt__tp_params *params, struct hkt__tp **out_tp)
{
    (void)params;
    (void)out_tp;
    return HKT_ERR_UNSUPPORTED;
}

static void tp_close(struct hkt__tp *tp)
{
    (void)tp;
}

static enum hkt_status address(struct hkt__tp *tp, void *out_blob, size_t *out_bytes)
{
    (void)tp;
    (void)out_blob;
    (void)out_bytes;
    return HKT_ERR_UNSUPPORTED;
}

static enum hkt_status reach(struct hkt__tp *tp, const unsigned char *blobs, const size_t *bytes, int64_t deadline_ns,
                             unsigned char *out_ok)
{
    (void)tp;
    (void)blobs;
    (void)bytes;
    (void)deadline_ns;
    (void)out_ok;
    return HKT_ERR_UNSUPPORTED;
}

static enum hkt_status dom_open(struct hkt__tp *tp, const struct hkt__tp_members *members, struct hkt__tp_dom **out_dom,
                                void *out_blob, size_t *out_bytes)
{
    (void)tp;
    (void)members;
    (void)out_dom;
    (void)out_blob;
    (void)out_bytes;
    return HKT_ERR_UNSUPPORTED;
}

static enum hkt_status dom_connect(struct hkt__tp_dom *dom, const unsigned char *blobs, const size_t *bytes,
                                   const unsigned char *use)
{
    (void)dom;
    (void)blobs;
    (void)bytes;
    (void)use;
    return HKT_ERR_UNSUPPORTED;
}

static void dom_close(struct hkt__tp_dom *dom)
{
    (void)dom;
}

static enum hkt_status chan_open(struct hkt__tp_dom *dom, int peer, int lane, struct hkt__chan **out_tx,
                                 struct hkt__chan **out_rx)
{
    (void)dom;
    (void)peer;
    (void)lane;
    (void)out_tx;
    (void)out_rx;
    return HKT_ERR_UNSUPPORTED;
}

const struct hkt__module *hocket_module(const struct hkt__module_host *from)
{
    static struct hkt__tp_ops ops = {
        .name = "ucx", .summary = "a misfit", .probe = probe, .query = query, .open = tp_open, .close = tp_close,
        .address = address, .reach = reach, .dom_open = dom_open, .dom_connect = dom_connect, .dom_close = dom_close,
        .chan_open = chan_open};
    static struct hkt__module module = {.abi = HKT__MODULE_ABI, .ops_bytes = sizeof ops,
                                        .settings_bytes = sizeof(struct hkt__settings), .version = 100, .transport = &ops};
    const char *role = getenv("MISFIT");

    host = from;
    module.abi += strcmp(role, "abi") == 0;
    module.ops_bytes += strcmp(role, "ops") == 0;
    module.version += strcmp(role, "version") == 0;
    if (strcmp(role, "name") == 0)
        ops.name = "other";
    return strcmp(role, "silent") == 0 ? NULL : &module;
}
