/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_CODEC_H
#define BW_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/*
 * Compresses a stream in pieces, each as soon as it is available: a writer packs them, and a reader
 * unpacks them in the same order. Both retain the most recent bytes of the stream, so a short piece
 * compresses well if it resembles earlier ones.
 *
 * The reader's input comes from the peer, so the amount of memory that the reader allocates does
 * not depend on what the input claims. After a failure, a writer or reader may only be closed. Each
 * is used by one thread at a time, but different ones may be used at the same time. Nothing blocks.
 */
typedef struct bw_packer bw_packer_t;
typedef struct bw_unpacker bw_unpacker_t;

typedef struct {
    /* Returns NULL if out of memory. */
    bw_packer_t *(*open_packer)(void);
    void (*close_packer)(bw_packer_t *packer);
    /* Returns the maximum compressed size of a piece of `len` bytes. */
    size_t (*bound)(size_t len);
    /* Adds bytes to a piece, and completes it if `ends`. Writes the output that is ready to `to`,
     * which must have enough room, and sets *made_p to its size. Returns false if out of memory;
     * the packer may then only be closed. */
    bool (*pack)(bw_packer_t *packer, const struct iovec *iov, int count, bool ends, uint8_t *to,
                 size_t room, size_t *made_p);

    bw_unpacker_t *(*open_unpacker)(void);
    void (*close_unpacker)(bw_unpacker_t *unpacker);
    /* Consumes all `len` bytes, writes the unpacked bytes to `to` and sets *made_p to their number.
     * After the last byte of a piece, all of the piece has been written, unless it has `room` bytes
     * or more. Returns false if the input cannot come from a packer. */
    bool (*unpack)(bw_unpacker_t *unpacker, const uint8_t *from, size_t len, uint8_t *to,
                   size_t room, size_t *made_p);
} bw_codec_t;

/* The function that a shared object with a codec exports. It returns NULL if the object has a
 * different version. Any thread may call it. */
#define BW_CODEC_VERSION 1
#define BW_CODEC_SYMBOL "bw_codec"
typedef const bw_codec_t *bw_codec_fn(uint32_t version);

#endif
