/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks.h"

#include <assert.h>
#include <endian.h>

#define NONE UINT32_MAX
#define CHAIN_MAX 32u                   /* maximum number of blocks in one bucket of the table */
#define NEW_BYTES ((size_t)64 * 1024)   /* new bytes are sent once there are this many */
#define ROOM_BYTES ((size_t)256 * 1024) /* minimum free space for the next bytes */
/* A search gives up when it has digested this many more bytes without a match than it has
 * searched. */
#define WASTE_BYTES ((uint64_t)256 << 20)

struct rd_block {
    uint32_t index, weak;
    uint8_t strong[RD_BLOCK_DIGEST_BYTES];
    uint32_t next; /* the next block in the same bucket */
};

typedef struct {
    uint32_t index, weak;
    uint8_t strong[RD_BLOCK_DIGEST_BYTES];
} name_t;

static_assert(sizeof(name_t) == RD_BLOCK_NAME_BYTES, "the layout is part of the protocol");

uint32_t rd_block_bytes(uint64_t size)
{
    uint64_t bytes = RD_BLOCK_LEAST;

    while (bytes * bytes < size && bytes < RD_BLOCK_MOST)
        bytes *= 2;
    while (bytes < RD_BLOCK_MOST && size / bytes > RD_BLOCKS_MAX)
        bytes *= 2;
    return size / bytes > RD_BLOCKS_MAX ? 0 : (uint32_t)bytes;
}

/* ---- the weak sum ---- */

#define STRIDE 64

static const int16_t weights[STRIDE] = {
    64, 63, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44, 43,
    42, 41, 40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21,
    20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9,  8,  7,  6,  5,  4,  3,  2,  1};

/* The sum of the bytes, and the sum of all its intermediate values, both modulo 2^16. */
typedef struct {
    uint32_t a, b;
} sum_t;

static sum_t sum_of(const uint8_t *at, size_t len)
{
    sum_t sum = {0, 0};
    size_t i = 0;

    /* This computes the same as the loop below, but in strides of constant length and with 16-bit
     * numbers, so that compilers use vector instructions. */
    for (; i + STRIDE <= len; i += STRIDE) {
        uint16_t plain = 0;
        int32_t weighted = 0;

        for (int j = 0; j < STRIDE; j++) {
            int16_t byte = at[i + j];

            plain = (uint16_t)(plain + byte);
            weighted += weights[j] * byte;
        }
        sum.b += STRIDE * sum.a + (uint32_t)weighted;
        sum.a += plain;
    }
    for (; i < len; i++) {
        sum.a += at[i];
        sum.b += sum.a;
    }
    return sum;
}

static uint32_t weak_of(sum_t sum)
{
    return (sum.a & 0xffff) | sum.b << 16;
}

void rd_block_name(uint8_t name[RD_BLOCK_NAME_BYTES], uint32_t index, const uint8_t *block,
                   uint32_t bytes, const rd_digest_key_t *key)
{
    name_t is = {.index = htole32(index), .weak = htole32(weak_of(sum_of(block, bytes)))};

    rd_digest_block(key, block, bytes, is.strong);
    memcpy(name, &is, sizeof is);
}

/* ---- the list ---- */

static bool make_room(rd_blocks_t *blocks, uint32_t count)
{
    uint32_t room = blocks->room > 0 ? blocks->room : 1024;
    rd_block_t *of;

    while (room < count)
        room *= 2;
    if (room == blocks->room)
        return true;
    of = reallocarray(blocks->of, room, sizeof *of);
    if (!of)
        return false;
    blocks->of = of;
    blocks->room = room;
    return true;
}

bool rd_blocks_take(rd_blocks_t *blocks, uint64_t block_bytes, const uint8_t *names, size_t len,
                    rd_why_t *why)
{
    size_t count = len / RD_BLOCK_NAME_BYTES;

    if (block_bytes < RD_BLOCK_LEAST || block_bytes > RD_BLOCK_MOST ||
        (block_bytes & (block_bytes - 1)) != 0)
        return rd_because(
            why, "the other side uses blocks of %llu bytes: expected a power of two from %u to %u",
            (unsigned long long)block_bytes, RD_BLOCK_LEAST, RD_BLOCK_MOST);
    if (blocks->count > 0 && block_bytes != blocks->bytes)
        return rd_because(
            why, "the other side uses blocks of %llu bytes in a file after blocks of %u bytes",
            (unsigned long long)block_bytes, blocks->bytes);
    if (len % RD_BLOCK_NAME_BYTES != 0)
        return rd_because(why, "the other side sent an incomplete checksum of a block");
    if (count > RD_BLOCKS_MAX - blocks->count)
        return rd_because(why, "the other side sent checksums of more than %u blocks of a file",
                          RD_BLOCKS_MAX);
    if (!make_room(blocks, blocks->count + (uint32_t)count))
        return rd_because(why, "out of memory for the blocks of a file");
    blocks->bytes = (uint32_t)block_bytes;
    for (size_t i = 0; i < count; i++) {
        rd_block_t *block = &blocks->of[blocks->count];
        name_t name;

        memcpy(&name, names + i * sizeof name, sizeof name);
        block->index = le32toh(name.index);
        block->weak = le32toh(name.weak);
        memcpy(block->strong, name.strong, sizeof block->strong);
        if (blocks->count > 0 && block->index <= block[-1].index)
            return rd_because(
                why,
                "the other side sent the checksum of block %u of a file after that of block %u",
                block->index, block[-1].index);
        blocks->count++;
    }
    return true;
}

bool rd_blocks_may_have(const rd_blocks_t *blocks, uint32_t *next_p, uint32_t index,
                        const uint8_t *block, const rd_digest_key_t *key)
{
    uint8_t strong[RD_BLOCK_DIGEST_BYTES];

    while (*next_p < blocks->count && blocks->of[*next_p].index < index)
        ++*next_p;
    if (*next_p == blocks->count || blocks->of[*next_p].index != index)
        return true;
    rd_digest_block(key, block, blocks->bytes, strong);
    return memcmp(strong, blocks->of[*next_p].strong, sizeof strong) == 0;
}

void rd_blocks_clear(rd_blocks_t *blocks)
{
    blocks->count = 0;
}

void rd_blocks_free(rd_blocks_t *blocks)
{
    free(blocks->of);
    *blocks = (rd_blocks_t){.of = NULL};
}

/* ---- the search ---- */

struct rd_search {
    const rd_blocks_t *blocks;
    const rd_digest_key_t *key;
    rd_found_t found;
    uint32_t *first; /* the first block in each bucket, or NONE */
    unsigned bits;   /* the number of bits in a bucket's index */
    uint32_t likely; /* the block after the last one that was found */
    uint8_t *bytes;
    size_t room, from, at, end; /* size of `bytes`; its first new byte, the window, the end */
    sum_t sum;                  /* weak sum of the window */
    bool has_sum;
    uint64_t wasted, searched; /* bytes digested without a match, and bytes searched */
};

static uint32_t place_of(const rd_search_t *search, uint32_t weak)
{
    return (weak * 0x9e3779b1u) >> (32 - search->bits);
}

/* Inserts a block into the table. Of several equal blocks only the first is inserted, and the
 * number in a bucket is limited, so that a malicious list of blocks cannot slow down the search. */
static void enter(rd_search_t *search, rd_block_t *of, uint32_t number)
{
    uint32_t *first = &search->first[place_of(search, of[number].weak)];
    unsigned length = 0;

    for (uint32_t i = *first; i != NONE; i = of[i].next)
        if (++length == CHAIN_MAX ||
            (of[i].weak == of[number].weak &&
             memcmp(of[i].strong, of[number].strong, sizeof of[i].strong) == 0))
            return;
    of[number].next = *first;
    *first = number;
}

rd_search_t *rd_search_open(rd_blocks_t *blocks, const rd_digest_key_t *key, rd_found_t found)
{
    rd_search_t *search = calloc(1, sizeof *search);

    if (!search)
        return NULL;
    *search = (rd_search_t){.blocks = blocks, .key = key, .found = found, .bits = 4};
    while (search->bits < 20 && (uint32_t)1 << search->bits < 2 * blocks->count)
        search->bits++;
    search->room = 2 * (size_t)blocks->bytes + NEW_BYTES + ROOM_BYTES;
    search->bytes = malloc(search->room);
    search->first = malloc(sizeof *search->first << search->bits);
    if (!search->bytes || !search->first) {
        rd_search_close(search);
        return NULL;
    }
    memset(search->first, 0xff, sizeof *search->first << search->bits);
    for (uint32_t i = 0; i < blocks->count; i++)
        enter(search, blocks->of, i);
    return search;
}

void rd_search_close(rd_search_t *search)
{
    if (!search)
        return;
    free(search->bytes);
    free(search->first);
    free(search);
}

/* Returns whether this is the block in the window. The window's digest is computed only once, when
 * the first weak sum matches. */
static bool is_it(const rd_search_t *search, uint32_t number, uint32_t weak,
                  uint8_t strong[RD_BLOCK_DIGEST_BYTES], bool *has_strong)
{
    const rd_block_t *block = &search->blocks->of[number];

    if (block->weak != weak)
        return false;
    if (!*has_strong)
        rd_digest_block(search->key, search->bytes + search->at, search->blocks->bytes, strong);
    *has_strong = true;
    return memcmp(block->strong, strong, RD_BLOCK_DIGEST_BYTES) == 0;
}

/* Returns the block in the window, or NONE. In a run of equal blocks it prefers the one after the
 * last match to the first one, so that a long match is sent as a single copy. */
static uint32_t find(rd_search_t *search)
{
    uint8_t strong[RD_BLOCK_DIGEST_BYTES];
    uint32_t weak = weak_of(search->sum), i;
    bool has_strong = false;

    if (search->likely < search->blocks->count &&
        is_it(search, search->likely, weak, strong, &has_strong))
        return search->likely;
    for (i = search->first[place_of(search, weak)]; i != NONE; i = search->blocks->of[i].next)
        if (is_it(search, i, weak, strong, &has_strong))
            return i;
    search->wasted += has_strong ? search->blocks->bytes : 0;
    return NONE;
}

static bool put_new(rd_search_t *search, size_t end)
{
    size_t from = search->from;

    search->from = end;
    return end == from ||
           search->found.put(search->found.context, search->bytes + from, end - from);
}

static bool put_block(rd_search_t *search, uint32_t number)
{
    uint32_t bytes = search->blocks->bytes;

    if (!put_new(search, search->at))
        return false;
    search->likely = number + 1;
    search->at += bytes;
    search->from = search->at;
    search->searched += bytes;
    search->has_sum = false;
    return search->found.copy(search->found.context,
                              (uint64_t)search->blocks->of[number].index * bytes, bytes);
}

static void roll(rd_search_t *search)
{
    const uint8_t *window = search->bytes + search->at;
    uint32_t bytes = search->blocks->bytes;

    search->sum.a += (uint32_t)window[bytes] - window[0];
    search->sum.b += search->sum.a - bytes * window[0];
    search->at++;
    search->searched++;
}

/* By chance, few blocks have the same weak sum but different bytes. If a search wastes a lot of
 * time on such blocks, the list may have been made to slow it down. */
static bool has_given_up(const rd_search_t *search)
{
    return search->wasted > WASTE_BYTES + search->searched;
}

static bool search_on(rd_search_t *search)
{
    uint32_t bytes = search->blocks->bytes;

    while (!has_given_up(search) && search->end - search->at >= bytes) {
        uint32_t number;

        if (!search->has_sum)
            search->sum = sum_of(search->bytes + search->at, bytes);
        search->has_sum = true;
        number = find(search);
        if (number != NONE) {
            if (!put_block(search, number))
                return false;
            continue;
        }
        if (search->end - search->at == bytes)
            break;
        roll(search);
        if (search->at - search->from >= NEW_BYTES && !put_new(search, search->at))
            return false;
    }
    if (!has_given_up(search))
        return true;
    search->at = search->end;
    return put_new(search, search->end);
}

uint8_t *rd_search_room(rd_search_t *search, size_t *room_p)
{
    /* Only few new bytes have not been sent yet, so they can be moved to the beginning. */
    if (search->room - search->end < ROOM_BYTES) {
        memmove(search->bytes, search->bytes + search->from, search->end - search->from);
        search->at -= search->from;
        search->end -= search->from;
        search->from = 0;
    }
    *room_p = search->room - search->end;
    return search->bytes + search->end;
}

bool rd_search_more(rd_search_t *search, size_t len)
{
    search->end += len;
    return search_on(search);
}

bool rd_search_flush(rd_search_t *search)
{
    bool done = put_new(search, search->end);

    search->from = search->at = search->end = 0;
    search->has_sum = false;
    return done;
}
