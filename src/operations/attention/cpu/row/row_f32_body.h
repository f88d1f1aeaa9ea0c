/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The products of the row-wise kernel in f32, whatever the tensors' type, 16 bits in the order of row_load16_body.h.
 * row_bf16_dot_body.h has the same functions by bf16 dots.
 */
#ifndef EJKI_FLASH_ROW_F32_BODY_H
#define EJKI_FLASH_ROW_F32_BODY_H

#include "operations/attention/cpu/row/row_load16_body.h"

static inline void row_pack_query(const ejki_flash_problem *p, const void *query, float *target) {
    load16_widen(p->dtype, query, p->head_dim, target);
}

/* A row's sums in the order of elements. */
static inline const float *row_sort(const ejki_flash_problem *p, const float *sums, float *target) {
    load16_sort(p->dtype, sums, p->value_dim, target);
    return target;
}

/* The sum of a row's weights as the products took them. */
static inline float row_total(const float *state, float sum) {
    (void)state;
    return sum;
}

/* sum[row][key] += <query, key> of `rows` rows and `keys` vectors k[key]. */
static inline __attribute__((always_inline)) void row_multiply(const float *query, int64_t depth,
                                                               const vf k[DOT], const int keys,
                                                               const int rows, vf *sum) {
    EJKI_UNROLL for (int i = 0; i < rows; i++) {
        const vf q = v_load(query + i * depth);
        EJKI_UNROLL for (int j = 0; j < keys; j++) sum[i * DOT + j] =
            v_fma(q, k[j], sum[i * DOT + j]);
    }
}

/*
 * The same of whole keys, still to be summed up across lanes. Meanwhile prefetches as much as a key has at each
 * line[j].
 */
static inline __attribute__((always_inline)) void
row_products(const ejk_dtype dtype, const float *query, int64_t depth, const void *const *key,
             int64_t head_dim, const char *const *line, bool second_level, const int keys,
             const int rows, vf *sum) {
    vf k[DOT], other[DOT];
    int64_t d = 0;
    const int64_t step = dtype == EJK_DTYPE_F32 ? VL : LOAD16;
    for (; d + step <= head_dim; d += step) {
        EJKI_UNROLL for (int j = 0; j < keys; j++) {
            const void *at = element_at(dtype, key[j], d);
            if (dtype == EJK_DTYPE_F32) {
                k[j] = v_load(at);
            } else {
                vf pair[2];
                load16_load(dtype, at, pair);
                k[j] = pair[0];
                other[j] = pair[1];
            }
            row_prefetch(element_at(dtype, line[j], d), second_level);
        }
        row_multiply(query + d, depth, k, keys, rows, sum);
        if (dtype != EJK_DTYPE_F32) row_multiply(query + d + VL, depth, other, keys, rows, sum);
    }
    for (; d < head_dim; d += VL) {
        for (int j = 0; j < keys; j++)
            k[j] = v_widen_first(dtype, element_at(dtype, key[j], d), ejki_min(VL, head_dim - d));
        row_multiply(query + d, depth, k, keys, rows, sum);
    }
}

/* Dot products of DOT query rows, of which those behind `rows` are 0, with DOT keys, `keys` at a time:
 * scores[row][key]. */
static inline __attribute__((always_inline)) void
row_dots(const ejk_dtype dtype, const float *query, int64_t depth, const void *const key[DOT],
         int64_t head_dim, const char *const line[DOT], bool second_level, const int keys,
         const int rows, float *scores) {
    vf sum[DOT * DOT];
    EJKI_UNROLL for (int i = 0; i < DOT * DOT; i++) sum[i] = v_zero();
    EJKI_UNROLL for (int j = 0; j < DOT; j += keys) row_products(
        dtype, query, depth, key + j, head_dim, line + j, second_level, keys, rows, sum + j);
    float all[DOT * DOT];
    EJKI_UNROLL for (int i = 0; i < DOT * DOT; i += VL) v_store(all + i, v_sums(sum + i));
    for (int i = 0; i < rows; i++)
        memcpy(scores + i * SCORE_STRIDE, all + i * DOT, sizeof(float) * DOT);
}

/* What to prefetch beside DOT keys of so many bytes. */
static inline void row_key_prefetches(row_task *task, const void *const keys[DOT], int64_t bytes,
                                      const char *line[DOT]) {
    row_prefetches *prefetch = &task->prefetch;
    for (int j = 0; j < DOT; j++) {
        const char **at = task->next_keys ? &task->next_keys : &prefetch->at[j];
        line[j] = (const char *)((uintptr_t)keys[j] + (uintptr_t)task->key_distance);
        if (!*at) continue;
        line[j] = *at;
        *at = (const char *)((uintptr_t)*at + (uintptr_t)bytes);
    }
}

/* Raw scores of all rows of a KV head with the block's keys [low, high), into columns low, …. */
static inline __attribute__((always_inline)) void
row_scores_of(const ejk_dtype dtype, row_task *task, const row_head *head, int64_t low,
              int64_t high, const int keys_at_once) {
    const ejki_flash_problem *p = task->shared->problem;
    const row_plan *t = &task->shared->plan;
    const int64_t size = element_size(dtype);
    const bool second_level = task->shared->second_level;
    for (int64_t c = low; c < high; c += DOT) {
        const void *keys[DOT];
        for (int j = 0; j < DOT; j++)
            keys[j] = element_at(dtype, head->keys, ejki_min(c + j, high - 1) * p->key.stride_t);
        const char *line[DOT];
        row_key_prefetches(task, keys, p->head_dim * size, line);
        for (int64_t i = 0; i < t->rows; i += DOT) {
            if (i > 0)
                for (int j = 0; j < DOT; j++) line[j] = keys[0];
            const float *query = head->query + i * t->depth;
            float *scores = head->scores + i * SCORE_STRIDE + c;
#define ROW_DOTS(rows)                                                                             \
    row_dots(dtype, query, t->depth, keys, p->head_dim, line, second_level, keys_at_once, rows,    \
             scores)
            DOT_ROWS(t->rows - i, ROW_DOTS);
#undef ROW_DOTS
        }
    }
}

/* Functions of their own, whose registers gcc shares out better. */
#define ROW_SCORES(name, dtype, keys)                                                              \
    static __attribute__((noinline)) void row_scores_##name##_##keys(                              \
        row_task *task, const row_head *head, int64_t low, int64_t high) {                         \
        row_scores_of(dtype, task, head, low, high, keys);                                         \
    }
ROW_SCORES(f32, EJK_DTYPE_F32, 1)
ROW_SCORES(f32, EJK_DTYPE_F32, DOT)
ROW_SCORES(bf16, EJK_DTYPE_BF16, 1)
ROW_SCORES(bf16, EJK_DTYPE_BF16, DOT)
ROW_SCORES(f16, EJK_DTYPE_F16, 1)
ROW_SCORES(f16, EJK_DTYPE_F16, DOT)

/* DOT keys at once load queries once; but where heads lie side by side, one at a time reads memory in longer runs. */
static inline void row_scores(row_task *task, const row_head *head, int64_t low, int64_t high) {
    const ejk_dtype dtype = task->shared->problem->dtype;
    const bool side = task->shared->plan.side > 0;
    if (dtype == EJK_DTYPE_F32)
        (side ? row_scores_f32_1 : row_scores_f32_DOT)(task, head, low, high);
    else if (dtype == EJK_DTYPE_BF16)
        (side ? row_scores_bf16_1 : row_scores_bf16_DOT)(task, head, low, high);
    else
        (side ? row_scores_f16_1 : row_scores_f16_DOT)(task, head, low, high);
}

/* The same of heads side by side, DOT keys of all of them before the next. */
static inline void row_scores_side(row_task *task, const row_head *head, int64_t heads, int64_t low,
                                   int64_t high) {
    for (int64_t c = low; c < high; c += DOT)
        for (int64_t h = 0; h < heads; h++) row_scores(task, &head[h], c, ejki_min(c + DOT, high));
}

/* Weights of columns [first, end) of a row become what the products take, those dropped 0. */
static inline void row_end_weights(const row_shared *s, const flash_row *r, int64_t key,
                                   int64_t first, int64_t end, float *scores, float *state) {
    (void)state;
    if (s->drops) flash_drop(s->problem, r, key + first, end - first, scores + first);
}

/* sums += weights · values over columns [low, high), where they lie. */
static void row_add_values(row_task *task, const row_head *head, int64_t low, int64_t high) {
    const ejki_flash_problem *p = task->shared->problem;
    const row_plan *t = &task->shared->plan;
    const void *values = element_at(p->dtype, head->values, low * p->value.stride_t);
    row_prefetches none = {.second_level = task->prefetch.second_level};
    for (int64_t i = 0, n; i < t->rows; i += n) {
        n = gemm_rows(t->rows - i);
        pv_any_for(p->dtype, (int)n)(p->value_dim, high - low,
                                     head->scores + i * SCORE_STRIDE + low, values,
                                     p->value.stride_t, head->states + i * t->state + STATE_SUMS,
                                     t->state, i == 0 ? &task->prefetch : &none);
    }
}

/* sums += weights · values of ROW_PV_UNROLL keys, from column c on, for heads side by side. */
static void row_add_side(row_task *task, const row_head *head, int64_t heads, int64_t c) {
    const ejki_flash_problem *p = task->shared->problem;
    const row_plan *t = &task->shared->plan;
    const int64_t stride = p->value.stride_t, offset = c * stride * element_size(p->dtype);
    row_prefetches none = {.second_level = task->prefetch.second_level};
    for (int64_t i = 0, n; i < t->rows; i += n) {
        n = gemm_rows(t->rows - i);
        row_prefetches *prefetch = i > 0 && task->prefetch.next ? &none : &task->prefetch;
        const pv_fn add = pv_two_for(p->dtype, (int)n);
        const int64_t weights = i * SCORE_STRIDE + c, sums = i * t->state + STATE_SUMS;
        for (int64_t h = 0; h < heads; h++)
            add(p->value_dim, ROW_PV_UNROLL, head[h].scores + weights,
                (const char *)head[h].values + offset, stride, head[h].states + sums, t->state,
                prefetch);
    }
}

/* The same key by key over those that have a weight, which no hidden key has: for values that are not finite. */
static __attribute__((noinline)) void row_add_nonfinite(const row_task *task, const row_head *head,
                                                        int64_t low, int64_t high) {
    const ejki_flash_problem *p = task->shared->problem;
    const row_plan *t = &task->shared->plan;
    for (int64_t c = low; c < high; c++) {
        load16_widen(p->dtype, element_at(p->dtype, head->values, c * p->value.stride_t),
                     p->value_dim, task->row);
        for (int64_t i = 0; i < t->rows; i++) {
            float *sums = head->states + i * t->state + STATE_SUMS;
            const float weight = head->scores[i * SCORE_STRIDE + c];
            if (weight == 0) continue;
            for (int64_t d = 0; d < p->value_dim; d += VL)
                v_store(sums + d, v_fma(v_set1(weight), v_load(task->row + d), v_load(sums + d)));
        }
    }
}

/* True if the block's values [low, high) are all finite. */
static bool row_is_finite(const row_task *task, const row_head *head, int64_t low, int64_t high) {
    const ejki_flash_problem *p = task->shared->problem;
    for (int64_t c = low; c < high; c++) {
        const void *values = element_at(p->dtype, head->values, c * p->value.stride_t);
        const float *row = values;
        if (p->dtype != EJK_DTYPE_F32) {
            load16_widen(p->dtype, values, p->value_dim, task->row);
            row = task->row;
        }
        if (!flash_is_finite(row, p->value_dim)) return false;
    }
    return true;
}

/* sums += weights · values over columns [low, high), of which, if it hides any, not all rows see all. */
static inline void row_add_block(row_task *task, const row_head *head, int64_t low, int64_t high,
                                 bool hides) {
    if (hides && !row_is_finite(task, head, low, high))
        row_add_nonfinite(task, head, low, high);
    else
        row_add_values(task, head, low, high);
}

#endif
