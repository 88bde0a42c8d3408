/* What the parts of `hocket train` share: options, and what is kept of a run. */
#ifndef HOCKET_TOOLS_TRAIN_H
#define HOCKET_TOOLS_TRAIN_H

#include <hocket/hocket.h>
#include <hocket/parallel.h>
#include <stdbool.h>

#define TRAIN_STAGES_MAX 1024

struct train_options {
    struct hkt_train_config config;
    int stages[TRAIN_STAGES_MAX], nstages; /* layers of each; 0: even */
    char data[4096], mesh[64], tokens[4096];
    long steps, every, save_every, eval_every, eval_batches;
    bool saves_sync, is_fast, shows_groups;
    const char *save, *resume, *weights, *json, *svg, *trace;
};

/** -1: go on; else the exit code. Only `speaks` says what is wrong. */
int train_options_read(int argc, char **argv, bool speaks, struct train_options *out_options);

struct train_point {
    struct hkt_train_report report;
    double held_out; /* NAN: not measured here */
};

/** Bytes of the last step, sent by kind of parallelism, and held at most of each class, in the order of train_axes and
 *  train_classes, all ranks together. */
enum { TRAIN_AXES = 6, TRAIN_CLASSES = 5 };
extern const char *const train_axes[TRAIN_AXES + 1]; /* ends in NULL */
struct train_amounts {
    double sent[TRAIN_AXES], held[TRAIN_CLASSES];
};
struct train_bytes {
    struct train_amounts counted, predicted;
    double buffers; /* held, as counted: scratch of kernels, tables, books; no formula says how much */
};
/** Collective. Returns an exit code, and has said why. */
int train_add_bytes(const struct hkt_trainer *trainer, struct hkt_comm *comm, struct train_bytes *out_bytes);
/** may_leave_early: messages travel while stages compute, so activations may be less than the formula must think. */
void train_print_bytes(const struct train_bytes *bytes, bool may_leave_early);

/** Write the loss over steps as SVG, or the whole run as JSON. Returns an exit code. */
int train_write_svg(const char *path, const struct train_point *points, long count);
struct train_log {
    const struct train_options *options;
    const struct hkt_trainer *trainer;
    const struct train_point *points;
    long count;
    const struct train_bytes *bytes;
};
int train_write_json(const char *path, const struct train_log *log);

#endif
