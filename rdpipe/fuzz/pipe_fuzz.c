/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes what rdpipe reads from others: frames of a stream, messages of the control channel,
 * command lines, items of a copy. The first byte selects one.
 */
#include <stdlib.h>
#include <string.h>

#include "run/control.h"
#include "copy/copy_item.h"
#include "run/pipeline.h"
#include "stream/rdframe.h"
#include "stream/compress.h"

#define MAX 65536u
#define ARGS_MAX 80

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void frames(const uint8_t *data, size_t size)
{
    static volatile uint32_t sum; /* so that the reads are not optimized away */
    rd_compressor_t compressor;
    rd_frame_t frame;

    if (!rd_compressor_open(&compressor, MAX, 0, false))
        return;
    while (rd_frame_parse(data, size, MAX, &frame) == RD_FRAME_WHOLE) {
        if (frame.kind == RD_DATA && frame.flags & RD_FLAG_ZSTD)
            (void)rd_decompress(&compressor, data + RD_FRAME_BYTES, frame.len, frame.value);
        else
            sum = rd_crc(data + RD_FRAME_BYTES, frame.len);
        data += RD_FRAME_BYTES + frame.len;
        size -= RD_FRAME_BYTES + frame.len;
    }
    rd_compressor_close(&compressor);
    (void)sum;
}

static void lines(const char *text)
{
    static const char *const names[] = {"a", "work", "key", "port"};
    uint64_t number;
    size_t len;

    (void)rd_line_is(text, "segment");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *value = rd_line_value(text, names[i], &len);

        if (value && strlen(value) > len)
            abort();
        free(value);
        (void)rd_line_value_number(text, names[i], 65535, &number);
    }
}

/* Each line is an argument. A pipeline that was parsed obeys its rules. */
static void pipelines(char *text, bool tee)
{
    static rd_pipeline_t pipeline;
    char *args[ARGS_MAX], *rest = text, *arg;
    size_t count = 0;
    rd_why_t why;

    while (count < ARGS_MAX && (arg = strsep(&rest, "\n")))
        args[count++] = arg;
    if (!rd_pipeline_parse(args, count, tee, &pipeline, &why))
        return;
    for (size_t i = 0; i < pipeline.count; i++)
        if (pipeline.of[i].host[0] == '-' || strpbrk(pipeline.of[i].host, " \t\n;$`"))
            abort();
    rd_pipeline_free(&pipeline);
}

/* An accepted item names nothing outside of its tree, and is written as it was read. */
static void items(const uint8_t *data, size_t size)
{
    static rd_item_t item;
    static uint8_t again[RD_ITEM_MAX];
    size_t bytes;

    while (rd_item_parse(data, size, &item, &bytes) == RD_ITEM_WHOLE) {
        if (item.path[0] == '/' || strncmp(item.path, "../", 3) == 0 || strstr(item.path, "/../") ||
            rd_item_put(again, &item) != bytes || memcmp(again, data, bytes) != 0)
            abort();
        data += bytes;
        size -= bytes;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text;

    if (size < 1)
        return 0;
    if (data[0] == 'I') {
        items(data + 1, size - 1);
        return 0;
    }
    if (data[0] % 4 == 0) {
        frames(data + 1, size - 1);
        return 0;
    }
    text = malloc(size);
    if (!text)
        return 0;
    memcpy(text, data + 1, size - 1);
    text[size - 1] = 0;
    if (data[0] % 4 == 1)
        lines(text);
    else
        pipelines(text, data[0] % 4 == 3);
    free(text);
    return 0;
}
