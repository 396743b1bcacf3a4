/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_PIPES_H
#define BW_PIPES_H

#include "../../link/link.h"

/*
 * The pipes carrier, an example of a carrier that only test programs include: one pipe in each
 * direction, between two processes of the same user, behind the function table of link.h.
 *
 * Both rings are private memory of this process. Committed bytes are written to one pipe
 * immediately, as far as it accepts them, and the rest is written when there is room. The other
 * pipe is read into the ring when the user peeks. A pipe without a writer counts as a clean end of
 * the stream, even if the process was killed.
 *
 * The address (`at` of an order) is empty for a listener; a peer that connects uses the address in
 * the listener's report. The listener creates both pipes, and the peer opens its ends under
 * /proc/PID/fd. The peer first sends its token and the size of its rings.
 */
#define BW_PIPES_ADDRESS_BYTES 12 /* pid, descriptor to read, descriptor to write, 4 bytes each */

extern const bw_carrier_t bw_pipes_carrier;

#endif
