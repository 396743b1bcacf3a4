/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_ATTRIBUTES_H
#define RD_ATTRIBUTES_H

#include <sys/stat.h>

#include "copy.h"

/*
 * The file metadata that a copy can preserve in addition to mode and time: the owner, the extended
 * attributes, and the ACLs, which Linux stores as extended attributes in the `system` namespace.
 * They are sent as ATTRIBUTE items before the item to which they belong. An owner is set by name if
 * the target knows the name, else by number.
 */

typedef struct {
    char *name;
    uint8_t *value;
    size_t len;
} rd_attribute_t;

typedef struct {
    rd_attribute_t *of;
    size_t count, bytes;
} rd_attributes_t;

static inline bool rd_attributes_wanted(const rd_copy_t *copy)
{
    return copy->owner || copy->xattrs || copy->acls;
}

/* If `fd` is -1, the file is a symbolic link, of which only the owner is preserved. Reports
 * attributes that cannot be read. Returns false if the reader has closed. */
bool rd_attributes_put(rd_complaints_t *complaints, const char *path, int fd, const struct stat *is,
                       rd_items_out_t *out);

/* Reads the content of an ATTRIBUTE item. On failure, *why is set. */
bool rd_attributes_take(rd_attributes_t *attributes, const rd_item_t *item, rd_items_in_t *in,
                        rd_why_t *why);

void rd_attributes_clear(rd_attributes_t *attributes);
void rd_attributes_free(rd_attributes_t *attributes);

/* Compares only what the copy preserves. */
bool rd_attributes_are(const rd_attributes_t *attributes, const rd_copy_t *copy, int fd,
                       const struct stat *is);

/* Returns false with errno set if the file still has a different owner. */
bool rd_attributes_own(const rd_attributes_t *attributes, int fd);

/* Like rd_attributes_own, for a symbolic link. */
bool rd_attributes_own_link(const rd_attributes_t *attributes, int parent, const char *name);

/* Sets the ACLs of a file (if `are_acls`) or its other extended attributes, and removes those of
 * the same kind that it should not have. Reports an error if one cannot be set, but only a warning
 * if only root may set it or the file system does not support it. */
void rd_attributes_set(const rd_attributes_t *attributes, rd_complaints_t *complaints,
                       const char *path, int fd, bool are_acls);

#endif
