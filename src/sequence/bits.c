/* SPDX-License-Identifier: Apache-2.0 */
/* Masks as bits, 64 elements a word. */
#include "sequence/sequence.h"

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#if defined(__SSE2__)
static inline uint64_t pack_word(const unsigned char *bytes) {
    uint64_t zeros = 0;
    for (int i = 0; i < 4; i++) {
        __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(bytes + 16 * i));
        int equal = _mm_movemask_epi8(_mm_cmpeq_epi8(x, _mm_setzero_si128()));
        zeros |= (uint64_t)(uint32_t)equal << 16 * i;
    }
    return ~zeros;
}
#else
/* One bit for each of the eight bytes of `x`: set unless the byte is 0. */
static inline uint64_t bits_of_bytes(uint64_t x) {
    const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
    uint64_t high_if_true = ((x & low) + low) | x;
    uint64_t ones = high_if_true >> 7 & UINT64_C(0x0101010101010101);
    /* Byte i, at bit 8i, is moved to bit 56 + i; no two of the sums meet. */
    return ones * UINT64_C(0x0102040810204080) >> 56;
}

static inline uint64_t load(const unsigned char *bytes) {
    uint64_t x;
    memcpy(&x, bytes, sizeof x);
    return x;
}

static inline uint64_t pack_word(const unsigned char *bytes) {
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) word |= bits_of_bytes(load(bytes + 8 * i)) << 8 * i;
    return word;
}
#endif

static void pack_bytes(const unsigned char *bytes, int64_t count, uint64_t *words) {
    for (; count >= 64; count -= 64, bytes += 64) *words++ = pack_word(bytes);
    if (count > 0) {
        unsigned char rest[64] = {0};
        memcpy(rest, bytes, (size_t)count);
        *words = pack_word(rest);
    }
}

enum { CHUNK = 4096 };

void ejki_pack_row(const ejk_tensor *row, uint64_t *words) {
    int64_t count = row->shape[0];
    if (ejk_dtype_size(row->dtype) == 1 && row->strides[0] == 1) {
        pack_bytes(row->data, count, words);
        return;
    }
    unsigned char truth[CHUNK];
    for (int64_t done = 0; done < count; done += CHUNK) {
        int64_t length = ejki_min(CHUNK, count - done);
        ejk_tensor part = ejk_tensor_slice(*row, 0, done, length);
        ejk_tensor bytes = ejk_tensor_1d(truth, EJK_DTYPE_BOOL, length);
        if (ejk_tensor_copy(&part, &bytes) != EJK_OK) memset(truth, 0, sizeof truth); /* never */
        pack_bytes(truth, length, words + done / 64);
    }
}
