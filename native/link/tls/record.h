/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_RECORD_H
#define BW_RECORD_H

#include <openssl/evp.h>

#include "../buffer.h"

/*
 * The record layer of TLS 1.3 after the handshake (RFC 8446, sections 5.1 to 5.5, 7.2 and 7.3), for
 * the tls carrier and for rdpipe. Sealing encrypts content from its original place directly into
 * the send buffer, and opening decrypts a record from the receive buffer directly to the place
 * where its content belongs. This code does not use sockets.
 *
 * Why this is safe:
 * - The nonce is the 64-bit number of the record under its key, and only `seal` increments it.
 *   Numbering restarts at 0 for each key. A key is used for one direction of one connection, and is
 *   replaced with a KeyUpdate after `limit` records, which is below the limit for AES-GCM (2^24.5).
 *   So no nonce is used twice.
 * - The reader counts in the same way, so a record that is repeated, dropped, reordered, reflected
 *   or replayed from another connection fails authentication. After such a record nothing more is
 *   read. Bytes that are decrypted before the tag has been checked do not count as read.
 * - Each length is checked before it is used: a record of more than 2^14 + 256 bytes, or with more
 *   than 2^14 bytes of content, ends the stream.
 * - Only a close_notify ends the stream cleanly. The caller detects when the connection itself
 *   ends, and must treat that as a failure.
 * - Empty records cost as much to process as others, so a peer may send only a few in a row.
 * - Early data and renegotiation are not supported. The first key comes from a completed handshake,
 *   and the only handshake message that has an effect is KeyUpdate: NewSessionTicket is skipped,
 *   and any other message ends the stream.
 */
#define BW_RECORD_BYTES ((size_t)16384) /* maximum content of a record */
#define BW_RECORD_HEADER ((size_t)5)
#define BW_RECORD_TAG ((size_t)16)
#define BW_RECORD_MAX (BW_RECORD_HEADER + BW_RECORD_BYTES + 256) /* what a peer may send */
#define BW_RECORD_ROOM BW_RECORD_MAX /* enough for one of our records and a KeyUpdate before it */
#define BW_RECORD_SECRET_BYTES 48u   /* for SHA-384; SHA-256 uses 32 */

/* A sending key is replaced after this many records. */
#define BW_RECORD_KEY_LIMIT ((uint64_t)1 << 23)

/* A reader accepts this many empty records in a row. Our own writer never sends more than one. */
#define BW_RECORD_IDLE_MAX 4

enum {
    BW_SUITE_AES_128_GCM_SHA256 = 0x1301,
    BW_SUITE_AES_256_GCM_SHA384 = 0x1302,
    BW_SUITE_CHACHA20_POLY1305_SHA256 = 0x1303
};

enum { BW_RECORD_ALERT = 21, BW_RECORD_HANDSHAKE = 22, BW_RECORD_DATA = 23 };
enum { BW_ALERT_CLOSE_NOTIFY = 0, BW_ALERT_BAD_RECORD_MAC = 20 };

struct bw_record_suite;

/* The key state that protects one direction. */
typedef struct {
    EVP_CIPHER_CTX *context;
    const struct bw_record_suite *suite;
    uint8_t secret[BW_RECORD_SECRET_BYTES], iv[12];
    uint64_t number; /* of the next record with this key */
    bool seals;
} bw_record_key_t;

/* `secret` is as long as the suite's digest; a key that `seals` encrypts. Returns false if
 * libcrypto fails or does not support the suite. The key must be closed in either case. */
bool bw_record_key_open(bw_record_key_t *key, unsigned suite, bool seals, const uint8_t *secret);

/* Switches to the next key of this direction. Returns false if libcrypto fails. */
bool bw_record_key_update(bw_record_key_t *key);
void bw_record_key_close(bw_record_key_t *key);

/* ---- writing ---- */

/* Appends records to a buffer, from which the caller sends them. */
typedef struct {
    bw_record_key_t key;
    bw_buffer_t *out; /* the caller's, with room for BW_RECORD_ROOM before each record */
    uint64_t limit;   /* maximum number of records for one key */
    bool is_asked;    /* the peer has requested a new key */
} bw_record_writer_t;

/* Returns where the content of the next record will be, after appending a KeyUpdate if the record
 * needs a new key. Returns NULL if libcrypto fails; the writer must then not be used any more. */
uint8_t *bw_record_place(bw_record_writer_t *writer);

/* Seals at most BW_RECORD_BYTES of content in pieces, after bw_record_place. A piece that is
 * already at its place in the record is encrypted in place. Returns false if libcrypto fails; the
 * writer must then not be used any more. */
bool bw_record_seal(bw_record_writer_t *writer, uint8_t type, const struct iovec *content,
                    int count);

/* Appends a close_notify, or a fatal alert. */
bool bw_record_seal_alert(bw_record_writer_t *writer, uint8_t alert);

/* ---- reading ---- */

typedef enum {
    BW_RECORD_READ,
    BW_RECORD_SHORT,   /* more bytes must be received; see bw_record_missing */
    BW_RECORD_ENDED,   /* the peer has sent close_notify */
    BW_RECORD_REFUSED, /* the peer has sent a fatal alert */
    BW_RECORD_FLOODED, /* too many empty records in a row */
    BW_RECORD_WRONG    /* not authentic, out of order, or not a record */
} bw_record_state_t;

/* Reads records from a buffer to which the caller adds the bytes that it receives. */
typedef struct {
    bw_record_key_t key;
    bw_buffer_t *in;         /* the caller's, with room for BW_RECORD_MAX */
    size_t left, behind;     /* bytes opened in place at in->tail, and the rest of that record */
    uint64_t records;        /* number of records opened */
    int idle;                /* how many of the latest records were empty */
    bool is_asked;           /* the peer has requested a new key from us; the caller resets this */
    bw_record_state_t state; /* no longer changes once it is not BW_RECORD_READ */
    const char *reason;      /* set in all states from REFUSED on */
} bw_record_reader_t;

/* Reads the content of at most one record into the pieces, in order. If it returns BW_RECORD_READ,
 * *got_p is greater than 0. The rest of the pieces may be overwritten as well; if the record is
 * wrong, any part of the pieces may be. */
bw_record_state_t bw_record_take(bw_record_reader_t *reader, const struct iovec *to, int count,
                                 size_t *got_p);

/* Returns how many bytes the next record lacks, as far as known; never 0 after BW_RECORD_SHORT. */
size_t bw_record_missing(const bw_record_reader_t *reader);

#endif
