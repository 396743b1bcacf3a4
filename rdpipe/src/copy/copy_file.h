/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COPY_FILE_H
#define RD_COPY_FILE_H

#include <stdatomic.h>

#include "attributes.h"

/*
 * How a copy writes one file: first under a temporary name, as a part that is locked against other
 * copies. The part's attributes are set, and it is then renamed to the file's name. In a new tree,
 * which is itself a part and locked as a whole, a small file has its own name from the beginning.
 *
 * Writing a small file takes at most eight system calls, and five in a new tree
 * (pipe_copy_calls_test.c).
 *
 * Several threads may write files of one writer at the same time if each file is written by only
 * one thread: complaints are protected by a lock, and the writer's other members are atomic or do
 * not change in the meantime.
 */

/* State shared by all files of a copy. */
typedef struct {
    rd_copy_t copy;
    rd_complaints_t complaints; /* its `copy` is the one above */
    mode_t mask;                /* the process's umask */
    bool is_root;
    bool is_private;      /* the target is a new tree, and no other copy writes to it */
    bool is_local;        /* close never reports a failed write on `device` */
    dev_t device;         /* device of the target's directory */
    atomic_bool replaces; /* the last small file replaced an existing one */
    atomic_bool is_fatal; /* the rest of the copy would fail for the same reason */
} rd_writer_t;

/* A file that is being written. */
typedef struct {
    int fd;     /* -1 if it is not open */
    int parent; /* the descriptor of its directory, owned by the caller, or -1 if none */
    uint64_t at;
    bool owns_parent;   /* `parent` is closed with the file */
    bool is_small;      /* at most RD_SMALL_BYTES, all of which are sent and written */
    bool is_direct;     /* it is written under its own name */
    bool is_noted;      /* it has a note (copy_note.h) */
    bool may_fail_late; /* close may report a failed write */
    bool is_seen; /* `there` describes the file now called `name`, or has mode 0 if none exists */
    /* For a file that is sent as a difference (copy_delta.h): the digest of the bytes written so
     * far (NULL for other files), and the descriptor of the target's version (-1 if not open). */
    rd_digest_t *check;
    int version;
    bool version_has_holes;
    uint64_t version_bytes;
    bool is_known; /* `is` holds its current attributes */
    struct stat is;
    struct stat there;
    char name[256], part[256];
    rd_item_t item;
    rd_attributes_t attributes;
    bool has_old; /* the tree that --atomic replaces also has this file */
    struct stat old;
} rd_file_t;

/* Reports an errno for this path. Always returns false. */
bool rd_writer_complain(rd_writer_t *writer, const char *path, int error);

/* Reports that another copy is writing this path. If the path is the top, the whole copy ends;
 * otherwise the copy continues without this path. */
void rd_writer_lose(rd_writer_t *writer, const char *path);

/* Warns that a file's owner could not be set, with the reason from errno. */
void rd_writer_warn_of_owner(rd_writer_t *writer, const char *path);

/* Returns whether a new file may get this name. Reports the reason if it may not. */
bool rd_writer_is_free(rd_writer_t *writer, const char *path, int parent, const char *name);

/* Returns the mode as cp would set it: with -p the source's, otherwise the source's less the umask.
 * `is_owned` says whether the file has the source's owner. */
mode_t rd_writer_mode(const rd_writer_t *writer, const rd_item_t *item, bool is_owned);

/* Sets the attributes of a file or directory that are preserved from its source. `now` holds its
 * current attributes, or is NULL if they are unknown. `there` is the file that previously had the
 * name, or NULL if there was none. On failure, errno is set. */
bool rd_writer_attributes(rd_writer_t *writer, const rd_attributes_t *attributes, int fd,
                          const struct stat *now, const rd_item_t *item, const struct stat *there);

/* Determines which file system contains this directory, and whether it is local. */
void rd_writer_look_at(rd_writer_t *writer, int directory);

/* Writes an item's modification time to `times`, for futimens. */
void rd_item_times(const rd_item_t *item, struct timespec times[2]);

/* Returns whether `fd` is the file that has this name now. A lock is worthless if the file was
 * renamed before the lock was taken. */
bool rd_is_named(int parent, const char *name, int fd);

/* Opens the part, or, for a small file in a new tree, the file itself, at `item.offset`, to which
 * `at` is already set. On an error, reports it and leaves the file closed; the calls below then do
 * nothing. */
void rd_file_open(rd_writer_t *writer, rd_file_t *file);

/* On an error, reports it, closes the file and leaves its part for the next copy. */
void rd_file_write(rd_writer_t *writer, rd_file_t *file, const uint8_t *at, size_t len);

/* Like rd_file_write, for a hole of `len` bytes. */
void rd_file_skip(rd_writer_t *writer, rd_file_t *file, uint64_t len);

/* Completes a file whose content has arrived. Returns true if the file now has its final name.
 * Otherwise reports the reason, and removes the file if it was open. */
bool rd_file_close(rd_writer_t *writer, rd_file_t *file);

/* Closes the file. If `with_part` is true its part is removed, otherwise the part is left for the
 * next copy. A file that is written under its own name is removed in either case. */
void rd_file_drop(rd_file_t *file, bool with_part);

#endif
