/* SipHash-2-4: a keyed hash for short messages, used to prove possession of the job's token. */
#ifndef HOCKET_CORE_SIPHASH_H
#define HOCKET_CORE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

/** 64-bit SipHash-2-4 of data[bytes] under key; data may be NULL when bytes is 0. */
uint64_t hkt__siphash(const unsigned char key[16], const void *data, size_t bytes);

#endif
