/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_RECORD_H
#define BW_RECORD_H

#include <openssl/evp.h>

#include "../buffer.h"

/*
 * The records of TLS 1.3 after its handshake (RFC 8446, sections 5.1 to 5.5, 7.2 and 7.3), for the
 * tls carrier and for rdpipe. A record is sealed from where its content is into the buffer that is
 * sent, and opened from the buffer that was received to where its content belongs. There are no
 * sockets here.
 *
 * Why this is safe:
 * - A nonce is the number of the record under its key, in 64 bits, and only `seal` counts it. A key
 *   begins at 0, is used in one direction of one connection, and is replaced with a KeyUpdate after
 *   `limit` records, which is below the limit of AES-GCM (2^24.5). So no nonce is used twice.
 * - The reader has the same count, so a record that is repeated, left out, swapped, reflected or
 *   replayed from another connection does not authenticate. After such a record nothing more is
 *   read. Bytes that an opener writes before it has checked the tag do not count as read.
 * - Each length is checked before it is used: a record of more than 2^14 + 256 bytes, or with more
 *   than 2^14 bytes of content, ends the stream.
 * - Only a close_notify is an orderly end. The caller notices the end of the connection itself, and
 *   must treat it as a failure.
 * - Records without content cost as much as others, so a peer may send only a few in a row.
 * - Early data and renegotiation do not exist here. The first key comes from a finished handshake,
 *   and of the handshake messages only KeyUpdate has an effect: NewSessionTicket is skipped, and
 *   any other one ends the stream.
 */
#define BW_RECORD_BYTES ((size_t)16384) /* the most content */
#define BW_RECORD_HEADER ((size_t)5)
#define BW_RECORD_TAG ((size_t)16)
#define BW_RECORD_MAX (BW_RECORD_HEADER + BW_RECORD_BYTES + 256) /* what a peer may send */
#define BW_RECORD_ROOM BW_RECORD_MAX /* enough for one of ours with a KeyUpdate before it */
#define BW_RECORD_SECRET_BYTES 48u   /* with SHA-384; 32 with SHA-256 */

/* A sending key is replaced after this many records. */
#define BW_RECORD_KEY_LIMIT ((uint64_t)1 << 23)

/* A reader accepts this many records without content in a row. Our own side sends one at a time. */
#define BW_RECORD_IDLE_MAX 4

/* The cipher suites, by their numbers in TLS. */
enum {
    BW_SUITE_AES_128_GCM_SHA256 = 0x1301,
    BW_SUITE_AES_256_GCM_SHA384 = 0x1302,
    BW_SUITE_CHACHA20_POLY1305_SHA256 = 0x1303
};

enum { BW_RECORD_ALERT = 21, BW_RECORD_HANDSHAKE = 22, BW_RECORD_DATA = 23 };
enum { BW_ALERT_CLOSE_NOTIFY = 0, BW_ALERT_BAD_RECORD_MAC = 20 };

struct bw_record_suite;

/* What protects one direction. */
typedef struct {
    EVP_CIPHER_CTX *context;
    const struct bw_record_suite *suite;
    uint8_t secret[BW_RECORD_SECRET_BYTES], iv[12];
    uint64_t number; /* of the next record with this key */
    bool seals;
} bw_record_key_t;

/* `secret` has the length of the suite's digest; `seals` means that the key encrypts. Returns false
 * if libcrypto fails or does not know the suite. The key must be closed in any case. */
bool bw_record_key_open(bw_record_key_t *key, unsigned suite, bool seals, const uint8_t *secret);

/* Switches to the next key of this direction. Returns false if libcrypto fails. */
bool bw_record_key_update(bw_record_key_t *key);
void bw_record_key_close(bw_record_key_t *key);

/* ---- writing ---- */

/* Adds records to a buffer, from which the caller sends them. */
typedef struct {
    bw_record_key_t key;
    bw_buffer_t *out; /* the caller's, with room for BW_RECORD_ROOM before each record */
    uint64_t limit;   /* of records for one key */
    bool is_asked;    /* the peer wants a new key */
} bw_record_writer_t;

/* Returns where the content of the next record will be, after a KeyUpdate if the record needs
 * another key. Returns NULL if libcrypto fails; then nothing may be sealed any more. */
uint8_t *bw_record_place(bw_record_writer_t *writer);

/* Seals at most BW_RECORD_BYTES of content in pieces, after bw_record_place. A piece that is
 * already in its place in the record is encrypted there. Returns false in the same case. */
bool bw_record_seal(bw_record_writer_t *writer, uint8_t type, const struct iovec *content,
                    int count);

/* Seals a close_notify, or a fatal alert. */
bool bw_record_seal_alert(bw_record_writer_t *writer, uint8_t alert);

/* ---- reading ---- */

typedef enum {
    BW_RECORD_READ,
    BW_RECORD_SHORT,   /* more must be received: bw_record_missing */
    BW_RECORD_ENDED,   /* the peer said that nothing follows */
    BW_RECORD_REFUSED, /* the peer reports that it does not accept what we sent */
    BW_RECORD_FLOODED, /* too many records without content */
    BW_RECORD_WRONG    /* not authentic, out of order, or not a record */
} bw_record_state_t;

/* Reads records from a buffer to which the caller adds the bytes that it receives. */
typedef struct {
    bw_record_key_t key;
    bw_buffer_t *in;         /* the caller's, with room for BW_RECORD_MAX */
    size_t left, behind;     /* opened in place at in->tail, and what follows in the same record */
    uint64_t records;        /* that were opened */
    int idle;                /* how many of the latest had no content */
    bool is_asked;           /* the peer wants a new key from us; the caller resets this */
    bw_record_state_t state; /* once it is not BW_RECORD_READ, it stays */
    const char *reason;      /* of all states from REFUSED on */
} bw_record_reader_t;

/* Reads at most one record's content into the pieces, in their order. With BW_RECORD_READ *got_p is
 * more than 0. The part of the pieces after those bytes may be overwritten, and all of them if the
 * record is wrong. */
bw_record_state_t bw_record_take(bw_record_reader_t *reader, const struct iovec *to, int count,
                                 size_t *got_p);

/* Returns how many bytes are missing until the next record is complete, as far as that is known;
 * not 0 after BW_RECORD_SHORT. */
size_t bw_record_missing(const bw_record_reader_t *reader);

#endif
