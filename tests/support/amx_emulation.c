/* SPDX-License-Identifier: Apache-2.0 */
#include "support/amx_emulation.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64, PAIRS = 16, TOGETHER = 4 };

/* Rounding to nearest even, denormals are 0 on both sides, no exceptions. */
#define CONTROL 0x9fc0u

typedef struct tiles {
    uint32_t of[TILES][ROWS][PAIRS];
    int rows[TILES];
    bool configured;
} tiles;

static _Thread_local _Alignas(64) tiles own;

static void refuse(const char *why) {
    fprintf(stderr, "AMX emulation: %s\n", why);
    abort();
}

/* The tile, if there is such. */
static uint32_t (*tile_of(int tile))[PAIRS] {
    if (!own.configured) refuse("tiles are not configured");
    if (tile < 0 || tile >= TILES) refuse("no such tile");
    return own.of[tile];
}

/* ---- Configuration ---------------------------------------------------------------------------------- */

void amx_emulation_configure(const void *config) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } got, expected = {.palette = 1};
    _Static_assert(sizeof got == 64, "the layout is the processor's");
    memcpy(&got, config, sizeof got);
    for (int i = 0; i < TILES; i++) {
        expected.row_bytes[i] = ROW_BYTES;
        expected.rows[i] = got.rows[i];
        if (got.rows[i] == 0 || got.rows[i] > ROWS) refuse("not as many rows as tiles have");
    }
    if (memcmp(&got, &expected, sizeof got) != 0) refuse("not a configuration of whole rows");
    memset(&own, 0, sizeof own);
    for (int i = 0; i < TILES; i++) own.rows[i] = got.rows[i];
    own.configured = true;
}

void amx_emulation_release(void) {
    memset(&own, 0, sizeof own);
}

/* ---- Memory ----------------------------------------------------------------------------------------- */

void amx_emulation_zero(int tile) {
    memset(tile_of(tile), 0, ROWS * ROW_BYTES);
}

void amx_emulation_load(int tile, const void *from, ptrdiff_t stride) {
    uint32_t(*to)[PAIRS] = tile_of(tile);
    memset(to, 0, ROWS * ROW_BYTES);
    for (int i = 0; i < own.rows[tile]; i++)
        memcpy(to[i], (const char *)from + i * stride, ROW_BYTES);
}

void amx_emulation_store(int tile, void *to, ptrdiff_t stride) {
    uint32_t(*from)[PAIRS] = tile_of(tile);
    for (int i = 0; i < own.rows[tile]; i++) memcpy((char *)to + i * stride, from[i], ROW_BYTES);
}

/* ---- Product ---------------------------------------------------------------------------------------- */

static __m512 first_of(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}

static __m512 second_of(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
}

/* Some rows of the sums, which do not wait for each other. */
static void multiply_rows(uint32_t (*sums)[PAIRS], uint32_t (*left)[PAIRS],
                          const __m512 first[ROWS], const __m512 second[ROWS]) {
    __m512 a[TOGETHER], b[TOGETHER];
    for (int i = 0; i < TOGETHER; i++) a[i] = b[i] = _mm512_setzero_ps();
    for (int k = 0; k < PAIRS; k++)
        for (int i = 0; i < TOGETHER; i++) {
            const __m512i pair = _mm512_set1_epi32((int)left[i][k]);
            a[i] = _mm512_fmadd_ps(first_of(pair), first[k], a[i]);
            b[i] = _mm512_fmadd_ps(second_of(pair), second[k], b[i]);
        }
    for (int i = 0; i < TOGETHER; i++)
        _mm512_store_ps(sums[i], _mm512_add_ps(_mm512_load_ps(sums[i]), _mm512_add_ps(a[i], b[i])));
}

static void check_product(int sums, int left, int right) {
    if (sums == left || sums == right || left == right) refuse("a product of the same tile");
    if (own.rows[sums] != own.rows[left] || own.rows[right] != ROWS)
        refuse("a product of tiles whose rows do not fit");
}

void amx_emulation_multiply(int sums, int left, int right) {
    check_product(sums, left, right);
    uint32_t(*to)[PAIRS] = tile_of(sums), (*a)[PAIRS] = tile_of(left), (*b)[PAIRS] = tile_of(right);
    const unsigned before = _mm_getcsr(), control = CONTROL;
    __m512 first[ROWS], second[ROWS];
    /* Tiles are named, so that all work on them stays between. */
    __asm__ volatile("ldmxcsr %1" : "+m"(own) : "m"(control) : "memory");
    for (int k = 0; k < ROWS; k++) {
        const __m512i pairs = _mm512_load_si512(b[k]);
        first[k] = first_of(pairs);
        second[k] = second_of(pairs);
    }
    for (int i = 0; i < ROWS; i += TOGETHER) multiply_rows(to + i, a + i, first, second);
    __asm__ volatile("ldmxcsr %1" : "+m"(own) : "m"(before) : "memory");
}

void amx_emulation_multiply_bytes(int sums, int left, int right) {
    check_product(sums, left, right);
    uint32_t(*to)[PAIRS] = tile_of(sums), (*a)[PAIRS] = tile_of(left), (*b)[PAIRS] = tile_of(right);
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < PAIRS; k++) {
            int8_t x[4];
            memcpy(x, &a[i][k], sizeof x);
            for (int j = 0; j < PAIRS; j++) {
                int8_t y[4];
                memcpy(y, &b[k][j], sizeof y);
                for (int n = 0; n < 4; n++) to[i][j] += (uint32_t)(x[n] * y[n]);
            }
        }
}
