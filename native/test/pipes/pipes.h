/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PIPES_H
#define BW_PIPES_H

#include "../../link/link.h"

/*
 * The pipes carrier, an example of a carrier that test programs alone have: a pipe for each way,
 * between two processes of one user, behind the table of link.h.
 *
 * Both rings are memory of this process alone. What is committed goes into one pipe at once, as far
 * as it takes it; the rest goes when there is room. The other pipe is read into the ring when the
 * user looks. A pipe that nobody writes to any more is an orderly end; a process that is killed
 * ends it as well.
 *
 * Where (`at` of an order): to listen nothing; to connect the address of the listener's report. The
 * listener makes both pipes, and the peer opens its ends under /proc/PID/fd. It says its token and
 * the size of its rings first.
 */
#define BW_PIPES_ADDRESS_BYTES 12 /* pid, descriptor to read, descriptor to write, 4 bytes each */

extern const bw_carrier_t bw_pipes_carrier;

#endif
