/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COPY_ATOMIC_H
#define RD_COPY_ATOMIC_H

#include "copy_delete.h"
#include "copy_file.h"

/*
 * --atomic replaces a tree as a whole. The new tree is built as a part next to the old one, like a
 * tree that does not exist yet. Its unchanged files are additional hard links to those of the old
 * tree, so they take no space, and nothing in the old tree is written. When everything has arrived,
 * the two trees exchange their names (RENAME_EXCHANGE), and the old tree is removed.
 *
 * Until the exchange, the old tree keeps its name, even if a process or a host dies. A file system
 * that cannot exchange names needs two renames instead. If the copy dies between them, no tree has
 * the name, and the next copy finds the old tree under the name `target->retired`.
 */

/* Puts the file of a KEEP item into the new tree with the attributes that it should have. The file
 * already exists under its name in the new tree or in `old`, the old tree. `parent` and `name`
 * refer to the new tree, and `attributes` are those of the item. On failure, reports the error and
 * returns false. */
bool rd_atomic_keep(rd_writer_t *writer, rd_beneath_t *old, const rd_item_t *item,
                    const rd_attributes_t *attributes, int parent, const char *name);

/* Transfers to the new tree the entries that only the old one has, except those to be deleted.
 * Reports an error for each entry that it cannot transfer. */
void rd_atomic_carry(rd_writer_t *writer, const rd_target_t *target,
                     const rd_deletions_t *deletions);

/* Gives the new tree its name and removes the old one. On failure, reports the error and returns
 * false, and the old tree still has the name. */
bool rd_atomic_swap(rd_writer_t *writer, rd_target_t *target);

/* Removes the entry of this name, and everything in it if it is a directory. Follows no symbolic
 * links. On failure, errno is set. */
bool rd_atomic_remove(int parent, const char *name);

#endif
