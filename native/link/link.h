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
 * A link connects exactly two endpoints with two one-way byte streams. Each carrier (a subdirectory
 * here) provides one bw_carrier_t, a table of functions to set up a link and to use it. A user of a
 * link sees only that table; carriers.h lists the tables.
 *
 * One side listens, and sends its report to the other over a channel that is already authenticated.
 * The other side connects. Both sides then call `step` until their reports say BW_LINKED.
 *
 * Nothing here blocks, except probe, close without `left_p`, and listen if BW_CAP_FILES is set. All
 * calls on one link are made by one thread at a time (in the driver: under the port lock); calls on
 * different links may be made at the same time. Before BW_LINKED only step, fd and close may be
 * called. After BW_CORRUPT or BW_SYSTEM only stats, reason and close may be called.
 */
typedef struct bw_link bw_link_t;

/* The properties of a carrier, which are the same at both ends. */
enum {
    /* Both ends map the same rings, so bytes that a process has committed can be read even after it
     * has died. */
    BW_CAP_SHARED_RINGS = 1,
    /* The link detects that the peer's process has died. If not, something else must report it. */
    BW_CAP_TELLS_DEATH = 2,
    /* Bytes count as released once the peer's kernel has received them. Whether they were read is
     * not known until the peer has ended its stream. */
    BW_CAP_KERNEL_BUFFERS = 4,
    /* A background thread sends, so the last bytes are lost if the process exits immediately. */
    BW_CAP_BACKGROUND = 8,
    /* connect returns a link that is already BW_LINKED, and has sent the listener everything that
     * it needs. So there is no need to wait for fd before BW_LINKED, and a listener whose step
     * finds no peer reports that in `text`. */
    BW_CAP_IMMEDIATE = 16,
    /* listen accesses a file system if `at` is given, which may block. */
    BW_CAP_FILES = 32
};

#define BW_TOKEN_BYTES 16
#define BW_DERIVED_BYTES 32
#define BW_ADDRESS_MAX 108
#define BW_DEVICE_BYTES 64
#define BW_TEXT_BYTES 256

/* The arguments of listen or connect, which are copied. */
typedef struct {
    const uint8_t *at; /* the address, in a format documented in the carrier's header */
    size_t at_len;
    uint64_t ring_bytes; /* for each direction: a valid size (connect), the maximum (listen) */
    uint8_t token[BW_TOKEN_BYTES]; /* for connect: the token in the listener's report */
    uint32_t timeout_ms;           /* for connect; not used with BW_CAP_IMMEDIATE */
} bw_order_t;

typedef enum {
    BW_WORKING,   /* nothing new: wait for `fd` */
    BW_LISTENING, /* the report can be sent to the peer */
    BW_LINKED,    /* both sides can use the link */
    BW_FAILED     /* only close may be called */
} bw_state_t;

typedef struct {
    bw_state_t state;
    uint8_t token[BW_TOKEN_BYTES];   /* LISTENING: a secret to send only to the peer */
    uint8_t address[BW_ADDRESS_MAX]; /* LISTENING: to send to the peer, in the carrier's format */
    size_t address_len;
    char device[BW_DEVICE_BYTES]; /* LISTENING, LINKED: "" if no particular device is used */
    bw_status_t status;           /* FAILED: REFUSED, LIMIT or SYSTEM */
    char text[BW_TEXT_BYTES];     /* FAILED: why, and what to do. LISTENING: why no peer has been
                                     accepted, if known */
} bw_report_t;

/* The numbers of a link that users see, in the order in which the driver reports them. */
#define BW_LINK_NUMBERS(X)                                                                         \
    X(bytes_in)      /* released */                                                                \
    X(bytes_out)     /* committed */                                                               \
    X(doorbells_in)  /* received; each is a system call */                                         \
    X(doorbells_out) /* rung; each is a system call */                                             \
    X(stalls)        /* how often the producer asked to be woken once there is room */             \
    X(ring_bytes)    /* size of the ring for each direction */                                     \
    X(fill_in)       /* bytes in the rings now */                                                  \
    X(fill_out)                                                                                    \
    /* Statistics of the TCP connection from the kernel; 0 for other carriers. */                  \
    X(rtt_us)       /* round trip */                                                               \
    X(window_bytes) /* congestion window */                                                        \
    X(retransmits)  /* segments that were sent again */                                            \
    X(unanswered)   /* consecutive retransmissions of the same segment without a response */       \
    X(ack_ms)       /* time since the peer's kernel last acknowledged anything */                  \
    X(kernel_bytes) /* bytes that are not acknowledged yet */

#define BW_LINK_NUMBER(name) uint64_t name;

typedef struct {
    BW_LINK_NUMBERS(BW_LINK_NUMBER)
    uint64_t unreleased;      /* committed bytes that the peer is not known to have taken */
    uint64_t least_rtt_us;    /* the shortest recent round trip; 0 if not known */
    uint64_t delivered_bytes; /* whole segments that the peer's kernel has, in any order */
} bw_link_stats_t;

/* The resources of a closed link that still have to be freed. */
typedef struct {
    int fd;              /* the polled descriptor */
    int socket;          /* a socket with unread bytes to discard or `unsent` to send, or -1 */
    struct iovec map[3]; /* mapped memory; iov_base is NULL if there is none */
    struct iovec unsent; /* bytes in one of the maps that must first be sent over the socket */
} bw_leftover_t;

/* Frees everything except `fd`. For a link with gigabyte rings this takes about 100 ms. First it
 * sends the unsent bytes, until the peer has accepted none of them for BW_LEFTOVER_QUIET_MS or
 * until BW_LEFTOVER_MS have passed. Any thread may call this. */
#define BW_LEFTOVER_QUIET_MS 1000
#define BW_LEFTOVER_MS 4000
void bw_leftover_free(bw_leftover_t *leftover);

/* Like bw_leftover_free, for a caller that was delayed: both time limits started waited_ms ago. */
void bw_leftover_free_late(bw_leftover_t *leftover, int64_t waited_ms);

/* Called as the last step of a carrier's `close`: passes the leftover to the caller or, if `left_p`
 * is NULL, frees it and closes `fd`. */
void bw_leftover_give(bw_leftover_t *leftover, bw_leftover_t *left_p);

/* For carriers. Discards unread bytes, 0.5 MB per round. Returns true if there may be more. */
bool bw_discard(int socket, int rounds);

typedef struct {
    const char *kind; /* one word */
    unsigned caps;    /* BW_CAP_... */

    /* ---- link setup ---- */

    /* Checks whether this host supports such links with rings of that size, which must be valid.
     * Returns BW_OK, or sets *error_p to the reason. Any thread may call it. It may take a few
     * milliseconds. */
    bw_status_t (*probe)(uint64_t ring_bytes, bw_error_t *error_p);
    /* Both start setting up a link. On BW_OK, the caller must close *link_p. After an error
     * (INVALID, REFUSED, LIMIT, SYSTEM) there is nothing to close, and *error_p has the reason. */
    bw_status_t (*listen)(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p);
    bw_status_t (*connect)(const bw_order_t *order, bw_link_t **link_p, bw_error_t *error_p);
    /* Clears the event on `fd` and reports the progress of the setup. */
    void (*step)(bw_link_t *link, bw_report_t *report_p);

    /* NULL unless the link can carry arbitrary bytes, as is needed for packets. Puts back bytes
     * that were read from the stream before the link was set up; they are read first. Must be
     * called before the first peek. */
    bw_status_t (*put_back)(bw_link_t *link, const void *bytes, size_t len, bw_error_t *error_p);

    /* ---- using a link ---- */

    /* Finds contiguous writable bytes, if possible `want` or more. Returns BW_OK, BW_AGAIN or
     * BW_CORRUPT. */
    bw_status_t (*reserve)(bw_link_t *link, size_t want, bw_span_t *span_p);
    /* Publishes the first n bytes of the span and rings the doorbell if the peer is asleep. */
    void (*commit)(bw_link_t *link, size_t n);
    /* All three are NULL if commit does everything. After `defer`, a commit makes no system call.
     * The peer is notified by the next flush, if one is needed, and at the latest when the link is
     * closed. Bytes that the system does not accept during that flush are returned in *rest_p, and
     * then the caller is responsible for them; they remain valid until the next reserve. */
    void (*defer)(bw_link_t *link);
    bool (*needs_flush)(const bw_link_t *link);
    void (*flush)(bw_link_t *link, bw_span_t *rest_p);
    /* Finds contiguous readable bytes. Returns BW_OK, BW_AGAIN or BW_CORRUPT. */
    bw_status_t (*peek)(bw_link_t *link, bw_span_t *span_p);
    /* Frees the first n bytes of the span and rings the doorbell if the peer waits for space. */
    void (*release)(bw_link_t *link, size_t n);
    /* Both are NULL if bytes can only go through the ring. `write` sends as many bytes as possible
     * without a copy, after everything that was committed. BW_OK: the rest may be reserved and
     * committed. BW_AGAIN: nothing can be sent now; arm_write reports when that changes. */
    bw_status_t (*write)(bw_link_t *link, const struct iovec *iov, int count, size_t *taken_p);
    /* Reads at most `most` bytes directly into `to`. BW_OK: *got_p bytes were read; 0 if the bytes
     * are in the ring or the link has ended, which peek then reports. BW_AGAIN: there are none. */
    bw_status_t (*read)(bw_link_t *link, uint8_t *to, size_t most, size_t *got_p);
    /* Request one wake-up on `fd`; must be called before each wait. arm_read waits for more bytes
     * than the last peek returned, and arm_write for `room` writable bytes. As long as the peer
     * reads and does not close, the wake-up for room is guaranteed if `room` is at most half the
     * ring, or, with BW_CAP_SHARED_RINGS, at most the size of the ring minus 32 KB. BW_OK: armed.
     * BW_AGAIN: the condition already holds, so nothing is armed. arm_read also returns BW_CORRUPT
     * if the link has ended and nothing remains except the rest of the last peek. */
    bw_status_t (*arm_read)(bw_link_t *link);
    bw_status_t (*arm_write)(bw_link_t *link, size_t room);
    /* Returns the descriptor to poll. It belongs to the link and never changes, except that with
     * BW_CAP_IMMEDIATE there is nothing to poll before BW_LINKED. */
    int (*fd)(const bw_link_t *link);
    /* Both are NULL if the descriptor becomes readable for every armed event. Otherwise the
     * descriptor is the connection itself, to be polled level-triggered. `wants` returns the events
     * of poll(2) to poll for: POLLIN if the link is armed for reading, POLLOUT while the connection
     * accepts nothing. Any other call may change them. `is_ready` gets those that occurred. */
    short (*wants)(const bw_link_t *link);
    void (*is_ready)(bw_link_t *link, short events);
    /* Returns whether nothing more can be sent over the connection. If so, only bytes that have
     * already arrived can still be read, and after that arm_read returns BW_CORRUPT. There may be
     * no event when the connection reaches this state. NULL or false if not known. */
    bool (*is_cut)(const bw_link_t *link);
    /* Returns whether the peer's host has closed the stream without resetting it, no matter where
     * in the stream. NULL or false if not known. */
    bool (*has_hung_up)(const bw_link_t *link);
    /* Returns whether the peer's host has not answered for a while although it should have, so the
     * path or that host is probably down. NULL or false if not known. Must be called from time to
     * time, because on a link over several connections (stripes.h) this call drops a connection
     * that is silent while others are not. */
    bool (*is_silent)(bw_link_t *link);
    /* Clears the event on `fd`. A user that does not know which events occurred calls this instead
     * of is_ready. Must be called before arm_read, never after. */
    void (*clear_event)(bw_link_t *link);
    /* Makes `fd` readable, so that the poller soon calls the link's user again. NULL if `wants` is
     * not NULL. */
    void (*wake_self)(bw_link_t *link);
    /* Gives memory of an idle outgoing ring back to the system, one piece per call. Returns true if
     * there is more. Does nothing unless the peer has read everything. */
    bool (*trim)(bw_link_t *link);
    /* Returns whether trim may have memory to give back. NULL or true if not known. */
    bool (*has_spare)(const bw_link_t *link);
    void (*stats)(const bw_link_t *link, bw_link_stats_t *stats_p);
    /* Returns true if the peer has closed cleanly and everything that it wrote is released. */
    bool (*is_finished)(bw_link_t *link);
    /* Returns true if the peer's process is known to have exited. Then nothing more will arrive,
     * and only the bytes that have already arrived can be read. NULL or false if not known. */
    bool (*is_orphan)(bw_link_t *link);
    /* Leaves the connection intact for another process that has a descriptor for it. The caller
     * must then close the link, which sends nothing. NULL if the carrier cannot do that. */
    void (*leave)(bw_link_t *link);
    /* Returns whether the peer has violated the protocol, so that another connection would not
     * help. NULL or false if not known. */
    bool (*is_corrupt)(const bw_link_t *link);
    /* Returns why the link is unusable, as text for an atom, or NULL if it is not known. */
    const char *(*reason)(bw_link_t *link);
    /* Closes everything and frees the link. If `left_p` is not NULL, the slow part is left to the
     * caller, which must also close the polled descriptor once its poller no longer uses it. */
    void (*close)(bw_link_t *link, bw_leftover_t *left_p);

    /* ---- functions without a link ---- */

    /* Derives a key from a password with a function that is slow on purpose, because anyone who
     * tries to guess the password must call it once for each guess. Any thread may call it. Returns
     * BW_OK, or an error with the reason in *error_p. NULL if the carrier has no cryptography. */
    bw_status_t (*derive)(const uint8_t *salt, size_t salt_len, const uint8_t *password, size_t len,
                          uint8_t key[BW_DERIVED_BYTES], bw_error_t *error_p);
} bw_carrier_t;

struct bw_link {
    const bw_carrier_t *ops;
};

/* Returns the descriptor and the events that the link is waiting for, as input for poll(2). */
static inline struct pollfd bw_link_polled(const bw_link_t *link)
{
    short events = link->ops->wants ? link->ops->wants(link) : POLLIN;

    /* Without events the descriptor is -1, because poll would otherwise report a hangup. */
    return (struct pollfd){.fd = events ? link->ops->fd(link) : -1, .events = events};
}

#endif
