/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_KEY_H
#define RD_KEY_H

#include "text.h"

/*
 * The secret of one hop, and what is proved with it. All cryptography is libcrypto's.
 * A key never stands on a command line, in a log or in a core dump that we can help.
 */

#define RD_KEY_BYTES 32u
#define RD_MAC_BYTES 32u
#define RD_NONCE_BYTES 32u
#define RD_KEY_TEXT_MIN 16u /* of a user's own key: short ones can be guessed */

typedef struct {
    uint8_t bytes[RD_KEY_BYTES];
} rd_key_t;

/* 256 random bits. */
bool rd_key_random(rd_key_t *key_p, rd_why_t *why);

/* A nonce, not secret. */
bool rd_nonce(uint8_t nonce[RD_NONCE_BYTES], rd_why_t *why);

/* The key that is the SHA-256 of what the user gave: at least RD_KEY_TEXT_MIN bytes, blanks at its
 * end left out. `source` is named in the reason. */
bool rd_key_of_text(const char *text, size_t len, const char *source, rd_key_t *key_p,
                    rd_why_t *why);

/* Reads it from a file that no other user may read, or from a descriptor that is closed then. */
bool rd_key_of_file(const char *path, rd_key_t *key_p, rd_why_t *why);
bool rd_key_of_fd(int fd, rd_key_t *key_p, rd_why_t *why);

/* Reads it from the variable RDPIPE_KEY and takes it out of the environment. */
bool rd_key_of_environment(rd_key_t *key_p, rd_why_t *why);

/* 64 hexadecimal digits and a 0, as it goes over the control channel. */
void rd_key_to_hex(const rd_key_t *key, char hex[2 * RD_KEY_BYTES + 1]);
bool rd_key_of_hex(const char *hex, rd_key_t *key_p);

void rd_key_wipe(rd_key_t *key);
void rd_wipe(void *memory, size_t bytes);

/* HMAC-SHA-256 over a label and what both sides have said. */
bool rd_mac(const rd_key_t *key, const char *label, const void *said, size_t len,
            uint8_t mac[RD_MAC_BYTES]);
/* Compares in constant time. */
bool rd_mac_is(const uint8_t mac[RD_MAC_BYTES], const uint8_t other[RD_MAC_BYTES]);

#endif
