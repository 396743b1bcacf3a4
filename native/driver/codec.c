/* SPDX-License-Identifier: Apache-2.0 */
#include "codec.h"

#include <dlfcn.h>
#include <stdatomic.h>

static _Atomic(const bw_codec_t *) loaded;

const bw_codec_t *bw_codec_loaded(void)
{
    return atomic_load(&loaded);
}

void bw_codec_use(const bw_codec_t *codec)
{
    const bw_codec_t *none = NULL;

    (void)atomic_compare_exchange_strong(&loaded, &none, codec);
}

static void load(job_t *job)
{
    void *library = dlopen(job->path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    bw_codec_fn *of_library = NULL;
    const bw_codec_t *codec;

    if (!library) {
        reply_reason(&job->reply, dlerror());
        return;
    }
    *(void **)&of_library = dlsym(library, BW_CODEC_SYMBOL);
    codec = of_library ? of_library(BW_CODEC_VERSION) : NULL;
    (void)dlclose(library);
    if (codec)
        bw_codec_use(codec);
    else
        reply_reason(&job->reply, "the file is of another version than the driver: build both");
}

bool codec_load(ErlDrvPort port, const char *path, size_t len, reply_t *reply)
{
    return bw_codec_loaded() || job_begin(port, load, NULL, path, len, reply);
}
