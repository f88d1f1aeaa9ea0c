/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention forward in f32 for a handful of keys, where the call's own cost is what counts.
 *
 * Lanes are query rows, so that nothing is ever summed across lanes: with queries transposed, a key's
 * scores are one vector, softmax is a few operations between vectors, and each column of the output is
 * one more. Everything lies on the stack. On x86-64 the AVX2 unit serves all processors: eight rows make
 * eight lanes, and twice as wide transposes took longer (255 against 215 ns for 8 x 8 x 8).
 *
 * The includer defines SMALL_SYMBOL, SMALL_ID, SMALL_ISA and includes a vec_*.h.
 */
#include <ejkernel/registry.h>

#include "base/base.h"
#include "kernels/flash_attention/problem.h"

#include <float.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/simd/vec_math.h"
#include "kernels/flash_attention/scores_body.h"

/* What the stack holds; and more rows than these amortise what the tiled kernel does better. */
#define SMALL_KEYS 16
#define SMALL_DIM  64
#define SMALL_ROWS 32

/* Up to VL rows of one key head, from `first` on. */
typedef struct small_rows {
    const ejki_flash_problem *problem;
    int64_t batch, kv_head, first, count;
    flash_row row[VL]; /* without what they see: small_lanes() has that */
} small_rows;

static inline void small_place(small_rows *s) {
    const ejki_flash_problem *p = s->problem;
    flash_row r = {.batch = s->batch, .kv_head = s->kv_head};
    r.query = p->group == 1 ? s->first : s->first / p->group;
    r.head = s->kv_head * p->group + s->first - r.query * p->group;
    const int64_t end = (s->kv_head + 1) * p->group;
    for (int64_t i = 0; i < s->count; i++) {
        s->row[i] = r;
        if (++r.head < end) continue;
        r.head = end - p->group;
        r.query++;
    }
}

/* The lanes that see a key: *low ≤ lane < *high. */
static inline void small_lanes(const small_rows *s, int64_t key, int64_t *low, int64_t *high) {
    const ejki_flash_problem *p = s->problem;
    const int64_t first = key - p->last_offset, last = key - p->first_offset; /* queries */
    *low = first <= 0 ? 0 : ejki_min(first, p->queries) * p->group;
    *high = (last < 0 ? 0 : ejki_min(last + 1, p->queries)) * p->group;
    *low -= s->first;
    *high -= s->first;
}

/* Queries transposed: query[d] holds element d of every row. */
static inline void small_load(const small_rows *s, vf query[SMALL_DIM + VL]) {
    const ejki_flash_problem *p = s->problem;
    for (int64_t d = 0; d < p->head_dim; d += VL) {
        const int64_t width = ejki_min(VL, p->head_dim - d);
        for (int64_t i = 0; i < s->count; i++) {
            const float *own = (const float *)flash_query(p, &s->row[i]) + d;
            query[d + i] = width == VL ? v_load(own) : v_load_first(own, width);
        }
        for (int64_t i = s->count; i < VL; i++) query[d + i] = v_zero();
        v_transpose(query + d);
    }
}

/* Weights of every key for every row. Returns their sums; *top gets the rows' largest scores. */
static inline vf small_weights(const small_rows *s, const vf query[SMALL_DIM + VL],
                               vf weight[SMALL_KEYS], vf *top) {
    const ejki_flash_problem *p = s->problem;
    const vf scale = v_set1(flash_scale(p));
    vf largest = v_set1(-INFINITY), sum = v_zero();
    const ejki_float *key = flash_key(p, s->batch, s->kv_head, 0);
    for (int64_t j = 0; j < p->keys; j++, key += p->key.stride_t) {
        vf z = v_zero();
        for (int64_t d = 0; d < p->head_dim; d++) z = v_fma(v_set1(key[d]), query[d], z);
        int64_t low, high;
        small_lanes(s, j, &low, &high);
        if (low > 0 || high < VL) z = v_keep(z, low, high);
        weight[j] = z;
        largest = v_max(z, largest);
    }
    *top = v_mul(largest, scale);
    const vf base = v_select_gt(*top, v_set1(-INFINITY), *top, v_zero());
    for (int64_t j = 0; j < p->keys; j++) {
        weight[j] = v_exp2(v_fms(weight[j], scale, base));
        sum = v_add(sum, weight[j]);
    }
    return sum;
}

/* sums[d] = Σ weight · value over keys. `checks` leaves a row alone where it does not see the key. */
static inline void small_values(const small_rows *s, const vf weight[SMALL_KEYS], bool checks,
                                vf sums[SMALL_DIM + VL]) {
    const ejki_flash_problem *p = s->problem;
    const ejki_float *values = flash_value(p, s->batch, s->kv_head, 0);
    if (!checks)
        for (int64_t d = 0; d < p->value_dim; d++) {
            const ejki_float *value = values + d;
            vf sum = v_zero();
            for (int64_t j = 0; j < p->keys; j++, value += p->value.stride_t)
                sum = v_fma(weight[j], v_set1(*value), sum);
            sums[d] = sum;
        }
    else
        for (int64_t d = 0; d < p->value_dim; d++) {
            sums[d] = v_zero();
            for (int64_t j = 0; j < p->keys; j++) {
                int64_t low, high;
                small_lanes(s, j, &low, &high);
                const vf sees = v_keep(v_zero(), low, high); /* -inf where it does not */
                const vf value = v_set1(values[j * p->value.stride_t + d]);
                sums[d] = v_select_gt(v_zero(), sees, sums[d], v_fma(weight[j], value, sums[d]));
            }
        }
}

/* Writes the rows, sinks and log-sum-exp by the way that all kernels share. */
static inline void small_write(const small_rows *s, vf sums[SMALL_DIM + VL], vf total, vf top) {
    const ejki_flash_problem *p = s->problem;
    vf factor = v_div(v_set1(1.0f), total);
    if (p->has_sinks || p->lse.data) {
        float totals[VL], tops[VL], factors[VL] = {0};
        v_store(totals, total);
        v_store(tops, top);
        for (int64_t i = 0; i < s->count; i++) {
            const flash_row *r = &s->row[i];
            const flash_end end = flash_finish(p, r, tops[i], totals[i], p->lse.data != NULL);
            factors[i] = end.factor;
            if (p->lse.data) *flash_at(&p->lse, r) = end.lse;
        }
        factor = v_load(factors);
    }
    for (int64_t d = 0; d < p->value_dim; d += VL) {
        const int64_t width = ejki_min(VL, p->value_dim - d);
        for (int64_t i = 0; i < VL;
             i++) /* a row that saw nothing is 0, whatever 0 · inf would be */
            sums[d + i] = i < width ? v_select_gt(v_set1(FLT_TRUE_MIN), total, v_zero(),
                                                  v_mul(sums[d + i], factor))
                                    : v_zero();
        v_transpose(sums + d);
        for (int64_t i = 0; i < s->count; i++) {
            float *own = (float *)flash_out(p, &s->row[i]) + d;
            if (width == VL)
                v_store(own, sums[d + i]);
            else
                v_store_first(own, sums[d + i], width);
        }
    }
}

static void small_head(const ejki_flash_problem *p, int64_t batch, int64_t kv_head) {
    const int64_t rows = p->queries * p->group;
    const bool hides = p->last_offset < p->keys - 1 || p->first_offset > -p->queries;
    bool checks = false;
    if (hides)
        for (int64_t j = 0; j < p->keys && !checks; j++)
            checks = !flash_is_finite(flash_value(p, batch, kv_head, j), p->value_dim);
    vf query[SMALL_DIM + VL], weight[SMALL_KEYS], sums[SMALL_DIM + VL], top;
    for (int64_t first = 0; first < rows; first += VL) {
        small_rows s;
        s.problem = p;
        s.batch = batch;
        s.kv_head = kv_head;
        s.first = first;
        s.count = ejki_min(VL, rows - first);
        small_place(&s);
        small_load(&s, query);
        const vf total = small_weights(&s, query, weight, &top);
        small_values(&s, weight, checks, sums);
        small_write(&s, sums, total, top);
    }
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

static bool small_applicable(const void *problem) {
    const ejki_flash_problem *p = problem;
    return p->keys <= SMALL_KEYS && p->queries <= SMALL_ROWS &&
           p->queries * p->group <= SMALL_ROWS && p->head_dim <= SMALL_DIM &&
           p->value_dim <= SMALL_DIM && p->normalize && p->dropout == 0 &&
           p->layout == EJKI_FLASH_DENSE && ejki_pattern_is_empty(&p->pattern) &&
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

const ejk_implementation SMALL_SYMBOL = {
    .algorithm = "flash_attention",
    .name = SMALL_ID,
    .platform = EJK_PLATFORM_SIMD,
    .backend = EJK_BACKEND_CPU,
    .isa = SMALL_ISA,
    .dtype = EJK_DTYPE_F32,
    .priority = 20,
    .version = 1,
    .applicable = small_applicable,
    .prepare = small_prepare,
    .run = small_run,
};
