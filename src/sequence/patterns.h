/* SPDX-License-Identifier: Apache-2.0 */
/* Equal rows of bits found in time linear in their size. */
#ifndef EJKI_SEQUENCE_PATTERNS_H
#define EJKI_SEQUENCE_PATTERNS_H

#include "base/base.h"

/* Rows of bits: row i is words[i * stride] and the `width` - 1 words behind it; unused bits are 0. */
typedef struct ejki_bit_rows {
    uint64_t *words;
    int64_t count, width, stride;
} ejki_bit_rows;

/* What numbering works with. All are the caller's. */
typedef struct ejki_patterns {
    uint64_t *hashes;         /* [count]: of each row, 0 of a row without a bit */
    int64_t *ids;             /* [count]: the result */
    int64_t *representatives; /* [count]: the first row of each pattern, in order */
    int64_t *table;           /* [ejki_pattern_slots(count)] */
} ejki_patterns;

/* Slots of the table for `count` rows: a power of two, at least twice as many. */
int64_t ejki_pattern_slots(int64_t count);

/* 0 iff no bit is set. */
uint64_t ejki_hash_bits(const uint64_t *words, int64_t width, uint64_t secret);

/*
 * Sets the bits of those rows whose hash, not 0, another row has too; true if there are any. Uses the table.
 */
bool ejki_find_shared(int64_t count, const ejki_patterns *patterns, uint64_t *shared);

/*
 * Numbers the rows by pattern in order of first occurrence, from `first_id`, -1 for rows without a bit. Rows of
 * equal hash are compared; the words of others are not read. Returns the number of patterns.
 */
int64_t ejki_number_patterns(const ejki_bit_rows *rows, int64_t first_id,
                             const ejki_patterns *patterns);

#endif
