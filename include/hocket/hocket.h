/* hocket: collective communication. This umbrella includes the public headers and nothing else. */
#ifndef HOCKET_HOCKET_H
#define HOCKET_HOCKET_H

#include "hocket/coll.h"
#include "hocket/comm.h"
#include "hocket/device.h"
#include "hocket/info.h"
#include "hocket/mem.h"
#include "hocket/plan.h"
#include "hocket/status.h"
#include "hocket/stream.h"
#include "hocket/topo.h"
#include "hocket/tune.h"
#include "hocket/types.h"

#endif
