/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COPY_H
#define RD_COPY_H

#include <sys/stat.h>

#include "beneath.h"
#include "copy_terms.h"
#include "items.h"
#include "names.h"

#define RD_TARGETS_MAX 16u

/*
 * A copy is a pipeline of four filters, which rdcp has rdpipe's agents run:
 *
 *   source: list    names what there is to copy                                      (item.h)
 *   target: have    adds to each file what lies there of it already, and its digest
 *   source: pack    sends what is missing
 *   target: unpack  writes it
 *
 * Of several targets each has a `have`, one behind the other, and an `unpack`, which all get the
 * same stream. What only some of them have is sent to all.
 *
 * A file is written under the name that rd_part_name gives, and gets its own by a rename when it is
 * whole. A tree that is new is built under such a name as a whole. A partial file or tree stays
 * there, and the next copy to the same target resumes it; a lock keeps two copies apart.
 */

typedef struct {
    const char *host; /* in messages; "" for none */
    const char *path; /* of the source or the target, as the user wrote it */
    const char *name; /* the source's last name, "" if it has none: within a directory as target */
    const char *const *paths;    /* of several sources; NULL: `path` alone */
    const char *const *names;    /* the same of their names */
    size_t sources;              /* how many paths or names there are; 0: one */
    const char *const *excluded; /* patterns, of which the first that fits decides */
    const bool *included;        /* which of them are of --include; NULL: none */
    size_t exclusions;
    const rd_names_t *wanted; /* the names of --files-from; NULL: all */
    bool recursive, preserve, verbose;
    bool owner, hard_links, xattrs, acls; /* kept as well */
    bool compare;                         /* contents, also where size and time are the same */
    bool no_directory;    /* the target is the copy itself, also if it is a directory */
    bool fail_special;    /* a device, FIFO or socket in the source tree is an error */
    bool deletes;         /* what a directory of the target has, and that of the source has not */
    uint64_t deletes_max; /* if it is more, nothing of it is deleted */
    bool dry_run;         /* nothing is changed: the changes are shown */
    bool one_system;      /* directories of other file systems are copied without their content */
    bool atomic;          /* a tree that is there is replaced as a whole */
    unsigned target, targets; /* of `targets` (0: one) this part is at number `target`, from 0 */
    bool json;                /* a line of it says what was done */
    rd_delta_t delta;         /* of the list alone */
    unsigned beside_us; /* small files that take longer, each, are read and written side by side */
} rd_copy_t;

enum { RD_COPY_DONE = 0, RD_COPY_FAILED = 1 };

/* A file that may be read or written beside others. */
#define RD_SMALL_BYTES ((size_t)64 * 1024)

#define RD_MODE_KEPT ((mode_t)01777) /* what -p keeps of a mode: all but set-id bits */

/* Has the user excluded this path of a source? Says nothing of the directories above it. */
bool rd_copy_excludes(const rd_copy_t *copy, const char *path, bool is_directory);

/* Has the user left out this path of a source, or a directory that it lies in? Without -r and
 * --files-from he leaves out all but the source itself. */
bool rd_copy_omits(const rd_copy_t *copy, const char *path, bool is_directory);

/* Each returns its exit status; reasons are on standard error. */
int rd_copy_list(const rd_copy_t *copy, int out);
int rd_copy_have(const rd_copy_t *copy, int in, int out);
int rd_copy_pack(const rd_copy_t *copy, int in, int out);
int rd_copy_unpack(const rd_copy_t *copy, int in);
/* In place of unpack, in a dry run: prints the changes. */
int rd_copy_show(const rd_copy_t *copy, int in, int out);

/* What goes wrong is counted, and said: the first RD_COMPLAINTS_MAX times. */
#define RD_COMPLAINTS_MAX 20u

typedef struct {
    const rd_copy_t *copy;
    const char *into; /* the name below copy->path that is copied to; NULL: that path itself */
    uint64_t count;
    uint64_t warned;
} rd_complaints_t;

/* "rdcp: HOST: PATH/BELOW: text", plain. */
__attribute__((format(printf, 3, 4))) void rd_complain(rd_complaints_t *complaints,
                                                       const char *below, const char *form, ...);

/* What was done, without a bound on the lines. */
__attribute__((format(printf, 3, 4))) void rd_note(const rd_complaints_t *complaints,
                                                   const char *below, const char *form, ...);

/* The same for what is no error: it does not count. */
__attribute__((format(printf, 3, 4))) void rd_warn(rd_complaints_t *complaints, const char *below,
                                                   const char *form, ...);

/* "a FIFO", ...: what rdcp neither reads nor replaces; NULL: a file, directory or symbolic link. */
const char *rd_special_name(mode_t mode);

/* The same for what a directory has under this name; NULL also if there is nothing. */
const char *rd_special_at(int parent, const char *name);

/* Goes on with the source that a START item names. False: there is none, or *why. */
bool rd_copy_source(rd_copy_t *copy, const rd_item_t *start, rd_why_t *why);

/* Where a copy goes. */
typedef struct {
    int base;   /* a tree's top, -1: not there yet; of a file its directory */
    int parent; /* of a tree; -1 if it was a directory that the user named itself */
    int old;    /* with --atomic: the tree that will be replaced; -1: none */
    char name[256], part[256];
    char retired[256]; /* the name of `old` between its replacement and its end */
    bool is_tree;
    bool is_into; /* a directory is copied into: `name` is below the path of the user */
    bool is_new;  /* a tree that is not there under its own name */
} rd_target_t;

/* Is another file system mounted here? Of a kernel before 5.8 nobody knows, and then it is not. */
bool rd_is_mount_root(int fd);

/* Which directory of which running kernel this is, whatever name the host is called by; only zeroes
 * if the system does not say it. */
void rd_directory_id(const struct stat *is, uint8_t id[RD_DIGEST_BYTES]);

/* The name that a file or tree has until it is whole: .NAME.rdcp-part, shortened if it must be. */
void rd_part_name(const char *name, char part[256]);
/* The same of a tree that was replaced: .NAME.rdcp-old. */
void rd_retired_name(const char *name, char retired[256]);
bool rd_is_part_name(const char *name);

/* Did a copy of ours make this part, which lies in `parent`? In a directory of several users
 * anybody can make a file or directory of this name, or a link to what is ours. */
bool rd_part_is_ours(int parent, const struct stat *is);

/* What the loser of two copies to one target is told. */
#define RD_COPY_LOSES "another rdcp is writing it: wait until that one has ended"

/* What is said of a tree's part that is not ours. */
#define RD_PART_FOREIGN "this part belongs to another user, or others may write it: remove it first"

/* Takes the lock of a part, which ends with the descriptor. False with errno EBUSY: another copy
 * has it, and not only because it was cut off a moment ago. */
bool rd_copy_lock(int fd);

/* Looks; makes nothing. As with cp: a directory is copied into, if it is there. */
bool rd_target_find(const rd_copy_t *copy, bool is_tree, rd_target_t *target_p, rd_why_t *why);
void rd_target_close(rd_target_t *target);

#endif
