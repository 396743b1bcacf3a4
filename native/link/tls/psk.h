/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TLS_PSK_H
#define BW_TLS_PSK_H

#include <stdbool.h>

#include <sys/auxv.h>

#include <openssl/ssl.h>

/* Returns whether the CPU has AES instructions. Without them, ChaCha20 is faster. */
static inline bool bw_has_aes(void)
{
#if defined(__x86_64__) || defined(__i386__)
    return __builtin_cpu_supports("aes");
#elif defined(__aarch64__)
    return getauxval(AT_HWCAP) & (1 << 3);
#else
    return false;
#endif
}

/* Returns a TLS 1.3 session with that key and cipher suite, or NULL, for libssl's callbacks that
 * look up an external pre-shared key. */
static inline SSL_SESSION *bw_tls_psk_session(SSL *ssl, unsigned suite, const uint8_t *key,
                                              size_t len)
{
    const unsigned char id[2] = {(unsigned char)(suite >> 8), (unsigned char)suite};
    const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, id);
    SSL_SESSION *session = SSL_SESSION_new();

    if (session && cipher && SSL_SESSION_set1_master_key(session, key, len) &&
        SSL_SESSION_set_cipher(session, cipher) &&
        SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION))
        return session;
    SSL_SESSION_free(session);
    return NULL;
}

#endif
