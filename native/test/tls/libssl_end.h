/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_LIBSSL_END_H
#define BW_TEST_LIBSSL_END_H

/*
 * The other end of a connection. Here libssl handles the records as well as the handshake, so that
 * our records can be tested against its own.
 */
#include "../../link/tls/psk.h"
#include "../../link/tls/session.h"

typedef struct {
    SSL_CTX *context;
    SSL *ssl;
    bw_tls_psk_t psk;
} libssl_end_t;

static inline SSL_SESSION *libssl_session(SSL *ssl)
{
    const libssl_end_t *end = SSL_get_app_data(ssl);

    return bw_tls_psk_session(ssl, end->psk.suite, end->psk.key, sizeof end->psk.key);
}

static inline int libssl_finds(SSL *ssl, const unsigned char *id, size_t len,
                               SSL_SESSION **session_p)
{
    (void)id, (void)len;
    *session_p = libssl_session(ssl);
    return 1;
}

static inline int libssl_uses(SSL *ssl, const EVP_MD *digest, const unsigned char **id_p,
                              size_t *len_p, SSL_SESSION **session_p)
{
    const libssl_end_t *end = SSL_get_app_data(ssl);

    (void)digest;
    *session_p = libssl_session(ssl);
    *id_p = (const unsigned char *)end->psk.identity;
    *len_p = strlen(end->psk.identity);
    return 1;
}

/* The caller must not move `end`, and must close it in any case. Returns false if libssl fails. */
static inline bool libssl_open(libssl_end_t *end, int fd, bool is_server, const bw_tls_psk_t *psk,
                               const char *suites, size_t tickets)
{
    *end = (libssl_end_t){.context = SSL_CTX_new(TLS_method()), .psk = *psk};
    if (!end->context)
        return false;
    SSL_CTX_set_psk_find_session_callback(end->context, libssl_finds);
    SSL_CTX_set_psk_use_session_callback(end->context, libssl_uses);
    end->ssl = SSL_new(end->context);
    if (!end->ssl || !SSL_set_ciphersuites(end->ssl, suites) ||
        !SSL_set_num_tickets(end->ssl, tickets) || !SSL_set_app_data(end->ssl, end) ||
        !SSL_set_fd(end->ssl, fd))
        return false;
    if (is_server)
        SSL_set_accept_state(end->ssl);
    else
        SSL_set_connect_state(end->ssl);
    return true;
}

static inline void libssl_close(libssl_end_t *end)
{
    SSL_free(end->ssl);
    SSL_CTX_free(end->context);
}

#endif
