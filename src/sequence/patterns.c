/* SPDX-License-Identifier: Apache-2.0 */
/* Equal rows of bits: hashed, put in a table by hash, compared where hashes are equal. */
#include "sequence/patterns.h"

#include <string.h>
#include <time.h>

__extension__ typedef unsigned __int128 u128;

/* Both halves of the product, one over the other: every bit of the factors reaches every bit. */
static inline uint64_t fold(uint64_t a, uint64_t b) {
    u128 product = (u128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

uint64_t ejki_hash_secret(void) {
    struct timespec now = {0};
    (void)timespec_get(&now, TIME_UTC);
    uint64_t place = (uint64_t)(uintptr_t)&now;
    return fold(place ^ UINT64_C(0x9e3779b97f4a7c15), (uint64_t)now.tv_nsec << 32 | 1) ^ place;
}

uint64_t ejki_hash_bits(const uint64_t *words, int64_t width, uint64_t secret) {
    const uint64_t other = secret ^ UINT64_C(0xd6e8feb86659fd93);
    uint64_t hash = secret, any = 0;
    for (int64_t i = 0; i < width; i++) {
        any |= words[i];
        hash = fold(words[i] ^ other, hash ^ UINT64_C(0xa0761d6478bd642f)) + words[i];
    }
    return any ? hash | 1 : 0;
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

/* Swaps the squares of `width` bits beside the diagonal; `mask` is the lower one of each pair. */
static inline void swap_squares(uint64_t block[64], int width, uint64_t mask) {
    for (int base = 0; base < 64; base += 2 * width) {
        for (int i = base; i < base + width; i++) {
            uint64_t swapped = (block[i] >> width ^ block[i + width]) & mask;
            block[i + width] ^= swapped;
            block[i] ^= swapped << width;
        }
    }
}

/* After H. Warren, Hacker's Delight, 7-3. Widths are constants, so that each step vectorises by itself. */
void ejki_transpose_bits(uint64_t block[64]) {
    swap_squares(block, 32, UINT64_C(0x00000000ffffffff));
    swap_squares(block, 16, UINT64_C(0x0000ffff0000ffff));
    swap_squares(block, 8, UINT64_C(0x00ff00ff00ff00ff));
    swap_squares(block, 4, UINT64_C(0x0f0f0f0f0f0f0f0f));
    swap_squares(block, 2, UINT64_C(0x3333333333333333));
    swap_squares(block, 1, UINT64_C(0x5555555555555555));
}
