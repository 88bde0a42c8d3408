/* The trainer, opened: what train.c (making), train_step.c (steps) and train_save.c (checkpoints) share. */
#ifndef HOCKET_PARALLEL_TRAIN_STATE_H
#define HOCKET_PARALLEL_TRAIN_STATE_H

#include "hocket/train.h"
#include "parallel/checkpoint.h"
#include "parallel/data.h"
#include "parallel/engine.h"
#include "parallel/gpt.h"
#include "parallel/hf_config.h"

struct hkt_trainer {
    struct hkt_train_config config; /* strings are NULL */
    struct hkt_comm *comm;          /* borrowed; NULL: one rank */
    struct hkt_comm *save_comm;     /* of saves, which may run in a thread */
    struct hkt_mesh *mesh;
    int rank, nranks;
    struct hkt__memory memory;
    struct hkt__timeline timeline;
    int64_t trace_begin_ns;
    uint64_t peak[HKT__MEMORY_COUNT], step_peak[HKT__MEMORY_COUNT]; /* so far; of the last step */
    uint64_t between;                                               /* held at once since it ended */
    struct hkt__gpt *gpt;
    struct hkt__engine *engine;
    struct hkt__gpt_param *infos; /* [nparams] */
    struct hkt__data data;
    struct hkt_tokenizer *tokenizer; /* NULL: bytes are tokens */
    struct hkt_pipe *pipe, *forward;
    struct hkt__gpt_micro *micros; /* [nmicros], over ids and targets */
    int32_t *ids, *targets;
    int64_t nmicros;
    int64_t step; /* made so far, skipped ones included */
    struct hkt__save *save;
    char hf_config[HKT__HF_CONFIG_MAX]; /* lent to saves */
    bool is_evaluating;
    struct hkt__traffic step_traffic; /* of the last step */
    int64_t dropped;                  /* in it, on this rank */
    struct hkt_step_routing *routing; /* [nmicros][layers] of the last step; NULL: no experts */
    struct hkt_step_unit *units;      /* [layers + 2] */
};

/** The model of a training configuration. Its own axes, not yet cut: what the files of a checkpoint hold. */
struct hkt__gpt_config hkt__train_model(const struct hkt_train_config *config);
/** The tokenizer that config.tokens asks for, the same on all ranks; the text as its tokens; room for them in the vocabulary.
 *  Errors   INVALID, SYSTEM, NOMEM */
HKT_NODISCARD enum hkt_status hkt__train_tokens(struct hkt_trainer *t, const char *tokens);
/** Whether a checkpoint's tokens are those of this run. INVALID */
HKT_NODISCARD enum hkt_status hkt__train_tokens_check(const struct hkt_trainer *t, const char *path);
/** The hooks by which the model reaches the engine. arg is the trainer. */
extern const struct hkt__gpt_hooks hkt__train_hooks;

/** With config.check: tensors that several ranks hold have the same bits. Collective.
 *  Errors   CORRUPT names the tensor and the ranks; NOMEM; those of collectives */
HKT_NODISCARD enum hkt_status hkt__train_check(struct hkt_trainer *trainer);
/** Keep what was counted since `before` as that of the last step. */
void hkt__train_note_traffic(struct hkt_trainer *trainer, const struct hkt__traffic *before);
/** The units of the flat buffers: t->units. NOMEM */
HKT_NODISCARD enum hkt_status hkt__train_list_units(struct hkt_trainer *trainer);
/** The last step, as the formulas need it. */
struct hkt_step_opts hkt__train_step_opts(const struct hkt_trainer *trainer);
struct hkt_step_memory_opts hkt__train_memory_opts(const struct hkt_trainer *trainer);

/* The shape of a model as texts of a checkpoint. */
#define HKT__SHAPE_FIELDS_MAX 24
struct hkt__shape_texts {
    struct hkt__st_meta metas[HKT__SHAPE_FIELDS_MAX];
    char values[HKT__SHAPE_FIELDS_MAX][32];
    int count;
};
void hkt__shape_texts(const struct hkt_train_config *config, struct hkt__shape_texts *out_texts);
/** Read them back into `config`. INVALID: the file names none. */
HKT_NODISCARD enum hkt_status hkt__shape_read(const struct hkt__st_file *file, struct hkt_train_config *config);
/** The shape of the model in a folder: from the texts of model.safetensors, or, where another program wrote it, from config.json.
 *  Errors   INVALID: there is neither; those of hkt__hf_config_read */
HKT_NODISCARD enum hkt_status hkt__shape_find(const char *folder, struct hkt_train_config *config);

#endif
