/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COPY_DELTA_H
#define RD_COPY_DELTA_H

#include "blocks.h"
#include "copy_file.h"
#include "copy_terms.h"

/*
 * How a changed file is sent: the target's side names the blocks of its version (BLOCKS, before the
 * FILE). For data that is in none of them the source sends the bytes (DATA), and for the rest the
 * position in the old version (COPY), from which the target assembles a new file. At the end both
 * sides compare a cryptographic digest of the whole file, so a file gets its name only if it equals
 * the source's.
 */

/* Sends the names of a version's blocks. The version must have more than one block. `digest`
 * receives what rd_digest_file would return for the version, or is NULL if that is not needed. On
 * failure, errno is set, or 0 if the file has become shorter; the items that were already sent are
 * harmless. */
bool rd_delta_name_blocks(rd_items_out_t *out, const rd_digest_key_t *key, int fd, uint64_t size,
                          uint8_t *digest);

/* Reads the content of a BLOCKS item. On failure, *why is set. */
bool rd_delta_take_blocks(rd_blocks_t *blocks, const rd_item_t *item, rd_items_in_t *in,
                          rd_why_t *why);

/* Returns whether the file has this digest and these blocks. Reads it only as far as the first
 * block that differs. */
bool rd_delta_is_same(const rd_blocks_t *blocks, const rd_digest_key_t *key, int fd, uint64_t size,
                      const uint8_t digest[RD_DIGEST_BYTES]);

/* Sends the file from `at` on; the target already has the bytes before that. `check` receives the
 * file's digest. If this returns false, either errno is set (0 if the file has become shorter), or
 * the receiver has closed and *goes_on_p is false. */
bool rd_delta_send(rd_items_out_t *out, rd_blocks_t *blocks, const rd_copy_terms_t *terms, int fd,
                   const struct stat *is, uint64_t at, bool *goes_on_p,
                   uint8_t check[RD_DIGEST_BYTES]);

/* Returns whether the file, up to its earlier length `size`, still has the digest that
 * rd_delta_send has computed. */
bool rd_delta_is_still(const rd_copy_terms_t *terms, int fd, uint64_t size,
                       const uint8_t check[RD_DIGEST_BYTES]);

/* Call this after rd_file_open for a file that is sent as a difference. This function and the next
 * two do nothing if the file is not open; on an error they report it and close the file. */
void rd_delta_begin(rd_writer_t *writer, const rd_copy_terms_t *terms, rd_file_t *file);

/* Writes the bytes that a COPY item names. */
void rd_delta_copy(rd_writer_t *writer, rd_file_t *file, uint64_t from, uint64_t len);

/* Compares the digests of the content after all of it has arrived. */
void rd_delta_end(rd_writer_t *writer, rd_file_t *file, const uint8_t check[RD_DIGEST_BYTES]);

#endif
