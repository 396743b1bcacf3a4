/* SPDX-License-Identifier: Apache-2.0 */
#include "digest.h"

#include <endian.h>
#include <errno.h>
#include <sys/auxv.h>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

#include <openssl/evp.h>

#include "sparse.h"

/* Compiled in as a header, so that no host needs the library. */
#ifndef RD_WITHOUT_XXHASH
#define XXH_INLINE_ALL
#include <xxhash.h>
#endif

#define PIECE_BYTES ((size_t)256 * 1024) /* part of the protocol */

struct rd_digest {
    const rd_digest_key_t *key;
    EVP_MD_CTX *evp; /* NULL if the digest is XXH3 */
#ifndef RD_WITHOUT_XXHASH
    XXH3_state_t *xxh3;
#endif
    uint64_t at; /* the offset of `piece` in the file */
    size_t filled;
    bool is_broken;
    uint8_t piece[PIECE_BYTES];
};

bool rd_digest_has_xxh3(void)
{
#ifdef RD_WITHOUT_XXHASH
    return false;
#else
    return true;
#endif
}

bool rd_digest_has_fast_sha256(void)
{
#if defined(__x86_64__) || defined(__i386__)
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & 1u << 29;
#elif defined(__aarch64__)
    return getauxval(AT_HWCAP) & 1 << 6;
#else
    return false;
#endif
}

void rd_digest_key(rd_digest_key_t *key_p, const uint8_t seed[RD_SEED_BYTES])
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();

    *key_p = (rd_digest_key_t){.kind = RD_DIGEST_XXH3};
    if (!context || EVP_DigestInit_ex(context, EVP_shake256(), NULL) != 1 ||
        EVP_DigestUpdate(context, seed, RD_SEED_BYTES) != 1 ||
        EVP_DigestFinalXOF(context, key_p->secret, sizeof key_p->secret) != 1)
        abort(); /* happens only if memory is exhausted; it is too late for another key, because the
                    other side already uses this one */
    EVP_MD_CTX_free(context);
}

/* ---- the hashes ---- */

static bool begin(rd_digest_t *digest)
{
    const EVP_MD *kind = digest->key->kind == RD_DIGEST_BLAKE2B ? EVP_blake2b512() : EVP_sha256();

#ifndef RD_WITHOUT_XXHASH
    if (digest->key->kind == RD_DIGEST_XXH3) {
        digest->xxh3 = XXH3_createState();
        return digest->xxh3 && XXH3_128bits_reset_withSecret(digest->xxh3, digest->key->secret,
                                                             RD_SECRET_BYTES) == XXH_OK;
    }
#endif
    digest->evp = EVP_MD_CTX_new();
    return digest->evp && EVP_DigestInit_ex(digest->evp, kind, NULL) == 1;
}

static void update(rd_digest_t *digest, const void *at, size_t len)
{
#ifndef RD_WITHOUT_XXHASH
    if (digest->xxh3) {
        (void)XXH3_128bits_update(digest->xxh3, at, len);
        return;
    }
#endif
    if (EVP_DigestUpdate(digest->evp, at, len) != 1)
        digest->is_broken = true;
}

static void finish(rd_digest_t *digest, uint8_t result[RD_DIGEST_BYTES])
{
    uint8_t all[EVP_MAX_MD_SIZE] = {0};

#ifndef RD_WITHOUT_XXHASH
    if (digest->xxh3) {
        XXH128_canonical_t bytes;

        XXH128_canonicalFromHash(&bytes, XXH3_128bits_digest(digest->xxh3));
        memset(result, 0, RD_DIGEST_BYTES);
        memcpy(result, bytes.digest, sizeof bytes.digest);
        return;
    }
#endif
    if (EVP_DigestFinal_ex(digest->evp, all, NULL) != 1)
        digest->is_broken = true;
    memcpy(result, all, RD_DIGEST_BYTES); /* the first half of BLAKE2b's 64 bytes */
}

void rd_digest_block(const rd_digest_key_t *key, const void *at, size_t len,
                     uint8_t result[RD_BLOCK_DIGEST_BYTES])
{
    uint8_t all[EVP_MAX_MD_SIZE] = {0};

#ifndef RD_WITHOUT_XXHASH
    if (key->kind == RD_DIGEST_XXH3) {
        XXH128_canonical_t bytes;

        XXH128_canonicalFromHash(&bytes,
                                 XXH3_128bits_withSecret(at, len, key->secret, RD_SECRET_BYTES));
        memcpy(result, bytes.digest, RD_BLOCK_DIGEST_BYTES);
        return;
    }
#endif
    (void)key;
    if (EVP_Digest(at, len, all, NULL, EVP_sha256(), NULL) != 1)
        abort(); /* happens only if memory is exhausted; without its digest a block could match any
                    other */
    memcpy(result, all, RD_BLOCK_DIGEST_BYTES);
}

/* ---- pieces ---- */

rd_digest_t *rd_digest_open(const rd_digest_key_t *key)
{
    rd_digest_t *digest = malloc(sizeof *digest);

    if (!digest)
        return NULL;
    memset(digest, 0, offsetof(rd_digest_t, piece));
    digest->key = key;
    if (begin(digest))
        return digest;
    rd_digest_close(digest);
    errno = ENOMEM;
    return NULL;
}

void rd_digest_close(rd_digest_t *digest)
{
    int error = errno;

    if (!digest)
        return;
#ifndef RD_WITHOUT_XXHASH
    (void)XXH3_freeState(digest->xxh3);
#endif
    EVP_MD_CTX_free(digest->evp);
    free(digest);
    errno = error;
}

static void put_number(rd_digest_t *digest, uint64_t number)
{
    uint64_t bytes = htole64(number);

    update(digest, &bytes, sizeof bytes);
}

/* Adds a piece. Returns true if it was all zeros. */
static bool take(rd_digest_t *digest, const uint8_t *piece, size_t len)
{
    bool is_zero = len > 0 && piece[0] == 0 && memcmp(piece, piece + 1, len - 1) == 0;

    if (len > 0 && !is_zero) {
        put_number(digest, digest->at);
        update(digest, piece, len);
    }
    digest->at += len;
    return is_zero;
}

static bool take_piece(rd_digest_t *digest)
{
    size_t filled = digest->filled;

    digest->filled = 0;
    return take(digest, digest->piece, filled);
}

void rd_digest_add(rd_digest_t *digest, const uint8_t *at, size_t len)
{
    while (len > 0) {
        size_t part = PIECE_BYTES - digest->filled;

        if (part > len)
            part = len;
        if (part == PIECE_BYTES) {
            (void)take(digest, at, part);
        } else {
            memcpy(digest->piece + digest->filled, at, part);
            digest->filled += part;
        }
        at += part;
        len -= part;
        if (digest->filled == PIECE_BYTES)
            (void)take_piece(digest);
    }
}

void rd_digest_skip(rd_digest_t *digest, uint64_t len)
{
    while (len > 0) {
        uint64_t part = PIECE_BYTES - digest->filled;

        if (digest->filled == 0 && len >= PIECE_BYTES) {
            part = len / PIECE_BYTES * PIECE_BYTES;
            digest->at += part;
        } else {
            if (part > len)
                part = len;
            memset(digest->piece + digest->filled, 0, (size_t)part);
            digest->filled += (size_t)part;
            if (digest->filled == PIECE_BYTES)
                (void)take_piece(digest);
        }
        len -= part;
    }
}

bool rd_digest_end(rd_digest_t *digest, uint8_t result[RD_DIGEST_BYTES])
{
    bool done;

    (void)take_piece(digest);
    put_number(digest, digest->at);
    finish(digest, result);
    done = !digest->is_broken;
    rd_digest_close(digest);
    return done;
}

/* ---- files ---- */

/* Looks for a hole only at the beginning and after zeros, because a hole reads as zeros. */
bool rd_digest_read(rd_digest_t *digest, int fd, uint64_t end)
{
    bool may_be_hole = true;
    struct stat is;

    for (uint64_t at = digest->at + digest->filled; at < end;) {
        size_t bytes = PIECE_BYTES - digest->filled;

        if (may_be_hole && digest->filled == 0) {
            uint64_t data = rd_end_of_hole(fd, at, end);

            /* Continue at the start of the piece that has data. Only zeros follow the last data. */
            if (data < end)
                data -= (data - at) % PIECE_BYTES;
            rd_digest_skip(digest, data - at);
            at = data;
            if (at == end)
                break;
        }
        if (bytes > end - at)
            bytes = (size_t)(end - at);
        if (!rd_read_at(fd, digest->piece + digest->filled, bytes, at))
            return false;
        digest->filled += bytes;
        at += bytes;
        if (digest->filled == PIECE_BYTES)
            may_be_hole = take_piece(digest);
    }
    if (fstat(fd, &is) == 0 && (uint64_t)is.st_size >= end)
        return true;
    errno = 0;
    return false;
}

bool rd_digest_file(const rd_digest_key_t *key, int fd, uint64_t len,
                    uint8_t result[RD_DIGEST_BYTES])
{
    rd_digest_t *digest = rd_digest_open(key);

    if (digest && rd_digest_read(digest, fd, len))
        return rd_digest_end(digest, result);
    rd_digest_close(digest);
    return false;
}
