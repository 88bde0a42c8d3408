/* The portable version of hkt__crc32c (transport.h), so that a test can hold the two against each other. */
#ifndef HOCKET_TRANSPORT_CRC32C_H
#define HOCKET_TRANSPORT_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t hkt__crc32c_portable(uint32_t crc, const void *data, size_t bytes);

#endif
