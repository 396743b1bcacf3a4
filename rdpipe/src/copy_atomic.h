/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COPY_ATOMIC_H
#define RD_COPY_ATOMIC_H

#include "copy_delete.h"
#include "copy_file.h"

/*
 * --atomic replaces a tree as a whole. The new one is built as a part beside it, as a tree that is
 * not there yet. Its unchanged files are further hard links of the old tree's, so they need no
 * room, and nothing that is in the old tree is written. When all has come, both exchange their
 * names (RENAME_EXCHANGE), and the old one is removed.
 *
 * Until then the name belongs to the old tree, whatever dies. A file system without the exchange
 * gets two renames: if the copy dies between them, no tree has the name, and the old one is called
 * `target->retired`, where the next copy finds it.
 */

/* Makes the file of a KEEP item, which lies under its name in the new tree or the old one, be in
 * the new one with the attributes that it should have. `old`: the old tree. `parent`, `name`: in
 * the new one. `attributes` are the item's. False: it was said. */
bool rd_atomic_keep(rd_writer_t *writer, rd_beneath_t *old, const rd_item_t *item,
                    const rd_attributes_t *attributes, int parent, const char *name);

/* Gives the new tree what only the old one has, and what shall not be deleted. Complains of what it
 * cannot give. */
void rd_atomic_carry(rd_writer_t *writer, const rd_target_t *target,
                     const rd_deletions_t *deletions);

/* Gives the new tree its name, and removes the old one. False: it was said, and the old tree has
 * its name. */
bool rd_atomic_swap(rd_writer_t *writer, rd_target_t *target);

/* Removes what has this name, with all that is in it, and follows no link. False: errno. */
bool rd_atomic_remove(int parent, const char *name);

#endif
