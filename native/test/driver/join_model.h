/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_JOIN_MODEL_H
#define BW_JOIN_MODEL_H

/*
 * A model of a peer that sends signals in fragments, and of the VM that receives them, for
 * join_test and join_fuzz. One VM receives the frames unchanged; another receives them through the
 * pump, which joins them. A modelled VM has an atom cache and completes signals as ERTS does. After
 * each frame, both VMs must have completed the same signals, with the same atoms and bytes, or have
 * rejected the same frame.
 */
#include "driver_shim.h"
#include "frame_model.h"
#include "../rings.h"

#include "../../driver/pump.h"
#include "../../link/frame.h"

#define JOIN_SENDERS 24 /* more than the pump joins at once */
#define JOIN_PAYLOAD_MAX 70000
#define JOIN_RING BW_RING_MIN_BYTES

/* ---- the VM ---- */

typedef struct {
    uint64_t sequence, left, sum;
} vm_signal_t;

typedef struct {
    uint64_t texts[MODEL_SLOTS]; /* hashes of the atoms in the cache */
    vm_signal_t begun[64];
    unsigned count;
    uint64_t completed, sum; /* number of signals, and a hash over their atoms and bytes in order */
    uint64_t whole;          /* number of signals that arrived in one frame */
    uint64_t frames;
    bool is_dead; /* it has closed the connection */
} vm_t;

static uint64_t vm_sum(uint64_t sum, const uint8_t *at, uint64_t len)
{
    for (uint64_t i = 0; i < len; i++)
        sum = (sum ^ at[i]) * 0x100000001B3ull;
    return sum;
}

static void vm_complete(vm_t *vm, uint64_t sum)
{
    vm->completed++;
    vm->sum = vm->sum * 31 + sum;
}

static vm_signal_t *vm_find(vm_t *vm, uint64_t sequence)
{
    for (unsigned i = 0; i < vm->count; i++)
        if (vm->begun[i].sequence == sequence)
            return &vm->begun[i];
    return NULL;
}

/* Returns the offset at which the header ends, or 0 if the header is truncated. */
static uint64_t vm_read_header(vm_t *vm, const uint8_t *at, uint64_t len, uint64_t *sum_p)
{
    uint64_t next, count = len > 0 ? at[0] : 256;
    bool is_long;

    if (count == 0)
        return 1;
    next = 2 + count / 2;
    if (next > len)
        return 0;
    is_long = at[1 + count / 2] >> (count % 2 * 4) & 1;
    for (uint64_t i = 0; i < count; i++) {
        unsigned flag = at[1 + i / 2] >> (i % 2 * 4) & 15, slot;
        uint64_t text;

        if (next >= len)
            return 0;
        slot = (flag & 7) << 8 | at[next++];
        if (flag & 8) {
            if (len - next < 1u + is_long)
                return 0;
            text = bw_number(at + next, 1 + is_long);
            next += 1u + is_long;
            if (text > len - next)
                return 0;
            vm->texts[slot] = vm_sum(1, at + next, text);
            next += text;
        }
        *sum_p = vm_sum(*sum_p, (const uint8_t *)&vm->texts[slot], sizeof *vm->texts);
    }
    return next;
}

/* Returns false if a real VM would close the connection. */
static bool vm_take_rest(vm_t *vm, const uint8_t *at, uint64_t len)
{
    vm_signal_t *signal = len >= BW_FRAGMENT_HEAD_BYTES ? vm_find(vm, bw_number(at + 2, 8)) : NULL;

    if (!signal || signal->left != bw_number(at + 10, 8))
        return false;
    signal->sum = vm_sum(signal->sum, at + BW_FRAGMENT_HEAD_BYTES, len - BW_FRAGMENT_HEAD_BYTES);
    if (--signal->left > 0)
        return true;
    vm_complete(vm, signal->sum);
    *signal = vm->begun[--vm->count];
    return true;
}

static bool vm_take_header(vm_t *vm, const uint8_t *at, uint64_t len)
{
    uint64_t from = at[1] == 69 ? BW_FRAGMENT_HEAD_BYTES : 2, header, sum = 7;
    vm_signal_t signal = {0};

    if (from >= len)
        return false;
    header = vm_read_header(vm, at + from, len - from, &sum);
    if (header == 0)
        return false;
    sum = vm_sum(sum, at + from + header, len - from - header);
    if (at[1] == 69)
        signal = (vm_signal_t){bw_number(at + 2, 8), bw_number(at + 10, 8) - 1, sum};
    if (signal.sequence == 0 || signal.left == 0) {
        vm->whole += signal.sequence == 0;
        vm_complete(vm, sum);
        return true;
    }
    if (vm_find(vm, signal.sequence) || vm->count == sizeof vm->begun / sizeof *vm->begun)
        return false;
    vm->begun[vm->count++] = signal;
    return true;
}

static void vm_take(vm_t *vm, const uint8_t *at, uint64_t len)
{
    if (vm->is_dead)
        return;
    vm->frames++;
    if (len < 2 || at[0] != 131 || at[1] < 68 || at[1] > 70)
        vm->is_dead = true;
    else
        vm->is_dead = !(at[1] == 70 ? vm_take_rest(vm, at, len) : vm_take_header(vm, at, len));
}

/* ---- the two VMs ---- */

static struct {
    vm_t plain, joined;
    bw_pump_t pump;
    bw_link_t *peer;
    uint64_t many;   /* number of signals sent in several fragments */
    bool is_refused; /* the pump delivers nothing more to the VM */
} join;

static void shim_deliver(const uint8_t *at, uint64_t len)
{
    vm_take(&join.joined, at, len);
}

static void join_begin(void)
{
    bw_link_t *mine = NULL;
    bw_error_t error = {0};

    memset(&join, 0, sizeof join);
    memset(&shim, 0, sizeof shim);
    if (!open_link(JOIN_RING, &join.peer, &mine, &error))
        MODEL_FAIL("no link: %s", error.step);
    pump_start(&join.pump, mine);
}

static void join_end(void)
{
    pump_reset(&join.pump);
    if (shim.binaries != 0)
        MODEL_FAIL("%d binaries are left", shim.binaries);
    join.pump.link->ops->close(join.pump.link, NULL);
    join.peer->ops->close(join.peer, NULL);
}

static void join_check(void)
{
    const vm_t *plain = &join.plain, *joined = &join.joined;

    if (plain->completed != joined->completed || plain->sum != joined->sum ||
        plain->is_dead != joined->is_dead)
        MODEL_FAIL("after frame %llu: %llu signals and %llu, dead %d and %d",
                   (unsigned long long)plain->frames, (unsigned long long)plain->completed,
                   (unsigned long long)joined->completed, plain->is_dead, joined->is_dead);
    if (join.pump.joins.bytes > BW_JOINS_BYTES || join.pump.joins.count > BW_JOINS_MAX)
        MODEL_FAIL("%llu bytes are kept", (unsigned long long)join.pump.joins.bytes);
}

/* Passes the frame's bytes through the ring in pieces of at most `piece` bytes. */
static void join_publish(const uint8_t *bytes, uint64_t len, uint64_t piece)
{
    while (len > 0) {
        bw_span_t span = {0};
        uint64_t some = bw_least(len, piece);

        if (join.peer->ops->reserve(join.peer, some, &span) != BW_OK)
            MODEL_FAIL("no room");
        some = bw_least(some, span.len);
        memcpy(span.base, bytes, some);
        join.peer->ops->commit(join.peer, some);
        if (pump_wake(&join.pump) == WAKE_FAILED) {
            if (!join.pump.reason || strcmp(join.pump.reason, "beamway_signal_corrupt") != 0)
                MODEL_FAIL("the link has failed");
            join.joined.is_dead = join.is_refused = true;
            return;
        }
        bytes += some;
        len -= some;
    }
    while (!join.pump.input_drained && pump_wake(&join.pump) == WAKE_ASLEEP)
        ;
}

/* Sends the frame to both VMs. */
static void join_send(const uint8_t *bytes, uint64_t len, uint64_t piece)
{
    static uint8_t framed[JOIN_PAYLOAD_MAX + 8192 + 64];

    memset(framed, 0, bw_frame_size((uint32_t)len));
    bw_frame_put_header(framed, BW_FRAME_DATA, (uint32_t)len);
    memcpy(framed + BW_FRAME_HEADER_BYTES, bytes, len);
    vm_take(&join.plain, bytes, len);
    join_publish(framed, bw_frame_size((uint32_t)len), piece);
    join_check();
}

/* ---- the peer ---- */

typedef struct {
    uint8_t bytes[JOIN_PAYLOAD_MAX + 8192];
    uint64_t len;
} join_frame_t;

static void join_head(join_frame_t *frame, unsigned header, uint64_t sequence, uint64_t fragment)
{
    frame->bytes[0] = 131;
    frame->bytes[1] = (uint8_t)header;
    frame->len = 2;
    if (header == 68)
        return;
    bw_put(frame->bytes + 2, sequence, 8);
    bw_put(frame->bytes + 10, fragment, 8);
    frame->len = BW_FRAGMENT_HEAD_BYTES;
}

/* Writes references to `count` atoms. Atoms that are not in the cache become new entries. */
static void join_references(join_frame_t *frame, model_cache_t *cache, unsigned first,
                            unsigned count)
{
    model_writer_t writer = {.len = 0};

    for (unsigned i = 0; i < count; i++)
        model_use_atom(&writer, (first + i) % MODEL_ATOMS);
    (void)model_put_references(&writer, cache);
    memcpy(frame->bytes + frame->len, writer.bytes, writer.len);
    frame->len += writer.len;
}

static void join_payload(join_frame_t *frame, uint64_t len, unsigned seed)
{
    for (uint64_t i = 0; i < len; i++)
        frame->bytes[frame->len + i] = (uint8_t)(seed + i * 7 + (i >> 8));
    frame->len += len;
}

/* ---- steps ---- */

typedef struct {
    model_cache_t cache;
    uint64_t left[JOIN_SENDERS]; /* number of remaining fragments of each sender's signal */
    bool is_hostile;             /* occasionally sends an invalid frame */
} join_peer_t;

static uint64_t join_length(uint64_t what)
{
    switch (what % 8) {
    case 0:
        return what / 8 % 8 == 0 ? 60000 + what / 64 % (JOIN_PAYLOAD_MAX - 60000)
                                 : 4600 + what / 64 % 2000;
    case 1:
    case 2:
        return 500 + what / 8 % 30;
    case 3:
        return 4000 + what / 8 % 200;
    default:
        return what / 8 % 64;
    }
}

/* Turns the frame into one that no node would send. */
static void join_spoil(join_frame_t *frame, uint64_t what)
{
    switch (what % 6) {
    case 0:
        frame->len = 1 + what / 6 % frame->len;
        break;
    case 1: /* a different number, possibly far too large */
        bw_put(frame->bytes + 10, what % 4 == 1 ? what : what / 6 % 5, 8);
        break;
    case 2: /* the sequence ID of another sender, or an unused one */
        bw_put(frame->bytes + 2, what / 6 % (JOIN_SENDERS + 2), 8);
        break;
    case 3:
        frame->bytes[1] = (uint8_t)(68 + what / 6 % 4);
        break;
    default:
        frame->bytes[what / 6 % bw_least(frame->len, 40)] ^= (uint8_t)(1 << what / 256 % 8);
    }
}

/* Sends one frame from one sender. */
static void join_step(join_peer_t *peer, uint64_t what, uint64_t more)
{
    static join_frame_t frame;
    unsigned sender = (unsigned)(what % JOIN_SENDERS);
    uint64_t *left = &peer->left[sender], piece = 1 + (what >> 32) % 8 * 3000;

    if (*left > 0) {
        join_head(&frame, 70, sender + 1, (*left)--);
    } else {
        uint64_t fragments = what / JOIN_SENDERS % 3 == 0 ? 2 + what / 256 % 5 : 1;

        join_head(&frame, fragments > 1 ? 69 : 68, sender + 1, fragments);
        join_references(&frame, &peer->cache, (unsigned)(more % MODEL_ATOMS),
                        (unsigned)(more / MODEL_ATOMS % 4));
        *left = fragments - 1;
        join.many += fragments > 1;
    }
    join_payload(&frame, join_length(more >> 16), sender);
    if (peer->is_hostile && (more >> 8) % 32 == 0)
        join_spoil(&frame, more >> 20);
    join_send(frame.bytes, frame.len, piece == 1 ? 1 + frame.len / 40 : piece);
}

#endif
