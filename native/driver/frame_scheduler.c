/* SPDX-License-Identifier: Apache-2.0 */
#include "frame_scheduler.h"

#include <stdlib.h>

#define WAITING_LOOKS 10000

/* A sending process that has an incomplete sequence of fragments, frames that wait behind
 * fragments, or a class other than normal. */
struct bw_sender {
    bw_turn_t turn; /* must be first; in use while the first frame in the queue is a continuation */
    uint64_t pid, sequence;
    bw_class_t class;
    bool is_open;                  /* more fragments of the sequence will follow */
    bw_sender_state_t state, told; /* the current state, and the one last reported to the user */
    bool is_suspendable;           /* the VM has suspended it on a busy port */
    bool is_changed;               /* in the list of changes */
    uint64_t limit;                /* bytes in addition to the message that is being sent */
    uint64_t frames, bytes;        /* waiting, including the backlog */
    uint64_t messages;             /* number of messages begun so far */
    bw_scheduled_queue_t queue;    /* its frames in order, except those in the backlog */
    uint64_t message_under_way;    /* the message of the first frame in the queue */
    uint64_t bytes_under_way;      /* the bytes of that message in the queue */
    bw_sender_t *next_by_pid, *next_by_sequence;
    bw_sender_t *next_changed;
};

/* ---- senders, by the pid of control messages and by the sequence id of fragments ---- */

static uint64_t *key_of(bw_scheduler_t *self, const bw_sender_table_t *table, bw_sender_t *sender)
{
    return table == &self->by_pid ? &sender->pid : &sender->sequence;
}

static bw_sender_t **link_of(bw_scheduler_t *self, const bw_sender_table_t *table,
                             bw_sender_t *sender)
{
    return table == &self->by_pid ? &sender->next_by_pid : &sender->next_by_sequence;
}

static bw_sender_t **bucket_of(const bw_sender_table_t *table, uint64_t key)
{
    return &table->buckets[(key * 0x9E3779B97F4A7C15ull >> 32) & (table->size - 1)];
}

/* Returns where the sender with this key is linked, or the end of its bucket. */
static bw_sender_t **place_of(bw_scheduler_t *self, bw_sender_table_t *table, uint64_t key)
{
    bw_sender_t **place = bucket_of(table, key);

    while (*place && *key_of(self, table, *place) != key)
        place = link_of(self, table, *place);
    return place;
}

static bw_sender_t *find(bw_scheduler_t *self, bw_sender_table_t *table, uint64_t key)
{
    return table->size > 0 ? *place_of(self, table, key) : NULL;
}

/* If out of memory, the number of buckets does not change. */
static void grow(bw_scheduler_t *self, bw_sender_table_t *table)
{
    bw_sender_table_t larger = {.size = table->size > 0 ? 2 * table->size : 16,
                                .count = table->count};

    larger.buckets = calloc(larger.size, sizeof *larger.buckets);
    if (!larger.buckets)
        return;
    for (uint64_t i = 0; i < table->size; i++)
        for (bw_sender_t *sender = table->buckets[i], *next; sender; sender = next) {
            bw_sender_t **bucket = bucket_of(&larger, *key_of(self, table, sender));

            next = *link_of(self, table, sender);
            *link_of(self, table, sender) = *bucket;
            *bucket = sender;
        }
    free(table->buckets);
    *table = larger;
}

static bool insert(bw_scheduler_t *self, bw_sender_table_t *table, bw_sender_t *sender)
{
    bw_sender_t **place;

    if (table->count >= table->size)
        grow(self, table);
    if (table->size == 0)
        return false;
    place = place_of(self, table, *key_of(self, table, sender));
    *link_of(self, table, sender) = NULL;
    *place = sender;
    table->count++;
    return true;
}

static void take_out(bw_scheduler_t *self, bw_sender_table_t *table, bw_sender_t *sender)
{
    bw_sender_t **place = place_of(self, table, *key_of(self, table, sender));

    *place = *link_of(self, table, sender);
    table->count--;
}

static bw_sender_t *find_or_make(bw_scheduler_t *self, uint64_t pid)
{
    bw_sender_t *sender = find(self, &self->by_pid, pid);

    if (sender)
        return sender;
    sender = calloc(1, sizeof *sender);
    if (!sender)
        return NULL;
    sender->pid = pid;
    sender->class = BW_CLASS_NORMAL;
    sender->limit = self->sender_bytes;
    if (!insert(self, &self->by_pid, sender)) {
        free(sender);
        return NULL;
    }
    return sender;
}

static bool is_idle(const bw_sender_t *sender)
{
    return !sender->is_open && sender->frames == 0 && !sender->is_changed;
}

/* A sender with a class other than normal is kept for the class, but its other state is reset. */
static void free_if_idle(bw_scheduler_t *self, bw_sender_t *sender)
{
    if (!is_idle(sender))
        return;
    if (sender->class != BW_CLASS_NORMAL) {
        sender->limit = self->sender_bytes;
        sender->is_suspendable = false;
        sender->told = BW_SENDER_FREE;
        return;
    }
    take_out(self, &self->by_pid, sender);
    free(sender);
}

static void close_sequence(bw_scheduler_t *self, bw_sender_t *sender)
{
    if (!sender || !sender->is_open)
        return;
    take_out(self, &self->by_sequence, sender);
    sender->is_open = false;
}

static bool open_sequence(bw_scheduler_t *self, bw_sender_t *sender, uint64_t sequence)
{
    close_sequence(self, sender);
    sender->sequence = sequence;
    sender->is_open = insert(self, &self->by_sequence, sender);
    return sender->is_open;
}

/* ---- limits ---- */

static void count_state(bw_scheduler_t *self, bw_sender_state_t state, uint64_t by)
{
    self->counts.held += state == BW_SENDER_HELD ? by : 0;
    self->counts.asked += state == BW_SENDER_ASKED ? by : 0;
}

static void note_change(bw_scheduler_t *self, bw_sender_t *sender)
{
    if (sender->is_changed)
        return;
    sender->is_changed = true;
    sender->next_changed = NULL;
    *(self->changed ? &self->last_changed->next_changed : &self->changed) = sender;
    self->last_changed = sender;
}

static void set_state(bw_scheduler_t *self, bw_sender_t *sender, bw_sender_state_t state)
{
    if (state == sender->state)
        return;
    count_state(self, sender->state, -1ull);
    count_state(self, state, 1);
    sender->state = state;
    note_change(self, sender);
}

static void judge(bw_scheduler_t *self, bw_sender_t *sender)
{
    uint64_t beyond = sender->bytes - sender->bytes_under_way;
    uint64_t most = sender->state == BW_SENDER_FREE ? sender->limit : sender->limit / 2;

    if (self->holds_nobody || beyond <= most)
        set_state(self, sender, BW_SENDER_FREE);
    else
        set_state(self, sender, sender->is_suspendable ? BW_SENDER_HELD : BW_SENDER_ASKED);
}

bool bw_scheduler_next_change(bw_scheduler_t *self, bw_sender_change_t *change)
{
    while (self->changed) {
        bw_sender_t *sender = self->changed;
        bool is_open = sender->told == BW_SENDER_ASKED && sender->state == BW_SENDER_FREE;
        bool is_news = sender->state != sender->told && !is_open;

        self->changed = sender->next_changed;
        sender->is_changed = false;
        if (is_news)
            sender->told = sender->state;
        *change = (bw_sender_change_t){.pid = sender->sequence,
                                       .key = sender->pid,
                                       .patience = sender->limit / self->sender_bytes,
                                       .state = sender->state};
        free_if_idle(self, sender);
        if (is_news)
            return true;
    }
    return false;
}

bool bw_scheduler_answer(bw_scheduler_t *self, uint64_t key, bw_answer_t answer)
{
    bw_sender_t *sender = find(self, &self->by_pid, key);

    if (!sender || sender->told != BW_SENDER_ASKED)
        return sender && sender->state == BW_SENDER_HELD;
    sender->told = BW_SENDER_FREE; /* so that it is reported if it is asked about again */
    note_change(self, sender);
    if (answer == BW_ANSWER_SUSPENDED) {
        sender->is_suspendable = true;
        sender->limit = self->sender_bytes;
    } else if (answer == BW_ANSWER_GONE) {
        sender->limit = UINT64_MAX;
        set_state(self, sender, BW_SENDER_FREE);
    } else if (sender->limit < BW_SCHEDULER_PATIENCE * self->sender_bytes) {
        sender->limit *= 2;
        set_state(self, sender, BW_SENDER_FREE);
    }
    judge(self, sender);
    if (sender->state == BW_SENDER_HELD)
        sender->told = BW_SENDER_HELD;
    return sender->state == BW_SENDER_HELD;
}

void bw_scheduler_hold_nobody(bw_scheduler_t *self, bool holds_nobody)
{
    if (holds_nobody == self->holds_nobody)
        return;
    self->holds_nobody = holds_nobody;
    for (uint64_t i = 0; holds_nobody && i < self->by_pid.size; i++)
        for (bw_sender_t *sender = self->by_pid.buckets[i]; sender; sender = sender->next_by_pid)
            judge(self, sender);
}

/* ---- queues ---- */

static void append(bw_scheduled_queue_t *queue, bw_scheduled_t *frame)
{
    frame->next = NULL;
    *(queue->first ? &queue->last->next : &queue->first) = frame;
    queue->last = frame;
}

static bw_scheduled_t *pop(bw_scheduled_queue_t *queue)
{
    bw_scheduled_t *frame = queue->first;

    queue->first = frame->next;
    return frame;
}

/* Inserts the frame after all older ones, starting the search at `place`. */
static void make_ready_behind(bw_scheduled_queue_t *ready, bw_scheduled_t **place,
                              bw_scheduled_t *frame)
{
    while (*place && (*place)->number < frame->number)
        place = &(*place)->ready;
    frame->ready = *place;
    *place = frame;
    if (!frame->ready)
        ready->last = frame;
}

/* Called when a frame that is not a continuation no longer waits for other frames of its sender. */
static void make_ready(bw_scheduler_t *self, bw_scheduled_t *frame)
{
    bw_scheduled_queue_t *ready = &self->classes[frame->class].ready;
    bool is_youngest = ready->first && ready->last->number < frame->number;

    self->counts.ready_bytes += frame->bytes;
    make_ready_behind(ready, is_youngest ? &ready->last->ready : &ready->first, frame);
}

static bw_turns_t *turns_of(bw_scheduler_t *self, const bw_sender_t *sender)
{
    return &self->classes[sender->class].turns;
}

static void come_first(bw_scheduler_t *self, bw_scheduled_t *frame)
{
    bw_sender_t *sender = frame->sender;

    if (frame->kind == BW_DIST_REST) {
        sender->turn.left = frame->fragment;
        sender->turn.number = frame->number;
        bw_turns_put(turns_of(self, sender), &sender->turn);
    } else {
        frame->class = sender->class;
        make_ready(self, frame);
    }
}

/* Called when the frame no longer waits for a barrier. */
static void admit(bw_scheduler_t *self, bw_scheduled_t *frame)
{
    bw_sender_t *sender = frame->sender;

    self->admitted++;
    if (frame->kind != BW_DIST_REST) {
        frame->newer = NULL;
        frame->older = self->oldest ? self->youngest : NULL;
        *(self->oldest ? &self->youngest->newer : &self->oldest) = frame;
        self->youngest = frame;
    }
    if (frame->renews_cache) {
        frame->renewer = NULL;
        *(self->renewers.first ? &self->renewers.last->renewer : &self->renewers.first) = frame;
        self->renewers.last = frame;
    }
    if (!sender) {
        make_ready(self, frame);
        return;
    }
    append(&sender->queue, frame);
    if (sender->queue.first == frame) {
        sender->message_under_way = frame->message;
        come_first(self, frame);
    }
    if (sender->message_under_way == frame->message)
        sender->bytes_under_way += frame->bytes;
    judge(self, sender);
}

/* ---- adding frames ---- */

static void count_in(bw_scheduler_t *self, bw_scheduled_t *frame)
{
    bw_sender_t *sender = frame->sender;

    self->counts.frames++;
    self->counts.bytes += frame->bytes;
    if (frame->kind == BW_DIST_REST)
        self->counts.continuation_bytes += frame->bytes;
    if (!sender)
        return;
    frame->message = sender->messages;
    sender->frames++;
    sender->bytes += frame->bytes;
}

/* Finds the sender of the frame, or creates it if one is needed. Returns false if out of memory. */
static bool find_sender(bw_scheduler_t *self, bw_scheduled_t *frame, const bw_dist_frame_t *read)
{
    bw_sender_t *sender = NULL, *other;

    switch (read->kind) {
    case BW_DIST_TICK:
        return true;
    case BW_DIST_WHOLE:
        /* Without fragments here, a sender needs no queue: ready frames stay in order. */
        sender = read->has_sender ? find(self, &self->by_pid, read->sender) : NULL;
        frame->is_barrier = !read->has_sender;
        if (sender && is_idle(sender)) {
            frame->class = sender->class;
            sender = NULL;
        }
        /* A signal that is sent between two fragments counts as part of their message. */
        if (sender && !sender->is_open)
            sender->messages++;
        break;
    case BW_DIST_FIRST:
        other = find(self, &self->by_sequence, read->sequence);
        close_sequence(self, other);
        frame->is_barrier = !read->has_sender;
        if (read->has_sender) {
            sender = find_or_make(self, read->sender);
            if (!sender)
                return false;
            if (!open_sequence(self, sender, read->sequence)) {
                free_if_idle(self, sender);
                return false;
            }
            sender->messages++;
        }
        if (other && other != sender)
            free_if_idle(self, other);
        break;
    case BW_DIST_REST:
        sender = find(self, &self->by_sequence, read->sequence);
        frame->is_barrier = !sender;
        break;
    case BW_DIST_UNKNOWN:
        frame->is_barrier = true;
    }
    if (read->fragment == 1)
        close_sequence(self, sender);
    frame->sender = sender;
    return true;
}

bool bw_scheduler_put(bw_scheduler_t *self, bw_scheduled_t *frame, const struct iovec *iov,
                      int count, uint64_t bytes)
{
    bw_dist_frame_t read = bw_dist_frame_read(iov, count);

    *frame = (bw_scheduled_t){.bytes = bytes,
                              .user = frame->user,
                              .kind = read.kind,
                              .renews_cache = read.renews_cache,
                              .class = BW_CLASS_NORMAL,
                              .number = self->arrivals + 1,
                              .pid = read.sender,
                              .fragment = read.fragment};
    if (!find_sender(self, frame, &read))
        return false;
    self->arrivals++;
    count_in(self, frame);
    if (!frame->is_barrier && !self->backlog.first) {
        admit(self, frame);
        return true;
    }
    append(&self->backlog, frame);
    if (frame->kind != BW_DIST_REST)
        self->counts.ready_bytes += frame->bytes;
    if (frame->sender)
        judge(self, frame->sender);
    return true;
}

/* ---- taking frames ---- */

static void count_out(bw_scheduler_t *self, bw_scheduled_t *frame)
{
    bw_sender_t *sender = frame->sender;

    self->counts.frames--;
    self->counts.bytes -= frame->bytes;
    if (frame->kind == BW_DIST_REST)
        self->counts.continuation_bytes -= frame->bytes;
    if (!sender)
        return;
    sender->frames--;
    sender->bytes -= frame->bytes;
    sender->bytes_under_way -= frame->bytes;
}

static void begin_message(bw_sender_t *sender)
{
    const bw_scheduled_t *frame = sender->queue.first;

    if (!frame || frame->message == sender->message_under_way)
        return;
    sender->message_under_way = frame->message;
    for (; frame && frame->message == sender->message_under_way; frame = frame->next)
        sender->bytes_under_way += frame->bytes;
}

/* Removes the first frame of a sender's queue, which is being sent. */
static void leave_sender(bw_scheduler_t *self, bw_scheduled_t *frame)
{
    bw_sender_t *sender = frame->sender;

    frame->sender = NULL;
    pop(&sender->queue);
    begin_message(sender);
    if (sender->queue.first)
        come_first(self, sender->queue.first);
    judge(self, sender);
    free_if_idle(self, sender);
}

static bw_scheduled_t *take_continuation(bw_scheduler_t *self, bw_sender_t *sender)
{
    bw_scheduled_t *frame = sender->queue.first;

    bw_turns_remove(turns_of(self, sender), &sender->turn, frame->bytes);
    count_out(self, frame);
    leave_sender(self, frame);
    return frame;
}

/* Takes this frame, which is the oldest ready one in its class. */
static bw_scheduled_t *take_ready(bw_scheduler_t *self, bw_scheduled_t *frame)
{
    self->classes[frame->class].ready.first = frame->ready;
    self->counts.ready_bytes -= frame->bytes;
    *(frame->older ? &frame->older->newer : &self->oldest) = frame->newer;
    *(frame->newer ? &frame->newer->older : &self->youngest) = frame->older;
    if (frame->renews_cache)
        self->renewers.first = frame->renewer;
    count_out(self, frame);
    if (frame->sender)
        leave_sender(self, frame);
    return frame;
}

/* Returns the older frame that this one must not pass because of the atom cache, or NULL. */
static bw_scheduled_t *obstacle(const bw_scheduler_t *self, const bw_scheduled_t *frame)
{
    bw_scheduled_t *oldest = frame->renews_cache ? self->oldest : self->renewers.first;

    return oldest && oldest->number < frame->number ? oldest : NULL;
}

/* Takes a frame that must be sent before the ready one: the oldest frame that is not a
 * continuation, or a continuation that precedes that frame in its sender's queue. */
static bw_scheduled_t *take_obstacle(bw_scheduler_t *self, bw_scheduled_t *frame)
{
    bw_scheduled_t *older;

    while ((older = obstacle(self, frame)))
        frame = older;
    return frame->sender && frame->sender->queue.first != frame
               ? take_continuation(self, frame->sender)
               : take_ready(self, frame);
}

static bool is_continuation_due(const bw_class_queue_t *class)
{
    return bw_turns_wait(&class->turns) && class->passed >= BW_SCHEDULER_PASSING_BYTES;
}

static bw_class_queue_t *next_class(bw_scheduler_t *self)
{
    static const int64_t shares[BW_CLASSES] = {
        4 * BW_SCHEDULER_SHARE_BYTES, 2 * BW_SCHEDULER_SHARE_BYTES, BW_SCHEDULER_SHARE_BYTES};
    bw_class_queue_t *class, *end = self->classes + BW_CLASSES;

    for (;;) {
        for (class = self->classes; class < end; class ++)
            if (class->share > 0 && (class->ready.first || is_continuation_due(class)))
                return class;
        for (class = self->classes; class < end; class ++)
            if (class->share > 0 && bw_turns_wait(&class->turns))
                return class;
        for (int i = 0; i < BW_CLASSES; i++)
            self->classes[i].share = shares[i];
    }
}

static bw_scheduled_t *take_admitted(bw_scheduler_t *self)
{
    bw_class_queue_t *class =
        self->classed > 0 ? next_class(self) : &self->classes[BW_CLASS_NORMAL];
    bw_scheduled_t *frame = class->ready.first;
    bool is_passed = bw_turns_wait(&class->turns);

    self->admitted--;
    if (!frame || is_continuation_due(class)) {
        class->passed = 0;
        frame = take_continuation(self, (bw_sender_t *)bw_turns_next(&class->turns));
    } else {
        frame = obstacle(self, frame) ? take_obstacle(self, frame) : take_ready(self, frame);
        class->passed = is_passed ? class->passed + frame->bytes : 0;
    }
    class->share -= (int64_t)frame->bytes;
    return frame;
}

/* Admits the frames that came after a barrier that has now been sent, up to the next barrier. */
static void admit_backlog(bw_scheduler_t *self)
{
    while (self->backlog.first && !self->backlog.first->is_barrier) {
        bw_scheduled_t *frame = pop(&self->backlog);

        if (frame->kind != BW_DIST_REST)
            self->counts.ready_bytes -= frame->bytes;
        admit(self, frame);
    }
}

uint64_t bw_scheduler_pid(const bw_scheduled_t *frame)
{
    return frame->pid == 0 && frame->sender ? frame->sender->pid : frame->pid;
}

uint64_t bw_scheduler_waiting(bw_scheduler_t *self, uint64_t pid)
{
    const bw_sender_t *sender = find(self, &self->by_pid, pid);
    uint64_t bytes = sender ? sender->bytes : 0;
    const bw_scheduled_t *frame = self->oldest;

    for (int looks = 0; frame && looks < WAITING_LOOKS; looks++, frame = frame->newer)
        if (!frame->sender && frame->pid == pid)
            bytes += frame->bytes;
    return bytes;
}

bw_scheduled_t *bw_scheduler_take(bw_scheduler_t *self)
{
    bw_scheduled_t *barrier;

    if (self->admitted > 0)
        return take_admitted(self);
    if (!self->backlog.first)
        return NULL;
    barrier = pop(&self->backlog);
    if (barrier->kind != BW_DIST_REST)
        self->counts.ready_bytes -= barrier->bytes;
    count_out(self, barrier);
    admit_backlog(self);
    return barrier;
}

/* ---- classes ---- */

static void move_ready(bw_scheduler_t *self, uint64_t pid, bw_class_t from, bw_class_t to)
{
    bw_scheduled_queue_t *source = &self->classes[from].ready, *target = &self->classes[to].ready;
    bw_scheduled_t **kept = &source->first, **moved = &target->first, *frame, *next;

    source->last = NULL;
    for (frame = source->first; frame; frame = next) {
        next = frame->ready;
        if (frame->pid == pid) {
            frame->class = to;
            make_ready_behind(target, moved, frame);
            moved = &frame->ready;
        } else {
            *kept = source->last = frame;
            kept = &frame->ready;
        }
    }
    *kept = NULL;
}

static void move(bw_scheduler_t *self, bw_sender_t *sender, bw_class_t to)
{
    bw_class_t from = sender->class;
    bool has_turn = sender->queue.first && sender->queue.first->kind == BW_DIST_REST;

    if (has_turn)
        bw_turns_remove(turns_of(self, sender), &sender->turn, 0);
    sender->class = to;
    if (has_turn)
        bw_turns_put(turns_of(self, sender), &sender->turn);
    move_ready(self, sender->pid, from, to);
    for (bw_scheduled_t *frame = self->backlog.first; frame; frame = frame->next)
        if (frame->pid == sender->pid)
            frame->class = to;
    self->classed += (to != BW_CLASS_NORMAL) - (uint64_t)(from != BW_CLASS_NORMAL);
}

bool bw_scheduler_set_class(bw_scheduler_t *self, uint64_t pid, bw_class_t class)
{
    bw_sender_t *sender =
        class == BW_CLASS_NORMAL ? find(self, &self->by_pid, pid) : find_or_make(self, pid);

    if (!sender)
        return class == BW_CLASS_NORMAL;
    if (sender->class != class)
        move(self, sender, class);
    free_if_idle(self, sender);
    return true;
}

/* ---- initialization and cleanup ---- */

void bw_scheduler_init(bw_scheduler_t *self, uint64_t sender_bytes)
{
    *self = (bw_scheduler_t){.sender_bytes = sender_bytes};
}

void bw_scheduler_end(bw_scheduler_t *self)
{
    for (uint64_t i = 0; i < self->by_pid.size; i++)
        while (self->by_pid.buckets[i]) {
            bw_sender_t *sender = self->by_pid.buckets[i];

            self->by_pid.buckets[i] = sender->next_by_pid;
            free(sender);
        }
    free(self->by_pid.buckets);
    free(self->by_sequence.buckets);
    bw_scheduler_init(self, self->sender_bytes);
}
