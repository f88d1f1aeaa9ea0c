/* SPDX-License-Identifier: Apache-2.0 */
#include "base/bits.h"

#include <time.h>

uint64_t ejki_hash_secret(void) {
    struct timespec now = {0};
    (void)timespec_get(&now, TIME_UTC);
    uint64_t place = (uint64_t)(uintptr_t)&now;
    return ejki_fold(place ^ UINT64_C(0x9e3779b97f4a7c15), (uint64_t)now.tv_nsec << 32 | 1) ^ place;
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
