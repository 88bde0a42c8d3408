/* Checkpoints: a folder per step with two safetensors files, model.safetensors (parameters in the real type, under the names
 * and in the shapes of Hugging Face's GPT-2 where the model has these tensors) and optimizer.safetensors (the moments, as
 * exp_avg.NAME and exp_avg_sq.NAME); config.json if it is a GPT-2; vocab.json and merges.txt where tokens are not bytes. Files say
 * nothing of the layout they were written in: each element is written by the one
 * rank that counts it, at its place in the whole tensor, and each rank of any other layout reads just what it updates.
 *
 * Headers carry checksums (parallel/checksum.h): what was changed since is refused, by name.
 *
 * A save goes to DIR/step-N.tmp, is synced, renamed, and then named in DIR/latest, itself replaced by rename: whatever dies
 * in between, `latest` names a whole checkpoint. With is_async the state is copied and a thread writes it, over a communicator
 * of its own. */
#ifndef HOCKET_PARALLEL_CHECKPOINT_H
#define HOCKET_PARALLEL_CHECKPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "parallel/engine.h"
#include "parallel/gpt.h"
#include "parallel/safetensors.h"
#include "parallel/tokens.h"

/** How the tensors of a model lie in a file. */
struct hkt__files {
    struct hkt__st_tensor *tensors; /* names and shapes; a parameter may be a part of one */
    int ntensors;
    int *tensor;      /* [nparams] */
    int64_t *offset;  /* [nparams] place of its first row (out) in the tensor */
    bool *transposed; /* [nparams] the tensor is [in][out] */
};
/** infos[own->nparams].
 *  Owns     fills *out_files, released by hkt__files_fini
 *  Errors   NOMEM */
HKT_NODISCARD enum hkt_status hkt__files_init(const struct hkt__own *own, const struct hkt__gpt_param *infos,
                                              enum hkt_dtype dtype, struct hkt__files *out_files);
void hkt__files_fini(struct hkt__files *files);

/** Elements that are consecutive in a file, and a constant distance apart in a run. */
struct hkt__file_block {
    int tensor;
    int64_t file_first, count;
    int64_t run_first, run_stride;
};
/** Block `*position` of a run, from 0; false at the end. Advances *position. */
bool hkt__files_next(const struct hkt__files *files, const struct hkt__own *own, const struct hkt__run *run,
                     int64_t *position, struct hkt__file_block *out_block);

struct hkt__checkpoint {
    const struct hkt__own *own;
    const struct hkt__gpt_param *infos; /* [own->nparams] */
    struct hkt__engine *engine;
    const struct hkt__math_ops *ops;
    struct hkt__memory *memory;
    const char *config;                 /* text of config.json, for a save; NULL or "": none */
    struct hkt_comm *comm;              /* all ranks; nobody else may use it during a save. NULL: one rank */
    const struct hkt_tokenizer *tokenizer; /* saved too; NULL: none */
};

struct hkt__save;
/** Start to save as DIR/`name`. Metas end in a NULL key; texts are copied. Collective.
 *  Owns     gives *out_save, released by hkt__save_wait. What `checkpoint` points to must outlive it
 *  Errors   NOMEM, SYSTEM; those of writing come from hkt__save_wait */
HKT_NODISCARD enum hkt_status hkt__save_start(const struct hkt__checkpoint *checkpoint, const char *dir, const char *name,
                                              const struct hkt__st_meta *metas, bool is_async, struct hkt__save **out_save);
/** Wait for the end of a save; all ranks get its status. NULL is allowed. */
HKT_NODISCARD enum hkt_status hkt__save_wait(struct hkt__save *save);

/** Where the checkpoint to resume from lies: DIR itself if it holds model.safetensors, else what DIR/latest names.
 *  Errors   SYSTEM, INVALID: there is none */
HKT_NODISCARD enum hkt_status hkt__checkpoint_find(const char *dir, char *out_path, size_t bytes);
/** Read parameters, and moments unless weights_only, of a folder found by hkt__checkpoint_find. Collective; the same status on
 *  all ranks.
 *  Errors   INVALID names file and tensor: it is missing, or of another shape; or the file: it is damaged. What the engine holds
 *           then is neither old nor new */
HKT_NODISCARD enum hkt_status hkt__checkpoint_load(const struct hkt__checkpoint *checkpoint, const char *path,
                                                   bool weights_only, uint64_t *out_bytes_read);

/** The worst status of all ranks. Where only another rank failed this one's text says so. */
HKT_NODISCARD enum hkt_status hkt__agree(struct hkt_comm *comm, enum hkt_status mine, const char *what);

#endif
