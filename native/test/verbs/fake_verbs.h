/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FAKE_VERBS_H
#define BW_FAKE_VERBS_H

/*
 * An RDMA device implemented in software, for tests. It provides the functions of libibverbs and
 * librdmacm that Beamway calls, and connects threads and processes on the same host. A program is
 * linked with it instead of the two libraries (test.mk), or it is preloaded; the carrier cannot
 * tell the difference. It has the addresses listed below. A thread in each process acts as the
 * device; packets travel over abstract unix sockets. It checks what a device checks (keys, bounds,
 * access rights, queue sizes, slots) and aborts the process where a real device would silently
 * corrupt data or hang: if bytes change before their completion, a completion queue overflows, or
 * an object is destroyed while another still uses it.
 *
 * The processes forked by a test program share one device. Other processes share it if
 * FAKE_VERBS_HOST names the same file.
 */
#include <stdbool.h>

#include <infiniband/verbs.h>

#define FAKE_VERBS_IPV4 "192.0.2.1"
#define FAKE_VERBS_IPV6 "2001:db8::1"

/* What tests can make the device do. Programs that may run over real verbs declare these functions
 * as weak. */

/* The following act on the device for all processes. This one removes it; returns true if all
 * processes have released it within 5 s. */
bool fake_verbs_remove(void);
void fake_verbs_add(void);
/* Takes the device's port down or brings it up again. */
void fake_verbs_set_port(bool is_up);
/* Counts the queue pairs, completion queues and regions of all living processes. */
int fake_verbs_held(void);

/* The following act on this process only. This one makes the next `count` posts fail, both sends
 * and receives. */
void fake_verbs_fail_posts(int count);
/* Delays the completion of sent requests by this time. */
void fake_verbs_complete_late(int ms);
/* Raises asynchronous events that do not concern a queue. */
void fake_verbs_raise(enum ibv_event_type type, int count);
/* Returns whether a thread is asleep, waiting for the completion of a request that it has sent and
 * that has already arrived. */
bool fake_verbs_is_waited_for(void);
/* Returns whether ibv_fork_init was called before any other function. */
bool fake_verbs_is_fork_safe(void);

#endif
