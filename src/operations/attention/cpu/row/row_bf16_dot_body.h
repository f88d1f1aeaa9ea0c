/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The products of the row-wise kernel by bf16 dots (VDPBF16PS, the words of vec_avx512_bf16.h): queries and keys as
 * pairs of neighbouring components, as they lie; weights and values as pairs of neighbouring keys, the first of which
 * has an even place in its block. row_f32_body.h has the same functions in f32.
 *
 * Weights are rounded to nearest, and summed once more as they were rounded: by that sum rows are divided, so that
 * values that are all the same come out as they are. The log-sum-exp is of the weights as they were.
 */
#ifndef EJKI_FLASH_ROW_BF16_DOT_BODY_H
#define EJKI_FLASH_ROW_BF16_DOT_BODY_H

#include "operations/attention/cpu/row/row_types.h"

#define BF16_LANES (2 * VL)

/* A pointer of its own, where a compiler would make each again from the first, and run out of registers. */
#define BF16_REGISTER(pointer) __asm__("" : "+r"(pointer))

/* A query as the products take it, 0 behind its end. */
static inline void row_pack_query(const ejki_flash_problem *p, const void *query, float *target) {
    for (int64_t d = 0; d < p->head_dim; d += BF16_LANES) {
        const void *from = element_at(EJK_DTYPE_BF16, query, d);
        v_store(target + d / 2, p->head_dim - d >= BF16_LANES
                                    ? v_load_pairs(from)
                                    : v_load_pairs_first(from, p->head_dim - d));
    }
}

/* A row's sums in the order of elements, which they have. */
static inline const float *row_sort(const ejki_flash_problem *p, const float *sums, float *target) {
    (void)p, (void)target;
    return sums;
}

/* The sum of a row's weights as the products took them. */
static inline float row_total(const float *state, float sum) {
    (void)sum;
    return v_sum(v_load(state + STATE_TOTALS));
}

/* sum[row][key] += <query, key> of `rows` rows and the vectors k[key] of DOT keys. */
static inline __attribute__((always_inline)) void
bf16_multiply(const float *query, int64_t depth, const vf k[DOT], const int rows, vf *sum) {
    EJKI_UNROLL for (int i = 0; i < rows; i++) {
        const vf q = v_load(query + i * depth);
        EJKI_UNROLL for (int j = 0; j < DOT; j++) sum[i * DOT + j] =
            v_dot(q, k[j], sum[i * DOT + j]);
    }
}

/* Dot products of `rows` queries with DOT keys: scores[row][key]. Prefetches as many lines from `next` on. */
static inline __attribute__((always_inline)) void
bf16_dots(const float *query, int64_t depth, const char *const key[DOT], int64_t head_dim,
          const char *next, bool second_level, const int rows, float *scores) {
    vf sum[DOT * DOT], k[DOT];
    EJKI_UNROLL for (int i = 0; i < DOT * DOT; i++) sum[i] = v_zero();
    int64_t d = 0;
    for (; d + BF16_LANES <= head_dim; d += BF16_LANES) {
        EJKI_UNROLL for (int j = 0; j < DOT; j++) {
            k[j] = v_load_pairs(key[j] + d * 2);
            row_prefetch((const char *)((uintptr_t)next + (uintptr_t)j * BF16_LANES * 2),
                         second_level);
        }
        next = (const char *)((uintptr_t)next + DOT * BF16_LANES * 2);
        bf16_multiply(query + d / 2, depth, k, rows, sum);
    }
    if (d < head_dim) {
        for (int j = 0; j < DOT; j++) k[j] = v_load_pairs_first(key[j] + d * 2, head_dim - d);
        bf16_multiply(query + d / 2, depth, k, rows, sum);
    }
    float all[DOT * DOT];
    EJKI_UNROLL for (int i = 0; i < DOT * DOT; i += VL) v_store(all + i, v_sums(sum + i));
    for (int i = 0; i < rows; i++)
        memcpy(scores + i * SCORE_STRIDE, all + i * DOT, sizeof(float) * DOT);
}

/* Prefetches beside DOT keys of so many bytes, unless what comes next is one piece: returns where that is, or else the
 * keys themselves. */
static inline __attribute__((always_inline)) const char *
bf16_prefetch_keys(row_task *task, const char *const key[DOT], int64_t bytes) {
    const char *next_keys = task->next_keys;
    if (next_keys) {
        task->next_keys = (const char *)((uintptr_t)next_keys + (uintptr_t)(DOT * bytes));
        return next_keys;
    }
    for (int j = 0; j < DOT; j++) {
        const char **at = &task->prefetch.at[j];
        const uintptr_t line =
            *at ? (uintptr_t)*at : (uintptr_t)key[j] + (uintptr_t)task->key_distance;
        for (int64_t i = 0; i < bytes; i += 64)
            row_prefetch((const char *)(line + (uintptr_t)i), task->shared->second_level);
        if (*at) *at = (const char *)(line + (uintptr_t)bytes);
    }
    return key[0];
}

/* Raw scores of all rows of a KV head with DOT of the block's keys, those before `high`, from column c on. */
static inline __attribute__((always_inline)) void bf16_scores(row_task *task, const row_head *head,
                                                              int64_t c, int64_t high) {
    const ejki_flash_problem *p = task->shared->problem;
    const row_plan *t = &task->shared->plan;
    const char *key[DOT];
    for (int j = 0; j < DOT; j++)
        key[j] =
            element_at(EJK_DTYPE_BF16, head->keys, ejki_min(c + j, high - 1) * p->key.stride_t);
    const char *next = bf16_prefetch_keys(task, key, p->head_dim * 2);
    const bool second_level = task->shared->second_level;
    for (int64_t i = 0; i < t->rows; i += DOT, next = key[0]) {
        const float *query = head->query + i * t->depth;
        float *scores = head->scores + i * SCORE_STRIDE + c;
#define BF16_DOTS(n) bf16_dots(query, t->depth, key, p->head_dim, next, second_level, n, scores)
        DOT_ROWS(t->rows - i, BF16_DOTS);
#undef BF16_DOTS
    }
}

/* The same with keys [low, high), DOT of all heads before the next. A function of its own, whose registers gcc shares
 * out better. */
static __attribute__((noinline)) void row_scores_side(row_task *task, const row_head *head,
                                                      int64_t heads, int64_t low, int64_t high) {
    for (int64_t c = low; c < high; c += DOT)
        for (int64_t h = 0; h < heads; h++) bf16_scores(task, &head[h], c, high);
}

static inline void row_scores(row_task *task, const row_head *head, int64_t low, int64_t high) {
    row_scores_side(task, head, 1, low, high);
}

/* Weights of columns [first, end) of a row become what the products take, those dropped 0: the pair of column c
 * lies where the weight c / 2 was. */
static inline void row_end_weights(const row_shared *s, const flash_row *r, int64_t key,
                                   int64_t first, int64_t end, float *scores, float *state) {
    const vf one = v_set1(1.0f), ones = v_pairs(one, one);
    vf total = v_load(state + STATE_TOTALS);
    for (int64_t c = first; c < end; c += BF16_LANES) {
        vf pairs = v_pairs(v_load(scores + c), v_load(scores + c + VL));
        total = v_dot(pairs, ones, total);
        if (s->drops) {
            flash_drop(s->problem, r, key + c, BF16_LANES, scores + c);
            pairs = v_pairs(v_load(scores + c), v_load(scores + c + VL));
        }
        v_store(scores + c / 2, pairs);
    }
    v_store(state + STATE_TOTALS, total);
}

/* Where the values of ROW_PV_UNROLL keys lie. */
static inline __attribute__((always_inline)) void bf16_places(const void *values, int64_t stride,
                                                              const char *value[ROW_PV_UNROLL]) {
    EJKI_UNROLL for (int k = 0; k < ROW_PV_UNROLL; k++) {
        value[k] = element_at(EJK_DTYPE_BF16, values, k * stride);
        BF16_REGISTER(value[k]);
    }
}

/*
 * sum[row] += a pair of weights of each row times `vectors` times BF16_LANES columns of two keys, or, of a single
 * vector, the first `columns`.
 */
static inline __attribute__((always_inline)) void bf16_step(const int rows, const int vectors,
                                                            int64_t columns, const float *weights,
                                                            const char *first, const char *second,
                                                            vf sum[TILE_ROWS][TILE_VECTORS]) {
    vf pair[TILE_VECTORS];
    EJKI_UNROLL for (int j = 0; j < vectors; j++) {
        const int64_t at = j * BF16_LANES * 2;
        const bool whole = vectors > 1 || columns >= BF16_LANES;
        const vf a = whole ? v_load_pairs(first + at) : v_load_pairs_first(first + at, columns);
        const vf b = whole ? v_load_pairs(second + at) : v_load_pairs_first(second + at, columns);
        pair[2 * j] = v_zip_first(a, b);
        pair[2 * j + 1] = v_zip_last(a, b);
    }
    EJKI_UNROLL for (int i = 0; i < rows; i++) {
        const vf weight = v_set1(weights[i * SCORE_STRIDE]);
        EJKI_UNROLL for (int j = 0; j < 2 * vectors; j++) sum[i][j] =
            v_dot(weight, pair[j], sum[i][j]);
    }
}

/* The same of all keys, or of the ROW_PV_UNROLL ones of value[], from column d on. */
static inline __attribute__((always_inline)) void
bf16_columns(const int rows, const int vectors, const bool few, int64_t columns, int64_t keys,
             const float *weights, const char *const value[ROW_PV_UNROLL], int64_t stride,
             int64_t d, float *const row[TILE_ROWS]) {
    vf sum[TILE_ROWS][TILE_VECTORS];
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < 2 * vectors; j++)
        sum[i][j] = v_load(row[i] + d + j * VL);
    if (few) {
        EJKI_UNROLL for (int k = 0; k < ROW_PV_UNROLL; k += 2) bf16_step(
            rows, vectors, columns, weights + k / 2, value[k] + d * 2, value[k + 1] + d * 2, sum);
    } else {
        const char *first = value[0] + d * 2;
        for (int64_t k = 0; k < keys; k += 2, first += 4 * stride)
            bf16_step(rows, vectors, columns, weights + k / 2, first,
                      k + 1 < keys ? first + 2 * stride : first, sum);
    }
    EJKI_UNROLL for (int i = 0; i < rows; i++) EJKI_UNROLL for (int j = 0; j < 2 * vectors; j++)
        v_store(row[i] + d + j * VL, sum[i][j]);
}

/*
 * sums[i] += Σ_k weights[i][k] · values[k] of all keys, the first at value[0], or of those at value[]. Behind an odd
 * last key its weight is 0.
 */
static inline __attribute__((always_inline)) void
bf16_add(const int rows, const bool few, int64_t width, int64_t keys, const float *weights,
         const char *const value[ROW_PV_UNROLL], int64_t stride, float *sums, int64_t sums_stride) {
    enum { MOST = TILE_VECTORS / 2 };
    float *row[TILE_ROWS];
    EJKI_UNROLL for (int i = 0; i < rows; i++) {
        row[i] = sums + i * sums_stride;
        BF16_REGISTER(row[i]);
    }
    int64_t d = 0;
    for (; d + MOST * BF16_LANES <= width; d += MOST * BF16_LANES)
        bf16_columns(rows, MOST, few, BF16_LANES, keys, weights, value, stride, d, row);
    for (; d < width; d += BF16_LANES)
        bf16_columns(rows, 1, few, width - d, keys, weights, value, stride, d, row);
}

/* For any number of keys. */
#define BF16_FUNCTION(n)                                                                           \
    static __attribute__((noinline)) void bf16_any_##n(                                            \
        int64_t width, int64_t keys, const float *weights, const char *values, int64_t stride,     \
        float *sums, int64_t sums_stride) {                                                        \
        const char *value[ROW_PV_UNROLL] = {values};                                               \
        bf16_add(n, false, width, keys, weights, value, stride, sums, sums_stride);                \
    }
TILE_ROW_COUNTS(BF16_FUNCTION)

/* Where prefetched lines lie: see row_prefetches. */
enum { PREFETCH_DISTANCE, PREFETCH_NEXT, PREFETCH_IN_TURN };

static inline int bf16_mode(const row_prefetches *prefetch) {
    return prefetch->at[0] ? PREFETCH_IN_TURN : prefetch->next ? PREFETCH_NEXT : PREFETCH_DISTANCE;
}

/* The range of the values at value[], of so many keys. Prefetches as many lines meanwhile. */
static inline __attribute__((always_inline)) v_range
bf16_range(v_range range, const char *const value[ROW_PV_UNROLL], const int keys, int64_t width,
           const int mode, row_prefetches *prefetch) {
    const bool second_level = prefetch->second_level;
    const char *place = prefetch->next;
    int64_t d = 0;
    for (; d + BF16_LANES <= width; d += BF16_LANES) EJKI_UNROLL for (int k = 0; k < keys; k++) {
            uintptr_t next = (uintptr_t)value[k] + (uintptr_t)(d * 2 + prefetch->distance);
            if (mode == PREFETCH_IN_TURN) {
                next = (uintptr_t)prefetch->at[0];
                const char *after = (const char *)(next + BF16_LANES * 2);
                *prefetch = (row_prefetches){
                    .at = {prefetch->at[1], prefetch->at[2], prefetch->at[3], after},
                    .second_level = second_level};
            } else if (mode == PREFETCH_NEXT) {
                next = (uintptr_t)place;
                place = (const char *)(next + BF16_LANES * 2);
            }
            row_prefetch((const void *)next, second_level);
            range = v_range_with(range, v_load_pairs(value[k] + d * 2));
        }
    if (mode == PREFETCH_NEXT) prefetch->next = place;
    if (d == width) return range;
    EJKI_UNROLL for (int k = 0; k < keys; k++) range =
        v_range_with(range, v_load_pairs_first(value[k] + d * 2, width - d));
    return range;
}

/* True if values of the keys [low, high) are fit for products. */
static inline bool row_is_fit(row_task *task, const row_head *head, int64_t low, int64_t high) {
    const ejki_flash_problem *p = task->shared->problem;
    row_prefetches *prefetch = &task->prefetch;
    const int mode = bf16_mode(prefetch);
    v_range range = v_range_none();
    for (int64_t c = low, n; c < high; c += n) {
        const char *value[ROW_PV_UNROLL];
        n = mode == PREFETCH_DISTANCE && c + ROW_PV_UNROLL <= high ? ROW_PV_UNROLL : 1;
        bf16_places(element_at(EJK_DTYPE_BF16, head->values, c * p->value.stride_t),
                    p->value.stride_t, value);
        if (mode == PREFETCH_IN_TURN)
            range = bf16_range(range, value, 1, p->value_dim, PREFETCH_IN_TURN, prefetch);
        else if (mode == PREFETCH_NEXT)
            range = bf16_range(range, value, 1, p->value_dim, PREFETCH_NEXT, prefetch);
        else if (n == 1)
            range = bf16_range(range, value, 1, p->value_dim, PREFETCH_DISTANCE, prefetch);
        else
            range =
                bf16_range(range, value, ROW_PV_UNROLL, p->value_dim, PREFETCH_DISTANCE, prefetch);
    }
    return v_within(range);
}

/* A row's sums += a pair of weights times one of values, in f32 and in the order of v_dot(), so that a pair adds the
 * same bits either way; only what has a weight, which no hidden key has. */
static void bf16_add_one(const ejki_flash_problem *p, const float *weights, const char *first,
                         const char *second, float *sums) {
    const vf pair = v_set1(*weights), weight = v_of_first(pair), other = v_of_second(pair);
    const bool has_first = element_load(EJK_DTYPE_BF16, weights, 0) != 0;
    const bool has_second = element_load(EJK_DTYPE_BF16, weights, 1) != 0;
    for (int64_t d = 0; d < p->value_dim; d += VL) {
        const int64_t n = ejki_min(VL, p->value_dim - d);
        vf sum = v_load(sums + d);
        if (has_second) sum = v_fma(other, v_load_bf16_first(second + d * 2, n), sum);
        if (has_first) sum = v_fma(weight, v_load_bf16_first(first + d * 2, n), sum);
        v_store(sums + d, sum);
    }
}

/* sums += weights · values, pair by pair: for values that are not fit. Once these are tiny, so sums may be, which
 * products would take for 0: the head stays here. */
static __attribute__((noinline)) void row_add_nonfinite(const row_task *task, const row_head *head,
                                                        int64_t low, int64_t high) {
    const ejki_flash_problem *p = task->shared->problem;
    const row_plan *t = &task->shared->plan;
    const int64_t stride = p->value.stride_t;
    row_prefetches none = {.second_level = task->prefetch.second_level};
    v_range range = v_range_none();
    for (int64_t c = low; c < high; c += 2) {
        const char *value[ROW_PV_UNROLL];
        bf16_places(element_at(EJK_DTYPE_BF16, head->values, c * stride), stride, value);
        const bool both = c + 1 < high;
        range = bf16_range(range, value, both ? 2 : 1, p->value_dim, PREFETCH_DISTANCE, &none);
        for (int64_t i = 0; i < t->rows; i++)
            bf16_add_one(p, head->scores + i * SCORE_STRIDE + c / 2, value[0],
                         both ? value[1] : value[0], head->states + i * t->state + STATE_SUMS);
    }
    if (!v_large(range)) head->states[STATE_TINY] = 1;
}

/* sums += weights · values over columns [low, high), where they lie, `low` even. */
static inline __attribute__((always_inline)) void
row_add_block(row_task *task, const row_head *head, int64_t low, int64_t high, bool hides) {
    const ejki_flash_problem *p = task->shared->problem;
    const row_plan *t = &task->shared->plan;
    const int64_t stride = p->value.stride_t;
    (void)hides;
    if (!row_is_fit(task, head, low, high) || head->states[STATE_TINY] != 0) {
        row_add_nonfinite(task, head, low, high);
        return;
    }
    const char *values = element_at(EJK_DTYPE_BF16, head->values, low * stride);
    for (int64_t i = 0, n; i < t->rows; i += n) {
        n = gemm_rows(t->rows - i);
#define BF16_CASE(rows)                                                                            \
    if (n == rows)                                                                                 \
        bf16_any_##rows(p->value_dim, high - low, head->scores + i * SCORE_STRIDE + low / 2,       \
                        values, stride, head->states + i * t->state + STATE_SUMS, t->state);
        TILE_ROW_COUNTS(BF16_CASE)
#undef BF16_CASE
    }
}

/* The same of ROW_PV_UNROLL keys, from column c on, for heads side by side of so many rows. */
#define BF16_SIDE(n)                                                                               \
    static __attribute__((noinline)) void bf16_side_##n(row_task *task, const row_head *head,      \
                                                        int64_t heads, int64_t c) {                \
        const ejki_flash_problem *p = task->shared->problem;                                       \
        const int64_t stride = p->value.stride_t, state = task->shared->plan.state;                \
        for (int64_t h = 0; h < heads; h++, head++) {                                              \
            const char *value[ROW_PV_UNROLL];                                                      \
            bf16_places(element_at(EJK_DTYPE_BF16, head->values, c *stride), stride, value);       \
            const v_range none = v_range_none();                                                   \
            const v_range range = task->prefetch.next                                              \
                                      ? bf16_range(none, value, ROW_PV_UNROLL, p->value_dim,       \
                                                   PREFETCH_NEXT, &task->prefetch)                 \
                                      : bf16_range(none, value, ROW_PV_UNROLL, p->value_dim,       \
                                                   PREFETCH_DISTANCE, &task->prefetch);            \
            if (v_within(range) && head->states[STATE_TINY] == 0)                                  \
                bf16_add(n, true, p->value_dim, ROW_PV_UNROLL, head->scores + c / 2, value,        \
                         stride, head->states + STATE_SUMS, state);                                \
            else                                                                                   \
                row_add_nonfinite(task, head, c, c + ROW_PV_UNROLL);                               \
        }                                                                                          \
    }
TILE_ROW_COUNTS(BF16_SIDE)

static void row_add_side(row_task *task, const row_head *head, int64_t heads, int64_t c) {
#define BF16_CASE(n)                                                                               \
    if (task->shared->plan.rows == n) {                                                            \
        bf16_side_##n(task, head, heads, c);                                                       \
        return;                                                                                    \
    }
    TILE_ROW_COUNTS(BF16_CASE)
#undef BF16_CASE
    for (int64_t h = 0; h < heads; h++) row_add_block(task, &head[h], c, c + ROW_PV_UNROLL, false);
}

#endif
