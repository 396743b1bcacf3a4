/* SPDX-License-Identifier: Apache-2.0 */

/* The shared object's only symbol. */

#include "../carriers.h"
#include "session.h"

__attribute__((visibility("default"))) bw_carrier_fn bw_carrier;

const bw_carrier_t *bw_carrier(uint32_t version, bw_error_t *error_p)
{
    if (version == BW_CARRIER_VERSION) {
        bw_tls_prepare();
        return &bw_tls_carrier;
    }
    (void)bw_fail(error_p, BW_REFUSED,
                  "beamway_tls.so is of another version than the driver: build both", 0);
    return NULL;
}
