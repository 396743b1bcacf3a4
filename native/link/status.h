/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_STATUS_H
#define BW_STATUS_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/*
 * The result of a call in native/link, and where it failed. The function that first detects an
 * error fills in the bw_error_t; its callers only pass it on.
 */
typedef enum {
    BW_OK = 0,
    BW_AGAIN,   /* nothing to read, or not enough room: arm and wait */
    BW_CORRUPT, /* the peer broke the protocol: the link must be closed */
    BW_REFUSED, /* the other side has the wrong user, token or version */
    BW_LIMIT,   /* a limit of this process or host is too low */
    BW_SYSTEM,  /* a system call failed */
    BW_INVALID  /* the caller's argument is outside its documented range */
} bw_status_t;

typedef struct {
    const char *step; /* a string literal that names the failed step; NULL if nothing has failed */
    int sys_errno;    /* errno of that step, 0 if it has none */
} bw_error_t;

static inline bw_status_t bw_fail(bw_error_t *error_p, bw_status_t status, const char *step,
                                  int sys_errno)
{
    error_p->step = step;
    error_p->sys_errno = sys_errno;
    return status;
}

/* Reports a failed system call. Errors caused by a lack of descriptors, watches or memory, or by a
 * file that is too large, become BW_LIMIT, because the user can raise the limit in question. */
static inline bw_status_t bw_fail_system(bw_error_t *error_p, const char *step, int sys_errno)
{
    bool is_limit = sys_errno == EMFILE || sys_errno == ENFILE || sys_errno == ENOMEM ||
                    sys_errno == ENOSPC || sys_errno == EFBIG;

    return bw_fail(error_p, is_limit ? BW_LIMIT : BW_SYSTEM, step, sys_errno);
}

static inline void bw_error_text(const bw_error_t *error, char *text, size_t bytes)
{
    snprintf(text, bytes, "%s%s%s", error->step, error->sys_errno ? ": " : "",
             error->sys_errno ? strerror(error->sys_errno) : "");
}

#endif
