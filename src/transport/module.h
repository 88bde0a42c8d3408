/* A transport as a module: a shared object hocket_NAME.so that is opened at run time, so that one build of libhocket.so
 * serves machines with and without the libraries that the transport needs (libibverbs, libucp).
 *
 * A module is the transport's own files and module_side.c, linked with that library and with nothing of libhocket.so: what
 * it uses of core (errors, memory, log) reaches it through a table of functions, so that an error recorded in the module
 * is the error of the calling thread, whether libhocket.so or a test program opened it. Stateless files of core (clock.c,
 * siphash.c) are compiled in. The only name it exports is HKT__MODULE_ENTRY.
 *
 * To add one: write the transport against transport.h, define hkt__module_transport in it, add a row to modules.c and a
 * shared_module to src/meson.build. Modules belong to the build of libhocket.so that they lie beside: nothing here is
 * stable between versions, and what does not fit is refused. */
#ifndef HOCKET_TRANSPORT_MODULE_H
#define HOCKET_TRANSPORT_MODULE_H

#include <stddef.h>
#include <stdint.h>

#include "transport/transport.h"

struct hkt__error;

#define HKT__MODULE_ABI 3 /* changes with the two structs below and hkt__tp_caps; what they point to is checked by size and version */
#define HKT__MODULE_ENTRY "hocket_module"

/** What the library lends to a module, for as long as the process lives. Threads: any. */
struct hkt__module_host {
    uint32_t abi;          /* first in every version */
    struct hkt__error *(*error_here)(void);
    enum hkt_status (*fail)(enum hkt_status status, int sys_errno, int peer, const char *text); /* sys_errno 0: none */
    int (*log_level)(int subsystem);
    void (*log)(int subsystem, int level, const char *text);
    void *(*calloc)(size_t count, size_t bytes);
    void *(*calloc_line)(size_t count, size_t bytes);
    void *(*realloc)(void *old, size_t count, size_t bytes);
    void (*free)(void *memory);
    void *(*pages_alloc)(size_t bytes);
    void (*pages_free)(void *memory, size_t bytes);
    enum hkt_status (*settings_get)(const struct hkt__settings **out_settings);
    const struct hkt__tp_ops *(*transport_find)(const char *name);
};

/** What a module answers. */
struct hkt__module {
    uint32_t abi;          /* first in every version */
    uint32_t ops_bytes;    /* sizeof(struct hkt__tp_ops) */
    uint32_t settings_bytes;
    uint32_t version;      /* of hocket, as hkt_version tells it */
    const struct hkt__tp_ops *transport; /* raw: an operation that has a default may be NULL */
};

/** Type of the entry. NULL: the host's ABI is another one. */
typedef const struct hkt__module *hkt__module_entry(const struct hkt__module_host *host);

/** Defined by the module's transport; read by module_side.c. */
extern const struct hkt__tp_ops *const hkt__module_transport;

#endif
