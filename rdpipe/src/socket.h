/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_SOCKET_H
#define RD_SOCKET_H

#include <netdb.h>
#include <stddef.h>

#include "text.h"

/*
 * Sockets that do not block, waited for with a deadline (of rd_now_ms) and a descriptor `stop`
 * (-1: none) that becomes readable when the caller wants no more.
 */

typedef enum { RD_READY, RD_STOPPED, RD_TIMEOUT } rd_wait_t;

/* Waits for `events` (POLLIN, POLLOUT) of fd. */
rd_wait_t rd_wait(int fd, short events, int stop, int64_t deadline);

/* Reads or writes exactly `len` bytes; *why says what went wrong, without saying with whom. */
bool rd_read_all(int fd, void *data, size_t len, int stop, int64_t deadline, rd_why_t *why);
bool rd_write_all(int fd, const void *data, size_t len, int stop, int64_t deadline, rd_why_t *why);

/* A listening socket at a numeric address or a name (NULL: all addresses, of both families) with
 * the first free port of port_first..port_last (0, 0: any). */
bool rd_listen(const char *address, uint16_t port_first, uint16_t port_last, int *fd_p,
               uint16_t *port_p, rd_why_t *why);

/* Connects. As long as nobody listens there it is tried again until `patient_until`. */
bool rd_connect(const char *host, uint16_t port, int stop, int64_t patient_until, int64_t deadline,
                int *fd_p, rd_why_t *why);

/* The same, once, to an address that is known. */
bool rd_connect_to(const struct sockaddr *to, socklen_t len, int stop, int64_t deadline, int *fd_p);

/* The shortest round trip that the kernel has seen on a connection. */
unsigned rd_round_trip_ms(int fd);

/* The first line of a file of /proc or /sys, "" if there is none. */
const char *rd_kernel_line(const char *path, char *text, size_t bytes);

/* Lets the kernel use this congestion control; NULL: its own choice. False: it has only others. */
bool rd_set_congestion(int fd, const char *name, rd_why_t *why);

bool rd_congestion_is_name(const char *name);

/* For a long path: as much for what is on its way as the kernel allows. */
void rd_widen(int fd);

/* Small packets go at once, a silent dead peer is noticed by the kernel. */
void rd_tune(int fd);

#endif
