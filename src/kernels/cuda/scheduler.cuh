/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Static persistent tile scheduler, longest tile first. Work is `columns` of `tiles` tiles each, such as a head of a
 * batch entry; a round gives each CTA one of them. Columns are taken in groups of `together`, such as those whose
 * operands stay in L2: within a group all first tiles come before all second ones, so that the caller numbers the
 * longest first, and odd rounds go through the CTAs backwards, which balances them. Where all tiles are of one
 * length `together` is 0: a column's tiles come one after the other.
 */
#ifndef EJKI_CUDA_SCHEDULER_CUH
#define EJKI_CUDA_SCHEDULER_CUH

#include "kernels/cuda/element.cuh"

struct schedule {
    int columns, tiles, together; /* columns * tiles <= 2^30 */
};

/* Columns of a group, rounds of a group, rounds of all. */
DEVICE int width_of(const schedule &s) {
    return s.together ? s.together : s.columns;
}
DEVICE int rounds_of_group(const schedule &s, int width) {
    return cdiv(s.tiles * width, gridDim.x);
}
DEVICE int rounds_of(const schedule &s) {
    const int width = width_of(s);
    return rounds_of_group(s, width) * cdiv(s.columns, width);
}

/* The work of this CTA in a round; false if there is none. */
DEVICE bool work_of_round(const schedule &s, int round, int *column, int *tile) {
    const int blocks = gridDim.x, most = width_of(s), rounds = rounds_of_group(s, most);
    const int group = round / rounds, width = lesser(most, s.columns - group * most);
    /* A group begins with the CTA after the one that the group before ended with. */
    const int start = group * most * s.tiles % blocks;
    const int own = ((int)blockIdx.x - start + blocks) % blocks, turn = round - group * rounds;
    const int index = turn * blocks + (turn % 2 ? blocks - 1 - own : own);
    if (index >= width * s.tiles) return false;
    *column = group * most + (s.together ? index % width : index / s.tiles);
    *tile = s.together ? index / width : index % s.tiles;
    return true;
}

#endif
