/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_VM_H
#define BW_TEST_VM_H

/*
 * The part of the VM that a port driver sees, for programs without a VM: the functions of
 * erl_driver.h that Beamway's driver calls, and the VM's calls to the driver's entry points. A
 * program is linked with everything in this directory and in native/driver.
 *
 * As in ERTS, each callback runs under its port's lock, on any thread that calls vm_run, vm_send,
 * vm_control or vm_close. stop runs within driver_failure_atom, driver_exit and vm_close, unless
 * bytes are queued: in that case flush runs first, and stop once the queue is empty. stop_select is
 * called within driver_select, or later if a thread is polling.
 *
 * This VM aborts the process where ERTS would complain or corrupt data: if a descriptor is closed
 * while it is polled, if stop leaves a descriptor behind, or if a binary is written to after it was
 * delivered.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "erl_driver.h"

ErlDrvPort vm_open(void);
/* Closes the port, like port_close in the VM. */
void vm_close(ErlDrvPort port);
/* Returns why the port ended; NULL while it is alive. */
const char *vm_reason(ErlDrvPort port);
/* Frees a port that has ended. */
void vm_forget(ErlDrvPort port);

/* The reply to a control command. */
typedef struct {
    int len; /* -1 for badarg */
    uint8_t bytes[1024];
} vm_reply_t;
vm_reply_t vm_control(ErlDrvPort port, unsigned command, const void *data, size_t len);

/* Sends one message to the port, in two pieces as in the VM. */
void vm_send(ErlDrvPort port, const void *bytes, size_t len);
bool vm_is_busy(ErlDrvPort port);

/* Runs one round: waits for at most `ms`, then calls whatever is due. Returns false if nothing was
 * due. Any thread may call it. */
bool vm_run(int ms);

/* Advances the timers and the driver's clock by `ms` at once. Timers do not advance otherwise, so
 * they do not fire when a test is preempted. */
void vm_skip(int ms);

/* Stops the driver's clock as well, so that only vm_skip advances it. */
void vm_stop_clock(bool on);

/* Returns, as text, the next term that the port has sent to its owner or another process: atoms and
 * numbers as they are, a port as `port`, a binary as its length. Returns NULL if there is none. */
const char *vm_heard(ErlDrvPort port);
/* Returns the bytes of the last binary in that term. */
const uint8_t *vm_heard_bytes(ErlDrvPort port, size_t *len_p);

/* Returns how many frames the port has delivered to its owner, or the number of their bytes. Each
 * frame is also passed to vm_deliver if that is set. */
uint64_t vm_frames(ErlDrvPort port);
uint64_t vm_bytes(ErlDrvPort port);
extern void (*vm_deliver)(ErlDrvPort port, const uint8_t *at, uint64_t len);

/* Delays the jobs of async threads until this is called with false. */
void vm_hold_jobs(bool on);
/* If set, stop_select is never called from within driver_select, only later. */
extern bool vm_deselects_later;
/* If set, ready descriptors are no longer reported; this simulates events that ERTS misses. */
extern bool vm_loses_events;
/* The number of further allocations that succeed, or -1 if all of them do. */
extern int vm_allocations_left;

/* Ends and forgets all ports in whatever state they are, and resets the settings above. Returns
 * false if a port is still alive. */
bool vm_reset(void);

/* Returns whether all ports have released everything: memory, binaries, descriptors, timers, jobs.
 * Prints what they have not. */
bool vm_is_clean(void);

#endif
