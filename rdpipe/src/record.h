/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_RECORD_H
#define RD_RECORD_H

#include <openssl/evp.h>

#include "text.h"

/*
 * The records of TLS 1.3 after its handshake (RFC 8446, 5.2, 5.3, 7.2 and 7.3), with the two suites
 * of SHA-256. A record is encrypted from where its bytes stand to where they are sent from, and
 * decrypted from where they were received to where they belong: nothing is copied. No sockets here.
 */
#define RD_RECORD_BYTES ((size_t)16384) /* of content at most */
#define RD_RECORD_HEADER ((size_t)5)
#define RD_RECORD_TAG ((size_t)16)
#define RD_RECORD_ROOM (RD_RECORD_HEADER + RD_RECORD_BYTES + 1 + RD_RECORD_TAG)
#define RD_RECORD_MAX (RD_RECORD_HEADER + RD_RECORD_BYTES + 256) /* that a peer may send */
#define RD_SECRET_BYTES 32u                                      /* a traffic secret of SHA-256 */

enum { RD_RECORD_ALERT = 21, RD_RECORD_HANDSHAKE = 22, RD_RECORD_DATA = 23 };

/* What protects one direction. */
typedef struct {
    EVP_CIPHER_CTX *context;
    uint8_t secret[RD_SECRET_BYTES], iv[12];
    uint64_t number; /* of the next record with this key: its nonce is made of it */
    bool is_aes, seals;
} rd_record_key_t;

/* AES-128-GCM, or else ChaCha20-Poly1305; `seals`: to encrypt. False: libcrypto cannot. */
bool rd_record_key_open(rd_record_key_t *key, bool is_aes, bool seals,
                        const uint8_t secret[RD_SECRET_BYTES]);

/* The next key of this direction. False: libcrypto cannot. */
bool rd_record_key_update(rd_record_key_t *key);
void rd_record_key_close(rd_record_key_t *key);

/* A record of at most RD_RECORD_BYTES of content; `to` has RD_RECORD_ROOM. Its length; 0: libcrypto
 * cannot. */
size_t rd_record_seal(rd_record_key_t *key, uint8_t type, const void *content, size_t len,
                      uint8_t *to);

/* The same of KeyUpdate; what follows has the next key. */
size_t rd_record_seal_update(rd_record_key_t *key, uint8_t *to);

typedef enum {
    RD_RECORD_READ,
    RD_RECORD_SHORT,   /* more must be received: rd_reader_missing */
    RD_RECORD_ENDED,   /* the peer said that nothing follows */
    RD_RECORD_REFUSED, /* the peer says that he does not like what we sent */
    RD_RECORD_WRONG    /* not authentic, out of order, or no record: nothing more can be read */
} rd_record_state_t;

/* Reads records out of a buffer. The caller appends what he receives. */
typedef struct {
    rd_record_key_t key;
    uint8_t *data;           /* `size` bytes, at least RD_RECORD_MAX; the caller's */
    size_t size;             /* of it */
    size_t at, len;          /* received and not yet decrypted */
    size_t open, left;       /* decrypted in place and not yet read */
    bool is_asked;           /* the peer wants us to replace our sending key */
    rd_record_state_t state; /* RD_RECORD_READ, or what stays so */
    const char *reason;      /* of RD_RECORD_WRONG and RD_RECORD_REFUSED */
} rd_reader_t;

/* Reads at most `len` bytes: *got_p of them, more than 0, with RD_RECORD_READ. What is behind them
 * in `to` may be overwritten, up to `len`; all of it if the record is wrong. */
rd_record_state_t rd_reader_take(rd_reader_t *reader, void *to, size_t len, size_t *got_p);

/* So many bytes are missing to the next record as far as is known; not 0 after RD_RECORD_SHORT. */
size_t rd_reader_missing(const rd_reader_t *reader);

/* Room behind what was received, at least for the missing bytes: moves what is there. */
uint8_t *rd_reader_room(rd_reader_t *reader, size_t *room_p);

#endif
