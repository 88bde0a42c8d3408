/* Transports that are modules (module.h), as the registry sees them. */
#ifndef HOCKET_TRANSPORT_MODULES_H
#define HOCKET_TRANSPORT_MODULES_H

#include "transport/transport.h"

/** The stand-in of module i, NULL past the end: its name and summary hold at once; probe, query and open open the module,
 *  and an instance's ops are the module's own. Its other operations are NULL. */
const struct hkt__tp_ops *hkt__module_stub(int index);

/** Fill in the operations that a table leaves out; transport.c. */
void hkt__transport_fill(struct hkt__tp_ops *table);

#endif
