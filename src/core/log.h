/* Debug log to stderr, off by default (HOCKET_DEBUG). Library code never logs a failure instead of returning it. */
#ifndef HOCKET_CORE_LOG_H
#define HOCKET_CORE_LOG_H

#include "hocket/status.h"

enum hkt__log_level { HKT__LOG_ERROR = 1, HKT__LOG_WARN, HKT__LOG_INFO, HKT__LOG_DEBUG, HKT__LOG_TRACE };
enum hkt__log_subsystem { HKT__SUB_CORE, HKT__SUB_BOOT, HKT__SUB_TRANSPORT, HKT__SUB_PLAN, HKT__SUB_EXEC, HKT__SUB_COMM,
                          HKT__SUB_COUNT };

/** Level in force for a subsystem; 0: silent. Cheap: call it before building arguments. */
int hkt__log_level(enum hkt__log_subsystem subsystem);
/** One line, prefixed with time, pid, rank (when known) and subsystem; dropped when the level is not in force. Keeps
 *  errno and the thread's error record as they were. */
void hkt__log(enum hkt__log_subsystem subsystem, enum hkt__log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** Rank shown in the prefix for lines of this thread; -1: unknown. */
void hkt__log_set_rank(int rank);

/** Parse a HOCKET_DEBUG value: comma-separated items, each a level (for all subsystems) or subsystem=level; a later
 *  item wins. Subsystems that no item names become 0. INVALID (out_levels untouched) names the item that is wrong. */
HKT_NODISCARD enum hkt_status hkt__log_parse(const char *text, unsigned char out_levels[HKT__SUB_COUNT]);

/** Test hook, called by hkt__settings_reset: forget the levels in force. */
void hkt__log_reset(void);

#endif
