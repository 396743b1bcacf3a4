/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_DIGEST_H
#define RD_DIGEST_H

#include "item.h"

/*
 * Digests of a file's content. All of them leave out pieces that are zeroes, so that holes need not
 * be read, and a file has the same digest wherever its zeroes are stored: for each piece of 256 KiB
 * that has another byte they cover its offset and its bytes, and then the length.
 *
 * XXH3 (128 bits, of libxxhash) is as fast as memory, but it is no cryptographic hash. So each copy
 * keys it with random bytes: nobody can prepare two files that have the same digest.
 */

typedef enum { RD_DIGEST_SHA256, RD_DIGEST_XXH3, RD_DIGEST_BLAKE2B } rd_digest_kind_t;

#define RD_SEED_BYTES 24u
#define RD_SECRET_BYTES 192u
#define RD_BLOCK_DIGEST_BYTES 16u

typedef struct {
    rd_digest_kind_t kind;
    uint8_t secret[RD_SECRET_BYTES]; /* of XXH3; all the others have no key */
} rd_digest_key_t;

/* Was this program built with libxxhash? */
bool rd_digest_has_xxh3(void);

/* The key of XXH3 that both sides make of the same seed. */
void rd_digest_key(rd_digest_key_t *key_p, const uint8_t seed[RD_SEED_BYTES]);

typedef struct rd_digest rd_digest_t;

/* NULL: there is no memory. The key must stay where it is until the end. */
rd_digest_t *rd_digest_open(const rd_digest_key_t *key);

/* The next bytes of the file, and the next that are a hole. */
void rd_digest_add(rd_digest_t *digest, const uint8_t *at, size_t len);
void rd_digest_skip(rd_digest_t *digest, uint64_t len);

/* The bytes of a file from where the digest is to `end`; holes are not read. False: errno, 0 if the
 * file is shorter. */
bool rd_digest_read(rd_digest_t *digest, int fd, uint64_t end);

/* Frees it as well. False: libcrypto has failed. */
bool rd_digest_end(rd_digest_t *digest, uint8_t result[RD_DIGEST_BYTES]);

/* Frees it; NULL: does nothing. */
void rd_digest_close(rd_digest_t *digest);

/* The digest of the first `len` bytes of a file. Moves the descriptor's offset. False: errno, 0 if
 * the file is shorter. */
bool rd_digest_file(const rd_digest_key_t *key, int fd, uint64_t len,
                    uint8_t result[RD_DIGEST_BYTES]);

/* A digest of bytes in memory. Zeroes count here. */
void rd_digest_block(const rd_digest_key_t *key, const void *at, size_t len,
                     uint8_t result[RD_BLOCK_DIGEST_BYTES]);

#endif
