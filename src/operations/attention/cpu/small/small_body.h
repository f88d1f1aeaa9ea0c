/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention forward for a handful of keys, where the call's own cost is what counts. Computes in f32: what comes
 * in bf16 or f16 is widened to the stack first, and rounded once from there.
 *
 * Lanes are query rows, so that nothing is ever summed across lanes: with queries transposed, a key's
 * scores are one vector and softmax is a few operations between vectors. Weights then go to the stack, from
 * where each is broadcast to a row of values, so that the output needs no transpose. Eight rows make eight
 * lanes on AVX-512 too, with its registers and instructions: docs/adr/0004-small-kernel-on-avx2.md.
 */
#ifdef EJKI_TIER_AVX512
#include "kernels/simd/vec_avx2.h"
#else
#include "kernels/simd/vec.h"
#endif

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/attention/flash/problem.h"

#include <float.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/simd/unroll.h"
#include "kernels/simd/vec_math.h"
#include "operations/attention/shared/scores_body.h"

/* What the stack holds; and more rows than these amortise what the tiled kernel does better. */
#define SMALL_KEYS 16
#define SMALL_DIM  64
#define SMALL_ROWS 32

#define SMALL_INLINE inline __attribute__((always_inline))

/* Keys whose scores are computed side by side: sums that do not wait for each other. */
#define SMALL_BLOCK 8

/* Up to VL rows of one KV head, from `first` on. A problem's rows run over its query heads first. */
typedef struct small_rows {
    const ejki_flash_problem *problem; /* in f32 */
    int64_t batch, kv_head, first, count;
    const ejki_flash_problem *given; /* the same, or that of which it is one head, widened, */
    int64_t given_batch, given_head; /* which is this one, counted in query heads */
    bool regular; /* VL rows of one query head: in whole vectors, what follows is not needed */
    const float *query[VL];
    float *out[VL];
} small_rows;

/*
 * The compiler forgets where a pointer and a stride come from, so that it makes addresses where they are used;
 * else it makes those of all rows and keys beforehand and has no registers for them.
 */
#define SMALL_FORGET(pointer, stride) __asm__("" : "+r"(pointer), "+r"(stride))

/* What is between the two products, as [key][row] and [row]. */
typedef struct small_weights {
    _Alignas(64) float weight[SMALL_KEYS * VL], total[VL], factor[VL];
} small_weights;

/* Without what it sees. */
static inline flash_row small_row(const small_rows *s, int64_t lane) {
    const int64_t group = s->problem->group, row = s->first + lane;
    const int64_t query = group == 1 ? row : row / group;
    return (flash_row){.batch = s->batch,
                       .kv_head = s->kv_head,
                       .query = query,
                       .head = s->kv_head * group + row - query * group};
}

static inline void small_place(small_rows *s) {
    for (int64_t i = 0; i < s->count; i++) {
        const flash_row r = small_row(s, i);
        s->query[i] = flash_row_at(&s->problem->query, EJK_DTYPE_F32, &r);
        s->out[i] = flash_row_at(&s->problem->out, EJK_DTYPE_F32, &r);
    }
}

/* `width` elements of every query from `d` on, transposed: part[n] holds element d + n of every row. */
static SMALL_INLINE void small_load(const small_rows *s, const bool plain, int64_t d, int64_t width,
                                    vf part[VL]) {
    const ejki_flash_problem *p = s->problem;
    if (plain || (s->regular && width == VL)) {
        const flash_row r = {.batch = s->batch, .head = s->kv_head, .query = s->first};
        const float *start = flash_row_at(&p->query, EJK_DTYPE_F32, &r);
        int64_t stride = p->query.stride_t;
        start += d;
        SMALL_FORGET(start, stride);
        EJKI_UNROLL for (int i = 0; i < VL; i++) part[i] = v_load(start + i * stride);
    } else {
        vf rows[VL];
        for (int64_t i = 0; i < VL; i++)
            rows[i] = i < s->count ? v_load_first(s->query[i] + d, width) : v_zero();
        EJKI_UNROLL for (int i = 0; i < VL; i++) part[i] = rows[i];
    }
    v_transpose(part);
}

/* Element d of the keys from `key` on; keys beyond the last repeat that one. */
static SMALL_INLINE void small_keys(const small_rows *s, const bool plain, int64_t key, int64_t d,
                                    const ejki_float *keys[SMALL_BLOCK]) {
    const ejki_flash_problem *p = s->problem;
    const ejki_float *start = flash_key_at(&p->key, EJK_DTYPE_F32, s->batch, s->kv_head, 0);
    int64_t stride = p->key.stride_t;
    start += d;
    SMALL_FORGET(start, stride);
    EJKI_UNROLL for (int j = 0; j < SMALL_BLOCK; j++) keys[j] =
        start + (plain ? key + j : ejki_min(key + j, p->keys - 1)) * stride;
}

/* sums += column · element d of `count` keys. */
static SMALL_INLINE void small_term(const int count, vf column,
                                    const ejki_float *const keys[SMALL_BLOCK], int64_t d,
                                    vf *sums) {
    EJKI_UNROLL for (int j = 0; j < count; j++) sums[j] =
        v_fma(v_set1(keys[j][d]), column, sums[j]);
}

/*
 * Products of every row with `most` keys. `plain` is a constant here and below: VL rows of one query head,
 * SMALL_BLOCK keys that all of them see, whole vectors in D and Dv, and only `out` asked for. It leaves no
 * branch and no table of addresses.
 */
static SMALL_INLINE void small_scores(const small_rows *s, const bool plain, const int most,
                                      vf *scores) {
    const ejki_flash_problem *p = s->problem;
    const int64_t head_dim = p->head_dim;
    const ejki_float *keys[SMALL_BLOCK];
    EJKI_UNROLL for (int j = 0; j < most; j++) scores[j] = v_zero();
    if (plain) {
        for (int64_t d = 0; d < head_dim; d += VL) {
            vf part[VL];
            small_load(s, true, d, VL, part);
            small_keys(s, true, 0, d, keys);
            EJKI_UNROLL for (int n = 0; n < VL; n++)
                small_term(SMALL_BLOCK, part[n], keys, n, scores);
        }
        return;
    }
    if (p->keys == 0) return;
    vf query[SMALL_DIM];
    for (int64_t d = 0; d < head_dim; d += VL)
        small_load(s, false, d, ejki_min(VL, head_dim - d), query + d);
    EJKI_UNROLL for (int block = 0; block < most; block += SMALL_BLOCK) {
        const int count = most - block < SMALL_BLOCK ? most - block : SMALL_BLOCK;
        small_keys(s, false, block, 0, keys);
        int64_t d = 0;
        for (; d + VL <= head_dim; d += VL)
            EJKI_UNROLL for (int n = 0; n < VL; n++)
                small_term(count, query[d + n], keys, d + n, scores + block);
        for (; d < head_dim; d++) small_term(count, query[d], keys, d, scores + block);
    }
}

static inline bool small_hides(const ejki_flash_problem *p) {
    return p->last_offset < p->keys - 1 || p->first_offset > -p->queries;
}

/* The keys that a lane's row sees: [*first, *end). */
static inline void small_visible(const small_rows *s, int64_t lane, int64_t *first, int64_t *end) {
    const ejki_flash_problem *p = s->problem;
    ejki_flash_visible(p, small_row(s, lane).query, first, end);
    *first = ejki_min(*first, p->keys);
    *end = ejki_max(*end, 0);
}

/*
 * -inf where positions hide the key from the row. Query row / G sees key j if j − last_offset ≤ row / G ≤
 * j − first_offset, so bounds are multiplied instead; offsets beyond all rows and keys are cut. Lanes beyond
 * the last row repeat that one: none of them is without keys if the rows are not.
 */
static SMALL_INLINE void small_hide(const small_rows *s, const int most, vf *scores) {
    static const float lanes[] = {0, 1, 2, 3, 4, 5, 6, 7};
    const ejki_flash_problem *p = s->problem;
    const int64_t far = SMALL_ROWS + SMALL_KEYS;
    const int64_t last = ejki_max(-far, ejki_min(far, p->last_offset));
    const int64_t first = ejki_max(-far, ejki_min(far, p->first_offset));
    const vf lane = v_min(v_load(lanes), v_set1((float)(s->count - 1)));
    const vf group = v_set1((float)p->group), hidden = v_set1(-INFINITY);
    vf low = v_set1((float)(-last * p->group - s->first));
    vf high = v_set1((float)((1 - first) * p->group - s->first));
    EJKI_UNROLL for (int j = 0; j < most; j++) {
        const vf score = v_select_gt(low, lane, hidden, scores[j]);
        scores[j] = v_select_gt(high, lane, score, hidden);
        low = v_add(low, group);
        high = v_add(high, group);
    }
}

/* What the rows' sums are multiplied by; writes log-sum-exp by the way that all kernels share. */
static inline void small_finish(const small_rows *s, vf top, small_weights *w) {
    const ejki_flash_problem *p = s->given;
    float tops[VL];
    v_store(tops, top);
    for (int64_t i = 0; i < s->count; i++) {
        flash_row r = small_row(s, i);
        r.batch += s->given_batch;
        r.head += s->given_head;
        const flash_common common = flash_common_of(p, r.head);
        const flash_end end = flash_finish(p, &common, tops[i], w->total[i], p->lse.data != NULL);
        w->factor[i] = end.factor;
        if (p->lse.data) *flash_at(&p->lse, &r) = end.lse;
    }
}

/* fold[0] becomes the whole of `count` vectors, as a tree. */
static SMALL_INLINE void small_fold(vf (*const join)(vf, vf), const int count, vf *fold) {
    EJKI_UNROLL for (int n = count; n > 1; n = (n + 1) / 2)
        EJKI_UNROLL for (int j = 0; j < n / 2; j++) fold[j] = join(fold[j], fold[j + (n + 1) / 2]);
}

/* Which weights are 0: none, some of a row's, or all of a row's. */
typedef enum small_zeros { SMALL_NO_ZERO, SMALL_SOME_ZERO, SMALL_BLANK } small_zeros;

/* Scores become weights. */
static SMALL_INLINE small_zeros small_weigh(const small_rows *s, const bool plain, const int most,
                                            vf *scores, small_weights *w) {
    const ejki_flash_problem *p = s->problem;
    const vf scale = v_set1((float)(p->scale * LOG2_E));
    vf fold[SMALL_KEYS];
    if (!plain && small_hides(p)) small_hide(s, most, scores);
    if (!plain)
        EJKI_UNROLL for (int j = 0; j < most; j++) if (j >= p->keys) scores[j] = v_set1(-INFINITY);
    EJKI_UNROLL for (int j = 0; j < most; j++) fold[j] = scores[j];
    small_fold(v_max, most, fold);
    const vf top = v_mul(fold[0], scale);
    const vf base = v_select_gt(top, v_set1(-INFINITY), top, v_zero()), tiny = v_set1(FLT_TRUE_MIN);
    vf least = tiny;
    EJKI_UNROLL for (int j = 0; j < most; j++) {
        fold[j] = v_exp2(v_fms(scores[j], scale, base));
        v_store(w->weight + j * VL, fold[j]);
        if (plain || j < p->keys) least = v_min(fold[j], least);
    }
    small_fold(v_add, most, fold);
    v_store(w->total, fold[0]);
    v_store(w->factor, v_div(v_set1(1.0f), fold[0]));
    if (!plain && (p->has_sinks || p->lse.data)) small_finish(s, top, w);
    if (!v_any_gt(tiny, least) && (plain || p->keys > 0)) return SMALL_NO_ZERO;
    return v_any_gt(tiny, fold[0]) ? SMALL_BLANK : SMALL_SOME_ZERO;
}

/* Columns [d, d + width) of the output. */
static SMALL_INLINE void small_write(const small_rows *s, const bool plain, int64_t d,
                                     int64_t width, const vf *sums, const small_weights *w) {
    const ejki_flash_problem *p = s->problem;
    if (plain || (s->regular && width == VL)) {
        const flash_row r = {.batch = s->batch, .head = s->kv_head, .query = s->first};
        float *start = flash_row_at(&p->out, EJK_DTYPE_F32, &r);
        int64_t stride = p->out.stride_t;
        start += d;
        SMALL_FORGET(start, stride);
        EJKI_UNROLL for (int i = 0; i < VL; i++)
            v_store(start + i * stride, v_mul(v_set1(w->factor[i]), sums[i]));
    } else {
        vf rows[VL];
        EJKI_UNROLL for (int i = 0; i < VL; i++) rows[i] = sums[i];
        for (int64_t i = 0; i < s->count; i++)
            v_store_first(s->out[i] + d, v_mul(v_set1(w->factor[i]), rows[i]), width);
    }
}

static inline vf small_load_some(const float *at, int64_t width) {
    return width == VL ? v_load(at) : v_load_first(at, width);
}

/* sums += weight · value of one key for every row. */
static SMALL_INLINE void small_value(const float *weights, vf value, vf *sums) {
    EJKI_UNROLL for (int i = 0; i < VL; i++) sums[i] = v_fma_one(weights + i, value, sums[i]);
}

/* out = factor · Σ weight · value. False if that may be wrong: a weight of 0 times what is not finite. */
static SMALL_INLINE bool small_values(const small_rows *s, const bool plain, const int most,
                                      const small_weights *w, bool zeros) {
    const ejki_flash_problem *p = s->problem;
    const int64_t value_dim = p->value_dim, stride = p->value.stride_t;
    const bool hides = !plain && zeros;
    vf probe = v_zero();
    for (int64_t d = 0; d < value_dim; d += VL) {
        const int64_t width = plain ? VL : ejki_min(VL, value_dim - d);
        const float *value = flash_key_at(&p->value, EJK_DTYPE_F32, s->batch, s->kv_head, 0);
        vf sum[VL];
        value += d;
        /* Weights are read again: knowing them, the compiler would make all broadcasts beforehand. */
        __asm__ volatile("" : : "r"(w) : "memory");
        EJKI_UNROLL for (int i = 0; i < VL; i++) sum[i] = v_zero();
        if (plain) {
            EJKI_UNROLL for (int j = 0; j < most; j++)
                small_value(w->weight + j * VL, v_load(value + j * stride), sum);
        } else {
            for (int64_t j = 0; j < p->keys; j++)
                small_value(w->weight + j * VL, small_load_some(value + j * stride, width), sum);
        }
        small_write(s, plain, d, width, sum, w);
        if (hides)
            EJKI_UNROLL for (int i = 0; i < VL; i++) probe =
                v_fma(sum[i], v_zero(), probe); /* NaN of infinity and of NaN */
    }
    if (!hides) return true;
    const float sum = v_sum(probe);
    return sum == sum;
}

/* The same with the keys that have a weight only, and 0 for a row without any, whatever 0 · inf would be. */
static __attribute__((noinline)) void small_values_visible(const small_rows *s,
                                                           const small_weights *w) {
    const ejki_flash_problem *p = s->problem;
    for (int64_t i = 0; i < s->count; i++) {
        const flash_row r = small_row(s, i);
        float *out = flash_row_at(&p->out, EJK_DTYPE_F32, &r);
        int64_t first, end;
        small_visible(s, i, &first, &end);
        if (w->total[i] == 0) end = first;
        for (int64_t d = 0; d < p->value_dim; d++) {
            vf sum = v_zero();
            for (int64_t j = first; j < end; j++) {
                if (w->weight[j * VL + i] == 0) continue;
                const float *value =
                    flash_key_at(&p->value, EJK_DTYPE_F32, s->batch, s->kv_head, j);
                sum = v_fma_one(w->weight + j * VL + i, v_load_first(value + d, 1), sum);
            }
            const vf factor = v_set1(w->total[i] == 0 ? 0 : w->factor[i]);
            v_store_first(out + d, v_mul(sum, factor), 1);
        }
    }
}

static SMALL_INLINE void small_pass(const small_rows *s, const bool plain, const int most) {
    small_weights w;
    vf scores[SMALL_KEYS];
    small_scores(s, plain, most, scores);
    const small_zeros zeros = small_weigh(s, plain, most, scores, &w);
    const bool slow = plain ? zeros != SMALL_NO_ZERO : zeros == SMALL_BLANK;
    if (slow || !small_values(s, plain, most, &w, zeros != SMALL_NO_ZERO))
        small_values_visible(s, &w);
}

/* Functions of their own: a compiler that sees one beside the other keeps numbers for both. */
static __attribute__((noinline)) void small_plain(const small_rows *s) {
    small_pass(s, true, SMALL_BLOCK);
}
static __attribute__((noinline)) void small_fewest(const small_rows *s) {
    small_pass(s, false, SMALL_BLOCK / 2);
}
static __attribute__((noinline)) void small_few(const small_rows *s) {
    small_pass(s, false, SMALL_BLOCK);
}
static __attribute__((noinline)) void small_many(const small_rows *s) {
    small_pass(s, false, SMALL_KEYS * 3 / 4);
}
static __attribute__((noinline)) void small_most(const small_rows *s) {
    small_pass(s, false, SMALL_KEYS);
}

/* A KV head of a problem in f32, which is `given` or one head of that. */
static void small_f32(const ejki_flash_problem *p, int64_t batch, int64_t kv_head,
                      const ejki_flash_problem *given, int64_t given_batch, int64_t given_head) {
    const int64_t rows = p->queries * p->group;
    const bool whole = p->head_dim % VL == 0 && p->value_dim % VL == 0;
    const bool plain =
        whole && p->keys == SMALL_BLOCK && !p->has_sinks && !p->lse.data && !small_hides(p);
    small_rows s;
    s.problem = p;
    s.batch = batch;
    s.kv_head = kv_head;
    s.given = given;
    s.given_batch = given_batch;
    s.given_head = given_head;
    for (s.first = 0; s.first < rows; s.first += VL) {
        s.count = ejki_min(VL, rows - s.first);
        s.regular = p->group == 1 && s.count == VL;
        if (plain && s.regular) {
            small_plain(&s);
            continue;
        }
        if (!(whole && s.regular)) small_place(&s);
        if (p->keys <= SMALL_BLOCK / 2)
            small_fewest(&s);
        else if (p->keys <= SMALL_BLOCK)
            small_few(&s);
        else if (p->keys <= SMALL_KEYS * 3 / 4)
            small_many(&s);
        else
            small_most(&s);
    }
}

/* A row to floats, in whole vectors, and back. */
static SMALL_INLINE void small_widen(const ejk_dtype dtype, const void *from, int64_t width,
                                     float *to) {
    for (int64_t d = 0; d < width; d += VL)
        v_store(to + d, v_widen_some(dtype, element_at(dtype, from, d), width - d));
}
static SMALL_INLINE void small_narrow(const ejk_dtype dtype, const float *from, int64_t width,
                                      void *to) {
    for (int64_t d = 0; d < width; d += VL)
        v_narrow_some(dtype, element_at(dtype, to, d), v_load(from + d), width - d);
}

/* A KV head in 16 bits: as a problem of its own in f32, on the stack. */
static SMALL_INLINE void small_widened(const ejk_dtype dtype, const ejki_flash_problem *p,
                                       int64_t batch, int64_t kv_head) {
    _Alignas(64) float query[SMALL_ROWS * SMALL_DIM], out[SMALL_ROWS * SMALL_DIM];
    _Alignas(64) float key[SMALL_KEYS * SMALL_DIM], value[SMALL_KEYS * SMALL_DIM];
    const int64_t group = p->group, rows = p->queries * group;
    const int64_t depth = ejki_round_up(p->head_dim, VL), width = ejki_round_up(p->value_dim, VL);
    ejki_flash_problem own = *p;
    own.dtype = EJK_DTYPE_F32;
    own.batch = own.kv_heads = 1;
    own.query_heads = group;
    own.query = (ejki_bthd){query, 0, group * depth, depth};
    own.key = (ejki_bthd){key, 0, depth, 0};
    own.value = (ejki_bthd){value, 0, width, 0};
    own.out = (ejki_bthd){out, 0, group * width, width};
    const small_rows all = {.problem = p, .batch = batch, .kv_head = kv_head};
    for (int64_t i = 0; i < rows; i++) {
        const flash_row r = small_row(&all, i);
        small_widen(dtype, flash_row_at(&p->query, dtype, &r), p->head_dim, query + i * depth);
    }
    for (int64_t j = 0; j < p->keys; j++) {
        small_widen(dtype, flash_key_at(&p->key, dtype, batch, kv_head, j), p->head_dim,
                    key + j * depth);
        small_widen(dtype, flash_key_at(&p->value, dtype, batch, kv_head, j), p->value_dim,
                    value + j * width);
    }
    small_f32(&own, 0, 0, p, batch, kv_head * group);
    for (int64_t i = 0; i < rows; i++) {
        const flash_row r = small_row(&all, i);
        small_narrow(dtype, out + i * width, p->value_dim, flash_row_at(&p->out, dtype, &r));
    }
}

/* Functions of their own, so that f32 pays for neither. */
static __attribute__((noinline)) void small_bf16(const ejki_flash_problem *p, int64_t batch,
                                                 int64_t kv_head) {
    small_widened(EJK_DTYPE_BF16, p, batch, kv_head);
}
static __attribute__((noinline)) void small_f16(const ejki_flash_problem *p, int64_t batch,
                                                int64_t kv_head) {
    small_widened(EJK_DTYPE_F16, p, batch, kv_head);
}

static void small_head(const ejki_flash_problem *p, int64_t batch, int64_t kv_head) {
    if (p->dtype == EJK_DTYPE_F32)
        small_f32(p, batch, kv_head, p, 0, 0);
    else if (p->dtype == EJK_DTYPE_BF16)
        small_bf16(p, batch, kv_head);
    else
        small_f16(p, batch, kv_head);
}

typedef struct small_shared {
    const ejki_flash_problem *problem;
    _Atomic int64_t next;
} small_shared;

static void small_worker(void *argument, int64_t worker) {
    small_shared *s = argument;
    const ejki_flash_problem *p = s->problem;
    (void)worker;
    for (;;) {
        const int64_t head = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
        if (head >= p->batch * p->kv_heads) return;
        small_head(p, head / p->kv_heads, head % p->kv_heads);
    }
}

/* True if widening 16 bits costs less than what other kernels do beside their products. Beside the row kernel, 64 heads
 * of bf16 on a Zen 4 take 3 % more to 1 % less time at the edges of this, beyond them 5 to 33 % more with 32 columns,
 * a third to twice as much with 64. */
static bool small_gains(const ejki_flash_problem *p) {
    const int64_t dim = ejki_max(p->head_dim, p->value_dim), rows = p->queries * p->group;
    return p->dtype == EJK_DTYPE_F32 || dim <= 16 || (dim <= 32 && rows >= 4);
}

static bool small_applicable(const void *problem) {
    const ejki_flash_problem *p = problem;
    return small_gains(p) && p->keys <= SMALL_KEYS && p->queries <= SMALL_ROWS &&
           p->queries * p->group <= SMALL_ROWS && p->head_dim <= SMALL_DIM &&
           p->value_dim <= SMALL_DIM && p->normalize && p->dropout == 0 &&
           p->layout == EJKI_FLASH_DENSE && ejki_block_mask_is_empty(&p->block_mask) &&
           !flash_is_general(p);
}

static ejk_status small_prepare(const void *problem, const int64_t *parameters, int32_t threads,
                                ejk_launch *launch) {
    const ejki_flash_problem *p = problem;
    (void)parameters;
    launch->workspace_bytes = 0;
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, p->batch * p->kv_heads));
    if (flash_is_light(p)) launch->workers = 1;
    return EJK_OK;
}

static ejk_status small_run(const ejk_run *run) {
    const ejki_flash_problem *p = run->problem;
    if (run->workers > 1) {
        small_shared shared = {.problem = p};
        ejk_parallel_for(run->threads, run->workers, small_worker, &shared);
        return EJK_OK;
    }
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->kv_heads; h++) small_head(p, b, h);
    return EJK_OK;
}

EJKI_DECLARE(EJKI_THIS_LINE, .priority = 20, .version = 1, .applicable = small_applicable,
             .prepare = small_prepare, .run = small_run)
