/* Where elements of parameters lie in files: parts of one tensor (q, k, v), and transposed ones. */
#include <stdio.h>
#include <string.h>

#include "parallel/alloc.h"
#include "parallel/checkpoint.h"
#include "parallel/fail.h"

static int find_or_add(struct hkt__files *files, const char *name)
{
    for (int t = files->ntensors - 1; t >= 0; t--)
        if (strcmp(files->tensors[t].name, name) == 0)
            return t;
    snprintf(files->tensors[files->ntensors].name, HKT__ST_NAME_MAX, "%s", name);
    return files->ntensors++;
}

/* Rows of parts that come before. */
static int64_t rows_before(const struct hkt__files *files, const struct hkt__own *own, const struct hkt__gpt_param *infos,
                           int param)
{
    int64_t rows = 0;

    for (int i = 0; i < own->nparams && infos[param].file_parts > 1; i++)
        if (files->tensor[i] == files->tensor[param] && infos[i].file_part < infos[param].file_part)
            rows += own->params[i].shape[0];
    return rows;
}

static void add_shape(struct hkt__st_tensor *tensor, const struct hkt__param *param, bool transposed)
{
    const bool is_first = tensor->ndims == 0;

    tensor->ndims = param->ndims;
    for (int d = 0; d < param->ndims; d++) {
        const int to = transposed ? param->ndims - 1 - d : d;

        tensor->shape[to] = d == 0 && !is_first ? tensor->shape[to] + param->shape[0] : param->shape[d];
    }
}

enum hkt_status hkt__files_init(const struct hkt__own *own, const struct hkt__gpt_param *infos, enum hkt_dtype dtype,
                                struct hkt__files *out_files)
{
    const size_t n = (size_t)own->nparams + 1;
    struct hkt__files files = { .tensors = hkt__parallel_calloc(n, sizeof *files.tensors),
                                .tensor = hkt__parallel_calloc(n, sizeof *files.tensor),
                                .offset = hkt__parallel_calloc(n, sizeof *files.offset),
                                .transposed = hkt__parallel_calloc(n, sizeof *files.transposed) };

    if (files.tensors == NULL || files.tensor == NULL || files.offset == NULL || files.transposed == NULL) {
        hkt__files_fini(&files);
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for the list of a checkpoint's tensors");
    }
    for (int i = 0; i < own->nparams; i++) {
        const bool has_file_name = infos[i].file_name[0] != '\0';

        files.tensor[i] = find_or_add(&files, has_file_name ? infos[i].file_name : own->params[i].name);
        files.transposed[i] = infos[i].file_transposed != 0 && own->params[i].ndims == 2;
        add_shape(&files.tensors[files.tensor[i]], &own->params[i], files.transposed[i]);
        files.tensors[files.tensor[i]].dtype = dtype;
    }
    for (int i = 0; i < own->nparams; i++)
        files.offset[i] = rows_before(&files, own, infos, i);
    *out_files = files;
    return HKT_OK;
}

void hkt__files_fini(struct hkt__files *files)
{
    hkt__parallel_free(files->tensors);
    hkt__parallel_free(files->tensor);
    hkt__parallel_free(files->offset);
    hkt__parallel_free(files->transposed);
    *files = (struct hkt__files){ 0 };
}

/* A run of a transposed matrix is a part of a row, whole rows, a part of a row, each maybe missing. Position counts columns
 * over these three. */
static bool next_transposed(const struct hkt__files *files, const struct hkt__own *own, const struct hkt__run *run,
                            int64_t *position, struct hkt__file_block *out)
{
    const int64_t cols = own->params[run->param].shape[1], first = run->global_first, end = first + run->count;
    const int64_t out_all = files->tensors[files->tensor[run->param]].shape[1];
    int64_t at = first, skip = *position;

    while (at < end) {
        const int64_t col = at % cols, rest = end - at;
        const int64_t width = col > 0 || rest < cols ? (rest < cols - col ? rest : cols - col) : cols;
        const int64_t rows = col > 0 || rest < cols ? 1 : rest / cols;

        if (skip < width) {
            out->tensor = files->tensor[run->param];
            out->file_first = (col + skip) * out_all + files->offset[run->param] + at / cols;
            out->count = rows;
            out->run_first = at - first + skip;
            out->run_stride = cols;
            ++*position;
            return true;
        }
        skip -= width;
        at += rows * width;
    }
    return false;
}

bool hkt__files_next(const struct hkt__files *files, const struct hkt__own *own, const struct hkt__run *run,
                     int64_t *position, struct hkt__file_block *out_block)
{
    const struct hkt__param *param = &own->params[run->param];
    int64_t row = 1;

    if (files->transposed[run->param])
        return next_transposed(files, own, run, position, out_block);
    if (*position > 0)
        return false;
    for (int d = 1; d < param->ndims; d++)
        row *= param->shape[d];
    *position = 1;
    out_block->tensor = files->tensor[run->param];
    out_block->file_first = files->offset[run->param] * row + run->global_first;
    out_block->count = run->count;
    out_block->run_first = 0;
    out_block->run_stride = 1;
    return true;
}
