/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_CHANNEL_H
#define BW_CHANNEL_H

#include "../link/shm/shm.h"
#include "block.h"

/*
 * A channel brings blocks from the process that connects to the one that listens, under numbers
 * that some other way tells the receiver. Each end is as its process: the kernel closes it.
 *
 * Any thread may call any of these functions. None waits for another process, but
 * bw_channel_accept for
 * BW_CHANNEL_SILENT_MS, and a millisecond more for each peer behind silent ones.
 */

#define BW_BLOCK_PASSED_MAX 64   /* of one channel: passed, and not yet taken by the other side */
#define BW_CHANNEL_SILENT_MS 100 /* between connecting and the token: usually microseconds */

typedef struct bw_channel bw_channel_t;

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
 * bw_channel_take with `beyond` does so. With `beyond`, BW_LIMIT says that this process has no
 * descriptor or no memory left: it can be taken when it has some. BW_REFUSED, BW_CORRUPT: the peer
 * has not passed what it says, or not what a block is.
 */
bw_status_t bw_channel_take(bw_channel_t *channel, uint64_t number, uint64_t size, bool beyond,
                            bw_block_t **block_p, bw_error_t *error_p);

/* Ends the channel for both sides; the memory stays until bw_channel_delete. */
void bw_channel_close(bw_channel_t *channel);

void bw_channel_delete(bw_channel_t *channel);

#endif
