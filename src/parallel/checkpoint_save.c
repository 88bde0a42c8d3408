/* Writing checkpoints: a copy of what this rank counts, then pwrite of it, in the caller or in a thread. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "parallel/alloc.h"
#include "parallel/checkpoint.h"
#include "parallel/fail.h"
#include "parallel/hf_config.h"

enum { FILE_MODEL, FILE_OPTIMIZER, FILE_COUNT, FILE_CONFIG = FILE_COUNT, FOLDER };
static const char *const file_names[FOLDER] = { "model.safetensors", "optimizer.safetensors", HKT__HF_CONFIG_NAME };
static const char *const token_files[] = { "vocab.json", "merges.txt" };
static const char *const prefixes[HKT__STATE_COUNT] = { "", "exp_avg.", "exp_avg_sq." };

#define GATHER_ELEMS 8192

struct hkt__save {
    struct hkt__checkpoint checkpoint;
    struct hkt__files files;
    char dir[HKT__ST_PATH_MAX / 2], name[64];
    char *head[FILE_COUNT];
    uint64_t end[FILE_COUNT];
    uint64_t first[HKT__STATE_COUNT]; /* place in its file of the first byte of all tensors of a state */
    bool has[HKT__STATE_COUNT];
    void *copy[HKT__STATE_COUNT]; /* elements of runs that this rank counts, in their order */
    uint64_t sum[HKT__STATE_COUNT]; /* checksums: of what this rank wrote; then of all */
    pthread_t thread;
    bool has_thread;
    enum hkt_status status;
    char text[HKT__PARALLEL_TEXT_MAX];
};

/* ---- the copy ---- */

static enum hkt_status copy_state(struct hkt__save *save, enum hkt__state state)
{
    const struct hkt__checkpoint *c = &save->checkpoint;
    struct hkt__own_cursor cursor = { 0 };
    struct hkt__run run;
    int64_t elems = 0;
    enum hkt_status rc;

    while (hkt__own_next(c->own, true, &cursor, &run))
        elems += run.count;
    rc = hkt__memory_alloc(c->memory, HKT__MEMORY_BUFFER, (uint64_t)elems * c->ops->real_bytes, &save->copy[state]);
    if (rc < 0)
        return rc;
    cursor = (struct hkt__own_cursor){ 0 };
    for (char *to = save->copy[state]; hkt__own_next(c->own, true, &cursor, &run);) {
        const size_t bytes = (size_t)run.count * c->ops->real_bytes;

        memcpy(to, hkt__engine_state(c->engine, &run, state), bytes);
        to += bytes;
    }
    return HKT_OK;
}

/* Moments stand one after the other in their file, under the names of the parameters with a prefix. */
static enum hkt_status lay_out(struct hkt__save *save, const struct hkt__st_meta *metas)
{
    const int n = save->files.ntensors;
    struct hkt__st_tensor *all = hkt__parallel_calloc(2 * (size_t)n + 1, sizeof *all);
    enum hkt_status rc = hkt__st_layout(save->files.tensors, n, metas, &save->head[FILE_MODEL], &save->end[FILE_MODEL]);
    int count = 0;

    if (all == NULL)
        rc = hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for the list of a checkpoint's tensors");
    for (int state = HKT__STATE_MOMENT1; state < HKT__STATE_COUNT && rc == HKT_OK; state++)
        for (int t = 0; save->has[state] && t < n; t++) {
            all[count] = save->files.tensors[t];
            snprintf(all[count++].name, HKT__ST_NAME_MAX, "%s%.100s", prefixes[state], save->files.tensors[t].name);
        }
    if (rc == HKT_OK)
        rc = hkt__st_layout(all, count, metas, &save->head[FILE_OPTIMIZER], &save->end[FILE_OPTIMIZER]);
    if (rc == HKT_OK && n > 0) {
        save->first[HKT__STATE_MASTER] = save->files.tensors[0].first;
        save->first[HKT__STATE_MOMENT1] = all[0].first;
        save->first[HKT__STATE_MOMENT2] = count > n ? all[n].first : 0;
    }
    hkt__parallel_free(all);
    return rc;
}

/* ---- writing ---- */

static void path_of(const struct hkt__save *save, bool is_tmp, int file, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s/%s%s%s%s", save->dir, save->name, is_tmp ? ".tmp" : "", file < FOLDER ? "/" : "",
             file < FOLDER ? file_names[file] : "");
}

static enum hkt_status sync_path(const char *path)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const int rc = fd < 0 ? -1 : fsync(fd);
    const int error = errno;

    if (fd >= 0)
        close(fd);
    return rc == 0 ? HKT_OK : hkt__parallel_fail(HKT_ERR_SYSTEM, "%s cannot be synced: %s", path, strerror(error));
}

/* A new file of this text, of the given length. */
static enum hkt_status create(const char *path, const char *text, uint64_t text_bytes, uint64_t end)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    enum hkt_status rc;

    if (fd < 0)
        return hkt__parallel_fail(HKT_ERR_SYSTEM, "%s cannot be made: %s", path, strerror(errno));
    rc = hkt__st_pwrite(fd, path, 0, text, text_bytes);
    if (rc == HKT_OK && ftruncate(fd, (off_t)end) < 0)
        rc = hkt__parallel_fail(HKT_ERR_SYSTEM, "%s cannot become %llu bytes long: %s", path, (unsigned long long)end,
                                strerror(errno));
    if (rc == HKT_OK && fsync(fd) < 0)
        rc = hkt__parallel_fail(HKT_ERR_SYSTEM, "%s cannot be synced: %s", path, strerror(errno));
    close(fd);
    return rc;
}

static enum hkt_status make_folder(const char *path)
{
    return mkdir(path, 0777) == 0 || errno == EEXIST
               ? HKT_OK
               : hkt__parallel_fail(HKT_ERR_SYSTEM, "the folder %s cannot be made: %s", path, strerror(errno));
}

static enum hkt_status write_tokens(const struct hkt__save *save, const char *folder)
{
    const struct hkt_tokenizer *tokenizer = save->checkpoint.tokenizer;
    char path[HKT__ST_PATH_MAX + 16];
    enum hkt_status rc = tokenizer != NULL ? hkt_tokenizer_save(tokenizer, folder) : HKT_OK;

    for (int i = 0; i < 2 && rc == HKT_OK; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, token_files[i]);
        if (tokenizer != NULL)
            rc = sync_path(path);
        else
            unlink(path); /* of another model, whose save here was cut short */
    }
    return rc;
}

static uint64_t head_bytes(const char *head)
{
    uint64_t bytes = 0;

    for (int i = 7; i >= 0; i--)
        bytes = bytes << 8 | (unsigned char)head[i];
    return bytes + 8;
}

/* Rank 0: the folder, texts, and files that are all header and holes. */
static enum hkt_status prepare(const struct hkt__save *save)
{
    const char *config = save->checkpoint.config;
    char path[HKT__ST_PATH_MAX];
    enum hkt_status rc = make_folder(save->dir);

    path_of(save, true, FOLDER, path, sizeof path);
    if (rc == HKT_OK)
        rc = make_folder(path);
    if (rc == HKT_OK)
        rc = write_tokens(save, path);
    path_of(save, true, FILE_CONFIG, path, sizeof path);
    if (config == NULL || config[0] == '\0')
        unlink(path); /* of another model, whose save here was cut short */
    else if (rc == HKT_OK)
        rc = create(path, config, strlen(config), strlen(config));
    for (int file = 0; file < FILE_COUNT && rc == HKT_OK; file++) {
        path_of(save, true, file, path, sizeof path);
        rc = create(path, save->head[file], head_bytes(save->head[file]), save->end[file]);
    }
    return rc;
}

/* The file that bytes go to, where its data begin, and their checksum. */
struct target {
    int fd;
    const char *path;
    uint64_t data, *sum;
};

static enum hkt_status put(const struct target *target, uint64_t at, const char *elems, int64_t count, size_t bytes)
{
    return hkt__st_pwrite(target->fd, target->path, target->data + at, elems, (uint64_t)count * bytes);
}

/* at: place of the block's first element in the data of its file. */
static enum hkt_status write_block(const struct hkt__save *save, const struct hkt__file_block *block, uint64_t at,
                                   const char *run, const struct target *target)
{
    const size_t bytes = save->checkpoint.ops->real_bytes;
    const char *from = run + (size_t)block->run_first * bytes;
    const bool is_dense = block->run_stride == 1 || block->count == 1;
    char gathered[GATHER_ELEMS * sizeof(double)];
    enum hkt_status rc = HKT_OK;

    for (int64_t done = 0, part; done < block->count && rc == HKT_OK; done += part) {
        const char *elems = is_dense ? from : gathered;

        part = is_dense || block->count - done < GATHER_ELEMS ? block->count - done : GATHER_ELEMS;
        for (int64_t i = 0; i < part && !is_dense; i++)
            memcpy(gathered + (size_t)i * bytes, from + (size_t)((done + i) * block->run_stride) * bytes, bytes);
        *target->sum += hkt__st_sum(at + (uint64_t)done * bytes, elems, part, bytes);
        rc = put(target, at + (uint64_t)done * bytes, elems, part, bytes);
    }
    return rc;
}

static enum hkt_status write_state(const struct hkt__save *save, enum hkt__state state, const struct target *target)
{
    const struct hkt__checkpoint *c = &save->checkpoint;
    const size_t bytes = c->ops->real_bytes;
    const uint64_t first = save->files.tensors[0].first, shift = save->first[state] - target->data;
    struct hkt__own_cursor cursor = { 0 };
    struct hkt__run run;
    const char *from = save->copy[state];
    enum hkt_status rc = HKT_OK;

    while (rc == HKT_OK && hkt__own_next(c->own, true, &cursor, &run)) {
        struct hkt__file_block block;

        for (int64_t at = 0; rc == HKT_OK && hkt__files_next(&save->files, c->own, &run, &at, &block);)
            rc = write_block(save, &block,
                             save->files.tensors[block.tensor].first - first + shift + (uint64_t)block.file_first * bytes,
                             from, target);
        from += (size_t)run.count * bytes;
    }
    return rc;
}

static enum hkt_status write_file(struct hkt__save *save, int file)
{
    char path[HKT__ST_PATH_MAX];
    enum hkt_status rc = HKT_OK;

    path_of(save, true, file, path, sizeof path);
    const int fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd < 0)
        return hkt__parallel_fail(HKT_ERR_SYSTEM, "%s, made by rank 0, cannot be opened (is the folder shared by all hosts?): "
                                  "%s", path, strerror(errno));
    for (int state = 0; state < HKT__STATE_COUNT && rc == HKT_OK; state++)
        if (save->has[state] && (state == HKT__STATE_MASTER) == (file == FILE_MODEL)) {
            const struct target target = { fd, path, head_bytes(save->head[file]), &save->sum[state] };

            rc = write_state(save, (enum hkt__state)state, &target);
        }
    if (rc == HKT_OK && fsync(fd) < 0)
        rc = hkt__parallel_fail(HKT_ERR_SYSTEM, "%s cannot be synced: %s", path, strerror(errno));
    close(fd);
    return rc;
}

/* Rank 0: the headers once more, with the sums of what all ranks wrote. */
static enum hkt_status seal(const struct hkt__save *save)
{
    enum hkt_status rc = HKT_OK;

    for (int file = 0; file < FILE_COUNT && rc == HKT_OK; file++) {
        const uint64_t sums[HKT__ST_SUMS] = { save->sum[file == FILE_MODEL ? HKT__STATE_MASTER : HKT__STATE_MOMENT1],
                                              file == FILE_MODEL ? 0 : save->sum[HKT__STATE_MOMENT2] };
        const uint64_t bytes = head_bytes(save->head[file]);
        char path[HKT__ST_PATH_MAX];

        path_of(save, true, file, path, sizeof path);
        if (!hkt__st_seal(save->head[file] + 8, bytes - 8, sums))
            return hkt__parallel_fail(HKT_ERR_BUG, "the header of %s has no place for a checksum", path);
        const int fd = open(path, O_WRONLY | O_CLOEXEC);

        if (fd < 0)
            return hkt__parallel_fail(HKT_ERR_SYSTEM, "%s cannot be opened: %s", path, strerror(errno));
        rc = hkt__st_pwrite(fd, path, 0, save->head[file], bytes);
        if (rc == HKT_OK && fsync(fd) < 0)
            rc = hkt__parallel_fail(HKT_ERR_SYSTEM, "%s cannot be synced: %s", path, strerror(errno));
        close(fd);
    }
    return rc;
}

static enum hkt_status move(const char *from, const char *to)
{
    return rename(from, to) == 0 ? HKT_OK
                                 : hkt__parallel_fail(HKT_ERR_SYSTEM, "%s cannot be renamed to %s: %s", from, to,
                                                      strerror(errno));
}

static void remove_folder(const char *path)
{
    char file[HKT__ST_PATH_MAX + 64];

    for (int i = 0; i < FOLDER; i++) {
        snprintf(file, sizeof file, "%s/%s", path, file_names[i]);
        unlink(file);
    }
    for (int i = 0; i < 2; i++) {
        snprintf(file, sizeof file, "%s/%s", path, token_files[i]);
        unlink(file);
    }
    rmdir(path);
}

/* Rank 0: the whole checkpoint gets its name, then `latest` names it. */
static enum hkt_status publish(const struct hkt__save *save)
{
    char tmp[HKT__ST_PATH_MAX], path[HKT__ST_PATH_MAX], old[HKT__ST_PATH_MAX], latest[HKT__ST_PATH_MAX];
    enum hkt_status rc;

    path_of(save, true, FOLDER, tmp, sizeof tmp);
    path_of(save, false, FOLDER, path, sizeof path);
    snprintf(old, sizeof old, "%s/%s.old", save->dir, save->name);
    snprintf(latest, sizeof latest, "%s/latest", save->dir);
    rc = seal(save);
    if (rc == HKT_OK)
        rc = sync_path(tmp);
    if (rc == HKT_OK && access(path, F_OK) == 0) {
        remove_folder(old);
        rc = move(path, old);
    }
    if (rc == HKT_OK)
        rc = move(tmp, path);
    if (rc == HKT_OK)
        rc = sync_path(save->dir);
    remove_folder(old);
    snprintf(tmp, sizeof tmp, "%s/latest.tmp", save->dir);
    if (rc == HKT_OK)
        rc = create(tmp, save->name, strlen(save->name), strlen(save->name));
    if (rc == HKT_OK)
        rc = move(tmp, latest);
    return rc == HKT_OK ? sync_path(save->dir) : rc;
}

static void *write_all(void *arg)
{
    struct hkt__save *save = arg;
    struct hkt_comm *comm = save->checkpoint.comm;
    const bool is_root = comm == NULL || hkt_comm_rank(comm) == 0;
    enum hkt_status rc = hkt__agree(comm, is_root ? prepare(save) : HKT_OK, "starting a checkpoint");

    if (rc == HKT_OK) {
        for (int file = 0; file < FILE_COUNT && rc == HKT_OK; file++)
            rc = write_file(save, file);
        rc = hkt__agree(comm, rc, "writing a checkpoint");
    }
    if (rc == HKT_OK && comm != NULL) {
        rc = hkt_all_reduce(save->sum, save->sum, HKT__STATE_COUNT, HKT_UINT64, HKT_SUM, comm, NULL);
        rc = rc < 0 ? hkt__parallel_pass(rc, "the checksums of a checkpoint") : rc;
    }
    if (rc == HKT_OK)
        rc = hkt__agree(comm, is_root ? publish(save) : HKT_OK, "naming a checkpoint");
    save->status = rc;
    snprintf(save->text, sizeof save->text, "%s", rc < 0 ? hkt__parallel_error() : "");
    return NULL;
}

static void destroy(struct hkt__save *save)
{
    for (int state = 0; state < HKT__STATE_COUNT; state++)
        hkt__memory_free(save->checkpoint.memory, save->copy[state]);
    for (int file = 0; file < FILE_COUNT; file++)
        hkt__parallel_free(save->head[file]);
    hkt__files_fini(&save->files);
    hkt__parallel_free(save);
}

static enum hkt_status fill(struct hkt__save *save, const struct hkt__st_meta *metas)
{
    const struct hkt__checkpoint *c = &save->checkpoint;
    struct hkt__own_cursor cursor = { 0 };
    struct hkt__run run;
    enum hkt_status rc = hkt__files_init(c->own, c->infos, c->ops->real, &save->files);
    const bool any = hkt__own_next(c->own, false, &cursor, &run);

    /* All ranks of a layout have the same kinds of state; one that updates nothing asks nobody, and writes nothing. */
    for (int state = 0; state < HKT__STATE_COUNT && rc == HKT_OK; state++) {
        save->has[state] = hkt__engine_has_state(c->engine, (enum hkt__state)state);
        if (save->has[state] && any)
            rc = copy_state(save, (enum hkt__state)state);
    }
    return rc == HKT_OK ? lay_out(save, metas) : rc;
}

enum hkt_status hkt__save_start(const struct hkt__checkpoint *checkpoint, const char *dir, const char *name,
                                const struct hkt__st_meta *metas, bool is_async, struct hkt__save **out_save)
{
    struct hkt__save *save = hkt__parallel_calloc(1, sizeof *save);
    enum hkt_status rc = HKT_OK;

    if (save == NULL)
        rc = hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for a checkpoint");
    else if (strlen(dir) >= sizeof save->dir || strlen(name) >= sizeof save->name)
        rc = hkt__parallel_fail(HKT_ERR_INVALID, "the path of the checkpoint %s/%s is too long", dir, name);
    else {
        save->checkpoint = *checkpoint;
        snprintf(save->dir, sizeof save->dir, "%s", dir);
        snprintf(save->name, sizeof save->name, "%s", name);
        rc = fill(save, metas);
    }
    rc = hkt__agree(checkpoint->comm, rc, "copying the state of a checkpoint");
    if (rc < 0) {
        if (save != NULL)
            destroy(save);
        return rc;
    }
    if (is_async)
        save->has_thread = pthread_create(&save->thread, NULL, write_all, save) == 0;
    if (!save->has_thread) /* no thread is to be had, or none was wanted: the same, now */
        write_all(save);
    *out_save = save;
    return HKT_OK;
}

enum hkt_status hkt__save_wait(struct hkt__save *save)
{
    enum hkt_status rc;

    if (save == NULL)
        return HKT_OK;
    if (save->has_thread)
        pthread_join(save->thread, NULL);
    rc = save->status < 0 ? hkt__parallel_fail(save->status, "%s", save->text) : HKT_OK;
    destroy(save);
    return rc;
}
