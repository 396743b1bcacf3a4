/* SPDX-License-Identifier: Apache-2.0 */
#include "session.h"

#include <ctype.h>
#include <pthread.h>

#include <openssl/crypto.h>
#include <openssl/err.h>

#include "psk.h"

static SSL_SESSION *with_key(SSL *ssl, const bw_tls_psk_t *psk)
{
    return bw_tls_psk_session(ssl, psk->suite, psk->key, sizeof psk->key);
}

static bool has_digest(SSL_SESSION *session, const EVP_MD *digest)
{
    const SSL_CIPHER *cipher = session ? SSL_SESSION_get0_cipher(session) : NULL;

    return cipher &&
           EVP_MD_get_type(SSL_CIPHER_get_handshake_digest(cipher)) == EVP_MD_get_type(digest);
}

static int use_key(SSL *ssl, const EVP_MD *digest, const unsigned char **id_p, size_t *len_p,
                   SSL_SESSION **session_p)
{
    bw_tls_session_t *session = SSL_get_app_data(ssl);

    session->known = &session->terms.psks[0];
    memcpy(session->identity, session->known->identity, sizeof session->identity);
    *session_p = with_key(ssl, session->known);
    if (digest && !has_digest(*session_p, digest)) {
        SSL_SESSION_free(*session_p);
        *session_p = NULL;
    }
    *id_p = (const unsigned char *)session->identity;
    *len_p = strlen(session->identity);
    return 1;
}

/* An unauthenticated client's identity is shown in a message, so unsafe characters are replaced. */
static void note_identity(bw_tls_session_t *session, const unsigned char *id, size_t len)
{
    size_t n = bw_least(len, sizeof session->identity - 1);

    for (size_t i = 0; i < n; i++)
        session->identity[i] = isalnum(id[i]) || id[i] == '-' || id[i] == ' ' ? (char)id[i] : '?';
    session->identity[n] = 0;
}

static int find_key(SSL *ssl, const unsigned char *id, size_t len, SSL_SESSION **session_p)
{
    bw_tls_session_t *session = SSL_get_app_data(ssl);

    session->known = NULL;
    note_identity(session, id, len);
    for (int i = 0; i < session->terms.psk_count; i++) {
        const bw_tls_psk_t *psk = &session->terms.psks[i];

        if (len == strlen(psk->identity) && memcmp(id, psk->identity, len) == 0)
            session->known = psk;
    }
    *session_p = session->known ? with_key(ssl, session->known) : NULL;
    return 1;
}

/* A line of the key log consists of a label, the client random and the secret. */
static void take_secret(const SSL *ssl, const char *line)
{
    static const char *const names[] = {"CLIENT_TRAFFIC_SECRET_0 ", "SERVER_TRAFFIC_SECRET_0 "};
    bw_tls_session_t *session = SSL_get_app_data(ssl);
    size_t len;

    for (int i = 0; i < 2; i++)
        if (strncmp(line, names[i], strlen(names[i])) == 0)
            session->secrets[i].is_there =
                OPENSSL_hexstr2buf_ex(session->secrets[i].bytes, sizeof session->secrets[i].bytes,
                                      &len, strrchr(line, ' ') + 1, '\0') == 1;
}

static int trust_nobody(int is_good, X509_STORE_CTX *chain)
{
    (void)is_good, (void)chain;
    return 0;
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
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_keylog_callback(context, take_secret);
    SSL_CTX_set_psk_use_session_callback(context, use_key);
    SSL_CTX_set_psk_find_session_callback(context, find_key);
    return context;
}

/* The context shared by all sessions, which is never freed. */
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

const char *bw_tls_session_reason(void)
{
    unsigned long error = ERR_peek_last_error();

    return error ? ERR_reason_error_string(error) : NULL;
}

bool bw_tls_session_make(bw_tls_session_t *session, const bw_tls_terms_t *terms, BIO *in, BIO *out,
                         const char **step_p)
{
    bw_tls_prepare();
    ERR_clear_error();
    session->terms = *terms;
    session->ssl = context && in && out ? SSL_new(context) : NULL;
    if (!session->ssl) {
        BIO_free(in);
        BIO_free(out == in ? NULL : out);
        *step_p = "libssl gives no session";
        return false;
    }
    SSL_set_bio(session->ssl, in, out);
    if (!SSL_set_app_data(session->ssl, session) ||
        !SSL_set_ciphersuites(session->ssl, terms->suites)) {
        *step_p = "libssl has no cipher for it";
        return false;
    }
    if (terms->insists)
        (void)SSL_set_options(session->ssl, SSL_OP_CIPHER_SERVER_PREFERENCE);
    if (terms->is_server) {
        SSL_set_accept_state(session->ssl);
    } else {
        SSL_set_connect_state(session->ssl);
        SSL_set_verify(session->ssl, SSL_VERIFY_PEER, trust_nobody);
    }
    return true;
}

void bw_tls_session_free(bw_tls_session_t *session)
{
    SSL_free(session->ssl);
    OPENSSL_cleanse(session, sizeof *session);
}

static bw_tls_hands_t not_shaken(bw_tls_session_t *session, int done)
{
    unsigned long error = ERR_peek_last_error();

    switch (SSL_get_error(session->ssl, done)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return BW_TLS_SHAKING;
    case SSL_ERROR_SYSCALL:
        return BW_TLS_CLOSED;
    default:
        if (ERR_GET_REASON(error) == SSL_R_UNEXPECTED_EOF_WHILE_READING)
            return BW_TLS_CLOSED;
        return ERR_GET_LIB(error) == ERR_LIB_SSL && ERR_GET_REASON(error) > SSL_AD_REASON_OFFSET
                   ? BW_TLS_REFUSED
                   : BW_TLS_FAILED;
    }
}

static bool open_keys(const bw_tls_session_t *session, bw_record_reader_t *reader,
                      bw_record_writer_t *writer)
{
    unsigned suite = SSL_CIPHER_get_protocol_id(SSL_get_current_cipher(session->ssl));
    bool is_server = session->terms.is_server;

    writer->limit = BW_RECORD_KEY_LIMIT;
    return session->secrets[0].is_there && session->secrets[1].is_there &&
           bw_record_key_open(&reader->key, suite, false, session->secrets[!is_server].bytes) &&
           bw_record_key_open(&writer->key, suite, true, session->secrets[is_server].bytes);
}

bw_tls_hands_t bw_tls_session_shake(bw_tls_session_t *session, bw_record_reader_t *reader,
                                    bw_record_writer_t *writer)
{
    int done;

    ERR_clear_error();
    done = SSL_do_handshake(session->ssl);
    if (done != 1)
        return not_shaken(session, done);
    /* The session must have been established with the pre-shared key. */
    return SSL_session_reused(session->ssl) && open_keys(session, reader, writer) ? BW_TLS_SHAKEN
                                                                                  : BW_TLS_FAILED;
}
