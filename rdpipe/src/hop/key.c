/* SPDX-License-Identifier: Apache-2.0 */
#include "key.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>

#define KEY_TEXT_MAX 4096
#define VARIABLE "RDPIPE_KEY"

bool rd_key_random(rd_key_t *key_p, rd_why_t *why)
{
    return RAND_priv_bytes(key_p->bytes, RD_KEY_BYTES) == 1 ||
           rd_because(why, "libcrypto cannot generate random bytes");
}

bool rd_key_of_text(const char *text, size_t len, const char *source, rd_key_t *key_p,
                    rd_why_t *why)
{
    while (len > 0 && strchr(" \t\r\n", text[len - 1]))
        len--;
    if (len < RD_KEY_TEXT_MIN)
        return rd_because(why,
                          "the key from %s has %zu bytes, but at least %u are needed; make one "
                          "with: openssl rand -hex 32",
                          source, len, RD_KEY_TEXT_MIN);
    return EVP_Digest(text, len, key_p->bytes, NULL, EVP_sha256(), NULL) ||
           rd_because(why, "libcrypto has no SHA-256");
}

static bool read_key(int fd, const char *source, rd_key_t *key_p, rd_why_t *why)
{
    char text[KEY_TEXT_MAX];
    size_t len = 0;
    ssize_t n = 1;
    bool done;

    while (n > 0 && len < sizeof text) {
        n = read(fd, text + len, sizeof text - len);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            len += (size_t)n;
    }
    if (n < 0)
        done = rd_because(why, "the key from %s cannot be read: %s", source, strerror(errno));
    else if (len == sizeof text)
        done = rd_because(why, "the key from %s is longer than %d bytes", source, KEY_TEXT_MAX - 1);
    else
        done = rd_key_of_text(text, len, source, key_p, why);
    OPENSSL_cleanse(text, sizeof text);
    return done;
}

bool rd_key_of_file(const char *path, rd_key_t *key_p, rd_why_t *why)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    struct stat file;
    bool done;

    if (fd < 0)
        return rd_because(why, "key file %s: %s", path, strerror(errno));
    if (fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && (file.st_mode & 077) != 0)
        done = rd_because(why, "key file %s can be read by others; run: chmod 600 %s", path, path);
    else
        done = read_key(fd, path, key_p, why);
    close(fd);
    return done;
}

bool rd_key_of_fd(int fd, rd_key_t *key_p, rd_why_t *why)
{
    char source[32];
    bool done;

    (void)snprintf(source, sizeof source, "descriptor %d", fd);
    done = read_key(fd, source, key_p, why);
    close(fd);
    return done;
}

bool rd_key_of_environment(rd_key_t *key_p, rd_why_t *why)
{
    char *text = getenv(VARIABLE);
    bool done;

    if (!text)
        return rd_because(why, "no key: use --key-file FILE, --key-fd N or the variable " VARIABLE
                               " (never on the command line)");
    done = rd_key_of_text(text, strlen(text), VARIABLE, key_p, why);
    OPENSSL_cleanse(text, strlen(text));
    (void)unsetenv(VARIABLE);
    return done;
}

void rd_key_to_hex(const rd_key_t *key, char hex[2 * RD_KEY_BYTES + 1])
{
    for (size_t i = 0; i < RD_KEY_BYTES; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", key->bytes[i]);
}

bool rd_key_of_hex(const char *hex, rd_key_t *key_p)
{
    if (strlen(hex) != 2 * RD_KEY_BYTES)
        return false;
    for (size_t i = 0; i < RD_KEY_BYTES; i++) {
        int byte = rd_hex_byte(hex + 2 * i);

        if (byte < 0)
            return false;
        key_p->bytes[i] = (uint8_t)byte;
    }
    return true;
}

bool rd_key_is(const rd_key_t *key, const rd_key_t *other)
{
    return CRYPTO_memcmp(key->bytes, other->bytes, RD_KEY_BYTES) == 0;
}

void rd_wipe(void *memory, size_t bytes)
{
    OPENSSL_cleanse(memory, bytes);
}

void rd_key_wipe(rd_key_t *key)
{
    OPENSSL_cleanse(key->bytes, RD_KEY_BYTES);
}
