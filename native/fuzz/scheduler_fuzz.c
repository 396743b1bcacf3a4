/* SPDX-License-Identifier: Apache-2.0
 *
 * Fuzzes the frame scheduler. An input with an even first byte drives the model of
 * test/driver/frame_model.h, 16 bytes per step, and its oracles judge the result. An input with an
 * odd first byte is a list of arbitrary frames, each preceded by its length: no read may go past
 * the end of a frame, every frame must come out once, and a frame with an unknown sender must keep
 * its place.
 */
#include "../test/driver/frame_model.h"
#include "input.h"

#define FRAMES_MAX 64

static void drive_model(reader_t reader)
{
    static model_t model;

    model_begin(&model);
    while (reader.left > 0) {
        uint64_t what = number(&reader, 8);

        model_step(&model, what, number(&reader, 8));
    }
    model_end(&model);
}

static void take_one(bw_scheduler_t *scheduler, uint64_t *taken, bool is_barrier_next)
{
    bw_scheduled_t *frame = bw_scheduler_take(scheduler);

    (*taken)++;
    /* Numbers start at 1, so a barrier's number equals the number of frames taken so far. */
    if (!frame || (frame->is_barrier && frame->number != *taken))
        MODEL_FAIL("a barrier is not at its place");
    if (is_barrier_next && !frame->is_barrier)
        MODEL_FAIL("a barrier is passed");
    free(frame->user);
    free(frame);
}

static void give_frames(reader_t reader)
{
    bw_scheduler_t scheduler;
    bw_sender_change_t change;
    uint64_t given = 0, taken = 0;

    bw_scheduler_init(&scheduler, 100);
    while (reader.left > 0) {
        size_t wanted = next_byte(&reader), len = bw_least(wanted, reader.left), cut = len / 3;
        uint8_t *bytes = malloc(len + 1), *second = malloc(len - cut + 1);
        struct iovec iov[3] = {{bytes, cut}, {NULL, 0}, {second, len - cut}};
        bw_scheduled_t *frame = malloc(sizeof *frame);

        memcpy(bytes, reader.at, cut);
        memcpy(second, reader.at + cut, len - cut);
        reader.at += len;
        reader.left -= len;
        frame->user = bytes;
        if (!bw_scheduler_put(&scheduler, frame, iov, 3, len))
            abort();
        free(second);
        if (++given - taken > FRAMES_MAX || len % 5 == 0)
            take_one(&scheduler, &taken, scheduler.admitted == 0);
        while (len % 7 == 0 && bw_scheduler_next_change(&scheduler, &change))
            if (change.state == BW_SENDER_ASKED && change.patience < BW_SCHEDULER_PATIENCE)
                (void)bw_scheduler_answer(&scheduler, change.key, len % 3);
        if (len > 30 && len % 13 == 0)
            (void)bw_scheduler_set_class(&scheduler, len % 64, (bw_class_t)(len % BW_CLASSES));
        if (len % 11 == 0)
            bw_scheduler_hold_nobody(&scheduler, len % 2 == 0);
    }
    while (taken < given)
        take_one(&scheduler, &taken, scheduler.admitted == 0);
    if (bw_scheduler_take(&scheduler) || scheduler.counts.bytes != 0 || scheduler.counts.held != 0)
        MODEL_FAIL("more comes out than went in");
    bw_scheduler_end(&scheduler);
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
    if (size == 0)
        return 0;
    if (input[0] % 2 == 0)
        drive_model((reader_t){input + 1, size - 1});
    else
        give_frames((reader_t){input + 1, size - 1});
    return 0;
}
