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

/* A slab of the state takes in what the tokens add, one term of U after the other. */
static void add_term(chunk *c, const uint16_t *u, float *state, bool asks) {
    const uint16_t *keys = c->pairs->k_columns;
    const int64_t stride = 4 * TILE_COLUMNS;
    AMX_BARRIER();
    _tile_loadd(4, u, 64);
    _tile_loadd(5, u + BLOCK_SIZE, 64);
    for (rec_size d = 0; d < c->pitch; d += 2 * BLOCK_ROWS, keys += 2 * BLOCK_SIZE) {
        float *at = state + d * TILE_COLUMNS, *next = at + BLOCK_ROWS * TILE_COLUMNS;
        const bool more = d + BLOCK_ROWS < c->pitch;
        for (int n = 0; asks && n < (more ? 4 : 2); n++) prefetch(&c->ahead);
        _tile_loadd(6, keys, 64);
        _tile_loadd(0, at, stride);
        _tile_dpbf16ps(0, 6, 4);
        _tile_loadd(1, at + VL, stride);
        _tile_dpbf16ps(1, 6, 5);
        if (more) {
            _tile_loadd(7, keys + BLOCK_SIZE, 64);
            _tile_loadd(2, next, stride);
            _tile_dpbf16ps(2, 7, 4);
            _tile_loadd(3, next + VL, stride);
            _tile_dpbf16ps(3, 7, 5);
        }
        _tile_stored(0, at, stride);
        _tile_stored(1, at + VL, stride);
        if (more) _tile_stored(2, next, stride);
        if (more) _tile_stored(3, next + VL, stride);
    }
    AMX_BARRIER();
}

#endif
