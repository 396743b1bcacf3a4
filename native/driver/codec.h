/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_DRIVER_CODEC_H
#define BW_DRIVER_CODEC_H

#include "erl_driver.h"

#include "../link/codec.h"
#include "async_job.h"
#include "reply.h"

/* A process has at most one codec, and never unloads it. Any thread may call these: bw_codec_loaded
 * returns NULL if there is none, and bw_codec_use has no effect if there is one. */
const bw_codec_t *bw_codec_loaded(void);
void bw_codec_use(const bw_codec_t *codec);

/* Implements CODEC, under the port lock. Returns false if the caller must get a badarg. */
bool codec_load(ErlDrvPort port, const char *path, size_t len, reply_t *reply);

#endif
