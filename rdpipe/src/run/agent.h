/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_AGENT_H
#define RD_AGENT_H

/*
 * An agent runs one segment of a pipeline on one machine, between its incoming and its outgoing
 * hop. rdpipe starts it there (`rdpipe --agent` over ssh, or a fork of itself for the local host)
 * and talks to it over `control_in` and `control_out` (control.h). When this channel closes, the
 * agent kills its command and exits, so rdpipe leaves no process behind on any host.
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
 *                                                   dropped      (the receiver was too slow)
 *                                                   status value=
 *                                                   fault cause= why=
 *                                                   bye
 *
 * Returns the exit status of the process.
 */
int rd_agent(int control_in, int control_out);

#endif
