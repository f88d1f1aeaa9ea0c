/* SPDX-License-Identifier: Apache-2.0 */
/* Which blocks a token attends to: those whose weights in the compressed branch are the largest, or those of a list. */
#ifndef EJKI_NATIVE_SPARSE_CHOOSE_H
#define EJKI_NATIVE_SPARSE_CHOOSE_H

#include "operations/attention/native_sparse/branch.h"

/* The blocks with the largest importance so far, in order; of equal ones the first comes first. */
typedef struct best {
    float *value;
    int32_t *block;
    int64_t count, most;
} best;

static void offer(best *b, float value, int64_t block) {
    int64_t at = b->count;
    value = value >= 0 ? value : -1; /* NaN */
    if (at == b->most && (at == 0 || b->value[at - 1] >= value)) return;
    if (at == b->most)
        at--;
    else
        b->count++;
    for (; at > 0 && b->value[at - 1] < value; at--) {
        b->value[at] = b->value[at - 1];
        b->block[at] = b->block[at - 1];
    }
    b->value[at] = value;
    b->block[at] = (int32_t)block;
}

static void sort(int32_t *list, int64_t count) {
    for (int64_t i = 1; i < count; i++) {
        const int32_t block = list[i];
        int64_t at = i;
        for (; at > 0 && list[at - 1] > block; at--) list[at] = list[at - 1];
        list[at] = block;
    }
}

/* Weights of VL blocks from c on, those of heads added up in their order; what is behind `own` does not count. */
static vf importance(const nsa_problem *p, const branch *br, const softmax *s, int64_t lane,
                     int64_t own, int64_t c) {
    vf sum = v_zero(), block[VL];
    for (int64_t g = 0; g < p->group; g += VL) {
        const int64_t heads = ejki_min(VL, p->group - g);
        const float *weights = s->scores + c * br->lanes + lane + g;
        for (int64_t i = 0; i < VL; i++)
            block[i] = c + i < own ? v_load_first(weights + i * br->lanes, heads) : v_zero();
        v_transpose(block);
        for (int64_t i = 0; i < heads; i++)
            sum = v_add(sum, v_mul(block[i], v_set1(s->sum[lane + g + i])));
    }
    return sum;
}

/* Blocks of a token whose lanes begin at `lane`: its own, the last one, and the best before it. */
static int64_t choose(const nsa_problem *p, const branch *br, const softmax *s, int64_t lane,
                      int64_t own, int64_t limit, float *values, int32_t *list) {
    best b = {values, list, 0, ejki_min(limit, own + 1) - 1};
    if (limit == 0) return 0;
    if (b.most == own) {
        for (int64_t c = 0; c < own; c++) list[c] = (int32_t)c;
        list[own] = (int32_t)own;
        return own + 1;
    }
    for (int64_t c = 0; b.most > 0 && c < own; c += VL) {
        float sum[VL];
        v_store(sum, importance(p, br, s, lane, own, c));
        for (int64_t i = 0; i < ejki_min(VL, own - c); i++) offer(&b, sum[i], c + i);
    }
    sort(list, b.count);
    list[b.count] = (int32_t)own;
    return b.count + 1;
}

#endif
