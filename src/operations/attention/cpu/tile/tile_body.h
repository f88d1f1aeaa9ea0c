/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention forward, tiled: for many query rows. Tensors are f32, bf16 or f16; packing makes floats of
 * them, everything after is f32, and outputs are rounded once. With TILE_BF16_DOT tensors are bf16, packing makes pairs
 * of them as they are, and the weights are rounded to bf16; sums and scores are f32 as well.
 *
 * The rows of a KV head, T queries times G query heads, are cut into groups; a group is one task. A
 * worker packs the group's queries, then walks over blocks of keys at absolute positions; each block is
 * packed once (keys transposed into panels, values as rows, both padded with zeros) and used by all row
 * tiles of the group. For a tile: scores = query · keysᵀ, softmax in place, sums += weights · values.
 *
 * Softmax. A row's shift is the largest score of the first block in which it sees a key, as a whole power of
 * two, so that it can be moved by others without rounding, and stays:
 * weights are 2^(z − shift), which f32 holds without loss up to 2^127, so the usual maximum,
 * rescaling of sums and comparison are not paid for every block. Only if a lane of the running sum grows
 * beyond SUM_LIMIT is the row brought back, exactly, by a power of two; and if it grew beyond EXACT_LIMIT, the
 * block's scores are computed again under a new shift. All of it is decided by the row alone.
 *
 * Why results do not depend on tiles: products add in the order of keys, blocks and lanes lie at absolute
 * key positions, and a key that a row does not see adds an exact 0. Values that are not finite would make
 * 0 · inf = NaN of it, so packing looks for them, and tiles then add key by key what has a weight.
 *
 * Limits. Weights below 2^-126 of the shift count as 0. The score tile, a panel of keys and the
 * tile's queries should fit the first-level cache; the group and a block of keys and values the second.
 *
 * Packed sequences are tasks as any others, one after the other in the order of the sequences: which sequence a task
 * is of is found by a prefix sum over their lengths.
 */
#include "base/base.h"
#include "kernels/declare.h"
#include "operations/attention/cpu/tile/tile_blocks_body.h"
#include "operations/attention/cpu/tile/tile_prefetch_body.h"
#include "operations/attention/shared/sequences.h"
#include "operations/attention/shared/suggest.h"

#include <stdatomic.h>
#include <string.h>

#ifdef TILE_BF16_DOT
#include "operations/attention/cpu/tile/tile_bf16_dot_body.h"
#else
#include "operations/attention/cpu/tile/tile_f32_body.h"
#endif

/* Room for rows x columns floats; *at stays below 2^48, and at that value says that they do not fit. */
static int64_t tile_reserve(int64_t *at, int64_t rows, int64_t columns) {
    const int64_t start = *at, limit = (int64_t)1 << 48;
    int64_t count;
    if (!ejki_mul(rows, columns, &count) || count > limit - start) count = limit - start;
    *at = ejki_min(limit, start + ejki_round_up(count, 16));
    return start;
}

static tile_plan tile_plan_of(const ejki_flash_problem *p, const int64_t *parameters,
                              int32_t workers) {
    tile_plan t = {0};
    const bool sparse = p->block_mask.mask_heads > 0;
    t.region_rows = (sparse ? p->block_mask.block_q : p->queries) * p->group;
    t.region_groups = ejki_max(1, ejki_cdiv(t.region_rows, parameters[0]));
    t.rows = ejki_round_up(ejki_max(1, ejki_cdiv(t.region_rows, t.region_groups)), TILE_ROWS);
    t.region_groups = ejki_cdiv(t.region_rows, t.rows);
    t.groups = sparse ? p->queries / p->block_mask.block_q * t.region_groups : t.region_groups;
    t.whole = t.tasks = t.groups_in_all = p->batch * p->kv_heads * t.groups;
    if (workers > 1) {
        /* The last tasks are halved, so that workers end nearly together. */
        const int64_t halved = ejki_min(t.tasks, 2 * (int64_t)workers);
        t.whole = t.tasks - halved;
        t.tasks += halved;
        int64_t at = 0;
        tile_reserve(&at, sparse ? t.tasks : 0, sizeof(int64_t) / sizeof(float));
        t.order_bytes = at * (int64_t)sizeof(float);
    }
    /* Neighbouring tasks go to one worker where there are many: neighbouring heads often share lines. */
    t.claim = sparse ? 1 : ejki_max(1, t.whole / (16 * (int64_t)ejki_max(1, workers)));
    t.keys = ejki_max(1, ejki_min(parameters[1], sparse ? p->block_mask.block_kv : p->keys));
    t.keys = ejki_round_up(t.keys, TILE_COLUMNS);
    t.depth = ejki_cdiv(p->head_dim, TILE_DEPTH);
    t.width = ejki_round_up(p->value_dim, VL);
    t.sum_width = ejki_round_up(p->value_dim, TILE_COLUMNS);
    int64_t at = 0;
    t.query_at = tile_reserve(&at, t.rows, t.depth);
    t.sum_at = tile_reserve(&at, t.rows, t.sum_width);
    t.lane_at = tile_reserve(&at, t.rows, VL);
    t.total_at = tile_reserve(&at, TILE_DEPTH > 1 ? t.rows : 0, VL);
    t.key_at = tile_reserve(&at, t.keys, t.depth);
    t.value_at = tile_reserve(&at, t.keys / TILE_DEPTH, t.width);
    t.score_at = tile_reserve(&at, TILE_ROWS, SCORE_STRIDE);
    t.shift_at = tile_reserve(&at, t.rows, 2);
    t.row_at = tile_reserve(&at, t.rows, (int64_t)(sizeof(flash_row) / sizeof(float)));
    t.extent_at =
        tile_reserve(&at, t.rows / TILE_ROWS, (int64_t)(sizeof(tile_extent) / sizeof(float)));
    t.visible_bytes_at = tile_reserve(&at, t.keys, 1);
    t.cursor_at =
        tile_reserve(&at, block_mask_cursor_count(p), sizeof(block_mask_cursor) / sizeof(float));
    t.common_at = tile_reserve(&at, p->group, sizeof(flash_common) / sizeof(float));
    t.bytes = at * (int64_t)sizeof(float);
    return t;
}

static void tile_bind(tile_state *s, const ejki_flash_problem *p, const tile_plan *t,
                      float *memory) {
    s->problem = p;
    s->plan = t;
    s->general = flash_is_general(p);
    s->tracks_maximum = !p->normalize;
    s->drops = p->dropout > 0;
    s->ahead.lines.near = p->has_bias && tile_prefetches_to_l1();
    s->scale = flash_scale(p);
    s->cap = flash_cap_of(p);
    s->query = memory + t->query_at;
    s->sums = memory + t->sum_at;
    s->lanes = memory + t->lane_at;
    s->totals = memory + t->total_at;
    s->keys = memory + t->key_at;
    s->values = memory + t->value_at;
    s->scores = memory + t->score_at;
    s->shift = memory + t->shift_at;
    s->maximum = s->shift + t->rows;
    s->row = (flash_row *)(void *)(memory + t->row_at);
    s->extent = (tile_extent *)(void *)(memory + t->extent_at);
    s->visible = (uint8_t *)(void *)(memory + t->visible_bytes_at);
    s->common = (flash_common *)(void *)(memory + t->common_at);
    s->mask_walk = (block_mask_walk){.cursor = (block_mask_cursor *)(void *)(memory + t->cursor_at),
                                     .count = block_mask_cursor_count(p)};
}

/* Scores of `rows` rows from `row` over the columns of a span, in base 2 except for s->scale, hidden keys
 * at -inf, into consecutive rows from `scores`. */
static void tile_scores(tile_state *s, int64_t row, int rows, tile_span span, float *scores) {
    const ejki_flash_problem *p = s->problem;
    const int64_t depth = s->plan->depth;
    const float *query = s->query + row / TILE_ROWS * TILE_ROWS * depth + row % TILE_ROWS;
    tile_bias_prefetch bias;
    tile_begin_bias_prefetch(&bias, s, row, rows);
    for (int64_t c = span.first; c < span.end; c += TILE_COLUMNS) {
        gemm_prefetch *ahead = tile_next_prefetch(s);
        if (bias.count > 0) tile_prefetch_bias(p, &bias, s->block + c, ahead);
        gemm_scores(rows, TILE_COLUMNS, depth, query, s->keys + c * depth, TILE_COLUMNS, scores + c,
                    SCORE_STRIDE, false, ahead);
    }
    if (!s->general && !span.hides && !s->mask_walk.hide) return;
    const int64_t key = s->block + span.first, width = span.end - span.first;
    for (int i = 0; i < rows; i++, scores += SCORE_STRIDE) {
        const flash_row *r = &s->row[row + i];
        if (s->general)
            flash_modify(p, &s->cap, r, key, ejki_min(width, p->keys - key), scores + span.first,
                         s->visible);
        if (r->first > key || r->end < key + width) flash_hide(r, key, width, scores + span.first);
        if (s->mask_walk.hide)
            block_mask_hide(&s->mask_walk, p, r, key, s->end, width, scores + span.first,
                            s->visible);
    }
}

/* A row's sum has grown beyond the limit in this block: see the head of this file. */
static __attribute__((noinline)) void tile_rescale(tile_state *s, int64_t row, float *scores,
                                                   tile_span span, float *lanes) {
    const float *before = s->lanes + row * VL;
    const float top = v_largest(v_max(v_load(lanes), v_zero())); /* lanes may be NaN */
    float factor;
    if (top < EXACT_LIMIT) {
        const int power = ilogbf(top);
        factor = scalbnf(1.0f, -power);
        s->shift[row] += (float)power;
        for (int64_t c = span.first; c < span.end; c += VL)
            v_store(scores + c, v_mul(v_load(scores + c), v_set1(factor)));
        v_store(lanes, v_mul(v_load(lanes), v_set1(factor)));
    } else {
        tile_scores(s, row, 1, span, scores);
        const float shift =
            rintf(flash_maximum(scores + span.first, span.end - span.first) * s->scale);
        factor = exp2f(s->shift[row] - shift);
        s->shift[row] = shift;
        const vf kept = v_mul(v_load(before), v_set1(factor));
        v_store(lanes,
                flash_weights(scores + span.first, span.end - span.first, s->scale, shift, kept));
    }
    for (int64_t d = 0; d < s->plan->width; d += VL) {
        float *sum = tile_sum(s, row, d);
        v_store(sum, v_mul(v_load(sum), v_set1(factor)));
    }
    if (TILE_DEPTH > 1)
        v_store(s->totals + row * VL, v_mul(v_load(s->totals + row * VL), v_set1(factor)));
}

/* Softmax shifts of rows that have none yet, from what they see in this span; and maxima, if wanted. */
static inline void tile_set_shifts(tile_state *s, int64_t row, int rows, tile_span span) {
    enum { ROUNDED = (TILE_ROWS + VL - 1) / VL * VL };
    vf top[ROUNDED];
    float maximum[ROUNDED];
    for (int i = 0; i < ROUNDED; i++) {
        top[i] = v_set1(-INFINITY);
        for (int64_t c = span.first; i < rows && c < span.end; c += VL)
            top[i] = v_max(v_load(s->scores + i * SCORE_STRIDE + c), top[i]);
    }
    for (int i = 0; i < ROUNDED; i += VL)
        v_store(maximum + i, v_mul(v_largests(top + i), v_set1(s->scale)));
    for (int i = 0; i < rows; i++) {
        if (s->shift[row + i] == -INFINITY) s->shift[row + i] = rintf(maximum[i]);
        if (maximum[i] > s->maximum[row + i]) s->maximum[row + i] = maximum[i];
    }
}

/* Scores of a tile become weights; softmax shifts and lane sums of its rows are brought up to date. */
static __attribute__((noinline)) void tile_softmax(tile_state *s, int64_t row, int rows,
                                                   tile_span span) {
    float after[TILE_ROWS][VL];
    vf top = v_zero();
    bool sets_shifts = s->tracks_maximum;
    for (int i = 0; i < rows; i++) sets_shifts |= s->shift[row + i] == -INFINITY;
    if (sets_shifts) tile_set_shifts(s, row, rows, span);
    for (int i = 0; i < rows; i++) {
        const vf lanes =
            flash_weights(s->scores + i * SCORE_STRIDE + span.first, span.end - span.first,
                          s->scale, s->shift[row + i], v_load(s->lanes + (row + i) * VL));
        v_store(after[i], lanes);
        top = v_max(lanes, top);
    }
    if (v_largest(top) > SUM_LIMIT)
        for (int i = 0; i < rows; i++)
            if (v_largest(v_max(v_load(after[i]), v_zero())) > SUM_LIMIT)
                tile_rescale(s, row + i, s->scores + i * SCORE_STRIDE, span, after[i]);
    for (int i = 0; i < rows; i++) v_store(s->lanes + (row + i) * VL, v_load(after[i]));
}

static void tile_block(tile_state *s, int64_t row, int rows, int64_t block_end) {
    const int64_t width = s->plan->width, block = s->block;
    const tile_extent *e = &s->extent[row / TILE_ROWS];
    const int64_t low = ejki_max(e->low, block) - block;
    const int64_t high = ejki_min(e->high, block_end) - block;
    if (low >= high || !e->visible) return;
    tile_span span = {.first = low / TILE_COLUMNS * TILE_COLUMNS,
                      .end = ejki_round_up(high, TILE_COLUMNS),
                      .low = low,
                      .high = high};
    /* The product takes whole lanes. */
    const int64_t first = low / TILE_DEPTH, depth = ejki_cdiv(high, TILE_DEPTH) - first;
    span.hides = e->least > block + span.first || e->most < block + span.end;
    tile_scores(s, row, rows, span, s->scores);
    tile_softmax(s, row, rows, span);
    tile_end_weights(s, row, rows, &span);
    if (!tile_is_fit(s, row)) {
        tile_add_slow(s, row, rows, &span);
        return;
    }
    for (int64_t d = 0; d < width; d += TILE_COLUMNS)
        gemm_values(rows, ejki_min(width - d, TILE_COLUMNS), depth, s->scores + first,
                    s->values + first * width + d, width, tile_sum(s, row, d), TILE_COLUMNS, true,
                    tile_next_prefetch(s));
}

/* Packs up to TILE_ROWS queries side by side, target[lane][row], and writes what they see. */
static tile_extent tile_pack_queries(const ejki_flash_problem *p, const flash_row *rows,
                                     int64_t count, float *target) {
    tile_extent e = {.low = p->keys, .high = 0, .least = 0, .most = p->keys, .visible = true};
    const ejk_dtype dtype = p->dtype;
    const int64_t depth = ejki_cdiv(p->head_dim, TILE_DEPTH);
    const void *query[(TILE_ROWS + VL - 1) / VL * VL];
    for (int64_t i = 0; i < count; i++) {
        e.low = ejki_min(e.low, rows[i].first);
        e.high = ejki_max(e.high, rows[i].end);
        e.least = ejki_max(e.least, rows[i].first);
        e.most = ejki_min(e.most, rows[i].end);
        query[i] = flash_query(p, &rows[i]);
    }
    for (int64_t first = 0; first < TILE_ROWS; first += VL) {
        const int64_t lanes = ejki_min(VL, TILE_ROWS - first);
        for (int64_t d = 0; d < depth; d += VL) {
            const int64_t width = ejki_min(VL, depth - d), at = d * TILE_DEPTH;
            vf block[VL];
            for (int64_t i = 0; i < VL; i++)
                block[i] = first + i >= count ? v_zero()
                                              : pack_load(dtype, TILE_DEPTH,
                                                          element_at(dtype, query[first + i], at),
                                                          p->head_dim - at);
            v_transpose(block);
            for (int64_t i = 0; i < width; i++)
                v_store_first(target + (d + i) * TILE_ROWS + first, block[i], lanes);
        }
    }
    return e;
}

/* Packs a task's queries and starts its rows. Returns the range of keys that any of them sees. */
static void tile_begin(tile_state *s, int64_t *low, int64_t *high) {
    const ejki_flash_problem *p = s->problem;
    const tile_task *task = &s->task;
    *low = p->keys;
    *high = 0;
    for (int64_t g = 0; g < p->group; g++)
        s->common[g] = flash_common_of(p, task->kv_head * p->group + g);
    for (int64_t i = 0; i < task->rows; i++) {
        s->row[i] = flash_row_of(p, task->batch, task->kv_head, task->first_row + i);
        s->shift[i] = s->maximum[i] = -INFINITY;
    }
    for (int64_t i = 0; i < task->rows; i += TILE_ROWS) {
        const tile_extent e = tile_pack_queries(p, s->row + i, ejki_min(TILE_ROWS, task->rows - i),
                                                s->query + i * s->plan->depth);
        s->extent[i / TILE_ROWS] = e;
        if (e.low >= e.high) continue;
        *low = ejki_min(*low, e.low);
        *high = ejki_max(*high, e.high);
    }
    memset(s->sums, 0,
           (size_t)(ejki_round_up(task->rows, TILE_ROWS) * s->plan->sum_width) * sizeof(float));
    memset(s->lanes, 0, (size_t)(task->rows * VL) * sizeof(float));
    if (TILE_DEPTH > 1) memset(s->totals, 0, (size_t)(task->rows * VL) * sizeof(float));
}

/* One task from beginning to end; `next` is the one that this worker will probably be given then. */
static void tile_group(tile_state *s, tile_task task, tile_task next) {
    const ejki_flash_problem *p = s->problem;
    const tile_plan *t = s->plan;
    int64_t low, high;
    s->task = task;
    tile_begin(s, &low, &high);
    s->following = low / t->keys * t->keys;
    tile_begin_prefetch(s, next);
    if (task.rows > 0 && s->mask_walk.count > 0)
        block_mask_walk_begin(&s->mask_walk, p, task.kv_head, task.first_row / t->region_rows);
    while (tile_next_block(s, low, high)) {
        /* Only what the task sees of the block, from a whole panel on. */
        const int64_t skip = ejki_max(low - s->block, 0) / TILE_COLUMNS * TILE_COLUMNS;
        const int64_t first = s->block + skip;
        tile_pack_keys(p, flash_key(p, task.batch, task.kv_head, first), s->end - first,
                       s->keys + skip * t->depth);
        s->fit =
            tile_pack_values(p, flash_value(p, task.batch, task.kv_head, first), s->end - first,
                             s->values + skip / TILE_DEPTH * t->width, t->width);
        tile_plan_prefetch(s, high);
        for (int64_t i = 0, n; i < task.rows; i += n) {
            n = gemm_rows(task.rows - i);
            tile_block(s, i, (int)n, s->end);
        }
    }
    for (int64_t i = 0; i < task.rows; i++) {
        const flash_row *r = &s->row[i];
        flash_write_row(p, r, &s->common[r->head - r->kv_head * p->group], tile_sum(s, i, 0),
                        TILE_COLUMNS, TILE_ROWS * TILE_COLUMNS, s->shift[i], s->maximum[i],
                        v_sum(v_load(s->lanes + i * VL)), tile_total(s, i));
    }
}

/* ---- Workers -------------------------------------------------------------------------------------- */

/* What the workers of one run share. */
typedef struct tile_shared {
    const ejki_flash_problem *problem;
    tile_plan plan;
    char *workspace;
    int64_t *first; /* of packed sequences: the first task of each part, and the number of all */
    int32_t workers;
    _Atomic int64_t next;
} tile_shared;

/* A worker takes tasks until none is left. */
static void tile_worker(void *argument, int64_t worker) {
    tile_shared *shared = argument;
    const tile_plan *t = &shared->plan;
    tile_state state;
    tile_bind(&state, shared->problem, t, (float *)(void *)(shared->workspace + worker * t->bytes));
    for (;;) {
        int64_t count;
        const int64_t index = tile_claim(t, &shared->next, &count);
        if (index >= t->tasks) return;
        const int64_t others = index + count * shared->workers;
        for (int64_t i = 0; i < count; i++)
            tile_group(&state, tile_task_of(shared->problem, t, index + i),
                       tile_task_of(shared->problem, t, i + 1 < count ? index + i + 1 : others));
    }
}

/* ---- Packed sequences ----------------------------------------------------------------------------- */

/* A part's plan: that of the whole, with groups of at most as many rows. */
static tile_plan tile_sequence_plan(const ejki_flash_problem *p, const tile_plan *t, int64_t part) {
    tile_plan own = *t;
    const int64_t rows = ejki_flash_part_queries(p, part) * p->group;
    own.rows = ejki_cdiv(rows, ejki_max(1, ejki_cdiv(rows, t->rows)));
    own.rows = ejki_round_up(ejki_max(1, own.rows), TILE_ROWS);
    own.groups = own.region_groups = ejki_cdiv(rows, own.rows);
    own.region_rows = rows;
    own.whole = own.tasks = own.groups * p->kv_heads;
    return own;
}

/* Counts the tasks of each part; found anew in every run, since lengths are data. */
static void tile_count_tasks(const tile_shared *s) {
    const ejki_flash_problem *p = s->problem;
    const int64_t parts = ejki_flash_parts(p);
    s->first[0] = 0;
    for (int64_t n = 0; n < parts; n++)
        s->first[n + 1] = s->first[n] + tile_sequence_plan(p, &s->plan, n).tasks;
}

/* Tasks one by one, whatever sequence they are of: a part's problem and plan stand for the whole's. */
static void tile_packed_worker(void *argument, int64_t worker) {
    tile_shared *shared = argument;
    const int64_t parts = ejki_flash_parts(shared->problem);
    float *memory = (float *)(void *)(shared->workspace + worker * shared->plan.bytes);
    ejki_flash_problem problem;
    tile_plan plan;
    tile_state state;
    for (int64_t part = -1;;) {
        const int64_t index = atomic_fetch_add_explicit(&shared->next, 1, memory_order_relaxed);
        if (index >= shared->first[parts]) return;
        if (part < 0 || index >= shared->first[part + 1]) {
            do part++;
            while (index >= shared->first[part + 1]);
            problem = ejki_flash_part(shared->problem, part);
            plan = tile_sequence_plan(shared->problem, &shared->plan, part);
            tile_bind(&state, &problem, &plan, memory);
        }
        const int64_t own = index - shared->first[part];
        tile_group(&state, tile_task_of(&problem, &plan, own),
                   tile_task_of(&problem, &plan, own + shared->workers));
    }
}

static ejk_status tile_run_packed(tile_shared *s, const ejk_run *run) {
    s->first = (int64_t *)(void *)(s->workspace + s->plan.bytes * run->workers);
    tile_count_tasks(s);
    ejk_parallel_for(run->threads, run->workers, tile_packed_worker, s);
    return EJK_OK;
}

static ejk_status tile_prepare(const void *problem, const int64_t *parameters, int32_t threads,
                               ejk_launch *launch) {
    const tile_plan t = tile_plan_of(problem, parameters, threads);
    if (t.bytes >= (int64_t)4 << 48 || t.order_bytes >= (int64_t)4 << 48)
        return flash_too_large(problem);
    launch->workers =
        flash_is_light(problem) ? 1 : (int32_t)ejki_max(1, ejki_min(threads, t.groups_in_all));
    launch->workspace_bytes = (size_t)(t.bytes * launch->workers + t.order_bytes);
    if (((const ejki_flash_problem *)problem)->layout != EJKI_FLASH_DENSE)
        launch->workspace_bytes += (size_t)(ejki_flash_parts(problem) + 1) * sizeof(int64_t);
    return EJK_OK;
}

static ejk_status tile_run(const ejk_run *run) {
    tile_shared shared = {
        .problem = run->problem, .workspace = run->workspace, .workers = run->workers};
    shared.plan = tile_plan_of(run->problem, run->parameters, run->workers);
    if (shared.problem->layout != EJKI_FLASH_DENSE) return tile_run_packed(&shared, run);
    if (shared.plan.order_bytes > 0) {
        int64_t *order = (int64_t *)(void *)(shared.workspace + shared.plan.bytes * run->workers);
        tile_order(run->problem, &shared.plan, order);
        shared.plan.order = order;
    }
    if (run->workers == 1)
        tile_worker(&shared, 0);
    else
        ejk_parallel_for(run->threads, run->workers, tile_worker, &shared);
    return EJK_OK;
}

/* Block masks are of whole tensors: parts of packed sequences have none. Sums that are not divided have to be true to
 * f32, which rounded weights are not. */
static bool tile_applicable(const void *problem) {
    const ejki_flash_problem *p = problem;
    if (TILE_DEPTH > 1 && !p->normalize) return false;
    return p->layout == EJKI_FLASH_DENSE || ejki_block_mask_is_empty(&p->block_mask);
}

#ifdef TILE_BF16_DOT
#define TILE_SUGGEST ejki_tile_suggest_bf16_dot
#else
#define TILE_SUGGEST ejki_tile_suggest
#endif

static const ejk_parameter tile_parameters[] = {
    {"q_blocksize", 1, 65536, 1, 256, "query rows of a task"},
    {"kv_blocksize", 1, TILE_KEYS, 1, 256, "keys packed at a time"},
};

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .parameters = tile_parameters, .parameter_count = 2,
             .suggest = TILE_SUGGEST, .applicable = tile_applicable, .prepare = tile_prepare,
             .run = tile_run)
