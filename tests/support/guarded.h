/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that notices what a kernel must not do. A buffer lies between two pages that nobody may touch,
 * pushed against one of them, and every byte that is not the buffer's own is known.
 */
#ifndef TESTS_GUARDED_H
#define TESTS_GUARDED_H

#include <stdbool.h>
#include <stddef.h>

struct guarded {
    unsigned char *data; /* the buffer; NULL = none */
    size_t size;
    unsigned char *pages; /* what is mapped between the two guard pages */
    size_t mapped;
};

/* Where the buffer lies between the guard pages. */
enum guarded_side { GUARDED_END, GUARDED_START };

/*
 * The byte that unused memory is filled with: in every floating type a NaN, as a mask true, as an id
 * a negative number, and in a result something no kernel writes.
 */
#define GUARDED_FILL 0xff

/*
 * Maps `size` bytes, `slack` bytes away from the guard page (to make odd addresses), filled. Exits the
 * process if memory cannot be had.
 */
void guarded_create(struct guarded *buffer, size_t size, enum guarded_side side, size_t slack);
void guarded_destroy(struct guarded *buffer);

/* From now on a write to it is a fault, or no more. */
void guarded_protect(struct guarded *buffer);
void guarded_unprotect(struct guarded *buffer);

/* Fills the buffer and what surrounds it. */
void guarded_fill(struct guarded *buffer);

/* True if nothing around the buffer has changed; nothing at all. */
bool guarded_intact(const struct guarded *buffer);
bool guarded_blank(const struct guarded *buffer);
/* True if all of some bytes are GUARDED_FILL. */
bool guarded_is_fill(const unsigned char *bytes, size_t size);

#endif
