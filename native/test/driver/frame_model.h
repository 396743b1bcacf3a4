/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FRAME_MODEL_H
#define BW_FRAME_MODEL_H

/*
 * A model of the traffic through the frame scheduler, for frame_scheduler_test and scheduler_fuzz:
 * processes on one node send every kind of signal to processes on another, in one frame or in
 * fragments, with an atom cache like that of ERTS. The caller supplies numbers, each of which
 * selects one step. Three oracles check the result, and none of them knows the scheduler's queues:
 * - a frame is never taken while an older one that it must not overtake is queued, according to
 *   the rules in frame_scheduler.h, applied to the intended senders and atoms, not to those that
 *   were parsed
 * - the peer's atom cache, fed in the order in which frames were taken, gives each frame the
 *   intended atoms
 * - the peer completes the signals between two processes in the same order as without a scheduler
 * Processes may change their class at any time. Further oracles check the rules for classes and
 * turns by counting what was taken while another frame could have been taken instead: its class
 * gets its share, within a class small frames and short messages go first, and no frame is
 * overtaken forever. A violation terminates the program through MODEL_FAIL, which reports it.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../driver/frame_scheduler.h"
#include "../../link/bytes.h"

#define MODEL_PROCESSES 6
#define MODEL_RECEIVERS 3
#define MODEL_ATOMS 24
#define MODEL_SLOTS 2048
#define MODEL_WAITING 96 /* once this many frames are queued, one is taken */
#define MODEL_LIMIT (256 * 1024)
#define MODEL_LARGEST (60 + 64 * 1024) /* size of the largest frame in bytes */

#define MODEL_FAIL(...)                                                                            \
    do {                                                                                           \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fputc('\n', stderr);                                                                       \
        abort();                                                                                   \
    } while (0)

/* Every control message of OTP 23 to 28 and one that does not exist. F: the sender's pid, f: its
 * registered name, T: the receiver's pid, N: a name, C: the cookie, G: a pid of another local
 * process, R: a reference, I, J, B: integers of one, four and eight bytes, M: {Mod, Fun, Arity}, K:
 * a term. Without F the sender is unknown. */
static const struct {
    uint8_t operation;
    const char *layout;
    bool has_payload;
} model_signals[] = {
    {1, "FT", false},    {2, "CT", true},     {3, "FTK", false},    {4, "FT", false},
    {5, "", false},      {6, "FCN", true},    {7, "GT", false},     {8, "FTK", false},
    {12, "CTK", true},   {13, "FTKK", false}, {16, "FCNK", true},   {18, "FTKK", false},
    {19, "FTR", false},  {19, "FNR", false},  {20, "FTR", false},   {20, "FNR", false},
    {21, "FTRK", false}, {21, "fTRK", false}, {22, "FT", true},     {23, "FTK", true},
    {24, "FT", true},    {25, "FTK", true},   {26, "FT", true},     {27, "FTK", true},
    {28, "FTR", true},   {28, "fTR", true},   {29, "RFGMK", true},  {30, "RFGMKK", true},
    {31, "RTIF", false}, {31, "RTIN", false}, {32, "RTIFK", false}, {33, "FR", true},
    {34, "FRK", true},   {35, "BFT", false},  {36, "JFT", false},   {37, "IFT", true},
    {37, "IFNK", true},  {38, "FT", true},
};
#define MODEL_SIGNALS (sizeof model_signals / sizeof *model_signals)
#define MODEL_SEND 18 /* index of SEND_SENDER in the table */

static inline bool model_names_sender(size_t kind)
{
    return strchr(model_signals[kind].layout, 'F') && model_signals[kind].operation != 38;
}

/* ---- frames as ERTS writes them ---- */

typedef struct {
    uint8_t bytes[8192];
    size_t len;
    uint8_t atoms[256]; /* the atoms to which the header refers */
    unsigned atom_count;
    bool is_long, is_legacy; /* atoms of more than 255 bytes; tags written by old nodes */
} model_writer_t;

static inline void model_put(model_writer_t *to, uint64_t value, int bytes)
{
    bw_put(to->bytes + to->len, value, bytes);
    to->len += (size_t)bytes;
}

/* Some atoms share a slot, and some atoms are long. */
static inline unsigned model_slot(unsigned atom)
{
    return atom % 5 * 449 % MODEL_SLOTS;
}

static inline size_t model_atom_len(unsigned atom)
{
    return atom % 8 == 7 ? 256 + atom : 3;
}

static inline void model_put_text(model_writer_t *to, unsigned atom)
{
    memset(to->bytes + to->len, 'a' + (int)atom, model_atom_len(atom));
    to->len += model_atom_len(atom);
}

/* Writes a cache reference if the header contains the atom, otherwise the atom itself. */
static inline void model_put_atom(model_writer_t *to, unsigned atom)
{
    for (unsigned i = 0; i < to->atom_count; i++)
        if (to->atoms[i] == atom) {
            model_put(to, 82, 1);
            model_put(to, i, 1);
            return;
        }
    if (model_atom_len(atom) > 255) {
        model_put(to, to->is_legacy ? 100 : 118, 1);
        model_put(to, model_atom_len(atom), 2);
    } else {
        model_put(to, to->is_legacy ? 115 : 119, 1);
        model_put(to, model_atom_len(atom), 1);
    }
    model_put_text(to, atom);
}

/* Processes differ only in their serial, or only in their number. Receivers reuse the same pids. */
static inline void model_put_pid(model_writer_t *to, unsigned node, unsigned process)
{
    model_put(to, to->is_legacy ? 103 : 88, 1);
    model_put_atom(to, node);
    model_put(to, 100 + process / 2, 4);
    model_put(to, process % 2, 4);
    model_put(to, 0x5EED5EED, to->is_legacy ? 1 : 4);
}

static inline uint64_t model_word(unsigned process)
{
    return ((uint64_t)(process % 2) << 15 | (100 + process / 2)) << 4 | 3;
}

static inline void model_put_control(model_writer_t *to, size_t kind, unsigned sender,
                                     unsigned receiver)
{
    const char *layout = model_signals[kind].layout;

    model_put(to, 104, 1);
    model_put(to, 1 + strlen(layout), 1);
    model_put(to, 97, 1);
    model_put(to, model_signals[kind].operation, 1);
    for (; *layout; layout++)
        switch (*layout) {
        case 'F':
            model_put_pid(to, 0, sender);
            break;
        case 'G':
            model_put_pid(to, 0, (sender + 1) % MODEL_PROCESSES);
            break;
        case 'T':
            model_put_pid(to, 7, receiver);
            break;
        case 'f':
        case 'N':
            model_put_atom(to, 2);
            break;
        case 'C':
            model_put(to, 119, 1);
            model_put(to, 0, 1);
            break;
        case 'R':
            model_put(to, to->is_legacy ? 114 : 90, 1);
            model_put(to, 3, 2);
            model_put_atom(to, 0);
            for (int i = 0; i < (to->is_legacy ? 13 : 16); i++)
                model_put(to, 104, 1);
            break;
        case 'I':
            model_put(to, 97, 1);
            model_put(to, 104, 1);
            break;
        case 'J':
            model_put(to, 98, 1);
            model_put(to, 0x68026800, 4);
            break;
        case 'B':
            model_put(to, 110, 1);
            model_put(to, 8, 1);
            model_put(to, 0, 1);
            model_put(to, 0x6868686868686868, 8);
            break;
        case 'M':
            model_put(to, 104, 1);
            model_put(to, 3, 1);
            model_put_atom(to, 3);
            model_put_atom(to, 4);
            model_put(to, 97, 1);
            model_put(to, 1, 1);
            break;
        default:
            model_put(to, 106, 1);
        }
}

/* The atom cache of one side, from which headers are built. Each slot contains the number of an
 * atom plus 1. */
typedef struct {
    uint8_t slots[MODEL_SLOTS];
} model_cache_t;

/* Returns true if one of the writer's atoms becomes a new cache entry. */
static inline bool model_put_references(model_writer_t *to, model_cache_t *cache)
{
    bool has_new = false, is_new[256];
    uint8_t flags[129] = {0};

    to->is_long = false;
    for (unsigned i = 0; i < to->atom_count; i++) {
        unsigned atom = to->atoms[i], slot = model_slot(atom);

        to->is_long |= model_atom_len(atom) > 255;
        is_new[i] = cache->slots[slot] != atom + 1;
        has_new |= is_new[i];
        cache->slots[slot] = (uint8_t)(atom + 1);
        flags[i / 2] |= (uint8_t)((is_new[i] ? 8 | slot >> 8 : slot >> 8) << (i % 2 * 4));
    }
    model_put(to, to->atom_count, 1);
    if (to->atom_count == 0)
        return false;
    flags[to->atom_count / 2] |= (uint8_t)(to->is_long << (to->atom_count % 2 * 4));
    for (unsigned i = 0; i <= to->atom_count / 2; i++)
        model_put(to, flags[i], 1);
    for (unsigned i = 0; i < to->atom_count; i++) {
        model_put(to, model_slot(to->atoms[i]) & 255, 1);
        if (is_new[i]) {
            model_put(to, model_atom_len(to->atoms[i]), to->is_long ? 2 : 1);
            model_put_text(to, to->atoms[i]);
        }
    }
    return has_new;
}

/* Adds the atom, unless another atom in the header uses the same slot. */
static inline void model_use_atom(model_writer_t *to, unsigned atom)
{
    for (unsigned i = 0; i < to->atom_count; i++)
        if (model_slot(to->atoms[i]) == model_slot(atom))
            return;
    to->atoms[to->atom_count++] = (uint8_t)atom;
}

/* ---- the model ---- */

typedef struct {
    unsigned sender, receiver;
    uint64_t place;       /* position among this pair's signals if they are completed in order */
    unsigned frames_left; /* number of frames not yet taken */
} model_signal_t;

typedef struct {
    bw_scheduled_t scheduled; /* first member, so that its address is the frame's */
    model_signal_t *signal;   /* NULL for a tick, or for something that no node writes */
    uint8_t *bytes;           /* allocated with exactly this size */
    size_t len;
    uint64_t number, fragment;
    bool is_continuation, is_barrier, renews_cache, is_last;
    uint8_t atoms[256];
    unsigned atom_count;
} model_frame_t;

/* A signal with fragments that have not been queued yet. */
typedef struct {
    model_signal_t *signal;
    unsigned fragments_left;
    bool is_nameless;
} model_sequence_t;

typedef struct {
    bw_scheduler_t scheduler;
    model_cache_t out, in;
    model_sequence_t sequences[MODEL_PROCESSES];
    uint64_t completed[MODEL_PROCESSES][MODEL_RECEIVERS]; /* in the order queued */
    uint64_t arrived[MODEL_PROCESSES][MODEL_RECEIVERS];   /* in the order taken */
    bool is_held[MODEL_PROCESSES];
    model_frame_t *waiting[MODEL_WAITING + 1]; /* oldest first */
    unsigned count;
    uint64_t frames, overtaken, holds, shared, shortened; /* counts so far */
    bw_class_t classes[MODEL_PROCESSES];
    /* Bytes taken since the scheduler last preferred a continuation of this class to smaller frames
     * of the class. */
    uint64_t passed[BW_CLASSES];
    /* [A][B]: bytes of class B that were taken while a frame of class A could have been taken. */
    uint64_t while_could[BW_CLASSES][BW_CLASSES];
    /* Bytes of other processes' continuations of the same class that were taken while this process
     * had a continuation that could have been taken. */
    uint64_t turn_passed[MODEL_PROCESSES];
} model_t;

static inline uint64_t model_share(unsigned class)
{
    return (uint64_t)BW_SCHEDULER_SHARE_BYTES << (BW_CLASS_BULK - class);
}

static inline bw_class_t model_class(const model_t *model, const model_frame_t *frame)
{
    return frame->signal ? model->classes[frame->signal->sender] : BW_CLASS_NORMAL;
}

static inline bool model_must_keep_order(const model_frame_t *older, const model_frame_t *newer)
{
    if (older->is_barrier || newer->is_barrier)
        return true;
    if (older->signal && newer->signal && older->signal->sender == newer->signal->sender)
        return true;
    return !older->is_continuation && !newer->is_continuation &&
           (older->renews_cache || newer->renews_cache);
}

static inline bool model_may_go(const model_t *model, unsigned at)
{
    for (unsigned i = 0; i < at; i++)
        if (model_must_keep_order(model->waiting[i], model->waiting[at]))
            return false;
    return true;
}

static inline bool model_same_sender(const model_frame_t *one, const model_frame_t *other)
{
    return one->signal && other->signal && one->signal->sender == other->signal->sender;
}

/* Returns whether only the atom cache holds the frame back. The scheduler may then take older
 * frames out of turn, because they must be sent before this one. */
static inline bool model_is_obstructed(const model_t *model, unsigned at)
{
    bool is_obstructed = false;

    for (unsigned i = 0; i < at; i++) {
        const model_frame_t *older = model->waiting[i], *frame = model->waiting[at];

        if (older->is_barrier || frame->is_barrier || model_same_sender(older, frame))
            return false;
        is_obstructed |= model_must_keep_order(older, frame);
    }
    return is_obstructed;
}

/* The frames that the scheduler could have taken when it took one. */
typedef struct {
    bool is_obstructed;
    bool classes[BW_CLASSES], small[BW_CLASSES];
    model_frame_t *turns[MODEL_PROCESSES]; /* each process's continuation */
} model_choice_t;

static inline model_choice_t model_choice(const model_t *model)
{
    model_choice_t choice = {0};

    for (unsigned i = 0; i < model->count; i++) {
        model_frame_t *frame = model->waiting[i];
        bw_class_t class = model_class(model, frame);

        choice.is_obstructed |= model_is_obstructed(model, i);
        if (frame->is_barrier || !model_may_go(model, i))
            continue;
        choice.classes[class] = true;
        if (frame->is_continuation)
            choice.turns[frame->signal->sender] = frame;
        else
            choice.small[class] = true;
    }
    return choice;
}

/* A class that always has a frame that could be taken uses up its share of each round. Each other
 * class gets at most its share plus one frame per round; one extra round is allowed at either
 * end. */
static inline void model_check_shares(model_t *model, const model_choice_t *choice,
                                      bw_class_t taken, uint64_t bytes)
{
    for (unsigned class = 0; class < BW_CLASSES; class ++) {
        uint64_t *while_could = model->while_could[class];

        if (!choice->classes[class] || choice->is_obstructed) {
            memset(while_could, 0, sizeof model->while_could[class]);
            continue;
        }
        while_could[taken] += bytes;
        for (unsigned other = 0; other < BW_CLASSES; other++)
            if (other != class &&
                while_could[other] > (model_share(other) + MODEL_LARGEST) *
                                         (2 + while_could[class] / model_share(class)))
                MODEL_FAIL("class %u has got %llu bytes beside %llu of class %u", other,
                           (unsigned long long)while_could[other],
                           (unsigned long long)while_could[class], class);
        model->shared += taken != class;
    }
}

static inline void model_check_turn(model_t *model, const model_choice_t *choice,
                                    const model_frame_t *taken, uint64_t bytes)
{
    unsigned process = taken->signal->sender;
    bw_class_t class = model_class(model, taken);

    for (unsigned other = 0; other < MODEL_PROCESSES; other++) {
        const model_frame_t *frame = choice->turns[other];

        if (!frame || other == process || model->classes[other] != class)
            continue;
        model->shortened += frame->number < taken->number;
        if (!choice->is_obstructed && frame->fragment < taken->fragment &&
            (model->turn_passed[process] < BW_TURNS_PASSING_BYTES ||
             model->turn_passed[process] < model->turn_passed[other]))
            MODEL_FAIL("process %u goes with %llu fragments before %u with %llu", process,
                       (unsigned long long)taken->fragment, other,
                       (unsigned long long)frame->fragment);
        model->turn_passed[other] += bytes;
        if (!choice->is_obstructed &&
            model->turn_passed[other] >
                MODEL_PROCESSES * (BW_TURNS_PASSING_BYTES + 2 * MODEL_LARGEST))
            MODEL_FAIL("process %u is passed for ever", other);
    }
    model->turn_passed[process] = 0;
}

static inline void model_check_choice(model_t *model, const model_frame_t *taken, uint64_t bytes)
{
    model_choice_t choice = model_choice(model);
    bw_class_t class = model_class(model, taken);

    if (taken->is_continuation && !taken->is_barrier && choice.small[class] &&
        !choice.is_obstructed && model->passed[class] < BW_SCHEDULER_PASSING_BYTES)
        MODEL_FAIL("continuation %llu goes before others", (unsigned long long)taken->number);
    for (unsigned i = 0; i < BW_CLASSES; i++)
        model->passed[i] += bytes;
    if (taken->is_continuation && choice.small[class] && !choice.is_obstructed)
        model->passed[class] = 0;
    model_check_shares(model, &choice, class, bytes);
    for (unsigned process = 0; process < MODEL_PROCESSES; process++)
        if (!choice.turns[process])
            model->turn_passed[process] = 0;
    if (taken->is_continuation && !taken->is_barrier)
        model_check_turn(model, &choice, taken, bytes);
}

static inline void model_change_class(model_t *model, unsigned process, bw_class_t class)
{
    if (!bw_scheduler_set_class(&model->scheduler,
                                (uint64_t)(process % 2) << 32 | (100 + process / 2), class))
        MODEL_FAIL("no memory");
    if (class == model->classes[process])
        return;
    model->classes[process] = class;
    model->turn_passed[process] = 0;
    memset(model->while_could, 0, sizeof model->while_could);
}

static inline void model_check_counts(const model_t *model)
{
    const bw_scheduler_counts_t *counts = &model->scheduler.counts;
    uint64_t bytes = 0, continuation_bytes = 0;

    for (unsigned i = 0; i < model->count; i++) {
        bytes += model->waiting[i]->scheduled.bytes;
        if (model->waiting[i]->is_continuation)
            continuation_bytes += model->waiting[i]->scheduled.bytes;
    }
    if (counts->frames != model->count || counts->bytes != bytes ||
        counts->continuation_bytes != continuation_bytes ||
        counts->ready_bytes > bytes - continuation_bytes)
        MODEL_FAIL("counts: %u frames of %llu bytes wait", model->count, (unsigned long long)bytes);
}

static inline void model_read_changes(model_t *model)
{
    bw_sender_change_t change;

    while (bw_scheduler_next_change(&model->scheduler, &change)) {
        unsigned process = 0;
        uint64_t bytes = 0;
        bool is_held = change.state == BW_SENDER_HELD;

        while (process < MODEL_PROCESSES && model_word(process) != change.pid)
            process++;
        if (process == MODEL_PROCESSES ||
            (change.state != BW_SENDER_FREE && model->is_held[process]))
            MODEL_FAIL("%#llx: state %d", (unsigned long long)change.pid, change.state);
        for (unsigned i = 0; i < model->count; i++)
            if (!model->waiting[i]->is_barrier && model->waiting[i]->signal &&
                model->waiting[i]->signal->sender == process)
                bytes += model->waiting[i]->scheduled.bytes;
        if (change.state != BW_SENDER_FREE && bytes <= MODEL_LIMIT / 2)
            MODEL_FAIL("process %u is held for %llu bytes", process, (unsigned long long)bytes);
        /* In this model the VM suspends only the processes with even numbers. */
        if (change.state == BW_SENDER_ASKED)
            is_held = bw_scheduler_answer(&model->scheduler, change.key,
                                          process % 2 == 0 ? BW_ANSWER_SUSPENDED
                                                           : BW_ANSWER_NOT_SUSPENDED);
        if (is_held && process % 2 != 0)
            MODEL_FAIL("process %u is held, and never suspended", process);
        model->is_held[process] = is_held;
        model->holds += is_held;
        if (change.patience == BW_SCHEDULER_PATIENCE && change.state == BW_SENDER_ASKED)
            break; /* the scheduler asks about it again immediately, until its frames are gone */
    }
}

/* The peer reads the frame's header in the same way as ERTS. */
static inline void model_read_header(model_t *model, const model_frame_t *frame)
{
    const uint8_t *at = frame->bytes, *flags;
    unsigned count;
    bool is_long;

    if (frame->len < 3 || at[0] != 131 || (at[1] != 68 && at[1] != 69))
        return;
    at += at[1] == 69 ? 18 : 2;
    count = *at++;
    if (count != frame->atom_count)
        MODEL_FAIL("a header refers to %u atoms, not %u", count, frame->atom_count);
    flags = at;
    at += count > 0 ? count / 2 + 1 : 0;
    is_long = count > 0 && flags[count / 2] >> (count % 2 * 4) & 1;
    for (unsigned i = 0; i < count; i++) {
        unsigned flag = flags[i / 2] >> (i % 2 * 4) & 15, slot = (flag & 7) << 8 | *at++;

        if (flag & 8) {
            uint64_t len;

            at = bw_get(at, &len, is_long ? 2 : 1);
            model->in.slots[slot] = (uint8_t)(*at - 'a' + 1);
            at += len;
        }
        if (model->in.slots[slot] != frame->atoms[i] + 1)
            MODEL_FAIL("frame %llu: atom %u is %d for the peer", (unsigned long long)frame->number,
                       frame->atoms[i], model->in.slots[slot] - 1);
    }
}

static inline void model_free(model_frame_t *frame)
{
    if (frame->signal && --frame->signal->frames_left == 0)
        free(frame->signal);
    free(frame->bytes);
    free(frame);
}

static inline bool model_take(model_t *model)
{
    bw_scheduled_t *taken = bw_scheduler_take(&model->scheduler);
    model_frame_t *frame = (model_frame_t *)taken;
    unsigned at = 0;

    if (!taken) {
        if (model->count > 0)
            MODEL_FAIL("%u frames wait for nothing", model->count);
        return false;
    }
    while (at < model->count && model->waiting[at] != frame)
        at++;
    if (at == model->count)
        MODEL_FAIL("a frame is taken that does not wait");
    if (!model_may_go(model, at))
        MODEL_FAIL("frame %llu passes one that it must not", (unsigned long long)frame->number);
    for (unsigned i = 0; i < at && !frame->is_continuation; i++)
        if (!model->waiting[i]->is_continuation && model_may_go(model, i) &&
            model_class(model, model->waiting[i]) == model_class(model, frame))
            MODEL_FAIL("frame %llu is taken, %llu is older", (unsigned long long)frame->number,
                       (unsigned long long)model->waiting[i]->number);
    model_check_choice(model, frame, taken->bytes);
    model->overtaken += at;
    memmove(model->waiting + at, model->waiting + at + 1,
            (model->count - at - 1) * sizeof *model->waiting);
    model->count--;
    model_read_header(model, frame);
    if (frame->is_last) {
        model_signal_t *signal = frame->signal;

        if (signal->place != model->arrived[signal->sender][signal->receiver]++)
            MODEL_FAIL("signals of process %u change their order", signal->sender);
    }
    model_free(frame);
    model_check_counts(model);
    return true;
}

/* Queues the frame as an I/O vector with two empty pieces, and with the frame cut in two at `cut`.
 */
static inline void model_give(model_t *model, model_frame_t *frame, uint64_t bytes, size_t cut)
{
    struct iovec iov[4] = {{0}};

    cut = frame->len > 0 ? cut % frame->len : 0;
    iov[1] = (struct iovec){frame->bytes, cut};
    iov[3] = (struct iovec){frame->bytes + cut, frame->len - cut};
    if (model->count == MODEL_WAITING)
        model_take(model);
    frame->number = model->frames++;
    model->waiting[model->count++] = frame;
    if (frame->is_last)
        frame->signal->place = model->completed[frame->signal->sender][frame->signal->receiver]++;
    if (!bw_scheduler_put(&model->scheduler, &frame->scheduled, iov, 4, bytes))
        MODEL_FAIL("no memory");
    model_check_counts(model);
}

static inline model_frame_t *model_frame(const uint8_t *bytes, size_t len)
{
    model_frame_t *frame = calloc(1, sizeof *frame);

    frame->bytes = malloc(len > 0 ? len : 1);
    frame->len = len;
    if (len > 0)
        memcpy(frame->bytes, bytes, len);
    return frame;
}

/* Queues the next fragment of an unfinished signal. */
static inline void model_continue(model_t *model, unsigned process, uint64_t bytes)
{
    model_sequence_t *sequence = &model->sequences[process];
    model_writer_t writer;
    model_frame_t *frame;

    writer.len = 0;
    model_put(&writer, 131, 1);
    model_put(&writer, 70, 1);
    model_put(&writer, model_word(process), 8);
    model_put(&writer, sequence->fragments_left, 8);
    frame = model_frame(writer.bytes, writer.len);
    frame->signal = sequence->signal;
    frame->fragment = sequence->fragments_left;
    frame->is_continuation = true;
    frame->is_barrier = sequence->is_nameless;
    frame->is_last = --sequence->fragments_left == 0;
    model_give(model, frame, bytes, bytes);
}

/* Queues a signal, or its first fragment. */
static inline void model_send(model_t *model, unsigned process, unsigned receiver, size_t kind,
                              unsigned fragments, uint64_t atoms, uint64_t bytes)
{
    static const unsigned counts[] = {0, 1, 2, 3, 4, 5, 2, 3};
    model_signal_t *signal = calloc(1, sizeof *signal);
    model_writer_t writer;
    model_frame_t *frame;
    bool renews_cache;

    writer.len = writer.atom_count = 0;
    writer.is_legacy = atoms >> 60 & 1;
    for (unsigned i = 0; i < counts[atoms & 7]; i++)
        model_use_atom(&writer, i == 0 ? 0 : (unsigned)(atoms >> (3 + 8 * i)) % MODEL_ATOMS);
    *signal = (model_signal_t){.sender = process, .receiver = receiver};
    signal->frames_left = fragments > 0 ? fragments : 1;
    model_put(&writer, 131, 1);
    model_put(&writer, fragments > 0 ? 69 : 68, 1);
    if (fragments > 0) {
        model_put(&writer, model_word(process), 8);
        model_put(&writer, fragments, 8);
    }
    renews_cache = model_put_references(&writer, &model->out);
    model_put_control(&writer, kind, process, receiver);
    frame = model_frame(writer.bytes, writer.len);
    frame->signal = signal;
    frame->renews_cache = renews_cache;
    frame->is_barrier = !model_names_sender(kind);
    frame->is_last = fragments < 2;
    frame->atom_count = writer.atom_count;
    memcpy(frame->atoms, writer.atoms, writer.atom_count);
    if (fragments > 1)
        model->sequences[process] = (model_sequence_t){signal, fragments - 1, frame->is_barrier};
    model_give(model, frame, bytes, atoms >> 7);
}

/* Queues a frame that the protocol does not allow, or does not allow yet. */
static inline void model_stray(model_t *model, const uint8_t *bytes, size_t len)
{
    model_frame_t *frame = model_frame(bytes, len);

    frame->is_barrier = len > 0;
    model_give(model, frame, len, len / 2);
}

static inline void model_begin(model_t *model)
{
    *model = (model_t){0};
    bw_scheduler_init(&model->scheduler, MODEL_LIMIT);
    for (unsigned process = 0; process < MODEL_PROCESSES; process++)
        model->classes[process] = BW_CLASS_NORMAL;
}

/* Performs one step of the model, chosen by the numbers. */
static inline void model_step(model_t *model, uint64_t what, uint64_t atoms)
{
    unsigned process = (unsigned)(what >> 8) % MODEL_PROCESSES;
    unsigned receiver = (unsigned)(what >> 16) % MODEL_RECEIVERS;
    uint64_t bytes = what >> 44 & 1 ? 60 + (what >> 24) % 1000 : 60 + (what >> 24) % (64 * 1024);
    size_t kind = (what >> 45) % MODEL_SIGNALS;
    unsigned fragments = 1 + (unsigned)(what >> 51) % 12;
    static const uint8_t strange[] = {131, 71, 112, 0};

    /* Most signals name their sender, because otherwise nearly every frame would be a barrier. */
    if (!model_names_sender(kind) && (what >> 60) % 8 != 0)
        kind = MODEL_SEND;
    switch (what % 16) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
        model_send(model, process, receiver, kind, 0, atoms, bytes);
        return;
    case 5:
    case 6:
    case 7:
    case 8:
    case 9:
    case 10:
        if (model->sequences[process].fragments_left > 0)
            model_continue(model, process, bytes);
        else
            model_send(model, process, receiver,
                       model_signals[kind].has_payload ? kind : MODEL_SEND, fragments, atoms,
                       bytes);
        return;
    case 11:
        if ((what >> 4) % 16 == 0)
            model_stray(model, strange + (what >> 52) % 3, (what >> 54) % 3);
        if ((what >> 4) % 8 == 1)
            model_change_class(model, process, (bw_class_t)((what >> 52) % BW_CLASSES));
        model_read_changes(model);
        return;
    default:
        model_take(model);
    }
}

/* Completes unfinished signals, takes everything, and checks that nothing is left over. */
static inline void model_end(model_t *model)
{
    for (unsigned process = 0; process < MODEL_PROCESSES; process++)
        while (model->sequences[process].fragments_left > 0)
            model_continue(model, process, 100);
    while (model_take(model))
        ;
    model_read_changes(model);
    for (unsigned process = 0; process < MODEL_PROCESSES; process++) {
        if (model->is_held[process])
            MODEL_FAIL("process %u stays suspended", process);
        model_change_class(model, process, BW_CLASS_NORMAL);
    }
    if (model->scheduler.by_pid.count != 0 || model->scheduler.classed != 0 ||
        model->scheduler.counts.held != 0 || model->scheduler.counts.asked != 0 ||
        model->scheduler.counts.ready_bytes != 0)
        MODEL_FAIL("something is left");
    bw_scheduler_end(&model->scheduler);
}

#endif
