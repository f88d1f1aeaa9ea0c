/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The row-wise kernel at one block of keys for one key head: scores, softmax, weights times values. Part of
 * row_body.h, which includes it behind its types.
 */
#ifndef EJKI_FLASH_ROW_BLOCK_BODY_H
#define EJKI_FLASH_ROW_BLOCK_BODY_H

/* sums[row][key] += <query, key> of `rows` rows and the vectors k[key]. */
static inline __attribute__((always_inline)) void
row_multiply(const float *query, int64_t depth, const vf k[DOT], const int rows, vf *sum) {
    EJKI_UNROLL for (int i = 0; i < rows; i++) {
        const vf q = v_load(query + i * depth);
        EJKI_UNROLL for (int j = 0; j < DOT; j++) sum[i * DOT + j] =
            v_fma(q, k[j], sum[i * DOT + j]);
    }
}

/* Dot products of DOT query rows, padded with zeros, with DOT keys: scores[row][key]. Meanwhile asks for as much as a
 * key has at each line[j]. */
static inline __attribute__((always_inline)) void
row_dots(const ejk_dtype dtype, const float *query, int64_t depth, const void *const key[DOT],
         int64_t head_dim, float *scores, const char *const line[DOT], const int rows) {
    vf sum[DOT * DOT], k[DOT], other[DOT];
    EJKI_UNROLL for (int i = 0; i < DOT * DOT; i++) sum[i] = v_zero();
    int64_t d = 0;
    const int64_t step = dtype == EJK_DTYPE_F32 ? VL : HALVES;
    for (; d + step <= head_dim; d += step) {
        EJKI_UNROLL for (int j = 0; j < DOT; j++) {
            const void *at = element_at(dtype, key[j], d);
            if (dtype == EJK_DTYPE_F32) {
                k[j] = v_load(at);
            } else {
                vf pair[2];
                halves_load(dtype, at, pair);
                k[j] = pair[0];
                other[j] = pair[1];
            }
            __builtin_prefetch((const char *)element_at(dtype, line[j], d), 0, 2);
        }
        row_multiply(query + d, depth, k, rows, sum);
        if (dtype != EJK_DTYPE_F32) row_multiply(query + d + VL, depth, other, rows, sum);
    }
    for (; d < head_dim; d += VL) {
        for (int j = 0; j < DOT; j++)
            k[j] = v_widen_first(dtype, element_at(dtype, key[j], d), ejki_min(VL, head_dim - d));
        row_multiply(query + d, depth, k, rows, sum);
    }
    float all[DOT * DOT];
    EJKI_UNROLL for (int i = 0; i < DOT * DOT; i += VL) v_store(all + i, v_sums(sum + i));
    for (int i = 0; i < rows; i++)
        memcpy(scores + i * SCORE_STRIDE, all + i * DOT, sizeof(float) * DOT);
}

/* What to ask for beside DOT keys of so many bytes. */
static inline void row_ask_keys(row_task *task, const void *const keys[DOT], int64_t bytes,
                                const char *line[DOT]) {
    halves_lines *ask = &task->ask;
    for (int j = 0; j < DOT; j++) {
        line[j] = (const char *)((uintptr_t)keys[j] + (uintptr_t)task->key_ahead);
        if (!ask->at[0]) continue;
        line[j] = ask->at[j];
        ask->at[j] += bytes;
    }
}

/* Raw scores of all rows of a key head with the block's keys [low, high), into columns low, …. */
static inline __attribute__((always_inline)) void row_scores_of(const ejk_dtype dtype,
                                                                row_task *task, const float *query,
                                                                int64_t low, int64_t high) {
    const ejki_flash_problem *p = task->shared->problem;
    const row_plan *t = &task->shared->plan;
    const int64_t size = element_size(dtype);
    for (int64_t c = low; c < high; c += DOT) {
        const void *keys[DOT];
        for (int j = 0; j < DOT; j++)
            keys[j] = element_at(dtype, task->keys, ejki_min(c + j, high - 1) * p->key.stride_t);
        const char *line[DOT];
        row_ask_keys(task, keys, p->head_dim * size, line);
        for (int64_t i = 0; i < t->rows; i += DOT) {
            if (i > 0)
                for (int j = 0; j < DOT; j++) line[j] = keys[0];
            const float *rows = query + i * t->depth;
            float *scores = task->scores + i * SCORE_STRIDE + c;
            const int64_t left = t->rows - i;
            if (left >= DOT)
                row_dots(dtype, rows, t->depth, keys, p->head_dim, scores, line, DOT);
            else if (left == 1)
                row_dots(dtype, rows, t->depth, keys, p->head_dim, scores, line, 1);
            else if (left == 2)
                row_dots(dtype, rows, t->depth, keys, p->head_dim, scores, line, 2);
            else
                row_dots(dtype, rows, t->depth, keys, p->head_dim, scores, line, 3);
        }
    }
}

static void row_scores(row_task *task, const float *query, int64_t low, int64_t high) {
    const ejk_dtype dtype = task->shared->problem->dtype;
    if (dtype == EJK_DTYPE_F32)
        row_scores_of(EJK_DTYPE_F32, task, query, low, high);
    else if (dtype == EJK_DTYPE_BF16)
        row_scores_of(EJK_DTYPE_BF16, task, query, low, high);
    else
        row_scores_of(EJK_DTYPE_F16, task, query, low, high);
}

/* Columns [first, end) of a row's scores become weights; its state follows. */
static void row_softmax(const row_task *task, const flash_row *r, int64_t key, int64_t first,
                        int64_t end, int64_t high, float *scores, float *state) {
    const row_shared *s = task->shared;
    scores += first;
    if (s->general)
        flash_modify(s->problem, &s->cap, r, key + first, high - first, scores, task->allowed);
    if (r->first > key + first || r->end < key + end)
        flash_hide(r, key + first, end - first, scores);
    const float top = flash_maximum(scores, end - first) * s->scale;
    if (top > state[STATE_REFERENCE]) {
        const vf factor = v_set1(exp2f(state[STATE_REFERENCE] - top));
        v_store(state, v_mul(v_load(state), factor));
        for (int64_t d = STATE_SUMS; d < s->plan.state; d += VL)
            v_store(state + d, v_mul(v_load(state + d), factor));
        state[STATE_REFERENCE] = state[STATE_MAXIMUM] = top;
    }
    v_store(state,
            flash_weights(scores, end - first, s->scale, state[STATE_REFERENCE], v_load(state)));
    if (s->drops) flash_drop(s->problem, r, key + first, end - first, scores);
}

/* sums += weights · values over columns [low, high), where they lie. */
static void row_add_values(row_task *task, int64_t low, int64_t high, float *states) {
    const ejki_flash_problem *p = task->shared->problem;
    const row_plan *t = &task->shared->plan;
    const void *values = element_at(p->dtype, task->values, low * p->value.stride_t);
    halves_lines none = {.ahead = 0};
    for (int64_t i = 0, n; i < t->rows; i += n) {
        n = product_rows(t->rows - i);
        halves_values_for(p->dtype, (int)n)(p->value_dim, high - low,
                                            task->scores + i * SCORE_STRIDE + low, values,
                                            p->value.stride_t, states + i * t->state + STATE_SUMS,
                                            t->state, i == 0 ? &task->ask : &none);
    }
}

/* The same key by key over what each row sees and keeps: for other values that are not finite. */
static __attribute__((noinline)) void row_add_carefully(const row_task *task, int64_t kv_head,
                                                        int64_t key, int64_t low, int64_t high,
                                                        float *states) {
    const row_shared *s = task->shared;
    const ejki_flash_problem *p = s->problem;
    const row_plan *t = &s->plan;
    for (int64_t c = low; c < high; c++) {
        halves_widen(p->dtype, element_at(p->dtype, task->values, c * p->value.stride_t),
                     p->value_dim, task->row);
        for (int64_t i = 0; i < t->rows; i++) {
            const flash_row r = flash_row_of(p, task->batch, kv_head, i);
            float *sums = states + i * t->state + STATE_SUMS;
            const float weight = task->scores[i * SCORE_STRIDE + c];
            if (!flash_sees(p, &r, key + c) || (s->drops && weight == 0)) continue;
            for (int64_t d = 0; d < p->value_dim; d += VL)
                v_store(sums + d, v_fma(v_set1(weight), v_load(task->row + d), v_load(sums + d)));
        }
    }
}

/* True if the block's values [low, high) are all finite. */
static bool row_is_finite(const row_task *task, int64_t low, int64_t high) {
    const ejki_flash_problem *p = task->shared->problem;
    for (int64_t c = low; c < high; c++) {
        const void *values = element_at(p->dtype, task->values, c * p->value.stride_t);
        const float *row = values;
        if (p->dtype != EJK_DTYPE_F32) {
            halves_widen(p->dtype, values, p->value_dim, task->row);
            row = task->row;
        }
        if (!flash_is_finite(row, p->value_dim)) return false;
    }
    return true;
}

/* True if a row of the key head sees any of the keys [key, key + count). */
static bool row_sees(const row_task *task, int64_t kv_head, int64_t key, int64_t count) {
    const row_shared *s = task->shared;
    for (int64_t i = 0; i < s->plan.rows; i++) {
        const flash_row r = flash_row_of(s->problem, task->batch, kv_head, i);
        if (flash_sees_any(s->problem, &r, key, key + count, task->allowed)) return true;
    }
    return false;
}

/* One block of keys for one key head; its rows' states lie side by side. */
static void row_block(row_task *task, int64_t kv_head, const float *query, int64_t key,
                      int64_t count, float *states) {
    const row_shared *s = task->shared;
    const ejki_flash_problem *p = s->problem;
    const row_plan *t = &s->plan;
    int64_t low = count, high = 0, least = 0, most = count;
    if (s->hides && !row_sees(task, kv_head, key, count)) return;
    for (int64_t i = 0; i < t->rows; i++) {
        const flash_row r = flash_row_of(p, task->batch, kv_head, i);
        low = ejki_min(low, r.first - key);
        high = ejki_max(high, r.end - key);
        least = ejki_max(least, r.first - key);
        most = ejki_min(most, r.end - key);
    }
    low = ejki_max(low, 0);
    high = ejki_min(high, count);
    if (low >= high) return;
    task->keys = flash_key(p, task->batch, kv_head, key);
    task->values = flash_value(p, task->batch, kv_head, key);
    row_scores(task, query, low, high);
    const int64_t first = low / (2 * VL) * (2 * VL), end = ejki_round_up(high, VL);
    for (int64_t i = 0; i < t->rows; i++) {
        const flash_row r = flash_row_of(p, task->batch, kv_head, i);
        row_softmax(task, &r, key, first, end, high, task->scores + i * SCORE_STRIDE,
                    states + i * t->state);
    }
    const bool hides = s->general || s->drops || least > low || most < high;
    if (hides && !row_is_finite(task, low, high))
        row_add_carefully(task, kv_head, key, low, high, states);
    else
        row_add_values(task, low, high, states);
}

#endif
