/* SPDX-License-Identifier: Apache-2.0 */
#include "compress.h"

#include <stdlib.h>

#ifndef RD_WITHOUT_ZSTD

#include <zstd.h>

bool rd_compressor_open(rd_compressor_t *compressor_p, size_t size, int level, bool compresses)
{
    rd_compressor_t compressor = {.size = size, .compresses = compresses, .block = malloc(size)};

    if (compresses) {
        compressor.context = ZSTD_createCCtx();
        if (compressor.context)
            (void)ZSTD_CCtx_setParameter(compressor.context, ZSTD_c_compressionLevel, level);
    } else {
        compressor.context = ZSTD_createDCtx();
    }
    if (!compressor.context || !compressor.block) {
        rd_compressor_close(&compressor);
        return false;
    }
    *compressor_p = compressor;
    return true;
}

void rd_compressor_close(rd_compressor_t *compressor)
{
    if (compressor->compresses)
        (void)ZSTD_freeCCtx(compressor->context);
    else
        (void)ZSTD_freeDCtx(compressor->context);
    free(compressor->block);
    *compressor = (rd_compressor_t){0};
}

size_t rd_compress(rd_compressor_t *compressor, size_t len, uint8_t *to)
{
    size_t packed;

    if (len < 2)
        return 0;
    packed = ZSTD_compress2(compressor->context, to, len - 1, compressor->block, len);
    return ZSTD_isError(packed) ? 0 : packed;
}

bool rd_decompress(rd_compressor_t *compressor, const uint8_t *from, size_t len, size_t wanted)
{
    return wanted <= compressor->size &&
           ZSTD_decompressDCtx(compressor->context, compressor->block, wanted, from, len) == wanted;
}

const char *rd_zstd_version(void)
{
    return ZSTD_versionString();
}

#else

bool rd_compressor_open(rd_compressor_t *compressor_p, size_t size, int level, bool compresses)
{
    (void)compressor_p;
    (void)size;
    (void)level;
    (void)compresses;
    return false;
}

void rd_compressor_close(rd_compressor_t *compressor)
{
    *compressor = (rd_compressor_t){0};
}

size_t rd_compress(rd_compressor_t *compressor, size_t len, uint8_t *to)
{
    (void)compressor;
    (void)len;
    (void)to;
    return 0;
}

bool rd_decompress(rd_compressor_t *compressor, const uint8_t *from, size_t len, size_t wanted)
{
    (void)compressor;
    (void)from;
    (void)len;
    (void)wanted;
    return false;
}

const char *rd_zstd_version(void)
{
    return NULL;
}

#endif
