/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_CHANNEL_H
#define BW_CHANNEL_H

#include "../link/shm/shm.h"
#include "block.h"

/* A channel passes blocks from the connecting process to the listening one. Blocks are numbered,
 * and the sender must tell the receiver their numbers by other means. An end never outlives its
 * process, because the kernel closes it. Any thread may call any of these functions. None of them
 * waits for another process, except bw_channel_accept, which waits for at most
 * BW_CHANNEL_SILENT_MS, plus one millisecond for each peer that is queued behind silent ones. */

#define BW_BLOCK_PASSED_MAX 64 /* per channel: blocks that have been passed but not yet taken */

/* How much time a peer has to send the token after connecting, which usually takes microseconds. */
#define BW_CHANNEL_SILENT_MS 100

typedef struct bw_channel bw_channel_t;

/* `id` identifies the channel to the receiver. */
bw_status_t bw_channel_connect(bw_blocks_t *blocks, const uint8_t *address, size_t address_len,
                               const uint8_t token[BW_TOKEN_BYTES],
                               const uint8_t id[BW_TOKEN_BYTES], bw_channel_t **channel_p,
                               bw_error_t *error_p);

/* Returns the next connected channel. BW_AGAIN: none is queued. Peers that belong to another user,
 * lack the token, or stay silent for BW_CHANNEL_SILENT_MS are rejected. */
bw_status_t bw_channel_accept(bw_blocks_t *blocks, bw_shm_listener_t *listener,
                              bw_channel_t **channel_p, bw_error_t *error_p);

void bw_channel_id(const bw_channel_t *channel, uint8_t id[BW_TOKEN_BYTES]);

/* Returns whether the other end is open. On the receiving side, also receives queued blocks. */
bool bw_channel_look(bw_channel_t *channel);

/* Passes a block. When this returns, the receiver can take it. BW_AGAIN: too many blocks are in
 * flight. BW_LIMIT: the system does not allow more descriptors in flight. */
bw_status_t bw_channel_pass(bw_channel_t *channel, bw_block_t *block, uint64_t *number_p,
                            bw_error_t *error_p);

/* Takes a block, with one reference. BW_LIMIT without `beyond`: there would be too many blocks; it
 * can still be taken with `beyond`. BW_LIMIT with `beyond`: this process has run out of descriptors
 * or memory; it can be taken once some are available. BW_REFUSED, BW_CORRUPT: the peer has not
 * passed what it announced, or has passed something other than a block. */
bw_status_t bw_channel_take(bw_channel_t *channel, uint64_t number, uint64_t size, bool beyond,
                            bw_block_t **block_p, bw_error_t *error_p);

/* Closes the channel for both sides. Its memory is freed by bw_channel_delete. */
void bw_channel_close(bw_channel_t *channel);

void bw_channel_delete(bw_channel_t *channel);

#endif
