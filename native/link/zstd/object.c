/* SPDX-License-Identifier: Apache-2.0 */

/* The shared object's only symbol. */

#include "zstd.h"

__attribute__((visibility("default"))) bw_codec_fn bw_codec;

const bw_codec_t *bw_codec(uint32_t version)
{
    return version == BW_CODEC_VERSION ? &bw_zstd_codec : NULL;
}
