/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FAKE_VERBS_H
#define BW_FAKE_VERBS_H

/*
 * An RDMA device made in software, for tests: the calls of libibverbs and librdmacm that Beamway
 * makes, between threads and processes on the same host. A program is linked with it instead of the
 * two libraries (test.mk), or it is preloaded; the carrier cannot tell the difference.
 *
 * It has the addresses below. A thread in each process plays the device; packets travel over
 * abstract unix sockets. It checks what a device checks (keys, bounds, rights, queue sizes, slots)
 * and ends the process where a real one would break silently or hang: bytes that change before
 * their completion, a completion queue that overflows, an object destroyed while another uses it.
 *
 * The processes that one test program forks share a device. Others share it if FAKE_VERBS_HOST
 * names the same file.
 */
#include <stdbool.h>

#include <infiniband/verbs.h>

#define FAKE_VERBS_IPV4 "192.0.2.1"
#define FAKE_VERBS_IPV6 "2001:db8::1"

/* What tests can demand. Programs that may run over real verbs declare these functions as weak. */

/* These act on the device for all processes. Removes it; true if all have let go within 5 s. */
bool fake_verbs_remove(void);
void fake_verbs_add(void);
/* Takes its port down or brings it up again. */
void fake_verbs_set_port(bool is_up);
/* Counts queue pairs, completion queues and regions of all living processes. */
int fake_verbs_held(void);

/* These act on this process only. Makes this many posts fail, both to send and to receive. */
void fake_verbs_fail_posts(int count);
/* Delays the completion of sent requests by this time. */
void fake_verbs_complete_late(int ms);
/* Raises asynchronous events that do not concern a queue. */
void fake_verbs_raise(enum ibv_event_type type, int count);
/* Whether a thread sleeps until its sent request completes, although the request has arrived. */
bool fake_verbs_is_waited_for(void);
/* Whether ibv_fork_init was called before any other function. */
bool fake_verbs_is_fork_safe(void);

#endif
