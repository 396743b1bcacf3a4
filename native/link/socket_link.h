/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SOCKET_LINK_H
#define BW_SOCKET_LINK_H

#include "buffer.h"
#include "link.h"

/*
 * The common part of the carriers over connected stream sockets: two rings that are private to this
 * process, the socket, and the events for which the user must poll it. Each carrier defines how
 * bytes are moved between a ring and the socket.
 */

/* The known state of each direction of the socket. */
typedef enum {
    BW_SOCKET_MAYBE, /* it may have bytes, so try to read */
    BW_SOCKET_QUIET, /* it had no more bytes at the last read */
    BW_SOCKET_ENDED /* the peer's stream has ended, or the connection has failed (see read_error) */
} bw_socket_in_t;

typedef enum {
    BW_SOCKET_FREE,
    BW_SOCKET_BLOCKED, /* it accepts nothing until the poller reports that it does */
    BW_SOCKET_BROKEN   /* it accepts nothing more (see write_error) */
} bw_socket_out_t;

typedef struct {
    int fd;
    bw_socket_in_t in;
    bw_socket_out_t out;
    int read_error;  /* 0 if the stream was closed cleanly */
    int write_error; /* stored, because the socket reports it only once */
    uint64_t reads, writes;
} bw_socket_t;

/* Send or receive as much as possible at once. Both return the number of bytes, which may be 0. */
size_t bw_socket_send(bw_socket_t *sock, const struct iovec *iov, int count);
size_t bw_socket_receive(bw_socket_t *sock, struct iovec *iov, int count);

/* Sends as much of a buffer as the socket accepts. */
void bw_socket_push(bw_socket_t *sock, bw_buffer_t *out);

/* Duplicates a connected stream socket; the new descriptor is close-on-exec and non-blocking. */
bw_status_t bw_socket_watch(int socket, int *fd_p, bw_error_t *error_p);

/* How a carrier moves bytes. No function blocks, and each may process only part of the bytes. */
typedef struct {
    const char *name;   /* the name of its memory */
    const char *failed; /* the reason for a failure if no other is known */
    /* Sends from the outgoing ring. */
    void (*push)(bw_link_t *link);
    /* Sends directly, after the bytes that were pushed. Returns how many the socket accepted. */
    size_t (*write)(bw_link_t *link, const struct iovec *iov, int count);
    /* Reads into the vectors in order, possibly only into the first. Returns how much it read. */
    size_t (*read)(bw_link_t *link, struct iovec *iov, int count);
} bw_passage_t;

/* The state of the incoming stream as the reader sees it. */
typedef enum {
    BW_SOCKET_OPEN,
    BW_SOCKET_FINISHED, /* the peer has closed its stream cleanly */
    BW_SOCKET_FAILED    /* it has ended in any other way */
} bw_socket_end_t;

/* Each carrier's link structure begins with this. */
typedef struct {
    bw_link_t link; /* must be first, so that a bw_link_t pointer is a pointer to this */
    const bw_passage_t *passage;
    bw_buffer_t out, in;
    bw_socket_t socket;
    uint64_t peeked;  /* in.head at the last peek */
    bool is_armed;    /* for reading */
    bool is_taken;    /* some bytes of the last peek have been released */
    bool is_frugal;   /* large frames are read directly into place, so pull only a little */
    bool has_more;    /* the last read left bytes for which the socket gives no event */
    bool is_awaited;  /* a write waits for room in the socket */
    bool is_deferred; /* commit leaves the sending to flush */
    bool is_left;     /* the connection survives without this link */
    bw_socket_end_t end;
    const char *reason; /* why `end` is FAILED, or will become FAILED because the link was cut */
    uint64_t stalls;
    uint64_t lost;        /* committed bytes that could not be sent because the link was cut */
    uint64_t handed_back; /* bytes that flush handed back, until they are committed or written */
} bw_socket_link_t;

static inline bw_socket_link_t *bw_socket_link_of(bw_link_t *link)
{
    return (bw_socket_link_t *)link;
}

/* Creates a link for the socket `socket`, as described at bw_tcp_adopt. `bytes` is the size of the
 * carrier's link structure, which is zeroed except for this common part. Returns NULL, with
 * *status_p and *error_p set, if that fails. */
bw_socket_link_t *bw_socket_link_make(const bw_carrier_t *ops, const bw_passage_t *passage,
                                      size_t bytes, int socket, uint64_t ring_bytes,
                                      bw_status_t *status_p, bw_error_t *error_p);

/* Marks the link as unable to send. Once everything that had arrived before has been read, arm_read
 * reports that the link has ended. */
void bw_socket_link_cut(bw_link_t *link, const char *reason);

/* Cuts the link if the socket reports that it is broken. */
void bw_socket_link_check(bw_link_t *link);

/* Ends the incoming stream. `reason` is not NULL if more bytes should have arrived. */
void bw_socket_link_end(bw_link_t *link, const char *reason);

/* Returns the name of a socket error, for `reason`. */
const char *bw_socket_link_reason_of(const bw_link_t *link, int sys_errno);

/* Frees the link. The bytes in `unsent`, which may be in `map`, are sent later (*left_p). */
void bw_socket_link_close(bw_link_t *link, struct iovec unsent, struct iovec map,
                          bw_leftover_t *left_p);

/* Frees a link that has not been used. */
void bw_socket_link_free(bw_socket_link_t *base);

/* Functions for the carrier's table. */
bw_status_t bw_socket_link_probe(uint64_t ring_bytes, bw_error_t *error_p);
bw_status_t bw_socket_link_put_back(bw_link_t *link, const void *bytes, size_t len,
                                    bw_error_t *error_p);
bw_status_t bw_socket_link_reserve(bw_link_t *link, size_t want, bw_span_t *span_p);
void bw_socket_link_commit(bw_link_t *link, size_t n);
void bw_socket_link_defer(bw_link_t *link);
bool bw_socket_link_needs_flush(const bw_link_t *link);
void bw_socket_link_flush(bw_link_t *link, bw_span_t *rest_p);
bw_status_t bw_socket_link_peek(bw_link_t *link, bw_span_t *span_p);
void bw_socket_link_release(bw_link_t *link, size_t n);
bw_status_t bw_socket_link_write(bw_link_t *link, const struct iovec *iov, int count,
                                 size_t *taken_p);
bw_status_t bw_socket_link_read(bw_link_t *link, uint8_t *to, size_t most, size_t *got_p);
bw_status_t bw_socket_link_arm_read(bw_link_t *link);
bw_status_t bw_socket_link_arm_write(bw_link_t *link, size_t wanted);
int bw_socket_link_fd(const bw_link_t *link);
short bw_socket_link_wants(const bw_link_t *link);
void bw_socket_link_is_ready(bw_link_t *link, short events);
bool bw_socket_link_is_cut(const bw_link_t *link);
bool bw_socket_link_has_hung_up(const bw_link_t *link);
bool bw_socket_link_is_silent(bw_link_t *link);
void bw_socket_link_clear_event(bw_link_t *link);
bool bw_socket_link_has_spare(const bw_link_t *link);
bool bw_socket_link_trim(bw_link_t *link);
void bw_socket_link_stats(const bw_link_t *link, bw_link_stats_t *stats_p);
void bw_socket_link_leave(bw_link_t *link);
bool bw_socket_link_is_finished(bw_link_t *link);
const char *bw_socket_link_reason(bw_link_t *link);

#define BW_SOCKET_LINK_OPS                                                                         \
    .probe = bw_socket_link_probe, .put_back = bw_socket_link_put_back,                            \
    .reserve = bw_socket_link_reserve, .commit = bw_socket_link_commit,                            \
    .defer = bw_socket_link_defer, .needs_flush = bw_socket_link_needs_flush,                      \
    .flush = bw_socket_link_flush, .peek = bw_socket_link_peek, .release = bw_socket_link_release, \
    .write = bw_socket_link_write, .read = bw_socket_link_read,                                    \
    .arm_read = bw_socket_link_arm_read, .arm_write = bw_socket_link_arm_write,                    \
    .fd = bw_socket_link_fd, .wants = bw_socket_link_wants, .is_ready = bw_socket_link_is_ready,   \
    .is_cut = bw_socket_link_is_cut, .is_silent = bw_socket_link_is_silent,                        \
    .has_hung_up = bw_socket_link_has_hung_up, .clear_event = bw_socket_link_clear_event,          \
    .is_finished = bw_socket_link_is_finished, .leave = bw_socket_link_leave,                      \
    .reason = bw_socket_link_reason

#endif
