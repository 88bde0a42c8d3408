/* Pinned memory of faulty: see faulty_pins.h. */
#include "transport/faulty_pins.h"

#include <sys/mman.h>
#include <unistd.h>

#include "core/error.h"

void hkt__faulty_pins_init(struct hkt__faulty_pins *pins)
{
    pins->count = 0;
    pthread_mutex_init(&pins->lock, NULL);
}

static void forget(const struct hkt__faulty_pin *pin)
{
    if (pin->map != NULL)
        (void)munmap(pin->map, pin->map_bytes);
}

void hkt__faulty_pins_fini(struct hkt__faulty_pins *pins)
{
    for (int i = 0; i < pins->count; i++)
        forget(&pins->pins[i]);
    pthread_mutex_destroy(&pins->lock);
}

static bool add(struct hkt__faulty_pins *pins, const struct hkt__faulty_pin *pin)
{
    pthread_mutex_lock(&pins->lock);
    const bool has_room = pins->count < HKT__FAULTY_PINS_MAX;

    if (has_room)
        pins->pins[pins->count++] = *pin;
    pthread_mutex_unlock(&pins->lock);
    return has_room;
}

bool hkt__faulty_pin(struct hkt__faulty_pins *pins, const void *data, size_t bytes)
{
    return add(pins, &(struct hkt__faulty_pin){.first = (uintptr_t)data, .bytes = bytes, .reach = data});
}

enum hkt_status hkt__faulty_pin_device(struct hkt__faulty_pins *pins, const struct hkt__tp_device_memory *memory)
{
    struct hkt__faulty_pin pin = {.first = (uintptr_t)memory->data, .bytes = memory->bytes};
    /* A file may stand for a part of itself, from where it is positioned. */
    const off_t at = memory->dmabuf >= 0 ? lseek(memory->dmabuf, 0, SEEK_CUR) : 0;
    const size_t offset = (size_t)memory->dmabuf_offset;

    pin.map_bytes = offset + memory->bytes;
    pin.map = mmap(NULL, pin.map_bytes, PROT_READ, MAP_SHARED, memory->dmabuf, at > 0 ? at : 0);
    if (pin.map == MAP_FAILED)
        return hkt__fail_sys(HKT_ERR_UNSUPPORTED, "faulty cannot map a dmabuf of device %d", memory->device);
    pin.reach = (const char *)pin.map + offset;
    if (add(pins, &pin))
        return HKT_OK;
    forget(&pin);
    return hkt__fail(HKT_ERR_UNSUPPORTED, "faulty pins no more than %d pieces of memory", HKT__FAULTY_PINS_MAX);
}

void hkt__faulty_unpin(struct hkt__faulty_pins *pins, const void *data)
{
    int i = 0;

    pthread_mutex_lock(&pins->lock);
    while (i < pins->count && pins->pins[i].first != (uintptr_t)data)
        i++;
    if (i < pins->count) {
        forget(&pins->pins[i]);
        pins->pins[i] = pins->pins[--pins->count];
    }
    pthread_mutex_unlock(&pins->lock);
}

const char *hkt__faulty_reach(struct hkt__faulty_pins *pins, const void *data, size_t bytes)
{
    const uintptr_t at = (uintptr_t)data;
    const char *reach = NULL;

    pthread_mutex_lock(&pins->lock);
    for (int i = 0; i < pins->count && reach == NULL; i++) {
        const struct hkt__faulty_pin *pin = &pins->pins[i];

        if (at >= pin->first && at - pin->first <= pin->bytes && bytes <= pin->bytes - (at - pin->first))
            reach = pin->reach + (at - pin->first);
    }
    pthread_mutex_unlock(&pins->lock);
    return reach;
}
