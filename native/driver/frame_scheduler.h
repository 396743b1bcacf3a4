/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FRAME_SCHEDULER_H
#define BW_FRAME_SCHEDULER_H

#include "dist_frame.h"
#include "turns.h"

/*
 * The order in which frames of the distribution protocol go to a peer, so that a small signal need
 * not wait for the fragments of large ones. The scheduler only decides: it does no I/O, takes no
 * locks and does not call the VM. Every frame passes through it, even when nothing waits.
 *
 * Two frames keep their order if one of these holds; any others may overtake each other:
 *   - they have the same sender
 *   - neither is a continuation (131,70), and one of them carries a new atom cache entry
 *   - the sender of one cannot be read. Such a frame is a barrier: earlier frames go before it, and
 *     later ones after it
 * Of the frames that may go, the oldest one that is not a continuation goes first. Continuations go
 * in the order of turns.h: first those of the message with the fewest fragments left. If a frame
 * may not pass an older one, the frames that the older one waits for go first. After
 * BW_SCHEDULER_PASSING_BYTES of other frames a continuation goes anyway, so nothing waits forever.
 *
 * Each sender has a class, and the above applies among the frames of one class. Control goes before
 * normal, and normal before bulk, until the class has used up its share of the round. When no class
 * with frames has any share left, the next round begins. So a class that always has frames gets at
 * least 4/9 (control), 2/9 (normal) or 1/9 (bulk) of the bytes, if no frame is larger than a
 * fragment. Continuations wait for all other frames whose class has some share left, including
 * lower classes. When the class of a sender changes, its waiting frames change with it, so they
 * keep their order.
 */

#define BW_SCHEDULER_PASSING_BYTES BW_TURNS_PASSING_BYTES

/* The share of bulk in a round. Normal has twice as much, and control four times. A class may
 * exceed its share by one frame, so the share is at least as large as a fragment. */
#define BW_SCHEDULER_SHARE_BYTES (64 * 1024)

/* How many bytes of one sender may wait in addition to the message that is being sent, and how many
 * of all senders together. The scheduler reports a sender that exceeds the former; its user
 * enforces the latter. */
#define BW_SCHEDULER_SENDER_BYTES (1024 * 1024)
#define BW_SCHEDULER_ALL_BYTES (64 * 1024 * 1024)

/* How many times its limit a sender may have waiting that was found not to be suspended. */
#define BW_SCHEDULER_PATIENCE 8

/* In the order in which they go. A sender to which nobody has given a class is normal. */
typedef enum { BW_CLASS_CONTROL, BW_CLASS_NORMAL, BW_CLASS_BULK, BW_CLASSES } bw_class_t;

typedef struct bw_scheduled bw_scheduled_t;
typedef struct bw_sender bw_sender_t;

/* A frame while it waits, embedded in the record that the user keeps of it. Only `bytes`, `user`
 * and `kind` are for others. */
struct bw_scheduled {
    uint64_t bytes;
    void *user;
    bw_dist_kind_t kind;
    bool renews_cache, is_barrier;
    bw_class_t class;      /* while it waits for no frame of its own sender */
    uint64_t number;       /* of its arrival */
    uint64_t pid;          /* of its sender, as in bw_dist_frame_t; 0: a continuation, or unknown */
    uint64_t fragment;     /* counts down */
    uint64_t message;      /* which of its sender's messages it belongs to */
    bw_sender_t *sender;   /* NULL: its sender has no fragments here */
    bw_scheduled_t *next;  /* of its sender's queue, or of the backlog */
    bw_scheduled_t *ready; /* the next one that waits for no frame of its own sender */
    bw_scheduled_t *renewer;
    bw_scheduled_t *older, *newer; /* list of frames that are not continuations */
};

typedef struct {
    bw_scheduled_t *first, *last;
} bw_scheduled_queue_t;

typedef struct {
    bw_sender_t **buckets;
    uint64_t size, count; /* the size is a power of two, or 0 */
} bw_sender_table_t;

/* The frames of a class that wait only for their turn. */
typedef struct {
    bw_scheduled_queue_t ready; /* not continuations, the oldest first */
    bw_turns_t turns;           /* senders whose next frame is a continuation */
    uint64_t passed;            /* own bytes since the last continuation, while one waits */
    int64_t share;              /* bytes that it may still send in this round */
} bw_class_queue_t;

typedef struct {
    uint64_t frames, bytes;      /* of everything that waits */
    uint64_t continuation_bytes; /* of them, in continuations */
    uint64_t ready_bytes;        /* in other frames, except those that wait for fragments of their
                                    sender: the reason why a port is busy */
    uint64_t held, asked;        /* senders in these states */
} bw_scheduler_counts_t;

/* A sender beyond its limit is held if a busy port would suspend it, but only the VM knows which
 * senders it does not suspend (nosuspend, async_dist). So the scheduler asks first: its user makes
 * the port busy and looks whether the VM suspends the sender. */
typedef enum {
    BW_SENDER_FREE,
    BW_SENDER_ASKED, /* until bw_scheduler_answer, or until the sender's frames are gone */
    BW_SENDER_HELD
} bw_sender_state_t;

typedef enum { BW_ANSWER_NOT_SUSPENDED, BW_ANSWER_SUSPENDED, BW_ANSWER_GONE } bw_answer_t;

typedef struct {
    uint64_t sender_bytes; /* the limit of a sender */
    bool holds_nobody;
    uint64_t arrivals;
    uint64_t admitted;        /* frames that wait, without the backlog */
    uint64_t classed;         /* senders that are not of the class normal */
    bw_scheduled_t *oldest;   /* doubly linked list of the frames */
    bw_scheduled_t *youngest; /* that are not continuations */
    bw_scheduled_queue_t renewers;
    bw_class_queue_t classes[BW_CLASSES];
    bw_scheduled_queue_t backlog; /* a barrier, and everything that came after it */
    bw_sender_t *changed, *last_changed;
    bw_sender_table_t by_pid, by_sequence;
    bw_scheduler_counts_t counts;
} bw_scheduler_t;

/* A sender that has exceeded the limit or has fallen to half of it. `pid` is the term by which the
 * VM knows it, an ErlDrvTermData; `key` is for bw_scheduler_answer. If the sender is to be asked
 * about, `patience` says how many times the limit it has reached, 1 to BW_SCHEDULER_PATIENCE. */
typedef struct {
    uint64_t pid, key, patience;
    bw_sender_state_t state;
} bw_sender_change_t;

void bw_scheduler_init(bw_scheduler_t *scheduler, uint64_t sender_bytes);

/* Takes a frame of `bytes` bytes in the VM's format; iov need hold only its header and control
 * message. Returns false, and does not take the frame, if out of memory. */
bool bw_scheduler_put(bw_scheduler_t *scheduler, bw_scheduled_t *frame, const struct iovec *iov,
                      int count, uint64_t bytes);

/* Returns the pid of a waiting frame's sender, as in bw_dist_frame_t, or 0 if it is not known. */
uint64_t bw_scheduler_pid(const bw_scheduled_t *frame);

/* Returns how many bytes of that sender wait. It looks at no more than the 10,000 oldest frames. */
uint64_t bw_scheduler_waiting(bw_scheduler_t *scheduler, uint64_t pid);

/* Removes and returns the frame to send next, or NULL if there is none. Frames are sent whole. */
bw_scheduled_t *bw_scheduler_take(bw_scheduler_t *scheduler);

/* Returns another sender whose state has changed since it was last reported, or false if there is
 * none. A question stays open until it is answered, even if the sender's frames are gone. */
bool bw_scheduler_next_change(bw_scheduler_t *scheduler, bw_sender_change_t *change);

/* Answers whether the VM suspends a sender that was asked about. If it does, the sender is held as
 * long as it has frames here and exceeds its limit. If not, its limit doubles, and at the highest
 * limit the question is asked again. A sender that is gone sends nothing more and has no limit.
 * Returns true if the sender is now held, which next_change does not report. */
bool bw_scheduler_answer(bw_scheduler_t *scheduler, uint64_t key, bw_answer_t answer);

/* If `holds_nobody`, no sender is held or asked about from now on. Otherwise a sender beyond its
 * limit is again, the next time that one of its frames comes or goes. */
void bw_scheduler_hold_nobody(bw_scheduler_t *scheduler, bool holds_nobody);

/* Gives the sender with that pid, as in bw_dist_frame_t, a class, which also applies to its waiting
 * frames. It keeps the class until it is given the class normal. Returns false, and keeps its old
 * class, if out of memory. */
bool bw_scheduler_set_class(bw_scheduler_t *scheduler, uint64_t pid, bw_class_t class);

/* Frees the scheduler's memory and forgets all classes. Waiting frames belong to the user, who must
 * take them first. */
void bw_scheduler_end(bw_scheduler_t *scheduler);

#endif
