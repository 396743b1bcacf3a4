/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FRAME_SCHEDULER_H
#define BW_FRAME_SCHEDULER_H

#include "dist_frame.h"

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
 * Of the frames that may go, the oldest that is no continuation goes first. Senders of
 * continuations take turns, fragment by fragment. If a frame may not pass an older one, the sender
 * of the older one goes first. After BW_SCHEDULER_PASSING_BYTES the next turn comes all the same,
 * so nothing waits for ever.
 */

#define BW_SCHEDULER_PASSING_BYTES (256 * 1024)

/* Bytes of one sender that may wait beyond the message under way, and of all senders together. The
 * scheduler reports the former; its user keeps the latter. */
#define BW_SCHEDULER_SENDER_BYTES (1024 * 1024)
#define BW_SCHEDULER_ALL_BYTES (64 * 1024 * 1024)

/* So many times the limit a sender may have waiting that is found not to be suspended. */
#define BW_SCHEDULER_PATIENCE 8

typedef struct bw_scheduled bw_scheduled_t;
typedef struct bw_sender bw_sender_t;

/* A frame while it waits; part of what its user keeps of it. Only `bytes`, `user` and `kind` are
 * for others. */
struct bw_scheduled {
    uint64_t bytes;
    void *user;
    bw_dist_kind_t kind;
    bool renews_cache, is_barrier;
    uint64_t number;       /* of its arrival */
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
    uint64_t passed;          /* bytes since the last turn, while a continuation waits */
    bw_scheduled_t *oldest;   /* of those that are no continuations, */
    bw_scheduled_t *youngest; /* doubly linked */
    bw_scheduled_queue_t renewers, ready;
    bw_scheduled_queue_t backlog; /* a barrier, and all that came after it */
    bw_sender_t *turns, *last_turn;
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

/* Frees what it holds. Frames that still wait are the user's: take them before. */
void bw_scheduler_end(bw_scheduler_t *scheduler);

#endif
