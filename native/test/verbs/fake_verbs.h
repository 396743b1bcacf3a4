/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FAKE_VERBS_H
#define BW_FAKE_VERBS_H

/*
 * An RDMA device made by software, for tests: the calls of libibverbs and librdmacm that Beamway
 * makes, between threads and processes of one host. A program is linked with it instead of the two
 * libraries (test.mk), or it is preloaded; the carrier cannot tell.
 *
 * It has the addresses below. A thread of each process is its device; packets travel over abstract
 * unix sockets. It checks what a device checks (keys, bounds, rights, queue sizes, slots) and ends
 * the process where a real one would break silently or hang: bytes that change before their
 * completion, a completion queue that overflows, an object destroyed while another uses it.
 *
 * The processes that one test program forks share a device. Others share it if FAKE_VERBS_HOST
 * names the same file.
 */
#include <stdbool.h>

#include <infiniband/verbs.h>

#define FAKE_VERBS_IPV4 "192.0.2.1"
#define FAKE_VERBS_IPV6 "2001:db8::1"

/*
 * What can be ordered. Programs that may run over real verbs declare these as weak.
 */

/* Of the device, for all processes. Takes it away: true when all have let go, within 5 s. */
bool fake_verbs_remove(void);
void fake_verbs_add(void);
/* Its port goes down, or up again. */
void fake_verbs_set_port(bool is_up);
/* Queue pairs, completion queues and regions of all processes that live. */
int fake_verbs_held(void);

/* Of this process. The next posts of this number fail, to send and to receive. */
void fake_verbs_fail_posts(int count);
/* What was sent completes so much later. */
void fake_verbs_complete_late(int ms);
/* Asynchronous events that are about no queue. */
void fake_verbs_raise(enum ibv_event_type type, int count);
/* Somebody sleeps until what he has sent completes; it has arrived. */
bool fake_verbs_is_waited_for(void);
/* ibv_fork_init was called before anything else. */
bool fake_verbs_is_fork_safe(void);

#endif
