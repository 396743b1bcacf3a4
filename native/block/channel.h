/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_CHANNEL_H
#define BW_CHANNEL_H

#include "../link/shm/shm.h"
#include "block.h"

/*
 * A channel passes blocks from the connecting process to the listening one. They have numbers,
 * which the receiver must learn in some other way. Each end lives as long as its process, because
 * the kernel closes it.
 *
 * Any thread may call any of these functions. None of them waits for another process, except
 * bw_channel_accept, which waits BW_CHANNEL_SILENT_MS, and a millisecond more for each peer behind
 * silent ones.
 */

#define BW_BLOCK_PASSED_MAX 64   /* of one channel: passed, but not yet taken by the other side */
#define BW_CHANNEL_SILENT_MS 100 /* between connecting and the token; usually microseconds */

typedef struct bw_channel bw_channel_t;

/* `id` identifies the channel to the receiver. */
bw_status_t bw_channel_connect(bw_blocks_t *blocks, const uint8_t *address, size_t address_len,
                               const uint8_t token[BW_TOKEN_BYTES],
                               const uint8_t id[BW_TOKEN_BYTES], bw_channel_t **channel_p,
                               bw_error_t *error_p);

/* Returns the next connected channel. BW_AGAIN: none is queued. Peers of another user, without the
 * token, or silent for BW_CHANNEL_SILENT_MS are turned away. */
bw_status_t bw_channel_accept(bw_blocks_t *blocks, bw_shm_listener_t *listener,
                              bw_channel_t **channel_p, bw_error_t *error_p);

void bw_channel_id(const bw_channel_t *channel, uint8_t id[BW_TOKEN_BYTES]);

/* Whether the other end is still there. At the receiver this also takes in queued blocks. */
bool bw_channel_look(bw_channel_t *channel);

/* Passes a block. When this returns, the receiver can take it. BW_AGAIN: too many are under way.
 * BW_LIMIT: the system allows no more descriptors under way. */
bw_status_t bw_channel_pass(bw_channel_t *channel, bw_block_t *block, uint64_t *number_p,
                            bw_error_t *error_p);

/*
 * Takes a block, with one reference. BW_LIMIT: there would be too many, but it can still be taken,
 * with `beyond`. With `beyond`, BW_LIMIT means that this process has no descriptor or no memory
 * left, and the block can be taken when it has some. BW_REFUSED, BW_CORRUPT: the peer has not
 * passed what it announced, or has passed something else than a block.
 */
bw_status_t bw_channel_take(bw_channel_t *channel, uint64_t number, uint64_t size, bool beyond,
                            bw_block_t **block_p, bw_error_t *error_p);

/* Closes the channel for both sides; the memory stays until bw_channel_delete. */
void bw_channel_close(bw_channel_t *channel);

void bw_channel_delete(bw_channel_t *channel);

#endif
