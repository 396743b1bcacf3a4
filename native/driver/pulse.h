/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PULSE_H
#define BW_PULSE_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Detects whether this process has been stopped, by a signal, a debugger or a host that slept. Its
 * peers may have given up their links meanwhile, so the bytes that are still in its sockets must
 * not be read then.
 *
 * A process of the VM gives a pulse about once a second (beamway_links). The next caller to check,
 * that process or a port that is about to read, finds it missing. The clock includes the time in
 * which the host slept. Any thread may call both functions.
 */

#define BW_PULSE_MS 1000

void bw_pulse(void);

/* Returns for how many milliseconds, at most, this process was stopped the last time that it was
 * stopped for at least twice BW_PULSE_MS, or 0 if it was not stopped since *seen_p. */
int64_t bw_pulse_missed(uint32_t *seen_p);

#endif
