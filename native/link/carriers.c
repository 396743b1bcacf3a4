/* SPDX-License-Identifier: Apache-2.0 */
#include "carriers.h"

#include <dlfcn.h>
#include <string.h>

static const bw_carrier_t *const built_in[] = {BW_CARRIERS(BW_ADDRESS_OF)};

const bw_carrier_t *bw_carrier_named(const char *kind)
{
    for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++)
        if (strcmp(built_in[i]->kind, kind) == 0)
            return built_in[i];
    return NULL;
}

const bw_carrier_t *bw_carrier_load(const char *file, char text[BW_TEXT_BYTES])
{
    /* Its threads run until the process ends: it is never unloaded. */
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const bw_carrier_t *carrier = NULL;
    bw_error_t error = {0};
    bw_carrier_fn *of_library = NULL;

    if (!library) {
        snprintf(text, BW_TEXT_BYTES, "%s", dlerror());
        return NULL;
    }
    *(void **)&of_library = dlsym(library, BW_CARRIER_SYMBOL);
    if (of_library)
        carrier = of_library(BW_CARRIER_VERSION, &error);
    (void)dlclose(library);
    if (!of_library)
        snprintf(text, BW_TEXT_BYTES, "no carrier in the file: build it with 'make build'");
    else if (!carrier)
        bw_error_text(&error, text, BW_TEXT_BYTES);
    /* A static table of the library, which stays loaded. */
    /* cppcheck-suppress returnDanglingLifetime */
    return carrier;
}
