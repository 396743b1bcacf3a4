/* SPDX-License-Identifier: Apache-2.0 */
#include "copy_delta.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "sparse.h"

#define READ_BYTES ((size_t)256 * 1024)
#define NAMES_MAX (RD_VALUE_MAX / RD_BLOCK_NAME_BYTES)
#define HOLE_BLOCKS 4u /* shorter holes are sent as zeros, so that the search covers them */

/* ---- the blocks of a file, one after the other ---- */

/* Returns false to stop the walk. */
typedef bool (*visit_t)(void *context, uint32_t index, const uint8_t *block, uint32_t bytes);

/* Visits the blocks of a file, except holes and an incomplete last block. `digest`, if not NULL,
 * covers the whole file. On failure, either errno is set (to 0 if the file has become shorter), or
 * `visit` has returned false. */
static bool walk(int fd, uint64_t size, uint32_t bytes, rd_digest_t *digest, visit_t visit,
                 void *context)
{
    size_t step = bytes > READ_BYTES ? bytes : READ_BYTES, len;
    uint8_t *piece = malloc(step);
    bool done = piece != NULL;

    for (uint64_t at = 0; done && at < size; at += len) {
        uint64_t data = rd_end_of_hole(fd, at, size);

        if (data < size)
            data -= data % step; /* `at` is a multiple of `step`, so this is never less than `at` */
        if (digest)
            rd_digest_skip(digest, data - at);
        at = data;
        len = size - at < step ? (size_t)(size - at) : step;
        done = rd_read_at(fd, piece, len, at);
        if (done && digest)
            rd_digest_add(digest, piece, len);
        for (size_t i = 0; done && i + bytes <= len; i += bytes)
            done = visit(context, (uint32_t)((at + i) / bytes), piece + i, bytes);
    }
    free(piece);
    return done;
}

/* ---- the target: naming blocks ---- */

typedef struct {
    const rd_digest_key_t *key;
    rd_items_out_t *out;
    uint32_t bytes; /* size of a block */
    size_t filled;
    uint8_t names[NAMES_MAX * RD_BLOCK_NAME_BYTES];
} names_t;

static bool put_names(names_t *names)
{
    static rd_item_t item;

    item = (rd_item_t){.kind = RD_ITEM_BLOCKS, .size = names->filled, .offset = names->bytes};
    names->filled = 0;
    return item.size == 0 || rd_items_put_with(names->out, &item, names->names);
}

static bool name_block(void *context, uint32_t index, const uint8_t *block, uint32_t bytes)
{
    names_t *names = context;

    rd_block_name(names->names + names->filled, index, block, bytes, names->key);
    names->filled += RD_BLOCK_NAME_BYTES;
    return names->filled < sizeof names->names || put_names(names);
}

bool rd_delta_name_blocks(rd_items_out_t *out, const rd_digest_key_t *key, int fd, uint64_t size,
                          uint8_t *result)
{
    static names_t names;
    rd_digest_t *digest = result ? rd_digest_open(key) : NULL;
    bool done;

    if (result && !digest)
        return false;
    names = (names_t){.key = key, .out = out, .bytes = rd_block_bytes(size)};
    done = walk(fd, size, names.bytes, digest, name_block, &names);
    done = put_names(&names) && done;
    if (done && digest)
        return rd_digest_end(digest, result);
    rd_digest_close(digest);
    return done;
}

/* ---- the source: comparing named blocks ---- */

typedef struct {
    const rd_digest_key_t *key;
    const rd_blocks_t *blocks;
    uint32_t next; /* the index of the next named block to compare */
} compared_t;

static bool is_equal(void *context, uint32_t index, const uint8_t *block, uint32_t bytes)
{
    compared_t *compared = context;

    (void)bytes;
    return rd_blocks_may_have(compared->blocks, &compared->next, index, block, compared->key);
}

bool rd_delta_is_same(const rd_blocks_t *blocks, const rd_digest_key_t *key, int fd, uint64_t size,
                      const uint8_t digest[RD_DIGEST_BYTES])
{
    compared_t compared = {.key = key, .blocks = blocks};
    uint8_t got[RD_DIGEST_BYTES];
    rd_digest_t *own = rd_digest_open(key);

    if (own && walk(fd, size, blocks->bytes, own, is_equal, &compared))
        return rd_digest_end(own, got) && memcmp(got, digest, sizeof got) == 0;
    rd_digest_close(own);
    return false;
}

/* ---- the source: searching for named blocks ---- */

bool rd_delta_take_blocks(rd_blocks_t *blocks, const rd_item_t *item, rd_items_in_t *in,
                          rd_why_t *why)
{
    static uint8_t names[RD_VALUE_MAX];
    size_t filled = 0, len;
    const uint8_t *at;

    while ((len = rd_items_data(in, &at, why)) > 0) {
        memcpy(names + filled, at, len);
        filled += len;
    }
    return !why->text[0] && rd_blocks_take(blocks, item->offset, names, filled, why);
}

/* The COPY item that is sent next. Adjacent pieces of the old version are merged into one item. */
typedef struct {
    rd_items_out_t *out;
    uint64_t from, len;
    bool goes_on;
} sent_t;

static bool put_copy(sent_t *sent)
{
    static rd_item_t item;

    if (sent->len > 0) {
        item = (rd_item_t){.kind = RD_ITEM_COPY, .size = sent->len, .offset = sent->from};
        sent->len = 0;
        sent->goes_on = rd_items_put(sent->out, &item);
    }
    return sent->goes_on;
}

static bool copy_found(void *context, uint64_t offset, uint64_t len)
{
    sent_t *sent = context;

    if (sent->len > 0 && sent->from + sent->len != offset && !put_copy(sent))
        return false;
    if (sent->len == 0)
        sent->from = offset;
    sent->len += len;
    return true;
}

static bool put_new(void *context, const uint8_t *at, size_t len)
{
    sent_t *sent = context;

    sent->goes_on = put_copy(sent) && rd_items_put_data(sent->out, at, len);
    return sent->goes_on;
}

static bool put_hole(sent_t *sent, rd_search_t *search, uint64_t len)
{
    static rd_item_t item;

    if (!rd_search_flush(search) || !put_copy(sent))
        return false;
    item = (rd_item_t){.kind = RD_ITEM_HOLE, .size = len};
    sent->goes_on = rd_items_put(sent->out, &item);
    return sent->goes_on;
}

static bool send(sent_t *sent, rd_search_t *search, rd_digest_t *digest, int fd,
                 const struct stat *is, uint64_t at, uint32_t block_bytes)
{
    uint64_t size = (uint64_t)is->st_size, least = HOLE_BLOCKS * (uint64_t)block_bytes;
    uint64_t end = rd_is_sparse(is) ? at : size; /* end of a piece without long holes */

    while (at < size) {
        size_t room;
        uint8_t *to;

        if (at == end) {
            uint64_t data = rd_end_of_hole(fd, at, size);

            if (data - at >= least || (data == size && data > at)) {
                if (!put_hole(sent, search, data - at))
                    return false;
                rd_digest_skip(digest, data - at);
                end = at = data;
                continue;
            }
            end = rd_end_of_data(fd, data, size);
        }
        to = rd_search_room(search, &room);
        if (room > READ_BYTES)
            room = READ_BYTES;
        if (room > end - at)
            room = (size_t)(end - at);
        if (!rd_read_at(fd, to, room, at))
            return false;
        rd_digest_add(digest, to, room);
        if (!rd_search_more(search, room))
            return false;
        at += room;
    }
    return rd_search_flush(search) && put_copy(sent);
}

bool rd_delta_send(rd_items_out_t *out, rd_blocks_t *blocks, const rd_copy_terms_t *terms, int fd,
                   const struct stat *is, uint64_t at, bool *goes_on_p,
                   uint8_t check[RD_DIGEST_BYTES])
{
    sent_t sent = {.out = out, .goes_on = true};
    rd_digest_t *digest = rd_digest_open(terms->check);
    rd_search_t *search = rd_search_open(
        blocks, &terms->key, (rd_found_t){.context = &sent, .put = put_new, .copy = copy_found});
    bool done = digest && search;
    int error = ENOMEM;

    if (done) {
        done = rd_digest_read(digest, fd, at) &&
               send(&sent, search, digest, fd, is, at, blocks->bytes);
        error = errno;
    }
    rd_search_close(search);
    *goes_on_p = sent.goes_on;
    if (done)
        return rd_digest_end(digest, check);
    rd_digest_close(digest);
    errno = error;
    return false;
}

bool rd_delta_is_still(const rd_copy_terms_t *terms, int fd, uint64_t size,
                       const uint8_t check[RD_DIGEST_BYTES])
{
    uint8_t now[RD_DIGEST_BYTES];

    return rd_digest_file(terms->check, fd, size, now) && memcmp(now, check, sizeof now) == 0;
}

/* ---- the target: assembling the file ---- */

static void fail(rd_writer_t *writer, rd_file_t *file, const char *text)
{
    if (text)
        rd_complain(&writer->complaints, file->item.path, "%s", text);
    else
        (void)rd_writer_complain(writer, file->item.path, errno);
    rd_file_drop(file, false);
}

void rd_delta_begin(rd_writer_t *writer, const rd_copy_terms_t *terms, rd_file_t *file)
{
    if (file->fd < 0)
        return;
    file->check = rd_digest_open(terms->check);
    if (file->check && rd_digest_read(file->check, file->fd, file->at) &&
        lseek(file->fd, (off_t)file->at, SEEK_SET) >= 0)
        return;
    fail(writer, file, NULL);
}

/* Opens the target's version. If it is no longer the file from which the blocks were computed,
 * rd_delta_end detects that. */
static bool open_version(rd_file_t *file)
{
    struct stat is;

    if (file->version >= 0)
        return true;
    file->version = rd_file_at(file->parent, file->name, &is);
    if (file->version < 0)
        return false;
    file->version_has_holes = rd_is_sparse(&is);
    file->version_bytes = (uint64_t)is.st_size;
    return true;
}

void rd_delta_copy(rd_writer_t *writer, rd_file_t *file, uint64_t from, uint64_t len)
{
    static uint8_t piece[READ_BYTES];
    uint64_t end = from + len;

    if (file->fd < 0)
        return;
    if (!open_version(file)) {
        fail(writer, file, "disappeared during the copy");
        return;
    }
    if (end > file->version_bytes) {
        fail(writer, file, "the source refers to data beyond the end of this file");
        return;
    }
    if (len > file->item.size || file->at > file->item.size - len) {
        fail(writer, file, "the source sent more data than it announced");
        return;
    }
    while (from < end && file->fd >= 0) {
        uint64_t data = file->version_has_holes ? rd_end_of_hole(file->version, from, end) : from;
        size_t n = end - data < READ_BYTES ? (size_t)(end - data) : READ_BYTES;

        if (data > from)
            rd_file_skip(writer, file, data - from);
        from = data;
        if (n > 0 && !rd_read_at(file->version, piece, n, from)) {
            fail(writer, file, errno ? NULL : "shrank during the copy");
            return;
        }
        rd_file_write(writer, file, piece, n);
        from += n;
    }
}

void rd_delta_end(rd_writer_t *writer, rd_file_t *file, const uint8_t check[RD_DIGEST_BYTES])
{
    uint8_t got[RD_DIGEST_BYTES];
    bool done;

    if (file->fd < 0)
        return;
    done = rd_digest_end(file->check, got) && memcmp(got, check, sizeof got) == 0;
    file->check = NULL;
    if (done)
        return;
    rd_complain(&writer->complaints, file->item.path,
                "not updated, because it changed during the copy; copy it again");
    rd_file_drop(file, true);
}
