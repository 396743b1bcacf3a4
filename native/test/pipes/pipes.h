/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PIPES_H
#define BW_PIPES_H

#include "../../link/link.h"

/*
 * The pipes carrier, an example of a carrier that only test programs have: a pipe for each way,
 * between two processes of the same user, behind the table of link.h.
 *
 * Both rings are private memory of this process. Committed bytes go into one pipe at once, as far
 * as it takes them; the rest goes when there is room. The other pipe is read into the ring when the
 * user looks. A pipe without a writer is an orderly end, and a process that is killed ends it as
 * well.
 *
 * Addresses (`at` of an order): empty to listen; to connect, the address in the listener's report.
 * The listener makes both pipes, and the peer opens its ends under /proc/PID/fd. The peer first
 * sends its token and the size of its rings.
 */
#define BW_PIPES_ADDRESS_BYTES 12 /* pid, descriptor to read, descriptor to write, 4 bytes each */

extern const bw_carrier_t bw_pipes_carrier;

#endif
