/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_ROUTE_H
#define RD_ROUTE_H

#include "text.h"

/*
 * Chooses the address at which a hop's consumer listens and to which its producer connects. This
 * function is pure.
 *
 * A host that ssh has reached listens at the address at which it was reached. The local host
 * listens at the address that the other host sees as the origin of the ssh connection. Two
 * processes on the local host use loopback.
 */

#define RD_ADDRESS_BYTES 64u

typedef struct {
    bool is_here;       /* there is no ssh in between, so it is the local host */
    const char *host;   /* as the user wrote it */
    const char *ssh;    /* its SSH_CONNECTION: client, port, server, port; "" if it has none */
    const char *forced; /* the address given with --address, or NULL if none */
} rd_place_t;

/* Returns false if there is no information from which to choose. */
bool rd_route(const rd_place_t *producer, const rd_place_t *consumer,
              char address_p[RD_ADDRESS_BYTES], rd_why_t *why);

#endif
