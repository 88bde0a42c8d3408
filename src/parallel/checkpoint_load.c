/* Reading checkpoints: each rank reads the elements that it updates, wherever and by how many ranks they were written. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "parallel/checkpoint.h"
#include "parallel/fail.h"

#define READ_ELEMS 8192

enum hkt_status hkt__agree(struct hkt_comm *comm, enum hkt_status mine, const char *what)
{
    int32_t send[2] = { mine < 0 ? (int32_t)mine : 0, 0 }, worst[2] = { 0, 0 };

    if (comm == NULL)
        return mine;
    send[1] = mine < 0 ? INT32_MAX - hkt_comm_rank(comm) : 0; /* the largest is of the lowest rank that failed */
    const enum hkt_status rc = hkt_all_reduce(&send[0], &worst[0], 1, HKT_INT32, HKT_MIN, comm, NULL);
    const enum hkt_status rc2 = rc == HKT_OK ? hkt_all_reduce(&send[1], &worst[1], 1, HKT_INT32, HKT_MAX, comm, NULL) : rc;

    if (rc2 < 0)
        return hkt__parallel_pass(rc2, what);
    if (mine < 0 || worst[0] == 0)
        return mine;
    return hkt__parallel_fail((enum hkt_status)worst[0], "%s: rank %d failed (%s)", what, INT32_MAX - worst[1],
                              hkt_status_text((enum hkt_status)worst[0]));
}

/* Weights in a form that is not read: the file's path. */
static bool is_other_form(const char *dir, char *path, size_t bytes)
{
    static const char *const names[] = { "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, bytes, "%s/%s", dir, names[i]);
        if (access(path, F_OK) == 0)
            return true;
    }
    return false;
}

enum hkt_status hkt__checkpoint_find(const char *dir, char *out_path, size_t bytes)
{
    char path[HKT__ST_PATH_MAX], name[128] = "";

    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    if (access(path, F_OK) == 0) {
        snprintf(out_path, bytes, "%s", dir);
        return HKT_OK;
    }
    snprintf(path, sizeof path, "%s/latest", dir);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t got = fd < 0 ? -1 : read(fd, name, sizeof name - 1);
    const int error = errno;

    if (fd >= 0)
        close(fd);
    if (got <= 0 && is_other_form(dir, path, sizeof path))
        return hkt__parallel_fail(HKT_ERR_UNSUPPORTED, "%s: what can be read is one model.safetensors; save the model as that (transformers: "
                                  "save_pretrained with a max_shard_size above its size)", path);
    if (got <= 0)
        return hkt__parallel_fail(fd < 0 ? HKT_ERR_SYSTEM : HKT_ERR_INVALID,
                                  "%s holds no checkpoint: neither model.safetensors nor a readable \"latest\" (%s)", dir,
                                  fd < 0 ? strerror(error) : "it is empty");
    name[strcspn(name, "\n")] = '\0';
    if (strchr(name, '/') != NULL)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%s does not name a checkpoint: \"%s\"", path, name);
    snprintf(out_path, bytes, "%s/%s", dir, name);
    /* Who died while saving the same step again left the first one under this name. */
    if (access(out_path, F_OK) < 0)
        snprintf(out_path, bytes, "%s/%s.old", dir, name);
    return access(out_path, F_OK) == 0
               ? HKT_OK
               : hkt__parallel_fail(HKT_ERR_INVALID, "%s names %s, which is not there", path, name);
}

/* ---- numbers of other types ---- */

static double from_half(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double sign = bits >> 15 ? -1 : 1;

    if (exponent == 31)
        return mantissa != 0 ? (double)__builtin_nanf("") : sign * __builtin_inf();
    return sign * __builtin_ldexp(exponent == 0 ? mantissa : mantissa + 1024, (exponent == 0 ? 1 : exponent) - 25);
}

static double as_double(const void *from, int64_t i, enum hkt_dtype dtype)
{
    float single;
    double value = 0;
    uint16_t half;
    uint32_t wide;

    switch (dtype) {
    case HKT_F64:
        memcpy(&value, (const char *)from + 8 * i, 8);
        return value;
    case HKT_F32:
        memcpy(&single, (const char *)from + 4 * i, 4);
        return (double)single;
    case HKT_BF16:
        memcpy(&half, (const char *)from + 2 * i, 2);
        wide = (uint32_t)half << 16;
        memcpy(&single, &wide, 4);
        return (double)single;
    default:
        memcpy(&half, (const char *)from + 2 * i, 2);
        return from_half(half);
    }
}

/* ---- reading ---- */

struct reader {
    const struct hkt__checkpoint *checkpoint;
    const struct hkt__files *files;
    const struct hkt__st_file *file;
    const struct hkt__math_ops *real_ops;
    enum hkt__state state;
    const char *prefix;
    uint64_t bytes;
    /* Checksums: of what this rank read and counts; of the file, where it has them. */
    uint64_t sum[HKT__STATE_COUNT], want[HKT__STATE_COUNT];
    bool is_sealed[HKT__STATE_COUNT];
    char step[32]; /* that the first file is of */
};

static enum hkt_status read_block(struct reader *r, const struct hkt__st_tensor *tensor, const struct hkt__file_block *block,
                                  char *run, bool is_counted)
{
    const size_t size = hkt_dtype_size(tensor->dtype), bytes = r->checkpoint->ops->real_bytes;
    char raw[READ_ELEMS * sizeof(double)];
    enum hkt_status rc = HKT_OK;

    for (int64_t done = 0, part; done < block->count && rc == HKT_OK; done += part) {
        part = block->count - done < READ_ELEMS ? block->count - done : READ_ELEMS;
        rc = hkt__st_read(r->file, tensor, (uint64_t)(block->file_first + done) * size, raw, (uint64_t)part * size);
        r->bytes += (uint64_t)part * size;
        if (is_counted && rc == HKT_OK)
            r->sum[r->state] += hkt__st_sum(tensor->first - r->file->data + (uint64_t)(block->file_first + done) * size, raw, part, size);
        for (int64_t i = 0; i < part && rc == HKT_OK; i++) {
            char *to = run + (size_t)(block->run_first + (done + i) * block->run_stride) * bytes;
            const double value = as_double(raw, i, tensor->dtype);

            if (tensor->dtype == r->checkpoint->ops->real)
                memcpy(to, raw + (size_t)i * size, bytes);
            else
                r->real_ops->from_f64(to, &value, 1);
        }
    }
    return rc;
}

static enum hkt_status find_tensor(const struct reader *r, int index, const struct hkt__st_tensor **out_tensor)
{
    const struct hkt__st_tensor *want = &r->files->tensors[index], *got;
    char name[HKT__ST_NAME_MAX];

    snprintf(name, sizeof name, "%s%.100s", r->prefix, want->name);
    got = hkt__st_find(r->file, name);
    /* Hugging Face's own files leave this prefix out. */
    if (got == NULL && strncmp(want->name, "transformer.", 12) == 0) {
        snprintf(name, sizeof name, "%s%.100s", r->prefix, want->name + 12);
        got = hkt__st_find(r->file, name);
    }
    if (got == NULL)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%s has no tensor %s%s: it is of another model", r->file->path, r->prefix,
                                  want->name);
    if (got->dtype != HKT_F64 && got->dtype != HKT_F32 && got->dtype != HKT_F16 && got->dtype != HKT_BF16)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%s: tensor %s does not hold floating-point numbers", r->file->path, name);
    if (got->ndims != want->ndims || memcmp(got->shape, want->shape, (size_t)got->ndims * sizeof got->shape[0]) != 0)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%s: tensor %s is %lld x %lld, this model's is %lld x %lld", r->file->path,
                                  name, (long long)got->shape[0], got->ndims > 1 ? (long long)got->shape[1] : 1LL,
                                  (long long)want->shape[0], want->ndims > 1 ? (long long)want->shape[1] : 1LL);
    *out_tensor = got;
    return HKT_OK;
}

static enum hkt_status read_state(struct reader *r, enum hkt__state state)
{
    const struct hkt__own *own = r->checkpoint->own;
    struct hkt__own_cursor cursor = { 0 };
    struct hkt__run run;
    enum hkt_status rc = HKT_OK;

    while (rc == HKT_OK && hkt__own_next(own, false, &cursor, &run)) {
        const struct hkt__st_tensor *tensor = NULL;
        struct hkt__file_block block;

        rc = find_tensor(r, r->files->tensor[run.param], &tensor);
        for (int64_t at = 0; rc == HKT_OK && hkt__files_next(r->files, own, &run, &at, &block);)
            rc = read_block(r, tensor, &block, hkt__engine_state(r->checkpoint->engine, &run, state),
                            own->held[run.param].counts);
    }
    return rc;
}

/* Both files must be of one save. */
static enum hkt_status same_step(struct reader *r)
{
    const char *step = hkt__st_meta(r->file, "step");

    if (step == NULL)
        return HKT_OK;
    if (r->step[0] != '\0' && strcmp(r->step, step) != 0)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%s is of step %s, the model beside it of step %s: they are not one checkpoint",
                                  r->file->path, step, r->step);
    snprintf(r->step, sizeof r->step, "%s", step);
    return HKT_OK;
}

static enum hkt_status read_file(struct reader *r, const char *path, const char *name, enum hkt__state first,
                                 enum hkt__state last)
{
    static const char *const prefixes[HKT__STATE_COUNT] = { "", "exp_avg.", "exp_avg_sq." };
    char full[HKT__ST_PATH_MAX + 32];
    struct hkt__st_file file;
    enum hkt_status rc;

    snprintf(full, sizeof full, "%s/%s", path, name);
    rc = hkt__st_open(full, &file);
    if (rc < 0)
        return rc;
    r->file = &file;
    rc = same_step(r);
    if (rc == HKT_OK && first != HKT__STATE_MASTER && !file.is_sealed)
        rc = hkt__parallel_fail(HKT_ERR_INVALID, "%s has no checksum: hocket train did not write it, or it is damaged", full);
    for (int state = first; state <= (int)last && rc == HKT_OK; state++) {
        r->prefix = prefixes[state];
        r->state = (enum hkt__state)state;
        if (!hkt__engine_has_state(r->checkpoint->engine, r->state))
            continue;
        /* Of a file with tensors that this model has not, only a part is read. */
        r->is_sealed[state] = file.is_sealed && (state != HKT__STATE_MASTER || file.ntensors == r->files->ntensors);
        r->want[state] = file.sums[state == HKT__STATE_MOMENT2];
        rc = read_state(r, r->state);
    }
    hkt__st_close(&file);
    return rc;
}

/* Whether what all ranks read is what was written. Collective. */
static enum hkt_status check_sums(struct reader *r, const char *path)
{
    struct hkt_comm *comm = r->checkpoint->comm;
    enum hkt_status rc = HKT_OK;

    if (comm != NULL)
        rc = hkt_all_reduce(r->sum, r->sum, HKT__STATE_COUNT, HKT_UINT64, HKT_SUM, comm, NULL);
    if (rc < 0)
        return hkt__parallel_pass(rc, "the checksums of a checkpoint");
    for (int state = 0; state < HKT__STATE_COUNT && rc == HKT_OK; state++)
        if (r->is_sealed[state] && r->sum[state] != r->want[state])
            rc = hkt__parallel_fail(HKT_ERR_INVALID,
                                    "%s/%s is damaged: its bytes are not those that were written (checksum %016llx, should be "
                                    "%016llx)", path, state == HKT__STATE_MASTER ? "model.safetensors" : "optimizer.safetensors",
                                    (unsigned long long)r->sum[state], (unsigned long long)r->want[state]);
    return rc;
}

enum hkt_status hkt__checkpoint_load(const struct hkt__checkpoint *checkpoint, const char *path, bool weights_only,
                                     uint64_t *out_bytes_read)
{
    struct hkt__files files;
    struct reader r = { .checkpoint = checkpoint, .files = &files,
                        .real_ops = hkt__math_ops_of(checkpoint->ops->real) };
    enum hkt_status rc = hkt__files_init(checkpoint->own, checkpoint->infos, checkpoint->ops->real, &files);

    if (rc == HKT_OK) {
        rc = read_file(&r, path, "model.safetensors", HKT__STATE_MASTER, HKT__STATE_MASTER);
        if (rc == HKT_OK && !weights_only)
            rc = read_file(&r, path, "optimizer.safetensors", HKT__STATE_MOMENT1, HKT__STATE_MOMENT2);
        hkt__files_fini(&files);
    }
    rc = hkt__agree(checkpoint->comm, rc, "loading a checkpoint");
    if (rc == HKT_OK)
        rc = check_sums(&r, path);
    if (rc == HKT_OK)
        rc = hkt__engine_publish(checkpoint->engine);
    if (rc == HKT_OK && out_bytes_read != NULL)
        *out_bytes_read = r.bytes;
    return rc;
}
