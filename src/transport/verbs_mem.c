/* Memory of the user that frames are sent from where they lie, without a copy.
 *
 * Only memory that the user gave for it is registered with the devices (hkt_mem_alloc, hkt_comm_register), from then until it
 * is given back, which the user says: so an address that is found here means the pages it meant when it was registered. A cache of
 * registrations of any memory has no such sign. When its owner frees memory and the system maps other pages at the same address,
 * the device still reads the old ones, and wrong bytes are sent without an error; to notice, libraries replace malloc's calls to
 * the system, which this one does not do. Registering for one call alone would be safe, but costs system calls and walks of
 * page tables in every call: so other memory is copied into slots.
 *
 * Only the sender's copy is spared. A receiver reduces out of its slot, without a copy; what it is only to keep it copies once,
 * which took 4 to 7 % of all-gathers of 8 MiB on Soft-RoCE (docs/bench/2026-11-30-rdma.md). That could be spared by naming memory
 * to the peer, but not by a channel alone. Reading it there (RDMA read): a receiver asks for its oldest frame alone, so that each
 * frame of 256 KiB, 3 ms there, costs a round trip of 0.1 to 0.2 ms more: as much as it spares. Writing it to where the receiver
 * says: messages are slices, of one frame, and senders are slices ahead, so that the word comes too late, unless plans say it
 * slices before.
 *
 * Memory of devices is registered by a dmabuf of it, after it was tried (verbs_device.c), for the same reasons only when its owner
 * says so. The pages are the device's: they count for no limit.
 *
 * Bounds: pins per domain, and a quarter of what this process may lock, so that slots of links still fit. */
#include <errno.h>
#include <string.h>

#include "core/log.h"
#include "transport/verbs.h"

static struct hkt__verbs_dom *dom_of(struct hkt__tp_dom *dom)
{
    return (struct hkt__verbs_dom *)dom;
}

static void forget(struct hkt__verbs_pin *pin)
{
    for (int i = 0; i < HKT__VERBS_RAILS_MAX; i++)
        if (pin->mrs[i] != NULL)
            (void)ibv_dereg_mr(pin->mrs[i]);
}

/** With all NICs or none, and not at all where that would take too much. */
static bool pin_memory(struct hkt__verbs_dom *dom, struct hkt__verbs_pin *pin)
{
    const struct hkt__verbs *verbs = dom->verbs;
    const size_t most = hkt__verbs_lockable_bytes() / 4;

    if (dom->pins.count == HKT__VERBS_PINS_MAX || pin->bytes > most || dom->pins.bytes > most - pin->bytes)
        return false;
    for (int i = 0; i < verbs->nrails; i++) {
        pin->mrs[i] = ibv_reg_mr(verbs->rails[i].pd, (void *)pin->first, pin->bytes, 0);
        if (pin->mrs[i] == NULL) {
            forget(pin);
            return false;
        }
    }
    return true;
}

bool hkt__verbs_mem_pin(struct hkt__tp_dom *tp_dom, const void *data, size_t bytes)
{
    struct hkt__verbs_dom *dom = dom_of(tp_dom);
    struct hkt__verbs_pins *pins = &dom->pins;
    struct hkt__verbs_pin pin = {.first = (uintptr_t)data, .bytes = bytes};

    pthread_mutex_lock(&pins->lock);
    const bool ok = pin_memory(dom, &pin);
    const int sys_errno = errno;

    if (ok) {
        pins->pins[pins->count++] = pin;
        pins->bytes += bytes;
    }
    pthread_mutex_unlock(&pins->lock);
    if (!ok)
        hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_INFO, "verbs: %zu KiB at %p are sent by copies: not more than %d such pieces, a "
                 "quarter of `ulimit -l`, or %s", bytes >> 10, data, HKT__VERBS_PINS_MAX, strerror(sys_errno));
    return ok;
}

/** Registers with all NICs or none; NULL: with all. Else the NIC that cannot, and errno. */
static const char *register_device(struct hkt__verbs_dom *dom, const struct hkt__tp_device_memory *memory, struct hkt__verbs_pin *pin)
{
    for (int i = 0; i < dom->verbs->nrails; i++) {
        const struct hkt__verbs_rail *rail = &dom->verbs->rails[i];

#ifdef HKT__HAS_IBV_REG_DMABUF_MR
        pin->mrs[i] = ibv_reg_dmabuf_mr(rail->pd, memory->dmabuf_offset, memory->bytes, (uintptr_t)memory->data, memory->dmabuf, 0);
#else
        (void)memory;
        errno = ENOSYS;
#endif
        if (pin->mrs[i] == NULL) {
            const int sys_errno = errno;

            forget(pin);
            errno = sys_errno;
            return rail->port.device;
        }
    }
    return NULL;
}

enum hkt_status hkt__verbs_mem_pin_device(struct hkt__tp_dom *tp_dom, const struct hkt__tp_device_memory *memory)
{
    struct hkt__verbs_dom *dom = dom_of(tp_dom);
    struct hkt__verbs_pins *pins = &dom->pins;
    struct hkt__verbs_pin pin = {.first = (uintptr_t)memory->data, .bytes = memory->bytes, .is_device = true};
    const char *refused = NULL;

    if (memory->dmabuf < 0)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "verbs needs a dmabuf of memory of devices");
    pthread_mutex_lock(&pins->lock);
    const bool has_room = pins->count < HKT__VERBS_PINS_MAX;

    if (has_room)
        refused = register_device(dom, memory, &pin);
    const int sys_errno = errno;

    if (has_room && refused == NULL)
        pins->pins[pins->count++] = pin;
    pthread_mutex_unlock(&pins->lock);
    if (!has_room)
        return hkt__fail(HKT_ERR_UNSUPPORTED, "verbs registers no more than %d pieces of memory", HKT__VERBS_PINS_MAX);
    if (refused == NULL)
        return HKT_OK;
    return hkt__fail(HKT_ERR_UNSUPPORTED, "%s does not register a dmabuf of %zu KiB of device %d: %s%s", refused, memory->bytes >> 10,
                     memory->device, strerror(sys_errno),
                     sys_errno == EOPNOTSUPP || sys_errno == ENOSYS ? " (it takes an adapter, kernel and rdma-core that know "
                     "ibv_reg_dmabuf_mr)" : "");
}

void hkt__verbs_mem_unpin(struct hkt__tp_dom *tp_dom, const void *data)
{
    struct hkt__verbs_pins *pins = &dom_of(tp_dom)->pins;

    pthread_mutex_lock(&pins->lock);
    for (int i = 0; i < pins->count; i++) {
        if (pins->pins[i].first != (uintptr_t)data)
            continue;
        forget(&pins->pins[i]);
        pins->bytes -= pins->pins[i].is_device ? 0 : pins->pins[i].bytes;
        pins->pins[i] = pins->pins[--pins->count];
        pins->last = 0;
        break;
    }
    pthread_mutex_unlock(&pins->lock);
}

static bool holds(const struct hkt__verbs_pin *pin, const void *data, size_t bytes)
{
    const uintptr_t at = (uintptr_t)data;

    return at >= pin->first && at - pin->first <= pin->bytes && bytes <= pin->bytes - (at - pin->first);
}

bool hkt__verbs_mem_find(struct hkt__verbs_dom *dom, const void *data, size_t bytes, uint32_t out_keys[HKT__VERBS_RAILS_MAX],
                         bool *out_is_device)
{
    struct hkt__verbs_pins *pins = &dom->pins;

    pthread_mutex_lock(&pins->lock);
    int at = pins->last;

    if (at >= pins->count || !holds(&pins->pins[at], data, bytes))
        for (at = 0; at < pins->count && !holds(&pins->pins[at], data, bytes);)
            at++;
    const bool found = at < pins->count;

    if (found)
        *out_is_device = pins->pins[at].is_device;
    for (int i = 0; i < HKT__VERBS_RAILS_MAX && found; i++)
        out_keys[i] = pins->pins[at].mrs[i] != NULL ? pins->pins[at].mrs[i]->lkey : 0;
    pins->last = found ? at : 0;
    pthread_mutex_unlock(&pins->lock);
    return found;
}

void hkt__verbs_mem_fini(struct hkt__verbs_dom *dom)
{
    for (int i = 0; i < dom->pins.count; i++)
        forget(&dom->pins.pins[i]);
    dom->pins.count = 0;
}
