/* The parts of `hocket perf`: options (perf_options.c), data and its check (perf_data.c), the measuring loop (perf_run.c),
 * tables and JSON (perf_report.c), lists of gradient sizes (perf_models.c). */
#ifndef HOCKET_TOOLS_PERF_H
#define HOCKET_TOOLS_PERF_H

#include <hocket/hocket.h>
#include <stdbool.h>

#define PERF_PATTERN 1024 /* elements after which the test data repeats */

/** How times of ranks become one: nccl-tests' -a. */
enum perf_average { PERF_RANK0, PERF_MEAN, PERF_MIN, PERF_MAX };

struct perf_options {
    enum hkt_coll coll;
    size_t bytes_min, bytes_max, step_bytes;
    int step_factor;                 /* > 1: multiply, else add step_bytes */
    bool on_device;                  /* buffers in memory of CUDA devices */
    int iters, warmup_iters, check_iters, threads, gpus, blocking, local_register;
    enum perf_average average;
    bool dtypes[HKT_DTYPE_COUNT], ops[HKT_OP_COUNT];
    int root;                        /* -1: every root */
    const char *json_path, *algo, *transport, *replay;
    bool per_tensor;                 /* replay: one call per tensor instead of DDP's buckets */
};

/** 0: go on; otherwise the exit code is *out_code (help or wrong usage). */
int perf_parse(int argc, char **argv, struct perf_options *options, int *out_code);

/** What one rank measured for one size, type, operation, root and placement. */
struct perf_result {
    double time_us;                  /* per operation, averaged over ranks as -a says */
    double p50_us, p99_us;           /* over iterations, each the slowest rank's */
    double algbw, busbw;             /* GB/s, 1 GB = 1e9 bytes */
    int64_t wrong;                   /* elements over all ranks; -1: not checked */
    double wire_bytes;               /* per operation, sent or moved directly by the busiest rank */
};

struct perf_case {
    enum hkt_coll coll;
    enum hkt_dtype dtype;
    enum hkt_op op;
    int root;
    size_t count;                    /* as the API takes it */
    bool in_place;
};

/** One rank's state: its communicator and buffers, large enough for the largest case. */
struct perf_rank {
    struct hkt_comm *comm;
    struct hkt_comm *side;           /* the same ranks: what is not measured, free of forced algorithms */
    const struct perf_options *options;
    int rank, nranks;
    unsigned char *send, *recv;      /* what calls take; on a device, their image on the host */
    unsigned char *far_send, *far_recv; /* what calls take there; NULL: host memory */
    int device;
    struct hkt_stream *stream;       /* of CUDA, on a device; NULL: calls run in this thread */
    size_t buffer_bytes;
    double *times;                   /* per iteration, microseconds */
    size_t *counts, *displs;         /* of v-variants, [nranks] each */
    size_t *peer_counts, *peer_displs;
    unsigned char *inputs, *expected; /* [nranks][PERF_PATTERN], [PERF_PATTERN] elements of 8 bytes at most */
    bool has_told;                   /* that cases in place are left out */
};

/* perf_data.c */
/** Elements of send and receive buffer of a case at this rank. */
void perf_extent(const struct perf_rank *rank, const struct perf_case *c, size_t *out_send, size_t *out_recv);
/** Make the pattern of every rank's input and of the result for this type and operation. */
void perf_make_patterns(struct perf_rank *rank, const struct perf_case *c);
/** Fill the send buffer (or, in place, the own part of the receive buffer) and spoil the rest. */
void perf_fill(struct perf_rank *rank, const struct perf_case *c);
/** Wrong elements in this rank's result; *out_text describes the first. */
int64_t perf_check(struct perf_rank *rank, const struct perf_case *c, char *out_text, size_t text_bytes);
/** Counts and displacements of a v-variant: uneven, some zero, adding up to about nranks * count. */
void perf_make_counts(struct perf_rank *rank, const struct perf_case *c);

/** The buffers' images to the device, and back; nothing to do for host memory. */
HKT_NODISCARD enum hkt_status perf_upload(struct perf_rank *rank);
HKT_NODISCARD enum hkt_status perf_download(struct perf_rank *rank);

/* perf_run.c */
HKT_NODISCARD enum hkt_status perf_call(struct perf_rank *rank, const struct perf_case *c);
HKT_NODISCARD enum hkt_status perf_measure(struct perf_rank *rank, const struct perf_case *c,
                                           struct perf_result *out_result);
/** Bytes of the collective's whole vector, the size column. */
double perf_size_bytes(const struct perf_rank *rank, const struct perf_case *c);
/** busbw = algbw * this (nccl-tests doc/PERFORMANCE.md). */
double perf_bus_factor(enum hkt_coll coll, int nranks);
/** Bytes that the busiest rank must send: size * this; the lower bound of the collective. */
double perf_wire_factor(enum hkt_coll coll, int nranks);

/* perf_report.c: rank 0 prints, the others do nothing. */
struct perf_report;
/** NULL, and said why, when the file for JSON cannot be written. */
struct perf_report *perf_report_open(const struct perf_options *options, const struct perf_rank *rank);
void perf_report_row(struct perf_report *report, const struct perf_case *c, double size_bytes,
                     const struct perf_result results[2]);
/** A line of a replay: name, calls, bytes, seconds. */
void perf_report_replay(struct perf_report *report, const char *what, int calls, double bytes,
                        const struct perf_result *result);
/** How a run ended. */
struct perf_end {
    bool completed;                  /* false: stopped by a failure */
    double cpu_s[2];                 /* user and system time of all ranks */
    double wall_s;
};
/** Footer and JSON file; returns false when the file could not be written. */
bool perf_report_close(struct perf_report *report, const struct perf_end *end);

/* perf_models.c */
/** The parameters of a model in the order gradients become ready (last layer first). */
struct perf_model {
    const char *name;
    size_t *sizes;                   /* elements of each tensor */
    int count;
};
/** False when there is no such model; release sizes with free. */
bool perf_model_make(const char *name, struct perf_model *out_model);
const char *perf_model_names(void);

#endif
