/* Reading text, and choosing sequences from it. */
#include "parallel/data.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/rng.h"

#define PATH_BYTES 4096
#define NAME_BYTES 256 /* the longest name of Linux, and its end */
#define SITE_DATA 0xd0 /* of hkt__rng_site: no other use of the seed has it */

static enum hkt_status add_file(struct hkt__data *data, const char *path, int64_t bytes)
{
    unsigned char *all = hkt__parallel_calloc((size_t)(data->count + bytes) + 1, 1);
    FILE *file = fopen(path, "rb");
    const size_t got = all == NULL || file == NULL ? 0 : fread(all + data->count, 1, (size_t)bytes, file);
    const int error = errno;

    if (file != NULL)
        fclose(file);
    if (all == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for the text %s", path);
    if (file == NULL || (int64_t)got != bytes) {
        hkt__parallel_free(all);
        return hkt__parallel_fail(HKT_ERR_SYSTEM, "the text %s cannot be read: %s", path,
                                  file == NULL ? strerror(error) : "it became shorter");
    }
    if (data->count > 0)
        memcpy(all, data->bytes, (size_t)data->count);
    hkt__parallel_free(data->bytes);
    data->bytes = all;
    data->count += bytes;
    return HKT_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Names of a folder's entries, sorted; room doubles as it fills up. NULL: no memory. */
static char (*list_names(DIR *folder, size_t *out_count))[NAME_BYTES]
{
    size_t room = 64, count = 0;
    char(*names)[NAME_BYTES] = hkt__parallel_calloc(room, sizeof *names);

    for (const struct dirent *entry; names != NULL && (entry = readdir(folder)) != NULL;) {
        if (count == room) {
            char(*more)[NAME_BYTES] = hkt__parallel_calloc(2 * room, sizeof *names);

            if (more != NULL)
                memcpy(more, names, room * sizeof *names);
            hkt__parallel_free(names);
            names = more;
            room *= 2;
        }
        if (names != NULL)
            snprintf(names[count++], sizeof *names, "%s", entry->d_name);
    }
    if (names != NULL)
        qsort(names, count, sizeof *names, by_name);
    *out_count = count;
    return names;
}

static enum hkt_status add_folder(struct hkt__data *data, const char *path)
{
    DIR *folder = opendir(path);
    size_t count = 0;
    enum hkt_status rc = HKT_OK;

    if (folder == NULL)
        return hkt__parallel_fail(HKT_ERR_SYSTEM, "the folder %s cannot be read: %s", path, strerror(errno));
    char(*names)[NAME_BYTES] = list_names(folder, &count);

    closedir(folder);
    if (names == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for the names in %s", path);
    for (size_t i = 0; i < count && rc == HKT_OK; i++) {
        char file[PATH_BYTES + NAME_BYTES];
        struct stat info;

        snprintf(file, sizeof file, "%.*s/%s", PATH_BYTES - 2, path, names[i]);
        if (lstat(file, &info) == 0 && S_ISREG(info.st_mode))
            rc = add_file(data, file, info.st_size);
    }
    hkt__parallel_free(names);
    return rc;
}

static enum hkt_status check_length(const struct hkt__data *data, const char *name, const char *unit, int64_t seq)
{
    if (data->count - data->held_out > seq)
        return HKT_OK;
    return hkt__parallel_fail(HKT_ERR_INVALID,
                              "the text %s has %lld %s to train on; a sequence of %lld tokens and the one after need %lld", name,
                              (long long)(data->count - data->held_out), unit, (long long)seq, (long long)seq + 1);
}

enum hkt_status hkt__data_init(const char *path, double held_out, int64_t seq, struct hkt__data *out_data)
{
    const char *from = path != NULL ? path : HKT__DATA_DEFAULT;
    struct hkt__data data = { 0 };
    struct stat info;
    enum hkt_status rc;

    if (stat(from, &info) < 0)
        return hkt__parallel_fail(HKT_ERR_SYSTEM, "the text %s cannot be read: %s", from, strerror(errno));
    if (!(held_out >= 0 && held_out < 1))
        return hkt__parallel_fail(HKT_ERR_INVALID, "a share of %g cannot be held out; it is 0 to less than 1", held_out);
    rc = S_ISDIR(info.st_mode) ? add_folder(&data, from) : add_file(&data, from, info.st_size);
    data.held_out = (int64_t)((double)data.count * held_out);
    data.text_bytes = data.count;
    if (rc == HKT_OK)
        rc = check_length(&data, from, "bytes", seq);
    if (rc < 0)
        hkt__data_fini(&data);
    else
        *out_data = data;
    return rc;
}

void hkt__data_fini(struct hkt__data *data)
{
    hkt__parallel_free(data->bytes);
    hkt__parallel_free(data->tokens);
    data->bytes = NULL;
    data->tokens = NULL;
}

enum hkt_status hkt__data_encode(struct hkt__data *data, const struct hkt_tokenizer *tokenizer, int64_t seq)
{
    const size_t trained = (size_t)(data->count - data->held_out), held = (size_t)data->held_out;
    size_t counts[2] = { 0, 0 };
    int32_t *tokens = hkt__parallel_calloc((size_t)data->count + 1, sizeof *tokens);
    enum hkt_status rc;

    if (tokens == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for the tokens of a text of %lld bytes", (long long)data->count);
    rc = hkt_tokenizer_encode(tokenizer, data->bytes, trained, tokens, &counts[0]);
    if (rc == HKT_OK)
        rc = hkt_tokenizer_encode(tokenizer, data->bytes + trained, held, tokens + counts[0], &counts[1]);
    if (rc < 0) {
        hkt__parallel_free(tokens);
        return rc;
    }
    hkt__parallel_free(data->bytes);
    data->bytes = NULL;
    data->tokens = tokens;
    data->count = (int64_t)(counts[0] + counts[1]);
    data->held_out = (int64_t)counts[1];
    return check_length(data, "as it is encoded", "tokens", seq);
}

static int32_t token_at(const struct hkt__data *data, int64_t at)
{
    return data->tokens != NULL ? data->tokens[at] : data->bytes[at];
}

static void copy(const struct hkt__data *data, int64_t at, int64_t seq, int32_t *out_ids, int32_t *out_targets)
{
    for (int64_t i = 0; i < seq; i++) {
        out_ids[i] = token_at(data, at + i);
        out_targets[i] = token_at(data, at + i + 1);
    }
}

void hkt__data_train(const struct hkt__data *data, int64_t step, int64_t index, int64_t seq, int32_t *out_ids,
                     int32_t *out_targets)
{
    const struct hkt__rng rng = { data->seed, hkt__rng_site(SITE_DATA, 0, (uint64_t)step) };
    const uint64_t places = (uint64_t)(data->count - data->held_out - seq);
    const uint64_t high = hkt__rng_bits(&rng, 2 * (uint64_t)index), low = hkt__rng_bits(&rng, 2 * (uint64_t)index + 1);

    copy(data, (int64_t)((high << 32 | low) % places), seq, out_ids, out_targets);
}

int64_t hkt__data_held_count(const struct hkt__data *data, int64_t seq)
{
    return data->held_out > 0 ? (data->held_out - 1) / seq : 0;
}

void hkt__data_held(const struct hkt__data *data, int64_t index, int64_t seq, int32_t *out_ids, int32_t *out_targets)
{
    copy(data, data->count - data->held_out + index % hkt__data_held_count(data, seq) * seq, seq, out_ids, out_targets);
}
