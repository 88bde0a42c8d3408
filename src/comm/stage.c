/* Staging of device buffers: see stage.h. Copies are in the order of CUDA's default stream: after what the program gave the
 * device's blocking streams before, and done when the call returns. */
#include "comm/stage.h"

#include "comm/far.h"
#include "comm/far_net.h"
#include "core/bits.h"
#include "core/mem.h"

#define ALIGN ((size_t)256) /* of the second buffer: as cudaMalloc aligns */

static enum hkt_status failed(const struct hkt__cuda_module *cuda, int rc, const char *what, size_t bytes, int device)
{
    return hkt__fail(HKT_ERR_SYSTEM, "CUDA: cannot %s %zu bytes of device %d: %s", what, bytes, device,
                     cuda->error_text(rc));
}

static enum hkt_status where_is(const struct hkt__cuda_module *cuda, const void *p, int *out_device, bool *out_is_far)
{
    const int rc = cuda->where_is(p, out_device);

    *out_is_far = rc == 0 && *out_device >= 0;
    return rc == 0 ? HKT_OK : hkt__fail(HKT_ERR_SYSTEM, "CUDA cannot tell what memory %p is: %s", p, cuda->error_text(rc));
}

/** On a stream of CUDA's all memory is its device's. */
static enum hkt_status check_far(const struct hkt__call *call)
{
    const struct hkt__staging *s = &call->staging;
    const int device = call->far->device;

    if ((s->in_bytes == 0 || (s->in_is_far && s->in_device == device)) &&
        (s->out_bytes == 0 || (s->out_is_far && s->out_device == device)))
        return HKT_OK;
    return hkt__fail(HKT_ERR_INVALID, "%s on a CUDA stream: all buffers must be memory of its device, %d; calls without a stream, "
                     "or on one of hkt_stream_create, take any", hkt_coll_name(call->coll), device);
}

enum hkt_status hkt__stage_look(struct hkt__call *call)
{
    const struct hkt__cuda_module *cuda = call->comm->cuda;
    struct hkt__staging *s = &call->staging;
    enum hkt_status rc = HKT_OK;

    s->in_is_far = s->out_is_far = false;
    if (call->is_internal)
        return HKT_OK;
    if (cuda == NULL)
        return call->far == NULL ? HKT_OK
                                 : hkt__fail(HKT_ERR_INVALID, "%s was made before this process used CUDA: it does not know "
                                             "of devices", call->comm->name);
    if (s->in_bytes > 0)
        rc = where_is(cuda, call->in, &s->in_device, &s->in_is_far);
    if (rc == HKT_OK && s->out_bytes > 0)
        rc = where_is(cuda, call->out, &s->out_device, &s->out_is_far);
    return rc == HKT_OK && call->far != NULL ? check_far(call) : rc;
}

enum hkt_status hkt__stage_copy(const struct hkt_comm *comm, void *dst, const void *src, size_t bytes, int device)
{
    const int rc = bytes > 0 ? comm->cuda->copy_wait(dst, src, bytes, device) : 0;

    return rc == 0 ? HKT_OK : failed(comm->cuda, rc, "copy", bytes, device);
}

void hkt__stage_free(struct hkt__stage_room *room)
{
    if (room->memory != NULL)
        (void)room->cuda->unpin(room->memory); /* nothing can be done about a failure */
    hkt__pages_free(room->memory, room->bytes);
    *room = (struct hkt__stage_room){0};
}

static enum hkt_status reserve(struct hkt__stage_room *room, const struct hkt__cuda_module *cuda, size_t bytes)
{
    void *memory;
    int rc;

    if (bytes <= room->bytes)
        return HKT_OK;
    hkt__stage_free(room);
    memory = hkt__pages_alloc(bytes);
    if (memory == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for %zu bytes of a call on a device", bytes);
    rc = cuda->pin(memory, bytes);
    if (rc != 0) {
        hkt__pages_free(memory, bytes);
        return hkt__fail(HKT_ERR_NOMEM, "CUDA: cannot pin %zu bytes of a call on a device: %s", bytes,
                         cuda->error_text(rc));
    }
    *room = (struct hkt__stage_room){.memory = memory, .bytes = bytes, .cuda = cuda};
    return HKT_OK;
}

/** Where in the room the two buffers lie, and how much of it they take. In place they keep their distance. */
static size_t lay_out(const struct hkt__call *call, size_t *out_in, size_t *out_out)
{
    const struct hkt__staging *s = &call->staging;
    const size_t in_bytes = s->in_is_far ? s->in_bytes : 0, out_bytes = s->out_is_far ? s->out_bytes : 0;

    *out_in = *out_out = 0;
    if (call->in_place) {
        const ptrdiff_t distance = (const char *)call->out - (const char *)call->in;

        *(distance < 0 ? out_in : out_out) = (size_t)(distance < 0 ? -distance : distance);
    } else {
        *out_out = hkt__round_up(in_bytes, ALIGN);
    }
    return *out_in + in_bytes > *out_out + out_bytes ? *out_in + in_bytes : *out_out + out_bytes;
}

/** Whether the call leaves parts of its output as they were: what lies between blocks. */
static bool leaves_gaps(const struct hkt__call *call)
{
    return call->coll == HKT_ALL_GATHER_V || call->coll == HKT_ALL_TO_ALL_V;
}

enum hkt_status hkt__stage_begin(struct hkt__call *call, struct hkt__stage_room *room)
{
    struct hkt__staging *s = &call->staging;
    size_t in_at, out_at;
    enum hkt_status rc;

    if (!s->in_is_far && !s->out_is_far)
        return HKT_OK;
    if (hkt__far_net_serves(call))
        return hkt__far_net_begin(call);
    rc = reserve(room, call->comm->cuda, lay_out(call, &in_at, &out_at));
    if (rc == HKT_OK && s->out_is_far && leaves_gaps(call))
        rc = hkt__stage_copy(call->comm, room->memory + out_at, call->out, s->out_bytes, s->out_device);
    if (rc == HKT_OK && s->in_is_far)
        rc = hkt__stage_copy(call->comm, room->memory + in_at, call->in, s->in_bytes, s->in_device);
    if (rc < 0)
        return rc;
    s->is_staged = true;
    s->user_in = call->in;
    s->user_out = call->out;
    if (s->in_is_far)
        call->in = room->memory + in_at;
    if (s->out_is_far)
        call->out = room->memory + out_at;
    return HKT_OK;
}

enum hkt_status hkt__stage_end(struct hkt__call *call, enum hkt_status status)
{
    struct hkt__staging *s = &call->staging;

    if (!s->is_staged)
        return status;
    if (status == HKT_OK && s->out_is_far)
        status = hkt__stage_copy(call->comm, s->user_out, call->out, s->out_bytes, s->out_device);
    s->is_staged = false;
    call->in = s->user_in;
    call->out = s->user_out;
    return status;
}
