/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PULSE_H
#define BW_PULSE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Detects whether this process has been stopped, by a signal, a debugger or suspension of the host.
 * Meanwhile its peers may have given up their links, so the bytes that are still in its sockets
 * must no longer be read.
 *
 * An Erlang process (beamway_links) calls bw_pulse about once a second. The next caller that
 * checks, which is that process or a port that is about to read, notices that a pulse is missing.
 * The clock includes the time during which the host was suspended. Any thread may call both
 * functions.
 */

#define BW_PULSE_MS 1000

void bw_pulse(void);

/* Returns an upper bound in milliseconds for the last stop of this process that lasted at least
 * twice BW_PULSE_MS, or 0 if there was none since *seen_p. */
int64_t bw_pulse_missed(uint32_t *seen_p);

#endif
