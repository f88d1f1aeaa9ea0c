/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The row-wise kernel at one block of keys for one key head: scores, softmax, weights times values. Part of
 * row_body.h, which includes it behind its types.
 */
#ifndef EJKI_FLASH_ROW_BLOCK_BODY_H
#define EJKI_FLASH_ROW_BLOCK_BODY_H

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

/* The same of whole keys, still to be summed up across lanes. Meanwhile asks for as much as a key has at each line[j]. */
static inline __attribute__((always_inline)) void
row_products(const ejk_dtype dtype, const float *query, int64_t depth, const void *const *key,
             int64_t head_dim, const char *const *line, const int keys, const int rows, vf *sum) {
    vf k[DOT], other[DOT];
    int64_t d = 0;
    const int64_t step = dtype == EJK_DTYPE_F32 ? VL : HALVES;
    for (; d + step <= head_dim; d += step) {
        EJKI_UNROLL for (int j = 0; j < keys; j++) {
            const void *at = element_at(dtype, key[j], d);
            if (dtype == EJK_DTYPE_F32) {
                k[j] = v_load(at);
            } else {
                vf pair[2];
                halves_load(dtype, at, pair);
                k[j] = pair[0];
                other[j] = pair[1];
            }
            __builtin_prefetch((const char *)element_at(dtype, line[j], d), 0, 3);
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
         int64_t head_dim, const char *const line[DOT], const int keys, const int rows,
         float *scores) {
    vf sum[DOT * DOT];
    EJKI_UNROLL for (int i = 0; i < DOT * DOT; i++) sum[i] = v_zero();
    EJKI_UNROLL for (int j = 0; j < DOT; j += keys)
        row_products(dtype, query, depth, key + j, head_dim, line + j, keys, rows, sum + j);
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
        const char **at = task->soon ? &task->soon : &ask->at[j];
        line[j] = (const char *)((uintptr_t)keys[j] + (uintptr_t)task->key_ahead);
        if (!*at) continue;
        line[j] = *at;
        *at = (const char *)((uintptr_t)*at + (uintptr_t)bytes);
    }
}

/* Raw scores of all rows of a key head with the block's keys [low, high), into columns low, …. */
static inline __attribute__((always_inline)) void
row_scores_of(const ejk_dtype dtype, row_task *task, const row_head *head, int64_t low,
              int64_t high, const int keys_at_once) {
    const ejki_flash_problem *p = task->shared->problem;
    const row_plan *t = &task->shared->plan;
    const int64_t size = element_size(dtype);
    for (int64_t c = low; c < high; c += DOT) {
        const void *keys[DOT];
        for (int j = 0; j < DOT; j++)
            keys[j] = element_at(dtype, head->keys, ejki_min(c + j, high - 1) * p->key.stride_t);
        const char *line[DOT];
        row_ask_keys(task, keys, p->head_dim * size, line);
        for (int64_t i = 0; i < t->rows; i += DOT) {
            if (i > 0)
                for (int j = 0; j < DOT; j++) line[j] = keys[0];
            const float *query = head->query + i * t->depth;
            float *scores = head->scores + i * SCORE_STRIDE + c;
#define ROW_DOTS(rows)                                                                             \
    row_dots(dtype, query, t->depth, keys, p->head_dim, line, keys_at_once, rows, scores)
            const int64_t left = t->rows - i;
            if (left >= DOT)
                ROW_DOTS(DOT);
            else if (left == 1)
                ROW_DOTS(1);
            else if (left == 2)
                ROW_DOTS(2);
            else
                ROW_DOTS(3);
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
static void row_add_values(row_task *task, const row_head *head, int64_t low, int64_t high) {
    const ejki_flash_problem *p = task->shared->problem;
    const row_plan *t = &task->shared->plan;
    const void *values = element_at(p->dtype, head->values, low * p->value.stride_t);
    halves_lines none = {.ahead = 0};
    for (int64_t i = 0, n; i < t->rows; i += n) {
        n = product_rows(t->rows - i);
        halves_values_for(p->dtype, (int)n)(
            p->value_dim, high - low, head->scores + i * SCORE_STRIDE + low, values,
            p->value.stride_t, head->states + i * t->state + STATE_SUMS, t->state,
            i == 0 ? &task->ask : &none);
    }
}

/* sums += weights · values of ROW_VALUES keys, from column c on, for heads side by side. */
static void row_add_side(row_task *task, const row_head *head, int64_t heads, int64_t c) {
    const ejki_flash_problem *p = task->shared->problem;
    const row_plan *t = &task->shared->plan;
    const int64_t stride = p->value.stride_t, offset = c * stride * element_size(p->dtype);
    for (int64_t i = 0, n; i < t->rows; i += n) {
        n = product_rows(t->rows - i);
        const halves_fn add = halves_two_for(p->dtype, (int)n);
        const int64_t weights = i * SCORE_STRIDE + c, sums = i * t->state + STATE_SUMS;
        for (int64_t h = 0; h < heads; h++)
            add(p->value_dim, ROW_VALUES, head[h].scores + weights,
                (const char *)head[h].values + offset, stride, head[h].states + sums, t->state,
                &task->ask);
    }
}

/* The same key by key over what each row sees and keeps: for other values that are not finite. */
static __attribute__((noinline)) void row_add_carefully(const row_task *task, const row_head *head,
                                                        int64_t key, int64_t low, int64_t high) {
    const row_shared *s = task->shared;
    const ejki_flash_problem *p = s->problem;
    const row_plan *t = &s->plan;
    for (int64_t c = low; c < high; c++) {
        halves_widen(p->dtype, element_at(p->dtype, head->values, c * p->value.stride_t),
                     p->value_dim, task->row);
        for (int64_t i = 0; i < t->rows; i++) {
            const flash_row r = flash_row_of(p, task->batch, head->index, i);
            float *sums = head->states + i * t->state + STATE_SUMS;
            const float weight = head->scores[i * SCORE_STRIDE + c];
            if (!flash_sees(p, &r, key + c) || (s->drops && weight == 0)) continue;
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

/* What rows see of a block, whichever their head: columns [low, high) some of them, [least, most) all. */
typedef struct row_span {
    int64_t low, high, least, most;
} row_span;

static row_span row_span_of(const row_task *task, int64_t key, int64_t count) {
    const row_shared *s = task->shared;
    row_span span = {.low = count, .high = 0, .least = 0, .most = count};
    for (int64_t i = 0; i < s->plan.rows; i++) {
        const flash_row r = flash_row_of(s->problem, task->batch, task->first_head, i);
        span.low = ejki_min(span.low, r.first - key);
        span.high = ejki_max(span.high, r.end - key);
        span.least = ejki_max(span.least, r.first - key);
        span.most = ejki_min(span.most, r.end - key);
    }
    span.low = ejki_max(span.low, 0);
    span.high = ejki_min(span.high, count);
    return span;
}

/* Number `n` of the task's heads at the block of `key`, in place `slot` of the scores. */
static row_head row_head_of(const row_task *task, int64_t n, int64_t slot, int64_t key) {
    const row_shared *s = task->shared;
    const row_plan *t = &s->plan;
    const int64_t index = task->first_head + n;
    return (row_head){.index = index,
                      .query = task->query + n * t->rows * t->depth,
                      .scores = task->scores + slot * (t->rows + DOT) * SCORE_STRIDE,
                      .states = row_state(s, task->batch, task->split, index, 0),
                      .keys = flash_key(s->problem, task->batch, index, key),
                      .values = flash_value(s->problem, task->batch, index, key)};
}

/* Scores of a head become weights. */
static void row_weigh(const row_task *task, const row_head *head, int64_t key, row_span span) {
    const row_shared *s = task->shared;
    const int64_t first = span.low / (2 * VL) * (2 * VL), end = ejki_round_up(span.high, VL);
    for (int64_t i = 0; i < s->plan.rows; i++) {
        const flash_row r = flash_row_of(s->problem, task->batch, head->index, i);
        row_softmax(task, &r, key, first, end, span.high, head->scores + i * SCORE_STRIDE,
                    head->states + i * s->plan.state);
    }
}

/* One block of keys for one head of the task. */
static void row_block(row_task *task, int64_t n, int64_t key, int64_t count, row_span span) {
    const row_shared *s = task->shared;
    const row_head head = row_head_of(task, n, 0, key);
    if (s->hides && !row_sees(task, head.index, key, count)) return;
    row_scores(task, &head, span.low, span.high);
    row_weigh(task, &head, key, span);
    const bool hides = s->general || s->drops || span.least > span.low || span.most < span.high;
    if (hides && !row_is_finite(task, &head, span.low, span.high))
        row_add_carefully(task, &head, key, span.low, span.high);
    else
        row_add_values(task, &head, span.low, span.high);
}

/* One block of keys, all of which all rows see, for `heads` heads side by side: read as it lies in memory. */
static void row_block_in_order(row_task *task, int64_t n, int64_t heads, int64_t key,
                               row_span span) {
    row_head head[ROW_SIDE];
    for (int64_t h = 0; h < heads; h++) head[h] = row_head_of(task, n + h, h, key);
    for (int64_t c = span.low; c < span.high; c += DOT)
        for (int64_t h = 0; h < heads; h++)
            row_scores(task, &head[h], c, ejki_min(c + DOT, span.high));
    for (int64_t h = 0; h < heads; h++) row_weigh(task, &head[h], key, span);
    int64_t c = span.low;
    for (; c + ROW_VALUES <= span.high; c += ROW_VALUES) row_add_side(task, head, heads, c);
    for (int64_t h = 0; c < span.high && h < heads; h++)
        row_add_values(task, &head[h], c, span.high);
}

#endif
