/* Memory of the user's on devices of a group, which all the group's devices map: what hkt_comm_register makes of a buffer that
 * hocket did not allocate. As with arenas (cuda_group.h) a mapping is used only after patterns were written and read through it;
 * they go to the end of the buffer, whose bytes are kept, and put back. Messages between ranks are the caller's:
 *
 *   open           what memory it is, its name for others, its last bytes kept      (then: all have opened)
 *   map            the offers of all; patterns are written                          (then: all have mapped)
 *   check          the patterns of all, here and there                              (then: all have checked)
 *   settle         the buffer is as it was
 *   close          at any point; the memory stays the user's, so its peers must have closed before it is freed
 *
 * Of one process on one device a pointer serves. Elsewhere memory of cudaMalloc is mapped by CUDA IPC, all of the allocation it
 * lies in; memory of cuMemCreate by a file descriptor, which the caller carries. */
#ifndef HOCKET_DEVICE_CUDA_REGISTERED_H
#define HOCKET_DEVICE_CUDA_REGISTERED_H

#include "device/cuda_group.h"

#define HKT__CUDA_REGISTERED_LEAST 4 /* bytes that each rank needs at the end of a buffer, to try it */

/** How others find a buffer. */
struct hkt__cuda_buffer_offer {
    uint64_t process, address;      /* of the buffer: for those of one process */
    char place[32];                 /* of the device */
    int32_t device, kind;           /* its number in that process; enum hkt__cuda_kind */
    uint64_t offset, whole_bytes;   /* of the buffer in its allocation; of that */
    struct hkt__cuda_handle handle; /* of WHOLE memory */
};

struct hkt__cuda_registered {
    const struct hkt__cuda_module *module; /* NULL: closed */
    int rank, nranks, device;
    char *data;
    size_t bytes;                   /* all ranks alike */
    int fd;                         /* of NAMED memory, until the settling; -1: none */
    void *stream;                   /* for what is done here, until the settling */
    void *parts[HKT__CUDA_GROUP_MAX]; /* where this device sees each rank's buffer */
    struct {
        void *base;                 /* NULL: nothing is mapped for it */
        size_t bytes;               /* 0: by IPC */
    } maps[HKT__CUDA_GROUP_MAX];
    size_t mapped_bytes;            /* of all mappings */
    unsigned char *kept;            /* the buffer's last bytes; NULL: they are where they were */
    char *words;                    /* memory of the device: patterns to be sent, and those read back */
};

/** Gives a descriptor of a peer's memory, to be closed by who asks. */
typedef enum hkt_status hkt__cuda_fetch_fn(void *arg, int peer, int *out_fd);

/** module, rank, nranks, device, data and bytes are set, the rest is zero. OK: *out_offer goes to all.
 *  Errors   INVALID: too few bytes, or past the end of their allocation; UNSUPPORTED: nobody else could map such memory;
 *           SYSTEM, NOMEM. Nothing is open then */
HKT_NODISCARD enum hkt_status hkt__cuda_registered_open(struct hkt__cuda_registered *reg, struct hkt__cuda_buffer_offer *out_offer);
/** offers: [nranks]. */
HKT_NODISCARD enum hkt_status hkt__cuda_registered_map(struct hkt__cuda_registered *reg, const struct hkt__cuda_buffer_offer *offers,
                                                       hkt__cuda_fetch_fn *fetch, void *arg);
HKT_NODISCARD enum hkt_status hkt__cuda_registered_check(struct hkt__cuda_registered *reg);
/** No peer may write patterns any more. */
HKT_NODISCARD enum hkt_status hkt__cuda_registered_settle(struct hkt__cuda_registered *reg);
/** Never waits for a peer. No work of this rank on the buffers of peers may be outstanding. Nothing to do where open failed or
 *  close was called before. */
void hkt__cuda_registered_close(struct hkt__cuda_registered *reg);

#endif
