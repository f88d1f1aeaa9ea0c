/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention forward, row-wise: for few query rows over many keys, as in decoding, where
 * reading keys and values once is all that matters.
 *
 * Nothing is packed, but keys and values of 16 bits become floats, a block of one head at a time, which stays
 * in the first-level cache; everything after is f32. A task is a range of keys (a split) for some key heads of one batch entry. Blocks of
 * keys are visited for all its heads before the next block, so that in the [B,S,H,D] layout memory is
 * read in order, and the next block is asked for meanwhile. Scores are dot products of four rows with
 * four keys in registers; softmax keeps a running maximum per row; weights times values is the product of
 * product_body.h with values where they lie, or where they were widened.
 *
 * Splits are merged in their order by whoever finishes the last one of a batch entry's heads. Their
 * number comes from the configuration alone, so results do not depend on the number of threads; heads
 * per task does depend on it and changes nothing.
 *
 * The includer defines what product_body.h asks for, and ROW_TIER, its name in symbols, and ROW_ISA.
 */
#include <ejkernel/registry.h>

#include "base/base.h"
#include "kernels/flash_attention/problem.h"

#include <stdatomic.h>
#include <string.h>

#include "kernels/simd/vec_math.h"
#include "kernels/simd/product_body.h"
#include "kernels/flash_attention/scores_body.h"

/* More rows of a key head than this are the tiled kernel's. */
#define ROW_LIMIT 8
/* Rows and keys of a dot-product tile; their product is a multiple of VL. */
#define DOT 4

/* Rows of weights lie this far apart: the largest block and a line more. */
#define ROW_KEYS     512
#define SCORE_STRIDE (ROW_KEYS + 16)

/* sums += weights times values. */
#define VALUES_PAIR(n) PRODUCT_PAIR(product_values, n, SCORE_STRIDE, 1, c_stride)
#define VALUES_CASE(n) PRODUCT_CASE(product_values, n)
TILE_ROW_COUNTS(VALUES_PAIR)
PRODUCT_DISPATCH(product_values, TILE_ROW_COUNTS(VALUES_CASE))

/* How a problem is cut and memory laid out, in floats. */
typedef struct row_plan {
    int64_t rows; /* of a key head */
    int64_t splits, split_keys, block;
    int64_t heads; /* key heads of a task */
    int64_t parts; /* tasks across the key heads */
    int64_t tasks;
    int64_t depth, width; /* head_dim and value_dim rounded up to VL */
    int64_t state;        /* floats of one row: lanes, reference, maximum, padding, sums */
    int64_t query_at, score_at, allowed_at, key_at, value_at, worker_floats;
    int64_t partial_at,
        count_at; /* shared by the workers: states of all rows and splits; counters */
    int64_t bytes;
} row_plan;

#define STATE_REFERENCE VL
#define STATE_MAXIMUM   (VL + 1)
#define STATE_SUMS      (2 * VL)

typedef struct row_shared {
    const ejki_flash_problem *problem;
    row_plan plan;
    float *memory;
    float scale;
    bool general, drops;
    _Atomic int64_t next;
} row_shared;

/* One worker at one task. */
typedef struct row_task {
    const row_shared *shared;
    float *query, *scores;
    float *wide_keys, *wide_values; /* of a block, if elements are not floats */
    uint8_t *allowed;
    int64_t batch, split, first_head, heads;
    int64_t first, end; /* keys */
    /* Keys and values of the head and block at hand, column 0 first; strides in floats. */
    const float *keys, *values;
    int64_t key_stride, value_stride;
    /* What of the next block to ask for: keys further on; or, where the rows of the task's heads lie side
     * by side, the place in memory order that was reached, which the processor's own prefetching follows. */
    int64_t ahead;
    const char *next_key, *next_value;
} row_task;

static bool row_add(int64_t *at, int64_t rows, int64_t columns, int64_t *start) {
    int64_t count;
    *start = *at;
    return ejki_mul(rows, columns, &count) && count < (int64_t)1 << 48 &&
           (*at += ejki_round_up(count, 16)) < (int64_t)1 << 48;
}

/* False if the memory does not fit 48 bits. */
static bool row_plan_of(const ejki_flash_problem *p, const int64_t *parameters, int32_t workers,
                        row_plan *out) {
    row_plan t = {.rows = p->queries * p->group, .block = ejki_round_up(parameters[1], 2 * VL)};
    t.depth = ejki_round_up(p->head_dim, VL);
    t.width = ejki_round_up(p->value_dim, VL);
    t.split_keys = ejki_round_up(ejki_max(1, ejki_cdiv(p->keys, parameters[0])), t.block);
    t.splits = ejki_max(1, ejki_cdiv(p->keys, t.split_keys));
    /* All heads in one task read memory in order; fewer only if that leaves threads idle. */
    const int64_t wanted = workers > 1 ? (int64_t)workers * 2 : 1;
    t.parts = ejki_cdiv(wanted, ejki_max(1, p->batch * t.splits));
    t.parts = ejki_max(1, ejki_min(p->kv_heads, t.parts));
    if (p->key.stride_h > p->key.stride_t) t.parts = ejki_max(1, p->kv_heads);
    t.heads = ejki_cdiv(p->kv_heads, t.parts);
    t.parts = ejki_cdiv(p->kv_heads, ejki_max(1, t.heads));
    t.tasks = p->batch * t.splits * t.parts;
    t.state = STATE_SUMS + t.width;
    bool fits = true;
    int64_t at = 0, ignored;
    fits &= row_add(&at, t.rows * t.heads, t.depth, &t.query_at);
    fits &= row_add(&at, t.rows + DOT, SCORE_STRIDE, &t.score_at);
    fits &= row_add(&at, t.block, 1, &t.allowed_at);
    const int64_t wide = p->dtype == EJK_DTYPE_F32 ? 0 : t.block;
    fits &= row_add(&at, wide, t.depth, &t.key_at);
    fits &= row_add(&at, wide, t.width, &t.value_at);
    t.worker_floats = at;
    at = 0;
    fits &= row_add(&at, workers, t.worker_floats, &ignored);
    int64_t states = 0;
    fits &= ejki_mul(p->batch * p->kv_heads, t.rows * t.splits, &states);
    fits &= row_add(&at, states, t.state, &t.partial_at);
    fits &= row_add(&at, p->batch * t.parts, 1, &t.count_at);
    t.bytes = at * (int64_t)sizeof(float);
    *out = t;
    return fits;
}

/* The state of a row of a key head in one split. */
static float *row_state(const row_shared *s, int64_t batch, int64_t split, int64_t kv_head,
                        int64_t row) {
    const row_plan *t = &s->plan;
    const int64_t head = (batch * t->splits + split) * s->problem->kv_heads + kv_head;
    return s->memory + t->partial_at + (head * t->rows + row) * t->state;
}

/* Lines to ask for during DOT dot products: at each step of d, one per key. Steps in bytes. */
typedef struct row_lines {
    const void *first;
    int64_t per_key, per_element;
} row_lines;

/* Dot products of DOT query rows, padded with zeros, with DOT keys: scores[row][key]. */
static inline __attribute__((always_inline)) void row_dots(const float *query, int64_t depth,
                                                           const float *const key[DOT],
                                                           int64_t head_dim, float *scores,
                                                           row_lines ahead, const int rows) {
    vf sum[DOT * DOT];
    EJKI_UNROLL for (int i = 0; i < DOT * DOT; i++) sum[i] = v_zero();
    int64_t d = 0;
    for (; d + VL <= head_dim; d += VL) {
        vf k[DOT];
        EJKI_UNROLL for (int j = 0; j < DOT; j++) {
            k[j] = v_load(key[j] + d);
            __builtin_prefetch(
                (const char *)ahead.first + j * ahead.per_key + d * ahead.per_element, 0, 2);
        }
        EJKI_UNROLL for (int i = 0; i < rows; i++) {
            const vf q = v_load(query + i * depth + d);
            EJKI_UNROLL for (int j = 0; j < DOT; j++) sum[i * DOT + j] =
                v_fma(q, k[j], sum[i * DOT + j]);
        }
    }
    if (d < head_dim)
        for (int j = 0; j < DOT; j++) {
            const vf k = v_load_first(key[j] + d, head_dim - d);
            EJKI_UNROLL for (int i = 0; i < rows; i++) sum[i * DOT + j] =
                v_fma(v_load(query + i * depth + d), k, sum[i * DOT + j]);
        }
    float all[DOT * DOT];
    EJKI_UNROLL for (int i = 0; i < DOT * DOT; i += VL) v_store(all + i, v_sums(sum + i));
    for (int i = 0; i < rows; i++)
        memcpy(scores + i * SCORE_STRIDE, all + i * DOT, sizeof(float) * DOT);
}

/* Raw scores of all rows of a key head with keys [key + low, key + high), into columns low, …. */
static void row_scores(row_task *task, int64_t kv_head, const float *query, int64_t key,
                       int64_t low, int64_t high) {
    const ejki_flash_problem *p = task->shared->problem;
    const row_plan *t = &task->shared->plan;
    const int64_t size = element_size(p->dtype);
    for (int64_t c = low; c < high; c += DOT) {
        const float *keys[DOT];
        for (int j = 0; j < DOT; j++)
            keys[j] = task->keys + ejki_min(c + j, high - 1) * task->key_stride;
        row_lines ahead = {keys[0], 0, 0};
        if (task->next_key) {
            ahead = (row_lines){task->next_key, VL * size, DOT * size};
            task->next_key += DOT * p->head_dim * size;
        } else if (task->ahead) {
            ahead = (row_lines){flash_key(p, task->batch, kv_head, key + c + task->ahead),
                                p->key.stride_t * size, size};
        }
        for (int64_t i = 0; i < t->rows; i += DOT, ahead = (row_lines){keys[0], 0, 0}) {
            const float *rows = query + i * t->depth;
            float *scores = task->scores + i * SCORE_STRIDE + c;
            const int64_t left = t->rows - i;
            if (left >= DOT)
                row_dots(rows, t->depth, keys, p->head_dim, scores, ahead, DOT);
            else if (left == 1)
                row_dots(rows, t->depth, keys, p->head_dim, scores, ahead, 1);
            else if (left == 2)
                row_dots(rows, t->depth, keys, p->head_dim, scores, ahead, 2);
            else
                row_dots(rows, t->depth, keys, p->head_dim, scores, ahead, 3);
        }
    }
}

/* Columns [first, end) of a row's scores become weights; its state follows. */
static void row_softmax(const row_task *task, const flash_row *r, int64_t key, int64_t first,
                        int64_t end, int64_t high, float *scores, float *state) {
    const row_shared *s = task->shared;
    scores += first;
    if (s->general) flash_modify(s->problem, r, key + first, high - first, scores, task->allowed);
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

static inline __attribute__((always_inline)) void
row_widen_of(const ejk_dtype dtype, const void *source, int64_t source_stride, int64_t rows,
             int64_t width, float *target, int64_t stride) {
    for (int64_t i = 0; i < rows; i++, target += stride) {
        const void *row = element_at(dtype, source, i * source_stride);
        int64_t d = 0;
        for (; d + VL <= width; d += VL)
            v_store(target + d, v_widen(dtype, element_at(dtype, row, d)));
        if (d < width)
            v_store(target + d, v_widen_first(dtype, element_at(dtype, row, d), width - d));
    }
}

/* Rows of elements as rows of floats, `stride` apart: width rounded up to VL, the rest of it 0. */
static void row_widen(ejk_dtype dtype, const void *source, int64_t source_stride, int64_t rows,
                      int64_t width, float *target, int64_t stride) {
    if (dtype == EJK_DTYPE_F32)
        row_widen_of(EJK_DTYPE_F32, source, source_stride, rows, width, target, stride);
    else if (dtype == EJK_DTYPE_BF16)
        row_widen_of(EJK_DTYPE_BF16, source, source_stride, rows, width, target, stride);
    else
        row_widen_of(EJK_DTYPE_F16, source, source_stride, rows, width, target, stride);
}

/* Finds the block's keys and values, of columns [low, high), widened where that has to be. */
static void row_find(row_task *task, int64_t kv_head, int64_t key, int64_t low, int64_t high) {
    const ejki_flash_problem *p = task->shared->problem;
    const row_plan *t = &task->shared->plan;
    if (p->dtype == EJK_DTYPE_F32) {
        task->keys = flash_key(p, task->batch, kv_head, key);
        task->key_stride = p->key.stride_t;
        task->values = flash_value(p, task->batch, kv_head, key);
        task->value_stride = p->value.stride_t;
        return;
    }
    task->keys = task->wide_keys;
    task->key_stride = t->depth;
    task->values = task->wide_values;
    task->value_stride = t->width;
    row_widen(p->dtype, flash_key(p, task->batch, kv_head, key + low), p->key.stride_t, high - low,
              p->head_dim, task->wide_keys + low * t->depth, t->depth);
    row_widen(p->dtype, flash_value(p, task->batch, kv_head, key + low), p->value.stride_t,
              high - low, p->value_dim, task->wide_values + low * t->width, t->width);
}

/* sums += weights · values over columns [low, high), values where they lie. */
static void row_add_values(row_task *task, int64_t kv_head, int64_t key, int64_t low, int64_t high,
                           float *states) {
    const ejki_flash_problem *p = task->shared->problem;
    const row_plan *t = &task->shared->plan;
    const int64_t stride = task->value_stride, size = element_size(p->dtype);
    const int64_t whole = p->value_dim / VL * VL, depth = high - low;
    const float *values = task->values + low * stride;
    for (int64_t i = 0, n; i < t->rows; i += n) {
        n = product_rows(t->rows - i);
        const float *weights = task->scores + i * SCORE_STRIDE + low;
        float *sums = states + i * t->state + STATE_SUMS;
        for (int64_t d = 0; d < whole; d += TILE_COLUMNS) {
            product_ahead ahead = {.line[0] = values};
            if (i == 0 && task->next_value) {
                ahead.line[0] = (const float *)(const void *)task->next_value;
                ahead.step = TILE_COLUMNS * size / (int64_t)sizeof(float);
                task->next_value += depth * TILE_COLUMNS * size;
            } else if (i == 0 && task->ahead) {
                ahead.line[0] = element_at(
                    p->dtype, flash_value(p, task->batch, kv_head, key + low + task->ahead), d);
                ahead.step = p->value.stride_t * size / (int64_t)sizeof(float);
            }
            product_values((int)n, ejki_min(TILE_COLUMNS, whole - d), depth, weights, values + d,
                           stride, sums + d, t->state, true, &ahead);
        }
        if (whole == p->value_dim) continue;
        for (int64_t c = 0; c < depth; c++) {
            const vf v = v_load_first(values + c * stride + whole, p->value_dim - whole);
            for (int64_t k = 0; k < n; k++) {
                float *sum = sums + k * t->state + whole;
                v_store(sum, v_fma(v_set1(weights[k * SCORE_STRIDE + c]), v, v_load(sum)));
            }
        }
    }
}

/* The same key by key over what each row sees and keeps: for other values that are not finite. */
static __attribute__((noinline)) void row_add_carefully(const row_task *task, int64_t kv_head,
                                                        int64_t key, int64_t low, int64_t high,
                                                        float *states) {
    const row_shared *s = task->shared;
    const ejki_flash_problem *p = s->problem;
    const row_plan *t = &s->plan;
    for (int64_t i = 0; i < t->rows; i++) {
        const flash_row r = flash_row_of(p, task->batch, kv_head, i);
        float *sums = states + i * t->state + STATE_SUMS;
        for (int64_t c = low; c < high; c++) {
            const float *values = task->values + c * task->value_stride;
            const float weight = task->scores[i * SCORE_STRIDE + c];
            if (!flash_sees(p, &r, key + c) || (s->drops && weight == 0)) continue;
            for (int64_t d = 0; d < p->value_dim; d += VL) {
                const int64_t width = ejki_min(VL, p->value_dim - d);
                const vf v = v_load_first(values + d, width);
                v_store(sums + d, v_fma(v_set1(weight), v, v_load(sums + d)));
            }
        }
    }
}

/* One block of keys for one key head. */
static void row_block(row_task *task, int64_t kv_head, const float *query, int64_t key,
                      int64_t count) {
    const row_shared *s = task->shared;
    const ejki_flash_problem *p = s->problem;
    const row_plan *t = &s->plan;
    int64_t low = count, high = 0, least = 0, most = count;
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
    row_find(task, kv_head, key, low, high);
    row_scores(task, kv_head, query, key, low, high);
    const int64_t first = low / (2 * VL) * (2 * VL), end = ejki_round_up(high, VL);
    float *states = row_state(s, task->batch, task->split, kv_head, 0);
    for (int64_t i = 0; i < t->rows; i++) {
        const flash_row r = flash_row_of(p, task->batch, kv_head, i);
        row_softmax(task, &r, key, first, end, high, task->scores + i * SCORE_STRIDE,
                    states + i * t->state);
    }
    bool finite = true;
    if (s->general || s->drops || least > low || most < high)
        for (int64_t c = low; c < high && finite; c++)
            finite = flash_is_finite(task->values + c * task->value_stride, p->value_dim);
    if (!finite)
        row_add_carefully(task, kv_head, key, low, high, states);
    else
        row_add_values(task, kv_head, key, low, high, states);
}

/* Settles what to ask for while the block at `key` is computed: the next one, if it is whole. */
static void row_look_ahead(row_task *task, int64_t key) {
    const ejki_flash_problem *p = task->shared->problem;
    const int64_t block = task->shared->plan.block, heads = task->heads;
    task->ahead = 0;
    task->next_key = task->next_value = NULL;
    if (key + 2 * block > p->keys) return;
    task->ahead = block;
    if (p->key.stride_t == heads * p->head_dim && (heads == 1 || p->key.stride_h == p->head_dim))
        task->next_key = flash_key(p, task->batch, task->first_head, key + block);
    if (p->value.stride_t == heads * p->value_dim &&
        (heads == 1 || p->value.stride_h == p->value_dim))
        task->next_value = flash_value(p, task->batch, task->first_head, key + block);
}

static void row_run_task(row_task *task) {
    const row_shared *s = task->shared;
    const ejki_flash_problem *p = s->problem;
    const row_plan *t = &s->plan;
    for (int64_t h = 0; h < task->heads; h++)
        for (int64_t i = 0; i < t->rows; i++) {
            const flash_row r = flash_row_of(p, task->batch, task->first_head + h, i);
            float *query = task->query + (h * t->rows + i) * t->depth;
            float *state = row_state(s, task->batch, task->split, r.kv_head, i);
            row_widen(p->dtype, flash_query(p, &r), 0, 1, p->head_dim, query, t->depth);
            memset(state, 0, (size_t)t->state * sizeof(float));
            state[STATE_REFERENCE] = state[STATE_MAXIMUM] = -INFINITY;
        }
    for (int64_t key = task->first; key < task->end; key += t->block) {
        const int64_t count = ejki_min(t->block, task->end - key);
        row_look_ahead(task, key);
        for (int64_t h = 0; h < task->heads; h++) {
            const int64_t head = task->first_head + h;
            row_block(task, head, task->query + h * t->rows * t->depth, key, count);
        }
    }
}

/* Joins the splits of a task's rows and writes them. */
static void row_merge(const row_task *task) {
    const row_shared *s = task->shared;
    const row_plan *t = &s->plan;
    for (int64_t h = task->first_head; h < task->first_head + task->heads; h++)
        for (int64_t i = 0; i < t->rows; i++) {
            float *whole = row_state(s, task->batch, 0, h, i);
            float top = whole[STATE_REFERENCE], sum = 0;
            for (int64_t n = 1; n < t->splits; n++)
                top = fmaxf(top, row_state(s, task->batch, n, h, i)[STATE_REFERENCE]);
            for (int64_t n = 0; n < t->splits; n++) {
                const float *part = row_state(s, task->batch, n, h, i);
                const float own = part[STATE_REFERENCE];
                /* A split that saw nothing has sum 0 but must not make -inf − -inf. */
                const float factor = own == top ? 1.0f : exp2f(own - top);
                sum += v_sum(v_load(part)) * factor;
                for (int64_t d = STATE_SUMS; d < t->state; d += VL) {
                    const vf kept = n == 0 ? v_zero() : v_load(whole + d);
                    v_store(whole + d, v_fma(v_load(part + d), v_set1(factor), kept));
                }
            }
            const flash_row r = flash_row_of(s->problem, task->batch, h, i);
            flash_write_row(s->problem, &r, whole + STATE_SUMS, t->width, t->width, top, top, sum);
        }
}

static void row_worker(void *argument, int64_t worker) {
    row_shared *s = argument;
    const ejki_flash_problem *p = s->problem;
    const row_plan *t = &s->plan;
    float *own = s->memory + worker * t->worker_floats;
    _Atomic int32_t *counts = (_Atomic int32_t *)(void *)(s->memory + t->count_at);
    for (;;) {
        const int64_t index = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
        if (index >= t->tasks) return;
        const int64_t part = index % t->parts, rest = index / t->parts;
        row_task task = {.shared = s,
                         .query = own + t->query_at,
                         .scores = own + t->score_at,
                         .wide_keys = own + t->key_at,
                         .wide_values = own + t->value_at,
                         .allowed = (uint8_t *)(void *)(own + t->allowed_at),
                         .batch = rest / t->splits,
                         .split = rest % t->splits,
                         .first_head = part * t->heads};
        task.heads = ejki_min(t->heads, p->kv_heads - task.first_head);
        task.first = task.split * t->split_keys;
        task.end = ejki_min(p->keys, task.first + t->split_keys);
        row_run_task(&task);
        if (atomic_fetch_add_explicit(&counts[task.batch * t->parts + part], 1,
                                      memory_order_acq_rel) == t->splits - 1)
            row_merge(&task);
    }
}

static bool row_applicable(const void *problem) {
    const ejki_flash_problem *p = problem;
    return p->queries <= ROW_LIMIT && p->queries * p->group <= ROW_LIMIT &&
           p->layout == EJKI_FLASH_DENSE && ejki_pattern_is_empty(&p->pattern);
}

static ejk_status row_prepare(const void *problem, const int64_t *parameters, int32_t threads,
                              ejk_launch *launch) {
    row_plan t;
    if (!row_plan_of(problem, parameters, threads, &t)) return flash_too_large(problem);
    launch->workers =
        flash_is_light(problem) ? 1 : (int32_t)ejki_max(1, ejki_min(threads, t.tasks));
    if (launch->workers != threads) (void)row_plan_of(problem, parameters, launch->workers, &t);
    launch->workspace_bytes = (size_t)t.bytes;
    return EJK_OK;
}

static ejk_status row_run(const ejk_run *run) {
    const ejki_flash_problem *p = run->problem;
    row_shared shared = {.problem = p,
                         .memory = run->workspace,
                         .general = flash_is_general(p),
                         .drops = p->dropout > 0};
    (void)row_plan_of(p, run->parameters, run->workers, &shared.plan);
    shared.scale = flash_scale(p);
    memset(shared.memory + shared.plan.count_at, 0,
           (size_t)(p->batch * shared.plan.parts) * sizeof(int32_t));
    if (run->workers == 1)
        row_worker(&shared, 0);
    else
        ejk_parallel_for(run->threads, run->workers, row_worker, &shared);
    return EJK_OK;
}

static const ejk_parameter row_parameters[] = {
    {"num_key_splits", 1, 65536, 1, 1, "parts the keys are split into, merged at the end"},
    {"blocksize_keys", 1, ROW_KEYS, 1, 32, "keys visited at a time"},
};

#define ROW_TEXT_OF(name)            #name
#define ROW_TEXT(name)               ROW_TEXT_OF(name)
#define ROW_SYMBOL_OF(element, tier) ejki_flash_attention_##element##_##tier##_row
#define ROW_SYMBOL(element, tier)    ROW_SYMBOL_OF(element, tier)
#define ROW_IMPLEMENTATION(element, element_type)                                                  \
    extern const ejk_implementation ROW_SYMBOL(element, ROW_TIER);                                 \
    const ejk_implementation ROW_SYMBOL(element, ROW_TIER) = {                                     \
        .algorithm = "flash_attention",                                                            \
        .name = #element "/" ROW_TEXT(ROW_TIER) "/row",                                            \
        .platform = EJK_PLATFORM_SIMD,                                                             \
        .backend = EJK_BACKEND_CPU,                                                                \
        .isa = ROW_ISA,                                                                            \
        .dtype = element_type,                                                                     \
        .priority = 10,                                                                            \
        .version = 1,                                                                              \
        .parameters = row_parameters,                                                              \
        .parameter_count = 2,                                                                      \
        .applicable = row_applicable,                                                              \
        .prepare = row_prepare,                                                                    \
        .run = row_run,                                                                            \
    }

ROW_IMPLEMENTATION(f32, EJK_DTYPE_F32);
ROW_IMPLEMENTATION(bf16, EJK_DTYPE_BF16);
ROW_IMPLEMENTATION(f16, EJK_DTYPE_F16);
