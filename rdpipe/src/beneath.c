/* SPDX-License-Identifier: Apache-2.0 */
#include "beneath.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/evp.h>

#define STEP (O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
#define PIECE_BYTES ((size_t)256 * 1024) /* part of the protocol */

void rd_beneath_open(rd_beneath_t *beneath_p, int top)
{
    *beneath_p = (rd_beneath_t){.top = top, .last = -1};
}

void rd_beneath_close(rd_beneath_t *beneath)
{
    if (beneath->last >= 0)
        close(beneath->last);
    beneath->last = -1;
}

/* Step by step, so that no name on the way is a link. */
static int walk(int top, const char *dir)
{
    char name[RD_PATH_BYTES];
    int fd = openat(top, ".", O_PATH | STEP);

    while (fd >= 0 && *dir) {
        size_t len = strcspn(dir, "/");
        int next;

        memcpy(name, dir, len);
        name[len] = 0;
        next = openat(fd, name, O_PATH | STEP);
        close(fd);
        fd = next;
        dir += len + (dir[len] == '/');
    }
    return fd;
}

int rd_beneath_parent(rd_beneath_t *beneath, const char *path, const char **name_p)
{
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) : 0;

    *name_p = slash ? slash + 1 : path;
    if (beneath->top < 0) {
        errno = ENOENT;
        return -1;
    }
    if (beneath->last >= 0 && strlen(beneath->dir) == len && memcmp(beneath->dir, path, len) == 0)
        return beneath->last;
    rd_beneath_close(beneath);
    memcpy(beneath->dir, path, len);
    beneath->dir[len] = 0;
    beneath->last = walk(beneath->top, beneath->dir);
    return beneath->last;
}

int rd_beneath_file(rd_beneath_t *beneath, const char *path, int flags, mode_t mode)
{
    const char *name = ".";
    int parent = *path ? rd_beneath_parent(beneath, path, &name) : beneath->top;

    return parent < 0 ? -1 : openat(parent, name, flags | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, mode);
}

/* Where a block that begins at or behind `at` may have something else than zeroes. */
static uint64_t skip_hole(int fd, uint64_t at, uint64_t len)
{
    off_t data = lseek(fd, (off_t)at, SEEK_DATA);

    if (data < 0)
        return errno == ENXIO ? len : at;
    return (uint64_t)data > at ? (uint64_t)data / PIECE_BYTES * PIECE_BYTES : at;
}

/* False: errno, 0 if the file has no so many bytes. */
static bool read_piece(int fd, uint8_t *piece, size_t wanted, uint64_t at)
{
    size_t done = 0;

    while (done < wanted) {
        ssize_t n = pread(fd, piece + done, wanted - done, (off_t)(at + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = 0;
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

static bool put_number(EVP_MD_CTX *context, uint64_t number)
{
    uint64_t bytes = htole64(number);

    return EVP_DigestUpdate(context, &bytes, sizeof bytes) == 1;
}

bool rd_digest_file(int fd, uint64_t len, uint8_t digest[RD_DIGEST_BYTES])
{
    uint8_t *piece = malloc(PIECE_BYTES);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool done = piece && context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;
    bool is_zero = true;
    struct stat is;

    if (!done)
        errno = ENOMEM;
    for (uint64_t at = 0; done && at < len;) {
        size_t bytes;

        if (is_zero && (at = skip_hole(fd, at, len)) >= len)
            break;
        bytes = len - at < PIECE_BYTES ? (size_t)(len - at) : PIECE_BYTES;
        done = read_piece(fd, piece, bytes, at);
        is_zero = done && piece[0] == 0 && memcmp(piece, piece + 1, bytes - 1) == 0;
        if (done && !is_zero)
            done = put_number(context, at) && EVP_DigestUpdate(context, piece, bytes) == 1;
        at += bytes;
    }
    if (done && (fstat(fd, &is) < 0 || (uint64_t)is.st_size < len)) {
        errno = 0;
        done = false;
    }
    done = done && put_number(context, len) && EVP_DigestFinal_ex(context, digest, NULL) == 1;
    EVP_MD_CTX_free(context);
    free(piece);
    return done;
}
