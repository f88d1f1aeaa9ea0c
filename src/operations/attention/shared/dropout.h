/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which weights dropout keeps: a function of seed and place alone, the same for every tile, thread and
 * platform, forward and backward. Philox4x32-10 (J. Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3", 2011) of key = the seed's halves and counter = (j / 4, i, h, b); its word j mod 4 decides.
 */
#ifndef EJKI_FLASH_ATTENTION_DROPOUT_H
#define EJKI_FLASH_ATTENTION_DROPOUT_H

#include "operations/attention/flash/problem.h"

#include <math.h>

/* A word below this is dropped. */
static inline uint32_t ejki_dropout_threshold(double probability) {
    return (uint32_t)floor(probability * 0x1p32);
}

/* What kept weights are multiplied with. */
static inline double ejki_dropout_factor(double probability) {
    return 1 / (1 - probability);
}

/* The words of keys 4 * quad to 4 * quad + 3. Plain C, so that vectors of quads can be computed alike. */
static inline void ejki_dropout_words(uint64_t seed, uint32_t quad, uint32_t query, uint32_t head,
                                      uint32_t batch, uint32_t words[4]) {
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t c[4] = {quad, query, head, batch};
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ key[0], (uint32_t)b,
                                  (uint32_t)(a >> 32) ^ c[3] ^ key[1], (uint32_t)a};
        for (int i = 0; i < 4; i++) c[i] = next[i];
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    for (int i = 0; i < 4; i++) words[i] = c[i];
}

static inline bool ejki_dropout_keeps(const ejki_flash_problem *p, int64_t b, int64_t h, int64_t i,
                                      int64_t j) {
    uint32_t words[4];
    ejki_dropout_words(p->dropout_seed, (uint32_t)(j / 4), (uint32_t)i, (uint32_t)h,
                       (uint32_t)(b + p->first_sequence), words);
    return words[j % 4] >= ejki_dropout_threshold(p->dropout);
}

#endif
