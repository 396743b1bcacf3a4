/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FRAME_SCHEDULER_H
#define BW_FRAME_SCHEDULER_H

#include "dist_frame.h"
#include "turns.h"

/*
 * The order in which frames of the distribution protocol go to a peer, so that a small signal need
 * not wait for the fragments of large ones. It decides and nothing else: no I/O, no locks, no calls
 * of the VM. Every frame goes through it, also when nothing waits.
 *
 * Two frames keep their order if one of these holds; all others may change it:
 *   - they have the same sender
 *   - neither is a continuation (131,70), and one of them carries a new atom cache entry
 *   - the sender of one cannot be read. Such a frame is a barrier: what came before it goes before
 *     it, and what came after it goes after it
 * Of the frames that may go, the oldest that is no continuation goes first, and continuations go as
 * turns.h says: those of the message with the fewest fragments left. If a frame may not pass an
 * older one, what the older one waits for goes first. After BW_SCHEDULER_PASSING_BYTES a
 * continuation goes all the same, so nothing waits for ever.
 *
 * A sender has a class, and the above holds among frames of one class. Control goes before normal
 * and normal before bulk, until the class has used up its share of the round. When no class with
 * frames has a share left, the next round begins. So a class that always has frames gets at least
 * 4/9 (control), 2/9 (normal) or 1/9 (bulk) of the bytes, if no frame is larger than a fragment.
 * Continuations wait for all other frames whose class has a share left, also of a lower class.
 * When the class of a sender changes, its waiting frames change with it, so they keep their order.
 */

#define BW_SCHEDULER_PASSING_BYTES BW_TURNS_PASSING_BYTES

/* The share of bulk in a round. Normal has twice as much, control four times. A class may exceed
 * its share by a frame, so the share is not less than a fragment. */
#define BW_SCHEDULER_SHARE_BYTES (64 * 1024)

/* Bytes of one sender that may wait beyond the message under way, and of all senders together. The
 * scheduler reports the former; its user keeps the latter. */
#define BW_SCHEDULER_SENDER_BYTES (1024 * 1024)
#define BW_SCHEDULER_ALL_BYTES (64 * 1024 * 1024)

/* So many times the limit a sender may have waiting that is found not to be suspended. */
#define BW_SCHEDULER_PATIENCE 8

/* In the order in which they go. Normal is the class of a sender that nobody has given one. */
typedef enum { BW_CLASS_CONTROL, BW_CLASS_NORMAL, BW_CLASS_BULK, BW_CLASSES } bw_class_t;

typedef struct bw_scheduled bw_scheduled_t;
typedef struct bw_sender bw_sender_t;

/* A frame while it waits; part of what its user keeps of it. Only `bytes`, `user` and `kind` are
 * for others. */
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
    bw_scheduled_t *older, *newer; /* among frames that are no continuations */
};

typedef struct {
    bw_scheduled_t *first, *last;
} bw_scheduled_queue_t;

typedef struct {
    bw_sender_t **buckets;
    uint64_t size, count; /* the size is a power of two, or 0 */
} bw_sender_table_t;

/* What waits of a class for nothing but its turn. */
typedef struct {
    bw_scheduled_queue_t ready; /* no continuations, the oldest first */
    bw_turns_t turns;           /* senders whose next frame is a continuation */
    uint64_t passed;            /* bytes of its own since the last continuation, while one waits */
    int64_t share;              /* bytes that it may still send in this round */
} bw_class_queue_t;

typedef struct {
    uint64_t frames, bytes;      /* all that wait */
    uint64_t continuation_bytes; /* of them, in continuations */
    uint64_t ready_bytes;        /* in other frames, without those that wait for fragments of their
                                    sender: what a busy port is for */
    uint64_t held, asked;        /* senders in these states */
} bw_scheduler_counts_t;

/* A sender beyond its limit is held if it is one that a busy port suspends; the VM alone knows who
 * is not (nosuspend, async_dist). So the scheduler asks first: its user makes the port busy and
 * looks whether the VM suspends the sender. */
typedef enum {
    BW_SENDER_FREE,
    BW_SENDER_ASKED, /* bw_scheduler_answer ends it, or the sender's frames go */
    BW_SENDER_HELD
} bw_sender_state_t;

typedef enum { BW_ANSWER_NOT_SUSPENDED, BW_ANSWER_SUSPENDED, BW_ANSWER_GONE } bw_answer_t;

typedef struct {
    uint64_t sender_bytes; /* the limit of a sender */
    bool holds_nobody;
    uint64_t arrivals;
    uint64_t admitted;        /* frames that wait, without the backlog */
    uint64_t classed;         /* senders that are not of the class normal */
    bw_scheduled_t *oldest;   /* of those that are no continuations, */
    bw_scheduled_t *youngest; /* doubly linked */
    bw_scheduled_queue_t renewers;
    bw_class_queue_t classes[BW_CLASSES];
    bw_scheduled_queue_t backlog; /* a barrier, and all that came after it */
    bw_sender_t *changed, *last_changed;
    bw_sender_table_t by_pid, by_sequence;
    bw_scheduler_counts_t counts;
} bw_scheduler_t;

/* A sender that has gone beyond the limit, or has fallen to half of it. `pid` is the word by which
 * the VM knows it, an ErlDrvTermData; `key` is for bw_scheduler_answer. `patience`, if it is asked:
 * how many times the limit it has reached, 1 to BW_SCHEDULER_PATIENCE. */
typedef struct {
    uint64_t pid, key, patience;
    bw_sender_state_t state;
} bw_sender_change_t;

void bw_scheduler_init(bw_scheduler_t *scheduler, uint64_t sender_bytes);

/* A frame of `bytes` bytes, as the VM gives it; iov need hold no more than its header and control
 * message. False: no memory, the frame is not taken. */
bool bw_scheduler_put(bw_scheduler_t *scheduler, bw_scheduled_t *frame, const struct iovec *iov,
                      int count, uint64_t bytes);

/* The pid of a waiting frame's sender, as in bw_dist_frame_t. 0: it is not known. */
uint64_t bw_scheduler_pid(const bw_scheduled_t *frame);

/* Bytes of the sender with that pid that wait. Looks at the 10,000 oldest frames at most. */
uint64_t bw_scheduler_waiting(bw_scheduler_t *scheduler, uint64_t pid);

/* The frame to send next, which waits no more; NULL: there is none. Frames go whole. */
bw_scheduled_t *bw_scheduler_take(bw_scheduler_t *scheduler);

/* Another sender whose state is not the one that was told last. False: there is none. A question
 * stays open until it is answered, whatever has become of the sender's frames. */
bool bw_scheduler_next_change(bw_scheduler_t *scheduler, bw_sender_change_t *change);

/* Whether the VM suspends a sender that was asked about. If so it is held as long as it has frames
 * here and is beyond the limit; else its limit doubles, and at the highest it is asked about again.
 * One that is gone sends nothing more and has no limit. True: it is held, which next_change does
 * not report. */
bool bw_scheduler_answer(bw_scheduler_t *scheduler, uint64_t key, bw_answer_t answer);

/* From now on nobody is held or asked about, or whoever is beyond the limit when a frame of it
 * comes or goes. */
void bw_scheduler_hold_nobody(bw_scheduler_t *scheduler, bool holds_nobody);

/* The sender with that pid, as in bw_dist_frame_t, is of that class from now on, with all of its
 * frames that wait, until it is given the class normal. False: no memory, its class stays. */
bool bw_scheduler_set_class(bw_scheduler_t *scheduler, uint64_t pid, bw_class_t class);

/* Frees what it holds, and forgets all classes. Frames that still wait are the user's: take them
 * before. */
void bw_scheduler_end(bw_scheduler_t *scheduler);

#endif
