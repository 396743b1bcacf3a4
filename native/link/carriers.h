/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_CARRIERS_H
#define BW_CARRIERS_H

#include "link.h"

/* Additional carriers that exist only in test programs; see native/test/test.mk. */
#ifndef BW_TEST_CARRIERS
#define BW_TEST_CARRIERS(X)
#endif

/* The built-in carriers, one per line. Each table is defined in the directory link/KIND. */
#define BW_CARRIERS(X)                                                                             \
    X(bw_shm_carrier)                                                                              \
    X(bw_tcp_carrier)                                                                              \
    BW_TEST_CARRIERS(X)

#define BW_DECLARE_CARRIER(carrier) extern const bw_carrier_t carrier;
BW_CARRIERS(BW_DECLARE_CARRIER)
#define BW_ADDRESS_OF(carrier) &carrier,

/* The other carriers are shared objects that export this function. It returns NULL, with *error_p
 * set, if the host has no such links or the version differs. Any thread may call it. */
#define BW_CARRIER_VERSION 9
#define BW_CARRIER_SYMBOL "bw_carrier"
typedef const bw_carrier_t *bw_carrier_fn(uint32_t version, bw_error_t *error_p);

/* Returns the built-in carrier of that kind, or NULL. */
const bw_carrier_t *bw_carrier_named(const char *kind);

/* Loads the carrier in a shared object, which is never unloaded. Returns NULL, with the reason in
 * `text`, if that fails. This accesses the file system, and the first call in a process takes a few
 * milliseconds. Any thread may call it. */
const bw_carrier_t *bw_carrier_load(const char *file, char text[BW_TEXT_BYTES]);

/* Returns what bw_carrier_load returned for that file, or NULL if this process has not loaded it
 * yet. The file name is `len` bytes long. Any thread may call this, and it does not block. */
const bw_carrier_t *bw_carrier_loaded(const char *file, size_t len);

#endif
