/* Amounts with units in topology texts: exact both ways. */
#ifndef HOCKET_TOPOLOGY_UNITS_H
#define HOCKET_TOPOLOGY_UNITS_H

#include <stdbool.h>
#include <stdint.h>

/** Whole number of bytes per second, nanoseconds, bytes out of "12.5GB/s", "1.5us", "32MiB"; false: no such amount, or it
 *  does not fit, or it is no whole number of the smallest unit. */
bool hkt__parse_rate(const char *text, uint64_t *out_bytes_per_s);
bool hkt__parse_time(const char *text, uint64_t *out_ns);
bool hkt__parse_size(const char *text, uint64_t *out_bytes);

#endif
