/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COPY_ITEM_H
#define RD_COPY_ITEM_H

#include "text.h"

/*
 * Items are the messages between the four parts of a copy (copy.h). Each consists of a
 * little-endian header of RD_ITEM_BYTES, the item's path, and the target of a link. Three kinds are
 * followed by `size` bytes: DATA by bytes of the file, ATTRIBUTE by its value, and BLOCKS by the
 * names of the blocks.
 *
 * The other side is not trusted: an item whose path leads out of the tree is rejected.
 */

#define RD_ITEM_BYTES 72u
#define RD_PATH_BYTES 4096u /* including the NUL */
#define RD_ITEM_MAX (RD_ITEM_BYTES + 2 * RD_PATH_BYTES)
#define RD_ITEM_VERSION 5 /* also raised when the options that rdcp passes to the parts change */
#define RD_DIGEST_BYTES 32u
#define RD_VALUE_MAX 65536u /* limit for an extended attribute (XATTR_SIZE_MAX) */

typedef enum {
    /* Begins a source. `mode` is RD_ITEM_VERSION, `size` the source's number, `offset` how many
     * things in earlier sources could not be copied, and `digest` the terms (copy_terms.h). */
    RD_ITEM_START = 1,
    /* Begins a directory, to which the items that follow may belong. In a list, `digest` is its
     * rd_directory_id. */
    RD_ITEM_DIR,
    /* Ends a directory. `size` is how many files were left out because they need no update. In a
     * list, `offset` is 1 if something in the directory was not examined. */
    RD_ITEM_LEAVE,
    RD_ITEM_FILE, /* a file, followed by its content from `offset` on, and by CLOSE */
    RD_ITEM_LINK, /* a symbolic link */
    RD_ITEM_DATA, /* `size` bytes of the file */
    RD_ITEM_HOLE, /* `size` bytes that are not stored */
    /* Ends a file. `has` is RD_HAS_ALL if the file is complete; `digest` is set if it was sent as a
     * difference. */
    RD_ITEM_CLOSE,
    RD_ITEM_KEEP,      /* a file that the target already has */
    RD_ITEM_END,       /* ends the copy; `size` is how many things could not be copied */
    RD_ITEM_HARD,      /* another name of the file whose path is `target` */
    RD_ITEM_ATTRIBUTE, /* an attribute of the next FILE, KEEP, LINK or LEAVE, named `target` */
    RD_ITEM_SKIP,      /* in a list, something at the source that is not copied */
    /* Something that only the target with the number `size` has, whose type is in `mode`. `has` is
     * RD_HAS_PART if an earlier copy left it in the new tree of --atomic. */
    RD_ITEM_DELETE,
    /* BLOCKS and COPY are for a changed file (copy_delta.h), and are used only if both sides know
     * them (copy_terms.h). BLOCKS contains the names of the blocks of the target's version of the
     * FILE that follows: blocks of `offset` bytes, and `size` bytes of names. */
    RD_ITEM_BLOCKS = 20,
    RD_ITEM_COPY /* `size` bytes of that version, from `offset` on */
} rd_item_kind_t;

#define RD_ITEM_LAST RD_ITEM_DELETE

/* How much of a file the target already has. */
typedef enum {
    RD_HAS_NOTHING,
    RD_HAS_PART,
    RD_HAS_ALL,
    RD_HAS_SAME,    /* a file of the same size and time, whose content was not read */
    RD_HAS_VERSION, /* a different version, so the file is sent as a difference */
    RD_HAS_NOTED    /* a part of the file with this size and time, whose content was not read */
} rd_has_t;

typedef struct {
    rd_item_kind_t kind;
    rd_has_t has;
    uint32_t mode;
    uint64_t size;
    uint64_t offset; /* how many bytes the target has; their rd_digest_file is `digest` */
    int64_t mtime_s;
    uint32_t mtime_ns;
    uint8_t digest[RD_DIGEST_BYTES];
    char path[RD_PATH_BYTES];   /* from the top of the tree; "" is the top itself */
    char target[RD_PATH_BYTES]; /* the target of a link, or the name of an attribute */
} rd_item_t;

typedef enum { RD_ITEM_SHORT, RD_ITEM_WHOLE, RD_ITEM_CORRUPT } rd_item_state_t;

/* A path is safe if it is "" or consists of names, separated by single slashes, none of which is
 * "." or "..". */
bool rd_path_is_safe(const char *path, size_t len);

/* Writes the item, at most RD_ITEM_MAX bytes, and returns its length. */
size_t rd_item_put(uint8_t *at, const rd_item_t *item);

/* Parses the item at the start of `avail` bytes. If it is complete, sets *bytes_p to its length. */
rd_item_state_t rd_item_parse(const uint8_t *at, size_t avail, rd_item_t *item_p, size_t *bytes_p);

#endif
