/* The parallelism layer, libhocket_parallel: how a model is cut over ranks. It stands on hocket's public calls alone.
 * This header gathers the parts; what they share is the text of failures. */
#ifndef HOCKET_PARALLEL_H
#define HOCKET_PARALLEL_H

#include "hocket/formulas.h"
#include "hocket/generate.h"
#include "hocket/layout.h"
#include "hocket/mesh.h"
#include "hocket/moe.h"
#include "hocket/pipeline.h"
#include "hocket/shard.h"
#include "hocket/status.h"
#include "hocket/step_bytes.h"
#include "hocket/step_memory.h"
#include "hocket/tokens.h"
#include "hocket/train.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Full text of the last failure of a call of this layer in the calling thread: what, where, which numbers, and the
 *  mend. A failure of hocket underneath is quoted. Valid until the thread's next failing call; "" when nothing failed
 *  yet. */
HKT_API const char *hkt_parallel_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
