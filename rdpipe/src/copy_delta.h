/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COPY_DELTA_H
#define RD_COPY_DELTA_H

#include "blocks.h"
#include "copy_file.h"

/*
 * How a changed file goes: the target's side names the blocks of the version that lies there
 * (BLOCKS, before the FILE), the source sends what is in none of them (DATA) and where the rest is
 * (COPY), and the target puts a new file together. At its end both sides compare a BLAKE2b of the
 * whole, so nothing gets its name that is not what the source has.
 */

/* Puts the blocks of a version, which has more than one. `digest`: what rd_digest_file says of it,
 * NULL: it is not needed. False: errno, 0 if it is shorter now; what was put is of no harm. */
bool rd_delta_name_blocks(rd_items_out_t *out, const rd_digest_key_t *key, int fd, uint64_t size,
                          uint8_t *digest);

/* Takes the content of a BLOCKS item. False: *why. */
bool rd_delta_take_blocks(rd_blocks_t *blocks, const rd_item_t *item, rd_items_in_t *in,
                          rd_why_t *why);

/* Is this the file that has this digest and these blocks? It is read no further than to the first
 * block that differs. */
bool rd_delta_is_same(const rd_blocks_t *blocks, const rd_digest_key_t *key, int fd, uint64_t size,
                      const uint8_t digest[RD_DIGEST_BYTES]);

/* Sends the file from `at` on, of which the target has what is before. `check` is its BLAKE2b.
 * False: errno, 0 if it is shorter now, or nobody wants more, and then *goes_on_p is false. */
bool rd_delta_send(rd_items_out_t *out, rd_blocks_t *blocks, const rd_digest_key_t *key, int fd,
                   const struct stat *is, uint64_t at, bool *goes_on_p,
                   uint8_t check[RD_DIGEST_BYTES]);

/* Has the file this BLAKE2b, as long as it was? */
bool rd_delta_is_still(int fd, uint64_t size, const uint8_t check[RD_DIGEST_BYTES]);

/* After rd_file_open of a file that comes so. These three do nothing if it is not open; an error is
 * said, and closes it. */
void rd_delta_begin(rd_writer_t *writer, rd_file_t *file);

/* Writes what a COPY item names. */
void rd_delta_copy(rd_writer_t *writer, rd_file_t *file, uint64_t from, uint64_t len);

/* The content has come: compares it. */
void rd_delta_end(rd_writer_t *writer, rd_file_t *file, const uint8_t check[RD_DIGEST_BYTES]);

#endif
