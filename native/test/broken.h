/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_BROKEN_H
#define BW_BROKEN_H

#include <stdio.h>
#include <stdlib.h>

/* Used by the simulated device and the simulated VM. The including file defines its name as
 * BROKEN_IN. */

/* Aborts the process where the real device or VM would silently corrupt data or never return. */
static inline void broken(const char *what)
{
    fprintf(stderr, BROKEN_IN ": %s\n", what);
    abort();
}

static inline void *make(size_t bytes)
{
    void *at = calloc(1, bytes);

    if (!at)
        broken("no memory");
    return at;
}

#endif
