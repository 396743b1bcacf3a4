/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_CIPHER_H
#define RD_CIPHER_H

#include <stdbool.h>

/*
 * What `rdpipe doctor` reports about the speed of `--encrypt` on this host. These functions are
 * pure: the caller reads /proc and gets the version from libcrypto.
 */

/* The instructions of a processor that AES-GCM can use. */
typedef enum { RD_AES_NONE, RD_AES_ONE_BLOCK, RD_AES_NO_VAES, RD_AES_VAES } rd_aes_t;

/* `flags` is the line of /proc/cpuinfo that begins with "flags" (x86) or "Features" (ARM).
 * RD_AES_ONE_BLOCK is any architecture that has AES instructions but no VAES at all. libcrypto uses
 * VAES only together with AVX-512, so RD_AES_VAES means both. */
rd_aes_t rd_aes_of(const char *flags);

/* `libcrypto` is OPENSSL_VERSION_NUMBER of the library in use. *is_old_p is set to whether a later
 * version would encrypt faster on this processor; the version is all that a user can change. */
const char *rd_cipher_text(rd_aes_t aes, unsigned long libcrypto, bool *is_old_p);

/* `ulps` is the kernel's list of loaded upper layer protocols for TCP. */
const char *rd_ktls_text(const char *ulps, bool has_module);

#endif
