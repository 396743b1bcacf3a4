/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_BLOCKS_H
#define RD_BLOCKS_H

#include "digest.h"

/*
 * Finds the blocks of an old file in a new one, as described in A. Tridgell and P. Mackerras, The
 * rsync algorithm, TR-CS-96-05, Australian National University, 1996. The side with the old file
 * identifies each block by a weak checksum, which can roll from byte to byte, and a strong digest.
 * The side with the new file finds these blocks at any offset, and sends only the bytes between
 * them.
 *
 * The list of blocks comes from the other host and is not trusted, so memory and search time are
 * bounded whatever the list contains. A wrong list leads to a wrong file, which is detected when
 * its digest is checked at the end.
 */

#define RD_BLOCK_LEAST 2048u
#define RD_BLOCK_MOST (16u << 20)
#define RD_BLOCKS_MAX (1u << 18) /* per file; the list and its index then take 10 MB */
#define RD_BLOCK_NAME_BYTES 24u

/* Returns the block size for a file of this size, or 0 if the file is too large. It is a power of
 * two near the square root of the size, so that the list and one changed block cost about the
 * same. */
uint32_t rd_block_bytes(uint64_t size);

/* Writes the name of block `index` in the format that is sent to the other host. */
void rd_block_name(uint8_t name[RD_BLOCK_NAME_BYTES], uint32_t index, const uint8_t *block,
                   uint32_t bytes, const rd_digest_key_t *key);

typedef struct rd_block rd_block_t;

typedef struct {
    uint32_t bytes; /* block size */
    uint32_t count, room;
    rd_block_t *of;
} rd_blocks_t;

/* Adds block names that have arrived, in the order of their blocks. On failure, *why is set. */
bool rd_blocks_take(rd_blocks_t *blocks, uint64_t block_bytes, const uint8_t *names, size_t len,
                    rd_why_t *why);

/* Returns whether this block of the new file may be equal to the block at the same offset in the
 * old file. Also returns true if the old block was not named. Call this for the blocks in order,
 * with *next_p = 0 at first. */
bool rd_blocks_may_have(const rd_blocks_t *blocks, uint32_t *next_p, uint32_t index,
                        const uint8_t *block, const rd_digest_key_t *key);

/* Empties the list, but keeps its memory for the next file. */
void rd_blocks_clear(rd_blocks_t *blocks);
void rd_blocks_free(rd_blocks_t *blocks);

/* Callbacks for the results of a search, called in the order of the new file. Either function
 * returns false to stop the search. */
typedef struct {
    void *context;
    bool (*put)(void *context, const uint8_t *at, size_t len);     /* new bytes */
    bool (*copy)(void *context, uint64_t offset, uint64_t length); /* a range of the old file */
} rd_found_t;

typedef struct rd_search rd_search_t;

/* Returns NULL if memory is exhausted. The arguments must stay valid until rd_search_close. */
rd_search_t *rd_search_open(rd_blocks_t *blocks, const rd_digest_key_t *key, rd_found_t found);

/* Returns where to write the next bytes of the file, and sets *room_p to how many fit there, which
 * is never 0. */
uint8_t *rd_search_room(rd_search_t *search, size_t *room_p);

/* Continues the search after `len` bytes were written where rd_search_room said. Returns false if a
 * callback has stopped the search. */
bool rd_search_more(rd_search_t *search, size_t len);

/* Passes everything read so far to the callbacks. Call this at the end of the file, or when the
 * bytes that follow come from a different place in the file. Returns false if a callback has
 * stopped the search. */
bool rd_search_flush(rd_search_t *search);

void rd_search_close(rd_search_t *search);

#endif
