/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_BLOCKS_H
#define RD_BLOCKS_H

#include "digest.h"

/*
 * The blocks of a file, and the search for them in another file: A. Tridgell and P. Mackerras, The
 * rsync algorithm, TR-CS-96-05, Australian National University, 1996. Whoever has the old file
 * names its blocks by a weak sum, which rolls from byte to byte, and by a strong digest. Whoever
 * has the new one finds these blocks at any offset, and sends only the rest.
 *
 * The list of blocks comes from the other host and is not trusted: its memory and the time of a
 * search are bounded whatever it says. What it says wrongly, the check of the result finds.
 */

#define RD_BLOCK_LEAST 2048u
#define RD_BLOCK_MOST (16u << 20)
#define RD_BLOCKS_MAX (1u << 18) /* of a file; the list and its index have 10 MB then */
#define RD_BLOCK_NAME_BYTES 24u

/* How long the blocks of such a file are: a power of two near the square root of its size, so that
 * their list and one changed block cost about the same. 0: it is too large. */
uint32_t rd_block_bytes(uint64_t size);

/* The name of block `index`, as it goes to the other host. */
void rd_block_name(uint8_t name[RD_BLOCK_NAME_BYTES], uint32_t index, const uint8_t *block,
                   uint32_t bytes, const rd_digest_key_t *key);

typedef struct rd_block rd_block_t;

typedef struct {
    uint32_t bytes; /* of each */
    uint32_t count, room;
    rd_block_t *of;
} rd_blocks_t;

/* Takes names that have come, in order of their blocks. False: *why. */
bool rd_blocks_take(rd_blocks_t *blocks, uint64_t block_bytes, const uint8_t *names, size_t len,
                    rd_why_t *why);

/* Can a block of the new file be the one that lies there in the old one? Also if that one was not
 * named. To be asked in order: *next_p begins with 0. */
bool rd_blocks_may_have(const rd_blocks_t *blocks, uint32_t *next_p, uint32_t index,
                        const uint8_t *block, const rd_digest_key_t *key);

/* Forgets them, but keeps the memory for the next file. */
void rd_blocks_clear(rd_blocks_t *blocks);
void rd_blocks_free(rd_blocks_t *blocks);

/* What a search finds, in the order of the new file. False: nobody wants more. */
typedef struct {
    void *context;
    bool (*put)(void *context, const uint8_t *at, size_t len);     /* bytes that are new */
    bool (*copy)(void *context, uint64_t offset, uint64_t length); /* of the old file */
} rd_found_t;

typedef struct rd_search rd_search_t;

/* NULL: there is no memory. All that is given must stay until the end. */
rd_search_t *rd_search_open(rd_blocks_t *blocks, const rd_digest_key_t *key, rd_found_t found);

/* Where the next bytes of the file go; there is room for one at least. */
uint8_t *rd_search_room(rd_search_t *search, size_t *room_p);

/* So many bytes are there. False: nobody wants more. */
bool rd_search_more(rd_search_t *search, size_t len);

/* What follows is elsewhere, or there is no more: all that has come goes. False: as above. */
bool rd_search_flush(rd_search_t *search);

void rd_search_close(rd_search_t *search);

#endif
