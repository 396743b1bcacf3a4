/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_ZSTD_H
#define BW_ZSTD_H

#include "../codec.h"

/*
 * The libzstd codec: a single frame (RFC 8878) that never ends and is flushed after each piece.
 * Both sides retain a window of 64 KB. A reader accepts twice that, so that a later version may use
 * it, and rejects a frame that requires more before it allocates anything.
 */
#define BW_ZSTD_WINDOW_LOG 16
#define BW_ZSTD_WINDOW_LOG_MAX 17
#define BW_ZSTD_LEVEL 1

extern const bw_codec_t bw_zstd_codec;

#endif
