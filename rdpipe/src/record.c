/* SPDX-License-Identifier: Apache-2.0 */
#include "record.h"

#include <openssl/hmac.h>

#include "key.h"

#define KEY_UPDATE 24
#define CLOSE_NOTIFY 0
#define KEY_MAX 32

/* ---- keys ---- */

/* HKDF-Expand-Label without a context, of at most one digest. */
static bool expand(const uint8_t secret[RD_SECRET_BYTES], const char *label, uint8_t *to,
                   size_t len)
{
    uint8_t info[32] = {0, (uint8_t)len, (uint8_t)(6 + strlen(label))};
    uint8_t digest[EVP_MAX_MD_SIZE];
    size_t bytes = 3 + (size_t)snprintf((char *)info + 3, sizeof info - 3, "tls13 %s", label);
    bool done;

    info[bytes++] = 0; /* no context */
    info[bytes++] = 1; /* the first block of HKDF-Expand */
    done = HMAC(EVP_sha256(), secret, RD_SECRET_BYTES, info, bytes, digest, NULL);
    memcpy(to, digest, len);
    rd_wipe(digest, sizeof digest);
    return done;
}

/* From its secret on, with numbers that begin again. */
static bool use_secret(rd_record_key_t *key)
{
    uint8_t bytes[KEY_MAX];
    bool done =
        expand(key->secret, "key", bytes, key->is_aes ? 16 : 32) &&
        expand(key->secret, "iv", key->iv, sizeof key->iv) &&
        EVP_CipherInit_ex(key->context, key->is_aes ? EVP_aes_128_gcm() : EVP_chacha20_poly1305(),
                          NULL, bytes, NULL, key->seals) == 1;

    rd_wipe(bytes, sizeof bytes);
    key->number = 0;
    return done;
}

bool rd_record_key_open(rd_record_key_t *key, bool is_aes, bool seals,
                        const uint8_t secret[RD_SECRET_BYTES])
{
    *key = (rd_record_key_t){.context = EVP_CIPHER_CTX_new(), .is_aes = is_aes, .seals = seals};
    memcpy(key->secret, secret, RD_SECRET_BYTES);
    return key->context && use_secret(key);
}

bool rd_record_key_update(rd_record_key_t *key)
{
    return expand(key->secret, "traffic upd", key->secret, RD_SECRET_BYTES) && use_secret(key);
}

void rd_record_key_close(rd_record_key_t *key)
{
    EVP_CIPHER_CTX_free(key->context);
    rd_wipe(key, sizeof *key);
}

/* The next record: its nonce, and its header, which is authenticated with it. */
static bool begin(rd_record_key_t *key, const uint8_t header[RD_RECORD_HEADER])
{
    uint8_t nonce[sizeof key->iv];
    int ignored;

    memcpy(nonce, key->iv, sizeof nonce);
    for (unsigned i = 0; i < 8; i++)
        nonce[sizeof nonce - 1 - i] ^= (uint8_t)(key->number >> 8 * i);
    key->number++;
    return EVP_CipherInit_ex(key->context, NULL, NULL, NULL, nonce, -1) == 1 &&
           EVP_CipherUpdate(key->context, NULL, &ignored, header, (int)RD_RECORD_HEADER) == 1;
}

static bool update(rd_record_key_t *key, uint8_t *to, const uint8_t *from, size_t len)
{
    int n;

    return len == 0 ||
           (EVP_CipherUpdate(key->context, to, &n, from, (int)len) == 1 && (size_t)n == len);
}

/* ---- writing ---- */

size_t rd_record_seal(rd_record_key_t *key, uint8_t type, const void *content, size_t len,
                      uint8_t *to)
{
    size_t bytes = len + 1 + RD_RECORD_TAG;
    uint8_t *body = to + RD_RECORD_HEADER;
    int ignored;

    to[0] = RD_RECORD_DATA;
    to[1] = to[2] = 3;
    to[3] = (uint8_t)(bytes >> 8);
    to[4] = (uint8_t)bytes;
    if (!begin(key, to) || !update(key, body, content, len) || !update(key, body + len, &type, 1) ||
        EVP_CipherFinal_ex(key->context, body + len + 1, &ignored) != 1 ||
        EVP_CIPHER_CTX_ctrl(key->context, EVP_CTRL_AEAD_GET_TAG, RD_RECORD_TAG, body + len + 1) !=
            1)
        return 0;
    return RD_RECORD_HEADER + bytes;
}

size_t rd_record_seal_update(rd_record_key_t *key, uint8_t *to)
{
    static const uint8_t message[] = {KEY_UPDATE, 0, 0, 1, 0};
    size_t bytes = rd_record_seal(key, RD_RECORD_HANDSHAKE, message, sizeof message, to);

    return rd_record_key_update(key) ? bytes : 0;
}

/* ---- reading ---- */

/* Of the record at the front, whose header is there. */
static size_t record_bytes(const rd_reader_t *reader)
{
    const uint8_t *header = reader->data + reader->at;

    return RD_RECORD_HEADER + (size_t)(header[3] << 8 | header[4]);
}

size_t rd_reader_missing(const rd_reader_t *reader)
{
    size_t bytes = reader->len < RD_RECORD_HEADER ? RD_RECORD_HEADER : record_bytes(reader);

    return reader->len < bytes ? bytes - reader->len : 0;
}

uint8_t *rd_reader_room(rd_reader_t *reader, size_t *room_p)
{
    if (reader->left == 0 && reader->at > 0) {
        memmove(reader->data, reader->data + reader->at, reader->len);
        reader->at = 0;
    }
    *room_p = reader->size - reader->at - reader->len;
    return reader->data + reader->at + reader->len;
}

static rd_record_state_t wrong(rd_reader_t *reader, const char *reason)
{
    reader->reason = reason;
    return reader->state = RD_RECORD_WRONG;
}

/* Decrypts the whole record at the front: its content, without the type behind it and what fills
 * it up, to `to`, which has room for all of it. */
static bool decrypt(rd_reader_t *reader, size_t bytes, uint8_t *to, size_t *len_p, uint8_t *type_p)
{
    uint8_t *record = reader->data + reader->at, *body = record + RD_RECORD_HEADER, rest;
    size_t len = bytes - RD_RECORD_HEADER - RD_RECORD_TAG - 1;
    rd_record_key_t *key = &reader->key;

    if (!begin(key, record) ||
        EVP_CIPHER_CTX_ctrl(key->context, EVP_CTRL_AEAD_SET_TAG, RD_RECORD_TAG, body + len + 1) !=
            1 ||
        !update(key, to, body, len) || !update(key, &rest, body + len, 1) ||
        EVP_CipherFinal_ex(key->context, &rest, &(int){0}) != 1)
        return false;
    while (rest == 0 && len > 0)
        rest = to[--len];
    reader->at += bytes;
    reader->len -= bytes;
    *len_p = len;
    *type_p = rest;
    return true;
}

/* A record that is no data. */
static void hear(rd_reader_t *reader, uint8_t type, const uint8_t *content, size_t len)
{
    static const uint8_t update[] = {KEY_UPDATE, 0, 0, 1};

    if (type == RD_RECORD_HANDSHAKE && len == sizeof update + 1 && content[4] <= 1 &&
        memcmp(content, update, sizeof update) == 0) {
        reader->is_asked |= content[4] == 1;
        if (!rd_record_key_update(&reader->key))
            (void)wrong(reader, "libcrypto gives no key");
    } else if (type == RD_RECORD_ALERT && len == 2 && content[1] == CLOSE_NOTIFY) {
        reader->state = RD_RECORD_ENDED;
    } else if (type == RD_RECORD_ALERT && len == 2) {
        reader->reason = "the peer refuses what we sent";
        reader->state = RD_RECORD_REFUSED;
    } else {
        (void)wrong(reader, "the peer sent what is no data");
    }
}

rd_record_state_t rd_reader_take(rd_reader_t *reader, void *to, size_t len, size_t *got_p)
{
    while (reader->left == 0) {
        const uint8_t *header = reader->data + reader->at;
        uint8_t *content, type;
        size_t bytes, most, got;

        if (reader->state != RD_RECORD_READ)
            return reader->state;
        if (reader->len < RD_RECORD_HEADER)
            return RD_RECORD_SHORT;
        bytes = record_bytes(reader);
        if (header[0] != RD_RECORD_DATA || header[1] != 3 || bytes > RD_RECORD_MAX ||
            bytes <= RD_RECORD_HEADER + RD_RECORD_TAG)
            return wrong(reader, "the peer sent what is no record of TLS");
        if (reader->len < bytes)
            return RD_RECORD_SHORT;
        most = bytes - RD_RECORD_HEADER - RD_RECORD_TAG - 1;
        content = most <= len ? to : reader->data + reader->at + RD_RECORD_HEADER;
        if (!decrypt(reader, bytes, content, &got, &type))
            return wrong(reader, "a record was changed, lost or repeated on the way");
        if (got > RD_RECORD_BYTES)
            return wrong(reader, "the peer sent too long a record");
        if (type != RD_RECORD_DATA) {
            hear(reader, type, content, got);
        } else if (content != to) {
            reader->open = (size_t)(content - reader->data);
            reader->left = got;
        } else if (got > 0) {
            *got_p = got;
            return RD_RECORD_READ;
        }
    }
    *got_p = reader->left < len ? reader->left : len;
    memcpy(to, reader->data + reader->open, *got_p);
    reader->open += *got_p;
    reader->left -= *got_p;
    return RD_RECORD_READ;
}
