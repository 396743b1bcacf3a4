/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_SOCKET_H
#define RD_SOCKET_H

#include <netdb.h>
#include <stddef.h>

#include "stream_count.h"
#include "text.h"

/*
 * Non-blocking sockets. Apart from host name look-ups, every call returns at its deadline (a time
 * as returned by rd_now_ms), or when the descriptor `stop` (-1 if none) becomes readable.
 */

typedef enum { RD_READY, RD_STOPPED, RD_TIMEOUT } rd_wait_t;

rd_wait_t rd_wait(int fd, short events, int stop, int64_t deadline);

/* Like rd_wait, but returns false with *why set unless fd is ready. */
bool rd_await(int fd, short events, int stop, int64_t deadline, rd_why_t *why);

/* Opens a listening socket at a numeric address or a name (NULL means all addresses of both
 * families) on the first free port from port_first to port_last (0, 0 means any). */
bool rd_listen(const char *address, uint16_t port_first, uint16_t port_last, int *fd_p,
               uint16_t *port_p, rd_why_t *why);

/* Connects. If no process is listening there, tries again until `patient_until`. */
bool rd_connect(const char *host, uint16_t port, int stop, int64_t patient_until, int64_t deadline,
                int *fd_p, rd_why_t *why);

/* Connects to a known address, trying once. Returns 0 or an errno. */
int rd_connect_to(const struct sockaddr *to, socklen_t to_len, int stop, int64_t deadline,
                  int *fd_p);

/* Returns what the kernel has counted on a connection, or all zeros if it does not use TCP. */
rd_tcp_t rd_tcp_of(int fd);

/* Returns the shortest round trip that the kernel has measured on a connection. */
unsigned rd_round_trip_ms(int fd);

/* Returns the first line of a file in /proc or /sys, or "" if there is none. */
const char *rd_kernel_line(const char *path, char *text, size_t bytes);

/* Sets a socket's congestion control; NULL leaves the kernel's default. Fails if the kernel does
 * not have the named algorithm. */
bool rd_set_congestion(int fd, const char *name, rd_why_t *why);

bool rd_congestion_is_name(const char *name);

/* Prepares a socket for a path with high latency by allowing as many bytes in flight as the kernel
 * permits. */
void rd_widen(int fd);

/* Sends small packets without delay, and makes the kernel detect a dead peer. */
void rd_tune(int fd);

#endif
