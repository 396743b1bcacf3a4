/* SPDX-License-Identifier: Apache-2.0 */
#include "record.h"

#include <stdio.h>

#include <openssl/crypto.h>
#include <openssl/hmac.h>

#define NEW_SESSION_TICKET 4
#define KEY_UPDATE 24
#define MESSAGE_HEADER 4
#define MESSAGE_MAX 2048
#define ALERT_WARNING 1
#define ALERT_FATAL 2
#define KEY_BYTES_MAX 32
#define DIGEST_BYTES_MAX BW_RECORD_SECRET_BYTES

struct bw_record_suite {
    unsigned number;
    const EVP_CIPHER *(*cipher)(void);
    const EVP_MD *(*digest)(void);
    uint8_t key_bytes, digest_bytes;
};

static const struct bw_record_suite suites[] = {
    {BW_SUITE_AES_128_GCM_SHA256, EVP_aes_128_gcm, EVP_sha256, 16, 32},
    {BW_SUITE_AES_256_GCM_SHA384, EVP_aes_256_gcm, EVP_sha384, 32, 48},
    {BW_SUITE_CHACHA20_POLY1305_SHA256, EVP_chacha20_poly1305, EVP_sha256, 32, 32},
};

/* ---- keys ---- */

/* Computes HKDF-Expand-Label with an empty context and at most one digest of output. */
static bool expand(const bw_record_key_t *key, const char *label, uint8_t *to, size_t len)
{
    uint8_t info[32] = {0, (uint8_t)len, (uint8_t)(6 + strlen(label))};
    uint8_t digest[EVP_MAX_MD_SIZE];
    size_t bytes = 3 + (size_t)snprintf((char *)info + 3, sizeof info - 3, "tls13 %s", label);
    bool done;

    info[bytes++] = 0; /* empty context */
    info[bytes++] = 1; /* the first block of HKDF-Expand */
    done = HMAC(key->suite->digest(), key->secret, key->suite->digest_bytes, info, bytes, digest,
                NULL);
    memcpy(to, digest, len);
    OPENSSL_cleanse(digest, sizeof digest);
    return done;
}

static bool use_secret(bw_record_key_t *key)
{
    const struct bw_record_suite *suite = key->suite;
    uint8_t bytes[KEY_BYTES_MAX];
    bool done =
        expand(key, "key", bytes, suite->key_bytes) && expand(key, "iv", key->iv, sizeof key->iv) &&
        EVP_CipherInit_ex(key->context, suite->cipher(), NULL, bytes, NULL, key->seals) == 1;

    OPENSSL_cleanse(bytes, sizeof bytes);
    key->number = 0;
    return done;
}

bool bw_record_key_open(bw_record_key_t *key, unsigned suite, bool seals, const uint8_t *secret)
{
    *key = (bw_record_key_t){.seals = seals};
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++)
        if (suites[i].number == suite)
            key->suite = &suites[i];
    if (!key->suite)
        return false;
    memcpy(key->secret, secret, key->suite->digest_bytes);
    key->context = EVP_CIPHER_CTX_new();
    return key->context && use_secret(key);
}

bool bw_record_key_update(bw_record_key_t *key)
{
    return expand(key, "traffic upd", key->secret, key->suite->digest_bytes) && use_secret(key);
}

void bw_record_key_close(bw_record_key_t *key)
{
    EVP_CIPHER_CTX_free(key->context);
    OPENSSL_cleanse(key, sizeof *key);
}

/* Sets up the cipher for the next record, whose header is authenticated data. */
static bool begin(bw_record_key_t *key, const uint8_t header[BW_RECORD_HEADER])
{
    uint8_t nonce[sizeof key->iv];
    int ignored;

    memcpy(nonce, key->iv, sizeof nonce);
    for (unsigned i = 0; i < 8; i++)
        nonce[sizeof nonce - 1 - i] ^= (uint8_t)(key->number >> 8 * i);
    key->number++;
    return EVP_CipherInit_ex(key->context, NULL, NULL, NULL, nonce, -1) == 1 &&
           EVP_CipherUpdate(key->context, NULL, &ignored, header, (int)BW_RECORD_HEADER) == 1;
}

static bool update(bw_record_key_t *key, uint8_t *to, const uint8_t *from, size_t len)
{
    int n;

    return len == 0 ||
           (EVP_CipherUpdate(key->context, to, &n, from, (int)len) == 1 && (size_t)n == len);
}

/* ---- writing ---- */

static size_t bytes_of(const struct iovec *iov, int count)
{
    size_t bytes = 0;

    for (int i = 0; i < count; i++)
        bytes += iov[i].iov_len;
    return bytes;
}

bool bw_record_seal(bw_record_writer_t *writer, uint8_t type, const struct iovec *content,
                    int count)
{
    uint8_t *header = bw_buffer_gap(writer->out).base, *at = header + BW_RECORD_HEADER;
    size_t bytes = bytes_of(content, count) + 1 + BW_RECORD_TAG;
    bw_record_key_t *key = &writer->key;
    int ignored;

    (void)bw_put(bw_put(header, BW_RECORD_DATA << 16 | 0x0303, 3), bytes, 2);
    if (!begin(key, header))
        return false;
    for (int i = 0; i < count; at += content[i++].iov_len)
        if (!update(key, at, content[i].iov_base, content[i].iov_len))
            return false;
    if (!update(key, at, &type, 1) || EVP_CipherFinal_ex(key->context, at + 1, &ignored) != 1 ||
        EVP_CIPHER_CTX_ctrl(key->context, EVP_CTRL_AEAD_GET_TAG, BW_RECORD_TAG, at + 1) != 1)
        return false;
    writer->out->head += BW_RECORD_HEADER + bytes;
    return true;
}

static bool seal_bytes(bw_record_writer_t *writer, uint8_t type, uint8_t *bytes, size_t len)
{
    struct iovec content = {.iov_base = bytes, .iov_len = len};

    return bw_record_seal(writer, type, &content, 1);
}

uint8_t *bw_record_place(bw_record_writer_t *writer)
{
    uint8_t message[] = {KEY_UPDATE, 0, 0, 1, 0};

    if (writer->key.number >= writer->limit || writer->is_asked) {
        if (!seal_bytes(writer, BW_RECORD_HANDSHAKE, message, sizeof message) ||
            !bw_record_key_update(&writer->key))
            return NULL;
        writer->is_asked = false;
    }
    return (uint8_t *)bw_buffer_gap(writer->out).base + BW_RECORD_HEADER;
}

bool bw_record_seal_alert(bw_record_writer_t *writer, uint8_t alert)
{
    uint8_t message[] = {alert == BW_ALERT_CLOSE_NOTIFY ? ALERT_WARNING : ALERT_FATAL, alert};

    return seal_bytes(writer, BW_RECORD_ALERT, message, sizeof message);
}

/* ---- reading ---- */

static size_t opened(const bw_record_reader_t *reader)
{
    return reader->left + reader->behind;
}

/* Returns the length of the next record, or of a header if that is incomplete. */
static size_t next_bytes(const bw_record_reader_t *reader)
{
    const bw_buffer_t *in = reader->in;

    if (bw_buffer_fill(in) - opened(reader) < BW_RECORD_HEADER)
        return BW_RECORD_HEADER;
    return BW_RECORD_HEADER +
           (size_t)bw_number(bw_buffer_place(in, in->tail + opened(reader)) + 3, 2);
}

size_t bw_record_missing(const bw_record_reader_t *reader)
{
    size_t bytes = next_bytes(reader), has = bw_buffer_fill(reader->in) - opened(reader);

    return has < bytes ? bytes - has : 0;
}

static bw_record_state_t end(bw_record_reader_t *reader, bw_record_state_t state,
                             const char *reason)
{
    reader->reason = reason;
    return reader->state = state;
}

static bw_record_state_t wrong(bw_record_reader_t *reader, const char *reason)
{
    return end(reader, BW_RECORD_WRONG, reason);
}

/* Returns the address of byte `at` in the pieces, which must be long enough. */
static uint8_t *place(const struct iovec *iov, size_t at)
{
    for (; at >= iov->iov_len; iov++)
        at -= iov->iov_len;
    return (uint8_t *)iov->iov_base + at;
}

static bool update_pieces(bw_record_key_t *key, const struct iovec *to, const uint8_t *from,
                          size_t len)
{
    for (; len > 0; to++) {
        size_t n = bw_least(to->iov_len, len);

        if (!update(key, to->iov_base, from, n))
            return false;
        from += n;
        len -= n;
    }
    return true;
}

/* Opens a complete record into the pieces, which must have room for all of its content. *len_p is
 * the length of the content, excluding the type byte and the padding. */
static bool open_record(bw_record_reader_t *reader, uint8_t *record, size_t bytes,
                        const struct iovec *to, size_t *len_p, uint8_t *type_p)
{
    size_t len = bytes - BW_RECORD_HEADER - BW_RECORD_TAG - 1;
    uint8_t *body = record + BW_RECORD_HEADER, rest;
    bw_record_key_t *key = &reader->key;

    if (!begin(key, record) ||
        EVP_CIPHER_CTX_ctrl(key->context, EVP_CTRL_AEAD_SET_TAG, BW_RECORD_TAG, body + len + 1) !=
            1 ||
        !update_pieces(key, to, body, len) || !update(key, &rest, body + len, 1) ||
        EVP_CipherFinal_ex(key->context, &rest, &(int){0}) != 1)
        return false;
    while (rest == 0 && len > 0)
        rest = *place(to, --len);
    *len_p = len;
    *type_p = rest;
    return true;
}

/* Handles a post-handshake message, which must be alone in its record. */
static bool hear_message(bw_record_reader_t *reader, const uint8_t *at, size_t len)
{
    if (len < MESSAGE_HEADER || len != MESSAGE_HEADER + bw_number(at + 1, 3))
        return false;
    if (at[0] != KEY_UPDATE)
        return at[0] == NEW_SESSION_TICKET;
    if (len != MESSAGE_HEADER + 1 || at[MESSAGE_HEADER] > 1)
        return false;
    reader->is_asked |= at[MESSAGE_HEADER] == 1;
    return bw_record_key_update(&reader->key);
}

/* Handles a record that is not data. In TLS 1.3, all alerts except close_notify are fatal. */
static void hear(bw_record_reader_t *reader, uint8_t type, const struct iovec *pieces, size_t len)
{
    uint8_t content[MESSAGE_MAX];

    for (size_t i = 0; i < len && i < sizeof content; i++)
        content[i] = *place(pieces, i);
    if (type == BW_RECORD_ALERT && len == 2 && content[1] == BW_ALERT_CLOSE_NOTIFY)
        (void)end(reader, BW_RECORD_ENDED, NULL);
    else if (type == BW_RECORD_ALERT && len == 2)
        (void)end(reader, BW_RECORD_REFUSED, "the peer refuses what we sent");
    else if (type != BW_RECORD_HANDSHAKE || len > sizeof content ||
             !hear_message(reader, content, len))
        (void)wrong(reader, "the peer sent a record that is not data");
}

/* Copies content that was opened in place to the caller's buffers. */
static size_t take_opened(bw_record_reader_t *reader, const struct iovec *to, int count)
{
    size_t got = 0;

    for (int i = 0; i < count && reader->left > 0; i++) {
        size_t n = bw_buffer_get(reader->in, to[i].iov_base, bw_least(to[i].iov_len, reader->left));

        reader->left -= n;
        got += n;
    }
    if (reader->left == 0) {
        reader->in->tail += reader->behind;
        reader->behind = 0;
    }
    return got;
}

/* Opens the first record, which must be complete, into the pieces, or in place if they are too
 * small. If it returns BW_RECORD_READ, *got_p is the number of bytes in the pieces; it is 0 if the
 * content was opened in place or is empty. */
static bw_record_state_t open_next(bw_record_reader_t *reader, size_t bytes, const struct iovec *to,
                                   int count, size_t *got_p)
{
    bw_buffer_t *in = reader->in;
    uint8_t *record = bw_buffer_place(in, in->tail), type;
    size_t most = bytes - BW_RECORD_HEADER - BW_RECORD_TAG - 1, len;
    struct iovec here = {.iov_base = record + BW_RECORD_HEADER, .iov_len = most};
    bool fits = most <= bytes_of(to, count);

    reader->records++;
    if (!open_record(reader, record, bytes, fits ? to : &here, &len, &type))
        return wrong(reader, "a record was changed, lost or repeated on the way");
    if (len > BW_RECORD_BYTES)
        return wrong(reader, "the peer sent too long a record");
    reader->idle = type == BW_RECORD_DATA && len > 0 ? 0 : reader->idle + 1;
    if (type != BW_RECORD_DATA) {
        hear(reader, type, fits ? to : &here, len);
        len = 0;
    }
    if (reader->idle > BW_RECORD_IDLE_MAX && reader->state == BW_RECORD_READ)
        (void)end(reader, BW_RECORD_FLOODED, "the peer sends only records without content");
    if (len > 0 && !fits) {
        in->tail += BW_RECORD_HEADER;
        reader->left = len;
        reader->behind = bytes - BW_RECORD_HEADER - len;
    } else {
        in->tail += bytes;
        *got_p = len;
    }
    return reader->state;
}

bw_record_state_t bw_record_take(bw_record_reader_t *reader, const struct iovec *to, int count,
                                 size_t *got_p)
{
    *got_p = 0;
    while (reader->left == 0 && *got_p == 0) {
        const bw_buffer_t *in = reader->in;
        const uint8_t *header = bw_buffer_place(in, in->tail);
        size_t bytes;

        if (reader->state != BW_RECORD_READ)
            return reader->state;
        if (bw_buffer_fill(in) < BW_RECORD_HEADER)
            return BW_RECORD_SHORT;
        bytes = next_bytes(reader);
        if (header[0] != BW_RECORD_DATA || header[1] != 3 || bytes > BW_RECORD_MAX ||
            bytes <= BW_RECORD_HEADER + BW_RECORD_TAG)
            return wrong(reader, "the peer sent something that is not a TLS record");
        if (bw_buffer_fill(in) < bytes)
            return BW_RECORD_SHORT;
        (void)open_next(reader, bytes, to, count, got_p);
    }
    if (*got_p == 0)
        *got_p = take_opened(reader, to, count);
    return BW_RECORD_READ;
}
