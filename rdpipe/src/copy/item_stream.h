/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_ITEM_STREAM_H
#define RD_ITEM_STREAM_H

#include "copy_item.h"

/* Reads items from one descriptor and writes them to another, many at a time, so that small files
 * are sent in large batches. */

typedef struct {
    int fd; /* -1 if nothing is written */
    uint8_t *buffer;
    size_t filled;
    bool is_broken; /* a write has failed */
} rd_items_out_t;

/* A stream of items to read. `out` (may be NULL) is flushed before any read that may wait. */
typedef struct {
    int fd;
    rd_items_out_t *out;
    uint8_t *buffer;
    size_t start, end;
    uint64_t data_left; /* unread content of the last item */
} rd_items_in_t;

bool rd_items_out_open(rd_items_out_t *out_p, int fd);
bool rd_items_put(rd_items_out_t *out, const rd_item_t *item);
/* Returns room for a DATA item of up to *room_p bytes, which rd_items_data_put then sends. */
uint8_t *rd_items_data_room(rd_items_out_t *out, size_t *room_p);
bool rd_items_data_put(rd_items_out_t *out, size_t len);
/* Sends these bytes in as many DATA items as they need. */
bool rd_items_put_data(rd_items_out_t *out, const uint8_t *at, size_t len);
/* Writes an item with its content of item->size bytes, which may be at most RD_VALUE_MAX. */
bool rd_items_put_with(rd_items_out_t *out, const rd_item_t *item, const void *content);
/* Writes an ATTRIBUTE item whose value has at most RD_VALUE_MAX bytes. */
bool rd_items_attribute(rd_items_out_t *out, const char *name, const void *value, size_t len);
/* Flushes and frees. Returns false with errno if anything could not be written. */
bool rd_items_out_close(rd_items_out_t *out);

bool rd_items_in_open(rd_items_in_t *in_p, int fd, rd_items_out_t *out);
/* Reads the next item, and skips the rest of the previous one. On failure, *why is set. */
bool rd_items_next(rd_items_in_t *in, rd_item_t *item_p, rd_why_t *why);
/* Returns the length of the next piece of the last item's content, which is valid until the next
 * call. Returns 0 at the end of the content, or on an error, in which case *why is set. */
size_t rd_items_data(rd_items_in_t *in, const uint8_t **at_p, rd_why_t *why);
void rd_items_in_close(rd_items_in_t *in);

#endif
