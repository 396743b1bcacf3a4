/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COPY_FILE_H
#define RD_COPY_FILE_H

#include <stdatomic.h>

#include "attributes.h"

/*
 * How a copy writes one file: as a part with a name of its own, locked against other copies, which
 * gets the attributes and then, by a rename, its name. In a new tree, which is a part as a whole
 * and locked, a small file has its own name from the beginning.
 *
 * A small file costs at most eight system calls, and five in a new tree (pipe_copy_calls_test.c).
 *
 * Threads may write files of one writer side by side, each file by one thread: a complaint has a
 * lock, and the rest of the writer is atomic or stays as it is meanwhile.
 */

/* What all files of a copy have in common. */
typedef struct {
    rd_copy_t copy;
    rd_complaints_t complaints; /* its `copy` is the one above */
    mode_t mask;                /* the umask */
    bool is_root;
    bool is_private;      /* the target is a new tree, and no other copy writes it */
    bool is_local;        /* on `device` a close reports no error of a write */
    dev_t device;         /* of the target's directory */
    atomic_bool replaces; /* the last small file had another one under its name */
    atomic_bool is_fatal; /* all that follows would fail, too */
} rd_writer_t;

/* A file that is being written. */
typedef struct {
    int fd;     /* -1: it is not open */
    int parent; /* its directory, a descriptor of the caller's; -1: none */
    uint64_t at;
    bool owns_parent;   /* closes it */
    bool is_small;      /* nobody resumes it */
    bool is_direct;     /* it is written under its own name */
    bool is_noted;      /* note.h */
    bool may_fail_late; /* a close may report what could not be written */
    bool is_seen;       /* `there` says what has the name: a mode of 0 is nothing */
    /* Of one that comes as what differs (copy_delta.h): the BLAKE2b of what was written, NULL for
     * others, and the version that lies there, -1: it is not open. */
    rd_digest_t *check;
    int version;
    bool version_has_holes;
    uint64_t version_bytes;
    bool is_known; /* `is` says what it has now */
    struct stat is;
    struct stat there;
    char name[256], part[256];
    rd_item_t item;
    rd_attributes_t attributes;
    bool has_old; /* in the tree that --atomic replaces */
    struct stat old;
} rd_file_t;

/* Says what an errno means for this path. Always false. */
bool rd_writer_complain(rd_writer_t *writer, const char *path, int error);

/* Says that another copy has this path. Where that is the top, the whole copy ends; what it does
 * not have, as in a tree that is there, goes on. */
void rd_writer_lose(rd_writer_t *writer, const char *path);

/* Says that a file has another owner than it should, by errno. */
void rd_writer_warn_of_owner(rd_writer_t *writer, const char *path);

/* May something get this name? False: it was said. */
bool rd_writer_is_free(rd_writer_t *writer, const char *path, int parent, const char *name);

/* The mode as cp gives it: with -p that of the source, else less what umask takes. `is_owned`: it
 * has the owner of the source. */
mode_t rd_writer_mode(const rd_writer_t *writer, const rd_item_t *item, bool is_owned);

/* Gives a file or directory what is kept of its source. `now`: what it has, NULL: that is not
 * known. `there`: the file that had the name before, NULL: none. False: errno. */
bool rd_writer_attributes(rd_writer_t *writer, const rd_attributes_t *attributes, int fd,
                          const struct stat *now, const rd_item_t *item, const struct stat *there);

/* Looks at the file system that this directory is on. */
void rd_writer_look_at(rd_writer_t *writer, int directory);

/* The time of change that an item names, for futimens. */
void rd_item_times(const rd_item_t *item, struct timespec times[2]);

/* Is this what has the name now? A lock is of no use if its winner has given the thing another name
 * meanwhile. */
bool rd_is_named(int parent, const char *name, int fd);

/* Opens the part at `item.offset`, where `at` stands already, or a small file of a new tree itself.
 * An error is said, and leaves the file closed; the calls below then do nothing. */
void rd_file_open(rd_writer_t *writer, rd_file_t *file);

/* Writes what comes next. An error is said, and closes the file; its part stays for the next copy.
 */
void rd_file_write(rd_writer_t *writer, rd_file_t *file, const uint8_t *at, size_t len);

/* The same for a hole of so many bytes. */
void rd_file_skip(rd_writer_t *writer, rd_file_t *file, uint64_t len);

/* The content has come. Has the file its name now? False: it was said. What was open is removed
 * then. */
bool rd_file_close(rd_writer_t *writer, rd_file_t *file);

/* Closes it as a part, which stays for the next copy or not. */
void rd_file_drop(rd_file_t *file, bool with_part);

#endif
