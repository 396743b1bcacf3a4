/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_KEY_H
#define RD_KEY_H

#include "text.h"

/*
 * The secret key of a hop. All cryptography comes from libcrypto. As far as rdpipe can control it,
 * a key never appears on a command line, in a log or in a core dump.
 */

#define RD_KEY_BYTES 32u
#define RD_KEY_TEXT_MIN 16u /* minimum for a user's own key, because short ones can be guessed */

typedef struct {
    uint8_t bytes[RD_KEY_BYTES];
} rd_key_t;

bool rd_key_random(rd_key_t *key_p, rd_why_t *why);

/* Derives a key from the user's text with SHA-256. Trailing blanks are ignored, and the rest must
 * have at least RD_KEY_TEXT_MIN bytes. Error messages call the text `source`. */
bool rd_key_of_text(const char *text, size_t len, const char *source, rd_key_t *key_p,
                    rd_why_t *why);

/* Fails if other users can read the file. rd_key_of_fd closes the descriptor. */
bool rd_key_of_file(const char *path, rd_key_t *key_p, rd_why_t *why);
bool rd_key_of_fd(int fd, rd_key_t *key_p, rd_why_t *why);

/* Reads the key from the variable RDPIPE_KEY, and removes the variable from the environment. */
bool rd_key_of_environment(rd_key_t *key_p, rd_why_t *why);

/* The format in which the key is sent over the control channel. */
void rd_key_to_hex(const rd_key_t *key, char hex[2 * RD_KEY_BYTES + 1]);
bool rd_key_of_hex(const char *hex, rd_key_t *key_p);

/* Compares in constant time. */
bool rd_key_is(const rd_key_t *key, const rd_key_t *other);

void rd_key_wipe(rd_key_t *key);
void rd_wipe(void *memory, size_t bytes);

#endif
