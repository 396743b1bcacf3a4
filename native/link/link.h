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
 * A link joins exactly two endpoints by two one-way byte streams. Each carrier (a folder here)
 * fills one bw_carrier_t: how a link comes to be, and what can be done with it. The table is all
 * that a user of a link sees; carriers.h lists the tables.
 *
 * One side listens and tells the other, over a channel that is already authenticated, what its
 * report says. The other connects. Both step until their report says BW_LINKED.
 *
 * Nothing here blocks, but probe, close without `left_p`, and listen as BW_CAP_FILES says. All
 * calls on one link are made by one thread at a time (in the driver: under the port lock); calls on
 * different links may be made at the same time. Before BW_LINKED only step, fd and close may be
 * called. After BW_CORRUPT or BW_SYSTEM only stats, reason and close may be called.
 */
typedef struct bw_link bw_link_t;

/* What a carrier can, the same at both ends. */
enum {
    /* Both ends see the same rings: what a process has committed can be read, even if it died. */
    BW_CAP_SHARED_RINGS = 1,
    /* The death of the peer's process ends the link. Without it something beside the link tells. */
    BW_CAP_TELLS_DEATH = 2,
    /* What the peer's kernel has taken is no longer unreleased: that it was read is known only when
     * the peer has ended its stream. */
    BW_CAP_KERNEL_BUFFERS = 4,
    /* A thread of this process sends: a process that ends at once may take its last word along. */
    BW_CAP_BACKGROUND = 8,
    /* connect gives a linked link, and has brought the listener all it needs: nobody has to wait
     * for fd before BW_LINKED, and a step that finds a listener alone says so in `text`. */
    BW_CAP_IMMEDIATE = 16,
    /* listen with a place (`at`) uses a file system, which may block. */
    BW_CAP_FILES = 32
};

#define BW_TOKEN_BYTES 16
#define BW_DERIVED_BYTES 32
#define BW_ADDRESS_MAX 108
#define BW_DEVICE_BYTES 64
#define BW_TEXT_BYTES 256

/* What is wanted of listen or connect; copied. */
typedef struct {
    const uint8_t *at; /* where, in words that the carrier's header documents */
    size_t at_len;
    uint64_t ring_bytes;           /* of each way: of connect a valid size, of listen the most */
    uint8_t token[BW_TOKEN_BYTES]; /* connect: the listener's */
    uint32_t timeout_ms;           /* connect, unless BW_CAP_IMMEDIATE */
} bw_order_t;

typedef enum {
    BW_WORKING,   /* nothing new: wait for `fd` */
    BW_LISTENING, /* the peer can be told */
    BW_LINKED,    /* both sides can use the link */
    BW_FAILED     /* only close may be called */
} bw_state_t;

typedef struct {
    bw_state_t state;
    uint8_t token[BW_TOKEN_BYTES];   /* LISTENING; secret: only for the peer */
    uint8_t address[BW_ADDRESS_MAX]; /* LISTENING: for the peer, in the carrier's words */
    size_t address_len;
    char device[BW_DEVICE_BYTES]; /* LISTENING, LINKED: "" if there is none in particular */
    bw_status_t status;           /* FAILED: REFUSED, LIMIT or SYSTEM */
    char text[BW_TEXT_BYTES];     /* FAILED: why, and what to do. LISTENING: as far as it is known,
                                     why nobody has been let in */
} bw_report_t;

typedef struct {
    uint64_t bytes_in, bytes_out;         /* released, committed */
    uint64_t doorbells_in, doorbells_out; /* answered, rung: system calls both */
    uint64_t stalls;                      /* times that the producer armed for room */
    uint64_t ring_bytes;                  /* of one direction */
    uint64_t fill_in, fill_out;           /* bytes in the rings now */
    uint64_t unreleased; /* committed bytes that the peer is not known to have taken */
    /* Of a TCP connection, as its kernel has them; otherwise 0. */
    uint64_t rtt_us, window_bytes; /* round trip, congestion window */
    uint64_t least_rtt_us;         /* the shortest round trip of late; 0: not known */
    uint64_t retransmits;          /* segments that were sent again */
    uint64_t unanswered;           /* how often the same was sent again without an answer */
    uint64_t ack_ms;               /* since the peer's kernel last acknowledged anything */
    uint64_t kernel_bytes;         /* not acknowledged yet */
} bw_link_stats_t;

/* What a closed link leaves behind. */
typedef struct {
    int fd;              /* the polled descriptor */
    int socket;          /* has much that nobody will read, or has yet to take `unsent`; -1: none */
    struct iovec map[3]; /* memory that is mapped; iov_base NULL: none */
    struct iovec unsent; /* in one of the maps: what the socket shall still be given */
} bw_leftover_t;

/* Frees all but `fd`; for a link with rings of a gigabyte this takes some 100 ms. The unsent bytes
 * go out first, until the peer has taken none of them for BW_LEFTOVER_QUIET_MS, or until
 * BW_LEFTOVER_MS are over. Any thread may call it. */
#define BW_LEFTOVER_QUIET_MS 1000
#define BW_LEFTOVER_MS 4000
void bw_leftover_free(bw_leftover_t *leftover);

/* The same for a caller that could not do it earlier. Both times began waited_ms ago. */
void bw_leftover_free_late(bw_leftover_t *leftover, int64_t waited_ms);

/* The end of a carrier's `close`: gives what is left to the caller, or frees it and closes `fd`
 * here if he wants nothing. */
void bw_leftover_give(bw_leftover_t *leftover, bw_leftover_t *left_p);

/* For carriers. Throws away what a socket holds, 0.5 MB in a round. True: there may be more. */
bool bw_discard(int socket, int rounds);

typedef struct {
    const char *kind; /* one word */
    unsigned caps;    /* BW_CAP_... */

    /* ---- how a link comes to be ---- */

    /* Can this host have such links, with rings of that size (a valid one)? By any thread, takes up
     * to some milliseconds. BW_OK, or *error_p says why not. */
    bw_status_t (*probe)(uint64_t ring_bytes, bw_error_t *error_p);
    /* Begin to make a link. BW_OK sets *link_p, which the caller closes. On an error (INVALID,
     * REFUSED, LIMIT, SYSTEM) there is none, and *error_p says why. */
    bw_status_t (*listen)(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p);
    bw_status_t (*connect)(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p);
    /* Makes `fd` quiet and says how far it has come. */
    void (*step)(bw_link_t *link, bw_report_t *report_p);

    /* NULL unless the link carries bytes of any form, as packets are. What somebody has read of the
     * stream before the link was made: it comes first. Before the first peek. */
    bw_status_t (*put_back)(bw_link_t *link, const void *bytes, size_t len, bw_error_t *error_p);

    /* ---- a link ---- */

    /* Writable bytes, contiguous, at best `want` or more: BW_OK, BW_AGAIN, BW_CORRUPT. */
    bw_status_t (*reserve)(bw_link_t *link, size_t want, bw_span_t *span_p);
    /* Publishes the first n bytes of the reserved span and rings if the peer sleeps. */
    void (*commit)(bw_link_t *link, size_t n);
    /* All are NULL if commit is all there is. After `defer` a commit costs no system call: the peer
     * hears of it by the next flush, if one is needed, at the latest when the link is closed. What
     * the system does not take at that flush is in *rest_p until the next reserve, and belongs to
     * the caller. */
    void (*defer)(bw_link_t *link);
    bool (*needs_flush)(const bw_link_t *link);
    void (*flush)(bw_link_t *link, bw_span_t *rest_p);
    /* Readable bytes, contiguous: BW_OK, BW_AGAIN, BW_CORRUPT. */
    bw_status_t (*peek)(bw_link_t *link, bw_span_t *span_p);
    /* Frees the first n bytes of the peeked span and rings if the peer waits for that room. */
    void (*release)(bw_link_t *link, size_t n);
    /* Both are NULL if a ring is the only way. Sends the bytes from where they stand, behind all
     * that was committed, as many as go at once. BW_OK: the rest may be reserved and committed.
     * BW_AGAIN: nothing goes now, and arm_write tells when something does. */
    bw_status_t (*write)(bw_link_t *link, const struct iovec *iov, int count, size_t *taken_p);
    /* Reads at most `most` bytes to where they belong. BW_OK: so many; none if they stand in the
     * ring, or if the link has ended: peek gives it. BW_AGAIN: nothing is there, as peek would say.
     */
    bw_status_t (*read)(bw_link_t *link, uint8_t *to, size_t most, size_t *got_p);
    /* Ask for one wake-up on `fd`, before each wait: when more can be read than the last
     * peek gave, or when `room` bytes can be written: while the peer reads and does not close at
     * most half the ring, with BW_CAP_SHARED_RINGS all but 32 KB of it. BW_OK: armed. BW_AGAIN: it
     * is so already, nothing is armed. BW_CORRUPT, from arm_read also if the link has ended and
     * what was left unread of the last peek is all there will ever be. */
    bw_status_t (*arm_read)(bw_link_t *link);
    bw_status_t (*arm_write)(bw_link_t *link, size_t room);
    /* The descriptor to poll; it belongs to the link, and stays the same unless BW_CAP_IMMEDIATE
     * says that there is nothing to poll before BW_LINKED. */
    int (*fd)(const bw_link_t *link);
    /* Both are NULL if the descriptor becomes readable for whatever was armed for. Else it is the
     * connection itself, polled level-triggered. `wants` returns the events of poll(2) to poll it
     * for: POLLIN if the link is armed for reading, POLLOUT while the connection takes nothing. The
     * answer may change with every other call. The user passes what has happened to `is_ready`. */
    short (*wants)(const bw_link_t *link);
    void (*is_ready)(bw_link_t *link, short events);
    /* NULL, and false: not known. The connection takes nothing more: what has arrived is all there
     * is to read, and then arm_read says BW_CORRUPT. No event need follow. */
    bool (*is_cut)(const bw_link_t *link);
    /* NULL, and false: not known. The peer's host has ended the stream and not reset it, wherever
     * in it that was. */
    bool (*has_hung_up)(const bw_link_t *link);
    /* NULL, and false: not known. Nothing has come back for a while from the peer's host, although
     * it should have: the path is lost, or that host is. Asked now and then: one of several
     * connections that is silent alone is given up. */
    bool (*is_silent)(bw_link_t *link);
    /* Makes `fd` quiet again; for a user who does not know what has happened it takes the place of
     * is_ready. Call it before arm_read, never after. */
    void (*clear_event)(bw_link_t *link);
    /* Makes `fd` readable: whoever polls it comes back to this link. NULL if `wants` is not. */
    void (*wake_self)(bw_link_t *link);
    /* Gives memory of an idle outgoing ring back to the system, a piece in one call. True: there is
     * more to give. Does nothing unless the peer has read everything. */
    bool (*trim)(bw_link_t *link);
    /* Whether trim may have something to give back. NULL, and true: not known. */
    bool (*has_spare)(const bw_link_t *link);
    void (*stats)(const bw_link_t *link, bw_link_stats_t *stats_p);
    /* True if the peer has closed its end in order and all that it wrote has been released. */
    bool (*is_finished)(bw_link_t *link);
    /* True if the peer's process is known to be gone: what can be read from now on is all that it
     * has written. NULL, and false: not known. */
    bool (*is_orphan)(bw_link_t *link);
    /* NULL: it cannot. The connection stays as it is for who has another descriptor of it: the link
     * is closed next, and says nothing. */
    void (*leave)(bw_link_t *link);
    /* NULL, and false: not known. The peer has broken the rules, so that no other connection would
     * help. */
    bool (*is_corrupt)(const bw_link_t *link);
    /* Why the link is of no use any more, fit for an atom; NULL if the carrier does not know. */
    const char *(*reason)(bw_link_t *link);
    /* Closes everything and frees the link. If `left_p` is not NULL, what takes long is left to the
     * caller, and the polled descriptor, which he closes when its poller lets go. */
    void (*close)(bw_link_t *link, bw_leftover_t *left_p);

    /* ---- beside links ---- */

    /* NULL: the carrier has no cryptography. A key of a password, by a slow function, so that each
     * guess at the password takes as long. By any thread. BW_OK, or *error_p says why not. */
    bw_status_t (*derive)(const uint8_t *salt, size_t salt_len, const uint8_t *password, size_t len,
                          uint8_t key[BW_DERIVED_BYTES], bw_error_t *error_p);
} bw_carrier_t;

struct bw_link {
    const bw_carrier_t *ops;
};

/* For poll(2): the descriptor and the events that the link waits for now. */
static inline struct pollfd bw_link_polled(const bw_link_t *link)
{
    short events = link->ops->wants ? link->ops->wants(link) : POLLIN;

    /* Of a descriptor that nothing is asked of poll tells the end all the same. */
    return (struct pollfd){.fd = events ? link->ops->fd(link) : -1, .events = events};
}

#endif
