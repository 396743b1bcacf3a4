/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_ATTRIBUTES_H
#define RD_ATTRIBUTES_H

#include <sys/stat.h>

#include "copy.h"

/*
 * What a copy keeps of a file beside content, mode and time: its owner, extended attributes and
 * ACLs, which Linux keeps as attributes of the class system. They travel as ATTRIBUTE items before
 * the item that they belong to. An owner goes by name if the target knows the name, else by number.
 */

typedef struct {
    char *name;
    uint8_t *value;
    size_t len;
} rd_attribute_t;

typedef struct {
    rd_attribute_t *of;
    size_t count, room, bytes;
} rd_attributes_t;

/* Are any asked for? */
static inline bool rd_attributes_wanted(const rd_copy_t *copy)
{
    return copy->owner || copy->xattrs || copy->acls;
}

/* Puts those of a file; `fd` -1: of a symbolic link, whose owner alone is kept. What cannot be read
 * is complained of. False: nobody reads any more. */
bool rd_attributes_put(rd_complaints_t *complaints, const char *path, int fd, const struct stat *is,
                       rd_items_out_t *out);

/* Takes the content of an ATTRIBUTE item. False: *why. */
bool rd_attributes_take(rd_attributes_t *attributes, const rd_item_t *item, rd_items_in_t *in,
                        rd_why_t *why);

void rd_attributes_clear(rd_attributes_t *attributes);
void rd_attributes_free(rd_attributes_t *attributes);

/* Has a file the owner, ACLs and extended attributes already, as far as the copy keeps them? */
bool rd_attributes_are(const rd_attributes_t *attributes, const rd_copy_t *copy, int fd,
                       const struct stat *is);

/* Gives a file its owner. False: it has another one, errno. */
bool rd_attributes_own(const rd_attributes_t *attributes, int fd);

/* The same for a symbolic link. */
bool rd_attributes_own_link(const rd_attributes_t *attributes, int parent, const char *name);

/* Gives a file its ACLs, or its other extended attributes, and takes from it those of the same kind
 * that it shall not have. What could not be set is complained of. What only root may set, or the
 * file system does not take, is warned of. */
void rd_attributes_set(const rd_attributes_t *attributes, rd_complaints_t *complaints,
                       const char *path, int fd, bool are_acls);

#endif
