/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_ROUTE_H
#define RD_ROUTE_H

#include "text.h"

/*
 * Decides at which address a hop's consumer listens and its producer connects. Pure.
 *
 * A host that ssh has reached listens at the address at which it was reached. The local host
 * listens at the address from which the other one sees ssh come. Two processes on the local host
 * use loopback.
 */

#define RD_ADDRESS_BYTES 64u

typedef struct {
    bool is_here;       /* no ssh in between, so it is the local host */
    const char *host;   /* as the user wrote it */
    const char *ssh;    /* its SSH_CONNECTION: client, port, server, port; "" if it has none */
    const char *forced; /* with --address; NULL: not given */
} rd_place_t;

/* False: nothing is known from which to decide. */
bool rd_route(const rd_place_t *producer, const rd_place_t *consumer,
              char address_p[RD_ADDRESS_BYTES], rd_why_t *why);

#endif
