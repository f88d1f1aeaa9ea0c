/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of bf16_dot/pairs.h by tiles of AMX. A chunk of 32 tokens is one step of a tile of keys as columns, so that
 * a tile of the state is loaded, takes in one product and is stored.
 */
#ifndef EJKI_RECURRENT_CHUNK_AMX_PRODUCTS_H
#define EJKI_RECURRENT_CHUNK_AMX_PRODUCTS_H

#include <immintrin.h>

#include "kernels/simd/amx.h"
#include "operations/recurrent/cpu/chunk/bf16_dot/operands.h"

enum { EXACT_STATES = 1 };

static void open_products(void) {
    amx_open();
}
static void close_products(void) {
    amx_close();
}

/* to[32][32] = left right, over the key channels and terms of the right one; `lower`: only what is not above the
 * diagonal is used. */
static void pair_product(rec_size steps, int terms, const uint16_t *left, const uint16_t *right,
                         bool lower, float *to) {
    const uint16_t *second = left + steps * BLOCK_SIZE;
    AMX_BARRIER();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (rec_size n = 0, s = 0; n < terms * steps; n++, right += 2 * BLOCK_SIZE) {
        _tile_loadd(4, right, 64);
        _tile_loadd(6, left + s * BLOCK_SIZE, 64);
        _tile_dpbf16ps(0, 6, 4);
        _tile_loadd(5, right + BLOCK_SIZE, 64);
        if (!lower) _tile_dpbf16ps(1, 6, 5);
        _tile_loadd(7, second + s * BLOCK_SIZE, 64);
        _tile_dpbf16ps(2, 7, 4);
        _tile_dpbf16ps(3, 7, 5);
        s = s + 1 == steps ? 0 : s + 1;
    }
    _tile_stored(0, to, 4 * TILE_COLUMNS);
    _tile_stored(1, to + VL, 4 * TILE_COLUMNS);
    _tile_stored(2, to + BLOCK_ROWS * TILE_COLUMNS, 4 * TILE_COLUMNS);
    _tile_stored(3, to + BLOCK_ROWS * TILE_COLUMNS + VL, 4 * TILE_COLUMNS);
    AMX_BARRIER();
}

/* Rows d to end - 1 of a slab, at most two blocks, take in terms of what tokens add, from the smallest on. */
INLINE void add_rows(const int terms, const chunk_pairs *t, float *state, rec_size d,
                     rec_size end) {
    const uint16_t *keys = t->k_columns + d * STEP;
    const int64_t stride = 4 * TILE_COLUMNS;
    float *at = state + d * TILE_COLUMNS, *next = at + BLOCK_ROWS * TILE_COLUMNS;
    const bool more = end - d > BLOCK_ROWS;
    AMX_BARRIER();
    _tile_loadd(6, keys, 64);
    _tile_loadd(0, at, stride);
    _tile_loadd(1, at + VL, stride);
    if (more) _tile_loadd(7, keys + BLOCK_SIZE, 64);
    if (more) _tile_loadd(2, next, stride);
    if (more) _tile_loadd(3, next + VL, stride);
    EJKI_UNROLL for (int n = terms - 1; n >= 0; n--) {
        const uint16_t *u = t->u + n * 2 * BLOCK_SIZE;
        _tile_loadd(4, u, 64);
        _tile_loadd(5, u + BLOCK_SIZE, 64);
        _tile_dpbf16ps(0, 6, 4);
        _tile_dpbf16ps(1, 6, 5);
        if (more) _tile_dpbf16ps(2, 7, 4);
        if (more) _tile_dpbf16ps(3, 7, 5);
    }
    _tile_stored(0, at, stride);
    _tile_stored(1, at + VL, stride);
    if (more) _tile_stored(2, next, stride);
    if (more) _tile_stored(3, next + VL, stride);
    AMX_BARRIER();
}

/* A slab gets the decays of the chunk, takes in `terms` terms of what tokens add, and becomes an operand of `parts`
 * terms, a step of rows after the other, while they are in a first-level cache. */
INLINE void update_pairs(const int terms, const int parts, chunk *c, float *state, uint16_t *to) {
    const rec_size apart = c->pairs->steps * 2 * BLOCK_SIZE;
    for (rec_size d = 0; d < c->pitch; d += STEP, to += 2 * BLOCK_SIZE) {
        const rec_size end = ejki_min(d + STEP, c->pitch);
        float *rows = state + d * TILE_COLUMNS;
        for (rec_size r = 0; r < end - d; r++) {
            const vf factor = v_set1(c->whole[d + r]);
            float *at = rows + r * TILE_COLUMNS;
            if (r % TILE_ROWS == 0) prefetch(&c->ahead);
            v_store(at, v_mul(factor, v_load(at)));
            v_store(at + VL, v_mul(factor, v_load(at + VL)));
        }
        add_rows(terms, c->pairs, state, d, end);
        for (rec_size r = 0; r < end - d; r += 2) {
            const float *even = rows + r * TILE_COLUMNS, *odd = even + TILE_COLUMNS;
            pair_rows(parts, v_load(even), v_load(odd), apart, to + r * VL);
            pair_rows(parts, v_load(even + VL), v_load(odd + VL), apart, to + r * VL + BLOCK_SIZE);
        }
    }
}

/* to[32][16] = left right: the first block of columns alone. */
static void narrow_product(rec_size steps, const uint16_t *left, const uint16_t *right, float *to) {
    const uint16_t *second = left + steps * BLOCK_SIZE;
    AMX_BARRIER();
    _tile_zero(0);
    _tile_zero(2);
    for (rec_size s = 0; s < steps; s++) {
        _tile_loadd(4, right + s * BLOCK_SIZE, 64);
        _tile_loadd(6, left + s * BLOCK_SIZE, 64);
        _tile_dpbf16ps(0, 6, 4);
        _tile_loadd(7, second + s * BLOCK_SIZE, 64);
        _tile_dpbf16ps(2, 7, 4);
    }
    _tile_stored(0, to, 4 * VL);
    _tile_stored(2, to + BLOCK_ROWS * VL, 4 * VL);
    AMX_BARRIER();
}

#endif
