/* SPDX-License-Identifier: Apache-2.0 */
/* The third part of a copy, which sends the content that the target does not have yet. Where
 * reading a small file takes a long time, several are read in parallel (copy_jobs.h), but sent in
 * order. */
#include "copy_delta.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "copy_jobs.h"
#include "stream/rdframe.h"
#include "sparse.h"

/* A small file that is read in parallel with others, or an item that waits for its turn. */
typedef struct {
    rd_item_t item;
    int parent; /* -1 if there is no file to read */
    char name[256];
    int fd, error; /* -1 if it could not be opened, with the reason in `error` */
    bool is_read;  /* it was read completely, and did not change in the meantime */
    struct stat is;
    uint8_t content[RD_SMALL_BYTES];
} job_t;

typedef struct {
    rd_copy_t copy;
    rd_complaints_t complaints;
    rd_copy_terms_t terms;
    rd_blocks_t blocks; /* the blocks of the target's version of the next file */
    rd_beneath_t beneath;
    rd_item_t item;
    rd_items_out_t out;
    rd_items_in_t in;
    bool is_opened;  /* the top directory is open */
    dev_t device;    /* device of the top directory */
    bool is_reading; /* the bytes that were sent are being reread, and nothing is sent */
    uint32_t crc;    /* checksum of the bytes of this file that were sent or reread */
    bool has_ended;  /* the receiver has closed */
    rd_jobs_t *jobs; /* NULL if not needed yet */
    rd_pace_t pace;
    int64_t us;       /* how long opening and reading this file took */
    uint8_t *unsized; /* buffer for files whose size is reported as 0, or NULL if not needed yet */
    size_t unsized_bytes;
} pack_t;

#define UNSIZED_STEP ((size_t)64 * 1024)
#define UNSIZED_MAX (64u << 20) /* limit for a file whose size is reported as 0 */

static void complain(pack_t *pack, const char *path, int error)
{
    rd_complain(&pack->complaints, path, "%s",
                error == 0        ? "is no longer a regular file"
                : error == ENOENT ? "has disappeared since it was listed"
                                  : strerror(error));
}

static int open_file(pack_t *pack, const char *path, struct stat *is_p)
{
    int fd;

    if (*path)
        fd = rd_beneath_file(&pack->beneath, path, O_RDONLY | RD_FILE_FLAGS);
    else /* the user may name a symbolic link */
        fd = open(pack->copy.path, O_RDONLY | (RD_FILE_FLAGS & ~O_NOFOLLOW));
    fd = rd_as_file(fd, is_p);
    if (fd < 0)
        complain(pack, path, errno);
    return fd;
}

/* Files in /proc and in some FUSE file systems report a size of 0, but do have content. Their
 * length is known only at their end, so they are read into memory. Reports the error if it returns
 * false. */
static bool read_unsized(pack_t *pack, int fd)
{
    size_t room = 0;
    ssize_t n;

    pack->unsized_bytes = 0;
    do {
        if (pack->unsized_bytes == room) {
            uint8_t *more = room < UNSIZED_MAX ? realloc(pack->unsized, room + UNSIZED_STEP) : NULL;

            if (!more) {
                rd_complain(&pack->complaints, pack->item.path,
                            "reports a size of 0 but has more than %u MiB of content: copy it with "
                            "rdpipe HOST:'<FILE'",
                            UNSIZED_MAX >> 20);
                return false;
            }
            pack->unsized = more;
            room += UNSIZED_STEP;
        }
        n = read(fd, pack->unsized + pack->unsized_bytes, room - pack->unsized_bytes);
        pack->unsized_bytes += n > 0 ? (size_t)n : 0;
    } while (n > 0 || (n < 0 && errno == EINTR));
    if (n < 0)
        rd_complain(&pack->complaints, pack->item.path, "%s", strerror(errno));
    return n == 0;
}

/* Returns whether the bytes that the target already has are the beginning of this file. */
static bool is_same(const pack_t *pack, int fd, const struct stat *is)
{
    const rd_item_t *item = &pack->item;
    uint8_t digest[RD_DIGEST_BYTES];

    if (item->has == RD_HAS_SAME || item->has == RD_HAS_NOTED)
        return item->offset <= item->size && (uint64_t)is->st_size == item->size &&
               rd_has_time(is, item);
    if (item->has == RD_HAS_ALL && pack->blocks.count > 0)
        return (uint64_t)is->st_size == item->offset &&
               rd_delta_is_same(&pack->blocks, &pack->terms.key, fd, item->offset, item->digest);
    return item->has != RD_HAS_NOTHING && item->offset <= (uint64_t)is->st_size &&
           rd_digest_file(&pack->terms.key, fd, item->offset, digest) &&
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

/* If this returns false, *goes_on_p says whether the receiver is still there. */
static bool send_data(pack_t *pack, int fd, uint64_t *at_p, uint64_t end, bool *goes_on_p)
{
    while (*at_p < end && *goes_on_p) {
        size_t room;
        uint8_t *to = rd_items_data_room(&pack->out, &room);
        int64_t from = rd_now_us();
        ssize_t n;

        if (room > end - *at_p)
            room = (size_t)(end - *at_p);
        n = pread(fd, to, room, (off_t)*at_p);
        pack->us += rd_now_us() - from;
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            rd_complain(&pack->complaints, pack->item.path, "%s",
                        n < 0 ? strerror(errno) : "shrank while being read");
            return false;
        }
        pack->crc = rd_crc_on(pack->crc, to, (size_t)n);
        *goes_on_p = pack->is_reading || rd_items_data_put(&pack->out, (size_t)n);
        *at_p += (uint64_t)n;
    }
    return *goes_on_p;
}

static bool send_content(pack_t *pack, int fd, const struct stat *is, uint64_t at, bool *goes_on_p)
{
    uint64_t size = (uint64_t)is->st_size;

    if (!rd_is_sparse(is))
        return at == size || send_data(pack, fd, &at, size, goes_on_p);
    while (at < size) {
        uint64_t next = rd_end_of_hole(fd, at, size);

        if (next > at) {
            *goes_on_p = pack->is_reading || put(pack, RD_ITEM_HOLE, next - at);
            at = next;
        }
        if (!*goes_on_p ||
            (at < size && !send_data(pack, fd, &at, rd_end_of_data(fd, at, size), goes_on_p)))
            return false;
    }
    return true;
}

/* Reads the file again, and returns whether it still has the same content: the bytes before `at`,
 * which the target already had, and those from `at` on, which were sent. */
static bool is_still_so(pack_t *pack, int fd, const struct stat *before, uint64_t at)
{
    uint8_t digest[RD_DIGEST_BYTES];
    uint32_t sent = pack->crc;
    bool goes_on = true, done;

    pack->crc = 0;
    pack->is_reading = true;
    done = send_content(pack, fd, before, at, &goes_on) && pack->crc == sent;
    pack->is_reading = false;
    return done && (at == 0 || (rd_digest_file(&pack->terms.key, fd, at, digest) &&
                                memcmp(digest, pack->item.digest, sizeof digest) == 0));
}

static bool is_unchanged(int fd, const struct stat *before)
{
    struct stat is;

    return fstat(fd, &is) == 0 && is.st_size == before->st_size &&
           is.st_mtim.tv_sec == before->st_mtim.tv_sec &&
           is.st_mtim.tv_nsec == before->st_mtim.tv_nsec;
}

/* Returns whether the file had, at some point, exactly the content that we sent. That is still true
 * if it has only grown, like a log, but timestamps do not show that, so the file is read again.
 * `check` is its digest if it was sent as a difference, otherwise NULL. */
static bool is_sound(pack_t *pack, int fd, const struct stat *before, uint64_t at,
                     const uint8_t *check)
{
    const char *path = pack->item.path;
    struct stat is;

    if (is_unchanged(fd, before))
        return true;
    if (fstat(fd, &is) == 0 && is.st_size > before->st_size &&
        (check ? rd_delta_is_still(&pack->terms, fd, (uint64_t)before->st_size, check)
               : is_still_so(pack, fd, before, at))) {
        rd_warn(&pack->complaints, path, "grew while being read: copied with its previous length");
        return true;
    }
    rd_complain(&pack->complaints, path, "changed while being read");
    return false;
}

/* Sends the difference from the target's version. Returns false if the receiver has closed. */
static bool send_changes(pack_t *pack, int fd, const struct stat *is)
{
    static rd_item_t end;
    uint64_t at = pack->item.offset;
    bool whole, goes_on = true;

    end = (rd_item_t){.kind = RD_ITEM_CLOSE};
    whole =
        rd_delta_send(&pack->out, &pack->blocks, &pack->terms, fd, is, at, &goes_on, end.digest);
    if (!whole && goes_on)
        rd_complain(&pack->complaints, pack->item.path, "%s",
                    errno ? strerror(errno) : "shrank while being read");
    whole = whole && is_sound(pack, fd, is, at, end.digest);
    end.has = whole ? RD_HAS_ALL : RD_HAS_NOTHING;
    return goes_on && rd_items_put(&pack->out, &end);
}

static bool put_attributes(pack_t *pack, int fd, const struct stat *is)
{
    return !rd_attributes_wanted(&pack->copy) ||
           rd_attributes_put(&pack->complaints, pack->item.path, fd, is, &pack->out);
}

static void describe(rd_item_t *item, const struct stat *is)
{
    item->mode = is->st_mode & 07777;
    item->size = (uint64_t)is->st_size;
    item->mtime_s = is->st_mtim.tv_sec;
    item->mtime_ns = (uint32_t)is->st_mtim.tv_nsec;
    item->has = RD_HAS_NOTHING;
}

/* Returns false if the receiver has closed. */
static bool pack_file(pack_t *pack)
{
    rd_item_t *item = &pack->item;
    struct stat is;
    int64_t from;
    int fd;
    bool is_unsized, same, has_part, has_version, whole, goes_on = true;

    if (item->has == RD_HAS_SAME && !rd_attributes_wanted(&pack->copy)) {
        item->kind = RD_ITEM_KEEP;
        item->has = RD_HAS_NOTHING;
        return rd_items_put(&pack->out, item);
    }
    from = rd_now_us();
    fd = open_file(pack, item->path, &is);
    if (fd < 0)
        return true;
    pack->us = rd_now_us() - from;
    if (is.st_size == 0 && !read_unsized(pack, fd)) {
        close(fd);
        return true;
    }
    is_unsized = is.st_size == 0 && pack->unsized_bytes > 0;
    same = !is_unsized && is_same(pack, fd, &is);
    item->kind = same && (item->has == RD_HAS_SAME ||
                          (item->has == RD_HAS_ALL && item->offset == (uint64_t)is.st_size))
                     ? RD_ITEM_KEEP
                     : RD_ITEM_FILE;
    item->offset =
        same && (item->has == RD_HAS_PART || item->has == RD_HAS_NOTED) ? item->offset : 0;
    has_part = item->has == RD_HAS_PART;
    has_version = item->kind == RD_ITEM_FILE && !is_unsized && pack->blocks.count > 0;
    describe(item, &is);
    if (is_unsized)
        item->size = pack->unsized_bytes;
    if (has_version)
        item->has = RD_HAS_VERSION;
    else if (has_part)
        item->has = RD_HAS_PART; /* the target removes its part if it cannot resume it */
    goes_on = put_attributes(pack, fd, &is) && rd_items_put(&pack->out, item);
    if (is_unsized && goes_on) {
        goes_on = rd_items_put_data(&pack->out, pack->unsized, pack->unsized_bytes) &&
                  put(pack, RD_ITEM_CLOSE, true);
    } else if (has_version && goes_on) {
        goes_on = send_changes(pack, fd, &is);
    } else if (item->kind == RD_ITEM_FILE && goes_on) {
        pack->crc = 0;
        whole = send_content(pack, fd, &is, item->offset, &goes_on) &&
                is_sound(pack, fd, &is, item->offset, NULL);
        goes_on = goes_on && put(pack, RD_ITEM_CLOSE, whole);
        if ((size_t)is.st_size <= RD_SMALL_BYTES)
            rd_pace_took(&pack->pace, pack->us);
    }
    close(fd);
    return goes_on;
}

/* Takes the place of pack_file in a dry run, and sends no content. */
static bool pack_nothing(pack_t *pack)
{
    rd_item_t *item = &pack->item;
    bool same = item->has == RD_HAS_SAME, is_part = item->has == RD_HAS_PART;
    struct stat is;

    if (is_part || item->has == RD_HAS_ALL) {
        int fd = open_file(pack, item->path, &is);

        if (fd < 0)
            return true;
        same = is_same(pack, fd, &is);
        close(fd);
        item->offset = same ? item->offset : 0;
        same = same && !is_part && item->offset == (uint64_t)is.st_size;
        describe(item, &is);
    }
    item->kind = same ? RD_ITEM_KEEP : RD_ITEM_FILE;
    item->offset = is_part ? item->offset : 0;
    item->has = RD_HAS_NOTHING;
    return rd_items_put(&pack->out, item);
}

/* Runs in a job's thread. A file that cannot be read here is read when its turn comes. */
static void do_job(void *context, void *argument)
{
    job_t *job = argument;
    size_t size;

    (void)context;
    job->fd = rd_file_at(job->parent, job->name, &job->is);
    job->error = errno;
    close(job->parent);
    size = job->fd >= 0 ? (size_t)job->is.st_size : 0;
    if (job->fd < 0 || size > RD_SMALL_BYTES || rd_is_sparse(&job->is))
        return;
    /* A file whose size is reported as 0 may still have content. */
    job->is_read = rd_read_at(job->fd, job->content, size, 0) && is_unchanged(job->fd, &job->is) &&
                   (size > 0 || read(job->fd, job->content, 1) == 0);
}

static bool send_read(pack_t *pack, const job_t *job)
{
    rd_item_t *item = &pack->item;

    item->offset = 0;
    describe(item, &job->is);
    return put_attributes(pack, job->fd, &job->is) && rd_items_put(&pack->out, item) &&
           rd_items_put_data(&pack->out, job->content, (size_t)job->is.st_size) &&
           put(pack, RD_ITEM_CLOSE, true);
}

static bool take(pack_t *pack);

/* Must preserve pack->item, which is the item just received. */
static void end_job(void *context, void *argument)
{
    static rd_item_t come;
    pack_t *pack = context;
    job_t *job = argument;

    come = pack->item;
    pack->item = job->item;
    if (job->parent >= 0 && job->fd < 0)
        complain(pack, job->item.path, job->error);
    else if (!pack->has_ended)
        pack->has_ended = !(job->is_read ? send_read(pack, job) : take(pack));
    if (job->parent >= 0 && job->fd >= 0)
        close(job->fd);
    pack->item = come;
}

/* Returns a job with the current item, or NULL if the jobs could not be set up. */
static job_t *new_job(pack_t *pack)
{
    job_t *job;

    if (!pack->jobs)
        pack->jobs = rd_jobs_open(sizeof(job_t), do_job, end_job, pack);
    if (!pack->jobs)
        return NULL;
    job = rd_jobs_room(pack->jobs);
    job->item = pack->item;
    job->parent = -1;
    return job;
}

/* If `reads` is true, a thread reads the job's file while the job waits for its turn. */
static void give(pack_t *pack, job_t *job, bool reads)
{
    const char *name;
    int parent;

    job->is_read = false;
    if (reads) {
        parent = rd_beneath_parent(&pack->beneath, job->item.path, &name);
        if (parent >= 0 && strlen(name) < sizeof job->name) {
            (void)snprintf(job->name, sizeof job->name, "%s", name);
            job->parent = fcntl(parent, F_DUPFD_CLOEXEC, 0);
        }
    }
    rd_jobs_give(pack->jobs, job->parent >= 0);
}

static bool take_in_turn(pack_t *pack)
{
    const rd_item_t *item = &pack->item;
    bool was_beside = pack->pace.is_beside;
    bool is_small = item->kind == RD_ITEM_FILE && item->has == RD_HAS_NOTHING && *item->path &&
                    item->size <= RD_SMALL_BYTES && !pack->copy.dry_run && pack->blocks.count == 0;
    bool reads = is_small && rd_pace_next(&pack->pace, rd_now_us());
    job_t *job;

    if (is_small && was_beside && !reads)
        /* Wait for the jobs, so that the next files, read one by one, show how long each takes. */
        rd_jobs_drain(pack->jobs);
    job = reads || rd_jobs_are_pending(pack->jobs) ? new_job(pack) : NULL;
    if (!job)
        return take(pack);
    give(pack, job, reads);
    return !pack->has_ended;
}

static bool open_top(pack_t *pack)
{
    const char *path = pack->copy.path;
    int top = open(*path ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat is;

    pack->is_opened = true;
    if (top < 0)
        rd_complain(&pack->complaints, "", "%s", strerror(errno));
    pack->device = top >= 0 && fstat(top, &is) == 0 ? is.st_dev : 0;
    rd_beneath_open(&pack->beneath, top);
    return top >= 0;
}

static void close_top(pack_t *pack)
{
    rd_close(&pack->beneath.top);
    rd_beneath_close(&pack->beneath);
    pack->is_opened = false;
}

static bool begin_source(pack_t *pack, rd_why_t *why)
{
    close_top(pack);
    if (!rd_copy_source(&pack->copy, &pack->item, why))
        return false;
    pack->item.offset += pack->complaints.count;
    rd_copy_terms_read(&pack->item, &pack->terms);
    return rd_items_put(&pack->out, &pack->item);
}

/* The attributes of a directory or symbolic link are sent before it. */
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
        fd = rd_beneath_file(&pack->beneath, item->path, O_RDONLY | O_DIRECTORY);
    if (is_link ? parent >= 0 && fstatat(parent, name, &is, AT_SYMLINK_NOFOLLOW) == 0
                : fd >= 0 && fstat(fd, &is) == 0)
        goes_on = put_attributes(pack, fd, &is);
    else
        rd_complain(&pack->complaints, item->path, "%s", strerror(errno));
    rd_close(&fd);
    return goes_on && rd_items_put(&pack->out, item);
}

static bool take(pack_t *pack)
{
    switch (pack->item.kind) {
    case RD_ITEM_FILE:
        return pack->copy.dry_run ? pack_nothing(pack) : pack_file(pack);
    case RD_ITEM_DIR:
        return (pack->is_opened || open_top(pack)) && rd_items_put(&pack->out, &pack->item);
    case RD_ITEM_LEAVE:
    case RD_ITEM_LINK:
        return put_with_attributes(pack);
    default:
        return rd_items_put(&pack->out, &pack->item);
    }
}

/* With -x, directories on other file systems are copied without their content. */
static bool is_on_other_system(pack_t *pack, const char *path)
{
    const char *name;
    struct stat is;
    int parent = pack->copy.one_system && *path && pack->is_opened
                     ? rd_beneath_parent(&pack->beneath, path, &name)
                     : -1;

    return parent >= 0 && fstat(parent, &is) == 0 && is.st_dev != pack->device;
}

/* The target requests files by name, and is not trusted to request only names that were listed. */
static bool may_ask_for(pack_t *pack, rd_why_t *why)
{
    const rd_item_t *item = &pack->item;
    bool is_directory = item->kind == RD_ITEM_DIR || item->kind == RD_ITEM_LEAVE;

    return !((is_directory && !pack->copy.recursive && !pack->copy.wanted) ||
             rd_copy_omits(&pack->copy, item->path, is_directory) ||
             is_on_other_system(pack, item->path)) ||
           rd_because(why, "the target requests '%.300s', which this copy omits", item->path);
}

static bool step(pack_t *pack, rd_why_t *why)
{
    rd_item_t *item = &pack->item;

    if (pack->in.start == pack->in.end)
        rd_jobs_drain(pack->jobs); /* nothing may stay queued here while we wait for more items */
    if (pack->has_ended || !rd_items_next(&pack->in, item, why))
        return false;
    if (item->kind == RD_ITEM_BLOCKS && pack->terms.has_delta) {
        rd_jobs_drain(pack->jobs); /* the attributes belong to the next file */
        return rd_delta_take_blocks(&pack->blocks, item, &pack->in, why);
    }
    if (pack->blocks.count > 0 && item->kind != RD_ITEM_FILE)
        return rd_because(why,
                          "the target sent checksums of blocks for something that is not a file");
    switch (item->kind) {
    case RD_ITEM_FILE:
    case RD_ITEM_DIR:
    case RD_ITEM_HARD:
    case RD_ITEM_LEAVE:
    case RD_ITEM_LINK:
        if (!may_ask_for(pack, why) || !take_in_turn(pack))
            return false;
        rd_blocks_clear(&pack->blocks);
        return true;
    case RD_ITEM_DELETE: /* unpack decides whether to delete it */
        return take_in_turn(pack);
    case RD_ITEM_START:
        rd_jobs_drain(pack->jobs);
        return begin_source(pack, why);
    case RD_ITEM_END:
        rd_jobs_drain(pack->jobs);
        item->size += pack->complaints.count;
        (void)rd_items_put(&pack->out, item);
        return false;
    default:
        return rd_because(why, "the target requests something that cannot be in a list");
    }
}

int rd_copy_pack(const rd_copy_t *copy, int in, int out)
{
    static pack_t pack;
    rd_why_t why = {.text = ""};
    bool done;

    pack = (pack_t){
        .copy = *copy, .complaints = {.copy = &pack.copy}, .pace = rd_pace_from(copy->beside_us)};
    if (copy->dry_run)
        pack.copy.owner = pack.copy.xattrs = pack.copy.acls = false;
    rd_beneath_open(&pack.beneath, -1);
    done = rd_items_out_open(&pack.out, out) && rd_items_in_open(&pack.in, in, &pack.out);
    while (done && step(&pack, &why))
        ;
    if (why.text[0])
        rd_complain(&pack.complaints, "", "%s", why.text);
    rd_jobs_close(pack.jobs, NULL);
    free(pack.unsized);
    rd_blocks_free(&pack.blocks);
    done = rd_items_out_close(&pack.out) && done && pack.complaints.count == 0;
    rd_items_in_close(&pack.in);
    close_top(&pack);
    return done ? RD_COPY_DONE : RD_COPY_FAILED;
}
