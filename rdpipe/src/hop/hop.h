/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_HOP_H
#define RD_HOP_H

#include "carrier.h"
#include "key.h"
#include "link.h"

/*
 * A hop is the connection between two processes of a pipeline. This module sets it up, and the
 * result is a working bw_link_t.
 *
 * The consumer listens on a TCP port and the producer connects to it. They perform a TLS 1.3
 * handshake with the hop's key as PSK, so each proves that it has the key. Over TLS they then agree
 * on a carrier:
 *
 *   producer                                    consumer
 *   hello: what it wants                  ->
 *                                         <-    offer: what is allowed, and where
 *   choice: the carrier that it has joined ->
 *                                         <-    settled
 *
 * Each message has a fixed size. Clients without the key cannot block the listener (key_proof.h).
 *
 * shm: the producer joins the consumer's listener (native/link/shm/shm.h), which succeeds only on
 * the same host; the TCP connection stays open so that each side notices when the other exits.
 * rdma: the producer connects to the consumer's device, and the TCP connection is closed. tcp: the
 * connection becomes the link. If either side wants TLS for the data as well (RD_TERM_TLS), the
 * connection keeps using it; otherwise it is plain from then on.
 *
 * Over tcp a hop may have several streams (bundle.h). The additional ones join while the first one
 * is already carrying data, and identify the hop by the ID that the consumer's offer contained
 * (hop_streams.h).
 */

#define RD_BLOCK_BYTES ((uint32_t)256 * 1024)
#define RD_BLOCK_MIN ((uint32_t)4 * 1024)

/* A flag of the terms, in addition to those of frames. It means that all data leaving the host is
 * encrypted, which rules out rdma. */
#define RD_TERM_TLS 4u

/* The terms that the producer proposes and the consumer accepts or limits. */
typedef struct {
    uint32_t carriers; /* the allowed carriers, RD_CARRIER_... */
    uint32_t block;    /* maximum bytes of the stream in a frame: RD_BLOCK_MIN to RD_BLOCK_MAX */
    uint8_t flags;     /* RD_FLAG_CRC: each frame of DATA has a checksum; RD_TERM_TLS */
    int zstd; /* the level of the producer's compression, or 0 if none; not sent to the peer */
    /* Over tcp: the producer's number of streams, or 0 for auto; the consumer's limit, or 0 for
     * none. */
    unsigned streams;
    /* Congestion control in the producer's kernel, for tcp; NULL for its default. */
    const char *congestion;
} rd_terms_t;

static inline uint32_t rd_terms_carriers(const rd_terms_t *terms)
{
    return terms->flags & RD_TERM_TLS ? terms->carriers & ~(uint32_t)RD_CARRIER_RDMA
                                      : terms->carriers;
}

typedef struct rd_joiners rd_joiners_t;

typedef struct {
    bw_link_t *link;
    int side;         /* a socket that reports the peer's exit, or -1 if the link itself does */
    unsigned streams; /* the maximum over tcp; 0 if the connection itself is the link */
    rd_joiners_t *joiners; /* connects the other streams, or NULL if there are none to connect */
    bool is_behind;        /* a thread of the link sends, so the last message of a process that
                              exits may be lost, unless it waits for an answer */
    const char *carrier;   /* "shm", "rdma", "tcp" */
    char why[160];         /* why this carrier was chosen, for the user */
    rd_terms_t terms;
} rd_hop_t;

/*
 * Accepts the peer that has the key. `listener` is a listening socket; the caller still owns it and
 * it stays open. A peer that does not prove within seconds that it has the key is rejected and
 * counted in *turned_away_p (may be NULL). `terms` says what is allowed here; `hop_p->terms` is
 * what was agreed.
 */
bool rd_hop_accept(int listener, const rd_key_t *key, const rd_terms_t *terms, int stop,
                   int64_t deadline, unsigned *turned_away_p, rd_hop_t *hop_p, rd_why_t *why);

/* A consumer that is listening, or soon will be. */
typedef struct {
    const char *host;
    uint16_t port;
    const char *peer; /* its name for error messages */
    /* Time limit for one attempt; it starts at `awaited_until` if that is later. */
    int64_t attempt_ms;
    int64_t connect_ms; /* how much of `attempt_ms` connecting may take, or 0 for all of it */
    bool is_hop;        /* this is a hop of a pipeline, so `peer` is the name of the host */
    /* Until this time, it is not an error if no consumer is listening there. If this is 0, it is
     * always an error. */
    int64_t awaited_until;
    /* Before this time, we reconnect if the consumer closes the connection before it has read our
     * hello, because other clients may have filled its listener. */
    int64_t patient_until;
} rd_there_t;

/* Connects to the consumer and joins a link. */
bool rd_hop_reach(const rd_there_t *there, const rd_key_t *key, const rd_terms_t *terms, int stop,
                  rd_hop_t *hop_p, rd_why_t *why);

void rd_hop_close(rd_hop_t *hop);

#endif
