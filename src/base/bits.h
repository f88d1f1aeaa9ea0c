/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of truth as bits, 64 a word, and hashes of such words: what looks for equal parts of masks shares. */
#ifndef EJKI_BITS_H
#define EJKI_BITS_H

#include "base/base.h"

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

__extension__ typedef unsigned __int128 ejki_u128;

/* Both halves of the product, one over the other: every bit of the factors reaches every bit. */
static inline uint64_t ejki_fold(uint64_t a, uint64_t b) {
    ejki_u128 product = (ejki_u128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* A number nobody outside can guess: hashes made with it cannot be made to collide on purpose. */
uint64_t ejki_hash_secret(void);

/*
 * One key for each line of a sum of hashes, none of them 0, and the share of word number `word` of the line.
 * Shares of a sum may be added in any order and by any thread.
 */
static inline uint64_t ejki_line_key(uint64_t secret, int64_t line) {
    return ejki_fold(secret + (uint64_t)line * UINT64_C(0x9e3779b97f4a7c15),
                     secret ^ UINT64_C(0xa0761d6478bd642f));
}
static inline uint64_t ejki_word_share(uint64_t secret, uint64_t key, int64_t word, uint64_t bits) {
    return ejki_fold(bits ^ (key + (uint64_t)word * UINT64_C(0xe7037ed1a0b428db)), secret | 1);
}

/* A hash as it is used: never 0. A test that has its own build of this lets almost all of them collide. */
static inline uint64_t ejki_hash_done(uint64_t hash) {
#ifdef EJKI_WEAK_HASHES
    return (hash & 2) | 1;
#else
    return hash | 1;
#endif
}

/* Bit i is set unless byte i is 0. Reads 64 bytes. */
static inline uint64_t ejki_pack_word(const unsigned char *bytes) {
#if defined(__SSE2__)
    uint64_t zeros = 0;
    for (int i = 0; i < 4; i++) {
        __m128i x = _mm_loadu_si128((const __m128i *)(const void *)(bytes + 16 * i));
        int equal = _mm_movemask_epi8(_mm_cmpeq_epi8(x, _mm_setzero_si128()));
        zeros |= (uint64_t)(uint32_t)equal << 16 * i;
    }
    return ~zeros;
#else
    const uint64_t low = UINT64_C(0x7f7f7f7f7f7f7f7f);
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) {
        uint64_t x;
        memcpy(&x, bytes + 8 * i, sizeof x);
        uint64_t ones = ((((x & low) + low) | x) >> 7) & UINT64_C(0x0101010101010101);
        /* Byte k, at bit 8k, is moved to bit 56 + k; no two of the sums meet. */
        word |= (ones * UINT64_C(0x0102040810204080) >> 56) << 8 * i;
    }
    return word;
#endif
}

/*
 * Prefetches memory some lines of the cache ahead of its use: the processor does so itself within a page
 * of memory only. The address may lie beyond what there is.
 */
static inline void ejki_prefetch_bytes(const unsigned char *bytes) {
    enum { AHEAD = 2048 };
    __builtin_prefetch((const void *)((uintptr_t)bytes + AHEAD));
}

/*
 * Bits of the bytes [at, at + count) of a row of `length`, count from 1 to 64; nothing beyond the row is read.
 */
static inline uint64_t ejki_pack_part(const unsigned char *row, int64_t length, int64_t at,
                                      int64_t count) {
    uint64_t word;
    if (length - at >= 64) {
        word = ejki_pack_word(row + at);
    } else if (length >= 64) {
        word = ejki_pack_word(row + length - 64) >> (64 - (length - at));
    } else {
        unsigned char rest[64] = {0};
        memcpy(rest, row + at, (size_t)(length - at));
        word = ejki_pack_word(rest);
    }
    return count < 64 ? word & ((UINT64_C(1) << count) - 1) : word;
}

/* `count` bytes as words; unused bits of the last are 0. */
static inline void ejki_pack_bytes(const unsigned char *bytes, int64_t count, uint64_t *words) {
    int64_t done = 0;
    for (; count - done >= 64; done += 64) {
        ejki_prefetch_bytes(bytes + done);
        *words++ = ejki_pack_word(bytes + done);
    }
    if (done < count) *words = ejki_pack_part(bytes, count, done, count - done);
}

/*
 * The square of 64 × 64 bits in `block` turned around its diagonal: bit j of word i becomes bit i of word j.
 */
void ejki_transpose_bits(uint64_t block[64]);

/* The bytes of a rectangle turned around its diagonal: to[j * to_stride + i] = from[i * from_stride + j]. */
void ejki_transpose_bytes(const unsigned char *from, int64_t from_stride, int64_t rows,
                          int64_t columns, unsigned char *to, int64_t to_stride);

#endif
