/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include <ctype.h>
#include <pthread.h>

#include <openssl/crypto.h>
#include <openssl/err.h>

#include "psk.h"

/* The client names the suite of the key, by what its processor does best; a server has both. */
typedef struct {
    const char *identity, *name, *digest;
    unsigned char id[2];
} suite_t;

static const suite_t suites[] = {
    {"beamway-aes", "TLS_AES_256_GCM_SHA384", "SHA384", {0x13, 0x02}},
    {"beamway-chacha", "TLS_CHACHA20_POLY1305_SHA256", "SHA256", {0x13, 0x03}},
};

static const suite_t *own_suite(void)
{
    return bw_has_aes() ? &suites[0] : &suites[1];
}

static SSL_SESSION *with_key(SSL *ssl, const suite_t *suite, const bw_tls_key_t *key)
{
    bw_tls_session_t *session = SSL_get_app_data(ssl);

    memcpy(session->label, key->label, sizeof key->label);
    return bw_tls_psk_session(ssl, suite->id, key->key, sizeof key->key);
}

static void name_key(const suite_t *suite, const bw_tls_key_t *key,
                     char identity[BW_TLS_IDENTITY_BYTES])
{
    const char *dash = key->label[0] ? "-" : "";

    snprintf(identity, BW_TLS_IDENTITY_BYTES, "%s%s%.*s", suite->identity, dash, BW_TLS_LABEL_BYTES,
             (const char *)key->label);
}

static int use_key(SSL *ssl, const EVP_MD *digest, const unsigned char **id_p, size_t *len_p,
                   SSL_SESSION **session_p)
{
    bw_tls_session_t *session = SSL_get_app_data(ssl);
    const suite_t *suite = own_suite();

    *session_p = digest && !EVP_MD_is_a(digest, suite->digest)
                     ? NULL
                     : with_key(ssl, suite, &session->keys[0]);
    name_key(suite, &session->keys[0], session->identity);
    *id_p = (const unsigned char *)session->identity;
    *len_p = strlen(session->identity);
    return 1;
}

/* What a stranger says goes into a message for people. */
static void note_identity(bw_tls_session_t *session, const unsigned char *id, size_t len)
{
    size_t n = bw_least(len, sizeof session->identity - 1);

    for (size_t i = 0; i < n; i++)
        session->identity[i] = isalnum(id[i]) || id[i] == '-' ? (char)id[i] : '?';
    session->identity[n] = 0;
}

static int find_key(SSL *ssl, const unsigned char *id, size_t len, SSL_SESSION **session_p)
{
    bw_tls_session_t *session = SSL_get_app_data(ssl);
    char identity[BW_TLS_IDENTITY_BYTES];

    *session_p = NULL;
    note_identity(session, id, len);
    for (size_t i = 0; i < sizeof suites / sizeof *suites; i++)
        for (int k = 0; k < session->key_count && !*session_p; k++) {
            name_key(&suites[i], &session->keys[k], identity);
            if (len == strlen(identity) && memcmp(id, identity, len) == 0)
                *session_p = with_key(ssl, &suites[i], &session->keys[k]);
        }
    session->is_known = *session_p != NULL;
    return 1;
}

/* A message of libssl's own: it does not go on to the next record if there were too many. */
static void count_message(int is_ours, int version, int type, const void *bytes, size_t len,
                          SSL *ssl, void *unused)
{
    bw_tls_wire_t *wire = BIO_get_data(SSL_get_rbio(ssl));

    (void)version, (void)bytes, (void)len, (void)unused;
    wire->messages_left -= !is_ours && type == SSL3_RT_HANDSHAKE;
}

static SSL_CTX *new_context(void)
{
    SSL_CTX *context = SSL_CTX_new(TLS_method());

    if (!context || !SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) ||
        !SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) ||
        !SSL_CTX_set_num_tickets(context, 0)) {
        SSL_CTX_free(context);
        return NULL;
    }
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_msg_callback(context, count_message);
    SSL_CTX_set_psk_use_session_callback(context, use_key);
    SSL_CTX_set_psk_find_session_callback(context, find_key);
    return context;
}

/* One for all links; the shared object is never unloaded. */
static SSL_CTX *context;

static void make_context(void)
{
    context = new_context();
}

void bw_tls_prepare(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, make_context);
}

/* What libssl says of the last error of this thread. */
static const char *ssl_reason(void)
{
    unsigned long error = ERR_peek_last_error();
    const char *text = error ? ERR_reason_error_string(error) : NULL;

    return text ? text : "no reason given";
}

bw_status_t bw_tls_session_make(bw_tls_session_t *session, bool is_server, const bw_tls_key_t *keys,
                                int key_count, bw_tls_wire_t *wire, bw_error_t *error_p)
{
    BIO *bio;

    bw_tls_prepare();
    ERR_clear_error();
    session->is_server = is_server;
    session->key_count = key_count;
    memcpy(session->keys, keys, (size_t)key_count * sizeof *keys);
    session->ssl = context ? SSL_new(context) : NULL;
    bio = session->ssl ? bw_tls_wire_bio(wire) : NULL;
    if (!bio)
        return bw_fail(error_p, BW_SYSTEM, "libssl gives no session", 0);
    SSL_set_bio(session->ssl, bio, bio);
    if (!SSL_set_app_data(session->ssl, session) ||
        !SSL_set_ciphersuites(session->ssl,
                              is_server ? "TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
                                        : own_suite()->name))
        return bw_fail(error_p, BW_SYSTEM, "libssl has no cipher for it", 0);
    if (is_server) {
        SSL_set_accept_state(session->ssl);
    } else {
        SSL_set_connect_state(session->ssl);
        SSL_set_verify(session->ssl, SSL_VERIFY_PEER, bw_tls_trust_nobody);
    }
    return BW_OK;
}

void bw_tls_session_free(bw_tls_session_t *session)
{
    OPENSSL_cleanse(session->keys, sizeof session->keys);
    SSL_free(session->ssl);
    session->ssl = NULL;
}

static bw_tls_hands_t refused(char text[BW_TEXT_BYTES], const char *what, const char *why)
{
    snprintf(text, BW_TEXT_BYTES, *why ? "tls: %s (%s)" : "tls: %s%s", what, why);
    return BW_TLS_REFUSED;
}

/* The usual causes by their names. */
static bw_tls_hands_t failed(const bw_tls_session_t *session, const bw_tls_wire_t *wire,
                             char text[BW_TEXT_BYTES])
{
    int reason = ERR_GET_REASON(ERR_peek_last_error());

    if (bw_tls_wire_has_ended(wire))
        return refused(text, "the peer closed the connection", "");
    if (session->is_server && session->identity[0] && !session->is_known)
        return refused(text, "the caller has another key", session->identity);
    if (session->is_server && !session->identity[0])
        return refused(text, "the caller names no key", ssl_reason());
    if (!session->is_server && reason == SSL_R_CERTIFICATE_VERIFY_FAILED)
        return refused(text, "the peer shows a certificate and does not know the key", "");
    if (!session->is_server && reason > SSL_AD_REASON_OFFSET)
        return refused(text, "the peer refuses this node's key", ssl_reason());
    return refused(text, ssl_reason(), "");
}

bw_tls_hands_t bw_tls_session_shake(bw_tls_session_t *session, bw_tls_wire_t *wire,
                                    char text[BW_TEXT_BYTES])
{
    int done, error;

    ERR_clear_error();
    done = SSL_do_handshake(session->ssl);
    error = SSL_get_error(session->ssl, done);
    if (done != 1 && (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE))
        return BW_TLS_SHAKING;
    OPENSSL_cleanse(session->keys, sizeof session->keys);
    wire->messages_left = BW_TLS_LATER_MESSAGES;
    if (done != 1)
        return failed(session, wire, text);
    return SSL_session_reused(session->ssl) ? BW_TLS_SHAKEN
                                            : refused(text, "the peer does not know the key", "");
}
