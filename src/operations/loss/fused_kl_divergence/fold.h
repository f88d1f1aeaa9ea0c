/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two rows of logits at once, in vectors. A chunk of both is read once: their powers, relative to the largest logits so
 * far, and those of the first times distances of the logits, from which KL(first, second) follows when all are known.
 * All in powers of two: y = scale · x - base, so that 2^y is exp((x - max) / temperature).
 */
#ifndef EJKI_FUSED_KL_DIVERGENCE_FOLD_H
#define EJKI_FUSED_KL_DIVERGENCE_FOLD_H

#include "operations/loss/fused_kl_divergence/rows.h"
#include "operations/loss/shared/chunk.h"

/* What all tokens have in common. `unit`: what 1 of y is in logits by temperature, log 2 but for rounding of scale. */
typedef struct fold_call {
    const kl_problem *p;
    float scale;
    double unit;
} fold_call;

static fold_call fold_call_of(const kl_problem *p) {
    fold_call c = {.p = p, .scale = (float)((double)LOG2_E / p->temperature)};
    c.unit = 1 / ((double)c.scale * p->temperature);
    return c;
}

/* Of one distribution: Σ 2^y and Σ 2^y y. Base -inf: there was no class yet. */
typedef struct fold_sums {
    double base, sum, linear;
} fold_sums;

/* cross: Σ 2^y (y - y of the second), over classes of the first. */
typedef struct fold_state {
    fold_sums of[2];
    double cross;
} fold_state;

static fold_state fold_nothing(void) {
    return (fold_state){{{.base = -HUGE_VAL}, {.base = -HUGE_VAL}}, 0};
}

/* ---- A chunk ---------------------------------------------------------------------------------------- */

typedef struct fold_vectors {
    vf sum[2], linear[2], most[2], cross;
} fold_vectors;

/* What is known of which: Σ 2^y (y - y') and Σ 2^y y only where they are wanted. */
typedef struct fold_kind {
    bool crosses, linear;
} fold_kind;

/*
 * Below this y counts as this: such powers change no sum, and where the second logit is -inf, but not the first, they
 * make a sum infinite, however small they are.
 */
#define LEAST -126.0f

INLINE void add_vectors(const fold_kind kind, const vf x[2], vf scale, const vf base[2],
                        fold_vectors *s) {
    const vf none = v_set1(-__builtin_inff());
    vf y[2], power[2], near[2];
    EJKI_UNROLL for (int k = 0; k < 2; k++) {
        y[k] = v_fms(x[k], scale, base[k]);
        near[k] = v_max(v_set1(LEAST), y[k]);
        power[k] = v_exp2(near[k]);
        s->sum[k] = v_add(s->sum[k], power[k]);
        s->most[k] = larger(x[k], s->most[k]);
        if (kind.linear) s->linear[k] = v_fma(power[k], near[k], s->linear[k]);
    }
    if (!kind.crosses) return;
    const vf apart = v_select_gt(x[0], none, v_sub(near[0], y[1]), v_zero());
    s->cross = v_fma(power[0], apart, s->cross);
}

INLINE fold_vectors no_vectors(void) {
    const vf none = v_set1(-__builtin_inff());
    return (fold_vectors){{v_zero(), v_zero()}, {v_zero(), v_zero()}, {none, none}, v_zero()};
}

/* Sums of a chunk, and its largest logits. */
typedef struct fold_chunk {
    float sum[2], linear[2], most[2], cross;
} fold_chunk;

INLINE fold_chunk sum_chunk(const ejk_dtype dtype, const fold_kind kind, const void *const at[2],
                            mm_size n, float scale, const float base[2]) {
    const vf by = v_set1(scale), from[2] = {v_set1(base[0]), v_set1(base[1])};
    fold_vectors s[2] = {no_vectors(), no_vectors()};
    fold_chunk c;
    mm_size i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        EJKI_UNROLL for (int k = 0; k < 2; k++) {
            ask(dtype, at[k], i);
            if (dtype == EJK_DTYPE_F32) ask(dtype, at[k], i + VL);
        }
        EJKI_UNROLL for (int j = 0; j < 2; j++) {
            const vf x[2] = {v_widen(dtype, element_at(dtype, at[0], i + j * VL)),
                             v_widen(dtype, element_at(dtype, at[1], i + j * VL))};
            add_vectors(kind, x, by, from, s + j);
        }
    }
    for (; i < n; i += VL) {
        vf x[2];
        for (int k = 0; k < 2; k++)
            x[k] = v_keep(v_widen_some(dtype, element_at(dtype, at[k], i), n - i), 0, n - i);
        add_vectors(kind, x, by, from, s);
    }
    for (int k = 0; k < 2; k++) {
        c.sum[k] = v_sum(v_add(s[0].sum[k], s[1].sum[k]));
        c.linear[k] = v_sum(v_add(s[0].linear[k], s[1].linear[k]));
        c.most[k] = v_largest(larger(s[0].most[k], s[1].most[k]));
    }
    c.cross = v_sum(v_add(s[0].cross, s[1].cross));
    return c;
}

/* Sums relative to other bases, which are `by` lower; a sum of nothing, and one that is infinite, stays. */
static void move_sums(fold_state *s, const double by[2]) {
    if (!isinf(s->cross) && s->of[0].sum != 0)
        s->cross = exp2(by[0]) * (s->cross + s->of[0].sum * (by[0] - by[1]));
    for (int k = 0; k < 2; k++) {
        fold_sums *own = s->of + k;
        if (by[k] == 0) continue;
        own->linear = exp2(by[k]) * (own->linear + own->sum * by[k]);
        own->sum *= exp2(by[k]);
    }
}

/* Adds a chunk. One without a class that can be adds nothing to sums of its distribution. */
static void join_chunk(const fold_chunk *c, const float base[2], fold_state *s) {
    double by[2] = {0, 0};
    bool adds[2];
    for (int k = 0; k < 2; k++) {
        adds[k] = c->most[k] != -__builtin_inff() || isnan(c->sum[k]);
        if (!adds[k]) continue;
        if (s->of[k].base != -HUGE_VAL) by[k] = s->of[k].base - (double)base[k];
        s->of[k].base = (double)base[k];
    }
    if (by[0] != 0 || by[1] != 0) move_sums(s, by);
    for (int k = 0; k < 2; k++) {
        if (!adds[k]) continue;
        s->of[k].sum += (double)c->sum[k];
        s->of[k].linear += (double)c->linear[k];
    }
    s->cross += (double)c->cross;
}

INLINE void fold(const ejk_dtype dtype, const fold_kind kind, const fold_call *call,
                 const void *first, const void *second, fold_state *s) {
    for (mm_size i = 0; i < call->p->vocab; i += CHUNK) {
        const mm_size n = ejki_min(call->p->vocab - i, CHUNK);
        const void *const at[2] = {element_at(dtype, first, i), element_at(dtype, second, i)};
        float base[2];
        bool above = false;
        for (int k = 0; k < 2; k++) {
            base[k] = (float)s->of[k].base;
            if (base[k] == -__builtin_inff())
                base[k] = call->scale * largest_of(dtype, false, NULL, at[k], n);
            if (base[k] == -__builtin_inff()) base[k] = 0;
        }
        fold_chunk c = sum_chunk(dtype, kind, at, n, call->scale, base);
        for (int k = 0; k < 2; k++) {
            if (!(call->scale * c.most[k] > base[k] + ABOVE)) continue;
            base[k] = call->scale * c.most[k];
            above = true;
        }
        if (above) c = sum_chunk(dtype, kind, at, n, call->scale, base);
        join_chunk(&c, base, s);
    }
}

static __attribute__((noinline)) void fold_of(const ejk_dtype dtype, bool linear,
                                              const fold_call *call, const void *first,
                                              const void *second, fold_state *s) {
    const fold_kind crosses = {true, false}, all = {true, true}, sums = {false, false};
    if (linear)
        ELEMENT_CALL(dtype, fold, all, call, first, second, s);
    else if (call->p->mixes)
        ELEMENT_CALL(dtype, fold, sums, call, first, second, s);
    else
        ELEMENT_CALL(dtype, fold, crosses, call, first, second, s);
}

/* ---- Probabilities ---------------------------------------------------------------------------------- */

/* A distribution when its sum is known: a probability is 2^(y - low) · rate, its logarithm y - low - log. */
typedef struct fold_norm {
    float base, low, rate, log;
} fold_norm;

static fold_norm norm_of(const fold_sums *s) {
    return (fold_norm){(float)s->base, 0, (float)(1 / s->sum), (float)log2(s->sum)};
}
/* By an lse that is given. */
static fold_norm norm_by(const fold_call *call, double lse) {
    const double base = lse / call->unit;
    return (fold_norm){(float)base, (float)(base - (double)(float)base), 1, 0};
}

static double lse_of(const fold_call *call, const fold_sums *s) {
    return s->base * call->unit + log(s->sum);
}

/* What has less than this of a logarithm is 0, and differences to it stay finite. */
#define LEAST_LOG -20000.0f

typedef struct fold_share {
    vf p, log;
} fold_share;

INLINE fold_share share_of(const fold_norm *norm, vf scale, vf x) {
    const vf y = v_sub(v_fms(x, scale, v_set1(norm->base)), v_set1(norm->low));
    const vf a = v_max(v_set1(LEAST_LOG), y);
    return (fold_share){v_mul(v_exp2(a), v_set1(norm->rate)), v_sub(a, v_set1(norm->log))};
}

/* log2 of the mean of both. */
INLINE vf log_of_mean(float beta, const fold_share *first, const fold_share *second) {
    const vf mean = v_fma(v_set1(beta), first->p, v_mul(v_set1(1 - beta), second->p));
    return v_log2(v_max(v_set1(0x1p-126f), mean));
}

/* ---- Divergences from the mean ---------------------------------------------------------------------- */

/* KL(first, mean) and KL(second, mean), in powers of two. */
INLINE void mix(const ejk_dtype dtype, const fold_call *call, const fold_norm norm[2],
                const void *first, const void *second, double to[2]) {
    const vf scale = v_set1(call->scale);
    to[0] = to[1] = 0;
    for (mm_size from = 0; from < call->p->vocab; from += CHUNK) {
        const mm_size end = ejki_min(from + CHUNK, call->p->vocab);
        vf sum[2] = {v_zero(), v_zero()};
        for (mm_size i = from; i < end; i += VL) {
            const mm_size n = end - i;
            vf x = v_widen_some(dtype, element_at(dtype, first, i), n);
            vf y = v_widen_some(dtype, element_at(dtype, second, i), n);
            if (n < VL) {
                x = v_keep(x, 0, n);
                y = v_keep(y, 0, n);
            }
            const fold_share a = share_of(norm, scale, x), b = share_of(norm + 1, scale, y);
            const vf mean = log_of_mean((float)call->p->beta, &a, &b);
            sum[0] = v_fma(a.p, v_sub(a.log, mean), sum[0]);
            sum[1] = v_fma(b.p, v_sub(b.log, mean), sum[1]);
        }
        to[0] += (double)v_sum(sum[0]);
        to[1] += (double)v_sum(sum[1]);
    }
}

static __attribute__((noinline)) void mix_of(const ejk_dtype dtype, const fold_call *call,
                                             const fold_norm norm[2], const void *first,
                                             const void *second, double to[2]) {
    ELEMENT_CALL(dtype, mix, call, norm, first, second, to);
}

/* ---- Gradients -------------------------------------------------------------------------------------- */

/* Of a token: all is times factor; divergences in powers of two, of KL(first, second) without what norms have. */
typedef struct fold_slope {
    fold_norm norm[2];
    float factor, unit, divergence[2];
} fold_slope;

typedef struct fold_slopes {
    vf first, second;
} fold_slopes;

INLINE fold_slopes slopes_of(const bool mixes, const fold_slope *at, float beta, vf scale, vf x,
                             vf y) {
    const fold_share a = share_of(at->norm, scale, x), b = share_of(at->norm + 1, scale, y);
    const vf factor = v_set1(at->factor), unit = v_set1(at->factor * at->unit);
    const vf from[2] = {v_set1(at->divergence[0]), v_set1(at->divergence[1])};
    if (!mixes)
        return (fold_slopes){v_mul(v_mul(unit, a.p), v_sub(v_sub(a.log, b.log), from[0])),
                             v_mul(factor, v_sub(b.p, a.p))};
    const vf mean = log_of_mean(beta, &a, &b);
    const vf first = v_mul(v_mul(unit, v_set1(beta)), a.p);
    const vf second = v_mul(v_mul(unit, v_set1(1 - beta)), b.p);
    return (fold_slopes){v_mul(first, v_sub(v_sub(a.log, mean), from[0])),
                         v_mul(second, v_sub(v_sub(b.log, mean), from[1]))};
}

/* A result that is NULL is not wanted. */
INLINE void derive(const ejk_dtype dtype, const bool mixes, const fold_call *call,
                   const fold_slope *at, const void *const x[2], void *const to[2]) {
    const vf scale = v_set1(call->scale);
    const float beta = (float)call->p->beta;
    for (mm_size i = 0; i < call->p->vocab; i += VL) {
        const mm_size n = call->p->vocab - i;
        const fold_slopes d =
            slopes_of(mixes, at, beta, scale, v_widen_some(dtype, element_at(dtype, x[0], i), n),
                      v_widen_some(dtype, element_at(dtype, x[1], i), n));
        if (to[0]) v_narrow_some(dtype, element_at(dtype, to[0], i), d.first, n);
        if (to[1]) v_narrow_some(dtype, element_at(dtype, to[1], i), d.second, n);
    }
}

static __attribute__((noinline)) void derive_of(const ejk_dtype dtype, const fold_call *call,
                                                const fold_slope *at, const void *const x[2],
                                                void *const to[2]) {
    if (call->p->mixes)
        ELEMENT_CALL(dtype, derive, true, call, at, x, to);
    else
        ELEMENT_CALL(dtype, derive, false, call, at, x, to);
}

#endif
