/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_DOCTOR_H
#define RD_DOCTOR_H

#include "run.h"

/* `rdpipe doctor [HOST]...`: what is compiled in, what this system offers, and whether the hosts
 * can be reached by ssh and have the same rdpipe. On standard output, by --json as one object. The
 * exit status: 1 if something stands in the way of a pipeline. */
int rd_doctor(const rd_settings_t *settings, char *const *hosts, size_t count);

#endif
