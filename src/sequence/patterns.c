/* SPDX-License-Identifier: Apache-2.0 */
/* Equal rows of bits: hashed, put in a table by hash, compared where hashes are equal. */
#include "sequence/patterns.h"

#include "base/bits.h"

#include <string.h>

uint64_t ejki_hash_bits(const uint64_t *words, int64_t width, uint64_t secret) {
    const uint64_t key = ejki_line_key(secret, 0);
    uint64_t hash = 0, any = 0;
    for (int64_t i = 0; i < width; i++) {
        any |= words[i];
        hash += ejki_word_share(secret, key, i, words[i]);
    }
    return any ? ejki_hash_done(hash) : 0;
}

int64_t ejki_pattern_slots(int64_t count) {
    int64_t slots = 4;
    while (slots / 2 < count) slots *= 2;
    return slots;
}

static bool equal(const ejki_bit_rows *rows, int64_t a, int64_t b) {
    return memcmp(rows->words + a * rows->stride, rows->words + b * rows->stride,
                  (size_t)rows->width * sizeof *rows->words) == 0;
}

bool ejki_find_shared(int64_t count, const ejki_patterns *patterns, uint64_t *shared) {
    int64_t slots = ejki_pattern_slots(count);
    bool found = false;
    for (int64_t s = 0; s < slots; s++) patterns->table[s] = -1;
    for (int64_t w = 0; w < ejki_cdiv(count, 64); w++) shared[w] = 0;
    for (int64_t i = 0; i < count; i++) {
        uint64_t hash = patterns->hashes[i];
        if (hash == 0) continue;
        int64_t slot = (int64_t)(hash >> 1) & (slots - 1), first;
        while ((first = patterns->table[slot]) >= 0 && patterns->hashes[first] != hash)
            slot = (slot + 1) & (slots - 1);
        if (first < 0) {
            patterns->table[slot] = i;
            continue;
        }
        shared[first / 64] |= UINT64_C(1) << first % 64;
        shared[i / 64] |= UINT64_C(1) << i % 64;
        found = true;
    }
    return found;
}

int64_t ejki_number_patterns(const ejki_bit_rows *rows, int64_t first_id,
                             const ejki_patterns *patterns) {
    int64_t slots = ejki_pattern_slots(rows->count), found = 0;
    const uint64_t *hashes = patterns->hashes;
    for (int64_t s = 0; s < slots; s++) patterns->table[s] = -1;
    for (int64_t i = 0; i < rows->count; i++) {
        patterns->ids[i] = -1;
        if (hashes[i] == 0) continue;
        /* The upper half: the last bit of a hash is always set. */
        int64_t slot = (int64_t)(hashes[i] >> 1) & (slots - 1);
        int64_t first;
        while ((first = patterns->table[slot]) >= 0 &&
               !(hashes[first] == hashes[i] && equal(rows, first, i))) {
            slot = (slot + 1) & (slots - 1);
        }
        if (first < 0) {
            patterns->table[slot] = i;
            patterns->representatives[found] = i;
            patterns->ids[i] = first_id + found++;
        } else {
            patterns->ids[i] = patterns->ids[first];
        }
    }
    return found;
}
