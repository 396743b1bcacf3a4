/* SPDX-License-Identifier: Apache-2.0 */
/* The third part of a copy: the content of the files, as far as the target does not have it. */
#include "attributes.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "rdframe.h"

typedef struct {
    rd_copy_t copy;
    rd_complaints_t complaints;
    rd_beneath_t beneath;
    rd_item_t item;
    rd_items_out_t out;
    rd_items_in_t in;
    bool is_opened;  /* the top */
    bool is_reading; /* once more what was sent, and sends nothing */
    uint32_t crc;    /* of what was sent of this file, or read once more */
} pack_t;

static int open_file(pack_t *pack, const char *path, struct stat *is_p)
{
    int flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, fd;

    if (*path)
        fd = rd_beneath_file(&pack->beneath, path, flags, 0);
    else
        fd = open(pack->copy.path, flags);
    if (fd >= 0 && fstat(fd, is_p) == 0 && S_ISREG(is_p->st_mode))
        return fd;
    rd_complain(&pack->complaints, path, "%s",
                fd >= 0           ? "is no file any more"
                : errno == ENOENT ? "is gone since it was listed"
                                  : strerror(errno));
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Is what the target has the beginning of this file? */
static bool is_same(int fd, const struct stat *is, const rd_item_t *item)
{
    uint8_t digest[RD_DIGEST_BYTES];

    if (item->has == RD_HAS_SAME)
        return (uint64_t)is->st_size == item->size && is->st_mtim.tv_sec == item->mtime_s &&
               is->st_mtim.tv_nsec == item->mtime_ns;
    return item->has != RD_HAS_NOTHING && item->offset <= (uint64_t)is->st_size &&
           rd_digest_file(fd, item->offset, digest) &&
           memcmp(digest, item->digest, sizeof digest) == 0;
}

static bool put(pack_t *pack, rd_item_kind_t kind, uint64_t size)
{
    static rd_item_t item;

    item.kind = kind;
    item.size = size;
    item.has = kind == RD_ITEM_CLOSE && size > 0 ? RD_HAS_ALL : RD_HAS_NOTHING;
    return rd_items_put(&pack->out, &item);
}

/* Sends what is stored from *at_p to `end`. False: it could not be read, and `goes_on_p` says
 * whether anybody still wants more. */
static bool send_data(pack_t *pack, int fd, uint64_t *at_p, uint64_t end, bool *goes_on_p)
{
    while (*at_p < end && *goes_on_p) {
        size_t room;
        uint8_t *to = rd_items_data_room(&pack->out, &room);
        ssize_t n;

        if (room > end - *at_p)
            room = (size_t)(end - *at_p);
        n = pread(fd, to, room, (off_t)*at_p);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            rd_complain(&pack->complaints, pack->item.path, "%s",
                        n < 0 ? strerror(errno) : "became shorter while it was read");
            return false;
        }
        pack->crc = rd_crc_on(pack->crc, to, (size_t)n);
        *goes_on_p = pack->is_reading || rd_items_data_put(&pack->out, (size_t)n);
        *at_p += (uint64_t)n;
    }
    return *goes_on_p;
}

/* The end of the hole that begins at `at`, or `at` if there is none. */
static uint64_t end_of_hole(int fd, uint64_t at, uint64_t size)
{
    off_t data = lseek(fd, (off_t)at, SEEK_DATA);

    if (data < 0)
        return errno == ENXIO ? size : at;
    return (uint64_t)data > size ? size : (uint64_t)data;
}

static uint64_t end_of_data(int fd, uint64_t at, uint64_t size)
{
    off_t hole = lseek(fd, (off_t)at, SEEK_HOLE);

    return hole < 0 || (uint64_t)hole > size || (uint64_t)hole <= at ? size : (uint64_t)hole;
}

/* Holes stay holes. */
static bool send_content(pack_t *pack, int fd, const struct stat *is, uint64_t at, bool *goes_on_p)
{
    uint64_t size = (uint64_t)is->st_size;

    if ((uint64_t)is->st_blocks * 512 >= size)
        return at == size || send_data(pack, fd, &at, size, goes_on_p);
    while (at < size) {
        uint64_t next = end_of_hole(fd, at, size);

        if (next > at) {
            *goes_on_p = pack->is_reading || put(pack, RD_ITEM_HOLE, next - at);
            at = next;
        }
        if (!*goes_on_p ||
            (at < size && !send_data(pack, fd, &at, end_of_data(fd, at, size), goes_on_p)))
            return false;
    }
    return true;
}

/* Does the file still have what was sent of it, from `at` on, and before it what the target has? */
static bool is_still_so(pack_t *pack, int fd, const struct stat *before, uint64_t at)
{
    uint8_t digest[RD_DIGEST_BYTES];
    uint32_t sent = pack->crc;
    bool goes_on = true, done;

    pack->crc = 0;
    pack->is_reading = true;
    done = send_content(pack, fd, before, at, &goes_on) && pack->crc == sent;
    pack->is_reading = false;
    return done && (at == 0 || (rd_digest_file(fd, at, digest) &&
                                memcmp(digest, pack->item.digest, sizeof digest) == 0));
}

/* What was sent is a file that there was. One that only grew, as a log does, had this beginning;
 * times do not tell that, so it is read once more. */
static bool is_sound(pack_t *pack, int fd, const struct stat *before, uint64_t at)
{
    const char *path = pack->item.path;
    struct stat is;

    if (fstat(fd, &is) == 0 && is.st_size == before->st_size &&
        is.st_mtim.tv_sec == before->st_mtim.tv_sec &&
        is.st_mtim.tv_nsec == before->st_mtim.tv_nsec)
        return true;
    if (fstat(fd, &is) == 0 && is.st_size > before->st_size && is_still_so(pack, fd, before, at)) {
        rd_warn(&pack->complaints, path, "grew while it was read: copied as long as it was before");
        return true;
    }
    rd_complain(&pack->complaints, path, "was changed while it was read");
    return false;
}

static bool put_attributes(pack_t *pack, int fd, const struct stat *is)
{
    return !rd_attributes_wanted(&pack->copy) ||
           rd_attributes_put(&pack->complaints, pack->item.path, fd, is, &pack->out);
}

/* False: nobody wants more. */
static bool pack_file(pack_t *pack)
{
    rd_item_t *item = &pack->item;
    struct stat is;
    int fd;
    bool same, whole, goes_on = true;

    if (item->has == RD_HAS_SAME && !rd_attributes_wanted(&pack->copy)) {
        item->kind = RD_ITEM_KEEP;
        item->has = RD_HAS_NOTHING;
        return rd_items_put(&pack->out, item);
    }
    fd = open_file(pack, item->path, &is);
    if (fd < 0)
        return true;
    same = is_same(fd, &is, item);
    item->kind = same && (item->has == RD_HAS_SAME ||
                          (item->has == RD_HAS_ALL && item->offset == (uint64_t)is.st_size))
                     ? RD_ITEM_KEEP
                     : RD_ITEM_FILE;
    item->offset = same && item->has == RD_HAS_PART ? item->offset : 0;
    item->mode = is.st_mode & 07777;
    item->size = (uint64_t)is.st_size;
    item->mtime_s = is.st_mtim.tv_sec;
    item->mtime_ns = (uint32_t)is.st_mtim.tv_nsec;
    item->has = RD_HAS_NOTHING;
    goes_on = put_attributes(pack, fd, &is) && rd_items_put(&pack->out, item);
    if (item->kind == RD_ITEM_FILE && goes_on) {
        pack->crc = 0;
        whole = send_content(pack, fd, &is, item->offset, &goes_on) &&
                is_sound(pack, fd, &is, item->offset);
        goes_on = goes_on && put(pack, RD_ITEM_CLOSE, whole);
    }
    close(fd);
    return goes_on;
}

/* The top of a tree, when the first item of one comes. */
static bool open_top(pack_t *pack)
{
    const char *path = pack->copy.path;
    int top = open(*path ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    pack->is_opened = true;
    if (top < 0)
        rd_complain(&pack->complaints, "", "%s", strerror(errno));
    rd_beneath_open(&pack->beneath, top);
    return top >= 0;
}

static void close_top(pack_t *pack)
{
    if (pack->beneath.top >= 0)
        close(pack->beneath.top);
    rd_beneath_close(&pack->beneath);
    rd_beneath_open(&pack->beneath, -1);
    pack->is_opened = false;
}

static bool begin_source(pack_t *pack, rd_why_t *why)
{
    close_top(pack);
    if (!rd_copy_source(&pack->copy, &pack->item, why))
        return false;
    pack->item.offset += pack->complaints.count;
    return rd_items_put(&pack->out, &pack->item);
}

/* What belongs to a directory or symbolic link goes before it. */
static bool put_with_attributes(pack_t *pack)
{
    const rd_item_t *item = &pack->item;
    const char *name = "";
    bool is_link = item->kind == RD_ITEM_LINK, goes_on = true;
    struct stat is;
    int fd = -1, parent = -1;

    if (!rd_attributes_wanted(&pack->copy))
        return rd_items_put(&pack->out, item);
    if (is_link)
        parent = rd_beneath_parent(&pack->beneath, item->path, &name);
    else
        fd = rd_beneath_file(&pack->beneath, item->path, O_RDONLY | O_DIRECTORY, 0);
    if (is_link ? parent >= 0 && fstatat(parent, name, &is, AT_SYMLINK_NOFOLLOW) == 0
                : fd >= 0 && fstat(fd, &is) == 0)
        goes_on = put_attributes(pack, fd, &is);
    else
        rd_complain(&pack->complaints, item->path, "%s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return goes_on && rd_items_put(&pack->out, item);
}

static bool step(pack_t *pack, rd_why_t *why)
{
    rd_item_t *item = &pack->item;

    if (!rd_items_next(&pack->in, item, why))
        return false;
    switch (item->kind) {
    case RD_ITEM_FILE:
        return pack_file(pack);
    case RD_ITEM_DIR:
        return (pack->is_opened || open_top(pack)) && rd_items_put(&pack->out, item);
    case RD_ITEM_START:
        return begin_source(pack, why);
    case RD_ITEM_HARD:
        return rd_items_put(&pack->out, item);
    case RD_ITEM_LEAVE:
    case RD_ITEM_LINK:
        return put_with_attributes(pack);
    case RD_ITEM_END:
        item->size += pack->complaints.count;
        (void)rd_items_put(&pack->out, item);
        return false;
    default:
        return rd_because(why, "the target asks for what belongs to no list");
    }
}

int rd_copy_pack(const rd_copy_t *copy, int in, int out)
{
    static pack_t pack;
    rd_why_t why = {.text = ""};
    bool done;

    pack = (pack_t){.copy = *copy, .complaints = {.copy = &pack.copy}};
    rd_beneath_open(&pack.beneath, -1);
    done = rd_items_out_open(&pack.out, out) && rd_items_in_open(&pack.in, in, &pack.out);
    while (done && step(&pack, &why))
        ;
    if (why.text[0])
        rd_complain(&pack.complaints, "", "%s", why.text);
    done = rd_items_out_close(&pack.out) && done && pack.complaints.count == 0;
    rd_items_in_close(&pack.in);
    close_top(&pack);
    return done ? RD_COPY_DONE : RD_COPY_FAILED;
}
