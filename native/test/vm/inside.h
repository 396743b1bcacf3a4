/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_TEST_VM_INSIDE_H
#define BW_TEST_VM_INSIDE_H

/*
 * Shared by the files of the simulated VM. A port's lock protects everything that belongs to the
 * port, and vm_lock everything else; vm_lock is acquired after a port's lock.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vm.h"

#define BROKEN_IN "vm"
#include "../broken.h"

#define TEXT_BYTES 512
#define NO_TIMER INT64_MAX

typedef struct term {
    struct term *next;
    char text[TEXT_BYTES];
    uint8_t bytes[TEXT_BYTES];
    size_t len;
} term_t;

struct _erl_drv_port {
    pthread_mutex_t lock;
    ErlDrvData data;
    bool is_open, is_closing, is_busy;
    int64_t timer_at; /* on the clock that vm_skip advances; NO_TIMER: not set */
    char *queue;
    size_t queued;
    SysIOVec iov;
    char reason[64];
    term_t *terms, *heard;
    uint64_t frames, bytes;
    struct _erl_drv_port *next;
};

extern ErlDrvEntry *vm_entry;

void vm_lock(void);
void vm_unlock(void);

/* Enters a port for a callback. If it returns false, the port is gone and not locked. */
bool vm_enter(ErlDrvPort port);
void vm_leave(ErlDrvPort port);

/* ---- descriptors.c ---- */

bool vm_is_selected_by(ErlDrvPort port);

/* Waits for at most `ms` and calls the ports whose descriptors are ready. Returns false if none is
 * ready. */
bool vm_run_descriptors(int ms);

/* Calls stop_select for the descriptors for which this was not possible immediately. */
void vm_tell_of_the_left(void);

void vm_count_descriptors(int *selected_p, int *left_p);

/* ---- memory.c ---- */

/* Lets the owners read the binaries that they have received. */
void vm_read_given(void);

void vm_count_memory(int *pieces_p, int *binaries_p);

#endif
