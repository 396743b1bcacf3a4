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
 * An Erlang process (beamway_recorder) calls bw_pulse every few seconds, and says when it will do
 * so again. The next caller that checks, which is that process or a port that is about to read,
 * notices that a pulse is missing. The clock includes the time during which the host was suspended.
 * Any thread may call these functions.
 */

/* The next pulse will come in next_ms. */
void bw_pulse(uint32_t next_ms);

/* There will be no more pulses, so none is missing. */
void bw_pulse_end(void);

/* Returns an upper bound in milliseconds for the last stop of this process that lasted at least
 * twice the time between two pulses, or 0 if there was none since *seen_p. */
int64_t bw_pulse_missed(uint32_t *seen_p);

#endif
