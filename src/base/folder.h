/* SPDX-License-Identifier: Apache-2.0 */
/* Where caches lie: paths put together, the user's folder of caches, folders made. */
#ifndef EJKI_BASE_FOLDER_H
#define EJKI_BASE_FOLDER_H

#include "base/base.h"

/* A text of its own, freed with free(); NULL without memory. */
char *ejki_compose(const char *format, ...) EJKI_PRINTF(1, 2);

/*
 * What stands before everything else in a cache's path: `path`, else EJKERNEL_CACHE_DIR, with the user's
 * folder in place of a leading "~", else the default folder. Freed with free(); NULL without memory.
 */
char *ejki_cache_root(const char *path);

/* Makes the folders above a file, whose name is changed meanwhile; false with errno if one cannot be made. */
bool ejki_make_folders(char *file, unsigned mode);

#endif
