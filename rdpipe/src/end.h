/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_END_H
#define RD_END_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * One end of a stream: a pipe, a file, a terminal or a socket. Calls never wait, except for a disk,
 * and a descriptor that other processes share does not change for them: O_NONBLOCK is set on an
 * open file description of our own, or not at all.
 */
typedef struct {
    int fd;            /* -1: none */
    bool always_ready; /* a disk, or a memory device such as /dev/null, /dev/zero, /dev/full */
    bool is_socket, is_terminal, is_nonblocking;
    const char *name; /* a file's name for messages, owned by the caller; NULL: none */
} rd_end_t;

/* A call may take long on a disk, and on a device that ignores O_NONBLOCK. */
static inline bool rd_end_may_wait(const rd_end_t *end)
{
    return end->fd >= 0 && (end->always_ready || !(end->is_nonblocking || end->is_socket));
}

static inline const char *rd_end_name(const rd_end_t *end, bool for_writing)
{
    return end->name ? end->name : for_writing ? "the output" : "the input";
}

/* Takes ownership of the descriptor. Enlarges a pipe as far as the system allows. */
rd_end_t rd_end_of(int fd, bool for_writing);

/* Like read and write. -1 with errno EAGAIN means that the caller must wait. */
ssize_t rd_end_read(const rd_end_t *end, void *data, size_t len);
ssize_t rd_end_write(const rd_end_t *end, const void *data, size_t len);

/* How many bytes a file has from here on; 0 if it is not a file. */
uint64_t rd_end_size(const rd_end_t *end);

/* Closes the end. On false errno is set, and bytes that were written may be lost. */
bool rd_end_close(rd_end_t *end);

/* Replaces a standard stream by /dev/null. */
void rd_let_go_of(int fd);

#endif
