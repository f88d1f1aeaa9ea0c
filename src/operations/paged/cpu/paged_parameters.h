/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of attention over pages in vectors; of those who attend through it, too. */
#ifndef EJKI_PAGED_PARAMETERS_H
#define EJKI_PAGED_PARAMETERS_H

#include <ejkernel/registry.h>

#include "operations/paged/cpu/suggest.h"

enum { TILE_KEYS = 512 }; /* most keys of a block of many rows */

static const ejk_parameter page_parameters[] = {
    {"q_blocksize", 12, 1020, 12, 192, "rows of a task that prefills"},
    {"kv_blocksize", 32, TILE_KEYS, 32, 128, "keys that these rows look at together"},
    {"blocksize_keys", 256, 1 << 20, 256, 2048, "keys of a split of a task that decodes"},
    {"prefetch_hint", PREFETCH_ROWS, PREFETCH_IN_STEP, 1, PREFETCH_IN_ORDER,
     "lines of rows as they are read, into the first-level cache; 1: in the order of memory, into "
     "the second; 2: lines of rows, into the second; 3: as 1, and where heads lie apart, keys and "
     "values of float32 are read one after the other"},
    {"prefetch_bytes", 1 << 10, 1 << 20, 1 << 10, 1 << 20,
     "distance of prefetches, at most 64 keys or values"},
};

#endif
