/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FRAME_SCHEDULER_H
#define BW_FRAME_SCHEDULER_H

#include "dist_frame.h"
#include "turns.h"

/*
 * Decides the order in which frames of the distribution protocol are sent to a peer, so that a
 * small signal need not wait for the fragments of large ones. The scheduler does no I/O, takes no
 * locks and does not call the VM. It gets all fragments and all frames that have to wait; while
 * nothing is queued, small frames are copied straight into the ring (pump_out.c).
 *
 * Two frames stay in order if one of the following is true; any other two may overtake each other:
 *   - they have the same sender
 *   - neither is a continuation (131,70), and one of them carries a new atom cache entry
 *   - the sender of one of them cannot be read. Such a frame is a barrier: earlier frames are sent
 *     before it, and later ones after it
 * Of the frames that may be sent, the oldest one that is not a continuation goes first.
 * Continuations are sent in the order defined in turns.h: first those of the message with the
 * fewest fragments left. If a frame may not pass an older one, the frames that the older one waits
 * for go first. Once BW_SCHEDULER_PASSING_BYTES of other frames have been sent ahead of a
 * continuation, it goes anyway, so nothing waits forever.
 *
 * Each sender has a class, and the rules above apply within a class. Control frames go before
 * normal ones, and normal frames before bulk ones, until the class has used up its share of the
 * round. When every class that has frames has used up its share, the next round begins. So a class
 * that always has frames gets at least 4/9 (control), 2/9 (normal) or 1/9 (bulk) of the bytes, if
 * no frame is larger than a fragment. A continuation waits for every non-continuation whose class
 * has some of its share left, even if that class is lower. When a sender is given a different
 * class, its waiting frames move to that class as well, so they stay in order.
 */

#define BW_SCHEDULER_PASSING_BYTES BW_TURNS_PASSING_BYTES

/* The bulk class's share of a round; the normal class has twice as much, and control four times. A
 * class may exceed its share by one frame, so the share is at least as large as a fragment. */
#define BW_SCHEDULER_SHARE_BYTES (64 * 1024)

/* How many bytes of one sender may wait in addition to the message that is being sent, and how many
 * bytes of all senders together. The scheduler reports each sender that exceeds the first limit;
 * its user enforces the second. */
#define BW_SCHEDULER_SENDER_BYTES (1024 * 1024)
#define BW_SCHEDULER_ALL_BYTES (64 * 1024 * 1024)

/* Each time it turns out that the VM does not suspend a sender, the sender's limit is doubled, up
 * to this many times the original limit. */
#define BW_SCHEDULER_PATIENCE 8

/* The classes, in the order in which they are sent. Senders are normal by default. */
typedef enum { BW_CLASS_CONTROL, BW_CLASS_NORMAL, BW_CLASS_BULK, BW_CLASSES } bw_class_t;

typedef struct bw_scheduled bw_scheduled_t;
typedef struct bw_sender bw_sender_t;

/* A waiting frame, in a record of its user, who may use only `bytes`, `user` and `kind`. */
struct bw_scheduled {
    uint64_t bytes;
    void *user;
    bw_dist_kind_t kind;
    bool renews_cache, is_barrier;
    bw_class_t class;  /* valid while it does not wait for another frame of its sender */
    uint64_t number;   /* sequence number of its arrival */
    uint64_t pid;      /* the sender's pid, as in bw_dist_frame_t; 0 if unknown or a continuation */
    uint64_t fragment; /* counts down */
    uint64_t message;  /* which of its sender's messages it belongs to */
    bw_sender_t *sender;   /* NULL if its sender has no fragments here */
    bw_scheduled_t *next;  /* next in its sender's queue, or in the backlog */
    bw_scheduled_t *ready; /* next frame that does not wait for another frame of its sender */
    bw_scheduled_t *renewer;
    bw_scheduled_t *older, *newer; /* neighbours in the list of non-continuations */
};

typedef struct {
    bw_scheduled_t *first, *last;
} bw_scheduled_queue_t;

typedef struct {
    bw_sender_t **buckets;
    uint64_t size, count; /* the size is a power of two, or 0 */
} bw_sender_table_t;

/* The frames in a class that can be sent as soon as it is their turn. */
typedef struct {
    bw_scheduled_queue_t ready; /* frames that are not continuations, the oldest first */
    bw_turns_t turns;           /* senders whose next frame is a continuation */
    uint64_t passed; /* bytes sent since the last continuation, counted while one waits */
    int64_t share;   /* bytes that it may still send in this round */
} bw_class_queue_t;

typedef struct {
    uint64_t frames, bytes;      /* everything that is waiting */
    uint64_t continuation_bytes; /* how many of these bytes are in continuations */
    uint64_t ready_bytes; /* bytes in other frames, except those that wait for fragments of their
                             sender; these ready bytes make a port busy */
    uint64_t held, asked; /* the number of senders in these states */
} bw_scheduler_counts_t;

/* A sender that exceeds its limit is held if the VM would suspend it on a busy port. Only the VM
 * knows which senders it does not suspend (nosuspend, async_dist), so the scheduler first asks its
 * user to find out: the user makes the port busy and checks whether the VM suspends the sender. */
typedef enum {
    BW_SENDER_FREE,
    BW_SENDER_ASKED, /* until bw_scheduler_answer, or until its bytes fall to half the limit */
    BW_SENDER_HELD
} bw_sender_state_t;

typedef enum { BW_ANSWER_NOT_SUSPENDED, BW_ANSWER_SUSPENDED, BW_ANSWER_GONE } bw_answer_t;

typedef struct {
    uint64_t sender_bytes; /* the limit for each sender */
    bool holds_nobody;
    uint64_t arrivals;
    uint64_t admitted;        /* waiting frames, excluding the backlog */
    uint64_t classed;         /* the number of senders whose class is not normal */
    bw_scheduled_t *oldest;   /* doubly linked list of the frames */
    bw_scheduled_t *youngest; /* that are not continuations */
    bw_scheduled_queue_t renewers;
    bw_class_queue_t classes[BW_CLASSES];
    bw_scheduled_queue_t backlog; /* a barrier, and everything that came after it */
    bw_sender_t *changed, *last_changed;
    bw_sender_table_t by_pid, by_sequence;
    bw_scheduler_counts_t counts;
} bw_scheduler_t;

/* A sender whose waiting bytes have exceeded the limit or have fallen to half of it. `pid` is the
 * VM's term for the sender, an ErlDrvTermData; `key` is for bw_scheduler_answer. If the state is
 * BW_SENDER_ASKED, `patience` is the limit that the sender has reached, as a multiple of the
 * original one: 1 to BW_SCHEDULER_PATIENCE. */
typedef struct {
    uint64_t pid, key, patience;
    bw_sender_state_t state;
} bw_sender_change_t;

void bw_scheduler_init(bw_scheduler_t *scheduler, uint64_t sender_bytes);

/* Adds a frame of `bytes` bytes in the VM's format; iov need contain only its header and control
 * message. Returns false, and does not add the frame, if out of memory. */
bool bw_scheduler_put(bw_scheduler_t *scheduler, bw_scheduled_t *frame, const struct iovec *iov,
                      int count, uint64_t bytes);

/* Returns the pid of a waiting frame's sender, as in bw_dist_frame_t, or 0 if it is not known. */
uint64_t bw_scheduler_pid(const bw_scheduled_t *frame);

/* Returns how many bytes of that sender wait. Examines at most the 10,000 oldest frames. */
uint64_t bw_scheduler_waiting(bw_scheduler_t *scheduler, uint64_t pid);

/* Removes and returns the frame to send next, or NULL if there is none. The frame must be sent
 * completely before the next one. */
bw_scheduled_t *bw_scheduler_take(bw_scheduler_t *scheduler);

/* Gets the next sender whose state has changed since it was last reported. Returns false if there
 * is none. A sender that was reported as BW_SENDER_ASKED is not reported as BW_SENDER_FREE before
 * bw_scheduler_answer is called, even if all of its frames have been sent. */
bool bw_scheduler_next_change(bw_scheduler_t *scheduler, bw_sender_change_t *change);

/* Tells the scheduler whether the VM suspends a sender that was reported as BW_SENDER_ASKED. If so,
 * the sender is held until its waiting bytes have fallen to half of its limit. If not, its limit is
 * doubled; if the limit has already reached its maximum, the sender is reported as BW_SENDER_ASKED
 * again. A sender that has exited sends nothing more and has no limit. Returns true if the sender
 * is now held, which bw_scheduler_next_change does not report. */
bool bw_scheduler_answer(bw_scheduler_t *scheduler, uint64_t key, bw_answer_t answer);

/* If `holds_nobody`, no sender is held or asked about from now on. Otherwise, a sender beyond its
 * limit is held or asked about again when one of its frames is next added or removed. */
void bw_scheduler_hold_nobody(bw_scheduler_t *scheduler, bool holds_nobody);

/* Gives the sender with that pid, as in bw_dist_frame_t, and its waiting frames a class, until it
 * is reset to normal. Returns false, and does not change the class, if out of memory. */
bool bw_scheduler_set_class(bw_scheduler_t *scheduler, uint64_t pid, bw_class_t class);

/* Frees the scheduler's memory, including all classes. The user must first take out all frames. */
void bw_scheduler_end(bw_scheduler_t *scheduler);

#endif
