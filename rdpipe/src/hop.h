/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_HOP_H
#define RD_HOP_H

#include "carrier.h"
#include "key.h"
#include "link.h"

/*
 * A hop: the link between two processes of a pipe, from nothing to a bw_link_t.
 *
 * The consumer listens on a TCP port, the producer connects. Over that connection they shake hands
 * with TLS 1.3 and the hop's key as PSK, so each proves that it has the key. Over TLS they agree
 * on a carrier:
 *
 *   producer                                    consumer
 *   hello: what it wants                  ->
 *                                         <-    offer: what may be, and where
 *   choice: the carrier that it has joined ->
 *                                         <-    settled
 *
 * Each message is of fixed size. Strangers cannot hold the listener (proof.h).
 *
 * shm: the producer joins the consumer's listener (native/link/shm/shm.h), which succeeds only on
 * the same host; the TCP connection stays open and tells each side of the other's end. rdma: the
 * producer connects to the consumer's device, and the TCP connection ends. tcp: the connection
 * becomes the link. If one of both wants it (RD_TERM_TLS) what goes over it stays in TLS, else it
 * is plain from then on.
 *
 * Over tcp a hop may have several streams (bundle.h). The others join while the first already
 * carries, by the number that the consumer has offered for this hop (joiners.h).
 */

#define RD_BLOCK_BYTES ((uint32_t)256 * 1024)
#define RD_BLOCK_MIN ((uint32_t)4 * 1024)

/* A flag of the terms, next to those of frames. It encrypts what leaves the host, and so excludes
 * rdma. */
#define RD_TERM_TLS 4u

/* What the producer proposes and the consumer keeps to. */
typedef struct {
    uint32_t carriers; /* those allowed, RD_CARRIER_... */
    uint32_t block;    /* the most bytes of the stream in a frame: RD_BLOCK_MIN to RD_BLOCK_MAX */
    uint8_t flags;     /* RD_FLAG_CRC: each frame of DATA has a checksum; RD_TERM_TLS */
    int zstd;          /* the level of the producer's compression; 0: none; not sent to the peer */
    unsigned streams;  /* over tcp; the producer's number, the consumer's limit; 0: auto, any */
    const char *congestion; /* of the producer's kernel, for tcp; NULL: its default */
} rd_terms_t;

/* The carriers that may be chosen. */
static inline uint32_t rd_terms_carriers(const rd_terms_t *terms)
{
    return terms->flags & RD_TERM_TLS ? terms->carriers & ~(uint32_t)RD_CARRIER_RDMA
                                      : terms->carriers;
}

typedef struct rd_joiners rd_joiners_t;

typedef struct {
    bw_link_t *link;
    int side;              /* reports the end of the peer when the link cannot; -1: the link can */
    unsigned streams;      /* over tcp, at most; 0: the connection itself is the link */
    rd_joiners_t *joiners; /* connects the other streams; NULL: there are none to connect */
    bool is_behind;        /* a thread of the link sends, so the last message of a process that
                              exits may be lost, unless it waits for an answer */
    const char *carrier;   /* "shm", "rdma", "tcp" */
    char why[160];         /* why this carrier, as a user reads it */
    rd_terms_t terms;
} rd_hop_t;

/*
 * Accepts the peer that has the key. `listener` listens; it belongs to the caller and stays open. A
 * peer that does not prove within seconds that it has the key is turned away, and *turned_away_p
 * (may be NULL) counts it. `terms` says what is allowed here; `hop_p->terms` is what was agreed.
 */
bool rd_hop_accept(int listener, const rd_key_t *key, const rd_terms_t *terms, int stop,
                   int64_t deadline, unsigned *turned_away_p, rd_hop_t *hop_p, rd_why_t *why);

/* A consumer that listens, or soon will. */
typedef struct {
    const char *host;
    uint16_t port;
    const char *peer;      /* its name in reasons */
    int64_t attempt_ms;    /* of one attempt; it starts at `awaited_until` if that is later */
    int64_t connect_ms;    /* the part of it for the connection; 0: all of it */
    bool is_hop;           /* of a pipeline, so `peer` is the name of the host */
    int64_t awaited_until; /* until then it may be that nobody listens there; 0: somebody must */
    int64_t patient_until; /* until then we connect again if it closes before it has heard us,
                              because others may have taken all the places of its listener */
} rd_there_t;

/* Connects to the consumer and joins a link. */
bool rd_hop_reach(const rd_there_t *there, const rd_key_t *key, const rd_terms_t *terms, int stop,
                  rd_hop_t *hop_p, rd_why_t *why);

void rd_hop_close(rd_hop_t *hop);

#endif
