/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_REPLY_H
#define BW_REPLY_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../link/bytes.h"
#include "../link/link.h"

#define REPLY_LATER 2

/*
 * The reply to a driver command: a 0 byte and the result, or a 1 byte and the reason as text, or
 * REPLY_LATER (async_job.h). A reply that is too long is truncated.
 */
typedef struct {
    size_t len;
    uint8_t bytes[64 + BW_ADDRESS_MAX + BW_DEVICE_BYTES + BW_TEXT_BYTES];
} reply_t;

static inline void reply_bytes(reply_t *reply, const void *bytes, size_t len)
{
    if (len > sizeof reply->bytes - reply->len)
        len = sizeof reply->bytes - reply->len;
    memcpy(reply->bytes + reply->len, bytes, len);
    reply->len += len;
}

static inline void reply_text(reply_t *reply, const char *text)
{
    reply_bytes(reply, text, strlen(text));
}

static inline void reply_number(reply_t *reply, uint64_t number, int bytes)
{
    uint8_t at[8];

    bw_put(at, number, bytes);
    reply_bytes(reply, at, (size_t)bytes);
}

static inline void reply_reason(reply_t *reply, const char *reason)
{
    reply->len = 0;
    reply_number(reply, 1, 1);
    reply_text(reply, reason);
}

static inline void reply_status(reply_t *reply, bw_status_t status, const bw_error_t *error)
{
    char text[BW_TEXT_BYTES];

    if (status == BW_OK) {
        reply->len = 0;
        reply_number(reply, 0, 1);
        return;
    }
    bw_error_text(error, text, sizeof text);
    reply_reason(reply, text);
}

#endif
