/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_LINK_H
#define BW_LINK_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "ring.h"
#include "status.h"

/*
 * A link joins exactly two endpoints with two one-way byte streams. Each carrier (a folder here)
 * fills one bw_carrier_t, which says how a link is made and what can be done with it. A user of a
 * link sees only that table; carriers.h lists the tables.
 *
 * One side listens, and sends its report to the other over a channel that is already authenticated.
 * The other side connects. Both step until their reports say BW_LINKED.
 *
 * Nothing here blocks, except probe, close without `left_p`, and listen as BW_CAP_FILES says. All
 * calls on one link are made by one thread at a time (in the driver: under the port lock); calls on
 * different links may be made at the same time. Before BW_LINKED only step, fd and close may be
 * called. After BW_CORRUPT or BW_SYSTEM only stats, reason and close may be called.
 */
typedef struct bw_link bw_link_t;

/* The properties of a carrier, which are the same at both ends. */
enum {
    /* Both ends see the same rings, so what a process has committed can be read even if it has
     * died. */
    BW_CAP_SHARED_RINGS = 1,
    /* The death of the peer's process ends the link. Without this, something outside the link must
     * report it. */
    BW_CAP_TELLS_DEATH = 2,
    /* Bytes that the peer's kernel has taken are no longer unreleased. That they were read is known
     * only once the peer has ended its stream. */
    BW_CAP_KERNEL_BUFFERS = 4,
    /* A thread of this process sends, so the last bytes are lost if the process ends at once. */
    BW_CAP_BACKGROUND = 8,
    /* connect returns a linked link, and has sent the listener everything that it needs. So nobody
     * has to wait for fd before BW_LINKED, and a listener whose step finds no peer reports that in
     * `text`. */
    BW_CAP_IMMEDIATE = 16,
    /* listen with a place (`at`) uses a file system, which may block. */
    BW_CAP_FILES = 32
};

#define BW_TOKEN_BYTES 16
#define BW_DERIVED_BYTES 32
#define BW_ADDRESS_MAX 108
#define BW_DEVICE_BYTES 64
#define BW_TEXT_BYTES 256

/* What listen or connect is asked for. It is copied. */
typedef struct {
    const uint8_t *at; /* where, in the format that the carrier's header documents */
    size_t at_len;
    uint64_t ring_bytes;           /* of each way: a valid size (connect), the maximum (listen) */
    uint8_t token[BW_TOKEN_BYTES]; /* for connect: the listener's */
    uint32_t timeout_ms;           /* for connect, unless BW_CAP_IMMEDIATE */
} bw_order_t;

typedef enum {
    BW_WORKING,   /* no news: wait for `fd` */
    BW_LISTENING, /* the report can be sent to the peer */
    BW_LINKED,    /* both sides can use the link */
    BW_FAILED     /* only close may be called */
} bw_state_t;

typedef struct {
    bw_state_t state;
    uint8_t token[BW_TOKEN_BYTES];   /* LISTENING; secret, only for the peer */
    uint8_t address[BW_ADDRESS_MAX]; /* LISTENING: for the peer, in the carrier's format */
    size_t address_len;
    char device[BW_DEVICE_BYTES]; /* LISTENING, LINKED: "" if no particular device is used */
    bw_status_t status;           /* FAILED: REFUSED, LIMIT or SYSTEM */
    char text[BW_TEXT_BYTES];     /* FAILED: why, and what to do. LISTENING: why nobody has been let
                                     in, if that is known */
} bw_report_t;

typedef struct {
    uint64_t bytes_in, bytes_out;         /* released, committed */
    uint64_t doorbells_in, doorbells_out; /* answered, rung; each is a system call */
    uint64_t stalls;                      /* how often the producer armed for room */
    uint64_t ring_bytes;                  /* of one direction */
    uint64_t fill_in, fill_out;           /* bytes in the rings now */
    uint64_t unreleased; /* committed bytes that the peer is not known to have taken */
    /* Of a TCP connection, from its kernel; otherwise 0. */
    uint64_t rtt_us, window_bytes; /* round trip, congestion window */
    uint64_t least_rtt_us;         /* the shortest recent round trip; 0: not known */
    uint64_t retransmits;          /* segments that were sent again */
    uint64_t unanswered;           /* how often the same segment was sent again without an answer */
    uint64_t ack_ms;               /* since the peer's kernel last acknowledged anything */
    uint64_t kernel_bytes;         /* bytes that are not acknowledged yet */
} bw_link_stats_t;

/* What remains of a closed link. */
typedef struct {
    int fd;              /* the polled descriptor */
    int socket;          /* has much unread to discard, or has yet to take `unsent`; -1: none */
    struct iovec map[3]; /* mapped memory; iov_base is NULL if there is none */
    struct iovec unsent; /* in one of the maps: bytes to send over the socket first */
} bw_leftover_t;

/* Frees everything except `fd`, which takes some 100 ms for a link with rings of a gigabyte. The
 * unsent bytes go out first, until the peer has taken none of them for BW_LEFTOVER_QUIET_MS or
 * BW_LEFTOVER_MS have passed. Any thread may call this. */
#define BW_LEFTOVER_QUIET_MS 1000
#define BW_LEFTOVER_MS 4000
void bw_leftover_free(bw_leftover_t *leftover);

/* Does the same for a caller that could not do it earlier: both times began waited_ms ago. */
void bw_leftover_free_late(bw_leftover_t *leftover, int64_t waited_ms);

/* The end of a carrier's `close`: hands the leftover to the caller or, if `left_p` is NULL, frees
 * it and closes `fd`. */
void bw_leftover_give(bw_leftover_t *leftover, bw_leftover_t *left_p);

/* For carriers. Discards the bytes that a socket holds, 0.5 MB per round. Returns true if there may
 * be more. */
bool bw_discard(int socket, int rounds);

typedef struct {
    const char *kind; /* one word */
    unsigned caps;    /* BW_CAP_... */

    /* ---- how a link comes to be ---- */

    /* Returns whether this host can have such links with rings of that valid size: BW_OK, or
     * *error_p has the reason. Any thread may call it. It takes up to some milliseconds. */
    bw_status_t (*probe)(uint64_t ring_bytes, bw_error_t *error_p);
    /* Begin to make a link. With BW_OK they set *link_p, which the caller must close. After an
     * error (INVALID, REFUSED, LIMIT, SYSTEM) there is nothing to close, and *error_p has the
     * reason. */
    bw_status_t (*listen)(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p);
    bw_status_t (*connect)(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p);
    /* Makes `fd` quiet and reports how far the link has come. */
    void (*step)(bw_link_t *link, bw_report_t *report_p);

    /* NULL unless the link carries bytes of any form, as it does for packets. Puts back bytes that
     * somebody read from the stream before the link was made; they are read first. Must be called
     * before the first peek. */
    bw_status_t (*put_back)(bw_link_t *link, const void *bytes, size_t len, bw_error_t *error_p);

    /* ---- a link ---- */

    /* Returns contiguous writable bytes, if possible `want` or more: BW_OK, BW_AGAIN,
     * BW_CORRUPT. */
    bw_status_t (*reserve)(bw_link_t *link, size_t want, bw_span_t *span_p);
    /* Publishes the first n bytes of the reserved span and rings if the peer sleeps. */
    void (*commit)(bw_link_t *link, size_t n);
    /* All three are NULL if commit does everything. After `defer` a commit costs no system call.
     * The peer hears of it with the next flush, if one is needed, and at the latest when the link
     * is closed. Bytes that the system does not take at that flush are in *rest_p until the next
     * reserve, and belong to the caller. */
    void (*defer)(bw_link_t *link);
    bool (*needs_flush)(const bw_link_t *link);
    void (*flush)(bw_link_t *link, bw_span_t *rest_p);
    /* Returns contiguous readable bytes: BW_OK, BW_AGAIN, BW_CORRUPT. */
    bw_status_t (*peek)(bw_link_t *link, bw_span_t *span_p);
    /* Frees the first n bytes of the peeked span and rings if the peer waits for that room. */
    void (*release)(bw_link_t *link, size_t n);
    /* Both are NULL if the ring is the only way. `write` sends the bytes directly from where they
     * are, after everything that was committed, as many as possible at once. BW_OK: the rest may be
     * reserved and committed. BW_AGAIN: nothing can be sent now, and arm_write reports when
     * something can. */
    bw_status_t (*write)(bw_link_t *link, const struct iovec *iov, int count, size_t *taken_p);
    /* Reads at most `most` bytes directly to where they belong. BW_OK: *got_p bytes were read; 0 if
     * the bytes are in the ring or the link has ended, which peek then reports. BW_AGAIN: there are
     * none, as peek would report. */
    bw_status_t (*read)(bw_link_t *link, uint8_t *to, size_t most, size_t *got_p);
    /* Ask for one wake-up on `fd`, and must be called before each wait. arm_read waits for more
     * bytes than the last peek gave, and arm_write for `room` writable bytes. As long as the peer
     * reads and does not close, the wake-up for room is certain if `room` is at most half the ring,
     * or with BW_CAP_SHARED_RINGS all but 32 KB of it. BW_OK: armed. BW_AGAIN: the condition
     * already holds, so nothing is armed. BW_CORRUPT: arm_read also returns it if the link has
     * ended and will never have more than what was left unread of the last peek. */
    bw_status_t (*arm_read)(bw_link_t *link);
    bw_status_t (*arm_write)(bw_link_t *link, size_t room);
    /* The descriptor to poll. It belongs to the link and never changes, except that with
     * BW_CAP_IMMEDIATE there is nothing to poll before BW_LINKED. */
    int (*fd)(const bw_link_t *link);
    /* Both are NULL if the descriptor becomes readable for everything that was armed for. Otherwise
     * it is the connection itself, polled level-triggered. `wants` returns the events of poll(2) to
     * poll it for: POLLIN if the link is armed for reading, POLLOUT while the connection takes
     * nothing. The answer may change with every other call. The user passes the events that
     * occurred to `is_ready`. */
    short (*wants)(const bw_link_t *link);
    void (*is_ready)(bw_link_t *link, short events);
    /* Returns whether the connection takes nothing more. Then only bytes that have already arrived
     * can be read, and after that arm_read returns BW_CORRUPT; an event need not follow. NULL or
     * false if not known. */
    bool (*is_cut)(const bw_link_t *link);
    /* Returns whether the peer's host has ended the stream without resetting it, at any position in
     * it. NULL or false if not known. */
    bool (*has_hung_up)(const bw_link_t *link);
    /* Returns whether the peer's host has not answered for a while although it should have, so the
     * path or that host is lost. NULL or false if not known. Must be asked now and then, because a
     * connection that is the only silent one of several is given up then. */
    bool (*is_silent)(bw_link_t *link);
    /* Makes `fd` quiet again. For a user that does not know the events it replaces is_ready. Must
     * be called before arm_read, never after. */
    void (*clear_event)(bw_link_t *link);
    /* Makes `fd` readable, so that the poller comes back to this link. NULL if `wants` is not. */
    void (*wake_self)(bw_link_t *link);
    /* Gives memory of an idle outgoing ring back to the system, one piece per call. Returns true if
     * there is more. Does nothing unless the peer has read everything. */
    bool (*trim)(bw_link_t *link);
    /* Returns whether trim may have memory to give back. NULL or true if not known. */
    bool (*has_spare)(const bw_link_t *link);
    void (*stats)(const bw_link_t *link, bw_link_stats_t *stats_p);
    /* Returns true if the peer has closed its end in order and everything that it wrote has been
     * released. */
    bool (*is_finished)(bw_link_t *link);
    /* Returns true if the peer's process is known to be gone, so that what can be read now is
     * everything that it wrote. NULL or false if not known. */
    bool (*is_orphan)(bw_link_t *link);
    /* Leaves the connection as it is for another process that has a descriptor of it: the link must
     * be closed next, and then sends nothing. NULL if the carrier cannot do that. */
    void (*leave)(bw_link_t *link);
    /* Returns whether the peer has broken the rules, so that another connection would not help.
     * NULL or false if not known. */
    bool (*is_corrupt)(const bw_link_t *link);
    /* Why the link has become unusable, in a form fit for an atom; NULL if the carrier does not
     * know. */
    const char *(*reason)(bw_link_t *link);
    /* Closes everything and frees the link. If `left_p` is not NULL, the caller must do the slow
     * part of that, and must close the polled descriptor when its poller no longer uses it. */
    void (*close)(bw_link_t *link, bw_leftover_t *left_p);

    /* ---- beside links ---- */

    /* Derives a key from a password with a slow function, so that each guess at the password takes
     * as long. Any thread may call it. Returns BW_OK, or *error_p has the reason. NULL if the
     * carrier has no cryptography. */
    bw_status_t (*derive)(const uint8_t *salt, size_t salt_len, const uint8_t *password, size_t len,
                          uint8_t key[BW_DERIVED_BYTES], bw_error_t *error_p);
} bw_carrier_t;

struct bw_link {
    const bw_carrier_t *ops;
};

/* For poll(2): the descriptor, and the events for which the link waits now. */
static inline struct pollfd bw_link_polled(const bw_link_t *link)
{
    short events = link->ops->wants ? link->ops->wants(link) : POLLIN;

    /* poll would report the end of a descriptor even if it is asked for no events. */
    return (struct pollfd){.fd = events ? link->ops->fd(link) : -1, .events = events};
}

#endif
