/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of flash attention, tiled. vjp_problem.h has the formulas. Tensors are f32, bf16 or f16; packing makes
 * floats of them, everything after is f32, and results are rounded once. With TILE_BF16_DOT products are of bf16 as
 * it is, weights and dS rounded to it (vjp_bf16_dot.h).
 *
 * The rows of a KV head, T queries times G query heads, are one list, cut into blocks; so are the keys. A task is a
 * block of keys of a KV head: its keys and values are packed once, and the gradients of both are summed in the
 * worker's memory while blocks of rows follow in order. Of a block of rows and a panel of keys
 *
 *     weights = exp(query · keyᵀ − lse)              d_value += weightsᵀ · cotangent
 *     dS = weights ∘ (cotangent · valueᵀ − δ)        d_key += dSᵀ · query
 *
 * are made while both lie in the first-level cache; after the last panel, d_query += dS · key, straight into the
 * result, whose rows were 0, or in 16 bits into an f32 copy of it. These sums have many writers: a block of rows
 * takes contributions in the order of blocks of keys, each task waiting for the one before. Tasks are handed out in
 * that order, so the one that is waited for always runs; they soon run one block behind the other and hardly wait at
 * all.
 *
 * So nothing depends on the number of threads, and memory is that of a task per thread, two numbers per row and a
 * counter per block of rows. A d_bias that is summed over heads or batch entries has tasks that take a block of keys
 * of all of them; such columns have one writer.
 *
 * Hidden keys. A hidden weight is an exact 0, and so is its dS, whatever was computed there. 0 · inf would still be
 * NaN, so packing notes what is not finite; sums then skip coefficients of 0.
 */
#include "base/base.h"
#include "kernels/declare.h"
#include "operations/attention/cpu/backward/vjp_panel.h"
#include "operations/attention/shared/sequences.h"
#include "operations/attention/shared/suggest.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

/* ---- A task's keys --------------------------------------------------------------------------------- */

static void vjp_pack_keys(vjp_worker *w) {
    const ejki_flash_problem *p = &w->own.forward;
    const vjp_plan *t = &w->plan;
    const int64_t panel_stride = t->keys * TILE_COLUMNS, count = w->key_end - w->key;
    vjp_probe transposed = vjp_probe_none(), probe = vjp_probe_none();
    transposed = vjp_pack_transposed(p->dtype, flash_key(p, 0, w->kv_head, w->key), p->key.stride_t,
                                     count, p->head_dim, w->keys_transposed, transposed);
    if (t->wants_d_scores)
        transposed =
            vjp_pack_transposed(p->dtype, flash_value(p, 0, w->kv_head, w->key), p->value.stride_t,
                                count, p->value_dim, w->values_transposed, transposed);
    w->keys_small = vjp_is_small(transposed);
    for (int64_t j = 0; w->own.wants_query && j < w->panels * TILE_COLUMNS; j += VJP_DEPTH) {
        const void *row[VJP_DEPTH] = {NULL};
        for (int64_t n = 0; n < VJP_DEPTH && j + n < count; n++)
            row[n] = flash_key(p, 0, w->kv_head, w->key + j + n);
        probe = vjp_pack(p->dtype, row, p->head_dim, NULL, 0,
                         w->keys + j / VJP_DEPTH * TILE_COLUMNS, panel_stride / VJP_DEPTH, probe);
    }
    w->keys_finite = vjp_is_finite(probe);
    memset(w->d_keys, 0, (size_t)(panel_stride * t->head_panels) * sizeof(float));
    memset(w->d_values, 0, (size_t)(panel_stride * t->value_panels) * sizeof(float));
}

/* Writes factor times the sums of the task's keys. */
static void vjp_write_keys(const vjp_worker *w, const ejki_bthd *target, const float *sums,
                           int64_t width, float factor) {
    const int64_t panel_stride = w->plan.keys * TILE_COLUMNS;
    const ejk_dtype dtype = w->own.forward.dtype;
    const vf scale = v_set1(factor);
    enum { AHEAD = 8 };
    for (int64_t key = w->key; key < w->key_end; key++, sums += TILE_COLUMNS) {
        char *out = flash_key_at(target, dtype, 0, w->kv_head, key);
        if (key + AHEAD < w->key_end) /* rows of a head lie apart: nobody else prefetches them */
            for (int64_t n = 0; n < width * element_size(dtype); n += 64)
                __builtin_prefetch(
                    (char *)flash_key_at(target, dtype, 0, w->kv_head, key + AHEAD) + n, 1, 2);
        for (int64_t d = 0; d < width; d += VL) {
            const vf v =
                v_mul(v_load(sums + d / TILE_COLUMNS * panel_stride + d % TILE_COLUMNS), scale);
            v_narrow_some(dtype, element_at(dtype, out, d), v, width - d);
        }
    }
}

/* ---- Gradients of queries -------------------------------------------------------------------------- */

/* Adds scale times a tile's columns to rows of d_query, or to their sums; or stores them. */
static void vjp_add_queries(const vjp_worker *w, const vjp_tile *tile, int64_t column,
                            int64_t width) {
    const int64_t first = w->first_row + w->row + tile->first;
    const vf scale = v_set1(w->block.scale);
    for (int64_t i = 0; i < tile->rows; i++) {
        const flash_row *r = &w->block.row[tile->first + i];
        float *out = vjp_query_sum(w->shared, &w->own, r, first + i) + column;
        for (int64_t j = 0; j < width; j += VL) {
            const vf v = v_load(w->tile + i * TILE_COLUMNS + j);
            const vf before =
                w->stores ? v_zero() : v_widen_some(EJK_DTYPE_F32, out + j, width - j);
            v_narrow_some(EJK_DTYPE_F32, out + j, v_fma(v, scale, before), width - j);
        }
    }
}

/* A tile without visible keys in the first task of its block of rows: stores zeros. */
static void vjp_store_nothing(const vjp_worker *w, const vjp_tile *tile, int64_t column,
                              int64_t width) {
    memset(w->tile, 0, TILE_ROWS * TILE_COLUMNS * sizeof(float));
    vjp_add_queries(w, tile, column, width);
}

/* dS · keys of a tile, `width` columns, where coefficients of 0 count nowhere. */
static void vjp_skipping(const vjp_worker *w, const vjp_tile *tile, vjp_range panels,
                         int64_t column, int64_t width) {
    const vjp_plan *t = &w->plan;
    const ejki_flash_problem *p = &w->own.forward;
    const int64_t panel_stride = t->row_step * TILE_COLUMNS, left = w->key_end - w->key;
    const int64_t end = ejki_min(panels.end * TILE_COLUMNS, left);
    memset(w->tile, 0, TILE_ROWS * TILE_COLUMNS * sizeof(float));
    for (int64_t j = panels.first * TILE_COLUMNS; j < end; j++) {
        const float *d_scores = w->d_scores + j / TILE_COLUMNS / VJP_DEPTH * panel_stride;
        const void *key = element_at(p->dtype, flash_key(p, 0, w->kv_head, w->key + j), column);
        for (int64_t i = 0; i < tile->rows; i++) {
            const float d_score =
                vjp_along(d_scores, tile->first + i, j % (TILE_COLUMNS * VJP_DEPTH));
            if (d_score != 0)
                vjp_add_row(d_score, p->dtype, key, width, w->tile + i * TILE_COLUMNS, 0);
        }
    }
}

/* dS · keys of a tile, up to the last column that any row sees. */
static void vjp_change(const vjp_worker *w, const vjp_tile *tile, vjp_range panels, int64_t column,
                       int64_t width) {
    const vjp_plan *t = &w->plan;
    const int64_t panel_stride = t->row_step * TILE_COLUMNS, lanes = TILE_COLUMNS / VJP_DEPTH;
    const int64_t first = panels.first / VJP_DEPTH, last = panels.end - 1;
    const int64_t visible = 32 - __builtin_clz(tile->any[last]);
    const int64_t depth = last * lanes - first * TILE_COLUMNS + ejki_cdiv(visible, VJP_DEPTH);
    const vjp_product raw = w->block.exact ? vjp_raw_exact((int)tile->rows)
                            : width > VL   ? vjp_raw((int)tile->rows)
                                           : vjp_raw_one((int)tile->rows);
    raw(depth, w->d_scores + first * panel_stride + tile->first * TILE_COLUMNS, panel_stride,
        w->keys + column * t->keys / VJP_DEPTH + first * TILE_COLUMNS * TILE_COLUMNS, w->tile, NULL,
        NULL, 0);
}

/* Panels from one on that the tile sees some of and that add to d_query at once; none if there are no more. */
static vjp_range vjp_step_from(const vjp_worker *w, const vjp_tile *tile, int64_t panel) {
    const int64_t step = w->plan.query_panels;
    panel = ejki_max(panel, tile->first_panel);
    while (panel < tile->end_panel && tile->any[panel] == 0) panel++;
    vjp_range panels = {panel, ejki_min(tile->end_panel, (panel / step + 1) * step)};
    while (panels.end > panels.first && tile->any[panels.end - 1] == 0) panels.end--;
    return panels;
}

static void vjp_queries(vjp_worker *w) {
    const ejki_flash_problem *p = &w->own.forward;
    for (int64_t d = 0; d < p->head_dim; d += TILE_COLUMNS) {
        const int64_t width = ejki_min(TILE_COLUMNS, p->head_dim - d);
        for (const vjp_tile *tile = w->block.tile; tile < w->block.tile_end; tile++) {
            if (tile->end_panel == 0) {
                if (w->stores) vjp_store_nothing(w, tile, d, width);
                continue;
            }
            for (vjp_range panels = vjp_step_from(w, tile, 0); panels.first < panels.end;
                 panels = vjp_step_from(w, tile, panels.end)) {
                if (w->keys_finite)
                    vjp_change(w, tile, panels, d, width);
                else
                    vjp_skipping(w, tile, panels, d, width);
                vjp_add_queries(w, tile, d, width);
            }
        }
    }
}

/* Waits until a block of rows has all sums of the blocks of keys before. */
static void vjp_wait(_Atomic int32_t *counter, int64_t previous) {
    for (int64_t tries = 0; atomic_load_explicit(counter, memory_order_acquire) != previous;
         tries++)
        if (tries % 256 == 255) sched_yield();
}

/* ---- Tasks ----------------------------------------------------------------------------------------- */

/* True if a row of the block has keys of the task by position and block mask. Leaves its mask blocks. */
static bool vjp_task_has_rows(const vjp_worker *w, int64_t row_block) {
    const ejki_flash_problem *p = &w->own.forward;
    const vjp_range rows = vjp_block_rows(&w->plan, row_block);
    int64_t low, high;
    vjp_extent(p, rows.first, rows.end - rows.first, &low, &high);
    if (low >= high || low >= w->key_end || high <= w->key) return false;
    return vjp_find_mask_blocks(p, w->kv_head, rows.first / p->group, w->key, w->block.mask_blocks,
                                w->block.mask_block);
}

/* Zeros d_bias where tiles have no visible key in some panels; vjp_begin() does that of other tasks. */
static void vjp_zero_hidden_bias(const vjp_worker *w) {
    for (const vjp_tile *tile = w->block.tile; tile < w->block.tile_end; tile++)
        for (int64_t first = 0, end; first < w->panels; first = end + 1) {
            for (end = first; end < w->panels && tile->any[end] == 0;) end++;
            if (first == end) continue;
            const int64_t key = w->key + first * TILE_COLUMNS;
            const int64_t count = ejki_min(w->key + end * TILE_COLUMNS, w->key_end) - key;
            for (int64_t i = tile->first; i < tile->first + tile->rows; i++)
                vjp_zero_bias(vjp_bias_address(&w->block, &w->block.row[i], key),
                              count * element_size(w->own.forward.dtype), w->block.bias_streams);
        }
}

/* The last block of rows up to `row_block` that has keys of the task; −1 if there is none. */
static int64_t vjp_next(const vjp_worker *w, int64_t row_block) {
    while (row_block >= 0 && !vjp_task_has_rows(w, row_block)) row_block--;
    return row_block;
}

/* The block of keys whose sums come before those of the task in a block of rows: one more than its index, or 0. */
static int64_t vjp_previous_key_block(const vjp_worker *w, int64_t row_block) {
    const ejki_flash_problem *p = &w->own.forward;
    const vjp_range rows = vjp_block_rows(&w->plan, row_block);
    int64_t low, high;
    vjp_extent(p, rows.first, rows.end - rows.first, &low, &high);
    for (int64_t block = w->key_block; block > 0; block--) {
        const vjp_range keys = vjp_block_keys(&w->plan, block - 1);
        if (keys.end <= low) break;
        if (vjp_find_mask_blocks(p, w->kv_head, rows.first / p->group, keys.first,
                                 w->block.mask_blocks, w->block.mask_block))
            return block;
    }
    return 0;
}

/* A block of rows that has keys of the task. */
static void vjp_rows(vjp_worker *w, int64_t row_block) {
    const vjp_shared *shared = w->shared;
    const vjp_plan *t = &w->plan;
    const ejki_flash_vjp_problem *v = &w->own;
    const vjp_range rows = vjp_block_rows(t, row_block);
    w->row = rows.first;
    w->count = rows.end - rows.first;
    const int64_t statistics = w->first_row + w->row;
    w->block.lse = shared->lse + statistics;
    w->block.delta = shared->delta + statistics;
    for (int64_t i = 0; i < w->count; i++) {
        flash_row *r = &w->block.row[i];
        *r = flash_row_of(&v->forward, 0, w->kv_head, w->row + i);
        if (w->block.lse[i] == -INFINITY) r->first = r->end = 0;
    }
    (void)vjp_find_mask_blocks(&v->forward, w->kv_head, w->row / v->forward.group, w->key,
                               w->block.mask_blocks, w->block.mask_block);
    vjp_cut(&w->block, w->count);
    const int64_t visible = vjp_find_visible(&w->block);
    if (w->block.bias_once) vjp_zero_hidden_bias(w);
    if (visible > 0) {
        vjp_pack_rows(w);
        vjp_list(w, visible);
        vjp_find_bias(&w->block, w->count);
        for (int64_t panel = 0; panel < w->panels; panel++) vjp_panel(w, panel);
    }
    if (!v->wants_query) return;
    _Atomic int32_t *counter = w->progress + row_block;
    const int64_t previous = vjp_previous_key_block(w, row_block);
    w->stores = t->stores_first && previous == 0;
    if (shared->workers > 1) vjp_wait(counter, previous);
    if (visible > 0 || w->stores) vjp_queries(w);
    atomic_store_explicit(counter, (int32_t)(w->key_block + 1), memory_order_release);
}

static void vjp_task(vjp_worker *w, int64_t sequence, int64_t kv_head, int64_t key_block) {
    vjp_enter(w, sequence);
    const ejki_flash_vjp_problem *v = &w->own;
    const ejki_flash_problem *p = &v->forward;
    const vjp_plan *t = &w->plan;
    const ejki_vjp_sequence *s = &w->shared->tasks.sequence[sequence];
    w->kv_head = kv_head;
    w->first_row = s->first_row + kv_head * s->rows;
    w->progress = w->shared->progress + s->first_row_block + kv_head * s->row_blocks;
    w->key_block = key_block;
    const vjp_range keys = vjp_block_keys(t, key_block);
    w->block.key = w->key = keys.first;
    w->block.end = w->key_end = keys.end;
    w->panels = ejki_cdiv(w->key_end - w->key, TILE_COLUMNS);
    vjp_find_segments(&w->block, 0);
    vjp_pack_keys(w);
    /* From the last rows on: the next block of keys, which in a causal call begins with later rows, then finds
     * that those before it have been there. */
    for (int64_t block = vjp_next(w, t->row_blocks - 1); block >= 0;) {
        const int64_t next = vjp_next(w, block - 1);
        w->next_row = next >= 0 ? vjp_block_rows(t, next).first : t->all_rows;
        vjp_rows(w, block);
        block = next;
    }
    if (v->wants_key) vjp_write_keys(w, &v->d_key, w->d_keys, p->head_dim, w->block.scale);
    if (v->wants_value) vjp_write_keys(w, &v->d_value, w->d_values, p->value_dim, 1);
}

/* ---- Gradients of the bias ------------------------------------------------------------------------- */

/* Rounds the sums of a block of keys to the gradient of a batch entry's and KV head's bias. */
static void vjp_write_bias(const vjp_worker *w, int64_t batch, int64_t kv_head, vjp_range keys) {
    const ejki_flash_vjp_problem *v = w->shared->problem;
    const ejki_bias_gradient *bias = &v->d_bias;
    const vjp_plan *t = &w->shared->plan;
    const ejk_dtype dtype = v->forward.dtype;
    const int64_t count = keys.end - keys.first;
    const float *sums = w->block.bias;
    for (int64_t h = 0; h < t->bias_heads; h++)
        for (int64_t i = 0; i < t->bias_queries; i++, sums += t->keys) {
            const int64_t head = kv_head * v->forward.group + h;
            void *out = element_at(dtype, bias->data,
                                   batch * bias->stride_b + head * bias->stride_h +
                                       i * bias->stride_t + keys.first);
            for (int64_t j = 0; j < count; j += VL)
                v_narrow_some(dtype, element_at(dtype, out, j), v_load(sums + j), count - j);
        }
}

/* A block of keys of all heads that add to the same elements of the bias. */
static void vjp_bias_group(vjp_worker *w, int64_t bias_group, int64_t key_block) {
    const vjp_shared *shared = w->shared;
    const ejki_flash_problem *p = &shared->problem->forward;
    const vjp_plan *t = &shared->plan;
    const int64_t kv_heads = t->sums_heads ? 1 : p->kv_heads;
    const int64_t batch = bias_group / kv_heads, kv_head = bias_group % kv_heads;
    const vjp_range keys = vjp_block_keys(t, key_block);
    w->block.bias_key = keys.first;
    if (w->block.bias)
        memset(w->block.bias, 0,
               (size_t)(t->bias_heads * t->bias_queries * t->keys) * sizeof(float));
    for (int64_t b = batch; b < (t->sums_batches ? p->batch : batch + 1); b++)
        for (int64_t h = kv_head; h < (t->sums_heads ? p->kv_heads : kv_head + 1); h++)
            if (key_block < shared->tasks.sequence[b].key_blocks) vjp_task(w, b, h, key_block);
    if (w->block.bias) vjp_write_bias(w, batch, kv_head, keys);
}

/* ---- Workers --------------------------------------------------------------------------------------- */

/* A worker takes tasks in order until none is left. */
static void vjp_work(void *argument, int64_t index) {
    vjp_shared *shared = argument;
    const vjp_plan *t = &shared->plan;
    const bool joins = shared->problem->wants_bias;
    const int64_t count = joins ? t->bias_groups * t->key_blocks : shared->tasks.count;
    ejki_vjp_task task = {.at = 0};
    vjp_worker w;
    vjp_bind(&w, shared, index);
    for (;;) {
        const int64_t next = atomic_fetch_add_explicit(&shared->next, 1, memory_order_relaxed);
        if (next >= count) break;
        if (joins) {
            vjp_bias_group(&w, next % t->bias_groups, next / t->bias_groups);
        } else {
            ejki_vjp_go(&shared->tasks, next, shared->workers, &task);
            vjp_task(&w, task.sequence, task.kv_head, task.key_block);
        }
    }
    v_streamed();
}

/* ---- The implementation ---------------------------------------------------------------------------- */

static ejk_status vjp_prepare(const void *problem, const int64_t *parameters, int32_t threads,
                              ejk_launch *launch) {
    const ejki_flash_vjp_problem *v = problem;
    const vjp_plan t = vjp_plan_of(v, parameters);
    if (t.bytes >= VJP_LIMIT) return flash_too_large(&v->forward);
    launch->workers =
        flash_is_light(&v->forward)
            ? 1
            : (int32_t)ejki_max(1, ejki_min(threads, ejki_min(t.tasks, t.most_workers)));
    launch->workspace_bytes =
        (size_t)(t.bytes + launch->workers * t.worker_floats * (int64_t)sizeof(float));
    return EJK_OK;
}

static void vjp_all(vjp_shared *shared, ejk_threads *threads, void (*step)(void *, int64_t)) {
    if (shared->workers == 1)
        step(shared, 0);
    else
        ejk_parallel_for(threads, shared->workers, step, shared);
}

static ejk_status vjp_run(const ejk_run *run) {
    vjp_shared shared = {.problem = run->problem, .workers = run->workers};
    const ejki_flash_vjp_problem *v = shared.problem;
    shared.plan = vjp_plan_of(v, run->parameters);
    const vjp_plan *t = &shared.plan;
    shared.workers_memory = run->workspace;
    shared.lse = shared.workers_memory + run->workers * t->worker_floats;
    shared.delta = shared.lse + t->delta_at;
    shared.progress = (_Atomic int32_t *)(void *)(shared.lse + t->progress_at);
    shared.query_sums = t->sums_queries ? shared.lse + t->query_sums_at : NULL;
    shared.tasks.sequence = (ejki_vjp_sequence *)(void *)(shared.lse + t->sequences_at);
    shared.tasks.order = (int64_t *)(void *)(shared.lse + t->order_at);
    const ejki_vjp_blocks blocks = {t->rows, t->keys, TILE_COLUMNS * VJP_DEPTH, t->row_blocks,
                                    t->key_blocks};
    ejki_vjp_cut(&shared.tasks, &v->forward, &blocks, v->wants_bias);
    for (int64_t n = 0; n < t->row_block_count; n++) atomic_init(&shared.progress[n], 0);
    vjp_all(&shared, run->threads, vjp_begin);
    if (v->wants_query || v->wants_key || v->wants_value || v->wants_bias)
        vjp_all(&shared, run->threads, vjp_work);
    if (t->sums_queries) vjp_all(&shared, run->threads, vjp_end);
    if (v->wants_sinks) vjp_all(&shared, run->threads, vjp_sinks);
    return EJK_OK;
}

#ifdef TILE_BF16_DOT
#define VJP_SUGGEST ejki_vjp_suggest_bf16_dot
#else
#define VJP_SUGGEST ejki_vjp_suggest
#endif

static const ejk_parameter vjp_parameters[] = {
    {"q_blocksize", 1, 512, 1, 96, "query rows beside a block of keys at a time"},
    {"kv_blocksize", 1, 512, 1, 256, "keys of a task; rounded up to whole panels"},
};

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .parameters = vjp_parameters, .parameter_count = 2,
             .suggest = VJP_SUGGEST, .prepare = vjp_prepare, .run = vjp_run)
