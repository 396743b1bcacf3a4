/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_AGENT_H
#define RD_AGENT_H

/*
 * The part of a pipeline on one host: one segment, between a hop in and a hop out. rdpipe starts it
 * there (`rdpipe --agent` over ssh, or a fork of itself for this host) and talks to it over
 * `control_in` and `control_out` (control.h). When that ends, the agent kills its command and ends:
 * nothing stays on a host whose rdpipe is gone.
 *
 *   rdpipe                                          agent
 *                                                   rdpipe-agent control= version= ssh=
 *   segment work= text= in= out= tee= block= ...
 *           key= bind= first= last= before=         port number=      (if it has a hop in)
 *   next host= port= key= name=  (if it has a hop out)
 *                                                   hop side= carrier= why=   (each)
 *                                                   ready
 *   start                                           bytes in= out= size=      (now and then)
 *                                                   output data=     (of a receiver's command)
 *   taken bytes= (that are written), or quit        over side= outcome= bytes= why=
 *   signal number=
 *                                                   status value=
 *                                                   fault cause= why=
 *                                                   bye
 *
 * Returns the exit status of the process.
 */
int rd_agent(int control_in, int control_out);

#endif
