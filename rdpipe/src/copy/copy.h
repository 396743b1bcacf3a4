/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COPY_H
#define RD_COPY_H

#include <sys/stat.h>

#include "open_beneath.h"
#include "copy_terms.h"
#include "item_stream.h"
#include "name_list.h"

#define RD_TARGETS_MAX 16u

/*
 * A copy is a pipeline of four filters, which rdpipe's agents run for rdcp:
 *
 *   source: list    names the files to copy                                   (copy_item.h)
 *   target: have    adds to each file how much of it the target already has, with a digest
 *   source: pack    sends what is missing
 *   target: unpack  writes it
 *
 * With several targets, each has its own `have` and its own `unpack`. The list passes through all
 * `have` parts in turn, and the `unpack` parts all receive the same stream. A file that only some
 * targets have is sent to all of them.
 *
 * A file is written under the name that rd_part_name returns, and is renamed to its own name when
 * it is complete. A new tree is built as a whole under such a name. A partial file or tree keeps
 * that name until the next copy to the same target resumes it; a lock prevents two copies from
 * writing it at once.
 */

typedef struct {
    const char *host; /* for messages; "" to omit it */
    const char *path; /* the path of the source or target, as the user wrote it */
    /* The last component of the source's path, which becomes the copy's name in a target directory;
     * "" if the path has none. */
    const char *name;
    const char *const *paths;    /* if there are several sources; NULL if there is only `path` */
    const char *const *names;    /* the last components of these paths */
    size_t sources;              /* how many paths or names there are; 0 if there is only one */
    const char *const *excluded; /* patterns; the first one that matches decides */
    const bool *included;        /* which of them came from --include, or NULL if none */
    size_t exclusions;
    const rd_names_t *wanted; /* the names of --files-from, or NULL for all files */
    bool recursive, preserve, verbose;
    bool owner, hard_links, xattrs, acls; /* also preserve these */
    bool compare;                         /* compare contents even if size and time are the same */
    bool no_directory;        /* the copy becomes the target itself, even if that is a directory */
    bool fail_special;        /* a device, FIFO or socket in the source tree is an error */
    bool deletes;             /* delete entries that exist only at the target */
    uint64_t deletes_max;     /* if more entries would have to be deleted, none are */
    bool dry_run;             /* show the changes, but make none */
    bool one_system;          /* copy directories on other file systems without their content */
    bool atomic;              /* replace an existing tree as a whole */
    unsigned target, targets; /* index of this part's target, and how many there are (0: one) */
    bool json;                /* print a line of JSON about what was done */
    rd_delta_t delta;         /* used only by `list` */
    unsigned beside_us; /* several small files are handled at once if one takes this long or more */
} rd_copy_t;

enum { RD_COPY_DONE = 0, RD_COPY_FAILED = 1 };

/* Files up to this size may be read or written in parallel. */
#define RD_SMALL_BYTES ((size_t)64 * 1024)

/* The mode bits that -p preserves, which are all except the set-id bits. */
#define RD_MODE_KEPT ((mode_t)01777)

/* Does not check the directories above the path. */
bool rd_copy_excludes(const rd_copy_t *copy, const char *path, bool is_directory);

/* Returns whether the user has left out this path of a source, or a directory above it. Without -r
 * and --files-from that is true of everything but the source itself. */
bool rd_copy_omits(const rd_copy_t *copy, const char *path, bool is_directory);

/* Each returns its exit status, and prints errors to standard error. */
int rd_copy_list(const rd_copy_t *copy, int out);
int rd_copy_have(const rd_copy_t *copy, int in, int out);
int rd_copy_pack(const rd_copy_t *copy, int in, int out);
int rd_copy_unpack(const rd_copy_t *copy, int in);
/* Takes the place of unpack in a dry run, and prints the changes. */
int rd_copy_show(const rd_copy_t *copy, int in, int out);

/* Errors are counted, and the first RD_COMPLAINTS_MAX of them are printed. */
#define RD_COMPLAINTS_MAX 20u

typedef struct {
    const rd_copy_t *copy;
    const char *into; /* the copy's name below copy->path, or NULL for copy->path itself */
    uint64_t count;
    uint64_t warned;
} rd_complaints_t;

/* A note reports what was done. The number of these lines is not limited. */
typedef enum { RD_ERROR, RD_WARNING, RD_NOTE } rd_message_t;

/* Prints "rdcp: HOST: PATH/BELOW: text" as plain text, and counts errors and warnings. */
__attribute__((format(printf, 4, 5))) void rd_tell(rd_complaints_t *complaints, rd_message_t kind,
                                                   const char *below, const char *form, ...);
#define rd_complain(complaints, ...) rd_tell(complaints, RD_ERROR, __VA_ARGS__)
#define rd_warn(complaints, ...) rd_tell(complaints, RD_WARNING, __VA_ARGS__)

/* Returns the name of a kind of file that rdcp neither reads nor replaces, such as "a FIFO", or
 * NULL for a file, directory or symbolic link. */
const char *rd_special_name(mode_t mode);

/* Like rd_special_name, for an entry of a directory. Also returns NULL if the entry does not
 * exist. */
const char *rd_special_at(int parent, const char *name);

/* Returns whether the file's modification time is exactly the one in the item. */
bool rd_has_time(const struct stat *is, const rd_item_t *item);

/* Flags to open an entry of a tree without following a symbolic link or waiting for a FIFO. */
#define RD_FILE_FLAGS (O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)

/* If `fd` is a regular file, describes it in *is_p and returns `fd`. Otherwise closes `fd` and
 * returns -1 with errno 0. If `fd` is already -1, returns -1 and leaves errno unchanged. */
int rd_as_file(int fd, struct stat *is_p);

/* Opens a regular file in a directory for reading, and fails as rd_as_file does. */
int rd_file_at(int parent, const char *name, struct stat *is_p);

/* Switches to the source that a START item names. Returns false with *why set if there is
 * no such source or another error has occurred. */
bool rd_copy_source(rd_copy_t *copy, const rd_item_t *start, rd_why_t *why);

typedef struct {
    int base;   /* a tree's top directory (-1 if there is none), or a file's directory */
    int parent; /* a tree's parent; -1 if the user named an existing directory as the tree itself */
    int old;    /* with --atomic, the tree to be replaced, or -1 if none */
    char name[256], part[256];
    char retired[256]; /* the name of `old` from its replacement until its removal */
    bool is_tree;
    bool is_into; /* the copy goes into an existing directory, so `name` is below the user's path */
    bool is_new;  /* a tree that does not yet exist under its own name */
} rd_target_t;

/* Returns whether another file system is mounted here. Always returns false on kernels before
 * 5.8. */
bool rd_is_mount_root(int fd);

/* Writes the ID of a directory, which stays the same until the host is rebooted and does not depend
 * on the name by which the user addresses the host. The ID is zero if the system does not provide
 * one. */
void rd_directory_id(const struct stat *is, uint8_t id[RD_DIGEST_BYTES]);

/* Writes the temporary name that a file or tree has until it is complete: .NAME.rdcp-part,
 * shortened if necessary. */
void rd_part_name(const char *name, char part[256]);
/* Writes the temporary name of a tree that was replaced: .NAME.rdcp-old. */
void rd_retired_name(const char *name, char retired[256]);
bool rd_is_part_name(const char *name);

/* Returns whether one of our own copies has created this part, which is in `parent`. In a directory
 * that several users may write to, any of them can create a file or directory of this name, or a
 * link to one of our files. */
bool rd_part_is_ours(int parent, const struct stat *is);

#define RD_COPY_LOSES "another rdcp is writing to it: wait until that one has finished"

#define RD_PART_FOREIGN                                                                            \
    "this partial copy belongs to another user, or others can write to it: remove it first"

/* Locks a part until the descriptor is closed. If another copy holds the lock, this waits for a
 * while, because a copy that was interrupted a moment ago may still be exiting. Returns false with
 * errno EBUSY if the part is still locked after that. */
bool rd_copy_lock(int fd);

/* Finds the target without creating anything. As with cp, if the target is an existing directory,
 * the copy goes into it. */
bool rd_target_find(const rd_copy_t *copy, bool is_tree, rd_target_t *target_p, rd_why_t *why);
void rd_target_close(rd_target_t *target);

/* Renames a tree in the target's parent directory to a name that must be free. A file system that
 * supports only plain rename does not check that. On failure, errno is set. */
bool rd_target_rename(const rd_target_t *target, const char *from, const char *to);

#endif
