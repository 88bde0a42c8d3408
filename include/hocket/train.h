/* Training a GPT on text, in any layout. One rank calls the same as all others; every call is collective
 * over the communicator, unless said. What a layout changes is speed and memory, not what is computed: sequences are chosen by
 * step and place in the batch, dropout and first parameters by place in the whole tensor.
 *
 * Bits: with reductions in rank order (HOCKET_DETERMINISTIC=rank_order, which `hocket train` sets) the ZeRO stages, sizes of
 * buckets, prefetch, overlap and pipeline schedules give the same bits; other counts of ranks differ by rounding. */
#ifndef HOCKET_TRAIN_H
#define HOCKET_TRAIN_H

#include <stdint.h>

#include "hocket/comm.h"
#include "hocket/formulas.h"
#include "hocket/layout.h"
#include "hocket/step_bytes.h"
#include "hocket/step_memory.h"
#include "hocket/tokens.h"

#ifdef __cplusplus
extern "C" {
#endif

enum hkt_train_norm { HKT_TRAIN_LAYER_NORM, HKT_TRAIN_RMS_NORM };
enum hkt_train_optimizer { HKT_TRAIN_ADAMW, HKT_TRAIN_SGD };

/** What to train, how, and how it is cut. Start from hkt_train_defaults. Strings are borrowed during the call. */
struct hkt_train_config {
    struct hkt_shape shape;   /* vocab is as many as there are tokens, or more; less: it becomes that */
    struct hkt_layout layout; /* nranks: of the communicator; global_batch, micro_batch, seq: of a step */
    const int *stage_layers;  /* [pp * chunks] of each stage, chunk after chunk; NULL: as even as can be. Borrowed for the call */
    const char *mesh;         /* order of axes, as in hocket/mesh.h; NULL: "tp dp pp" */
    enum hkt_dtype dtype;     /* F32, F64, or BF16 with F32 masters and gradients */
    enum hkt_train_norm norm;
    double dropout;           /* after embedding, attention and MLP */
    double attention_dropout; /* of attention's weights */
    uint64_t seed;            /* of first parameters, dropout, and the choice of sequences */
    enum hkt_recompute recompute;
    double capacity_factor, balance_weight, z_weight; /* of experts; capacity 0: no token is dropped */

    const char *data;         /* a text; NULL: the licences in /usr/share/common-licenses */
    int threads;              /* of a rank's matrix products; 0: its share of the cores that this process may use */
    double held_out;          /* share at its end that is not trained on, for hkt_trainer_evaluate */
    const char *tokens;       /* NULL or "bytes": bytes; "bpe:4096": as many pieces (hocket/tokens.h), learned from what is trained on;
                               * else a folder with vocab.json and merges.txt */

    enum hkt_train_optimizer optimizer;
    double lr, lr_min;        /* after warm-up lr falls along a cosine to lr_min at decay_steps */
    int64_t warmup_steps, decay_steps; /* 0: no warm-up; no decay */
    double beta1, beta2, eps, weight_decay, momentum, clip; /* clip 0: no clipping */
    double loss_scale;        /* first loss scale; 0: none */

    int64_t bucket_bytes;     /* of gradients, 0: 4 MiB, or a layer in stages 2 and 3 */
    int prefetch;             /* stage 3: layers gathered ahead */
    int overlap;              /* 1: gradients travel during backward, and messages between stages during compute */
    int keep_gathered;        /* stage 3: 1: parameters stay from forward to backward */
    int reduce_every;         /* stages 2, 3: 1: gradients are reduced after every micro-batch */
    int check;                /* 1: after each step, parameters that several ranks hold are compared, to the bit (stages 0 to 2) */
};

HKT_API struct hkt_train_config hkt_train_defaults(void);

struct hkt_trainer;

/** Refuses what cannot be (hkt_layout_check and more) before anything is allocated. The communicator is borrowed; NULL: one rank.
 *  Owns     gives *out_trainer, released by hkt_trainer_destroy
 *  Errors   INVALID, UNSUPPORTED name the numbers (hkt_parallel_last_error); SYSTEM: the text cannot be read; NOMEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_trainer_create(const struct hkt_train_config *config, struct hkt_comm *comm,
                                                         struct hkt_trainer **out_trainer);
/** Waits for a save in progress. NULL is allowed. */
HKT_API enum hkt_status hkt_trainer_destroy(struct hkt_trainer *trainer);

/** What a step did. Equal on all ranks, times and memory excepted. */
struct hkt_train_report {
    int64_t step;           /* from 1 */
    int64_t tokens;         /* of this step, on all ranks */
    double loss;            /* mean over tokens, in nats */
    double balance, z;      /* the losses of experts, weighted as they were added; 0 without */
    double grad_norm;       /* before clipping */
    double lr, loss_scale;
    int skipped;            /* 1: gradients overflowed, parameters did not change */
    int64_t dropped;        /* choices of experts that found no room */
    double seconds;         /* on this rank */
    double comm_seconds;    /* of them, stood still for communication of any kind: what is not hidden behind computing */
    uint64_t memory_bytes;  /* most that this rank held at once since the last report */
};
/** Errors   those of collectives; CORRUPT, with config.check: names ranks that should hold the same and do not. No step can follow */
HKT_API HKT_NODISCARD enum hkt_status hkt_trainer_step(struct hkt_trainer *trainer, struct hkt_train_report *out_report);

/** Mean loss on held-out text: the same `batches` global batches at each call.
 *  Errors   INVALID: nothing is held out, or it is shorter than a sequence */
HKT_API HKT_NODISCARD enum hkt_status hkt_trainer_evaluate(struct hkt_trainer *trainer, int batches, double *out_loss);

/** Save as DIR/step-N; DIR/latest then names it. Hugging Face's transformers loads that folder where the model is a GPT-2. With is_async it returns when the state is copied; the next save, or destroy,
 *  waits and says how it ended. */
HKT_API HKT_NODISCARD enum hkt_status hkt_trainer_save(struct hkt_trainer *trainer, const char *dir, int is_async);
/** Go on from the checkpoint that DIR/latest names, or that DIR is, in whatever layout it was made. Bit for bit as if there had
 *  been no stop, in the same layout.
 *  Errors   INVALID names what differs between its model or tokens and this one's, or what is wrong with its files; SYSTEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_trainer_resume(struct hkt_trainer *trainer, const char *dir);
/** Take only parameters, for instance from GPT-2's model.safetensors as Hugging Face has it.
 *  Errors   INVALID names the tensor that is missing or of another shape, or the number of heads; SYSTEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_trainer_load_weights(struct hkt_trainer *trainer, const char *dir);
/** The shape and norm of the model that such a DIR holds, for a trainer to be made; all else in *config stays. Not collective.
 *  Errors   INVALID: DIR does not tell; UNSUPPORTED names what is not as in GPT-2; SYSTEM. *config is untouched */
HKT_API HKT_NODISCARD enum hkt_status hkt_train_shape(const char *dir, struct hkt_train_config *config);

/** Keep what ranks compute, communicate and wait for from now on (is_on 1), or stop (0). Times count from here; ranks leave a
 *  barrier then, which aligns different hosts to some microseconds. */
HKT_API HKT_NODISCARD enum hkt_status hkt_trainer_trace(struct hkt_trainer *trainer, int is_on);
/** What was kept on all ranks: rank 0 writes the file, in the Chrome trace format (chrome://tracing, ui.perfetto.dev), a process
 *  a rank, a thread for what computes and one for streams.
 *  Errors   SYSTEM: the file cannot be written; NOMEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_trainer_trace_write(struct hkt_trainer *trainer, const char *path);

/* Not collective. */
HKT_API int64_t hkt_trainer_params(const struct hkt_trainer *trainer); /* of the whole model */
HKT_API int64_t hkt_trainer_steps(const struct hkt_trainer *trainer);
/** The map of groups, "tp:2 dp:2 pp:1". */
HKT_API const char *hkt_trainer_mesh(const struct hkt_trainer *trainer);
HKT_API int64_t hkt_trainer_data_bytes(const struct hkt_trainer *trainer);
HKT_API int64_t hkt_trainer_data_tokens(const struct hkt_trainer *trainer);
/** How the text became tokens: borrowed; NULL: bytes are the tokens. */
HKT_API const struct hkt_tokenizer *hkt_trainer_tokenizer(const struct hkt_trainer *trainer);

/** Bytes of the vectors that collectives of this rank worked on so far, by kind of parallelism ("dp", "tp", "sp", "pp", "ep");
 *  "scalars" (losses and norms); 0 for another name. */
HKT_API uint64_t hkt_trainer_bytes(const struct hkt_trainer *trainer, const char *axis);
/** Seconds that this rank stood still for communication of that kind so far. */
HKT_API double hkt_trainer_waited(const struct hkt_trainer *trainer, const char *axis);
/** Of the last step, by kind of parallelism and of collective: as counted, and as the formulas say without looking. Equal, but for
 *  experts, to which an uneven routing sends more from one rank than from another: there the sums over all ranks are equal. */
HKT_API HKT_NODISCARD enum hkt_status hkt_trainer_step_bytes(const struct hkt_trainer *trainer, struct hkt_step_bytes *out_counted,
                                                             struct hkt_step_bytes *out_predicted);
/** The most that this rank held in the last step, by class: as counted, and as the formulas say without looking. Equal, but for
 *  activations of a pipeline whose messages travel while it computes, which may be less. */
HKT_API HKT_NODISCARD enum hkt_status hkt_trainer_step_memory(const struct hkt_trainer *trainer, struct hkt_step_memory *out_counted,
                                                              struct hkt_step_memory *out_predicted);
/** Most bytes held so far of one class: "param", "grad", "main_grad", "optimizer", "activation", "buffer", "comm". */
HKT_API uint64_t hkt_trainer_memory(const struct hkt_trainer *trainer, const char *kind);

#ifdef __cplusplus
}
#endif
#endif
