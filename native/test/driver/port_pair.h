/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_PORT_PAIR_H
#define BW_TEST_PORT_PAIR_H

/*
 * Two complete driver ports in the VM of vm.h, joined over the carrier of the running case. After
 * each case, no memory, binaries, descriptors, mappings or jobs may be left.
 */
#include "../carriers.h"
#include "ports.h"

static ErlDrvPort one, other;
static int descriptors;

static inline void start(void)
{
    descriptors = held_descriptors();
    vm_deselects_later = false;
    check_clean_up = drop_ports;
    one = vm_open();
    other = vm_open();
    CHECK(!vm_reason(one) && !vm_reason(other));
}

static inline void run_until(bool (*holds)(void))
{
    for (int round = 0; round < PORT_ROUNDS && !holds(); round++)
        (void)vm_run(1);
    CHECK(holds());
}

static inline bool both_have_ended(void)
{
    return vm_reason(one) && vm_reason(other);
}

/* Closes both ports in whatever state they are, and checks that nothing was leaked. */
static inline void stop(void)
{
    vm_hold_jobs(false);
    vm_close(one);
    vm_close(other);
    for (int round = 0; round < PORT_ROUNDS && !both_have_ended(); round++)
        if (!vm_run(1))
            vm_skip(100); /* time allowed for a final flush */
    CHECK(both_have_ended());
    vm_forget(one);
    vm_forget(other);
    CHECK(vm_is_clean());
    CHECK_EQ(held_descriptors(), descriptors);
    CHECK_EQ(carrier_mappings(NULL), 0);
}

static inline void start_joined(void)
{
    CHECK_IN(start());
    CHECK(join_ports(one, other));
}

static inline void start_active(uint64_t poll_us)
{
    CHECK_IN(start_joined());
    CHECK(port_activates(one, poll_us) && port_activates(other, poll_us));
}

/* ---- frames ---- */

static inline void send_frame(ErlDrvPort port, size_t len)
{
    static _Thread_local uint8_t bytes[1 << 20];

    for (size_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)(len * 7 + i * 31 + (i >> 8));
    vm_send(port, bytes, len);
}

static uint64_t wanted[2]; /* frames, of one and of other */

static inline bool all_has_come(void)
{
    return vm_frames(one) >= wanted[0] && vm_frames(other) >= wanted[1] && port_queued(one) == 0 &&
           port_queued(other) == 0;
}

/* Sends when the port's queue is empty, because the VM would hold senders back while a frame is
 * queued. */
static inline void send_when_idle(ErlDrvPort port, size_t len)
{
    for (int round = 0; round < PORT_ROUNDS && vm_is_busy(port); round++)
        (void)vm_run(1);
    CHECK(!vm_is_busy(port));
    CHECK_IN(send_frame(port, len));
}

/* Looks for input like an owner that was told to poll. */
static inline void look_until_it_sleeps(ErlDrvPort port)
{
    vm_reply_t reply = {.len = 0};

    for (int looks = 0; looks < 10000000; looks++) {
        CHECK(port_does(port, COMMAND_LOOK, NULL, &reply));
        CHECK_EQ(reply.len, 1);
        if (reply.bytes[0] == 0)
            break;
    }
    CHECK_EQ(reply.bytes[0], 0);
}

#endif
