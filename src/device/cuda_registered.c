/* Buffers of the user's that devices map: see cuda_registered.h. */
#include "device/cuda_registered.h"

#include <unistd.h>

#include "core/error.h"
#include "core/mem.h"

static size_t pattern_bytes(const struct hkt__cuda_registered *reg)
{
    const size_t each = reg->bytes / (size_t)reg->nranks;

    return each < HKT__CUDA_PATTERN ? each : HKT__CUDA_PATTERN;
}

/** The end of a buffer: a pattern of each rank. */
static size_t end_bytes(const struct hkt__cuda_registered *reg)
{
    return pattern_bytes(reg) * (size_t)reg->nranks;
}

/** Where a rank's pattern goes in the buffer of `owner`. */
static char *place_of(const struct hkt__cuda_registered *reg, int owner, int from)
{
    return (char *)reg->parts[owner] + (reg->bytes - end_bytes(reg)) + pattern_bytes(reg) * (size_t)from;
}

/** Waits in any case: what was enqueued before a failure may still use memory of the caller's. */
static enum hkt_status drain(const struct hkt__cuda_registered *reg, int rc, const char *what)
{
    const int drained = hkt__cuda_drain(reg->module, reg->stream, reg->device);

    if (rc == 0)
        rc = drained;
    return rc == 0 ? HKT_OK : hkt__cuda_failed(reg->module, rc, what);
}

/* --- What memory it is ---------------------------------------------------------------------------------------------- */

/** Why other devices and processes do not map it; NULL: they do. */
static const char *why_not(enum hkt__cuda_kind kind)
{
    static const char *const texts[] = {
        [HKT__CUDA_HOST] = "it is memory of the host",
        [HKT__CUDA_NAMELESS] = "it was made without a handle for other processes (cuMemCreate: requestedHandleTypes must have "
                               "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), or is another process's",
        [HKT__CUDA_POOLED] = "it is of a memory pool (cudaMallocAsync), which cannot be given to others in parts: use cudaMalloc, "
                             "cuMemCreate or hkt_mem_alloc_device",
        [HKT__CUDA_MANAGED] = "it is managed memory, which has no place of its own: use cudaMalloc, cuMemCreate or "
                              "hkt_mem_alloc_device",
    };

    return (size_t)kind < sizeof texts / sizeof *texts ? texts[kind] : "it is of no known kind";
}

/** The buffer's allocation; refuses what nobody but this rank could ever use. */
static enum hkt_status find(const struct hkt__cuda_registered *reg, struct hkt__cuda_memory *out_memory)
{
    const int rc = reg->module->memory_find(reg->data, out_memory);

    if (rc != 0)
        return hkt__cuda_failed(reg->module, rc, "tell what memory it is");
    if (out_memory->kind == HKT__CUDA_MANAGED || out_memory->kind == HKT__CUDA_HOST)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%p cannot be registered: %s", (void *)reg->data, why_not(out_memory->kind));
    if (reg->bytes / HKT__CUDA_REGISTERED_LEAST < (size_t)reg->nranks)
        return hkt__fail(HKT_ERR_INVALID, "%zu bytes are too few to be registered: mappings of %d ranks are tried with %d bytes each",
                         reg->bytes, reg->nranks, HKT__CUDA_REGISTERED_LEAST);
    const size_t offset = (size_t)(reg->data - out_memory->base);

    if (offset > out_memory->bytes || reg->bytes > out_memory->bytes - offset)
        return hkt__fail(HKT_ERR_INVALID, "%zu bytes at %p are more than one allocation: that has %zu more; register each on its own",
                         reg->bytes, (void *)reg->data, out_memory->bytes - offset);
    return HKT_OK;
}

enum hkt_status hkt__cuda_registered_open(struct hkt__cuda_registered *reg, struct hkt__cuda_buffer_offer *out_offer)
{
    const struct hkt__cuda_module *module = reg->module;
    struct hkt__cuda_buffer_offer offer = {.process = hkt__cuda_process_word(), .address = (uint64_t)(uintptr_t)reg->data,
                                           .device = reg->device};
    struct hkt__cuda_memory memory;
    void *words = NULL;
    int rc;

    reg->fd = -1;
    reg->parts[reg->rank] = reg->data;
    enum hkt_status status = find(reg, &memory);

    if (status < 0) {
        reg->module = NULL;
        return status;
    }
    offer.kind = memory.kind;
    offer.offset = (uint64_t)(reg->data - memory.base);
    offer.whole_bytes = memory.bytes;
    rc = module->stream_create(&reg->stream, reg->device);
    if (rc == 0)
        rc = module->device_place(reg->device, offer.place, sizeof offer.place);
    if (rc == 0 && memory.kind == HKT__CUDA_WHOLE)
        rc = module->ipc_handle(memory.base, reg->device, &offer.handle);
    if (rc == 0 && memory.kind == HKT__CUDA_NAMED)
        rc = module->memory_export(reg->data, &reg->fd);
    if (rc == 0)
        rc = module->device_alloc(&words, 2 * end_bytes(reg), reg->device);
    reg->words = words;
    if (rc == 0) {
        unsigned char *kept = hkt__calloc(end_bytes(reg), 1);

        if (kept == NULL)
            status = hkt__fail(HKT_ERR_NOMEM, "no memory to keep the end of a buffer");
        else
            status = drain(reg, module->stream_copy(kept, place_of(reg, reg->rank, 0), end_bytes(reg), reg->stream), "read a buffer");
        if (status == HKT_OK)
            reg->kept = kept;
        else
            hkt__free(kept);
    } else {
        status = hkt__cuda_failed(module, rc, "share a buffer");
    }
    if (status < 0)
        hkt__cuda_registered_close(reg);
    else
        *out_offer = offer;
    return status;
}

/* --- Mappings ------------------------------------------------------------------------------------------------------- */

/** Of another device, or of another process. */
static enum hkt_status map_far(struct hkt__cuda_registered *reg, const struct hkt__cuda_buffer_offer *offer, int peer,
                               hkt__cuda_fetch_fn *fetch, void *arg)
{
    const struct hkt__cuda_module *module = reg->module;
    void *base = NULL;
    int rc, fd = -1;

    if (offer->kind != HKT__CUDA_WHOLE && offer->kind != HKT__CUDA_NAMED)
        return hkt__fail_peer(HKT_ERR_UNSUPPORTED, peer, "the buffer of rank %d cannot be registered: %s", peer,
                              why_not((enum hkt__cuda_kind)offer->kind));
    if (offer->kind == HKT__CUDA_NAMED) {
        const enum hkt_status status = fetch(arg, peer, &fd);

        if (status < 0)
            return status;
        rc = module->memory_import(fd, (size_t)offer->whole_bytes, reg->device, &base);
        close(fd);
    } else {
        rc = module->ipc_open(&offer->handle, reg->device, &base);
    }
    if (rc != 0)
        return hkt__fail_peer(HKT_ERR_UNSUPPORTED, peer, "CUDA: device %d cannot map the buffer of rank %d, device %s: %s",
                              reg->device, peer, offer->place, module->error_text(rc));
    reg->maps[peer].base = base;
    reg->maps[peer].bytes = offer->kind == HKT__CUDA_NAMED ? (size_t)offer->whole_bytes : 0;
    reg->mapped_bytes += (size_t)offer->whole_bytes;
    reg->parts[peer] = (char *)base + offer->offset;
    return HKT_OK;
}

static enum hkt_status map_one(struct hkt__cuda_registered *reg, const struct hkt__cuda_buffer_offer *offers, int peer,
                               hkt__cuda_fetch_fn *fetch, void *arg)
{
    const struct hkt__cuda_buffer_offer *offer = &offers[peer];
    const bool is_near = offer->process == offers[reg->rank].process;
    int rc = 0;

    if (!is_near || (offer->device != reg->device && offer->kind != HKT__CUDA_WHOLE))
        return map_far(reg, offer, peer, fetch, arg);
    if (offer->device != reg->device)
        rc = reg->module->peer_enable(reg->device, offer->device);
    if (rc != 0)
        return hkt__fail_peer(HKT_ERR_UNSUPPORTED, peer, "CUDA: device %d cannot reach the buffer of rank %d, device %s: %s",
                              reg->device, peer, offer->place, reg->module->error_text(rc));
    reg->parts[peer] = (void *)(uintptr_t)offer->address;
    return HKT_OK;
}

static int copy_pattern(const struct hkt__cuda_registered *reg, void *to, const void *from)
{
    return hkt__cuda_copy_by_kernel(reg->module, &(struct hkt__cuda_place){reg->device, reg->stream}, to, from, pattern_bytes(reg));
}

static enum hkt_status write_patterns(const struct hkt__cuda_registered *reg)
{
    const size_t each = pattern_bytes(reg);
    unsigned char *sent = hkt__calloc((size_t)reg->nranks, each);
    int rc;

    if (sent == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to try a buffer of %d ranks", reg->nranks);
    for (int peer = 0; peer < reg->nranks; peer++)
        for (size_t i = 0; i < each; i++)
            sent[(size_t)peer * each + i] = hkt__cuda_pattern_byte(reg->rank, peer, (int)i);
    rc = reg->module->stream_copy(reg->words, sent, end_bytes(reg), reg->stream);
    for (int peer = 0; peer < reg->nranks && rc == 0; peer++)
        if (peer != reg->rank)
            rc = copy_pattern(reg, place_of(reg, peer, reg->rank), reg->words + (size_t)peer * each);
    const enum hkt_status status = drain(reg, rc, "write to the buffer of a peer");

    hkt__free(sent);
    return status;
}

enum hkt_status hkt__cuda_registered_map(struct hkt__cuda_registered *reg, const struct hkt__cuda_buffer_offer *offers,
                                         hkt__cuda_fetch_fn *fetch, void *arg)
{
    enum hkt_status status = HKT_OK;

    for (int peer = 0; peer < reg->nranks && status == HKT_OK; peer++)
        if (peer != reg->rank)
            status = map_one(reg, offers, peer, fetch, arg);
    return status == HKT_OK ? write_patterns(reg) : status;
}

/** What peers wrote to this rank (come), or this one to them: a pattern per peer. */
static enum hkt_status compare(const struct hkt__cuda_registered *reg, const unsigned char *got, bool come)
{
    const size_t each = pattern_bytes(reg);

    for (int peer = 0; peer < reg->nranks; peer++)
        for (size_t i = 0; i < each && peer != reg->rank; i++) {
            const unsigned char want = come ? hkt__cuda_pattern_byte(peer, reg->rank, (int)i)
                                            : hkt__cuda_pattern_byte(reg->rank, peer, (int)i);

            if (got[(size_t)peer * each + i] != want)
                return hkt__fail_peer(HKT_ERR_UNSUPPORTED, peer, "what %s rank %d through a registered buffer is wrong: do ranks "
                                      "register the same memory, or does something use it?",
                                      come ? "came from" : "was read back from", peer);
        }
    return HKT_OK;
}

enum hkt_status hkt__cuda_registered_check(struct hkt__cuda_registered *reg)
{
    const size_t each = pattern_bytes(reg), end = end_bytes(reg);
    unsigned char *seen = hkt__calloc(2, end);
    char *back = reg->words + end;
    enum hkt_status status;
    int rc = 0;

    if (seen == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory to check a buffer of %d ranks", reg->nranks);
    for (int peer = 0; peer < reg->nranks && rc == 0; peer++)
        if (peer != reg->rank)
            rc = copy_pattern(reg, back + (size_t)peer * each, place_of(reg, peer, reg->rank));
    if (rc == 0)
        rc = reg->module->stream_copy(seen, place_of(reg, reg->rank, 0), end, reg->stream);
    if (rc == 0)
        rc = reg->module->stream_copy(seen + end, back, end, reg->stream);
    status = drain(reg, rc, "read the buffer of a peer");
    if (status == HKT_OK)
        status = compare(reg, seen, true);
    if (status == HKT_OK)
        status = compare(reg, seen + end, false);
    hkt__free(seen);
    return status;
}

/* --- The end -------------------------------------------------------------------------------------------------------- */

/** The buffer's last bytes are as they were. Tried again once: they are the user's. */
static enum hkt_status put_back(struct hkt__cuda_registered *reg)
{
    enum hkt_status status = HKT_OK;

    if (reg->kept == NULL)
        return HKT_OK;
    for (int i = 0; i < 2; i++) {
        status = drain(reg, reg->module->stream_copy(place_of(reg, reg->rank, 0), reg->kept, end_bytes(reg), reg->stream),
                       "put back the end of a buffer");
        if (status == HKT_OK)
            break;
    }
    hkt__free(reg->kept);
    reg->kept = NULL;
    return status;
}

enum hkt_status hkt__cuda_registered_settle(struct hkt__cuda_registered *reg)
{
    const struct hkt__cuda_module *module = reg->module;
    const enum hkt_status status = put_back(reg);
    int rc = 0;

    if (reg->fd >= 0)
        close(reg->fd);
    if (reg->words != NULL && module->device_free(reg->words) != 0)
        rc = module->device_free(reg->words); /* once more: it is held by nobody else */
    if (reg->stream != NULL && module->stream_destroy(reg->stream) != 0) {
        const int again = module->stream_destroy(reg->stream);

        rc = rc != 0 ? rc : again;
    }
    reg->fd = -1;
    reg->words = NULL;
    reg->stream = NULL;
    return status < 0 || rc == 0 ? status : hkt__cuda_failed(module, rc, "give up what a registration needed");
}

void hkt__cuda_registered_close(struct hkt__cuda_registered *reg)
{
    const struct hkt__cuda_module *module = reg->module;

    if (module == NULL)
        return;
    (void)!hkt__cuda_registered_settle(reg);
    for (int peer = 0; peer < reg->nranks; peer++) {
        void *base = reg->maps[peer].base;
        const size_t bytes = reg->maps[peer].bytes;

        if (base == NULL)
            continue;
        for (int i = 0; i < 2; i++) /* twice where it fails: nobody is there to be told */
            if ((bytes > 0 ? module->memory_unmap(base, bytes) : module->ipc_close(base, reg->device)) == 0)
                break;
    }
    reg->module = NULL;
}
