/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_BLOCK_H
#define BW_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#include "../link/status.h"

/*
 * Blocks: bytes that processes of the same user on the same host share without copying them. A
 * block is one memfd that can never change again, because it is sealed against writing, shrinking
 * and growing. Its descriptor gives access to this block and to nothing else. The kernel counts the
 * references, so when a process exits, only the blocks that no other process references are freed.
 *
 * Any thread may call any of these functions. None of them waits for another process.
 */

typedef struct bw_block bw_block_t;
typedef struct bw_blocks bw_blocks_t;

typedef struct {
    uint64_t blocks, bytes;         /* currently referenced, each counted once */
    uint64_t max_blocks, max_bytes; /* limits, which only a call with `beyond` may exceed */
    uint64_t made, received;        /* since the start */
    uint64_t refused;               /* because a limit was reached */
    uint64_t waiting; /* descriptors that were received but not yet adopted; counted as blocks */
} bw_blocks_info_t;

/* Creates the record of this process's blocks. They and descriptors not yet adopted may use a
 * quarter of the descriptors that the process may open, not counting those taken with `beyond`. */
bw_blocks_t *bw_blocks_new(uint64_t max_bytes);

/* Must be called only when no blocks and no channels are left. */
void bw_blocks_delete(bw_blocks_t *blocks);

void bw_blocks_limit(bw_blocks_t *blocks, uint64_t max_bytes);

bw_blocks_info_t bw_blocks_info(bw_blocks_t *blocks);

/* ---- creating a block ---- */

/* Creates an empty block. Fill it with the calls below, then pass it to bw_block_finish. BW_LIMIT:
 * a limit was reached. */
bw_status_t bw_block_begin(bw_blocks_t *blocks, size_t size, bw_block_t **block_p,
                           bw_error_t *error_p);

bw_status_t bw_block_write(bw_block_t *block, size_t offset, const void *data, size_t len,
                           bw_error_t *error_p);

/* Fills the block with the next bytes of a file. A file that is too short is an error. */
bw_status_t bw_block_fill(bw_block_t *block, int file, bw_error_t *error_p);

/* Seals and maps the block. Whether or not this succeeds, the caller has one reference. */
bw_status_t bw_block_finish(bw_block_t *block, bw_error_t *error_p);

/* ---- using a block ---- */

const uint8_t *bw_block_data(const bw_block_t *block);
size_t bw_block_size(const bw_block_t *block);

/* Returns the block that consists of exactly these bytes, and adds a reference to it. Returns NULL
 * if there is no such block. The caller must keep the bytes alive until this returns. */
bw_block_t *bw_block_find(bw_blocks_t *blocks, const void *at, size_t size);

/* Releases a reference. Returns true if it was the last; then bw_block_free must follow. */
bool bw_block_drop(bw_block_t *block);

/* This is slow for large blocks: it takes 0.1 to 0.3 ms per megabyte. */
void bw_block_free(bw_block_t *block);

/* ---- passing blocks between processes: for channel.c ---- */

/* Returns the descriptor through which another process can adopt the block; the block owns it. */
int bw_block_descriptor(const bw_block_t *block);

/* Counts an incoming descriptor as waiting until bw_blocks_release is called. Returns false if
 * there are too many and `beyond` is not set. */
bool bw_blocks_reserve(bw_blocks_t *blocks, bool beyond);
void bw_blocks_release(bw_blocks_t *blocks);

/* Creates a block, with one reference, from a descriptor that a peer has passed. BW_LIMIT: there
 * would be too many blocks and `beyond` is not set, or memory is exhausted; only then does the
 * caller still own the descriptor. BW_REFUSED: it is not a block of that size. */
bw_status_t bw_block_adopt(bw_blocks_t *blocks, int fd, uint64_t size, bool beyond,
                           bw_block_t **block_p, bw_error_t *error_p);

#endif
