/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_TEXT_H
#define RD_TEXT_H

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "link.h"

/* Where an error comes from. If several are reported, the one that comes first in this list is the
 * cause of the others. */
typedef enum {
    RD_CAUSE_HERE,   /* something failed here */
    RD_CAUSE_LOST,   /* a peer has failed or exited, and may report its own reason */
    RD_CAUSE_STOPPED /* another part has asked us to stop */
} rd_cause_t;

/* The reason for an error, as shown to the user. The function that first detects the error writes
 * it. */
typedef struct {
    char text[512];
    rd_cause_t cause;
} rd_why_t;

/* Stores the reason in *why. Always returns false, so that a function can fail with
 * `return rd_because(...)`. */
#define rd_because(why, ...) rd_because_of(why, RD_CAUSE_HERE, __VA_ARGS__)

__attribute__((format(printf, 3, 4))) static inline bool
rd_because_of(rd_why_t *why, rd_cause_t cause, const char *form, ...)
{
    va_list args;

    va_start(args, form);
    /* cppcheck-suppress ctuuninitvar; it is written, not read */
    (void)vsnprintf(why->text, sizeof why->text, form, args);
    va_end(args);
    why->cause = cause;
    return false;
}

/* Like rd_because, for an error from native/link, with the prefix `of` ("shm: ", or ""). */
static inline bool rd_because_link(rd_why_t *why, const char *of, const bw_error_t *error)
{
    return rd_because(why, "%s%s%s%s", of, error->step ? error->step : "failed",
                      error->sys_errno ? ": " : "",
                      error->sys_errno ? strerror(error->sys_errno) : "");
}

/* Closes a descriptor, unless it is -1, and sets it to -1. Does not change errno. */
static inline void rd_close(int *fd)
{
    int error = errno;

    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    errno = error;
}

static inline int64_t rd_now_us(void)
{
    return (int64_t)bw_clock_us();
}

static inline int64_t rd_now_ms(void)
{
    return rd_now_us() / 1000;
}

/* Returns the number of milliseconds until `deadline`, for poll; never negative. */
static inline int rd_left_ms(int64_t deadline)
{
    int64_t left = deadline - rd_now_ms();

    return left < 0 ? 0 : left > 3600000 ? 3600000 : (int)left;
}

/* Parses a decimal number between `min` and `max`. Returns false if anything follows the number. */
static inline bool rd_number(const char *text, uint64_t min, uint64_t max, uint64_t *number_p)
{
    char *end;
    unsigned long long number;

    if (*text < '0' || *text > '9')
        return false;
    number = strtoull(text, &end, 10);
    if (*end || number < min || number > max || (number == UINT64_MAX && max != UINT64_MAX))
        return false;
    *number_p = number;
    return true;
}

static inline int rd_hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Returns the value of two hexadecimal digits, or -1 if either character is not one. */
static inline int rd_hex_byte(const char *digits)
{
    int high = rd_hex_digit(digits[0]), low = high < 0 ? -1 : rd_hex_digit(digits[1]);

    return low < 0 ? -1 : high << 4 | low;
}

/* Like rd_number, but accepts a suffix K, M or G. */
static inline bool rd_size(const char *text, uint64_t min, uint64_t max, uint64_t *number_p)
{
    static const char units[] = "KMGkmg";
    char digits[24];
    size_t len = strlen(text);
    const char *unit;
    unsigned bits;
    uint64_t number;

    if (len == 0 || len >= sizeof digits)
        return false;
    memcpy(digits, text, len + 1);
    unit = strchr(units, digits[len - 1]);
    bits = unit ? 10 * (1 + (unsigned)(unit - units) % 3) : 0;
    if (unit)
        digits[len - 1] = 0;
    if (!rd_number(digits, 0, UINT64_MAX >> bits, &number) || number << bits < min ||
        number << bits > max)
        return false;
    *number_p = number << bits;
    return true;
}

#endif
