/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BW_FUZZ_INPUT_H
#define BW_FUZZ_INPUT_H

/* Shared by all fuzz targets: the entry point, a reader that takes numbers from the input, and a
 * check that aborts. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

static inline void must(bool holds)
{
    if (!holds)
        abort();
}

typedef struct {
    const uint8_t *at;
    size_t left;
} reader_t;

/* Returns the next n bytes as a number, with zeros past the end. */
static inline uint64_t number(reader_t *reader, size_t n)
{
    uint64_t value = 0;

    for (; n > 0; n--) {
        value = value << 8 | (reader->left > 0 ? *reader->at : 0);
        reader->at += reader->left > 0;
        reader->left -= reader->left > 0;
    }
    return value;
}

static inline uint8_t next_byte(reader_t *reader)
{
    return (uint8_t)number(reader, 1);
}

#endif
