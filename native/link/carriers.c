/* SPDX-License-Identifier: Apache-2.0 */
#include "carriers.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static const bw_carrier_t *const built_in[] = {BW_CARRIERS(BW_ADDRESS_OF)};

const bw_carrier_t *bw_carrier_named(const char *kind)
{
    for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++)
        if (strcmp(built_in[i]->kind, kind) == 0)
            return built_in[i];
    return NULL;
}

/* The list of loaded carriers, with one entry per file. Entries are added at the front and never
 * changed or removed, so it can be read without a lock. */
typedef struct entry {
    struct entry *next;
    const bw_carrier_t *carrier;
    size_t len;
    char file[];
} entry_t;

static _Atomic(entry_t *) loaded;

const bw_carrier_t *bw_carrier_loaded(const char *file, size_t len)
{
    for (const entry_t *at = atomic_load(&loaded); at; at = at->next)
        if (at->len == len && memcmp(at->file, file, len) == 0)
            return at->carrier;
    return NULL;
}

/* Two threads may add the same file, which is harmless. If there is no memory for the entry, the
 * file is loaded again the next time. */
static void remember(const char *file, const bw_carrier_t *carrier)
{
    size_t len = strlen(file);
    entry_t *entry = bw_carrier_loaded(file, len) ? NULL : malloc(sizeof *entry + len);

    if (!entry)
        return;
    entry->carrier = carrier;
    entry->len = len;
    memcpy(entry->file, file, len);
    entry->next = atomic_load(&loaded);
    while (!atomic_compare_exchange_weak(&loaded, &entry->next, entry))
        ;
}

const bw_carrier_t *bw_carrier_load(const char *file, char text[BW_TEXT_BYTES])
{
    /* The library is never unloaded, because its threads run until the process ends. */
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
    else
        remember(file, carrier);
    /* This is a static table in the library, which stays loaded. */
    /* cppcheck-suppress returnDanglingLifetime */
    return carrier;
}
