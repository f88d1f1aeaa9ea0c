/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE 1
#include "base/base.h"

#include <stdlib.h>
#include <sys/mman.h>

#define LINE      64
#define HUGE_PAGE (INT64_C(2) << 20)

void *ejki_allocate(int64_t bytes) {
    const int64_t unit = bytes < HUGE_PAGE ? LINE : HUGE_PAGE;
    int64_t room;
    if (bytes < 0 || !ejki_add(bytes, unit, &room)) return NULL;
    room = ejki_round_up(ejki_max(bytes, 1), unit);
    void *memory = aligned_alloc((size_t)unit, (size_t)room);
    if (memory && unit == HUGE_PAGE)
        (void)madvise(memory, (size_t)room, MADV_HUGEPAGE); /* a wish */
    return memory;
}
