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

#include "kernels/simd/unroll.h"
#include "kernels/simd/vec_math.h"
#include "kernels/flash_attention/scores_body.h"

/* What the stack holds; and more rows than these amortise what the tiled kernel does better. */
#define SMALL_KEYS 16
#define SMALL_DIM  64
#define SMALL_ROWS 32

/* Up to VL rows of one key head, from `first` on. A problem's rows run over its query heads first. */
typedef struct small_rows {
    const ejki_flash_problem *problem;
    int64_t batch, kv_head, first, count;
    const float *query[VL];
    float *out[VL];
} small_rows;

/* Without what it sees: small_lanes() has that. */
static inline flash_row small_row(const small_rows *s, int64_t lane) {
    const int64_t group = s->problem->group, row = s->first + lane;
    const int64_t query = group == 1 ? row : row / group;
    return (flash_row){.batch = s->batch,
                       .kv_head = s->kv_head,
                       .query = query,
                       .head = s->kv_head * group + row - query * group};
}

static inline void small_place(small_rows *s) {
    const ejki_flash_problem *p = s->problem;
    if (p->group == 1) {
        const flash_row r = small_row(s, 0);
        const float *query = flash_query(p, &r);
        float *out = flash_out(p, &r);
        for (int64_t i = 0; i < s->count; i++) {
            s->query[i] = query + i * p->query.stride_t;
            s->out[i] = out + i * p->out.stride_t;
        }
    } else {
        for (int64_t i = 0; i < s->count; i++) {
            const flash_row r = small_row(s, i);
            s->query[i] = flash_query(p, &r);
            s->out[i] = flash_out(p, &r);
        }
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
    const int64_t head_dim = s->problem->head_dim;
    for (int64_t d = 0; d < head_dim; d += VL) {
        const int64_t width = ejki_min(VL, head_dim - d);
        for (int64_t i = 0; i < s->count; i++)
            query[d + i] =
                width == VL ? v_load(s->query[i] + d) : v_load_first(s->query[i] + d, width);
        for (int64_t i = s->count; i < VL; i++) query[d + i] = v_zero();
        v_transpose(query + d);
    }
}

/* small_product() for `count` sums side by side, a constant. */
static inline __attribute__((always_inline)) void
small_sums(const int count, const vf *vectors, int64_t terms, const ejki_float *scalars,
           int64_t along, int64_t across, vf *sums) {
    vf sum[8];
    EJKI_UNROLL for (int i = 0; i < count; i++) sum[i] = v_zero();
    for (int64_t n = 0; n < terms; n++, scalars += along)
        EJKI_UNROLL for (int i = 0; i < count; i++) sum[i] =
            v_fma(v_set1(scalars[i * across]), vectors[n], sum[i]);
    EJKI_UNROLL for (int i = 0; i < count; i++) sums[i] = sum[i];
}

/*
 * sums[i] = Σ_n vectors[n] · scalars[n · along + i · across] for i < count: products of rows and keys, or sums
 * of values. Several at a time share the loads of vectors and do not wait for each other.
 */
static inline void small_product(const vf *vectors, int64_t terms, const ejki_float *scalars,
                                 int64_t along, int64_t across, int64_t count, vf *sums) {
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        small_sums(8, vectors, terms, scalars + i * across, along, across, sums + i);
    for (; i < count; i++)
        small_sums(1, vectors, terms, scalars + i * across, along, across, sums + i);
}

/* Weights of every key for every row. Returns their sums; *top gets the rows' largest scores. */
static inline vf small_weights(const small_rows *s, const vf query[SMALL_DIM + VL], bool hides,
                               vf weight[SMALL_KEYS], vf *top) {
    const ejki_flash_problem *p = s->problem;
    const vf scale = v_set1(flash_scale(p));
    small_product(query, p->head_dim, flash_key(p, s->batch, s->kv_head, 0), 1, p->key.stride_t,
                  p->keys, weight);
    if (hides)
        for (int64_t j = 0; j < p->keys; j++) {
            int64_t low, high;
            small_lanes(s, j, &low, &high);
            weight[j] = v_keep(weight[j], low, high);
        }
    /* Four keys at a time: each step of a chain would wait for the one before. */
    for (int64_t j = p->keys; j % 4 != 0; j++) weight[j] = v_set1(-INFINITY);
    vf largest = v_set1(-INFINITY), sum = v_zero();
    for (int64_t j = 0; j < p->keys; j += 4)
        largest = v_max(v_max(v_max(weight[j], weight[j + 1]), v_max(weight[j + 2], weight[j + 3])),
                        largest);
    *top = v_mul(largest, scale);
    const vf base = v_select_gt(*top, v_set1(-INFINITY), *top, v_zero());
    for (int64_t j = 0; j < p->keys; j += 4) {
        for (int64_t i = j; i < j + 4; i++) weight[i] = v_exp2(v_fms(weight[i], scale, base));
        sum =
            v_add(sum, v_add(v_add(weight[j], weight[j + 1]), v_add(weight[j + 2], weight[j + 3])));
    }
    return sum;
}

/* sums[d] = Σ weight · value over keys. `checks` leaves a row alone where it does not see the key. */
static inline void small_values(const small_rows *s, const vf weight[SMALL_KEYS], bool checks,
                                vf sums[SMALL_DIM + VL]) {
    const ejki_flash_problem *p = s->problem;
    const ejki_float *values = flash_value(p, s->batch, s->kv_head, 0);
    if (!checks) {
        small_product(weight, p->keys, values, p->value.stride_t, 1, p->value_dim, sums);
        return;
    }
    for (int64_t d = 0; d < p->value_dim; d++) {
        sums[d] = v_zero();
        for (int64_t j = 0; j < p->keys; j++) {
            int64_t low, high;
            small_lanes(s, j, &low, &high);
            const vf sees = v_keep(v_zero(), low, high); /* -inf where it does not */
            const vf sum = v_fma(v_set1(values[j * p->value.stride_t + d]), weight[j], sums[d]);
            sums[d] = v_select_gt(v_zero(), sees, sums[d], sum);
        }
    }
}

/* What the rows' sums are multiplied by; writes log-sum-exp by the way that all kernels share. */
static inline vf small_finish(const small_rows *s, vf total, vf top) {
    const ejki_flash_problem *p = s->problem;
    if (!p->has_sinks && !p->lse.data) return v_div(v_set1(1.0f), total);
    float totals[VL], tops[VL], factors[VL] = {0};
    v_store(totals, total);
    v_store(tops, top);
    for (int64_t i = 0; i < s->count; i++) {
        const flash_row r = small_row(s, i);
        const flash_end end = flash_finish(p, &r, tops[i], totals[i], p->lse.data != NULL);
        factors[i] = end.factor;
        if (p->lse.data) *flash_at(&p->lse, &r) = end.lse;
    }
    return v_load(factors);
}

static inline void small_write(const small_rows *s, vf sums[SMALL_DIM + VL], vf total, vf top) {
    const int64_t value_dim = s->problem->value_dim;
    const vf factor = small_finish(s, total, top);
    for (int64_t d = 0; d < value_dim; d += VL) {
        const int64_t width = ejki_min(VL, value_dim - d);
        for (int64_t i = 0; i < VL;
             i++) /* a row that saw nothing is 0, whatever 0 · inf would be */
            sums[d + i] = i < width ? v_select_gt(v_set1(FLT_TRUE_MIN), total, v_zero(),
                                                  v_mul(sums[d + i], factor))
                                    : v_zero();
        v_transpose(sums + d);
        for (int64_t i = 0; i < s->count; i++)
            if (width == VL)
                v_store(s->out[i] + d, sums[d + i]);
            else
                v_store_first(s->out[i] + d, sums[d + i], width);
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
        const vf total = small_weights(&s, query, hides, weight, &top);
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
