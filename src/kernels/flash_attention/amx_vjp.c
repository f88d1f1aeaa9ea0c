/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of flash attention in bf16 on AMX tiles. vjp_problem.h has the formulas, amx_vjp_tiles.h the layouts.
 *
 * A task is a block of keys of a key head. Its keys and values are packed once; then strips of queries come by in
 * order, head after head of the group. Of a strip and a panel of 64 keys, tile by tile of 32 rows and 32 keys,
 *
 *     weights = exp(query · key − lse)                slopes = weights ∘ (cotangent · value − δ)
 *
 * are made while the products of the next tile run; then d_value += weightsᵀ · cotangents and d_key += slopesᵀ ·
 * queries are added from the first-level cache. After the last panel, d_query += slopes · keys.
 *
 * d_key and d_value are summed in the worker's memory. d_query has several writers where a head's keys are more than
 * one block: sums in f32 that all share, which take blocks of keys in their order; a task waits for its turn. Tasks
 * are handed out in that order, so the one that is waited for is always at work. The last one writes the result.
 * Nothing depends on the number of threads.
 *
 * Weights and slopes are rounded to bf16 for the products and summed in f32. A hidden weight is an exact 0, and so
 * is its slope. Tiles or chunks with elements that are not finite, very large or so small that AMX could make 0 of
 * their products are packed as 0 and computed one by one, only pairs that see each other.
 */
#include <ejkernel/registry.h>

#include "base/base.h"
#include "kernels/flash_attention/vjp_problem.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/flash_attention/amx_vjp_plan.h"
#include "kernels/flash_attention/amx_vjp_rows.h"

#define AMX_VJP_RUN 16 /* chunks of keys that are multiplied with a strip's slopes at a time */

/* What the workers of one run share. */
typedef struct amx_vjp_shared {
    const ejki_flash_vjp_problem *problem;
    amx_vjp_plan plan;
    char *memory; /* of all workers */
    float *sums, *delta;
    _Atomic int32_t *turns; /* of each strip: blocks of keys that have been added */
    int32_t workers;
    _Atomic int64_t next;
} amx_vjp_shared;

static void amx_vjp_bind(amx_vjp_state *s, const amx_vjp_shared *shared, int64_t worker) {
    const amx_vjp_plan *t = &shared->plan;
    const ejki_flash_problem *p = &shared->problem->forward;
    char *memory = shared->memory + worker * t->bytes;
    *s = (amx_vjp_state){.problem = shared->problem, .plan = t, .exp = amx_exp_table()};
    s->general = p->soft_cap != 0 || p->has_bias || p->has_mask || p->has_segments;
    s->scale = s->general ? flash_scale(p) : (float)(p->scale * LOG2_E);
    s->keys = (uint16_t *)(void *)(memory + t->key_at);
    s->values = (uint16_t *)(void *)(memory + t->value_at);
    s->across = (uint16_t *)(void *)(memory + t->across_at);
    s->queries = (uint16_t *)(void *)(memory + t->query_at);
    s->cotangents = (uint16_t *)(void *)(memory + t->cotangent_at);
    s->query_rows = (uint16_t *)(void *)(memory + t->query_rows_at);
    s->cotangent_rows = (uint16_t *)(void *)(memory + t->cotangent_rows_at);
    s->weights = (uint16_t *)(void *)(memory + t->weights_at);
    s->slopes = (uint16_t *)(void *)(memory + t->slopes_at);
    s->pairs = (uint16_t *)(void *)(memory + t->pairs_at);
    s->d_keys = (float *)(void *)(memory + t->d_key_at);
    s->d_values = (float *)(void *)(memory + t->d_value_at);
    s->d_queries = (float *)(void *)(memory + t->d_query_at);
    s->stage = (float *)(void *)(memory + t->stage_at);
    s->scratch = (float *)(void *)(memory + t->scratch_at);
    s->tile = (amx_vjp_tile *)(void *)(memory + t->tile_at);
    s->chunk = (amx_vjp_chunk *)(void *)(memory + t->chunk_at);
}

/* ---- Packing ------------------------------------------------------------------------------------------ */

/* Packs the task's keys and values. */
static __attribute__((noinline)) void amx_vjp_pack_block(amx_vjp_state *s) {
    const ejki_flash_problem *p = &s->problem->forward;
    const amx_vjp_plan *t = s->plan;
    for (int64_t c = 0; c < t->keys / AMX_CHUNK; c++) {
        const char *keys[AMX_CHUNK], *values[AMX_CHUNK];
        for (int64_t j = 0; j < AMX_CHUNK; j++) {
            const int64_t key = s->key + c * AMX_CHUNK + j;
            const bool exists = key < s->key_end;
            keys[j] = exists ? amx_vjp_at(&p->key, s->batch, key, s->kv_head) : NULL;
            values[j] = exists ? amx_vjp_at(&p->value, s->batch, key, s->kv_head) : NULL;
        }
        amx_vjp_look key = {.odd = 0}, value = {.odd = 0};
        uint16_t *across = s->across + c * t->wide * AMX_ELEMENT;
        amx_vjp_pack_keys(keys, p->head_dim, t->steps, s->keys + c * t->wide * AMX_ELEMENT, across,
                          &key);
        amx_vjp_pack_keys(values, p->value_dim, t->value_steps,
                          s->values + c * t->value_wide * AMX_ELEMENT, NULL, &value);
        s->chunk[c] = (amx_vjp_chunk){amx_top(key.top), amx_top(value.top), key.odd || value.odd};
        if (s->chunk[c].odd) memset(across, 0, (size_t)(t->wide * AMX_ELEMENT) * sizeof *across);
    }
}

/* What is known of a tile's rows besides their elements; those that see nothing become NULL. */
static void amx_vjp_describe(const amx_vjp_state *s, amx_vjp_tile *t, const char **queries,
                             const char **cotangents) {
    const ejki_flash_vjp_problem *v = s->problem;
    const ejki_flash_problem *p = &v->forward;
    t->low = t->most = p->keys;
    t->high = t->least = 0;
    t->wild = false;
    for (int64_t n = 0; n < AMX_ROWS; n++) {
        const int64_t i = amx_vjp_row(n / 2) + n % 2, even_odd = n % 2 * 16 + n / 2;
        queries[i] = cotangents[i] = NULL;
        t->base[i] = AMX_MAGIC;
        t->reference[i] = t->delta[even_odd] = 0;
        t->first[n] = t->end[n] = 0;
        if (i >= t->count) continue;
        const int64_t row = t->row + i;
        const float lse = amx_vjp_lse(p, s->batch, s->head, row);
        if (lse == -INFINITY) continue;
        int64_t first, end;
        ejki_flash_visible(p, row, &first, &end);
        if (first < end) {
            t->low = ejki_min(t->low, first);
            t->high = ejki_max(t->high, end);
        }
        t->least = ejki_max(t->least, first);
        t->most = ejki_min(t->most, end);
        t->first[n] = (int16_t)ejki_max(0, ejki_min(first - s->key, s->plan->keys));
        t->end[n] = (int16_t)ejki_max(0, ejki_min(end - s->key, s->plan->keys));
        t->reference[i] = lse * (float)LOG2_E;
        t->base[i] = AMX_VJP_BASE - AMX_VJP_STEPS * t->reference[i];
        t->delta[even_odd] = s->delta[row];
        if (!(fabsf(t->reference[i]) <= AMX_VJP_TAME) || !(fabsf(s->delta[row]) <= 0x1p100f))
            t->wild = true;
        queries[i] = amx_vjp_at(&p->query, s->batch, row, s->head);
        cotangents[i] = amx_vjp_at(&v->out_cotangent, s->batch, row, s->head);
    }
}

/* Packs a strip's queries and cotangents. */
static __attribute__((noinline)) void amx_vjp_pack_strip(amx_vjp_state *s) {
    const ejki_flash_problem *p = &s->problem->forward;
    const amx_vjp_plan *t = s->plan;
    for (int64_t n = 0; n < s->tiles; n++) {
        const char *queries[AMX_ROWS], *cotangents[AMX_ROWS];
        amx_vjp_tile *tile = &s->tile[n];
        amx_vjp_look query = {.odd = 0}, cotangent = {.odd = 0};
        tile->row = s->row + n * AMX_ROWS;
        tile->count = ejki_min(AMX_ROWS, s->count - n * AMX_ROWS);
        amx_vjp_describe(s, tile, queries, cotangents);
        const int64_t at = n * t->wide * AMX_ELEMENT, value_at = n * t->value_wide * AMX_ELEMENT;
        amx_vjp_pack_rows(queries, p->head_dim, t->steps, false, s->queries + at,
                          s->query_rows + at, &query);
        amx_vjp_pack_rows(cotangents, p->value_dim, t->value_steps, true, s->cotangents + value_at,
                          s->cotangent_rows + value_at, &cotangent);
        tile->query_top = amx_top(query.top);
        tile->cotangent_top = amx_top(cotangent.top);
        tile->odd = query.odd || cotangent.odd;
        if (!tile->odd) continue;
        memset(s->query_rows + at, 0, (size_t)(t->wide * AMX_ELEMENT) * sizeof(uint16_t));
        memset(s->cotangent_rows + value_at, 0,
               (size_t)(t->value_wide * AMX_ELEMENT) * sizeof(uint16_t));
    }
}

/* ---- A panel of keys ---------------------------------------------------------------------------------- */

/* A tile of rows beside a chunk of keys of the panel. */
typedef struct amx_vjp_spot {
    int64_t tile, chunk; /* of the block */
} amx_vjp_spot;

static bool amx_vjp_meets(const amx_vjp_state *s, const amx_vjp_tile *t, int64_t chunk) {
    const int64_t key = s->key + chunk * AMX_CHUNK;
    return t->low < key + AMX_CHUNK && t->high > key;
}

static amx_vjp_next amx_vjp_next_of(const amx_vjp_state *s, amx_vjp_spot at, float *stage) {
    const amx_vjp_plan *t = s->plan;
    return (amx_vjp_next){.keys = s->keys + at.chunk * t->wide * AMX_ELEMENT,
                          .values = s->values + at.chunk * t->value_wide * AMX_ELEMENT,
                          .queries = s->queries + at.tile * t->wide * AMX_ELEMENT,
                          .cotangents = s->cotangents + at.tile * t->value_wide * AMX_ELEMENT,
                          .scores = stage,
                          .products = stage + AMX_ROWS * AMX_CHUNK};
}

static amx_vjp_unit amx_vjp_unit_of(const amx_vjp_state *s, amx_vjp_spot at, const float *stage) {
    const int64_t tiles = s->plan->rows / AMX_ROWS, chunks = s->plan->keys / AMX_CHUNK;
    const int64_t half = tiles * AMX_ELEMENT,
                  start = at.chunk % 2 * 2 * half + at.tile * AMX_ELEMENT;
    return (amx_vjp_unit){.scores = stage,
                          .products = stage + AMX_ROWS * AMX_CHUNK,
                          .tile = &s->tile[at.tile],
                          .key = at.chunk * AMX_CHUNK,
                          .weights = s->weights + start,
                          .slopes = s->slopes + start,
                          .half = half,
                          .pairs = s->pairs + (at.tile * 2 * chunks + at.chunk) * AMX_ELEMENT,
                          .odd = chunks * AMX_ELEMENT,
                          .scale = s->scale};
}

/* True if nothing about the unit can leave what the fast way takes. */
static bool amx_vjp_is_tame(const amx_vjp_state *s, const amx_vjp_tile *t, const amx_vjp_chunk *c) {
    const ejki_flash_problem *p = &s->problem->forward;
    const double score = (double)t->query_top * (double)c->key_top * (double)p->head_dim;
    const double product = (double)t->cotangent_top * (double)c->value_top * (double)p->value_dim;
    return !s->general && !t->wild && !t->odd && !c->odd &&
           score * fabs((double)s->scale) <= (double)AMX_VJP_TAME && product <= 0x1p100;
}

/* Slopes of one unit, beside the products of the next one, if there is one. */
static void amx_vjp_unit_step(const amx_vjp_state *s, amx_vjp_spot at, float *stage,
                              const amx_vjp_next *next) {
    const amx_vjp_plan *t = s->plan;
    const amx_vjp_tile *tile = &s->tile[at.tile];
    const amx_vjp_chunk *chunk = &s->chunk[at.chunk];
    const int64_t key = s->key + at.chunk * AMX_CHUNK;
    amx_vjp_unit u = amx_vjp_unit_of(s, at, stage);
    if (amx_vjp_is_tame(s, tile, chunk)) {
        const bool edge = tile->least > key || tile->most < key + AMX_CHUNK;
        if (next ? amx_vjp_step(t->steps, t->value_steps, next, &u, &s->exp, edge)
                 : amx_vjp_alone(&u, &s->exp))
            return;
    } else {
        if (next) amx_vjp_products(next, t->steps, t->value_steps);
        if (tile->odd || chunk->odd)
            amx_vjp_slow_products(s, at.tile, at.chunk, stage, stage + AMX_ROWS * AMX_CHUNK);
        if (s->general) u.caps = amx_vjp_modify(s, at.tile, at.chunk, stage);
    }
    amx_vjp_careful(&u, &s->exp);
}

/* Weights and slopes of all tiles [first, end) beside a panel; 0 where a tile sees nothing of a chunk. */
static void amx_vjp_make(const amx_vjp_state *s, int64_t panel, int64_t first, int64_t end) {
    const int64_t size = AMX_ROWS * AMX_CHUNK;
    float *stage = s->stage, *other = s->stage + 2 * size;
    amx_vjp_spot last = {-1, 0};
    for (int64_t n = 0; n < 2 * (end - first); n++) {
        const amx_vjp_spot at = {first + n / 2, 2 * panel + n % 2};
        if (!amx_vjp_meets(s, &s->tile[at.tile], at.chunk)) {
            const amx_vjp_unit u = amx_vjp_unit_of(s, at, stage);
            for (int64_t half = 0; half < 2; half++) {
                memset(u.weights + half * u.half, 0, AMX_ELEMENT * sizeof(uint16_t));
                memset(u.slopes + half * u.half, 0, AMX_ELEMENT * sizeof(uint16_t));
            }
            continue;
        }
        const amx_vjp_next next = amx_vjp_next_of(s, at, other);
        if (last.tile >= 0)
            amx_vjp_unit_step(s, last, stage, &next);
        else
            amx_vjp_products(&next, s->plan->steps, s->plan->value_steps);
        float *swap = stage;
        stage = other;
        other = swap;
        last = at;
    }
    amx_vjp_unit_step(s, last, stage, NULL);
}

/* The sums of a panel's keys += coefficientsᵀ · rows, over the tiles [first, end). */
static void amx_vjp_add_panel(const amx_vjp_state *s, const uint16_t *coefficients,
                              const uint16_t *rows, int64_t wide, int64_t first, int64_t end,
                              float *sums) {
    const int64_t half = s->plan->rows / AMX_ROWS * AMX_ELEMENT;
    const amx_vjp_operand left = {coefficients + first * AMX_ELEMENT, half, AMX_ELEMENT};
    for (int64_t d = 0; d < wide; d++) {
        const amx_vjp_operand right = {rows + (first * wide + d) * AMX_ELEMENT, 0,
                                       wide * AMX_ELEMENT};
        amx_vjp_add_four(left, right, end - first, sums + d * AMX_SUMS, wide * AMX_SUMS);
    }
}

static void amx_vjp_panel(const amx_vjp_state *s, int64_t panel) {
    const ejki_flash_vjp_problem *v = s->problem;
    const amx_vjp_plan *t = s->plan;
    int64_t first = s->tiles, end = 0;
    for (int64_t n = 0; n < s->tiles; n++)
        if (amx_vjp_meets(s, &s->tile[n], 2 * panel) ||
            amx_vjp_meets(s, &s->tile[n], 2 * panel + 1)) {
            first = ejki_min(first, n);
            end = n + 1;
        }
    if (first >= end) return;
    amx_vjp_make(s, panel, first, end);
    const int64_t key = panel * (AMX_VJP_PANEL / 16);
    if (v->wants_value)
        amx_vjp_add_panel(s, s->weights, s->cotangent_rows, t->value_wide, first, end,
                          s->d_values + key * t->value_wide * AMX_SUMS);
    if (v->wants_key)
        amx_vjp_add_panel(s, s->slopes, s->query_rows, t->wide, first, end,
                          s->d_keys + key * t->wide * AMX_SUMS);
    for (int64_t n = first; n < end; n++)
        if (s->tile[n].odd) amx_vjp_add_odd_rows(s, n, panel);
}

/* ---- A strip of queries ------------------------------------------------------------------------------- */

/* Chunks of the block that a tile meets, from `first` on and before `end`. */
static void amx_vjp_chunks(const amx_vjp_state *s, const amx_vjp_tile *t, int64_t *first,
                           int64_t *end) {
    const int64_t low = ejki_max(t->low, s->key) - s->key;
    const int64_t high = ejki_min(t->high, s->key_end) - s->key;
    *first = ejki_max(*first, low / AMX_CHUNK);
    *end = high <= low ? *first : ejki_min(*end, ejki_cdiv(high, AMX_CHUNK));
}

/* A tile's sums, d tiles d and d + 1 of them, += slopes · keys over chunks [first, end). */
static void amx_vjp_add_tile(const amx_vjp_state *s, int64_t tile, int64_t d, int64_t first,
                             int64_t end) {
    const amx_vjp_plan *t = s->plan;
    const int64_t chunks = t->keys / AMX_CHUNK;
    const amx_vjp_operand left = {s->across + (first * t->wide + d) * AMX_ELEMENT, AMX_ELEMENT,
                                  t->wide * AMX_ELEMENT};
    const amx_vjp_operand right = {s->pairs + (tile * 2 * chunks + first) * AMX_ELEMENT,
                                   chunks * AMX_ELEMENT, AMX_ELEMENT};
    amx_vjp_add_square(left, right, end - first, s->sums + (tile * 2 * t->wide + d) * AMX_SUMS,
                       AMX_SUMS, t->wide * AMX_SUMS);
}

/* d_query += slopes · keys for the whole strip. */
static void amx_vjp_queries(const amx_vjp_state *s) {
    const amx_vjp_plan *t = s->plan;
    const int64_t chunks = t->keys / AMX_CHUNK;
    for (int64_t run = 0; run < chunks; run += AMX_VJP_RUN)
        for (int64_t d = 0; d < t->wide; d += 2)
            for (int64_t n = 0; n < s->tiles; n++) {
                int64_t first = run, end = run + AMX_VJP_RUN;
                amx_vjp_chunks(s, &s->tile[n], &first, &end);
                if (first < end) amx_vjp_add_tile(s, n, d, first, end);
            }
    for (int64_t n = 0; n < s->tiles; n++) {
        int64_t first = 0, end = chunks;
        amx_vjp_chunks(s, &s->tile[n], &first, &end);
        for (int64_t c = first; c < end; c++)
            if (s->chunk[c].odd) amx_vjp_add_odd_keys(s, n, c);
    }
}

/* Waits until `turn` blocks of keys have been added to a strip. */
static void amx_vjp_wait(_Atomic int32_t *counter, int64_t turn) {
    for (int64_t tries = 1; atomic_load_explicit(counter, memory_order_acquire) != turn; tries++)
        if (tries % 256 == 0) sched_yield();
}

/* Keys that queries [row, row + count) see by their position. */
static void amx_vjp_extent(const ejki_flash_problem *p, int64_t row, int64_t count, int64_t *low,
                           int64_t *high) {
    int64_t unused;
    ejki_flash_visible(p, row, low, &unused);
    ejki_flash_visible(p, row + count - 1, &unused, high);
}

/* Adds the block's part of the strip's d_query in its turn: blocks [first, last] have one. */
static void amx_vjp_finish(amx_vjp_state *s, amx_vjp_shared *shared, int64_t strip, int64_t first,
                           int64_t last) {
    const amx_vjp_plan *t = s->plan;
    const bool shares = first < last;
    _Atomic int32_t *counter = shared->turns + strip;
    s->sums = shares ? shared->sums + strip * t->rows * 32 * t->steps : s->d_queries;
    if (shares && shared->workers > 1) amx_vjp_wait(counter, s->block - first);
    if (s->block == first)
        memset(s->sums, 0, (size_t)(s->tiles * 2 * t->wide * AMX_SUMS) * sizeof(float));
    amx_vjp_queries(s);
    if (s->block == last) amx_vjp_write_queries(s);
    if (shares)
        atomic_store_explicit(counter, (int32_t)(s->block - first + 1), memory_order_release);
}

static void amx_vjp_strip(amx_vjp_state *s, amx_vjp_shared *shared, int64_t strip) {
    const amx_vjp_plan *t = s->plan;
    const ejki_flash_problem *p = &s->problem->forward;
    const int64_t head = s->batch * p->kv_heads + s->kv_head;
    int64_t low, high;
    s->head = s->kv_head * p->group + strip / t->head_strips;
    s->row = strip % t->head_strips * t->rows;
    s->count = ejki_min(t->rows, p->queries - s->row);
    s->tiles = ejki_cdiv(s->count, AMX_ROWS);
    amx_vjp_extent(p, s->row, s->count, &low, &high);
    if (low >= high || low >= s->key_end || high <= s->key) return;
    s->delta = shared->delta + (s->batch * p->query_heads + s->head) * p->queries;
    amx_vjp_pack_strip(s);
    const int64_t from = ejki_max(low - s->key, 0) / AMX_VJP_PANEL;
    const int64_t to = ejki_cdiv(ejki_min(high, s->key_end) - s->key, AMX_VJP_PANEL);
    for (int64_t panel = from; panel < to; panel++) amx_vjp_panel(s, panel);
    if (s->problem->wants_query)
        amx_vjp_finish(s, shared, head * t->strips + strip, low / t->keys, (high - 1) / t->keys);
}

/* ---- Tasks -------------------------------------------------------------------------------------------- */

static void amx_vjp_task(amx_vjp_state *s, amx_vjp_shared *shared, int64_t head, int64_t block) {
    const ejki_flash_vjp_problem *v = s->problem;
    const ejki_flash_problem *p = &v->forward;
    const amx_vjp_plan *t = s->plan;
    s->batch = head / p->kv_heads;
    s->kv_head = head % p->kv_heads;
    s->block = block;
    s->key = block * t->keys;
    s->key_end = ejki_min(p->keys, s->key + t->keys);
    amx_vjp_pack_block(s);
    memset(s->d_keys, 0, (size_t)(t->keys * 32 * t->steps) * sizeof(float));
    memset(s->d_values, 0, (size_t)(t->keys * 32 * t->value_steps) * sizeof(float));
    for (int64_t strip = 0; strip < t->strips; strip++) amx_vjp_strip(s, shared, strip);
    if (v->wants_key)
        amx_vjp_write_keys(s, &v->d_key, s->d_keys, t->wide, p->head_dim, (float)p->scale);
    if (v->wants_value)
        amx_vjp_write_keys(s, &v->d_value, s->d_values, t->value_wide, p->value_dim, 1);
}

/* A worker takes tasks until none is left: as many heads as there are workers take turns, a head's blocks of keys
 * one after the other. */
static void amx_vjp_worker(void *argument, int64_t worker) {
    amx_vjp_shared *shared = argument;
    const amx_vjp_plan *t = &shared->plan;
    amx_vjp_state state;
    amx_vjp_bind(&state, shared, worker);
    amx_open();
    for (;;) {
        const int64_t index = atomic_fetch_add_explicit(&shared->next, 1, memory_order_relaxed);
        if (index >= t->tasks) break;
        const int64_t first = index / (shared->workers * t->key_blocks) * shared->workers;
        const int64_t heads = ejki_min(shared->workers, t->heads - first);
        const int64_t place = index - first * t->key_blocks;
        amx_vjp_task(&state, shared, first + place % heads, place / heads);
    }
    amx_close();
}

/* ---- Rows and sinks ----------------------------------------------------------------------------------- */

static float amx_vjp_delta(const ejki_flash_vjp_problem *v, int64_t batch, int64_t head,
                           int64_t i) {
    const ejki_flash_problem *p = &v->forward;
    const ejki_bht *l = &v->lse_cotangent;
    const float sum = amx_vjp_dot(amx_vjp_at(&p->out, batch, i, head),
                                  amx_vjp_at(&v->out_cotangent, batch, i, head), p->value_dim);
    return v->has_lse_cotangent
               ? sum - l->data[batch * l->stride_b + head * l->stride_h + i * l->stride_t]
               : sum;
}

/* A worker's share of what comes first: δ of rows, and zeros for strips that see nothing. */
static void amx_vjp_begin(void *argument, int64_t index) {
    const amx_vjp_shared *shared = argument;
    const amx_vjp_plan *t = &shared->plan;
    const ejki_flash_vjp_problem *v = shared->problem;
    const ejki_flash_problem *p = &v->forward;
    const int64_t strips = p->batch * p->query_heads * t->head_strips;
    for (int64_t n = index; n < strips; n += shared->workers) {
        const int64_t head = n / t->head_strips % p->query_heads;
        const int64_t batch = n / t->head_strips / p->query_heads;
        const int64_t row = n % t->head_strips * t->rows, end = ejki_min(row + t->rows, p->queries);
        float *delta = shared->delta + (batch * p->query_heads + head) * p->queries;
        int64_t low, high;
        amx_vjp_extent(p, row, end - row, &low, &high);
        for (int64_t i = row; i < end; i++) {
            const bool blank = amx_vjp_lse(p, batch, head, i) == -INFINITY;
            delta[i] = blank ? 0 : amx_vjp_delta(v, batch, head, i);
            if (v->wants_query && low >= high && p->head_dim > 0)
                memset(amx_place(v->d_query.data, batch * v->d_query.stride_b +
                                                      i * v->d_query.stride_t +
                                                      head * v->d_query.stride_h),
                       0, (size_t)p->head_dim * sizeof(uint16_t));
        }
    }
}

/* Gradients of the sinks of one head, or of all where they share them: sums in f64, over rows in order. */
static void amx_vjp_sink(const amx_vjp_shared *shared, int64_t sink_head) {
    const ejki_flash_vjp_problem *v = shared->problem;
    const ejki_flash_problem *p = &v->forward;
    const bool all = p->sink_stride_h == 0;
    for (int64_t n = 0; n < p->sink_count; n++) {
        const double sink = amx_element(p->sinks, sink_head * p->sink_stride_h + n);
        double sum = 0;
        for (int64_t row = 0; row < p->batch * p->query_heads * p->queries; row++) {
            const int64_t batch = row / p->queries / p->query_heads;
            const int64_t head = row / p->queries % p->query_heads;
            if (!all && head / p->sink_group != sink_head) continue;
            const float lse = amx_vjp_lse(p, batch, head, row % p->queries);
            if (lse != -INFINITY) sum -= exp(sink - (double)lse) * (double)shared->delta[row];
        }
        const uint16_t bits = ejk_f32_to_bf16((float)sum);
        memcpy(amx_place(v->d_sinks, sink_head * v->d_sink_stride_h + n), &bits, sizeof bits);
    }
}

static void amx_vjp_sinks(void *argument, int64_t index) {
    const amx_vjp_shared *shared = argument;
    const ejki_flash_problem *p = &shared->problem->forward;
    const int64_t heads = p->sink_stride_h == 0 ? 1 : p->query_heads / p->sink_group;
    for (int64_t head = index; head < heads; head += shared->workers) amx_vjp_sink(shared, head);
}

/* ---- The implementation ------------------------------------------------------------------------------- */

static ejk_status amx_vjp_prepare(const void *problem, const int64_t *parameters, int32_t threads,
                                  ejk_launch *launch) {
    const ejki_flash_vjp_problem *v = problem;
    const amx_vjp_plan t = amx_vjp_plan_of(v, parameters);
    if (t.bytes >= AMX_VJP_LIMIT || t.shared_bytes >= AMX_VJP_LIMIT)
        return flash_too_large(&v->forward);
    launch->workers =
        flash_is_light(&v->forward) ? 1 : (int32_t)ejki_max(1, ejki_min(threads, t.tasks));
    launch->workspace_bytes = (size_t)(t.shared_bytes + launch->workers * t.bytes);
    return EJK_OK;
}

static void amx_vjp_all(amx_vjp_shared *shared, ejk_threads *threads,
                        void (*step)(void *, int64_t)) {
    if (shared->workers == 1)
        step(shared, 0);
    else
        ejk_parallel_for(threads, shared->workers, step, shared);
}

static ejk_status amx_vjp_run(const ejk_run *run) {
    amx_vjp_shared shared = {.problem = run->problem, .workers = run->workers};
    const ejki_flash_vjp_problem *v = shared.problem;
    shared.plan = amx_vjp_plan_of(v, run->parameters);
    const amx_vjp_plan *t = &shared.plan;
    char *memory = run->workspace;
    shared.sums = (float *)(void *)(memory + t->sums_at);
    shared.delta = (float *)(void *)(memory + t->delta_at);
    shared.turns = (_Atomic int32_t *)(void *)(memory + t->turns_at);
    shared.memory = memory + t->shared_bytes;
    for (int64_t n = 0; n < t->heads * t->strips; n++) atomic_init(&shared.turns[n], 0);
    amx_vjp_all(&shared, run->threads, amx_vjp_begin);
    if (v->wants_query || v->wants_key || v->wants_value)
        amx_vjp_all(&shared, run->threads, amx_vjp_worker);
    if (v->wants_sinks) amx_vjp_all(&shared, run->threads, amx_vjp_sinks);
    return EJK_OK;
}

/* Gradients of a bias, dropout, packed sequences and patterns of blocks are left to others. */
static bool amx_vjp_applicable(const void *problem) {
    const ejki_flash_vjp_problem *v = problem;
    const ejki_flash_problem *p = &v->forward;
    return !v->wants_bias && p->dropout == 0 && p->layout == EJKI_FLASH_DENSE &&
           ejki_pattern_is_empty(&p->pattern);
}

static const ejk_parameter amx_vjp_parameters[] = {
    {"q_blocksize", 1, 512, 1, 128, "query rows beside a block of keys at a time"},
    {"kv_blocksize", 1, 2048, 1, 512, "keys of a task"},
};

extern const ejk_implementation ejki_flash_attention_vjp_bf16_amx;
const ejk_implementation ejki_flash_attention_vjp_bf16_amx = {
    .algorithm = "flash_attention_vjp",
    .name = "bf16/amx/matrix",
    .platform = EJK_PLATFORM_SIMD,
    .backend = EJK_BACKEND_CPU,
    .isa = EJK_ISA_AMX,
    .dtype = EJK_DTYPE_BF16,
    .priority = 5,
    .version = 1,
    .parameters = amx_vjp_parameters,
    .parameter_count = 2,
    .applicable = amx_vjp_applicable,
    .prepare = amx_vjp_prepare,
    .run = amx_vjp_run,
};
