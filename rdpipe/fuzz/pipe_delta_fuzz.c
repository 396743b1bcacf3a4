/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Feeds the search with block names as another host would send them. The first byte selects either
 * the right names of a file, from which the new file must be restored, or any names.
 */
#include <stdlib.h>
#include <string.h>

#include "copy/blocks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The input is repeated, so that a short one becomes a file of many blocks. */
#define FILE_BYTES (9 * (size_t)RD_BLOCK_LEAST)

typedef struct {
    const uint8_t *old, *wanted; /* old is NULL if it is not known */
    size_t old_len, len, at;
} check_t;

static bool put(void *context, const uint8_t *at, size_t len)
{
    check_t *check = context;

    if (len == 0 || len > check->len - check->at || memcmp(check->wanted + check->at, at, len) != 0)
        abort();
    check->at += len;
    return true;
}

static bool copy(void *context, uint64_t offset, uint64_t len)
{
    check_t *check = context;

    if (len == 0 || len > check->len - check->at)
        abort();
    if (check->old && (len > check->old_len || offset > check->old_len - len ||
                       memcmp(check->wanted + check->at, check->old + offset, len) != 0))
        abort();
    check->at += len;
    return true;
}

/* Searches in pieces, with a flush between them. */
static void search(rd_blocks_t *blocks, const rd_digest_key_t *key, check_t *check)
{
    rd_search_t *search =
        rd_search_open(blocks, key, (rd_found_t){.context = check, .put = put, .copy = copy});
    size_t given = 0;

    if (!search)
        return;
    while (given < check->len) {
        size_t room, piece = 1 + given % 5000;
        uint8_t *to = rd_search_room(search, &room);

        if (room == 0)
            abort();
        if (piece > room)
            piece = room;
        if (piece > check->len - given)
            piece = check->len - given;
        memcpy(to, check->wanted + given, piece);
        given += piece;
        if (!rd_search_more(search, piece) || (given % 7 == 0 && !rd_search_flush(search)))
            abort();
    }
    if (!rd_search_flush(search) || check->at != check->len)
        abort();
    rd_search_close(search);
}

/* The old file is half of the input, repeated, and each time a little longer in the middle; the new
 * one is the other half in the same way. */
static size_t stretch(uint8_t *file, const uint8_t *data, size_t size)
{
    size_t at = 0;

    if (size == 0)
        return 0;
    for (size_t round = 0; at < FILE_BYTES; round++) {
        size_t len = FILE_BYTES - at < size ? FILE_BYTES - at : size;

        memcpy(file + at, data, len);
        at += len;
        if (round % 3 == 2 && at < FILE_BYTES)
            file[at++] = (uint8_t)round;
    }
    return at;
}

static void take_any(const uint8_t *data, size_t size, const rd_digest_key_t *key)
{
    static uint8_t file[FILE_BYTES];
    static rd_blocks_t blocks;
    uint64_t bytes = size > 0 && data[0] < 64 ? (uint64_t)1 << data[0] : RD_BLOCK_LEAST;
    size_t half = size / 2 / RD_BLOCK_NAME_BYTES * RD_BLOCK_NAME_BYTES;
    check_t check = {.wanted = file, .len = stretch(file, data, size)};
    rd_why_t why;

    rd_blocks_clear(&blocks);
    if (rd_blocks_take(&blocks, bytes, data, half, &why) &&
        rd_blocks_take(&blocks, bytes, data + half, size - half, &why) && blocks.count > 0)
        search(&blocks, key, &check);
    rd_blocks_free(&blocks);
}

static void take_right(const uint8_t *data, size_t size, const rd_digest_key_t *key)
{
    static uint8_t old[FILE_BYTES], fresh[FILE_BYTES];
    static rd_blocks_t blocks;
    uint8_t name[RD_BLOCK_NAME_BYTES];
    check_t check = {.old = old, .wanted = fresh};
    rd_why_t why;

    check.old_len = stretch(old, data, size / 2);
    check.len = stretch(fresh, data + size / 2, size - size / 2);
    rd_blocks_clear(&blocks);
    for (uint32_t i = 0; (i + 1) * (size_t)RD_BLOCK_LEAST <= check.old_len; i++) {
        rd_block_name(name, i, old + i * (size_t)RD_BLOCK_LEAST, RD_BLOCK_LEAST, key);
        if (!rd_blocks_take(&blocks, RD_BLOCK_LEAST, name, sizeof name, &why))
            abort();
    }
    if (blocks.count > 0)
        search(&blocks, key, &check);
    rd_blocks_free(&blocks);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t seed[RD_SEED_BYTES] = {1};
    rd_digest_key_t key;

    if (size < 1)
        return 0;
    rd_digest_key(&key, seed);
    if (!rd_digest_has_xxh3())
        key.kind = RD_DIGEST_SHA256;
    if (data[0] % 2 == 0)
        take_any(data + 1, size - 1, &key);
    else
        take_right(data + 1, size - 1, &key);
    return 0;
}
