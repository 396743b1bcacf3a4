/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_BUNDLE_H
#define RD_BUNDLE_H

#include "link.h"
#include "session/strands.h"
#include "tls.h"

/*
 * A link over up to RD_STREAMS_MAX TCP connections, plain or TLS. Its bytes go in chunks over
 * whichever connection has room, and each is read, or decrypted, to its place in the receiver's
 * ring. A thread of the link does all that beside its user's thread; both share two rings.
 *
 * session/strands.h has what goes over each connection, and what happens when one dies. The link
 * ends in order only when all bytes up to END have arrived. Otherwise, once the last connection is
 * dead, it has failed. Whoever closes has heard that all was taken (DONE): what a connection loses
 * after that is not sent again.
 */

#define RD_STREAMS_MAX BW_STRANDS_MAX

typedef struct {
    uint64_t out_bytes, in_bytes; /* of the rings, valid sizes; the peer has them reversed */
    unsigned most;                /* streams used at most */
    bool is_auto;                 /* begin with one, and use more while that gives more */
    unsigned rtt_ms;              /* of the path */
} rd_bundle_terms_t;

/* Has no connection yet. Its kind is "tcp". */
bool rd_bundle_open(const rd_bundle_terms_t *terms, bw_link_t **link_p, rd_why_t *why);

/* Adds one, by any thread, until the link is closed. The socket and the session belong to the link
 * then, also on failure. `tls` NULL: what goes over it is plain. */
bool rd_bundle_add(bw_link_t *link, int socket, rd_tls_t *tls);

/* Those that live, and those that were used at most. */
unsigned rd_bundle_live(bw_link_t *link);
unsigned rd_bundle_used(bw_link_t *link);

#endif
