/* SPDX-License-Identifier: Apache-2.0 */
/* The second part of a copy, which finds out what the target already has. It changes nothing there,
 * except that it removes stale parts. */
#include "copy_delete.h"
#include "copy_delta.h"
#include "copy_note.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define SECOND_NS 1000000000

typedef struct {
    rd_copy_t copy;
    rd_complaints_t complaints;
    rd_copy_terms_t terms;
    rd_target_t target;
    rd_beneath_t beneath;
    rd_beneath_t old; /* the tree that --atomic will replace */
    rd_item_t item;
    rd_items_out_t out;
    rd_items_in_t in;
    /* The ID of the directory into which a tree is copied, or 0 if unknown. */
    uint8_t into[RD_DIGEST_BYTES];
    bool has_target;
    bool is_left_out;    /* the rest of this source is not copied */
    bool is_absent;      /* this source cannot be copied to this target, but it can be to others */
    uint64_t excused;    /* errors about such a source, which do not concern the other targets */
    uint32_t inside;     /* depth inside the directory into which the tree is copied, 0 outside */
    bool is_last;        /* no source after this one can have a target */
    uint64_t kept;       /* files since the last LEAVE that need no update */
    rd_extras_t *extras; /* NULL unless --delete or --atomic is given */
} have_t;

/* Returns whether the target has the item's file under this name in the way that `as` says: as a
 * file of the same size (RD_HAS_ALL), or as a part of our own. For RD_HAS_ALL and RD_HAS_PART the
 * item gets the digest of what is there, for comparison at the source; for RD_HAS_NOTED the part's
 * note must match. */
static bool target_has(const have_t *have, int parent, const char *name, rd_has_t as,
                       rd_item_t *item)
{
    struct stat is;
    int fd = rd_file_at(parent, name, &is);
    uint64_t size = fd >= 0 ? (uint64_t)is.st_size : 0;
    uint64_t least = as == RD_HAS_ALL ? item->size : 1;
    bool is_right = fd >= 0 && size >= least && size <= item->size &&
                    (as == RD_HAS_ALL || rd_part_is_ours(parent, &is));
    bool done = false;

    if (is_right && as == RD_HAS_NOTED)
        done = rd_note_holds(fd, item);
    else if (is_right)
        done = rd_digest_file(&have->terms.key, fd, size, item->digest);
    if (done) {
        item->has = as;
        item->offset = size;
    }
    rd_close(&fd);
    return done;
}

/* Returns the resolution of the file system's timestamps in nanoseconds, estimated from those of
 * the file. This works because the kernel sets the status change time with the full resolution. */
static int64_t time_step(int parent, const struct stat *is)
{
    int64_t step = 1;
    struct statfs system;

    while (step < SECOND_NS && is->st_mtim.tv_nsec % (10 * step) == 0 &&
           is->st_ctim.tv_nsec % (10 * step) == 0 && is->st_atim.tv_nsec % (10 * step) == 0)
        step *= 10;
    if (step == SECOND_NS && fstatfs(parent, &system) == 0 && system.f_type == MSDOS_SUPER_MAGIC)
        step *= 2;
    return step;
}

/* Returns whether the file has the item's time, which FAT, SMB and some FUSE file systems
 * truncate. */
static bool has_time(int parent, const struct stat *is, const rd_item_t *item)
{
    int64_t step;

    if (rd_has_time(is, item))
        return true;
    step = time_step(parent, is);
    return is->st_mtim.tv_sec == (step > SECOND_NS ? item->mtime_s & ~(int64_t)1 : item->mtime_s) &&
           is->st_mtim.tv_nsec == item->mtime_ns - item->mtime_ns % step;
}

/* With -p, a file that was copied before has the size and time of its source. */
static bool is_same(const have_t *have, int parent, const char *name, struct stat *is_p)
{
    const rd_item_t *item = &have->item;

    return have->copy.preserve && !have->copy.compare &&
           fstatat(parent, name, is_p, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(is_p->st_mode) &&
           (uint64_t)is_p->st_size == item->size && has_time(parent, is_p, item);
}

/* Removes the part of a complete file, which would otherwise remain forever, unless another copy is
 * writing to it. Between our open and our lock, another copy may have completed this part and
 * created a new one of the same name, so this checks rd_is_named. */
static void drop_part(const have_t *have, int parent, const char *part)
{
    struct stat is;
    int fd = have->copy.dry_run ? -1 : rd_file_at(parent, part, &is);

    if (fd < 0)
        return;
    if (rd_part_is_ours(parent, &is) && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        rd_is_named(parent, part, fd))
        (void)unlinkat(parent, part, 0);
    close(fd);
}

/* Looks in the old tree of --atomic for a file that is missing in the new one. */
static bool look_at_old(have_t *have)
{
    rd_item_t *item = &have->item;
    const char *name;
    int parent =
        have->old.top >= 0 && *item->path ? rd_beneath_parent(&have->old, item->path, &name) : -1;
    struct stat is;

    if (parent < 0)
        return true;
    if (is_same(have, parent, name, &is))
        item->has = RD_HAS_SAME;
    else
        (void)target_has(have, parent, name, RD_HAS_ALL, item);
    return true;
}

/* Sends the block names of the version at the target, and its digest if it may be the same file. A
 * small file is sent in full. */
static void name_blocks(have_t *have, int parent, const char *name)
{
    rd_item_t *item = &have->item;
    uint8_t digest[RD_DIGEST_BYTES] = {0};
    struct stat is;
    int fd;

    if (!have->terms.has_delta || item->size <= RD_SMALL_BYTES)
        return;
    fd = rd_file_at(parent, name, &is);
    if (fd >= 0 && (uint64_t)is.st_size > RD_SMALL_BYTES &&
        rd_block_bytes((uint64_t)is.st_size) > 0) {
        bool may_be_same = item->has == RD_HAS_NOTHING && (uint64_t)is.st_size == item->size;

        if (rd_delta_name_blocks(&have->out, &have->terms.key, fd, (uint64_t)is.st_size,
                                 may_be_same ? digest : NULL) &&
            may_be_same) {
            item->has = RD_HAS_ALL;
            item->offset = item->size;
            memcpy(item->digest, digest, sizeof digest);
        }
    }
    rd_close(&fd);
}

/* Finds out how much of the file the target has: a file of the same length may be identical, and a
 * part may be its beginning. Returns false if a file in a tree needs no update, in which case the
 * item is not forwarded. */
static bool look(have_t *have)
{
    rd_item_t *item = &have->item;
    const char *name = have->target.name;
    int parent = have->beneath.top;
    char part[256];
    struct stat is;

    if (*item->path)
        parent = rd_beneath_parent(&have->beneath, item->path, &name);
    item->has = RD_HAS_NOTHING;
    item->offset = 0;
    if (parent < 0)
        return look_at_old(have);
    rd_part_name(name, part);
    if (is_same(have, parent, name, &is)) {
        drop_part(have, parent, part);
        item->has = RD_HAS_SAME;
        return !*item->path || rd_attributes_wanted(&have->copy) ||
               (is.st_mode & 07777) != (item->mode & RD_MODE_KEPT);
    }
    if (!have->terms.has_notes || item->size <= RD_SMALL_BYTES ||
        !target_has(have, parent, part, RD_HAS_NOTED, item))
        (void)target_has(have, parent, part, RD_HAS_PART, item);
    name_blocks(have, parent, name);
    if (item->has == RD_HAS_NOTHING)
        (void)target_has(have, parent, name, RD_HAS_ALL, item);
    if (item->has == RD_HAS_ALL)
        drop_part(have, parent, part);
    return item->has != RD_HAS_NOTHING || look_at_old(have);
}

/* Returns whether no other copy is writing to the target. If one is, our copy fails here, before it
 * has sent any data. */
static bool is_free(const rd_target_t *target)
{
    int parent = target->is_tree ? target->parent : target->base;
    int fd = target->is_tree && !target->is_new
                 ? -1
                 : openat(parent, target->part, O_RDONLY | RD_FILE_FLAGS);
    bool done = fd < 0 || rd_copy_lock(fd);

    rd_close(&fd);
    return done;
}

static bool is_last_target(const have_t *have)
{
    return have->copy.target + 1 >= have->copy.targets;
}

/* If a tree were copied into itself, the list would include the new files and never end. This is
 * detected even if the user has given two different names for the same host. */
static bool is_copied_into(have_t *have)
{
    static const uint8_t unknown[RD_DIGEST_BYTES];
    rd_item_t *item = &have->item;
    bool is_it = memcmp(item->digest, have->into, sizeof have->into) == 0 &&
                 memcmp(item->digest, unknown, sizeof unknown) != 0;

    if (is_last_target(have))
        memset(item->digest, 0, sizeof item->digest);
    if (is_it)
        rd_complain(&have->complaints, item->path, "a directory is not copied into itself");
    return is_it;
}

/* Returns whether the item is inside the directory into which its own tree is copied. That
 * directory is left out, but the rest of the tree is copied. */
static bool is_inside(have_t *have)
{
    const rd_item_t *item = &have->item;

    if (item->kind == RD_ITEM_DIR && (have->inside > 0 || is_copied_into(have))) {
        have->inside++;
        have->is_left_out = !*item->path;
    } else if (item->kind == RD_ITEM_LEAVE && have->inside > 0) {
        have->inside--;
        return true;
    }
    return have->inside > 0;
}

static void find_target(have_t *have)
{
    const rd_target_t *target = &have->target;
    const rd_copy_t *copy = &have->copy;
    struct stat into;
    rd_why_t why;
    bool done = rd_target_find(&have->copy, have->item.kind == RD_ITEM_DIR, &have->target, &why);

    have->complaints.into = done && have->target.is_into ? have->target.name : NULL;
    if (done && !is_free(&have->target))
        done = rd_because(&why, RD_COPY_LOSES);
    memset(have->into, 0, sizeof have->into);
    if (done && target->is_tree &&
        fstat(target->base < 0 || target->is_new ? target->parent : target->base, &into) == 0)
        rd_directory_id(&into, have->into);
    if (done) {
        rd_beneath_open(&have->beneath, have->target.base);
        rd_beneath_open(&have->old, have->target.old);
    } else {
        rd_complain(&have->complaints, "", "%s", why.text);
    }
    if (have->extras)
        rd_extras_begin(have->extras,
                        !done || !target->is_tree ? -1
                        : copy->atomic            ? target->old
                                                  : target->base,
                        done && copy->atomic ? target->base : -1);
    have->has_target = done;
    have->is_absent = !done && have->copy.targets > 1;
    have->excused += have->is_absent;
    have->is_left_out = !done && !have->is_absent;
    /* Several sources are all copied into the same directory. */
    have->is_last |= !have->target.is_into;
}

static bool begin_source(have_t *have, rd_why_t *why)
{
    rd_beneath_close(&have->beneath);
    rd_beneath_close(&have->old);
    rd_target_close(&have->target);
    have->has_target = have->is_left_out = have->is_absent = false;
    have->inside = 0;
    have->kept = 0;
    have->is_last = have->item.size + 1 >= have->copy.sources;
    have->item.offset += have->complaints.count - have->excused;
    /* Do not accept the offer if there are several targets, because their answers must be
     * comparable, or in a dry run, which only compares. */
    if (have->copy.targets > 1 || have->copy.dry_run)
        rd_copy_terms_read(&have->item, &have->terms);
    else
        rd_copy_terms_answer(&have->item, &have->terms);
    return rd_copy_source(&have->copy, &have->item, why);
}

/* ---- several targets ---- */

/* Combines how much this target has of a file with how much the previous targets have. A file that
 * only some of them have is sent to all. If all of them have it, the offset says whether any target
 * needs the item in order to set the mode or other attributes. Returns false if no target needs
 * anything. */
static bool look_with_others(have_t *have)
{
    rd_item_t *item = &have->item;
    bool is_first = have->copy.target == 0, needs;
    uint64_t offset = item->offset;
    rd_has_t has = item->has;
    uint8_t digest[RD_DIGEST_BYTES];

    memcpy(digest, item->digest, sizeof digest);
    needs = look(have);
    if (item->has == RD_HAS_SAME)
        item->offset = needs || (!is_first && offset != 0);
    if (!is_first && (item->has != has ||
                      (has != RD_HAS_SAME && (item->offset != offset ||
                                              memcmp(item->digest, digest, sizeof digest) != 0)))) {
        item->has = RD_HAS_NOTHING;
        item->offset = 0;
    }
    if (item->has != RD_HAS_SAME || !is_last_target(have))
        return true;
    needs = item->offset != 0;
    item->offset = 0;
    return needs;
}

/* Returns false when the copy has ended; *why is set if that was because of an error. */
static bool step(have_t *have, rd_why_t *why)
{
    rd_item_t *item = &have->item;
    bool is_of_source;

    if (!rd_items_next(&have->in, item, why))
        return false;
    if (item->kind == RD_ITEM_DELETE && item->size < have->copy.target)
        return rd_items_put(&have->out, item);
    if (item->kind == RD_ITEM_DATA || item->kind == RD_ITEM_HOLE || item->kind == RD_ITEM_CLOSE ||
        item->kind == RD_ITEM_KEEP || item->kind == RD_ITEM_ATTRIBUTE ||
        item->kind == RD_ITEM_DELETE)
        return rd_because(why, "the list contains an item that does not belong in a list");
    if (item->kind == RD_ITEM_START && !begin_source(have, why))
        return false;
    is_of_source = item->kind != RD_ITEM_START && item->kind != RD_ITEM_END;
    if (is_of_source && !have->has_target && !have->is_left_out && !have->is_absent)
        find_target(have);
    if (is_of_source && have->extras && have->has_target &&
        !rd_extras_take(have->extras, item, why))
        return false;
    if (item->kind == RD_ITEM_SKIP && !have->copy.deletes)
        return rd_because(why, "the list contains an item that was not requested");
    if (item->kind == RD_ITEM_SKIP)
        return is_last_target(have) || rd_items_put(&have->out, item);
    if (is_of_source && (have->is_left_out || is_inside(have))) {
        if (!have->is_left_out || !have->is_last)
            return true;
        *item = (rd_item_t){.kind = RD_ITEM_END}; /* the rest of the list need not be read */
    }
    if (item->kind == RD_ITEM_END)
        item->size += have->complaints.count - have->excused;
    if (item->kind == RD_ITEM_FILE && !look_with_others(have)) {
        have->kept++;
        return true;
    }
    if (item->kind == RD_ITEM_LEAVE) {
        item->size = have->kept;
        have->kept = 0;
    }
    return rd_items_put(&have->out, item) && item->kind != RD_ITEM_END;
}

int rd_copy_have(const rd_copy_t *copy, int in, int out)
{
    static have_t have;
    rd_why_t why = {.text = ""};
    bool done;

    have = (have_t){.copy = *copy,
                    .complaints = {.copy = &have.copy},
                    .target = {.base = -1, .parent = -1, .old = -1}};
    rd_beneath_open(&have.beneath, -1);
    rd_beneath_open(&have.old, -1);
    done = rd_items_out_open(&have.out, out) && rd_items_in_open(&have.in, in, &have.out);
    if (done && (copy->deletes || copy->atomic))
        done = (have.extras = rd_extras_open(&have.complaints, &have.out)) != NULL;
    while (done && step(&have, &why))
        ;
    if (why.text[0])
        rd_complain(&have.complaints, "", "%s", why.text);
    done = rd_items_out_close(&have.out) && done && have.complaints.count == 0;
    rd_items_in_close(&have.in);
    rd_extras_close(have.extras);
    rd_beneath_close(&have.beneath);
    rd_beneath_close(&have.old);
    rd_target_close(&have.target);
    return done ? RD_COPY_DONE : RD_COPY_FAILED;
}
