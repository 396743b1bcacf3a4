/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COMPRESS_H
#define RD_COMPRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Blocks of a stream, compressed one by one (libzstd), so that a piece is sent as soon as it is
 * there and memory is that of one block.
 */

#define RD_ZSTD_LEVEL 3
#define RD_ZSTD_LEVEL_MAX 19

typedef struct {
    void *context;
    uint8_t *block; /* what is compressed, or what came out */
    size_t size;
    bool compresses;
} rd_compressor_t;

/* Of libzstd; NULL: built without it, so that nothing can be opened. */
const char *rd_zstd_version(void);

#define RD_NO_ZSTD "this command is built without libzstd, so it cannot compress"

/* For blocks of at most `size` bytes, one way. False: no memory. */
bool rd_compressor_open(rd_compressor_t *compressor_p, size_t size, int level, bool compresses);
void rd_compressor_close(rd_compressor_t *compressor);

/* Packs `len` bytes of its block; 0 if they would not become fewer. */
size_t rd_compress(rd_compressor_t *compressor, size_t len, uint8_t *to);
/* Unpacks into its block. True if exactly `wanted` bytes came out. */
bool rd_decompress(rd_compressor_t *compressor, const uint8_t *from, size_t len, size_t wanted);

#endif
