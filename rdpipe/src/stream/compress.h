/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COMPRESS_H
#define RD_COMPRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Compresses the blocks of a stream one by one with libzstd, so that each block can be sent as soon
 * as it arrives and only one block is in memory.
 */

#define RD_ZSTD_LEVEL 3
#define RD_ZSTD_LEVEL_MAX 19

typedef struct {
    void *context;
    uint8_t *block; /* the input of a compressor, or the output of a decompressor */
    size_t size;
    bool compresses;
} rd_compressor_t;

/* Returns libzstd's version, or NULL if rdpipe was built without libzstd, in which case
 * rd_compressor_open fails. */
const char *rd_zstd_version(void);

#define RD_NO_ZSTD "this command is built without libzstd, so it cannot compress"

/* For blocks of at most `size` bytes. Returns false if out of memory. */
bool rd_compressor_open(rd_compressor_t *compressor_p, size_t size, int level, bool compresses);
void rd_compressor_close(rd_compressor_t *compressor);

/* Compresses `len` bytes of its block into `to`. Returns 0 if the result would not be smaller. */
size_t rd_compress(rd_compressor_t *compressor, size_t len, uint8_t *to);
/* Decompresses into its block. Returns true if the result has exactly `wanted` bytes. */
bool rd_decompress(rd_compressor_t *compressor, const uint8_t *from, size_t len, size_t wanted);

#endif
