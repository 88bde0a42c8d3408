/* What the subcommands of `hocket` share. Each subcommand is one function in a file of its own and one row of the table
 * in hocket.c. The tools use the public headers alone. */
#ifndef HOCKET_TOOLS_H
#define HOCKET_TOOLS_H

#include <stdbool.h>
#include <stdio.h>

#include "hocket/coll.h"
#include "hocket/topo.h"

struct cJSON;

enum tool_exit {
    TOOL_OK = 0,
    TOOL_FAILED = 1, /* it ran, and something was wrong: bad data, a rank that failed, a refused plan */
    TOOL_USAGE = 2,  /* it was called wrongly */
};

/** Subcommands: argv[0] is the subcommand's name; the result is the exit code. */
int hkt_tool_run(int argc, char **argv);
int hkt_tool_perf(int argc, char **argv);
int hkt_tool_info(int argc, char **argv);
int hkt_tool_doctor(int argc, char **argv);
int hkt_tool_verify(int argc, char **argv);
int hkt_tool_explain(int argc, char **argv);
int hkt_tool_tune(int argc, char **argv);
int hkt_tool_topo(int argc, char **argv);
int hkt_tool_train(int argc, char **argv);
int hkt_tool_generate(int argc, char **argv);

/** "hocket COMMAND: ..." on stderr; command NULL: "hocket: ...". */
void hkt_tool_say(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** The same for a wrong call: adds the line that tells where help is. Returns TOOL_USAGE. */
int hkt_tool_usage(const char *command, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Whether this is rank 0, or a process alone, before ranks have met: whoever started them says so in the environment. */
bool hkt_tool_is_first(void);
/** Whole decimal number in [min, max]; false (nothing stored) otherwise. */
bool hkt_tool_parse_int(const char *text, long min, long max, long *out_value);
/** Bytes with a binary suffix, "64K"; false when it is none. */
bool hkt_tool_parse_bytes(const char *text, size_t *out_bytes);
/** CPUs that this process may use: of a container's machine these may be few. At least 1. */
int hkt_tool_cpus(void);
/** Whether the choice of algorithm may hang on being in place: where all ranks must agree on it. */
bool hkt_tool_in_place_counts(enum hkt_coll coll);
/** Nodes of a kind. */
int hkt_tool_count(const struct hkt_topo *topo, enum hkt_topo_kind kind);
/** Print to stdout and free; returns the exit code. */
int hkt_tool_print_json(const char *command, struct cJSON *root);

#endif
