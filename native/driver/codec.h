/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_DRIVER_CODEC_H
#define BW_DRIVER_CODEC_H

#include "erl_driver.h"

#include "../link/codec.h"
#include "job.h"
#include "reply.h"

/* The codec that this process has loaded from a shared object, which stays loaded; NULL: none yet.
 * By any thread. */
const bw_codec_t *bw_codec_loaded(void);

/* From now on that is the codec, unless there is one. By any thread. */
void bw_codec_use(const bw_codec_t *codec);

/* A command, under the port lock: loads the shared object of that path. False: a badarg. */
bool codec_load(ErlDrvPort port, const char *path, size_t len, reply_t *reply);

#endif
