/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention forward, row-wise: for few query rows over many keys, as in decoding, where reading keys and values
 * once is all that matters.
 *
 * Nothing is packed: keys and values are read where they lie, those of 16 bits becoming floats in registers
 * (row_load16_body.h, row_f32_body.h) or, with TILE_BF16_DOT, operands of bf16 dots as they are (row_bf16_dot_body.h);
 * all else is f32. A task is a KV split of some KV heads of one batch entry. Blocks of keys are visited for all its
 * heads before the next block, so that in the [B,S,H,D] layout a block is one piece of memory, and the next block, of
 * this task or of the next, is prefetched meanwhile (row_plan_prefetch). With blocksize_heads above 1, a block is read
 * in the order of memory, all heads of a few keys before the next few, and prefetched at a distance of some KiB
 * (row_plan_near_prefetch): for processors whose hardware prefetcher follows one or two streams far better than four.
 * Scores are dot products of four rows with four keys in registers; softmax keeps a running max per row
 * (row_block_body.h).
 *
 * Splits are merged in their order by whoever finishes the last one of a batch entry's heads. Their
 * number comes from the configuration alone, so results do not depend on the number of threads; heads
 * per task does depend on it and changes nothing.
 *
 * row_shape.h says what gemm_body.h needs.
 */
#include "base/base.h"
#include "kernels/declare.h"
#include "operations/attention/flash/problem.h"

#include <string.h>

#include "operations/attention/cpu/row/row_block_body.h"
#include "operations/attention/shared/suggest.h"

/* More rows of a KV head than this are the tiled kernel's. */
#define ROW_LIMIT 8

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
    t.depth = ejki_round_up(p->head_dim, ROW_KEYS_PER_FMA * VL) / ROW_KEYS_PER_FMA;
    t.width = ejki_round_up(p->value_dim, ROW_KEYS_PER_FMA * VL);
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
    if (parameters[2] > 1 && !flash_is_general(p) && p->dropout == 0)
        t.side = ejki_min(parameters[2], t.heads);
    t.distance = parameters[4];
    bool fits = true;
    int64_t at = 0, ignored;
    fits &= row_add(&at, t.rows * t.heads, t.depth, &t.query_at);
    fits &= row_add(&at, ejki_max(1, t.side) * (t.rows + DOT), SCORE_STRIDE, &t.score_at);
    fits &= row_add(&at, t.block, 1, &t.visible_bytes_at);
    fits &= row_add(&at, 1, t.width, &t.row_at);
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

/* States of rows that have seen nothing. */
static void row_clear(const row_shared *s, float *states) {
    for (int64_t i = 0; i < s->plan.rows; i++, states += s->plan.state) {
        memset(states, 0, (size_t)s->plan.state * sizeof(float));
        states[STATE_RUNNING_MAX] = states[STATE_MAXIMUM] = -INFINITY;
    }
}

/* The task of an index: which keys of which heads. */
static void row_place(const row_shared *s, int64_t index, row_task *task) {
    const ejki_flash_problem *p = s->problem;
    const row_plan *t = &s->plan;
    const int64_t part = index % t->parts, rest = index / t->parts;
    task->batch = rest / t->splits;
    task->split = rest % t->splits;
    task->first_head = part * t->heads;
    task->heads = ejki_min(t->heads, p->kv_heads - task->first_head);
    task->first = task->split * t->split_keys;
    task->end = ejki_min(p->keys, task->first + t->split_keys);
}

static int64_t row_claim(row_shared *s) {
    return atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
}

/* The first block from `key` on of which a row of the task sees anything; the task's end if there is none. */
static int64_t row_seek(const row_task *task, int64_t key) {
    const row_shared *s = task->shared;
    const int64_t block = s->plan.block, end = ejki_min(task->end, s->high);
    for (key = ejki_max(key, s->low / block * block); key < end; key += block) {
        if (!s->hides) return key;
        for (int64_t h = 0; h < task->heads; h++)
            if (row_any_visible(task, task->first_head + h, key, ejki_min(block, end - key)))
                return key;
    }
    return task->end;
}

/* True if rows of the task's heads lie side by side, those of the next key after them. */
static bool row_is_dense(const row_task *task, const ejki_bthd *tensor, int64_t width) {
    return tensor->stride_t == task->heads * width &&
           (task->heads == 1 || tensor->stride_h == width);
}

/* The four streams of a block's prefetches; NULL if rows do not lie side by side. */
static row_prefetches row_prefetches_of_block(const row_task *task, int64_t key, int64_t count) {
    const ejki_flash_problem *p = task->shared->problem;
    const int64_t half = count / 2 * element_size(p->dtype);
    const bool second_level = task->shared->second_level;
    if (!row_is_dense(task, &p->key, p->head_dim) || !row_is_dense(task, &p->value, p->value_dim))
        return (row_prefetches){.second_level = second_level};
    const char *keys = flash_key(p, task->batch, task->first_head, key);
    const char *values = flash_value(p, task->batch, task->first_head, key);
    return (row_prefetches){
        .at = {keys, values, keys + half * p->key.stride_t, values + half * p->value.stride_t},
        .second_level = second_level};
}

/*
 * Prefetches at once a block that no block before it could prefetch, which takes as long as memory needs anyway. Few
 * keys may well be in a cache, where that would cost more than it gives. (Inline: gcc drops calls of functions
 * that do nothing but prefetch.)
 */
static inline __attribute__((always_inline)) void row_prefetch_block(const row_task *task,
                                                                     int64_t key, int64_t count) {
    const ejki_flash_problem *p = task->shared->problem;
    enum { FEW = 8 };
    const row_prefetches lines = row_prefetches_of_block(task, key, count);
    if (task->ready || !lines.at[0] || p->keys < FEW * task->shared->plan.block) return;
    const int64_t keys = lines.at[2] - lines.at[0], values = lines.at[3] - lines.at[1];
    for (int64_t i = 0; i < keys || i < values; i += 64)
        for (int j = 0; j < 4; j++)
            if (i < (j % 2 ? values : keys))
                row_prefetch(lines.at[j] + i, task->shared->second_level);
}

/*
 * Settles what to prefetch while the block at `key` is computed: the next one, if it is whole; at a task's
 * end the first one of the worker's next task, which is claimed for that.
 */
static void row_plan_prefetch(row_task *task, int64_t following, int64_t key) {
    const row_shared *s = task->shared;
    const ejki_flash_problem *p = s->problem;
    const int64_t block = s->plan.block;
    row_task next = *task;
    next.first = following;
    if (next.first >= task->end) {
        task->following = row_claim(task->shared);
        if (task->following < s->plan.tasks) {
            row_place(s, task->following, &next);
            next.first = row_seek(&next, next.first);
        }
    }
    task->key_distance = 0;
    task->prefetch = (row_prefetches){.second_level = s->second_level};
    task->ready = next.heads == task->heads && next.first + block <= next.end;
    if (!task->ready) return;
    task->prefetch = row_prefetches_of_block(&next, next.first, block);
    if (task->prefetch.at[0]) return;
    const char *next_key = flash_key(p, next.batch, next.first_head, next.first);
    const char *next_value = flash_value(p, next.batch, next.first_head, next.first);
    const char *own_key = flash_key(p, task->batch, task->first_head, key);
    const char *own_value = flash_value(p, task->batch, task->first_head, key);
    task->key_distance = (int64_t)((uintptr_t)next_key - (uintptr_t)own_key);
    task->prefetch.distance = (int64_t)((uintptr_t)next_value - (uintptr_t)own_value);
}

/*
 * The same for heads side by side: keys and values at the prefetch distance behind those at hand, at least a step, just
 * before they are read. With a distance given, values too are prefetched in the order of memory, not of their heads.
 */
static void row_plan_near_prefetch(row_task *task, int64_t key) {
    const row_shared *s = task->shared;
    const ejki_flash_problem *p = s->problem;
    const int64_t size = element_size(p->dtype), given = s->plan.distance;
    const int64_t key_step = DOT * p->key.stride_t * size;
    const int64_t value_step = ROW_PV_UNROLL * p->value.stride_t * size;
    const char *keys = flash_key(p, task->batch, task->first_head, key);
    const char *values = flash_value(p, task->batch, task->first_head, key);
    const bool all = task->heads <= s->plan.side;
    task->key_distance = ejki_max(given > 0 ? given : ROW_KEY_DISTANCE, key_step);
    task->prefetch =
        (row_prefetches){.distance = ejki_max(given > 0 ? given : ROW_VALUE_DISTANCE, value_step),
                         .second_level = s->second_level};
    task->next_keys = NULL;
    if (all && row_is_dense(task, &p->key, p->head_dim))
        task->next_keys = (const char *)((uintptr_t)keys + (uintptr_t)task->key_distance);
    if (all && given > 0 && row_is_dense(task, &p->value, p->value_dim))
        task->prefetch.next =
            (const char *)((uintptr_t)values + (uintptr_t)task->prefetch.distance);
}

/* Queries of the task's heads as the products want them, and empty states. */
static void row_begin(row_task *task) {
    const row_shared *s = task->shared;
    const ejki_flash_problem *p = s->problem;
    const row_plan *t = &s->plan;
    for (int64_t h = 0; h < task->heads; h++) {
        const int64_t head = task->first_head + h;
        for (int64_t i = 0; i < t->rows; i++) {
            const flash_row r = flash_row_of(p, task->batch, head, i);
            row_pack_query(p, flash_query(p, &r), task->query + (h * t->rows + i) * t->depth);
        }
        row_clear(s, row_state(s, task->batch, task->split, head, 0));
    }
}

static void row_run_task(row_task *task) {
    const row_shared *s = task->shared;
    const row_plan *t = &s->plan;
    row_begin(task);
    for (int64_t key = row_seek(task, task->first), following; key < task->end; key = following) {
        const int64_t count = ejki_min(t->block, task->end - key);
        const row_span span = row_span_of(task, key, count);
        following = row_seek(task, key + t->block);
        if (t->side > 0) {
            row_plan_near_prefetch(task, key);
        } else {
            row_prefetch_block(task, key, count);
            row_plan_prefetch(task, following, key);
        }
        if (span.low >= span.high) continue;
        const bool partial = span.least > span.low || span.most < span.high;
        const int64_t side = partial ? 0 : t->side;
        for (int64_t h = 0; side > 0 && h < task->heads; h += side)
            row_block_in_order(task, h, ejki_min(side, task->heads - h), key, span);
        for (int64_t h = 0; side == 0 && h < task->heads; h++) row_block(task, h, key, count, span);
    }
}

/* Joins the splits of a task's rows and writes them. */
static void row_merge(const row_task *task) {
    const row_shared *s = task->shared;
    const ejki_flash_problem *p = s->problem;
    const row_plan *t = &s->plan;
    for (int64_t h = task->first_head; h < task->first_head + task->heads; h++)
        for (int64_t i = 0; i < t->rows; i++) {
            float *whole = row_state(s, task->batch, 0, h, i);
            float top = whole[STATE_RUNNING_MAX], sum = 0;
            for (int64_t n = 1; n < t->splits; n++)
                top = fmaxf(top, row_state(s, task->batch, n, h, i)[STATE_RUNNING_MAX]);
            for (int64_t n = 0; n < t->splits; n++) {
                const float *part = row_state(s, task->batch, n, h, i);
                const float own = part[STATE_RUNNING_MAX];
                /* A split that saw nothing has sum 0 but must not make -inf − -inf. */
                const float factor = own == top ? 1.0f : exp2f(own - top);
                sum += v_sum(v_load(part)) * factor;
                for (int64_t d = STATE_TOTALS; d < t->state; d += VL) {
                    const vf kept = n == 0 ? v_zero() : v_load(whole + d);
                    v_store(whole + d, v_fma(v_load(part + d), v_set1(factor), kept));
                }
            }
            const flash_row r = flash_row_of(p, task->batch, h, i);
            const float *sums = row_sort(p, whole + STATE_SUMS, task->row);
            const flash_common common = flash_common_of(p, r.head);
            flash_write_row(p, &r, &common, sums, t->width, t->width, top, top, sum,
                            row_total(whole, sum));
        }
}

static void row_worker(void *argument, int64_t worker) {
    row_shared *s = argument;
    const row_plan *t = &s->plan;
    float *own = s->memory + worker * t->worker_floats;
    _Atomic int32_t *counts = (_Atomic int32_t *)(void *)(s->memory + t->count_at);
    row_task task = {.shared = s,
                     .query = own + t->query_at,
                     .scores = own + t->score_at,
                     .row = own + t->row_at,
                     .visible_bytes = (uint8_t *)(void *)(own + t->visible_bytes_at),
                     .following = -1};
    for (;;) {
        const int64_t index = task.following >= 0 ? task.following : row_claim(s);
        if (index >= t->tasks) break;
        task.following = -1;
        row_place(s, index, &task);
        row_run_task(&task);
        const int64_t group = index / t->parts / t->splits * t->parts + index % t->parts;
        if (atomic_fetch_add_explicit(&counts[group], 1, memory_order_acq_rel) == t->splits - 1)
            row_merge(&task);
    }
}

static bool row_applicable(const void *problem) {
    const ejki_flash_problem *p = problem;
    return p->queries <= ROW_LIMIT && p->queries * p->group <= ROW_LIMIT &&
           p->layout == EJKI_FLASH_DENSE && ejki_block_mask_is_empty(&p->block_mask) &&
           (ROW_KEYS_PER_FMA == 1 || p->normalize);
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
                         .drops = p->dropout > 0,
                         .hides = flash_hides_keys(p),
                         .second_level = run->parameters[3] != 0,
                         .low = p->keys};
    for (int64_t i = 0; i < p->queries; i++) {
        int64_t first, end;
        ejki_flash_visible(p, i, &first, &end);
        if (first >= end) continue;
        shared.low = ejki_min(shared.low, first);
        shared.high = ejki_max(shared.high, end);
    }
    (void)row_plan_of(p, run->parameters, run->workers, &shared.plan);
    shared.scale = flash_scale(p);
    shared.cap = flash_cap_of(p);
    memset(shared.memory + shared.plan.count_at, 0,
           (size_t)(p->batch * shared.plan.parts) * sizeof(int32_t));
    if (run->workers == 1)
        row_worker(&shared, 0);
    else
        ejk_parallel_for(run->threads, run->workers, row_worker, &shared);
    return EJK_OK;
}

#ifdef TILE_BF16_DOT
#define ROW_SUGGEST ejki_row_suggest_bf16_dot
#else
#define ROW_SUGGEST ejki_row_suggest
#endif

static const ejk_parameter row_parameters[] = {
    {"num_key_splits", 1, 65536, 1, 1, "parts the keys are split into, merged at the end"},
    {"blocksize_keys", 1, ROW_KEYS, 1, 32, "keys visited at a time"},
    {"blocksize_heads", 1, ROW_SIDE, 1, 1, "KV heads visited side by side, key by key, if not 1"},
    {"prefetch_hint", 0, 1, 1, 0, "0: prefetch into the first-level cache; 1: into the second"},
    {"prefetch_bytes", 0, 1 << 20, 64, 0,
     "prefetch distance with heads side by side; 0: 8, 16 KiB"},
};

EJKI_DECLARE(EJKI_THIS_LINE, .priority = 10, .version = 1, .parameters = row_parameters,
             .suggest = ROW_SUGGEST, .parameter_count = 5, .applicable = row_applicable,
             .prepare = row_prepare, .run = row_run)
