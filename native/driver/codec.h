/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_DRIVER_CODEC_H
#define BW_DRIVER_CODEC_H

#include "erl_driver.h"

#include "../link/codec.h"
#include "async_job.h"
#include "reply.h"

/* Returns the codec that this process has loaded from a shared object, which stays loaded, or NULL
 * if there is none. Any thread may call this. */
const bw_codec_t *bw_codec_loaded(void);

/* Sets the codec for this process, unless it already has one. Any thread may call this. */
void bw_codec_use(const bw_codec_t *codec);

/* Implements the command CODEC, under the port lock: loads the shared object at `path`. Returns
 * false if the caller must get a badarg. */
bool codec_load(ErlDrvPort port, const char *path, size_t len, reply_t *reply);

#endif
