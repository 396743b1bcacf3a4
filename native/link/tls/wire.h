/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TLS_WIRE_H
#define BW_TLS_WIRE_H

#include <openssl/bio.h>

#include "../socket_link.h"

/*
 * What stands between libssl and the socket: encrypted bytes. libssl reads and writes a record at a
 * time; the socket is asked for, and given, many at once.
 */

/* A record with its header and its tag; a buffer with that much room takes one. */
#define BW_TLS_RECORD_BYTES 16384
#define BW_TLS_RECORD_ROOM (BW_TLS_RECORD_BYTES + 512)

/* What is encrypted before the socket is asked: 7 records. */
#define BW_TLS_WIRE_BYTES ((uint64_t)128 * 1024)

/* So many handshake messages may come: until the hands are shaken, and then between two records
 * with content. Beamway sends one at a time, a new key. Each costs libssl 15 us, and one read goes
 * on until content comes. */
#define BW_TLS_HANDSHAKE_MESSAGES 16
#define BW_TLS_LATER_MESSAGES 2

typedef struct {
    bw_buffer_t out, in;
    bw_socket_t *socket;
    int messages_left; /* below 0: libssl gets nothing more */
    bool is_expecting; /* nothing has come but, maybe, BW_TLS_READY */
} bw_tls_wire_t;

/* `out_bytes` is a valid ring size, and at least BW_TLS_WIRE_BYTES. */
bw_status_t bw_tls_wire_make(bw_tls_wire_t *wire, bw_socket_t *sock, uint64_t out_bytes,
                             bw_error_t *error_p);
void bw_tls_wire_free(bw_tls_wire_t *wire);

/* What was read before; at most BW_TLS_WIRE_BYTES. */
void bw_tls_wire_put_back(bw_tls_wire_t *wire, const uint8_t *bytes, size_t len);

/* Another record has room before the socket is asked. */
static inline bool bw_tls_wire_has_room(const bw_tls_wire_t *wire)
{
    return bw_buffer_fill(&wire->out) + BW_TLS_RECORD_ROOM <= BW_TLS_WIRE_BYTES;
}

/* The socket gives nothing more, and all that it gave has been read. */
static inline bool bw_tls_wire_has_ended(const bw_tls_wire_t *wire)
{
    return wire->socket->in == BW_SOCKET_ENDED && bw_buffer_fill(&wire->in) == 0;
}

/* For libssl; NULL: no memory. */
BIO *bw_tls_wire_bio(bw_tls_wire_t *wire);

#endif
