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

/* ---- Bytes ----------------------------------------------------------------------------------------- */

#if defined(__SSE2__)
enum { SQUARE = 16 };

/*
 * Row i and row i + 8 interleaved give rows 2i and 2i + 1: what was the first bit of a byte's row number becomes
 * the last of its column number. After as many steps as there are bits the two have changed places.
 */
static inline void interleave(const __m128i in[16], __m128i out[16]) {
    for (int i = 0; i < 8; i++) {
        out[2 * i] = _mm_unpacklo_epi8(in[i], in[i + 8]);
        out[2 * i + 1] = _mm_unpackhi_epi8(in[i], in[i + 8]);
    }
}

static void turn_square(const unsigned char *from, int64_t from_stride, unsigned char *to,
                        int64_t to_stride) {
    __m128i a[16], b[16];
    for (int i = 0; i < 16; i++)
        a[i] = _mm_loadu_si128((const __m128i *)(const void *)(from + i * from_stride));
    interleave(a, b);
    interleave(b, a);
    interleave(a, b);
    interleave(b, a);
    for (int i = 0; i < 16; i++) _mm_storeu_si128((__m128i *)(void *)(to + i * to_stride), a[i]);
}
#else
enum { SQUARE = 8 };

/* The same exchange of squares as of bits, in words of eight bytes, the first byte lowest. */
static void turn_square(const unsigned char *from, int64_t from_stride, unsigned char *to,
                        int64_t to_stride) {
    static const uint64_t masks[] = {UINT64_C(0x00000000ffffffff), UINT64_C(0x0000ffff0000ffff),
                                     UINT64_C(0x00ff00ff00ff00ff)};
    uint64_t words[8];
    for (int i = 0; i < 8; i++) memcpy(&words[i], from + i * from_stride, 8);
    for (int step = 0, width = 4; step < 3; step++, width /= 2)
        for (int i = 0; i < 8; i++) {
            if ((i & width) != 0) continue;
            uint64_t swapped = (words[i] >> 8 * width ^ words[i + width]) & masks[step];
            words[i + width] ^= swapped;
            words[i] ^= swapped << 8 * width;
        }
    for (int i = 0; i < 8; i++) memcpy(to + i * to_stride, &words[i], 8);
}
#endif

void ejki_transpose_bytes(const unsigned char *from, int64_t from_stride, int64_t rows,
                          int64_t columns, unsigned char *to, int64_t to_stride) {
    int64_t squares = rows / SQUARE * SQUARE, whole = columns / SQUARE * SQUARE;
    for (int64_t j = 0; j < whole; j += SQUARE)
        for (int64_t i = 0; i < squares; i += SQUARE)
            turn_square(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = i < squares ? whole : 0; j < columns; j++)
            to[j * to_stride + i] = from[i * from_stride + j];
}
