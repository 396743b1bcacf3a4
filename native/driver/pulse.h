/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PULSE_H
#define BW_PULSE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Has this process been stopped, by a signal, a debugger or a host that slept? Its peers may have
 * given up their links meanwhile, and what still stands in its sockets must not be read then.
 *
 * A process of the VM gives a pulse about once a second (beamway_links). Whoever looks next, that
 * process or a port that is about to read, sees that it is missing. The clock also counts the time
 * in which the host slept. Any thread may call both.
 */

#define BW_PULSE_MS 1000

void bw_pulse(void);

/* How long this process was stopped, at most, the last time that it was for twice BW_PULSE_MS or
 * longer, in milliseconds; 0: it was not, since *seen_p. */
int64_t bw_pulse_missed(uint32_t *seen_p);

#endif
