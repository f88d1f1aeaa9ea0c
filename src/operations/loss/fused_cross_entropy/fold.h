/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A token's logits in vectors, chunks of which are added to what is known of the token. In gradients they are read once
 * more, and what is written takes their place.
 */
#ifndef EJKI_FUSED_CROSS_ENTROPY_FOLD_H
#define EJKI_FUSED_CROSS_ENTROPY_FOLD_H

#include "operations/loss/fused_cross_entropy/rows.h"
#include "operations/loss/shared/powers.h"

/* Classes `first` to first + count - 1 of a token; x and soft lie there. */
typedef struct fold_piece {
    const void *x, *soft;
    mm_size first, count, target;
} fold_piece;

/* What serves all tokens of a call. */
typedef struct fold_call {
    const loss_problem *p;
    v_cap cap;
    bool streams; /* gradients are written past the caches */
} fold_call;

static fold_call fold_call_of(const loss_problem *p) {
    const double bytes =
        (double)loss_rows(p) * (double)p->vocab * (double)element_size((ejk_dtype)p->dtype);
    fold_call c = {.p = p, .streams = p->d_logits.dtype && bytes >= STREAMED_BYTES};
    if (p->cap > 0) c.cap = v_cap_of(1 / p->cap, p->cap);
    return c;
}

/* What a chunk adds: Σ 2^(z log2(e) - base), Σ z if it is wanted, and the largest z. */
typedef struct chunk_sums {
    float powers, linear, most;
} chunk_sums;

/* Adds a vector of logits. */
INLINE void take_logit(const bool caps, const bool adds, const v_cap *cap, const power_base *from,
                       vf x, vf *most, vf *powers, vf *linear) {
    const vf z = capped(caps, cap, x);
    *most = larger(z, *most);
    *powers = add_power(*powers, z, from);
    if (adds) *linear = v_add(*linear, z);
}

/* At most CHUNK logits. */
INLINE chunk_sums sum_chunk(const ejk_dtype dtype, const bool caps, const bool adds,
                            const v_cap *cap, const void *x, mm_size n, float base) {
    const power_base from = power_base_of(LOG2_E, base);
    vf most[2] = {v_set1(-__builtin_inff()), v_set1(-__builtin_inff())};
    vf powers[2] = {v_zero(), v_zero()}, linear[2] = {v_zero(), v_zero()};
    mm_size i = 0;
    for (; i + 2 * VL <= n; i += 2 * VL) {
        vf pair[2];
        ask(dtype, x, i);
        if (dtype == EJK_DTYPE_F32) ask(dtype, x, i + VL);
        widen_pair(dtype, element_at(dtype, x, i), pair);
        EJKI_UNROLL for (int k = 0; k < 2; k++)
            take_logit(caps, adds, cap, &from, pair[k], most + k, powers + k, linear + k);
    }
    for (; i < n; i += VL) {
        vf z = capped(caps, cap, v_widen_some(dtype, element_at(dtype, x, i), n - i));
        if (adds && n - i >= VL) linear[0] = v_add(linear[0], z);
        if (adds && n - i < VL) {
            float lane[VL];
            v_store(lane, z);
            linear[0] = v_add(linear[0], v_load_first(lane, n - i));
        }
        z = v_keep(z, 0, n - i);
        most[0] = larger(z, most[0]);
        powers[0] = add_power(powers[0], z, &from);
    }
    return (chunk_sums){v_sum(v_add(powers[0], powers[1])), v_sum(v_add(linear[0], linear[1])),
                        v_largest(larger(most[0], most[1]))};
}

/* Σ q z, where q is not 0, and Σ q; the largest q. */
INLINE void add_soft(const ejk_dtype dtype, const bool caps, const fold_call *c, const void *soft,
                     const void *x, mm_size first, mm_size n, loss_sums *s) {
    const ejk_dtype type = (ejk_dtype)c->p->soft.dtype;
    vf inner = v_zero(), mass = v_zero(), most = v_set1(-__builtin_inff());
    for (mm_size i = 0; i < n; i += VL) {
        const vf q = v_widen_some(type, element_at(type, soft, i), n - i);
        const vf z = capped(caps, &c->cap, v_widen_some(dtype, element_at(dtype, x, i), n - i));
        inner = v_add(inner, v_select_gt(v_abs(q), v_zero(), v_mul(q, z), v_zero()));
        mass = v_add(mass, q);
        most = larger(v_keep(q, 0, n - i), most);
    }
    s->linear += (double)v_sum(inner);
    s->mass += (double)v_sum(mass);
    if (!((double)v_largest(most) > s->most_soft)) return;
    s->most_soft = (double)v_largest(most);
    mm_size i = 0;
    while (i < n && (double)element_load(type, soft, i) != s->most_soft) i++;
    s->best_soft = first + i;
}

/* The first of n logits that is the largest. */
INLINE mm_size find(const ejk_dtype dtype, const bool caps, const v_cap *cap, const void *x,
                    mm_size n, float most) {
    float lane[VL];
    for (mm_size i = 0; i < n; i += VL) {
        v_store(lane, capped(caps, cap, v_widen_some(dtype, element_at(dtype, x, i), n - i)));
        for (mm_size k = 0; k < VL && i + k < n; k++)
            if (lane[k] == most) return i + k;
    }
    return n;
}

static void move_sum(loss_sums *s, double base) {
    if (s->base != base && s->base != -HUGE_VAL) s->sum *= exp(s->base - base);
    s->base = base;
}

INLINE void fold(const ejk_dtype dtype, const bool caps, const bool adds, const fold_call *c,
                 const fold_piece *own, loss_sums *s) {
    const mm_size target = own->target - own->first;
    if (target >= 0 && target < own->count) {
        float lane[VL];
        v_store(lane, capped(caps, &c->cap, v_set1(element_load(dtype, own->x, target))));
        s->target = (double)lane[0];
    }
    for (mm_size i = 0; i < own->count; i += CHUNK) {
        const mm_size n = ejki_min(own->count - i, CHUNK), first = own->first + i;
        const void *x = element_at(dtype, own->x, i);
        const bool is_new = s->base == -HUGE_VAL;
        float base = is_new ? base_of(LOG2_E, largest_of(dtype, caps, &c->cap, x, n))
                            : (float)rint(s->base * (double)LOG2_E);
        chunk_sums sums = sum_chunk(dtype, caps, adds, &c->cap, x, n, base);
        if (LOG2_E * sums.most > base + ABOVE) {
            base = base_of(LOG2_E, sums.most);
            sums = sum_chunk(dtype, caps, adds, &c->cap, x, n, base);
        }
        if (adds && !own->soft) s->linear += (double)sums.linear;
        if ((double)sums.most > s->max) {
            s->max = (double)sums.most;
            if (c->p->accuracy) s->best = first + find(dtype, caps, &c->cap, x, n, sums.most);
        }
        if (sums.most != -__builtin_inff()) move_sum(s, (double)base / (double)LOG2_E);
        s->sum += (double)sums.powers;
        if (own->soft)
            add_soft(dtype, caps, c, element_at((ejk_dtype)c->p->soft.dtype, own->soft, i), x,
                     first, n, s);
    }
}

static __attribute__((noinline)) void fold_of(const ejk_dtype dtype, const fold_call *c,
                                              const fold_piece *own, loss_sums *s) {
    const bool adds = c->p->wrong > 0;
    if (c->p->cap > 0)
        ELEMENT_CALL(dtype, fold, true, true, c, own, s);
    else if (adds)
        ELEMENT_CALL(dtype, fold, false, true, c, own, s);
    else
        ELEMENT_CALL(dtype, fold, false, false, c, own, s);
}

/* Σ q of a token. */
static double mass_of(const ejk_dtype dtype, const void *soft, mm_size count) {
    double mass = 0;
    for (mm_size first = 0; first < count; first += CHUNK) {
        const mm_size end = ejki_min(first + CHUNK, count);
        vf sum = v_zero();
        for (mm_size i = first; i < end; i += VL)
            sum = v_add(sum, v_widen_some(dtype, element_at(dtype, soft, i), end - i));
        mass += (double)v_sum(sum);
    }
    return mass;
}

/* ---- Gradients -------------------------------------------------------------------------------------- */

/* Of a token: 2^(z log2(e) - base) · scale is what its probabilities count; all times factor. */
typedef struct fold_slope {
    float base, scale, factor;
} fold_slope;

/* Below this, operands of bf16 have their products in floats, at a third of the rate: probabilities often are. */
#define LEAST_OF_PAIRS 0x1p-60f

/* What becomes 0 of gradients that are multiplied: nothing that a sum of them in floats would show, unless all of the
 * token are small. */
static float least_of(const fold_slope *at) {
    return fabsf(at->factor) >= 0x1p-30f ? LEAST_OF_PAIRS : 0;
}

static fold_slope fold_slope_of(const loss_problem *p, const loss_sums *s, double factor) {
    const double lse = s->base + log(s->sum);
    return (fold_slope){(float)rint(s->base * (double)LOG2_E),
                        (float)(loss_rate(p, lse, s->mass) / s->sum), (float)factor};
}
/* By an lse that is given. */
static fold_slope fold_slope_by(const loss_problem *p, double lse, double mass, double factor) {
    const double of = lse * (double)LOG2_E, base = rint(of);
    return (fold_slope){(float)base, (float)(loss_rate(p, lse, mass) * exp2(base - of)),
                        (float)factor};
}

/* What derive() needs for each vector. q: what a class has, times factor, if it is the same for all. */
typedef struct slope_call {
    const fold_call *c;
    power_base from;
    vf scale, factor, q, inverse;
} slope_call;

/* The gradient of logits x, where q is times factor already. */
INLINE vf slope(const bool caps, const slope_call *s, vf x, vf q) {
    const vf z = capped(caps, &s->c->cap, x);
    const vf d = v_fms(power_of(z, &s->from), s->scale, q);
    if (!caps) return d;
    const vf y = v_mul(z, s->inverse);
    return v_mul(d, v_sub(v_set1(1), v_mul(y, y)));
}

INLINE vf flushed(const bool are_pairs, vf least, vf d) {
    return are_pairs ? v_select_gt(least, v_abs(d), v_zero(), d) : d;
}

/* Classes from i to behind `end`. */
INLINE void derive_some(const ejk_dtype dtype, const ejk_dtype to_dtype, const bool caps,
                        const slope_call *s, const fold_piece *own, const fold_slope *at, void *to,
                        mm_size i, mm_size end) {
    const ejk_dtype soft = (ejk_dtype)s->c->p->soft.dtype;
    const bool are_pairs = dtype == EJK_DTYPE_F32 && to_dtype == EJK_DTYPE_BF16;
    const vf least = v_set1(least_of(at));
    for (; i < end; i += VL) {
        const mm_size n = end - i;
        const vf x = v_widen_some(dtype, element_at(dtype, own->x, i), n);
        vf q = s->q;
        if (own->soft) q = v_mul(s->factor, v_widen_some(soft, element_at(soft, own->soft, i), n));
        const vf d = flushed(are_pairs, least, slope(caps, s, x, q));
        v_narrow_some(to_dtype, element_at(to_dtype, to, i), d, n);
    }
}

/* Pairs of vectors from i to `end` but for what is left; answers where that begins. */
INLINE mm_size derive_pairs(const ejk_dtype dtype, const bool caps, const slope_call *s,
                            const fold_piece *own, void *to, bool streams, mm_size i, mm_size end) {
    for (; i + 2 * VL <= end; i += 2 * VL) {
        vf d[2];
        widen_pair(dtype, element_at(dtype, own->x, i), d);
        EJKI_UNROLL for (int k = 0; k < 2; k++) d[k] = slope(caps, s, d[k], s->q);
        narrow_pair(dtype, element_at(dtype, to, i), d, streams);
    }
    return i;
}

INLINE void derive(const ejk_dtype dtype, const ejk_dtype to_dtype, const bool caps,
                   const fold_call *c, const fold_piece *own, const fold_slope *at, void *to) {
    const loss_problem *p = c->p;
    const mm_size target = own->target - own->first;
    const bool has_target = !own->soft && target >= 0 && target < own->count;
    const slope_call s = {c,
                          power_base_of(LOG2_E, at->base),
                          v_set1(at->scale * at->factor),
                          v_set1(at->factor),
                          v_set1((float)p->wrong * at->factor),
                          v_set1(caps ? (float)(1 / p->cap) : 0)};
    float kept = 0;
    mm_size i = 0;
    if (has_target) kept = element_load(dtype, own->x, target);
    if (dtype == to_dtype && !own->soft && c->streams) {
        i = streamed_from(dtype, to, own->count);
        derive_some(dtype, to_dtype, caps, &s, own, at, to, 0, i);
        /* The target's pair stays in a cache: its element is written again. */
        const mm_size before = has_target && target > i ? (target - i) / (2 * VL) * (2 * VL) : 0;
        i = derive_pairs(dtype, caps, &s, own, to, true, i, i + before);
        if (has_target)
            i = derive_pairs(dtype, caps, &s, own, to, false, i, ejki_min(i + 2 * VL, own->count));
    }
    if (dtype == to_dtype && !own->soft)
        i = derive_pairs(dtype, caps, &s, own, to, c->streams, i, own->count);
    derive_some(dtype, to_dtype, caps, &s, own, at, to, i, own->count);
    if (!has_target) return;
    const vf d = slope(caps, &s, v_set1(kept), v_set1((float)p->right * at->factor));
    v_narrow_first(to_dtype, element_at(to_dtype, to, target), d, 1);
}

/* Logits, of one type, become gradients of another, both at the same place or apart. */
static __attribute__((noinline)) void derive_of(const ejk_dtype dtype, const ejk_dtype to_dtype,
                                                const fold_call *c, const fold_piece *own,
                                                const fold_slope *at, void *to) {
    const bool caps = c->p->cap > 0;
    if (dtype == to_dtype) {
        if (dtype == EJK_DTYPE_F32)
            derive(EJK_DTYPE_F32, EJK_DTYPE_F32, caps, c, own, at, to);
        else if (dtype == EJK_DTYPE_BF16)
            derive(EJK_DTYPE_BF16, EJK_DTYPE_BF16, caps, c, own, at, to);
        else
            derive(EJK_DTYPE_F16, EJK_DTYPE_F16, caps, c, own, at, to);
    } else if (to_dtype == EJK_DTYPE_BF16)
        derive(EJK_DTYPE_F32, EJK_DTYPE_BF16, caps, c, own, at, to);
    else
        derive(EJK_DTYPE_F32, EJK_DTYPE_F16, caps, c, own, at, to);
}

#endif
