/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_DIGEST_H
#define RD_DIGEST_H

#include "copy_item.h"

/*
 * Digests of a file's content. All kinds skip pieces that are all zeros, so that holes need not be
 * read and a file has the same digest whether or not its zeros are stored. A digest covers the
 * offset and the bytes of each 256-KiB piece that contains a non-zero byte, and then the file's
 * length.
 *
 * XXH3 (128 bits, from libxxhash) is as fast as memory, but it is not a cryptographic hash. Each
 * copy therefore keys it with random bytes, so an attacker cannot prepare two files with the same
 * digest.
 */

typedef enum { RD_DIGEST_SHA256, RD_DIGEST_XXH3, RD_DIGEST_BLAKE2B } rd_digest_kind_t;

#define RD_SEED_BYTES 24u
#define RD_SECRET_BYTES 192u
#define RD_BLOCK_DIGEST_BYTES 16u

typedef struct {
    rd_digest_kind_t kind;
    uint8_t secret[RD_SECRET_BYTES]; /* for XXH3; the others have no key */
} rd_digest_key_t;

/* Returns whether this program was built with libxxhash. */
bool rd_digest_has_xxh3(void);

/* Returns whether this processor has instructions for SHA-256. Without them, BLAKE2b is faster. */
bool rd_digest_has_fast_sha256(void);

/* Derives the key of XXH3 from a seed that both sides have. */
void rd_digest_key(rd_digest_key_t *key_p, const uint8_t seed[RD_SEED_BYTES]);

typedef struct rd_digest rd_digest_t;

/* Returns NULL with errno ENOMEM if memory is exhausted. The key must stay valid until the digest
 * is freed. */
rd_digest_t *rd_digest_open(const rd_digest_key_t *key);

/* Adds the next `len` bytes of the file, or a hole of that length. */
void rd_digest_add(rd_digest_t *digest, const uint8_t *at, size_t len);
void rd_digest_skip(rd_digest_t *digest, uint64_t len);

/* Adds the file's bytes from the digest's position to `end`, without reading holes. On failure
 * errno is set, or 0 if the file is shorter. */
bool rd_digest_read(rd_digest_t *digest, int fd, uint64_t end);

/* Computes the result and frees the digest. Returns false if libcrypto has failed. */
bool rd_digest_end(rd_digest_t *digest, uint8_t result[RD_DIGEST_BYTES]);

/* Frees the digest. Does nothing for NULL. Does not change errno. */
void rd_digest_close(rd_digest_t *digest);

/* Computes the digest of the first `len` bytes of a file. Moves the descriptor's offset. On
 * failure, errno is set, or 0 if the file is shorter. */
bool rd_digest_file(const rd_digest_key_t *key, int fd, uint64_t len,
                    uint8_t result[RD_DIGEST_BYTES]);

/* Computes the digest of bytes in memory. Zeros are not skipped here. */
void rd_digest_block(const rd_digest_key_t *key, const void *at, size_t len,
                     uint8_t result[RD_BLOCK_DIGEST_BYTES]);

#endif
