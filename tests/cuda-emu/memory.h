/* Memory as memory.c keeps it, and what else maps some: driver.c. */
#ifndef HOCKET_CUDA_EMU_MEMORY_H
#define HOCKET_CUDA_EMU_MEMORY_H

#include "runtime.h"

#define GRAIN ((size_t)65536) /* a guard page wide enough for a vector loop to be caught */

/* Pinned: the program's own. Mapped: by cuMemMap. */
enum kind { KIND_DEVICE, KIND_HOST, KIND_PINNED, KIND_IMPORTED, KIND_POOL, KIND_MANAGED, KIND_MAPPED };

struct region {
    struct region *next;
    char *base, *map;
    char *reach; /* where the runtime itself reads and writes what lies at base: there, or a second mapping */
    size_t bytes, map_bytes;
    int device, fd, references;
    enum kind kind;
    cudaIpcMemHandle_t handle; /* of an imported one */
    struct emu_memory *memory; /* of a mapped one */
};

/** The region that p lies in; NULL: none. Under emu_runtime.lock. */
struct region *emu_region_find(const void *p);
/** Puts one on the list. Without the lock. */
void emu_region_list(struct region *region);
/** Takes it off. Under the lock. */
void emu_region_unlist(const struct region *region);

#endif
