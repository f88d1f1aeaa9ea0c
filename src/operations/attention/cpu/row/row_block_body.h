/* SPDX-License-Identifier: Apache-2.0 */
/* The row-wise kernel at one block of keys for one KV head: scores, softmax, weights times values. */
#ifndef EJKI_FLASH_ROW_BLOCK_BODY_H
#define EJKI_FLASH_ROW_BLOCK_BODY_H

#include "operations/attention/cpu/row/row_shape.h"

#ifdef TILE_BF16_DOT
#include "operations/attention/cpu/row/row_bf16_dot_body.h"
#else
#include "operations/attention/cpu/row/row_f32_body.h"
#endif

/* Columns [first, end) of a row's scores become weights; its state follows. */
static void row_softmax(const row_task *task, const flash_row *r, int64_t key, int64_t first,
                        int64_t end, int64_t high, float *scores, float *state) {
    const row_shared *s = task->shared;
    float *own = scores + first;
    if (s->general)
        flash_modify(s->problem, &s->cap, r, key + first, high - first, own, task->visible_bytes);
    if (r->first > key + first || r->end < key + end) flash_hide(r, key + first, end - first, own);
    const float top = flash_maximum(own, end - first) * s->scale;
    if (top > state[STATE_RUNNING_MAX]) {
        const vf factor = v_set1(exp2f(state[STATE_RUNNING_MAX] - top));
        v_store(state, v_mul(v_load(state), factor));
        for (int64_t d = STATE_TOTALS; d < s->plan.state; d += VL)
            v_store(state + d, v_mul(v_load(state + d), factor));
        state[STATE_RUNNING_MAX] = state[STATE_MAXIMUM] = top;
    }
    v_store(state,
            flash_weights(own, end - first, s->scale, state[STATE_RUNNING_MAX], v_load(state)));
    row_end_weights(s, r, key, first, end, scores, state);
}

/* True if a row of the KV head sees any of the keys [key, key + count). */
static bool row_any_visible(const row_task *task, int64_t kv_head, int64_t key, int64_t count) {
    const row_shared *s = task->shared;
    for (int64_t i = 0; i < s->plan.rows; i++) {
        const flash_row r = flash_row_of(s->problem, task->batch, kv_head, i);
        if (flash_any_visible(s->problem, &r, key, key + count, task->visible_bytes)) return true;
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
    span.low = ejki_max(span.low, 0) / ROW_KEYS_PER_FMA * ROW_KEYS_PER_FMA;
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
    const int64_t first = span.low / (2 * VL) * (2 * VL),
                  end = ejki_round_up(span.high, ROW_KEYS_PER_FMA * VL);
    for (int64_t i = 0; i < s->plan.rows; i++) {
        const flash_row r = flash_row_of(s->problem, task->batch, head->index, i);
        row_softmax(task, &r, key, first, end, span.high, head->scores + i * SCORE_STRIDE,
                    head->states + i * s->plan.state);
    }
}

/* True if a raw score of a head is -inf: its key is hidden where nothing else hides any. */
static inline bool row_any_hidden(const row_shared *s, const row_head *head, row_span span) {
    bool hidden = false;
    for (int64_t i = 0; ROW_KEYS_PER_FMA == 1 && i < s->plan.rows; i++)
        hidden |=
            flash_any_hidden(head->scores + i * SCORE_STRIDE + span.low, span.high - span.low);
    return hidden;
}

/* One block of keys for one head of the task. */
static void row_block(row_task *task, int64_t n, int64_t key, int64_t count, row_span span) {
    const row_shared *s = task->shared;
    const row_head head = row_head_of(task, n, 0, key);
    if (s->hides && !row_any_visible(task, head.index, key, count)) return;
    row_scores(task, &head, span.low, span.high);
    const bool hides = s->general || s->drops || span.least > span.low || span.most < span.high ||
                       row_any_hidden(s, &head, span);
    row_weigh(task, &head, key, span);
    row_add_block(task, &head, span.low, span.high, hides);
}

/* One block of keys, all of which all rows see, for `heads` heads side by side: read as it lies in memory. */
static void row_block_in_order(row_task *task, int64_t n, int64_t heads, int64_t key,
                               row_span span) {
    row_head head[ROW_SIDE];
    head[0] = row_head_of(task, n, 0, key);
    for (int64_t h = 1; h < heads; h++) head[h] = row_head_of(task, n + h, h, key);
    row_scores_side(task, head, heads, span.low, span.high);
    bool hides = false;
    for (int64_t h = 0; h < heads; h++) {
        hides |= row_any_hidden(task->shared, &head[h], span);
        row_weigh(task, &head[h], key, span);
    }
    int64_t c = span.low;
    for (; !hides && c + ROW_PV_UNROLL <= span.high; c += ROW_PV_UNROLL)
        row_add_side(task, head, heads, c);
    for (int64_t h = 0; c < span.high && h < heads; h++)
        row_add_block(task, &head[h], c, span.high, hides);
}

#endif
