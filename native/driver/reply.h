/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_REPLY_H
#define BW_REPLY_H

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../link/rdma/rdma.h"
#include "../link/status.h"

#define REPLY_LATER 2

/*
 * What a command of the driver answers: a 0 byte and the result, or a 1 byte and the reason as
 * text, or REPLY_LATER (job.h). What does not fit is cut off.
 */
typedef struct {
    size_t len;
    uint8_t bytes[64 + BW_RDMA_TEXT_BYTES];
} reply_t;

static inline void reply_bytes(reply_t *reply, const void *bytes, size_t len)
{
    if (len > sizeof reply->bytes - reply->len)
        len = sizeof reply->bytes - reply->len;
    memcpy(reply->bytes + reply->len, bytes, len);
    reply->len += len;
}

static inline void reply_number(reply_t *reply, uint64_t number, int bytes)
{
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8)
        reply_bytes(reply, &(uint8_t){(uint8_t)(number >> shift)}, 1);
}

static inline void reply_status(reply_t *reply, bw_status_t status, const bw_error_t *error)
{
    char text[200];
    int len;

    reply->len = 0;
    reply_bytes(reply, &(uint8_t){status != BW_OK}, 1);
    if (status == BW_OK)
        return;
    len = snprintf(text, sizeof text, "%s%s%s", error->step, error->sys_errno ? ": " : "",
                   error->sys_errno ? strerror(error->sys_errno) : "");
    reply_bytes(reply, text, (size_t)(len < (int)sizeof text ? len : (int)sizeof text - 1));
}

static inline uint64_t number_at(const char *at)
{
    uint64_t number = 0;

    for (int i = 0; i < 8; i++)
        number = number << 8 | (uint8_t)at[i];
    return number;
}

#endif
