/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_VM_H
#define BW_TEST_VM_H

/*
 * The part of the VM that a port driver sees, for programs without one: the calls of erl_driver.h
 * that Beamway's driver makes, and what the VM does with its entry. A program is linked with all of
 * this folder and of native/driver.
 *
 * As in ERTS: each callback runs under its port's lock, on any thread that calls vm_run, vm_send,
 * vm_control or vm_close; stop runs within driver_failure_atom, driver_exit and vm_close unless
 * something is queued, then flush runs, and stop when the queue is empty; stop_select is called
 * within driver_select, or later if a thread polls. It ends the process where ERTS would complain
 * or do harm: a descriptor that is polled and closed, one that stop leaves behind, a binary written
 * to after it was given out.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "erl_driver.h"

ErlDrvPort vm_open(void);
/* The VM's port_close. */
void vm_close(ErlDrvPort port);
/* Why it ended; NULL while it lives. */
const char *vm_reason(ErlDrvPort port);
/* Of a port that has ended. */
void vm_forget(ErlDrvPort port);

/* What a control command answers. */
typedef struct {
    int len; /* -1: badarg */
    uint8_t bytes[1024];
} vm_reply_t;
vm_reply_t vm_control(ErlDrvPort port, unsigned command, const void *data, size_t len);

/* One message to the port, in two pieces as the VM has them. */
void vm_send(ErlDrvPort port, const void *bytes, size_t len);
bool vm_is_busy(ErlDrvPort port);

/* Once around: waits at most so long, then calls what is due. False: nothing was. Any thread. */
bool vm_run(int ms);

/* Timers and the driver's clock go on by so much at once. Otherwise timers stand still: a test that
 * is kept from running does not meet them. */
void vm_skip(int ms);

/* The driver's clock stands still as well, but for vm_skip. */
void vm_stop_clock(bool on);

/* The next term that the port has sent to its owner or another process, as text: atoms and numbers
 * as they are, a port as `port`, a binary as its length. NULL: none. */
const char *vm_heard(ErlDrvPort port);
/* The bytes of the last binary in it. */
const uint8_t *vm_heard_bytes(ErlDrvPort port, size_t *len_p);

/* Frames that the port has given to its owner, and their bytes; each goes to vm_deliver as well,
 * if that is set. */
uint64_t vm_frames(ErlDrvPort port);
uint64_t vm_bytes(ErlDrvPort port);
extern void (*vm_deliver)(ErlDrvPort port, const uint8_t *at, uint64_t len);

/* Jobs of async threads wait until this is false again. */
void vm_hold_jobs(bool on);
/* stop_select is always called later. */
extern bool vm_deselects_later;
/* Descriptors are told of no more: ERTS may miss an event. */
extern bool vm_loses_events;
/* So many allocations more, then none: -1 for any number. */
extern int vm_allocations_left;

/* Ends and forgets all ports, whatever they do, and takes back what is set above. False: some live.
 */
bool vm_reset(void);

/* Nothing is left of all ports: memory, binaries, descriptors, timers, jobs. Says what is. */
bool vm_is_clean(void);

#endif
