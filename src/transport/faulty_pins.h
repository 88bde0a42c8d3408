/* What faulty knows as pinned: memory that it may read late, as an adapter does; of devices by their dmabuf. */
#ifndef HOCKET_TRANSPORT_FAULTY_PINS_H
#define HOCKET_TRANSPORT_FAULTY_PINS_H

#include <pthread.h>

#include "transport/transport.h"

#define HKT__FAULTY_PINS_MAX 64 /* per domain */

struct hkt__faulty_pin {
    uintptr_t first;
    size_t bytes;
    const char *reach;            /* where its bytes are read: at first, or in a mapping of its dmabuf */
    void *map;                    /* that mapping; NULL: none */
    size_t map_bytes;
};

struct hkt__faulty_pins {
    pthread_mutex_t lock;         /* pin and unpin (any thread) against the domain's, which looks things up */
    struct hkt__faulty_pin pins[HKT__FAULTY_PINS_MAX]; /* [0, count) */
    int count;
};

void hkt__faulty_pins_init(struct hkt__faulty_pins *pins);
void hkt__faulty_pins_fini(struct hkt__faulty_pins *pins);
/** False: there is no room for more. */
bool hkt__faulty_pin(struct hkt__faulty_pins *pins, const void *data, size_t bytes);
/** UNSUPPORTED: the dmabuf cannot be mapped (those of GPUs cannot, those of tests can). */
HKT_NODISCARD enum hkt_status hkt__faulty_pin_device(struct hkt__faulty_pins *pins, const struct hkt__tp_device_memory *memory);
void hkt__faulty_unpin(struct hkt__faulty_pins *pins, const void *data);
/** Where the bytes of pinned memory are read; NULL: it is not pinned. */
const char *hkt__faulty_reach(struct hkt__faulty_pins *pins, const void *data, size_t bytes);

#endif
