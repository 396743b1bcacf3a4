/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_BROKEN_H
#define BW_BROKEN_H

#include <stdio.h>
#include <stdlib.h>

/* For what stands in for a device or the VM. Who includes this says who it is: BROKEN_IN. */

/* Ends the process: what would be silent harm, or a call that never returns, with the real one. */
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
