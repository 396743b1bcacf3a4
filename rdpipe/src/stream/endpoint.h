/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_ENDPOINT_H
#define RD_ENDPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * One end of a stream: a pipe, a file, a terminal or a socket. No call blocks, except on a disk. If
 * other processes share the descriptor it does not become non-blocking for them, because O_NONBLOCK
 * is set only on an open file description of our own.
 */
typedef struct {
    int fd;            /* -1 if none */
    bool always_ready; /* a disk, or a memory device such as /dev/null, /dev/zero, /dev/full */
    bool is_socket, is_terminal, is_nonblocking;
    const char *name; /* a file's name for messages, owned by the caller, or NULL if none */
} rd_end_t;

/* Returns whether a call may block, as on a disk or on a device that ignores O_NONBLOCK. */
static inline bool rd_end_may_wait(const rd_end_t *end)
{
    return end->fd >= 0 && (end->always_ready || !(end->is_nonblocking || end->is_socket));
}

static inline const char *rd_end_name(const rd_end_t *end, bool for_writing)
{
    return end->name ? end->name : for_writing ? "the output" : "the input";
}

/* Takes ownership of the descriptor. If it is a pipe, enlarges it as far as the system allows. */
rd_end_t rd_end_of(int fd, bool for_writing);

/* Like read and write. -1 with errno EAGAIN means that the caller must wait. */
ssize_t rd_end_read(const rd_end_t *end, void *data, size_t len);
ssize_t rd_end_write(const rd_end_t *end, const void *data, size_t len);

/* Returns the number of bytes that are left, or 0 if this is not a regular file. */
uint64_t rd_end_size(const rd_end_t *end);

/* Closes the end. On failure, errno is set, and bytes that were written may be lost. */
bool rd_end_close(rd_end_t *end);

/* Replaces a standard stream with /dev/null. */
void rd_let_go_of(int fd);

#endif
