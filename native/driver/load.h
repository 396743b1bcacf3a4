/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_LOAD_H
#define BW_LOAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * The load of a node, in 8 bytes that are sent to its peers along with ticks, acknowledgements and
 * messages:
 *
 *   1:1, CPU time in percent of what the schedulers could use:7, run queue:16,
 *   load average of the last minute in hundredths:16, available memory in MiB:24
 *
 * If the system does not report them, the load average is 65535 and the memory is 0. A node takes a
 * sample once a second (beamway_recorder), and each link sends a given sample to its peer at most
 * once, so a node that stops sampling does not resend stale values. Any thread may call these.
 */

/* The number of samples taken. Links compare it with that of the last one that they sent. */
extern _Atomic uint32_t bw_load_samples;

/* Takes a sample. Arguments from the VM that are too large for their field are clamped. */
void bw_load_sample(uint64_t cpu_percent, uint64_t run_queue);

/* Returns the last sample, which is valid once bw_load_samples is not 0. */
uint64_t bw_load_last(void);

/* Returns whether this is a value that a node of this version can send. */
static inline bool bw_load_is_valid(uint64_t load)
{
    return load >> 63 == 1 && (load >> 56 & 0x7F) <= 100;
}

#endif
