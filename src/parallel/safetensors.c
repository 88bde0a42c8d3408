/* Reading and laying out safetensors files. */
#include "parallel/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"

#define HEADER_ALIGN 8

static const struct {
    const char *text;
    enum hkt_dtype dtype;
} dtypes[] = {
    { "F64", HKT_F64 },   { "F32", HKT_F32 },   { "F16", HKT_F16 },   { "BF16", HKT_BF16 }, { "I64", HKT_INT64 },
    { "I32", HKT_INT32 }, { "I16", HKT_INT16 }, { "I8", HKT_INT8 },   { "U8", HKT_UINT8 },  { "BOOL", HKT_BOOL },
};

enum hkt_status hkt__st_pread(int fd, const char *path, uint64_t at, void *to, uint64_t bytes)
{
    for (char *p = to; bytes > 0;) {
        const ssize_t got = pread(fd, p, bytes, (off_t)at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return hkt__parallel_fail(HKT_ERR_SYSTEM, "%s: reading %llu bytes at %llu: %s", path,
                                      (unsigned long long)bytes, (unsigned long long)at,
                                      got < 0 ? strerror(errno) : "the file ends there");
        p += got;
        at += (uint64_t)got;
        bytes -= (uint64_t)got;
    }
    return HKT_OK;
}

enum hkt_status hkt__st_pwrite(int fd, const char *path, uint64_t at, const void *from, uint64_t bytes)
{
    for (const char *p = from; bytes > 0;) {
        const ssize_t put = pwrite(fd, p, bytes, (off_t)at);

        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return hkt__parallel_fail(HKT_ERR_SYSTEM, "%s: writing: %s", path, strerror(errno));
        p += put;
        at += (uint64_t)put;
        bytes -= (uint64_t)put;
    }
    return HKT_OK;
}

/* ---- reading ---- */

static enum hkt_status foreign(const char *path, const char *why)
{
    return hkt__parallel_fail(HKT_ERR_INVALID, "%s is not a safetensors file: %s", path, why);
}

static bool parse_dtype(const char *text, enum hkt_dtype *out_dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i].text, text) == 0) {
            *out_dtype = dtypes[i].dtype;
            return true;
        }
    return false;
}

/* A whole number that a double holds exactly. */
static bool take_whole(const cJSON *item, uint64_t *out_value)
{
    if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble > 0x1p53
        || item->valuedouble != (double)(uint64_t)item->valuedouble)
        return false;
    *out_value = (uint64_t)item->valuedouble;
    return true;
}

/* One entry of the header. data, end: where the bytes of all tensors begin, and the file ends. */
static enum hkt_status parse_tensor(const char *path, const cJSON *item, uint64_t data, uint64_t end,
                                    struct hkt__st_tensor *out)
{
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
    const cJSON *range = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    uint64_t from, to, elems = 1;

    if (strlen(item->string) >= sizeof out->name)
        return foreign(path, "the name of a tensor is too long");
    snprintf(out->name, sizeof out->name, "%s", item->string);
    if (!cJSON_IsString(dtype) || !parse_dtype(dtype->valuestring, &out->dtype))
        return hkt__parallel_fail(HKT_ERR_UNSUPPORTED, "%s: tensor %s is of a type that is not known", path, out->name);
    if (!cJSON_IsArray(shape) || cJSON_GetArraySize(shape) > HKT__ST_DIMS_MAX)
        return hkt__parallel_fail(HKT_ERR_UNSUPPORTED, "%s: tensor %s has no shape of at most %d dimensions", path,
                                  out->name, HKT__ST_DIMS_MAX);
    for (const cJSON *dim = shape->child; dim != NULL; dim = dim->next) {
        uint64_t size;

        if (!take_whole(dim, &size) || __builtin_mul_overflow(elems, size, &elems))
            return foreign(path, "a shape is none");
        out->shape[out->ndims++] = (int64_t)size;
    }
    if (!cJSON_IsArray(range) || cJSON_GetArraySize(range) != 2 || !take_whole(range->child, &from)
        || !take_whole(range->child->next, &to) || from > to)
        return foreign(path, "data_offsets are no range");
    out->first = data + from;
    out->bytes = to - from;
    if (out->first + out->bytes > end)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%s is truncated: tensor %s ends at byte %llu of %llu", path, out->name,
                                  (unsigned long long)(out->first + out->bytes), (unsigned long long)end);
    if (elems > out->bytes || out->bytes != elems * hkt_dtype_size(out->dtype))
        return hkt__parallel_fail(HKT_ERR_INVALID, "%s: tensor %s has %llu bytes, which is not its shape", path, out->name,
                                  (unsigned long long)out->bytes);
    return HKT_OK;
}

static enum hkt_status read_header(struct hkt__st_file *file, uint64_t end, char **out_text, uint64_t *out_bytes)
{
    unsigned char raw[8];
    uint64_t bytes = 0;
    enum hkt_status rc;

    if (end < sizeof raw)
        return foreign(file->path, "it is shorter than 8 bytes");
    rc = hkt__st_pread(file->fd, file->path, 0, raw, sizeof raw);
    if (rc < 0)
        return rc;
    for (int i = 7; i >= 0; i--)
        bytes = bytes << 8 | raw[i];
    if (bytes > HKT__ST_HEADER_MAX)
        return foreign(file->path, "its first 8 bytes are not the length of a header");
    if (bytes + sizeof raw > end)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%s is truncated, or not a safetensors file: its header of %llu bytes is "
                                  "longer than the file", file->path, (unsigned long long)bytes);
    *out_text = hkt__parallel_calloc(bytes + 1, 1);
    if (*out_text == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for the header of %s", file->path);
    *out_bytes = bytes;
    return hkt__st_pread(file->fd, file->path, sizeof raw, *out_text, bytes);
}

static enum hkt_status parse_header(struct hkt__st_file *file, uint64_t end)
{
    enum hkt_status rc = HKT_OK;
    uint64_t used = file->data;

    if (!cJSON_IsObject(file->header))
        return foreign(file->path, "its header is not JSON");
    file->tensors = hkt__parallel_calloc((size_t)cJSON_GetArraySize(file->header) + 1, sizeof *file->tensors);
    if (file->tensors == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for the header of %s", file->path);
    for (const cJSON *item = file->header->child; item != NULL && rc == HKT_OK; item = item->next)
        if (strcmp(item->string, "__metadata__") != 0) {
            const struct hkt__st_tensor *tensor = &file->tensors[file->ntensors];

            rc = parse_tensor(file->path, item, file->data, end, &file->tensors[file->ntensors++]);
            used = rc == HKT_OK && tensor->first + tensor->bytes > used ? tensor->first + tensor->bytes : used;
        }
    if (rc == HKT_OK && used < end)
        rc = hkt__parallel_fail(HKT_ERR_INVALID, "%s has %llu bytes behind its last tensor, which nothing explains",
                                file->path, (unsigned long long)(end - used));
    return rc;
}

enum hkt_status hkt__st_open(const char *path, struct hkt__st_file *out_file)
{
    struct hkt__st_file file = { .fd = open(path, O_RDONLY | O_CLOEXEC) };
    struct stat info;
    char *text = NULL;
    uint64_t bytes = 0;
    enum hkt_status rc;

    snprintf(file.path, sizeof file.path, "%s", path);
    if (file.fd < 0 || fstat(file.fd, &info) < 0)
        rc = hkt__parallel_fail(HKT_ERR_SYSTEM, "%s cannot be opened: %s", path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        rc = foreign(path, "it is no file");
    else
        rc = read_header(&file, (uint64_t)info.st_size, &text, &bytes);
    if (rc == HKT_OK) {
        const enum hkt__st_seal_state state = hkt__st_unseal(text, bytes, file.sums);

        file.is_sealed = state == HKT__ST_SEALED;
        if (state == HKT__ST_SEAL_BROKEN)
            rc = hkt__parallel_fail(HKT_ERR_INVALID, "%s is damaged: its header is not the one that was written (checksum)", path);
    }
    if (rc == HKT_OK) {
        file.header = cJSON_ParseWithLength(text, bytes);
        file.data = 8 + bytes;
        rc = parse_header(&file, (uint64_t)info.st_size);
    }
    hkt__parallel_free(text);
    if (rc < 0)
        hkt__st_close(&file);
    else
        *out_file = file;
    return rc;
}

void hkt__st_close(struct hkt__st_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
    cJSON_Delete(file->header);
    file->header = NULL;
    hkt__parallel_free(file->tensors);
    file->tensors = NULL;
}

const struct hkt__st_tensor *hkt__st_find(const struct hkt__st_file *file, const char *name)
{
    for (int i = 0; i < file->ntensors; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

const char *hkt__st_meta(const struct hkt__st_file *file, const char *key)
{
    const cJSON *meta = cJSON_GetObjectItemCaseSensitive(file->header, "__metadata__");
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(meta, key);

    return cJSON_IsString(item) ? item->valuestring : NULL;
}

enum hkt_status hkt__st_read(const struct hkt__st_file *file, const struct hkt__st_tensor *tensor, uint64_t at, void *to,
                             uint64_t bytes)
{
    if (at > tensor->bytes || bytes > tensor->bytes - at)
        return hkt__parallel_fail(HKT_ERR_INVALID, "%s: tensor %s has %llu bytes; those up to %llu were asked for",
                                  file->path, tensor->name, (unsigned long long)tensor->bytes,
                                  (unsigned long long)(at + bytes));
    return hkt__st_pread(file->fd, file->path, tensor->first + at, to, bytes);
}

/* ---- laying out ---- */

static const char *dtype_text(enum hkt_dtype dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (dtypes[i].dtype == dtype)
            return dtypes[i].text;
    return "?";
}

static bool add_tensor(cJSON *root, const struct hkt__st_tensor *tensor, uint64_t from)
{
    cJSON *item = cJSON_AddObjectToObject(root, tensor->name);
    cJSON *shape = cJSON_AddArrayToObject(item, "shape"), *range = cJSON_AddArrayToObject(item, "data_offsets");
    bool is_ok = cJSON_AddStringToObject(item, "dtype", dtype_text(tensor->dtype)) != NULL;

    for (int i = 0; i < tensor->ndims; i++)
        is_ok = cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)tensor->shape[i])) && is_ok;
    is_ok = cJSON_AddItemToArray(range, cJSON_CreateNumber((double)from)) && is_ok;
    return cJSON_AddItemToArray(range, cJSON_CreateNumber((double)(from + tensor->bytes))) && is_ok;
}

/* The header as text, without its length; NULL: no memory. */
static char *print_header(struct hkt__st_tensor *tensors, int ntensors, const struct hkt__st_meta *metas, uint64_t *out_data)
{
    cJSON *root = cJSON_CreateObject(), *meta = cJSON_AddObjectToObject(root, "__metadata__");
    uint64_t at = 0;
    bool is_ok = meta != NULL;

    for (const struct hkt__st_meta *m = metas; m != NULL && m->key != NULL; m++)
        is_ok = cJSON_AddStringToObject(meta, m->key, m->value) != NULL && is_ok;
    for (int i = 0; i < ntensors; i++) {
        uint64_t elems = 1;

        for (int d = 0; d < tensors[i].ndims; d++)
            elems *= (uint64_t)tensors[i].shape[d];
        tensors[i].bytes = elems * hkt_dtype_size(tensors[i].dtype);
        is_ok = add_tensor(root, &tensors[i], at) && is_ok;
        tensors[i].first = at;
        at += tensors[i].bytes;
    }
    char *text = is_ok ? cJSON_PrintUnformatted(root) : NULL;

    cJSON_Delete(root);
    *out_data = at;
    return text;
}

enum hkt_status hkt__st_layout(struct hkt__st_tensor *tensors, int ntensors, const struct hkt__st_meta *metas,
                               char **out_head, uint64_t *out_end)
{
    uint64_t data = 0;
    char *text = print_header(tensors, ntensors, metas, &data);
    const size_t length = text != NULL ? strlen(text) : 0;
    const size_t bytes = (length + HEADER_ALIGN - 1) / HEADER_ALIGN * HEADER_ALIGN;
    char *head = text != NULL ? hkt__parallel_calloc(bytes + 9, 1) : NULL;

    if (head == NULL) {
        cJSON_free(text);
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for the header of a checkpoint");
    }
    for (int i = 0; i < 8; i++)
        head[i] = (char)(bytes >> 8 * i & 0xff);
    memset(head + 8, ' ', bytes);
    memcpy(head + 8, text, length);
    cJSON_free(text);
    for (int i = 0; i < ntensors; i++)
        tensors[i].first += 8 + bytes;
    *out_head = head;
    *out_end = 8 + bytes + data;
    return HKT_OK;
}
