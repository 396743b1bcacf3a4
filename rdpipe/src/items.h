/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_ITEMS_H
#define RD_ITEMS_H

#include "item.h"

/* Items read from a descriptor and written to one, many at a time: small files travel packed. */

typedef struct {
    int fd; /* -1: nothing is written */
    uint8_t *buffer;
    size_t filled;
    bool is_broken; /* a write has failed */
} rd_items_out_t;

/* `out` (may be NULL) is written out before we wait for more. */
typedef struct {
    int fd;
    rd_items_out_t *out;
    uint8_t *buffer;
    size_t start, end;
    uint64_t data_left; /* of the last item with content */
} rd_items_in_t;

bool rd_items_out_open(rd_items_out_t *out_p, int fd);
bool rd_items_put(rd_items_out_t *out, const rd_item_t *item);
/* Room for a DATA item of up to *room_p bytes of content; what is put there goes by
 * rd_items_data_put. */
uint8_t *rd_items_data_room(rd_items_out_t *out, size_t *room_p);
bool rd_items_data_put(rd_items_out_t *out, size_t len);
/* An item with its content: item->size bytes, RD_VALUE_MAX at most. */
bool rd_items_put_with(rd_items_out_t *out, const rd_item_t *item, const void *content);
/* An attribute with its value, of RD_VALUE_MAX bytes at most. */
bool rd_items_attribute(rd_items_out_t *out, const char *name, const void *value, size_t len);
/* Writes out what is left. False if anything could not be written, and errno. */
bool rd_items_out_close(rd_items_out_t *out);

bool rd_items_in_open(rd_items_in_t *in_p, int fd, rd_items_out_t *out);
/* The next item; skips the rest of the last one's content. False: *why. */
bool rd_items_next(rd_items_in_t *in, rd_item_t *item_p, rd_why_t *why);
/* A piece of the content of the last item, valid until the next call; 0: there is no more, or
 * *why. */
size_t rd_items_data(rd_items_in_t *in, const uint8_t **at_p, rd_why_t *why);
void rd_items_in_close(rd_items_in_t *in);

#endif
