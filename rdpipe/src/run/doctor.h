/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_DOCTOR_H
#define RD_DOCTOR_H

#include "run.h"

/* `rdpipe doctor [HOST]...` reports on standard output (with --json as a single object) what is
 * compiled in, what the system supports, and whether the hosts can be reached over ssh and have the
 * same version of rdpipe. Returns the exit status, which is 1 if something would prevent a
 * pipeline. */
int rd_doctor(const rd_settings_t *settings, char *const *hosts, size_t count);

#endif
