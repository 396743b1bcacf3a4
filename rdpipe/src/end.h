/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_END_H
#define RD_END_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Where a stream comes from or goes to: a pipe, a file, a terminal, a socket. Calls never wait
 * (but for a disk), and what other processes share with us is not changed for them: O_NONBLOCK is
 * set on a description of our own, or not at all.
 */
typedef struct {
    int fd;            /* -1: none */
    bool always_ready; /* a disk, or a device that is memory: /dev/null, /dev/zero, /dev/full */
    bool is_socket, is_terminal, is_nonblocking;
    const char *name; /* of a file, in messages; the caller's. NULL: none */
} rd_end_t;

/* A disk may take long for a call, and so may a device that does not know O_NONBLOCK. */
static inline bool rd_end_may_wait(const rd_end_t *end)
{
    return end->fd >= 0 && (end->always_ready || !(end->is_nonblocking || end->is_socket));
}

static inline const char *rd_end_name(const rd_end_t *end, bool for_writing)
{
    return end->name ? end->name : for_writing ? "the output" : "the input";
}

/* Takes the descriptor. Pipes are enlarged as far as the system lets us. */
rd_end_t rd_end_of(int fd, bool for_writing);

/* As read and write; -1 with errno EAGAIN: wait. */
ssize_t rd_end_read(const rd_end_t *end, void *data, size_t len);
ssize_t rd_end_write(const rd_end_t *end, const void *data, size_t len);

/* Bytes that a file still has, 0: it is none. */
uint64_t rd_end_size(const rd_end_t *end);

/* Closes it. False and errno: what was written may not be there. */
bool rd_end_close(rd_end_t *end);

/* Puts /dev/null in the place of a standard stream. */
void rd_let_go_of(int fd);

#endif
