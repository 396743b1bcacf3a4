/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_ROUTE_H
#define RD_ROUTE_H

#include "text.h"

/*
 * At which address a hop's consumer listens, and the producer finds it. Pure.
 *
 * A host that ssh reached listens at the address that it was reached at. This host listens at the
 * address that the other one sees ssh come from; between two processes of this host it is loopback.
 */

#define RD_ADDRESS_BYTES 64u

typedef struct {
    bool is_here;       /* no ssh in between */
    const char *host;   /* as the user wrote it */
    const char *ssh;    /* its SSH_CONNECTION: client, port, server, port; "" if it has none */
    const char *forced; /* by --address, NULL: not */
} rd_place_t;

/* False: there is no way to know. */
bool rd_route(const rd_place_t *producer, const rd_place_t *consumer,
              char address_p[RD_ADDRESS_BYTES], rd_why_t *why);

#endif
