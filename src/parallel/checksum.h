/* Checksums of safetensors files: a text "checksum" under __metadata__ with a sum of the header and sums of the tensors' bytes.
 * Readers that do not know it pass over it.
 *
 * A sum does not depend on order or on who adds which part: it is the sum, modulo 2^64, of a mix of each element's bits with its
 * place. So every rank sums what it writes or reads, one all-reduce adds the sums up, and no rank sees the whole file.
 * Invariant: a change of one element, or of one byte of the header, always changes its sum (the mix is one-to-one for a place);
 * larger damage goes unnoticed with a probability of 2^-64. It guards against disks, not against forgers. */
#ifndef HOCKET_PARALLEL_CHECKSUM_H
#define HOCKET_PARALLEL_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HKT__ST_SUMS = 2 }; /* of bytes, in each file */
#define HKT__ST_CHECKSUM_KEY "checksum"
/* What stands in the header until the file is sealed: 16 digits for the header, 16 for each sum. */
#define HKT__ST_CHECKSUM_BLANK "000000000000000000000000000000000000000000000000"

/** Sum of `count` elements of `bytes` bytes each (at most 8), the first of which stands at `place`, in bytes, the next behind. */
uint64_t hkt__st_sum(uint64_t place, const void *elems, int64_t count, size_t bytes);

/** Put the sums, and that of the header itself, into a header with a blank checksum. false: it has none. */
bool hkt__st_seal(char *text, size_t count, const uint64_t sums[HKT__ST_SUMS]);

enum hkt__st_seal_state { HKT__ST_NOT_SEALED, HKT__ST_SEALED, HKT__ST_SEAL_BROKEN };
/** Whether the header is what was sealed; if so, the sums. */
enum hkt__st_seal_state hkt__st_unseal(const char *text, size_t count, uint64_t out_sums[HKT__ST_SUMS]);

#endif
