/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two rows of logits at once, in vectors. A chunk of both is read once: their powers, relative to the largest logits so
 * far, and those of the first times distances of the logits, from which KL(first, second) follows when all are known.
 * All in powers of two: y = scale · x - base, so that 2^y is exp(x / temperature) relative to about the largest.
 */
#ifndef EJKI_FUSED_KL_DIVERGENCE_FOLD_H
#define EJKI_FUSED_KL_DIVERGENCE_FOLD_H

#include "operations/loss/fused_kl_divergence/rows.h"
#include "operations/loss/shared/powers.h"

/* What all tokens have in common. `unit`: what 1 of y is in logits by temperature, log 2 but for rounding of scale. */
typedef struct fold_call {
    const kl_problem *p;
    float scale;
    bool streams; /* gradients are written past the caches */
    double unit;
} fold_call;

static fold_call fold_call_of(const kl_problem *p) {
    fold_call c = {.p = p, .scale = (float)((double)LOG2_E / p->temperature)};
    c.unit = 1 / ((double)c.scale * p->temperature);
    c.streams = p->gradient &&
                (double)kl_rows(p) * (double)p->vocab * (double)element_size((ejk_dtype)p->dtype) >=
                    STREAMED_BYTES;
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

/* What is wanted: Σ 2^y (y - y'), by distances of x, and Σ 2^y y. */
typedef struct fold_kind {
    bool crosses, linear;
} fold_kind;

/* `apart`: how far the bases are apart in logits. */
typedef struct fold_bases {
    power_base of[2];
    vf base[2], apart;
} fold_bases;

INLINE fold_bases bases_of(float scale, const float base[2], float apart) {
    return (fold_bases){{power_base_of(scale, base[0]), power_base_of(scale, base[1])},
                        {v_set1(base[0]), v_set1(base[1])},
                        v_set1(apart)};
}

/*
 * The first's y counts as -126 where it is less: such powers change no sum, and where the second logit is -inf, but not
 * the first, they make a sum infinite, however small they are.
 */
INLINE void add_vectors(const fold_kind kind, const vf x[2], const fold_bases *b, fold_vectors *s) {
    const vf none = v_set1(-__builtin_inff());
    vf near[2];
    EJKI_UNROLL for (int k = 0; k < 2; k++) {
        near[k] = v_max(b->of[k].least, x[k]);
        s->most[k] = larger(x[k], s->most[k]);
    }
    s->sum[1] = kind.linear ? s->sum[1] : add_power(s->sum[1], x[1], b->of + 1);
    if (!kind.crosses && !kind.linear) {
        s->sum[0] = add_power(s->sum[0], x[0], b->of);
        return;
    }
    const vf power = power_near(near[0], b->of);
    s->sum[0] = v_add(s->sum[0], power);
    if (kind.crosses) {
        const vf distance = v_sub(v_sub(near[0], x[1]), b->apart);
        s->cross = v_fma(power, v_select_gt(x[0], none, distance, v_zero()), s->cross);
    }
    if (!kind.linear) return;
    const vf second = power_near(near[1], b->of + 1);
    s->sum[1] = v_add(s->sum[1], second);
    s->linear[0] = v_fma(power, v_fms(near[0], b->of[0].scale, b->base[0]), s->linear[0]);
    s->linear[1] = v_fma(second, v_fms(near[1], b->of[1].scale, b->base[1]), s->linear[1]);
}

INLINE fold_vectors no_vectors(void) {
    const vf none = v_set1(-__builtin_inff());
    return (fold_vectors){{v_zero(), v_zero()}, {v_zero(), v_zero()}, {none, none}, v_zero()};
}

/* Sums of a chunk, and its largest logits. */
typedef struct fold_chunk {
    double sum[2], linear[2], cross;
    float most[2];
} fold_chunk;

INLINE fold_chunk sum_chunk(const ejk_dtype dtype, const fold_kind kind, const void *const at[2],
                            mm_size n, float scale, const float base[2]) {
    const double wide = (double)scale, apart = (double)base[0] - (double)base[1];
    const float near = (float)(apart / wide);
    const fold_bases from = bases_of(scale, base, near);
    fold_vectors s[2] = {no_vectors(), no_vectors()};
    fold_chunk c;
    mm_size i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        vf x[2][2];
        EJKI_UNROLL for (int k = 0; k < 2; k++) {
            ask(dtype, at[k], i);
            if (dtype == EJK_DTYPE_F32) ask(dtype, at[k], i + VL);
            widen_pair(dtype, element_at(dtype, at[k], i), x[k]);
        }
        EJKI_UNROLL for (int j = 0; j < 2; j++) {
            const vf both[2] = {x[0][j], x[1][j]};
            add_vectors(kind, both, &from, s + j);
        }
    }
    for (; i < n; i += VL) {
        vf x[2];
        for (int k = 0; k < 2; k++)
            x[k] = v_keep(v_widen_some(dtype, element_at(dtype, at[k], i), n - i), 0, n - i);
        add_vectors(kind, x, &from, s);
    }
    for (int k = 0; k < 2; k++) {
        c.sum[k] = (double)v_sum(v_add(s[0].sum[k], s[1].sum[k]));
        c.linear[k] = (double)v_sum(v_add(s[0].linear[k], s[1].linear[k]));
        c.most[k] = v_largest(larger(s[0].most[k], s[1].most[k]));
    }
    /* In y, and without what `near` is off by. */
    c.cross = wide * (double)v_sum(v_add(s[0].cross, s[1].cross));
    c.cross += c.sum[0] * (wide * (double)near - apart);
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
        s->of[k].sum += c->sum[k];
        s->of[k].linear += c->linear[k];
    }
    if (adds[0]) s->cross += c->cross;
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
                base[k] = base_of(call->scale, largest_of(dtype, false, NULL, at[k], n));
        }
        fold_chunk c = sum_chunk(dtype, kind, at, n, call->scale, base);
        for (int k = 0; k < 2; k++) {
            if (!(call->scale * c.most[k] > base[k] + ABOVE)) continue;
            base[k] = base_of(call->scale, c.most[k]);
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

/* A distribution when its sum is known: a probability is 2^y · rate, its logarithm y - log. */
typedef struct fold_norm {
    float base, rate, log;
} fold_norm;

static fold_norm norm_of(const fold_sums *s) {
    return (fold_norm){(float)s->base, (float)(1 / s->sum), (float)log2(s->sum)};
}
/* By an lse that is given. */
static fold_norm norm_by(const fold_call *call, double lse) {
    const double of = lse / call->unit, base = rint(of);
    return (fold_norm){(float)base, (float)exp2(base - of), (float)(of - base)};
}

static double lse_of(const fold_call *call, const fold_sums *s) {
    return s->base * call->unit + log(s->sum);
}

/* What has less than this of a logarithm is 0, and differences to it stay finite. */
#define LEAST_LOG -20000.0f

typedef struct fold_share {
    vf p, log;
} fold_share;

INLINE fold_share share_of(const fold_norm *norm, const power_base *base, vf x) {
    const vf y = v_fms(x, base->scale, v_set1(norm->base));
    return (fold_share){v_mul(power_of(x, base), v_set1(norm->rate)),
                        v_sub(v_max(v_set1(LEAST_LOG), y), v_set1(norm->log))};
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
    const power_base bases[2] = {power_base_of(call->scale, norm[0].base),
                                 power_base_of(call->scale, norm[1].base)};
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
            const fold_share a = share_of(norm, bases, x), b = share_of(norm + 1, bases + 1, y);
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

/* What derive() needs for each vector; results that are NULL are not wanted. */
typedef struct slope_call {
    const fold_slope *at;
    power_base base[2];
    float beta;
    void *to[2];
} slope_call;

/* Gradients of a vector of both. */
INLINE void slopes_of(const bool mixes, const slope_call *s, vf x, vf y, vf d[2]) {
    const fold_slope *at = s->at;
    const vf factor = v_set1(at->factor), unit = v_set1(at->factor * at->unit);
    const vf from[2] = {v_set1(at->divergence[0]), v_set1(at->divergence[1])};
    const fold_share a = share_of(at->norm, s->base, x), b = share_of(at->norm + 1, s->base + 1, y);
    if (!mixes) {
        if (s->to[0]) d[0] = v_mul(v_mul(unit, a.p), v_sub(v_sub(a.log, b.log), from[0]));
        d[1] = v_mul(factor, v_sub(b.p, a.p));
        return;
    }
    const vf mean = log_of_mean(s->beta, &a, &b);
    const vf first = v_mul(v_mul(unit, v_set1(s->beta)), a.p);
    const vf second = v_mul(v_mul(unit, v_set1(1 - s->beta)), b.p);
    d[0] = v_mul(first, v_sub(v_sub(a.log, mean), from[0]));
    d[1] = v_mul(second, v_sub(v_sub(b.log, mean), from[1]));
}

/* Classes from i to behind `end`. */
INLINE void derive_some(const ejk_dtype dtype, const bool mixes, const slope_call *s,
                        const void *const x[2], mm_size i, mm_size end) {
    for (; i < end; i += VL) {
        const mm_size n = end - i;
        vf d[2] = {v_zero(), v_zero()};
        slopes_of(mixes, s, v_widen_some(dtype, element_at(dtype, x[0], i), n),
                  v_widen_some(dtype, element_at(dtype, x[1], i), n), d);
        for (int k = 0; k < 2; k++)
            if (s->to[k]) v_narrow_some(dtype, element_at(dtype, s->to[k], i), d[k], n);
    }
}

INLINE void derive(const ejk_dtype dtype, const bool mixes, const fold_call *call,
                   const fold_slope *at, const void *const x[2], void *const to[2]) {
    const slope_call s = {at,
                          {power_base_of(call->scale, at->norm[0].base),
                           power_base_of(call->scale, at->norm[1].base)},
                          (float)call->p->beta,
                          {to[0], to[1]}};
    const mm_size count = call->p->vocab;
    bool streams = call->streams;
    mm_size i = 0;
    if (streams) {
        i = streamed_from(dtype, to[0] ? to[0] : to[1], count);
        streams = !to[0] || !to[1] || i == streamed_from(dtype, to[1], count);
        derive_some(dtype, mixes, &s, x, 0, i);
    }
    for (; i + 2 * VL <= count; i += 2 * VL) {
        vf in[2][2], d[2][2] = {{v_zero(), v_zero()}, {v_zero(), v_zero()}};
        EJKI_UNROLL for (int k = 0; k < 2; k++)
            widen_pair(dtype, element_at(dtype, x[k], i), in[k]);
        EJKI_UNROLL for (int j = 0; j < 2; j++) {
            vf both[2] = {v_zero(), v_zero()};
            slopes_of(mixes, &s, in[0][j], in[1][j], both);
            d[0][j] = both[0];
            d[1][j] = both[1];
        }
        EJKI_UNROLL for (int k = 0; k < 2; k++) if (to[k])
            narrow_pair(dtype, element_at(dtype, to[k], i), d[k], streams);
    }
    derive_some(dtype, mixes, &s, x, i, count);
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
