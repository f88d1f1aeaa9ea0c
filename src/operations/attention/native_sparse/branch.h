/* SPDX-License-Identifier: Apache-2.0 */
/* A branch of a tile of tokens: scores of its lanes with pieces of keys, softmax, and products with values. */
#ifndef EJKI_NATIVE_SPARSE_BRANCH_H
#define EJKI_NATIVE_SPARSE_BRANCH_H

#include "operations/attention/native_sparse/shared.h"

/* Keys that follow each other: tiles, and rows of the same keys. Gradients have all four. */
typedef struct piece {
    const float *keys, *key_rows, *value_rows, *values;
    int64_t first, count; /* the number of the first one, as bounds of lanes count */
    bool finite;
} piece;

/* Lanes of a tile, and the keys that they see: from low to high - 1, or all if NULL. */
typedef struct branch {
    const piece *pieces;
    int64_t count, keys; /* pieces; keys of all */
    int64_t lanes, used; /* used: those that are rows of queries, at most all */
    const int64_t *low, *high;
    const float *query, *cotangent; /* panels */
    int64_t panel;                  /* their stride */
} branch;

/* What it comes to. */
typedef struct softmax {
    float *scores; /* [keys][lanes]: exponentials */
    float *most, *sum;
} softmax;

static void hide(const branch *br, const piece *part, float *scores) {
    for (int64_t lane = 0; br->low && lane < br->used; lane++) {
        const int64_t low = ejki_min(br->low[lane] - part->first, part->count);
        const int64_t high = ejki_max(br->high[lane] - part->first, ejki_max(low, 0));
        for (int64_t k = 0; k < low; k++) scores[k * br->lanes + lane] = -INFINITY;
        for (int64_t k = high; k < part->count; k++) scores[k * br->lanes + lane] = -INFINITY;
    }
}

/* Difference of natural numbers, which are large together, before it is one of powers of two. */
INLINE vf exponential(vf score, vf most) {
    return v_exp2(v_mul(v_sub(score, most), v_set1(1.44269504f)));
}

/* Exponentials of `keys` rows of scores of VL lanes, relative to the largest of a lane. */
INLINE void exponentials(int64_t keys, int64_t lanes, float scale, float *scores, float *most,
                         float *sum) {
    vf top = v_set1(-INFINITY), all = v_zero();
    for (int64_t k = 0; k < keys; k++) {
        const vf score = v_mul(v_load(scores + k * lanes), v_set1(scale));
        v_store(scores + k * lanes, score);
        top = v_max(score, top);
    }
    v_store(most, top);
    /* Of a lane that sees nothing no score is above -inf. */
    top = v_select_gt(top, v_set1(-INFINITY), top, v_zero());
    for (int64_t first = 0; first < keys; first += LANES) {
        vf part = v_zero();
        const int64_t end = ejki_min(keys, first + LANES);
        for (int64_t k = first; k < end; k++) {
            const vf weight = exponential(v_load(scores + k * lanes), top);
            v_store(scores + k * lanes, weight);
            part = v_add(part, weight);
        }
        all = v_add(all, part);
    }
    v_store(sum, all);
}

static void weigh(const nsa_problem *p, const branch *br, const softmax *to) {
    float *at = to->scores;
    for (int64_t i = 0; i < br->count; at += br->pieces[i++].count * br->lanes) {
        score_tiles(br->pieces[i].count, p->dim, br->pieces[i].keys, br->query, br->panel,
                    br->lanes, at);
        hide(br, br->pieces + i, at);
    }
    for (int64_t lane = 0; lane < br->lanes; lane += VL)
        exponentials(br->keys, br->lanes, (float)p->scale, to->scores + lane, to->most + lane,
                     to->sum + lane);
}

/* What a lane is divided by, or rather multiplied by; 0 of one that sees nothing. */
static float part_of(const softmax *s, int64_t lane) {
    return s->sum[lane] == 0 ? 0 : 1 / s->sum[lane];
}

/* sums[lane] += weights rows, key by key over those that have a weight: for rows that are not finite. */
static __attribute__((noinline)) void add_slowly(const branch *br, int64_t count,
                                                 const float *weights, const float *rows,
                                                 int64_t width, float *sums) {
    for (int64_t lane = 0; lane < br->used; lane++)
        for (int64_t k = 0; k < count; k++) {
            const float weight = weights[k * br->lanes + lane];
            if (weight == 0) continue;
            for (int64_t d = 0; d < width; d += VL) {
                float *to = sums + lane * width + d;
                v_store(to, v_fma(v_set1(weight), v_load(rows + k * width + d), v_load(to)));
            }
        }
}

/* sums[lane][width] = weights times the rows of values, or of keys. */
static void add_rows(const branch *br, const float *weights, bool keys, int64_t width,
                     float *sums) {
    memset(sums, 0, (size_t)(br->used * width) * sizeof *sums);
    for (int64_t i = 0; i < br->count; weights += br->pieces[i++].count * br->lanes) {
        const piece *part = br->pieces + i;
        const float *rows = keys ? part->key_rows : part->value_rows;
        if (!part->finite) {
            add_slowly(br, part->count, weights, rows, width, sums);
            continue;
        }
        for (int64_t lane = 0, n; lane < br->used; lane += n) {
            n = gemm_rows(br->used - lane);
            multiply_across((int)n, width, part->count, weights + lane, br->lanes, rows, width,
                            sums + lane * width, width, true);
        }
    }
}

/* ---- Gradients -------------------------------------------------------------------------------------- */

/* What a weight makes of a number: 0 where it is 0, even of NaN; NaN where it is NaN. */
INLINE vf weighted(vf weight, vf number) {
    return v_select_gt(weight, v_zero(), v_mul(weight, number), weight);
}

/* Cotangents of weights, and what rows have of them: inner[lane] = Σ exponential · cotangent. */
static void weigh_cotangents(const nsa_problem *p, const branch *br, const float *weights,
                             float *own, float *inner) {
    float *at = own;
    for (int64_t i = 0; i < br->count; at += br->pieces[i++].count * br->lanes)
        score_tiles(br->pieces[i].count, p->width, br->pieces[i].values, br->cotangent, br->panel,
                    br->lanes, at);
    for (int64_t lane = 0; lane < br->lanes; lane += VL) {
        vf sum = v_zero();
        for (int64_t k = 0; k < br->keys; k++)
            sum = v_add(sum, weighted(v_load(weights + k * br->lanes + lane),
                                      v_load(own + k * br->lanes + lane)));
        v_store(inner + lane, sum);
    }
}

/* own = weights (own - inner) factor: slopes of scores. */
static void slopes(int64_t keys, int64_t lanes, const float *weights, const float *inner,
                   const float *factor, float *own) {
    for (int64_t lane = 0; lane < lanes; lane += VL) {
        const vf mean = v_load(inner + lane), by = v_load(factor + lane);
        for (int64_t k = lane; k < keys * lanes; k += lanes)
            v_store(own + k,
                    v_mul(weighted(v_load(weights + k), v_sub(v_load(own + k), mean)), by));
    }
}

#endif
