/* SPDX-License-Identifier: Apache-2.0 */
#include "item_stream.h"

#include <errno.h>
#include <unistd.h>

#define BUFFER_BYTES ((size_t)1024 * 1024)
/* Collected items are sent once they have this many bytes, so that the next part can already work
 * on them. */
#define ENOUGH_BYTES ((size_t)64 * 1024)
#define ROOM_LEAST ((size_t)64 * 1024) /* a DATA item needs at least this much room */

bool rd_items_out_open(rd_items_out_t *out_p, int fd)
{
    *out_p = (rd_items_out_t){.fd = fd, .buffer = malloc(BUFFER_BYTES)};
    return out_p->buffer != NULL;
}

static bool flush(rd_items_out_t *out)
{
    size_t done = 0;

    while (done < out->filled && !out->is_broken) {
        ssize_t n = write(out->fd, out->buffer + done, out->filled - done);

        if (n >= 0)
            done += (size_t)n;
        else if (errno != EINTR)
            out->is_broken = true;
    }
    out->filled = 0;
    return !out->is_broken;
}

bool rd_items_put(rd_items_out_t *out, const rd_item_t *item)
{
    if (out->filled >= ENOUGH_BYTES && !flush(out))
        return false;
    out->filled += rd_item_put(out->buffer + out->filled, item);
    return !out->is_broken;
}

uint8_t *rd_items_data_room(rd_items_out_t *out, size_t *room_p)
{
    if (BUFFER_BYTES - out->filled < RD_ITEM_BYTES + ROOM_LEAST)
        (void)flush(out);
    *room_p = BUFFER_BYTES - out->filled - RD_ITEM_BYTES;
    return out->buffer + out->filled + RD_ITEM_BYTES;
}

bool rd_items_data_put(rd_items_out_t *out, size_t len)
{
    rd_item_t item = {.kind = RD_ITEM_DATA, .size = len};

    out->filled += rd_item_put(out->buffer + out->filled, &item) + len;
    return !out->is_broken;
}

bool rd_items_put_data(rd_items_out_t *out, const uint8_t *at, size_t len)
{
    while (len > 0) {
        size_t room;
        uint8_t *to = rd_items_data_room(out, &room);

        if (room > len)
            room = len;
        memcpy(to, at, room);
        if (!rd_items_data_put(out, room))
            return false;
        at += room;
        len -= room;
    }
    return true;
}

bool rd_items_put_with(rd_items_out_t *out, const rd_item_t *item, const void *content)
{
    size_t len = (size_t)item->size;

    if (out->filled + RD_ITEM_MAX + len > BUFFER_BYTES && !flush(out))
        return false;
    out->filled += rd_item_put(out->buffer + out->filled, item);
    memcpy(out->buffer + out->filled, content, len);
    out->filled += len;
    return !out->is_broken;
}

bool rd_items_attribute(rd_items_out_t *out, const char *name, const void *value, size_t len)
{
    static rd_item_t item = {.kind = RD_ITEM_ATTRIBUTE};

    item.size = len;
    (void)snprintf(item.target, sizeof item.target, "%s", name);
    return rd_items_put_with(out, &item, value);
}

bool rd_items_out_close(rd_items_out_t *out)
{
    bool done = flush(out);
    int error = errno;

    free(out->buffer);
    out->buffer = NULL;
    errno = error;
    return done;
}

bool rd_items_in_open(rd_items_in_t *in_p, int fd, rd_items_out_t *out)
{
    *in_p = (rd_items_in_t){.fd = fd, .out = out, .buffer = malloc(BUFFER_BYTES)};
    return in_p->buffer != NULL;
}

void rd_items_in_close(rd_items_in_t *in)
{
    free(in->buffer);
    in->buffer = NULL;
}

static bool fill(rd_items_in_t *in, rd_why_t *why)
{
    ssize_t n;

    if (in->start == in->end) {
        in->start = in->end = 0;
    } else if (BUFFER_BYTES - in->start < RD_ITEM_MAX) {
        memmove(in->buffer, in->buffer + in->start, in->end - in->start);
        in->end -= in->start;
        in->start = 0;
    }
    if (in->out && in->out->filled > 0 && !flush(in->out))
        return rd_because(why, "the next process of the copy has exited");
    do
        n = read(in->fd, in->buffer + in->end, BUFFER_BYTES - in->end);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return rd_because(why, "reading from the other side: %s", strerror(errno));
    if (n == 0)
        return rd_because(why, "the other side exited before the copy was complete");
    in->end += (size_t)n;
    return true;
}

size_t rd_items_data(rd_items_in_t *in, const uint8_t **at_p, rd_why_t *why)
{
    size_t len;

    why->text[0] = 0;
    if (in->data_left == 0 || (in->start == in->end && !fill(in, why)))
        return 0;
    len = in->end - in->start;
    if (len > in->data_left)
        len = (size_t)in->data_left;
    *at_p = in->buffer + in->start;
    in->start += len;
    in->data_left -= len;
    return len;
}

bool rd_items_next(rd_items_in_t *in, rd_item_t *item_p, rd_why_t *why)
{
    const uint8_t *ignored;
    size_t bytes = 0;

    while (in->data_left > 0)
        if (rd_items_data(in, &ignored, why) == 0)
            return false;
    for (;;) {
        switch (rd_item_parse(in->buffer + in->start, in->end - in->start, item_p, &bytes)) {
        case RD_ITEM_WHOLE:
            in->start += bytes;
            in->data_left = item_p->kind == RD_ITEM_DATA || item_p->kind == RD_ITEM_ATTRIBUTE ||
                                    item_p->kind == RD_ITEM_BLOCKS
                                ? item_p->size
                                : 0;
            return true;
        case RD_ITEM_CORRUPT:
            return rd_because(why, "the other side sent something that is not part of a copy, or "
                                   "that names a path outside the tree");
        case RD_ITEM_SHORT:
            if (!fill(in, why))
                return false;
        }
    }
}
