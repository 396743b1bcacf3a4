/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_BLOCK_H
#define BW_BLOCK_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "../link/shm/shm.h"

/*
 * Blocks: bytes that processes of one host and one user share without copying them.
 *
 * A block is one memfd that can never change again: it is sealed against writing, shrinking and
 * growing. Whoever has its descriptor can read this block and nothing else. The kernel counts the
 * references, so the end of a process, whatever its cause, frees what that process alone held, and
 * takes nothing from the others.
 *
 * Any thread may call any of these functions. None waits for another process, but
 * bw_channel_accept for a moment.
 */

#define BW_BLOCK_PASSED_MAX 64   /* of one channel: passed, and not yet taken by the other side */
#define BW_CHANNEL_SILENT_MS 100 /* between connecting and the token: usually microseconds */

typedef struct bw_block bw_block_t;
typedef struct bw_blocks bw_blocks_t;
typedef struct bw_channel bw_channel_t;

typedef struct {
    uint64_t blocks, bytes;         /* held now, by whatever number of users */
    uint64_t max_blocks, max_bytes; /* beyond these no block is made */
    uint64_t made, received;        /* since the start */
    uint64_t refused;               /* found no room */
} bw_blocks_info_t;

/* The blocks of this process. Descriptors: at most a quarter of what the process may open. */
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

/* ---- from process to process ---- */

/*
 * A channel brings blocks from the process that connects to the one that listens, under numbers
 * that some other way tells the receiver. Each end is as its process: the kernel closes it.
 */

/* `id`: by which the receiver knows the channel. */
bw_status_t bw_channel_connect(bw_blocks_t *blocks, const uint8_t *address, size_t address_len,
                               const uint8_t token[BW_TOKEN_BYTES],
                               const uint8_t id[BW_TOKEN_BYTES], bw_channel_t **channel_p,
                               bw_error_t *error_p);

/* The next channel that somebody has connected; BW_AGAIN: none waits. Peers of another user,
 * without the token, or silent for BW_CHANNEL_SILENT_MS are turned away. */
bw_status_t bw_channel_accept(bw_blocks_t *blocks, bw_shm_listener_t *listener,
                              bw_channel_t **channel_p, bw_error_t *error_p);

void bw_channel_id(const bw_channel_t *channel, uint8_t id[BW_TOKEN_BYTES]);

/* Whether the other end is there. At the receiver it also takes in what waits. */
bool bw_channel_look(bw_channel_t *channel);

/* Passes a block. When this returns the receiver can take it. BW_AGAIN: too many are on their way.
 * BW_LIMIT: the system lets no more descriptors be on their way. */
bw_status_t bw_channel_pass(bw_channel_t *channel, bw_block_t *block, uint64_t *number_p,
                            bw_error_t *error_p);

/*
 * Takes a block, with one reference. BW_LIMIT: it would be too many; it still can be taken, and
 * bw_channel_take with `beyond` does so. BW_REFUSED, BW_CORRUPT: the peer has not passed what it
 * says, or not what a block is.
 */
bw_status_t bw_channel_take(bw_channel_t *channel, uint64_t number, uint64_t size, bool beyond,
                            bw_block_t **block_p, bw_error_t *error_p);

/* Ends the channel for both sides; the memory stays until bw_channel_delete. */
void bw_channel_close(bw_channel_t *channel);

void bw_channel_delete(bw_channel_t *channel);

#endif
