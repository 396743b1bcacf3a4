/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_BUNDLE_H
#define RD_BUNDLE_H

#include "link.h"
#include "session/strands.h"
#include "tls.h"

/*
 * A link over up to RD_STREAMS_MAX TCP connections, plain or TLS. Its bytes are sent in chunks over
 * whichever connection has room, and the receiver reads or decrypts each chunk directly into its
 * place in the ring. The link's own thread does this work while the user's thread runs; the two
 * threads share two rings.
 *
 * session/strands.h describes what each connection carries, and what happens when one dies. The
 * link closes cleanly only when all bytes up to END have arrived; if the last connection dies
 * before that, the link has failed. Unless the stream fails, both sides close the link only after
 * the frame DONE, with which the consumer confirms that it has accepted everything, so data that a
 * connection loses after that need not be sent again.
 */

#define RD_STREAMS_MAX BW_STRANDS_MAX

/* Returns the maximum number of streams in a hop, which depends on the limit on open files. */
unsigned rd_streams_max(void);

typedef struct {
    uint64_t out_bytes, in_bytes; /* valid ring sizes; at the peer the two are swapped */
    unsigned most;                /* maximum number of streams to use */
    bool is_auto;                 /* let stream_count.h decide how many of them to use */
    unsigned rtt_ms;              /* round-trip time of the path */
} rd_bundle_terms_t;

/* Opens a link without a connection. Its kind is "tcp". */
bool rd_bundle_open(const rd_bundle_terms_t *terms, bw_link_t **link_p, rd_why_t *why);

/* Adds a connection. Any thread may call this until the link is closed. The link owns the socket
 * and the session from then on, even on failure. If `tls` is NULL the connection is plain. */
bool rd_bundle_add(bw_link_t *link, int socket, rd_tls_t *tls);

/* Return the number of live connections, and of those that have carried bytes of a stream. */
unsigned rd_bundle_live(bw_link_t *link);
unsigned rd_bundle_used(bw_link_t *link);

#endif
