/* Files in the safetensors format: 8 bytes with the length of a header (little-endian), the header (JSON: a name, type, shape
 * and byte range of each tensor, and texts under __metadata__), then the bytes. What the header says is checked against the
 * file before anything is believed; a file that does not hold is refused with its name and the reason.
 * Source: github.com/huggingface/safetensors, "Format". */
#ifndef HOCKET_PARALLEL_SAFETENSORS_H
#define HOCKET_PARALLEL_SAFETENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "hocket/types.h"
#include "parallel/checksum.h"

#define HKT__ST_NAME_MAX 128
#define HKT__ST_DIMS_MAX 4
#define HKT__ST_PATH_MAX 4096
#define HKT__ST_HEADER_MAX 100000000 /* as the format's own readers have it */

struct hkt__st_tensor {
    char name[HKT__ST_NAME_MAX];
    enum hkt_dtype dtype;
    int ndims;
    int64_t shape[HKT__ST_DIMS_MAX];
    uint64_t first, bytes; /* in the file, from its beginning */
};

struct cJSON;
struct hkt__st_file {
    int fd;
    char path[HKT__ST_PATH_MAX];
    struct hkt__st_tensor *tensors;
    int ntensors;
    uint64_t data; /* where the bytes of tensors begin */
    struct cJSON *header;
    bool is_sealed; /* with checksums, and the header is whole */
    uint64_t sums[HKT__ST_SUMS];
};

/** Open for reading.
 *  Owns     fills *out_file, released by hkt__st_close
 *  Errors   SYSTEM: it cannot be read; INVALID: it is no safetensors file, not all of one, more than one, or its header is
 *           damaged; NOMEM */
HKT_NODISCARD enum hkt_status hkt__st_open(const char *path, struct hkt__st_file *out_file);
void hkt__st_close(struct hkt__st_file *file);
/** NULL when there is none of that name. */
const struct hkt__st_tensor *hkt__st_find(const struct hkt__st_file *file, const char *name);
/** A text of __metadata__, or NULL. */
const char *hkt__st_meta(const struct hkt__st_file *file, const char *key);
/** Read `bytes` at place `at` of a tensor. */
HKT_NODISCARD enum hkt_status hkt__st_read(const struct hkt__st_file *file, const struct hkt__st_tensor *tensor, uint64_t at,
                                           void *to, uint64_t bytes);

struct hkt__st_meta {
    const char *key, *value;
};
/** What stands before the bytes of these tensors: sets first and bytes of each, in their order.
 *  Owns     gives *out_head, released by hkt__parallel_free; *out_end is the length of the whole file */
HKT_NODISCARD enum hkt_status hkt__st_layout(struct hkt__st_tensor *tensors, int ntensors, const struct hkt__st_meta *metas,
                                             char **out_head, uint64_t *out_end);

/** pread and pwrite of all bytes; SYSTEM names `path`. */
HKT_NODISCARD enum hkt_status hkt__st_pread(int fd, const char *path, uint64_t at, void *to, uint64_t bytes);
HKT_NODISCARD enum hkt_status hkt__st_pwrite(int fd, const char *path, uint64_t at, const void *from, uint64_t bytes);

#endif
