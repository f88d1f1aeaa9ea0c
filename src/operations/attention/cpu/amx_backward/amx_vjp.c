/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of flash attention in bf16 on AMX tiles. vjp_problem.h has the formulas, amx_vjp_tiles.h the layouts.
 *
 * A task is a block of keys of a KV head. Its keys and values are packed once; then row blocks follow, head after
 * head of the query group, the last one first. Of a row block and a panel of 64 keys, score tile by score tile of 32
 * rows and 32 keys,
 *
 *     weights = exp(query · key − lse)                dS = weights ∘ (cotangent · value − δ)
 *
 * are made while the products of the next score tile run; then d_value += weightsᵀ · cotangents and d_key += dSᵀ ·
 * queries are added from the first-level cache. After the last panel, d_query += dS · keys.
 *
 * d_key and d_value are summed in the worker's memory. d_query has several writers where a head's keys are more than
 * one block: shared f32 sums, to which blocks of keys are added in their order; a task waits for the one before.
 * Tasks are handed out in that order, so the one that is waited for always runs. The last one writes the result.
 * Nothing depends on the number of threads, nor on what else is in the call.
 *
 * Weights and dS are rounded to bf16 for the products, which are summed in f32. A hidden weight is an exact 0, and so
 * is its dS. Tiles and chunks with elements that are not finite, very large, or so small that AMX could flush their
 * products to 0 are "special": packed as 0 and computed one by one, for visible pairs only.
 */
#include <ejkernel/registry.h>

#include "base/base.h"
#include "operations/attention/shared/sequences.h"
#include "operations/attention/flash/vjp_problem.h"
#include "operations/attention/shared/suggest.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "operations/attention/cpu/amx_backward/amx_vjp_drop.h"
#include "operations/attention/cpu/amx_backward/amx_vjp_ends.h"
#include "operations/attention/cpu/amx_backward/amx_vjp_pack.h"

#define AMX_VJP_KEY_CHUNKS                                                                         \
    16 /* chunks of keys that are multiplied with a row block's dS at a time */

static void amx_vjp_bind(amx_vjp_state *s, const amx_vjp_shared *shared, int64_t worker) {
    const amx_vjp_plan *t = &shared->plan;
    const ejki_flash_problem *p = &shared->problem->forward;
    char *memory = shared->memory + worker * t->bytes;
    *s = (amx_vjp_state){.sequence = -1, .plan = *t, .exp = amx_exp_table()};
    s->score_mod = p->soft_cap != 0 || p->has_bias;
    s->has_form = amx_form_of(p->scale, p->soft_cap, p->has_bias, AMX_VJP_STEPS, &s->form) &&
                  s->score_mod && p->dropout == 0;
    s->hides_keys = amx_vjp_hides_keys(p);
    s->scale = (float)(p->scale * LOG2_E);
    s->keys = (uint16_t *)(void *)(memory + t->key_at);
    s->values = (uint16_t *)(void *)(memory + t->value_at);
    s->keys_transposed = (uint16_t *)(void *)(memory + t->key_transposed_at);
    s->queries = (uint16_t *)(void *)(memory + t->query_at);
    s->cotangents = (uint16_t *)(void *)(memory + t->cotangent_at);
    s->query_rows = (uint16_t *)(void *)(memory + t->query_rows_at);
    s->cotangent_rows = (uint16_t *)(void *)(memory + t->cotangent_rows_at);
    s->weights = (uint16_t *)(void *)(memory + t->weights_at);
    s->d_scores = (uint16_t *)(void *)(memory + t->d_scores_at);
    s->pairs = (uint16_t *)(void *)(memory + t->pairs_at);
    s->d_keys = (float *)(void *)(memory + t->d_key_at);
    s->d_values = (float *)(void *)(memory + t->d_value_at);
    s->d_queries = (float *)(void *)(memory + t->d_query_at);
    s->stage = (float *)(void *)(memory + t->stage_at);
    s->scratch = (float *)(void *)(memory + t->scratch_at);
    s->tile = (amx_vjp_tile *)(void *)(memory + t->tile_at);
    s->chunk = (amx_vjp_chunk *)(void *)(memory + t->chunk_at);
    s->state = (uint8_t *)(void *)(memory + t->state_at);
    s->visible = (uint32_t *)(void *)(memory + t->visible_at);
    s->mask_block = (ejki_mask_block *)(void *)(memory + t->mask_block_at);
    s->bias = (float *)(void *)(memory + t->bias_at);
    s->bias_pairs = (uint16_t *)(void *)(memory + t->bias_pairs_at);
    s->d_bias_pairs = (uint16_t *)(void *)(memory + t->d_bias_pairs_at);
    s->bias_tops = (float *)(void *)(memory + t->bias_tops_at);
}

/* ---- A panel of keys ---------------------------------------------------------------------------------- */

/* A tile of rows beside a chunk of keys of the panel. */
typedef struct amx_vjp_tile_index {
    int64_t tile, chunk; /* of the block */
} amx_vjp_tile_index;

static amx_vjp_next amx_vjp_next_of(const amx_vjp_state *s, amx_vjp_tile_index at, float *stage) {
    const amx_vjp_plan *t = &s->plan;
    return (amx_vjp_next){.keys = s->keys + at.chunk * t->head_tiles * AMX_ELEMENT,
                          .values = s->values + at.chunk * t->value_tiles * AMX_ELEMENT,
                          .queries = s->queries + at.tile * t->head_tiles * AMX_ELEMENT,
                          .cotangents = s->cotangents + at.tile * t->value_tiles * AMX_ELEMENT,
                          .scores = stage,
                          .products = stage + AMX_ROWS * AMX_CHUNK};
}

static amx_vjp_score_tile amx_vjp_score_tile_of(const amx_vjp_state *s, amx_vjp_tile_index at,
                                                const float *stage) {
    const int64_t chunks = s->plan.chunks, half = s->plan.tiles * AMX_ELEMENT,
                  start = at.chunk % 2 * 2 * half + at.tile * AMX_ELEMENT;
    return (amx_vjp_score_tile){.scores = stage,
                                .products = stage + AMX_ROWS * AMX_CHUNK,
                                .tile = &s->tile[at.tile],
                                .weights = s->weights + start,
                                .d_scores = s->d_scores + start,
                                .half = half,
                                .pairs = s->pairs + (at.tile * 2 * chunks + at.chunk) * AMX_ELEMENT,
                                .odd = chunks * AMX_ELEMENT,
                                .scale = s->scale};
}

/*
 * True if no score or product of the tile can leave the fast path's range. `tops`: largest components of queries and
 * cotangents.
 */
static bool amx_vjp_is_in_range(const amx_vjp_state *s, const amx_vjp_tile *t,
                                const amx_vjp_chunk *c, const float tops[2]) {
    const ejki_flash_problem *p = &s->problem.forward;
    const double score = (double)tops[0] * (double)c->key_top * (double)p->head_dim;
    const double product = (double)tops[1] * (double)c->value_top * (double)p->value_dim;
    return !t->out_of_range && !t->special && !c->special &&
           score * fabs((double)s->scale) <= (double)AMX_VJP_FAST_RANGE && product <= 0x1p100;
}

/* Prefetches a share of the next row block: rows of a head lie apart, and sums come from further away. */
static void amx_vjp_prefetch(amx_vjp_state *s) {
    const ejki_flash_vjp_problem *v = &s->problem;
    const int64_t end = ejki_min(s->ahead.end, s->ahead.first + s->prefetch_rate);
    for (int64_t i = s->ahead.first; i < end; i++) {
        amx_prefetch(amx_vjp_at(&v->forward.query, i, s->ahead_head), 2 * v->forward.head_dim);
        amx_prefetch(amx_vjp_at(&v->out_cotangent, i, s->ahead_head), 2 * v->forward.value_dim);
        if (s->ahead_sums)
            amx_prefetch((const char *)(s->ahead_sums + i * 32 * s->plan.steps),
                         128 * s->plan.steps);
    }
    s->ahead.first = end;
}

/*
 * True if dS of the score tile may be made by the fast path, by the form if there is one. `bias` is its largest
 * magnitude.
 */
static bool amx_vjp_takes_fast_path(const amx_vjp_state *s, amx_vjp_tile_index at, float bias,
                                    amx_vjp_score_tile *st) {
    const amx_vjp_tile *t = &s->tile[at.tile];
    const float tops[] = {s->form.caps ? 0 : t->query_top, t->cotangent_top};
    st->form = s->has_form ? &s->form : NULL;
    return (s->has_form || !s->score_mod) && s->problem.forward.dropout == 0 && bias == bias &&
           amx_vjp_is_in_range(s, t, &s->chunk[at.chunk], tops);
}

/* Makes dS of a score tile by the form; false if the slow path has to. */
static bool amx_vjp_try_form(amx_vjp_state *s, const amx_vjp_score_tile *st) {
    if (!s->degree_4 && amx_vjp_by_form(st, false, &s->exp)) return true;
    s->degree_4 = s->form.caps;
    return s->degree_4 && amx_vjp_by_form(st, true, &s->exp);
}

/* dS of one score tile, whose scores are raw products, by the form or the slow path. */
static void amx_vjp_make_score_tile(amx_vjp_state *s, amx_vjp_tile_index at, float bias, bool fast,
                                    float *stage, amx_vjp_score_tile *st) {
    const ejki_flash_problem *p = &s->problem.forward;
    const amx_vjp_tile *t = &s->tile[at.tile];
    const amx_vjp_chunk *c = &s->chunk[at.chunk];
    const float tops[] = {t->query_top, t->cotangent_top};
    uint32_t kept[AMX_ROWS];
    if (t->special || c->special)
        amx_vjp_slow_products(s, at.tile, at.chunk, st->visible, stage,
                              stage + AMX_ROWS * AMX_CHUNK);
    if (fast && st->form && amx_vjp_try_form(s, st)) return;
    const bool in_range = p->soft_cap == 0 && amx_vjp_is_in_range(s, t, c, tops) &&
                          bias * (float)LOG2_E <= AMX_VJP_FAST_RANGE;
    if (s->score_mod) {
        amx_vjp_modify(s, st->bias, stage);
        if (p->soft_cap != 0) st->caps = s->scratch + AMX_VJP_CAPS;
        st->scale = 1;
    }
    if (p->dropout > 0) {
        amx_vjp_keep(s, at.tile, s->key + at.chunk * AMX_CHUNK, st->visible, kept);
        st->kept = kept;
        st->share = (float)ejki_dropout_factor(p->dropout);
    }
    if (!in_range || !amx_vjp_fast_d_scores(st, &s->exp)) amx_vjp_slow_d_scores(st, &s->exp);
    st->kept = NULL;
}

/* dS of one score tile, beside the products of the next one, if there is one. */
static void amx_vjp_score_tile_step(amx_vjp_state *s, amx_vjp_tile_index at, float *stage,
                                    const amx_vjp_next *next) {
    amx_vjp_prefetch(s);
    const amx_vjp_plan *t = &s->plan;
    const bool all = *amx_vjp_state_of(s, at.tile, at.chunk) == AMX_VJP_ALL;
    const int64_t index = 2 * at.tile + at.chunk % 2; /* of the panel */
    const float bias = s->problem.forward.has_bias ? s->bias_tops[index] : 0;
    amx_vjp_score_tile st = amx_vjp_score_tile_of(s, at, stage);
    uint32_t words[AMX_ROWS];
    st.bias = (const uint32_t *)(const void *)(s->bias_pairs + index * AMX_VJP_BIAS_PAIRS);
    if (amx_vjp_writes_bias_once(s) && s->problem.forward.soft_cap != 0)
        st.d_bias_bf16 = s->d_bias_pairs + index * AMX_VJP_BIAS_PAIRS;
    if (s->problem.wants_bias && !amx_vjp_writes_bias_once(s)) st.d_bias_f32 = s->scratch;
    const bool fast = amx_vjp_takes_fast_path(s, at, bias, &st);
    const bool overlaps = next && fast && !s->degree_4 && !st.d_bias_f32 &&
                          amx_vjp_overlaps(t->steps, t->value_steps);
    if (!overlaps || s->score_mod || !all) st.visible = amx_vjp_words(s, at.tile, at.chunk, words);
    if (!overlaps || !amx_vjp_step(t->steps, next, &st, &s->exp)) {
        if (next && !overlaps) amx_vjp_products(next, t->steps, t->value_steps);
        if (!st.visible) st.visible = amx_vjp_words(s, at.tile, at.chunk, words);
        amx_vjp_make_score_tile(s, at, bias, fast, stage, &st);
    }
    if (st.d_bias_f32) amx_vjp_sum_bias(s, at.tile, at.chunk, st.d_bias_f32);
}

/* Weights and dS of tiles beside a panel; 0 where one that sees something of it sees nothing of a chunk. */
static void amx_vjp_make(amx_vjp_state *s, int64_t panel) {
    const int64_t size = AMX_ROWS * AMX_CHUNK;
    float *stage = s->stage, *other = s->stage + 2 * size;
    amx_vjp_tile_index last = {-1, 0};
    for (int64_t n = 0; n < 2 * s->tiles; n++) {
        const amx_vjp_tile_index at = {n / 2, 2 * panel + n % 2};
        if (!amx_vjp_is_visible(s, at.tile, at.chunk)) {
            if (!amx_vjp_is_visible(s, at.tile, at.chunk ^ 1)) continue;
            const amx_vjp_score_tile st = amx_vjp_score_tile_of(s, at, stage);
            for (int64_t half = 0; half < 2; half++) {
                memset(st.weights + half * st.half, 0, AMX_ELEMENT * sizeof(uint16_t));
                memset(st.d_scores + half * st.half, 0, AMX_ELEMENT * sizeof(uint16_t));
            }
            continue;
        }
        const amx_vjp_next next = amx_vjp_next_of(s, at, other);
        if (last.tile >= 0)
            amx_vjp_score_tile_step(s, last, stage, &next);
        else
            amx_vjp_products(&next, s->plan.steps, s->plan.value_steps);
        float *swap = stage;
        stage = other;
        other = swap;
        last = at;
    }
    if (last.tile >= 0) amx_vjp_score_tile_step(s, last, stage, NULL);
}

/* The sums of a panel's keys += coefficientsᵀ · rows, over the tiles [first, end). */
static void amx_vjp_add_panel(const amx_vjp_state *s, const uint16_t *coefficients,
                              const uint16_t *rows, int64_t wide, int64_t first, int64_t end,
                              float *sums) {
    const amx_vjp_operand left = {coefficients + first * AMX_ELEMENT, s->plan.tiles * AMX_ELEMENT,
                                  AMX_ELEMENT};
    for (int64_t d = 0; d < wide; d++) {
        const amx_vjp_operand right = {rows + (first * wide + d) * AMX_ELEMENT, 0,
                                       wide * AMX_ELEMENT};
        amx_vjp_add_four(left, right, end - first, sums + d * AMX_SUMS, wide * AMX_SUMS);
    }
}

static bool amx_vjp_panel_is_visible(const amx_vjp_state *s, int64_t tile, int64_t panel) {
    return amx_vjp_is_visible(s, tile, 2 * panel) || amx_vjp_is_visible(s, tile, 2 * panel + 1);
}

/* What a panel's keys gain by neighbouring tiles that see something of them. */
static void amx_vjp_panel(amx_vjp_state *s, int64_t panel) {
    const ejki_flash_vjp_problem *v = &s->problem;
    const amx_vjp_plan *t = &s->plan;
    const int64_t key = panel * (AMX_VJP_PANEL / 16);
    if (s->problem.forward.has_bias) amx_vjp_pack_bias_panel(s, panel);
    amx_vjp_make(s, panel);
    if (amx_vjp_writes_bias_once(s)) amx_vjp_write_bias_panel(s, panel);
    for (int64_t first = 0, end; first < s->tiles; first = end + 1) {
        for (end = first; end < s->tiles && amx_vjp_panel_is_visible(s, end, panel);) end++;
        if (first == end) continue;
        if (v->wants_value)
            amx_vjp_add_panel(s, s->weights, s->cotangent_rows, t->value_tiles, first, end,
                              s->d_values + key * t->value_tiles * AMX_SUMS);
        if (v->wants_key)
            amx_vjp_add_panel(s, s->d_scores, s->query_rows, t->head_tiles, first, end,
                              s->d_keys + key * t->head_tiles * AMX_SUMS);
        for (int64_t n = first; n < end; n++)
            if (s->tile[n].special) amx_vjp_add_special_rows(s, n, panel);
    }
}

/* ---- A row block ------------------------------------------------------------------------------- */

/* A tile's sums, d tiles d and d + 1 of them, += dS · keys over chunks [first, end). */
static void amx_vjp_add_tile(const amx_vjp_state *s, int64_t tile, int64_t d, int64_t first,
                             int64_t end) {
    const amx_vjp_plan *t = &s->plan;
    const amx_vjp_operand left = {s->keys_transposed + (first * t->head_tiles + d) * AMX_ELEMENT,
                                  AMX_ELEMENT, t->head_tiles * AMX_ELEMENT};
    const amx_vjp_operand right = {s->pairs + (tile * 2 * t->chunks + first) * AMX_ELEMENT,
                                   t->chunks * AMX_ELEMENT, AMX_ELEMENT};
    amx_vjp_add_square(left, right, end - first, s->tile[tile].sums + d * AMX_SUMS, AMX_SUMS,
                       t->head_tiles * AMX_SUMS);
}

/* Chunks [first, result) are visible to a tile, and their keys are products of AMX tiles. */
static int64_t amx_vjp_run_end(const amx_vjp_state *s, int64_t tile, int64_t first, int64_t most) {
    while (first < most && amx_vjp_is_visible(s, tile, first) && !s->chunk[first].special) first++;
    return first;
}

/* d_query += dS · keys for the whole row block: AMX_VJP_KEY_CHUNKS chunks at a time, which stay in a cache. */
static void amx_vjp_queries(const amx_vjp_state *s) {
    const amx_vjp_plan *t = &s->plan;
    for (int64_t run = 0; run < t->chunks; run += AMX_VJP_KEY_CHUNKS)
        for (int64_t d = 0; d < t->head_tiles; d += 2)
            for (int64_t n = 0; n < s->tiles; n++) {
                const int64_t most = ejki_min(t->chunks, run + AMX_VJP_KEY_CHUNKS);
                for (int64_t first = run, end; first < most; first = end + 1) {
                    end = amx_vjp_run_end(s, n, first, most);
                    if (first < end) amx_vjp_add_tile(s, n, d, first, end);
                }
            }
}

/* The same where the block has special chunks: chunk after chunk, so that sums do not depend on the block size. */
static void amx_vjp_queries_in_order(const amx_vjp_state *s) {
    const amx_vjp_plan *t = &s->plan;
    for (int64_t n = 0; n < s->tiles; n++)
        for (int64_t first = 0, end; first < t->chunks; first = end + 1) {
            end = amx_vjp_run_end(s, n, first, t->chunks);
            for (int64_t d = 0; first < end && d < t->head_tiles; d += 2)
                amx_vjp_add_tile(s, n, d, first, end);
            if (end < t->chunks && amx_vjp_is_visible(s, n, end))
                amx_vjp_add_special_keys(s, n, end);
        }
}

/* Waits until a row block has all sums of the blocks of keys before. */
static void amx_vjp_wait(_Atomic int32_t *counter, int64_t previous) {
    for (int64_t tries = 1; atomic_load_explicit(counter, memory_order_acquire) != previous;
         tries++)
        if (tries % 256 == 0) sched_yield();
}

/* A row block's sums in the memory that blocks of keys share, or of its own; `begins`: they are 0. */
static void amx_vjp_take_sums(amx_vjp_state *s, float *shared, bool begins) {
    const int64_t size = 2 * s->plan.head_tiles * AMX_SUMS;
    for (int64_t n = 0; n < s->tiles; n++) {
        amx_vjp_tile *t = &s->tile[n];
        float *own = shared ? shared + n * size : NULL;
        const bool whole = t->count == AMX_ROWS;
        t->sums = own && whole ? own : s->d_queries + n * size;
        if (begins)
            memset(t->sums, 0, (size_t)size * sizeof(float));
        else if (!whole)
            amx_vjp_unfold(s, t, own);
    }
}

/* Writes a row block's sums, if they are complete, or leaves them to the next block of keys. */
static void amx_vjp_leave_sums(const amx_vjp_state *s, float *shared, bool ends) {
    const int64_t size = 2 * s->plan.head_tiles * AMX_SUMS;
    for (int64_t n = 0; n < s->tiles; n++) {
        const amx_vjp_tile *t = &s->tile[n];
        if (ends)
            amx_vjp_write_tile(s, t);
        else if (t->count < AMX_ROWS)
            amx_vjp_fold(s, t, shared + n * size);
    }
}

/* Adds the task's share of the row block's d_query, in the order of blocks of keys. */
static void amx_vjp_finish(amx_vjp_state *s, amx_vjp_shared *shared,
                           const amx_vjp_key_blocks *visible_blocks, int64_t row_block,
                           bool visible) {
    const amx_vjp_plan *t = &s->plan;
    const int64_t before = amx_vjp_neighbour(visible_blocks, s->block, -1);
    const int64_t after = amx_vjp_neighbour(visible_blocks, s->block, 1);
    const bool shares = before >= 0 || after >= 0;
    _Atomic int32_t *counter = shared->progress + row_block;
    float *sums = shared->sums +
                  (s->first_row + s->head * s->problem.forward.queries + s->row) * 32 * t->steps;
    if (before >= 0 && shared->workers > 1) amx_vjp_wait(counter, before + 1);
    amx_vjp_take_sums(s, shares ? sums : NULL, before < 0);
    if (visible && s->special_keys)
        amx_vjp_queries_in_order(s);
    else if (visible)
        amx_vjp_queries(s);
    amx_vjp_leave_sums(s, sums, after < 0);
    if (shares) atomic_store_explicit(counter, (int32_t)(s->block + 1), memory_order_release);
}

static amx_vjp_key_blocks amx_vjp_key_blocks_at(const amx_vjp_state *s,
                                                const amx_vjp_shared *shared, int64_t row_block) {
    const amx_vjp_plan *t = &s->plan;
    return amx_vjp_key_blocks_of(
        &s->problem.forward, t, amx_vjp_block_range(&t->queries, row_block % t->head_row_blocks),
        shared->block_bits + (s->first_row_block + row_block) * t->block_words);
}

/* Plans what to prefetch while a row block is worked on: the rows of the next one that has scores with the block. */
static void amx_vjp_plan_prefetch(amx_vjp_state *s, const amx_vjp_shared *shared,
                                  int64_t row_block) {
    const amx_vjp_plan *t = &s->plan;
    const ejki_flash_problem *p = &s->problem.forward;
    s->ahead = (amx_vjp_range){0, 0};
    for (row_block--; row_block >= 0; row_block--) {
        const amx_vjp_key_blocks visible_blocks = amx_vjp_key_blocks_at(s, shared, row_block);
        if (amx_vjp_has_key_block(&visible_blocks, s->block)) break;
    }
    if (row_block < 0) return;
    s->ahead = amx_vjp_block_range(&t->queries, row_block % t->head_row_blocks);
    s->ahead_head = s->kv_head * p->group + row_block / t->head_row_blocks;
    s->prefetch_rate = ejki_cdiv(s->ahead.end - s->ahead.first, ejki_max(1, s->score_tiles));
    s->ahead_sums = s->problem.wants_query && t->key_blocks > 1
                        ? shared->sums + (s->first_row + s->ahead_head * p->queries) * 32 * t->steps
                        : NULL;
}

static void amx_vjp_row_block(amx_vjp_state *s, amx_vjp_shared *shared, int64_t row_block) {
    const amx_vjp_plan *t = &s->plan;
    const ejki_flash_problem *p = &s->problem.forward;
    const amx_vjp_range rows = amx_vjp_block_range(&t->queries, row_block % t->head_row_blocks);
    const int64_t index = s->first_row_block + row_block;
    const amx_vjp_key_blocks visible_blocks = amx_vjp_key_blocks_at(s, shared, row_block);
    const bool once = amx_vjp_writes_bias_once(s) && p->layout == EJKI_FLASH_DENSE;
    s->head = s->kv_head * p->group + row_block / t->head_row_blocks;
    if (!amx_vjp_has_key_block(&visible_blocks, s->block)) {
        if (once) amx_vjp_zero_bias(s, rows, s->key, s->key_end);
        return;
    }
    s->row = rows.first;
    s->count = rows.end - rows.first;
    s->tiles = ejki_cdiv(s->count, AMX_ROWS);
    const bool visible =
        amx_vjp_pack_row_block(s, shared->delta + s->first_row + s->head * p->queries);
    if (once) amx_vjp_zero_hidden_bias(s);
    amx_vjp_plan_prefetch(s, shared, row_block);
    for (int64_t panel = 0; visible && panel < t->chunks / 2; panel++) amx_vjp_panel(s, panel);
    if (s->problem.wants_query) amx_vjp_finish(s, shared, &visible_blocks, index, visible);
}

/* ---- Tasks -------------------------------------------------------------------------------------------- */

static void amx_vjp_task(amx_vjp_state *s, amx_vjp_shared *shared, const ejki_vjp_task *task) {
    if (s->sequence != task->sequence) amx_vjp_enter(shared, task->sequence, &s->problem, &s->plan);
    const ejki_flash_vjp_problem *v = &s->problem;
    const ejki_flash_problem *p = &v->forward;
    const amx_vjp_plan *t = &s->plan;
    const ejki_vjp_sequence *sequence = &shared->tasks.sequence[task->sequence];
    const amx_vjp_range keys = amx_vjp_block_range(&t->keys, task->key_block);
    s->sequence = task->sequence;
    s->kv_head = task->kv_head;
    s->first_row = sequence->first_row;
    s->first_row_block = sequence->first_row_block + task->kv_head * t->row_blocks;
    s->block = task->key_block;
    s->key = keys.first;
    s->key_end = keys.end;
    s->degree_4 = false;
    amx_vjp_pack_block(s);
    /*
     * From the last row block on: the next block of keys, which in a causal call begins with later rows, then seldom
     * has to wait for those before it.
     */
    for (int64_t row_block = t->row_blocks - 1; row_block >= 0; row_block--)
        amx_vjp_row_block(s, shared, row_block);
    if (v->wants_key)
        amx_vjp_write_keys(s, &v->d_key, s->d_keys, t->head_tiles, p->head_dim, (float)p->scale);
    if (v->wants_value)
        amx_vjp_write_keys(s, &v->d_value, s->d_values, t->value_tiles, p->value_dim,
                           (float)ejki_dropout_factor(p->dropout));
}

/* A block of keys of all heads that add to the same elements of the bias. */
static void amx_vjp_bias_group(amx_vjp_state *s, amx_vjp_shared *shared, int64_t bias_group,
                               int64_t key_block) {
    const ejki_flash_problem *p = &shared->problem->forward;
    const amx_vjp_plan *t = &shared->plan;
    const int64_t kv_heads = t->sums_heads ? 1 : p->kv_heads;
    const int64_t batch = bias_group / kv_heads, kv_head = bias_group % kv_heads;
    const int64_t room = t->bias_heads * t->bias_queries * t->chunks * AMX_CHUNK;
    memset(s->bias, 0, (size_t)room * sizeof(float));
    for (int64_t b = batch; b < (t->sums_batches ? p->batch : batch + 1); b++)
        for (int64_t h = kv_head; h < (t->sums_heads ? p->kv_heads : kv_head + 1); h++) {
            const ejki_vjp_task task = {.sequence = b, .kv_head = h, .key_block = key_block};
            if (key_block < shared->tasks.sequence[b].key_blocks) amx_vjp_task(s, shared, &task);
        }
    amx_vjp_write_bias(s->bias, t, shared->problem, batch, kv_head,
                       amx_vjp_block_range(&t->keys, key_block));
}

/* A worker takes tasks until none is left. */
static void amx_vjp_worker(void *argument, int64_t worker) {
    amx_vjp_shared *shared = argument;
    const amx_vjp_plan *t = &shared->plan;
    const bool sums_bias = shared->problem->wants_bias;
    const int64_t count = sums_bias ? t->bias_groups * t->key_blocks : shared->tasks.count;
    ejki_vjp_task task = {.at = 0};
    amx_vjp_state state;
    amx_vjp_bind(&state, shared, worker);
    amx_open();
    for (;;) {
        const int64_t index = atomic_fetch_add_explicit(&shared->next, 1, memory_order_relaxed);
        if (index >= count) break;
        if (sums_bias) {
            amx_vjp_bias_group(&state, shared, index % t->bias_groups, index / t->bias_groups);
            continue;
        }
        ejki_vjp_go(&shared->tasks, index, shared->workers, &task);
        amx_vjp_task(&state, shared, &task);
    }
    amx_close();
    v_streamed();
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

/* Makes the list of tasks. */
static void amx_vjp_cut_all(amx_vjp_shared *shared) {
    const ejki_flash_problem *p = &shared->problem->forward;
    const amx_vjp_plan *t = &shared->plan;
    const ejki_vjp_blocks blocks = {
        .keys = t->keys.size, .row_blocks = t->row_blocks, .key_blocks = t->key_blocks};
    if (p->layout == EJKI_FLASH_DENSE)
        ejki_vjp_cut(&shared->tasks, p, &blocks, true);
    else
        amx_vjp_cut(&shared->tasks, p, t->queries.size, t->keys.size, shared->problem->wants_bias);
}

static ejk_status amx_vjp_run(const ejk_run *run) {
    amx_vjp_shared shared = {.problem = run->problem, .workers = run->workers};
    const ejki_flash_vjp_problem *v = shared.problem;
    shared.plan = amx_vjp_plan_of(v, run->parameters);
    const amx_vjp_plan *t = &shared.plan;
    char *memory = run->workspace;
    shared.sums = (float *)(void *)(memory + t->sums_at);
    shared.delta = (float *)(void *)(memory + t->delta_at);
    shared.progress = (_Atomic int32_t *)(void *)(memory + t->progress_at);
    shared.memory = memory + t->shared_bytes;
    shared.block_bits = (uint64_t *)(void *)(memory + t->block_bits_at);
    shared.tasks.sequence = (ejki_vjp_sequence *)(void *)(memory + t->sequences_at);
    shared.tasks.order = (int64_t *)(void *)(memory + t->order_at);
    amx_vjp_cut_all(&shared);
    for (int64_t n = 0; n < t->row_block_count; n++) atomic_init(&shared.progress[n], 0);
    amx_vjp_all(&shared, run->threads, amx_vjp_begin);
    if (v->wants_query || v->wants_key || v->wants_value || v->wants_bias)
        amx_vjp_all(&shared, run->threads, amx_vjp_worker);
    if (v->wants_sinks) amx_vjp_all(&shared, run->threads, amx_vjp_sinks);
    return EJK_OK;
}

static const ejk_parameter amx_vjp_parameters[] = {
    {"q_blocksize", 1, 512, 1, 128, "query rows beside a block of keys at a time"},
    {"kv_blocksize", 1, 2048, 1, 512, "keys of a task"},
};

EJKI_DECLARE(flash_attention_vjp_matrix_amx, .priority = 5, .version = 1,
             .parameters = amx_vjp_parameters, .suggest = ejki_amx_vjp_suggest,
             .parameter_count = 2, .prepare = amx_vjp_prepare, .run = amx_vjp_run)
