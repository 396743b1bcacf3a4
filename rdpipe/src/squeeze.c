/* SPDX-License-Identifier: Apache-2.0 */
#include "squeeze.h"

#include <stdlib.h>

#include <zstd.h>

bool rd_squeeze_open(rd_squeeze_t *squeeze_p, size_t size, int level, bool packs)
{
    rd_squeeze_t squeeze = {.size = size, .packs = packs, .block = malloc(size)};

    if (packs) {
        squeeze.context = ZSTD_createCCtx();
        if (squeeze.context)
            (void)ZSTD_CCtx_setParameter(squeeze.context, ZSTD_c_compressionLevel, level);
    } else {
        squeeze.context = ZSTD_createDCtx();
    }
    if (!squeeze.context || !squeeze.block) {
        rd_squeeze_close(&squeeze);
        return false;
    }
    *squeeze_p = squeeze;
    return true;
}

void rd_squeeze_close(rd_squeeze_t *squeeze)
{
    if (squeeze->packs)
        (void)ZSTD_freeCCtx(squeeze->context);
    else
        (void)ZSTD_freeDCtx(squeeze->context);
    free(squeeze->block);
    *squeeze = (rd_squeeze_t){0};
}

size_t rd_squeeze_pack(rd_squeeze_t *squeeze, size_t len, uint8_t *to)
{
    size_t packed;

    if (len < 2)
        return 0;
    packed = ZSTD_compress2(squeeze->context, to, len - 1, squeeze->block, len);
    return ZSTD_isError(packed) ? 0 : packed;
}

bool rd_squeeze_unpack(rd_squeeze_t *squeeze, const uint8_t *from, size_t len, size_t wanted)
{
    return wanted <= squeeze->size &&
           ZSTD_decompressDCtx(squeeze->context, squeeze->block, wanted, from, len) == wanted;
}
