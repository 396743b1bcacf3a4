/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_SOCKET_LINK_H
#define BW_SOCKET_LINK_H

#include "buffer.h"
#include "link.h"

/*
 * What the carriers over connected stream sockets have in common: two rings of this process, the
 * socket, and what its user shall poll it for. A carrier adds how bytes pass between a ring and the
 * socket.
 */

/* What is known of each direction of the socket. */
typedef enum {
    BW_SOCKET_MAYBE, /* it may have something: ask it */
    BW_SOCKET_QUIET, /* it had no more when it was asked */
    BW_SOCKET_ENDED  /* the peer's stream has ended, or the connection has failed: read_error */
} bw_socket_in_t;

typedef enum {
    BW_SOCKET_FREE,
    BW_SOCKET_BLOCKED, /* it has no room, until the poller tells of some */
    BW_SOCKET_BROKEN   /* it takes nothing more: write_error */
} bw_socket_out_t;

typedef struct {
    int fd;
    bw_socket_in_t in;
    bw_socket_out_t out;
    int read_error;  /* 0: the stream has ended in order */
    int write_error; /* the socket says it only once */
    uint64_t reads, writes;
} bw_socket_t;

/* Sends and receives what goes at once: bytes, 0 if none do. */
size_t bw_socket_send(bw_socket_t *sock, const struct iovec *iov, int count);
size_t bw_socket_receive(bw_socket_t *sock, struct iovec *iov, int count);

/* Gives the socket what it takes of a buffer. */
void bw_socket_push(bw_socket_t *sock, bw_buffer_t *out);

/* A descriptor of our own (close-on-exec, non-blocking) for the same connected stream socket. */
bw_status_t bw_socket_watch(int socket, int *fd_p, bw_error_t *error_p);

/* How a carrier's bytes pass. None blocks; each may take a part. */
typedef struct {
    const char *name;   /* of its memory */
    const char *failed; /* the reason where no other is known */
    /* From the outgoing ring. */
    void (*push)(bw_link_t *link);
    /* From where they stand, behind what was pushed: bytes that were taken. */
    size_t (*write)(bw_link_t *link, const struct iovec *iov, int count);
    /* To the vectors, in their order, maybe to the first alone: bytes. */
    size_t (*read)(bw_link_t *link, struct iovec *iov, int count);
} bw_passage_t;

/* What the reader has come to. */
typedef enum {
    BW_SOCKET_OPEN,
    BW_SOCKET_FINISHED, /* the peer's stream has ended in order */
    BW_SOCKET_FAILED    /* or not */
} bw_socket_end_t;

/* The beginning of a carrier's link. */
typedef struct {
    bw_link_t link; /* first: a bw_link_t pointer is a pointer to this one */
    const bw_passage_t *passage;
    bw_buffer_t out, in;
    bw_socket_t socket;
    uint64_t peeked;  /* in.head as the last peek gave it */
    bool is_armed;    /* for reading */
    bool is_taken;    /* some of what it gave has been released */
    bool is_frugal;   /* large frames are read to where they belong: little is pulled */
    bool has_more;    /* the last read left something that the socket does not tell of */
    bool is_awaited;  /* a write waits for room in the socket */
    bool is_deferred; /* commit leaves the sending to flush */
    bool is_left;     /* the connection goes on without this link */
    bw_socket_end_t end;
    const char *reason; /* of FAILED, or why what we write goes nowhere: the reader's end to come */
    uint64_t stalls;
    uint64_t lost;        /* bytes that were committed after it was cut */
    uint64_t handed_back; /* of the ring by flush, and not yet committed or written again */
} bw_socket_link_t;

static inline bw_socket_link_t *bw_socket_link_of(bw_link_t *link)
{
    return (bw_socket_link_t *)link;
}

/* Makes one for the socket that `socket` names, as bw_tcp_adopt says; `bytes` is the size of the
 * carrier's link, all 0 but for its beginning. NULL: *status_p and *error_p say why. */
bw_socket_link_t *bw_socket_link_make(const bw_carrier_t *ops, const bw_passage_t *passage,
                                      size_t bytes, int socket, uint64_t ring_bytes,
                                      bw_status_t *status_p, bw_error_t *error_p);

/* The link takes nothing more. When everything that had arrived is read, arm_read tells of it. */
void bw_socket_link_cut(bw_link_t *link, const char *reason);

/* The same, if the socket says so. */
void bw_socket_link_check(bw_link_t *link);

/* Nothing more comes; with a reason if it should have. */
void bw_socket_link_end(bw_link_t *link, const char *reason);

/* What an error of the socket is called. */
const char *bw_socket_link_reason_of(const bw_link_t *link, int sys_errno);

/* Frees the link. What is in `unsent`, which may be in `map`, goes out by `left_p`. */
void bw_socket_link_close(bw_link_t *link, struct iovec unsent, struct iovec map,
                          bw_leftover_t *left_p);

/* Frees one that nobody has used. */
void bw_socket_link_free(bw_socket_link_t *base);

/* For the carrier's table. */
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
