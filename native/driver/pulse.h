/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PULSE_H
#define BW_PULSE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Detects whether this process has been stopped, by a signal, a debugger or suspension of the host.
 * While it was stopped, its peers may have given up on their links to it, so the bytes that are
 * still in its sockets must no longer be read.
 *
 * An Erlang process (beamway_recorder) calls bw_pulse every few seconds, and states when it will do
 * so again. A missing pulse is noticed at the next check, by that process or by a port that is
 * about to read. The clock includes the time during which the host was suspended.
 *
 * Any thread may call these functions.
 */

/* Gives a pulse, and announces that the next one will come in next_ms. */
void bw_pulse(uint32_t next_ms);

/* Announces that there will be no more pulses, so none counts as missing. */
void bw_pulse_end(void);

/* Returns the longest time in milliseconds that the process can have been stopped since the last
 * call with this `seen_p`, or 0 if every pulse came within twice the announced time. */
int64_t bw_pulse_missed(uint32_t *seen_p);

#endif
