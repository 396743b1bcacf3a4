/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_CARRIERS_H
#define BW_CARRIERS_H

#include "link.h"

/* Those of test programs alone: native/test/test.mk. */
#ifndef BW_TEST_CARRIERS
#define BW_TEST_CARRIERS(X)
#endif

/* The carriers that are built in, a line each. Its folder (link/KIND) defines the table. */
#define BW_CARRIERS(X)                                                                             \
    X(bw_shm_carrier)                                                                              \
    X(bw_tcp_carrier)                                                                              \
    BW_TEST_CARRIERS(X)

#define BW_DECLARE_CARRIER(carrier) extern const bw_carrier_t carrier;
BW_CARRIERS(BW_DECLARE_CARRIER)
#define BW_ADDRESS_OF(carrier) &carrier,

/* The others are shared objects that have this function. It gives the table, or NULL and *error_p:
 * the host cannot have such links, or the object is of another version. By any thread. */
#define BW_CARRIER_VERSION 6
#define BW_CARRIER_SYMBOL "bw_carrier"
typedef const bw_carrier_t *bw_carrier_fn(uint32_t version, bw_error_t *error_p);

/* The built-in carrier of that kind, or NULL. */
const bw_carrier_t *bw_carrier_named(const char *kind);

/* The carrier of a shared object, which is never unloaded; NULL: `text` says why. This uses the
 * file system, and the first call of a process takes some milliseconds. Any thread may call it. */
const bw_carrier_t *bw_carrier_load(const char *file, char text[BW_TEXT_BYTES]);

/* What bw_carrier_load has returned for that file before, whose name has `len` bytes; NULL if this
 * process has not loaded it yet. Any thread may call it, and it does not wait. */
const bw_carrier_t *bw_carrier_loaded(const char *file, size_t len);

#endif
