/* One rank's part in a group of ranks whose devices write to each other's memory: an arena, an allocation of its device that
 * all others map; what this rank mapped of theirs; and proof that it works. CUDA's promises are not enough: a mapping is used
 * only after the device has written a pattern through it, and has read it back. Messages between ranks are the caller's:
 *
 *   open           own arena; the offer goes to all
 *   map            the offers of all; patterns are written        (then: all have mapped)
 *   check          the patterns of all, here and there            (then: all have checked)
 *   close          at any point
 *
 * An arena is freed when nobody maps it: each rank marks those of its peers when it has closed them, so nobody waits. What is
 * still mapped when its owner closes stays on a list of this process. */
#ifndef HOCKET_DEVICE_CUDA_GROUP_H
#define HOCKET_DEVICE_CUDA_GROUP_H

#include <stdbool.h>

#include "device/cuda.h"

#define HKT__CUDA_GROUP_MAX 64 /* ranks: sets of them are words */
#define HKT__CUDA_PATTERN 64   /* bytes that try a mapping: a few vectors of a kernel's stores */

/** How others find an arena. */
struct hkt__cuda_offer {
    uint64_t process, address; /* of those of one process pointers serve */
    char place[32];            /* of the device: ranks that share it say the same */
    int32_t device;            /* its number in that process */
    uint64_t arena_bytes;      /* all ranks alike, or they would write past each other's ends */
    struct hkt__cuda_handle handle;
};

struct hkt__cuda_group {
    const struct hkt__cuda_module *module; /* NULL: closed */
    int rank, nranks, device;
    size_t arena_bytes;        /* asked for; arenas are larger by what the mappings need */
    void *stream;              /* for what is done here */
    void *arenas[HKT__CUDA_GROUP_MAX]; /* where this device sees each rank's; NULL: not mapped */
    bool is_imported[HKT__CUDA_GROUP_MAX];
    uint64_t mapped;           /* set of the peers in arenas */
    int ranks_here;            /* on this device, this one included */
    bool is_one_process;
};

/** module, rank, nranks, device and arena_bytes are set, the rest is zero. OK: *out_offer goes to all; the arena is cleared.
 *  Failures: nothing is open. */
HKT_NODISCARD enum hkt_status hkt__cuda_group_open(struct hkt__cuda_group *group, struct hkt__cuda_offer *out_offer);
/** Maps the arenas of all and writes to them. offers: [nranks]. */
HKT_NODISCARD enum hkt_status hkt__cuda_group_map(struct hkt__cuda_group *group, const struct hkt__cuda_offer *offers);
HKT_NODISCARD enum hkt_status hkt__cuda_group_check(struct hkt__cuda_group *group);
/** Maps the arena of one rank, for those that know others one by one and try mappings themselves. own: this rank's offer. */
HKT_NODISCARD enum hkt_status hkt__cuda_group_map_one(struct hkt__cuda_group *group, int peer,
                                                      const struct hkt__cuda_offer *own,
                                                      const struct hkt__cuda_offer *offer);
/** Memory of the device that the own arena takes, and of others that is mapped beside it; of one process pointers serve. */
size_t hkt__cuda_group_bytes(const struct hkt__cuda_group *group);
size_t hkt__cuda_group_mapped_bytes(const struct hkt__cuda_group *group);
/** Never waits for a peer. mapped_by: the set of peers that may have mapped the own arena, and live. No work of this rank on
 *  the arenas may be outstanding. Nothing to do where open failed or close was called before. */
void hkt__cuda_group_close(struct hkt__cuda_group *group, uint64_t mapped_by);
/** Frees arenas of groups closed here whose peers have closed since. */
void hkt__cuda_arenas_sweep(void);

/** Waits until the stream has done what it was given: 0, or what CUDA said; HKT__CUDA_NOT_READY: it does not end. A question
 *  that fails is asked again, for the work may go on, and use memory of the caller's. */
int hkt__cuda_drain(const struct hkt__cuda_module *module, void *stream, int device);

/** The same in all threads of a process, and in no other. */
uint64_t hkt__cuda_process_word(void);
/** What `from` writes to `to` to try a mapping, a byte of it: no two pairs write alike. */
unsigned char hkt__cuda_pattern_byte(int from, int to, int i);
struct hkt__cuda_place {
    int device;
    void *stream;
};
/** Copies some bytes by a kernel, as what uses a mapping will. */
int hkt__cuda_copy_by_kernel(const struct hkt__cuda_module *module, const struct hkt__cuda_place *on, void *to, const void *from,
                             size_t bytes);

/** A failure of CUDA: "CUDA: cannot <what>: <its text>". */
enum hkt_status hkt__cuda_failed(const struct hkt__cuda_module *module, int rc, const char *what);

#endif
