/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_BLOCK_H
#define BW_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "../link/status.h"

/*
 * Blocks: bytes that processes of one host and one user share without copying them.
 *
 * A block is one memfd that can never change again: it is sealed against writing, shrinking and
 * growing. Whoever has its descriptor can read this block and nothing else. The kernel counts the
 * references, so the end of a process, whatever its cause, frees what that process alone held, and
 * takes nothing from the others.
 *
 * Any thread may call any of these functions. None waits for another process.
 */

typedef struct bw_block bw_block_t;
typedef struct bw_blocks bw_blocks_t;

typedef struct {
    uint64_t blocks, bytes;         /* held now, by whatever number of users */
    uint64_t max_blocks, max_bytes; /* beyond these no block is made */
    uint64_t made, received;        /* since the start */
    uint64_t refused;               /* found no room */
    uint64_t waiting;               /* descriptors that came and were not adopted; as blocks */
} bw_blocks_info_t;

/* The blocks of this process. They and the descriptors that wait to become blocks are at most a
 * quarter of what the process may open, but for those that are taken `beyond`. */
bw_blocks_t *bw_blocks_new(uint64_t max_bytes);

/* There are no blocks and no channels left. */
void bw_blocks_delete(bw_blocks_t *blocks);

void bw_blocks_limit(bw_blocks_t *blocks, uint64_t max_bytes);

bw_blocks_info_t bw_blocks_info(bw_blocks_t *blocks);

/* ---- to make one ---- */

/* An empty block, for the calls below until bw_block_finish. BW_LIMIT: there is no room for it. */
bw_status_t bw_block_begin(bw_blocks_t *blocks, size_t size, bw_block_t **block_p,
                           bw_error_t *error_p);

bw_status_t bw_block_write(bw_block_t *block, size_t offset, const void *data, size_t len,
                           bw_error_t *error_p);

/* Fills the block with the next bytes of a file. A file that is shorter is an error. */
bw_status_t bw_block_fill(bw_block_t *block, int file, bw_error_t *error_p);

/* Seals and maps it. The caller has one reference, whatever the result. */
bw_status_t bw_block_finish(bw_block_t *block, bw_error_t *error_p);

/* ---- to use one ---- */

const uint8_t *bw_block_data(const bw_block_t *block);
size_t bw_block_size(const bw_block_t *block);

/* The block whose bytes are exactly these, with one more reference; NULL if there is none. The
 * caller knows that the bytes stay until this returns. */
bw_block_t *bw_block_find(bw_blocks_t *blocks, const void *at, size_t size);

/* Gives a reference back. True: it was the last, and the caller calls bw_block_free. */
bool bw_block_drop(bw_block_t *block);

/* Takes long for large blocks: 0.1 to 0.3 ms a megabyte. */
void bw_block_free(bw_block_t *block);

/* ---- from process to process: for channel.c ---- */

/* By which another process can adopt the block; it stays the block's. */
int bw_block_descriptor(const bw_block_t *block);

/* Counts a descriptor that comes, until bw_blocks_release. False: there are too many, and it is not
 * `beyond`. */
bool bw_blocks_reserve(bw_blocks_t *blocks, bool beyond);
void bw_blocks_release(bw_blocks_t *blocks);

/* A block by the descriptor that a peer has passed, with one reference. BW_LIMIT: it would be too
 * many, unless `beyond`, or there is no memory; the descriptor is still the caller's, else it is
 * not. BW_REFUSED: it is not what a block of that size is. */
bw_status_t bw_block_adopt(bw_blocks_t *blocks, int fd, uint64_t size, bool beyond,
                           bw_block_t **block_p, bw_error_t *error_p);

#endif
