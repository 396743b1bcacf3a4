/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RD_COPY_FILES_FROM_H
#define RD_COPY_FILES_FROM_H

#include "name_list.h"
#include "text.h"

/*
 * The names of --files-from, which are paths below the source. rdcp reads them on its own host and
 * hands them to both parts at the source as a here-document of the shell that starts them: `list`
 * lists these paths, and `pack` sends no others, whatever the target asks for.
 */

/* Reads the names from a file ("-" for standard input), where each ends with a newline or NUL. They
 * are sorted so that a directory's contents directly follow the directory, and duplicates are
 * dropped. On failure, *why names the path that leads out of the source, or the file that cannot be
 * read. */
bool rd_files_from_read(rd_names_t *names_p, const char *file, bool ends_with_nul, rd_why_t *why);

/* Appends the names to a shell command as a here-document, which the command gets as descriptor
 * 3. */
void rd_files_from_put(FILE *to, const rd_names_t *names);

/* Reads what rd_files_from_put has written, and closes the descriptor. On failure, *why is set. */
bool rd_files_from_take(rd_names_t *names_p, int fd, rd_why_t *why);

/* Returns whether the path is one of the names, or a directory above one of them. With `recursive`,
 * a path below one of them also counts. */
bool rd_files_from_hold(const rd_names_t *names, const char *path, bool is_directory,
                        bool recursive);

/* Returns whether `name` is in the directory `path`, at any depth. */
bool rd_lies_in(const char *name, const char *path);

#endif
