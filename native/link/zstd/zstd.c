/* SPDX-License-Identifier: Apache-2.0 */
#include "zstd.h"

#include <stdlib.h>
#include <zstd.h>

/* On some systems, libzstd also reads legacy frame formats, with code that is no longer fuzzed, so
 * frames must begin with the current magic number, which has this many bytes. */
#define MAGIC_BYTES 4
static const uint8_t magic[MAGIC_BYTES] = {0x28, 0xB5, 0x2F, 0xFD};

struct bw_packer {
    ZSTD_CCtx *context;
};

struct bw_unpacker {
    ZSTD_DCtx *context;
    size_t begun; /* bytes of the magic number that have arrived */
};

static void close_packer(bw_packer_t *packer)
{
    (void)ZSTD_freeCCtx(packer->context);
    free(packer);
}

static bw_packer_t *open_packer(void)
{
    bw_packer_t *packer = malloc(sizeof *packer);

    if (!packer)
        return NULL;
    packer->context = ZSTD_createCCtx();
    if (packer->context &&
        !ZSTD_isError(
            ZSTD_CCtx_setParameter(packer->context, ZSTD_c_compressionLevel, BW_ZSTD_LEVEL)) &&
        !ZSTD_isError(
            ZSTD_CCtx_setParameter(packer->context, ZSTD_c_windowLog, BW_ZSTD_WINDOW_LOG)))
        return packer;
    close_packer(packer);
    return NULL;
}

/* Allows for a block header of three bytes in each call, and for the frame header. */
static size_t bound(size_t len)
{
    return ZSTD_compressBound(len) + 64;
}

static bool pack(bw_packer_t *packer, const struct iovec *iov, int count, bool ends, uint8_t *to,
                 size_t room, size_t *made_p)
{
    ZSTD_outBuffer out = {.dst = to, .size = room};
    size_t left = 0;

    for (int i = 0; i < count; i++) {
        ZSTD_inBuffer in = {.src = iov[i].iov_base, .size = iov[i].iov_len};

        while (in.pos < in.size && !ZSTD_isError(left) && out.pos < room)
            left = ZSTD_compressStream2(packer->context, &out, &in, ZSTD_e_continue);
        if (ZSTD_isError(left) || in.pos < in.size)
            return false;
    }
    if (ends) {
        ZSTD_inBuffer nothing = {0};

        left = ZSTD_compressStream2(packer->context, &out, &nothing, ZSTD_e_flush);
        if (left != 0)
            return false;
    }
    *made_p = out.pos;
    return true;
}

static void close_unpacker(bw_unpacker_t *unpacker)
{
    (void)ZSTD_freeDCtx(unpacker->context);
    free(unpacker);
}

static bw_unpacker_t *open_unpacker(void)
{
    bw_unpacker_t *unpacker = calloc(1, sizeof *unpacker);

    if (!unpacker)
        return NULL;
    unpacker->context = ZSTD_createDCtx();
    if (unpacker->context && !ZSTD_isError(ZSTD_DCtx_setParameter(
                                 unpacker->context, ZSTD_d_windowLogMax, BW_ZSTD_WINDOW_LOG_MAX)))
        return unpacker;
    close_unpacker(unpacker);
    return NULL;
}

static bool begins_well(bw_unpacker_t *unpacker, const uint8_t *from, size_t len)
{
    for (size_t i = 0; i < len && unpacker->begun < MAGIC_BYTES; i++, unpacker->begun++)
        if (from[i] != magic[unpacker->begun])
            return false;
    return true;
}

/* libzstd returns 0 at the end of a frame, but a packer never ends one. If libzstd makes no
 * progress because there is no room, it does not return an error, so this must be checked here. */
static bool unpack(bw_unpacker_t *unpacker, const uint8_t *from, size_t len, uint8_t *to,
                   size_t room, size_t *made_p)
{
    ZSTD_inBuffer in = {.src = from, .size = len};
    ZSTD_outBuffer out = {.dst = to, .size = room};

    if (!begins_well(unpacker, from, len))
        return false;
    while (in.pos < in.size) {
        size_t before = in.pos + out.pos;
        size_t more = ZSTD_decompressStream(unpacker->context, &out, &in);

        if (ZSTD_isError(more) || more == 0 || in.pos + out.pos == before)
            return false;
    }
    *made_p = out.pos;
    return true;
}

const bw_codec_t bw_zstd_codec = {.open_packer = open_packer,
                                  .close_packer = close_packer,
                                  .bound = bound,
                                  .pack = pack,
                                  .open_unpacker = open_unpacker,
                                  .close_unpacker = close_unpacker,
                                  .unpack = unpack};
