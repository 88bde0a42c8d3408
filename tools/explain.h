/* The parts of `hocket explain`: schedules and lists (explain.c), the choice of algorithm (explain_why.c). */
#ifndef HOCKET_TOOLS_EXPLAIN_H
#define HOCKET_TOOLS_EXPLAIN_H

#include <stdbool.h>

#include "hocket/plan.h"

/** What --why is asked. */
struct explain_why {
    struct hkt_choice_query choice; /* without machines */
    const char *machines, *by;      /* a file or a line, and what a rank gets; NULL: default */
    bool json;
};

/** Print which algorithm would be chosen, and why; the exit code. */
int explain_why(const struct explain_why *request);

#endif
