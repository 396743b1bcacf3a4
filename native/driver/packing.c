/* SPDX-License-Identifier: Apache-2.0 */
#include "packing.h"

#include <stdlib.h>
#include <time.h>

#include "../link/frame.h"

static uint64_t ns_of(clockid_t clock)
{
    struct timespec now = {0};

    (void)clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Returns the CPU time of this thread, which excludes the time that it waits for a CPU. */
static uint64_t used_ns(void)
{
    return ns_of(CLOCK_THREAD_CPUTIME_ID);
}

void bw_packing_begin(bw_packing_t *packing, const bw_codec_t *codec, bool is_always,
                      unsigned percent)
{
    packing->codec = codec;
    packing->is_always = packing->is_on = is_always;
    packing->worth.percent = percent;
}

void bw_packing_path_is(bw_packing_t *packing, uint64_t rtt_us)
{
    if (packing->codec && rtt_us > 0)
        packing->is_on = !packing->has_failed && (packing->is_always || rtt_us >= BW_FAR_US);
}

bool bw_packing_wants(bw_packing_t *packing, bool is_bulk, uint64_t bytes)
{
    return packing->is_on && bytes <= BW_UNIT_MAX_BYTES &&
           bw_worth_try(&packing->worth, is_bulk, bytes, ns_of(CLOCK_MONOTONIC));
}

/* The packer's history has bytes that the peer never received, so no more units can be sent. */
static void give_up(bw_packing_t *packing)
{
    (void)bw_packing_rests(packing);
    packing->has_failed = true;
    packing->is_on = false;
}

static bool pack_all(bw_packing_t *packing, const bw_pending_list_t *frames, uint8_t *to,
                     size_t room, size_t *made_p)
{
    const bw_codec_t *codec = packing->codec;

    *made_p = 0;
    for (const bw_pending_t *frame = frames->first; frame; frame = frame->next) {
        size_t made;

        if (!codec->pack(packing->packer, frame->iov, frame->count, !frame->next, to + *made_p,
                         room - *made_p, &made))
            return false;
        *made_p += made;
    }
    return true;
}

/* Cuts off the unused end of the binary. */
static bw_pending_t *pending_of(ErlDrvBinary *unit, size_t size)
{
    ErlDrvBinary *shorter = driver_realloc_binary(unit, (ErlDrvSizeT)size);
    bw_pending_t *frame = shorter ? bw_pending_part(shorter, 0, size) : NULL;

    driver_free_binary(shorter ? shorter : unit);
    return frame;
}

static bw_pending_t *packed(bw_packing_t *packing, const bw_pending_list_t *frames,
                            ErlDrvBinary *unit)
{
    uint8_t *to = (uint8_t *)unit->orig_bytes;
    size_t room = (size_t)unit->orig_size - BW_WORD_BYTES, made;
    bw_pending_t *frame;

    if (!pack_all(packing, frames, to + BW_WORD_BYTES, room, &made)) {
        driver_free_binary(unit);
        return NULL;
    }
    bw_word_put(to, BW_FRAME_UNIT, frames->bytes << 32 | made);
    frame = pending_of(unit, BW_WORD_BYTES + made);
    if (frame)
        frame->is_bulk = frames->bulk > 0;
    return frame;
}

bw_pending_t *bw_packing_pack(bw_packing_t *packing, const bw_pending_list_t *frames)
{
    uint64_t began_ns = used_ns(), spent_ns;
    bw_pending_t *frame;
    ErlDrvBinary *unit;

    if (!packing->packer)
        packing->packer = packing->codec->open_packer();
    if (!packing->packer)
        return NULL;
    unit = driver_alloc_binary((ErlDrvSizeT)(BW_WORD_BYTES + packing->codec->bound(frames->bytes)));
    if (!unit)
        return NULL;
    frame = packed(packing, frames, unit);
    if (!frame) {
        give_up(packing);
        return NULL;
    }
    spent_ns = used_ns() - began_ns;
    packing->out.before += frames->bytes;
    packing->out.after += frame->size;
    packing->out.ns += spent_ns;
    bw_worth_note(&packing->worth, frame->is_bulk, frames->bytes, frame->size, spent_ns);
    return frame;
}

bool bw_packing_rests(bw_packing_t *packing)
{
    if (!packing->packer)
        return false;
    packing->codec->close_packer(packing->packer);
    packing->packer = NULL;
    return true;
}

void bw_packing_forget(bw_packing_t *packing)
{
    if (packing->unpacker)
        packing->codec->close_unpacker(packing->unpacker);
    packing->unpacker = NULL;
    free(packing->unit);
    packing->unit = NULL;
    packing->want = packing->made = packing->at = 0;
}

static bool can_unpack(bw_packing_t *packing)
{
    if (!packing->unpacker)
        packing->unpacker = packing->codec->open_unpacker();
    if (!packing->unit)
        packing->unit = malloc(BW_UNIT_MAX_BYTES + 1);
    return packing->unpacker && packing->unit;
}

bw_unit_state_t bw_packing_hear(bw_packing_t *packing, uint64_t word)
{
    uint64_t before = word >> 32, after = word & UINT32_MAX;

    if (!packing->codec || before > BW_UNIT_MAX_BYTES || (before == 0) != (after == 0) ||
        after > packing->codec->bound(before))
        return BW_UNIT_CORRUPT;
    if (before == 0) {
        bw_packing_forget(packing);
        return BW_UNIT_OK;
    }
    if (!can_unpack(packing))
        return BW_UNIT_NO_MEMORY;
    packing->want = (size_t)before;
    packing->left = (size_t)after;
    packing->made = packing->at = 0;
    packing->in.before += before;
    packing->in.after += BW_WORD_BYTES + after;
    return BW_UNIT_OK;
}

/* The buffer has one byte more than announced, so that a unit that is too long is detected. */
bw_unit_state_t bw_packing_unpack(bw_packing_t *packing, const uint8_t *from, size_t len)
{
    uint64_t began_ns = used_ns();
    size_t made = 0;
    bool is_sound =
        packing->codec->unpack(packing->unpacker, from, len, packing->unit + packing->made,
                               packing->want + 1 - packing->made, &made);

    packing->in.ns += used_ns() - began_ns;
    packing->made += made;
    packing->left -= len;
    return is_sound && packing->made <= packing->want &&
                   (packing->left > 0 || packing->made == packing->want)
               ? BW_UNIT_OK
               : BW_UNIT_CORRUPT;
}
