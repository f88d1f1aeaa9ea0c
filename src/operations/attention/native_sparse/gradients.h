/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of native_sparse_attention. First tiles of tokens, as forward: gradients of queries and gates, which blocks
 * are chosen, and of each row and branch what its softmax comes to. Then blocks of keys: the tokens that see one come
 * by in their order, LANES rows of queries at a time, whose weights are made again. So each gradient is added up by one
 * worker, in one order, and none of all tokens is kept in float32.
 */
#ifndef EJKI_NATIVE_SPARSE_GRADIENTS_H
#define EJKI_NATIVE_SPARSE_GRADIENTS_H

#include "operations/attention/native_sparse/tile.h"

/* ---- Tiles of tokens -------------------------------------------------------------------------------- */

static kept *kept_at(const shared *s, int which, nsa_size b, nsa_size t, nsa_size head) {
    return s->kept[which] + (b * s->p->tokens + t) * s->p->heads + head;
}

static void put_gradient(const nsa_view *v, nsa_size at, float value) {
    if (v->dtype) ejki_store_f64((ejk_dtype)v->dtype, v->data, at, (double)value);
}

/* What a branch is to the queries and gates of lanes from `lane` on. */
static void derive_branch(tile *w, const branch *br, const softmax *s, int which, int64_t lane) {
    const nsa_problem *p = w->s->p;
    const int64_t width = w->s->key.width;
    weigh_cotangents(p, br, s->scores, w->own, w->inner);
    for (int64_t i = 0; i < br->lanes; i++) {
        const nsa_size t = w->first + (lane + i) / p->group;
        const nsa_size head = w->kv_head * p->group + (lane + i) % p->group;
        w->factor[i] = 0;
        if (i >= br->used) continue;
        w->inner[i] *= w->part[i];
        if (w->part[i] == 0) w->inner[i] = 0;
        w->factor[i] = w->part[i] * gate_of(w, which, lane + i) * (float)p->scale;
        if (w->part[i] == 0) w->factor[i] = 0;
        *kept_at(w->s, which, w->b, t, head) = (kept){s->most[i], w->part[i], w->inner[i]};
        put_gradient(&p->d_gate[which], nsa_at(&p->d_gate[which], w->b, t, head), w->inner[i]);
    }
    if (!p->d_query.dtype) return;
    slopes(br->keys, br->lanes, s->scores, w->inner, w->factor, w->own);
    add_rows(br, w->own, true, width, w->sums);
    for (int64_t i = 0; i < br->used; i++)
        for (int64_t d = 0; d < width; d += VL) {
            float *to = w->all + (lane + i) * width + d;
            v_store(to, v_add(v_load(w->sums + i * width + d), v_load(to)));
        }
}

static void put_d_query(const tile *w) {
    const nsa_problem *p = w->s->p;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    for (int64_t lane = 0; p->d_query.dtype && lane < w->used; lane++) {
        const float *from = w->all + lane * w->s->key.width;
        const nsa_size at = nsa_at(&p->d_query, w->b, w->first + lane / p->group,
                                   w->kv_head * p->group + lane % p->group);
        for (int64_t d = 0; d < p->dim; d += VL)
            v_narrow_some(dtype, element_at(dtype, p->d_query.data, at + d), v_load(from + d),
                          p->dim - d);
    }
}

static void keep_chosen(const tile *w, const int64_t *counts) {
    const nsa_problem *p = w->s->p;
    for (int64_t i = 0; i < w->count; i++) {
        const int64_t at = w->head * p->tokens + w->first + i;
        memcpy(w->s->chosen + at * p->slots, w->list + i * p->slots,
               (size_t)p->slots * sizeof *w->list);
        w->s->count[at] = (int32_t)counts[i];
    }
}

static void derive_tile(tile *w) {
    const nsa_problem *p = w->s->p;
    int64_t counts[LANES];
    branch br = {0};
    softmax s = {0};
    memset(w->all, 0, (size_t)(w->used * w->s->key.width) * sizeof *w->all);
    if (nsa_has(p, NSA_COMPRESSED)) {
        br = compressed_branch(w);
        s = softmax_of(w, &br);
    }
    choose_all(w, &br, &s, counts);
    keep_chosen(w, counts);
    if (nsa_has(p, NSA_COMPRESSED)) derive_branch(w, &br, &s, NSA_COMPRESSED, 0);
    for (int64_t i = 0; i < w->count; i++) {
        br = selected_branch(w, i, w->list + i * p->slots, counts[i]);
        s = softmax_of(w, &br);
        derive_branch(w, &br, &s, NSA_SELECTED, i * p->group);
    }
    if (nsa_has(p, NSA_WINDOW)) {
        br = window_branch(w);
        s = softmax_of(w, &br);
        derive_branch(w, &br, &s, NSA_WINDOW, 0);
    }
    put_d_query(w);
}

/* A token of no sequence. */
static void clear_gradients(tile *w) {
    const nsa_problem *p = w->s->p;
    const nsa_view *rows[] = {&p->d_key, &p->d_value};
    w->s->count[w->head * p->tokens + w->first] = 0;
    memset(w->all, 0, (size_t)(w->used * w->s->key.width) * sizeof *w->all);
    put_d_query(w);
    for (int i = 0; i < NSA_BRANCHES; i++)
        for (nsa_size h = w->kv_head * p->group; h < (w->kv_head + 1) * p->group; h++)
            put_gradient(&p->d_gate[i], nsa_at(&p->d_gate[i], w->b, w->first, h), 0);
    for (int i = 0; i < 2; i++)
        for (nsa_size d = 0; d < (i ? p->width : p->dim); d++)
            put_gradient(rows[i], nsa_at(rows[i], w->b, w->first, w->kv_head) + d, 0);
}

static void derive_worker(void *argument, int64_t worker) {
    shared *s = argument;
    tile w;
    place_tile(&w, s, s->scratch + worker * s->scratch_bytes);
    each_tile(s, &w, derive_tile, clear_gradients);
}

/* ---- Which tokens chose a block --------------------------------------------------------------------- */

static void list_worker(void *argument, int64_t worker) {
    shared *s = argument;
    const nsa_problem *p = s->p;
    (void)worker;
    for (;;) {
        const int64_t head = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
        if (head >= p->batch * p->kv_heads) return;
        int64_t *first = s->first + head * (p->rows + 1);
        int32_t *token = s->token + head * p->tokens * p->slots;
        memset(first, 0, (size_t)(p->rows + 1) * sizeof *first);
        /* Numbers of tokens become the ends of lists, and tokens are put before them, the last first. */
        for (int turn = 0; turn < 2; turn++) {
            for (nsa_size t = p->tokens - 1; t >= 0; t--) {
                const nsa_size n = nsa_line_at(p, t), at = head * p->tokens + t;
                const nsa_line line = n < 0 ? (nsa_line){0} : nsa_line_of(p, n);
                for (int32_t k = 0; k < s->count[at]; k++) {
                    int64_t *end = first + line.row + s->chosen[at * p->slots + k];
                    if (turn == 0)
                        ++*end;
                    else
                        token[--*end] = (int32_t)t;
                }
            }
            for (nsa_size row = 1; turn == 0 && row <= p->rows; row++) first[row] += first[row - 1];
        }
    }
}

/* ---- Blocks of keys --------------------------------------------------------------------------------- */

enum { MEANS = 32 }; /* means of a task */

/* Keys of a worker, the rows that come by, and gradients. */
typedef struct keys {
    shared *s;
    nsa_size head, b, kv_head;
    nsa_line line;
    const float *tiles, *value_tiles; /* of the keys */
    int64_t first, count;             /* keys, counted as bounds of rows are */
    float *query, *cotangent;         /* panels of LANES rows */
    float *query_rows, *cotangent_rows;
    float *weights, *slopes; /* [keys][LANES] */
    float *d_key, *d_value;  /* [keys][width] */
    float most[LANES], part[LANES], inner[LANES], gate[LANES], factor[LANES];
    int64_t low[LANES], high[LANES], used;
    bool finite;
} keys;

static int64_t place_keys(keys *k, shared *s, void *memory) {
    const nsa_problem *p = s->p;
    int64_t place = 0, *at = &place;
    const int64_t count = ejki_round_up(ejki_max(p->blocks.chunk, MEANS), KEY_TILE);
    k->s = s;
    TAKE(k->query, p->dim * LANES);
    TAKE(k->cotangent, p->width * LANES);
    TAKE(k->query_rows, s->key.width * LANES);
    TAKE(k->cotangent_rows, s->value.width * LANES);
    TAKE(k->weights, count * LANES);
    TAKE(k->slopes, count * LANES);
    TAKE(k->d_key, count * s->key.width);
    TAKE(k->d_value, count * s->value.width);
    return place;
}

/* Row `lane` is that of a token's query head, which sees keys from low to high - 1 by a branch. */
static void put_row(keys *k, int64_t lane, int which, nsa_size t, nsa_size g, int64_t low,
                    int64_t high) {
    const shared *s = k->s;
    const nsa_problem *p = s->p;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const nsa_size head = k->kv_head * p->group + g;
    const kept *own = kept_at(s, which, k->b, t, head);
    const nsa_view *gate = &p->gate[which];
    float *query = k->query_rows + lane * s->key.width;
    float *cotangent = k->cotangent_rows + lane * s->value.width;
    k->finite &=
        widen_row(dtype, element_at(dtype, p->query.data, nsa_at(&p->query, k->b, t, head)), p->dim,
                  s->key.width, query);
    k->finite &= widen_row(dtype, element_at(dtype, p->out.data, nsa_at(&p->out, k->b, t, head)),
                           p->width, s->value.width, cotangent);
    k->most[lane] = own->most;
    k->part[lane] = own->part;
    k->inner[lane] = own->inner;
    k->gate[lane] = 1;
    if (gate->dtype)
        k->gate[lane] =
            (float)ejki_load_f64((ejk_dtype)gate->dtype, gate->data, nsa_at(gate, k->b, t, head));
    k->factor[lane] = k->part[lane] * k->gate[lane] * (float)p->scale;
    k->low[lane] = low;
    k->high[lane] = high;
}

/* Rows of floats as a panel; lanes that are not used are 0. */
static void turn_rows(const float *rows, int64_t used, int64_t depth, int64_t width, float *panel) {
    for (int64_t lane = 0; lane < LANES; lane += VL)
        for (int64_t d = 0; d < depth; d += VL) {
            vf block[VL];
            for (int64_t i = 0; i < VL; i++)
                block[i] = lane + i < used ? v_load(rows + (lane + i) * width + d) : v_zero();
            v_transpose(block);
            for (int64_t i = 0; i < ejki_min(VL, depth - d); i++)
                v_store(panel + (d + i) * LANES + lane, block[i]);
        }
}

/* Weights of the rows, times their gates, and slopes. */
static void make_slopes(keys *k) {
    const nsa_problem *p = k->s->p;
    score_tiles(k->count, p->dim, k->tiles, k->query, LANES, LANES, k->weights);
    score_tiles(k->count, p->width, k->value_tiles, k->cotangent, LANES, LANES, k->slopes);
    for (int64_t lane = 0; lane < k->used; lane++) {
        const int64_t low = ejki_min(k->low[lane] - k->first, k->count);
        const int64_t high = ejki_max(k->high[lane] - k->first, ejki_max(low, 0));
        for (int64_t n = 0; n < low; n++) k->weights[n * LANES + lane] = -INFINITY;
        for (int64_t n = high; n < k->count; n++) k->weights[n * LANES + lane] = -INFINITY;
    }
    for (int64_t lane = 0; lane < LANES; lane += VL) {
        const vf scale = v_set1((float)p->scale), inner = v_load(k->inner + lane);
        const vf factor = v_load(k->factor + lane);
        const vf part = v_mul(v_load(k->part + lane), v_load(k->gate + lane));
        vf most = v_load(k->most + lane);
        most = v_select_gt(most, v_set1(-INFINITY), most, v_zero());
        for (int64_t n = lane; n < k->count * LANES; n += LANES) {
            const vf weight = exponential(v_mul(v_load(k->weights + n), scale), most);
            v_store(k->weights + n, weighted(weight, part));
            v_store(k->slopes + n,
                    v_mul(weighted(weight, v_sub(v_load(k->slopes + n), inner)), factor));
        }
    }
}

/* Gradients += weights times rows. */
static void add_down(const keys *k, const float *weights, const float *rows, int64_t width,
                     float *to) {
    for (int64_t n = 0, count; k->finite && n < k->count; n += count) {
        count = gemm_rows(k->count - n);
        multiply_down((int)count, width, k->used, weights + n * LANES, 0, rows, width,
                      to + n * width, width, true);
    }
    for (int64_t n = 0; !k->finite && n < k->count; n++)
        for (int64_t lane = 0; lane < k->used; lane++) {
            const float weight = weights[n * LANES + lane];
            for (int64_t d = 0; weight != 0 && d < width; d += VL)
                v_store(to + n * width + d, v_fma(v_set1(weight), v_load(rows + lane * width + d),
                                                  v_load(to + n * width + d)));
        }
}

/* The rows at hand, and room for others. */
static void flush(keys *k) {
    const shared *s = k->s;
    const nsa_problem *p = s->p;
    if (k->used == 0) return;
    for (int64_t lane = k->used; lane < LANES; lane++)
        k->most[lane] = k->part[lane] = k->inner[lane] = k->gate[lane] = k->factor[lane] = 0;
    turn_rows(k->query_rows, k->used, p->dim, s->key.width, k->query);
    turn_rows(k->cotangent_rows, k->used, p->width, s->value.width, k->cotangent);
    make_slopes(k);
    add_down(k, k->weights, k->cotangent_rows, s->value.width, k->d_value);
    add_down(k, k->slopes, k->query_rows, s->key.width, k->d_key);
    k->used = 0;
    k->finite = true;
}

static void add_token(keys *k, int which, nsa_size t, int64_t low, int64_t high) {
    for (nsa_size g = 0; g < k->s->p->group; g++) {
        put_row(k, k->used++, which, t, g, low, high);
        if (k->used == LANES) flush(k);
    }
}

static void open_keys(keys *k, int64_t head) {
    const nsa_problem *p = k->s->p;
    k->head = head;
    k->b = head / p->kv_heads;
    k->kv_head = head % p->kv_heads;
    k->used = 0;
    k->finite = true;
}

static void clear_keys(const keys *k) {
    memset(k->d_key, 0, (size_t)(k->count * k->s->key.width) * sizeof *k->d_key);
    memset(k->d_value, 0, (size_t)(k->count * k->s->value.width) * sizeof *k->d_value);
}

/* Gradients of MEANS means of a line. */
static void derive_means(keys *k, nsa_size row) {
    const shared *s = k->s;
    const nsa_problem *p = s->p;
    const nsa_size n = line_of_row(p, row);
    k->line = nsa_line_of(p, n);
    const nsa_size whole = (k->line.end - k->line.begin) / p->blocks.chunk;
    k->first = row - k->line.row;
    k->count = ejki_min(MEANS, whole - k->first);
    if (k->first % MEANS != 0 || k->count <= 0) return;
    const int64_t tile_at = k->head * s->mean_tiles + mean_tile(&k->line, n) + k->first / KEY_TILE;
    k->tiles = s->key.mean_tiles + tile_at * KEY_TILE * s->key.depth;
    k->value_tiles = s->value.mean_tiles + tile_at * KEY_TILE * s->value.depth;
    clear_keys(k);
    for (nsa_size t = k->line.begin + (k->first + 1) * p->blocks.chunk - 1; t < k->line.end; t++)
        add_token(k, NSA_COMPRESSED, t, 0, (t - k->line.begin + 1) / p->blocks.chunk);
    flush(k);
    memcpy(s->d_mean_key + (k->head * p->rows + row) * s->key.width, k->d_key,
           (size_t)(k->count * s->key.width) * sizeof *k->d_key);
    memcpy(s->d_mean_value + (k->head * p->rows + row) * s->value.width, k->d_value,
           (size_t)(k->count * s->value.width) * sizeof *k->d_value);
}

/* Gradients of a mean are shared out among its tokens. */
static void begin_block(const keys *k, const ejki_range *block) {
    const shared *s = k->s;
    const nsa_problem *p = s->p;
    const bool whole = block->end - block->begin == p->blocks.chunk;
    const int64_t row = k->head * p->rows + block->row;
    clear_keys(k);
    if (!whole || !nsa_has(p, NSA_COMPRESSED)) return;
    const vf part = v_set1(1 / (float)p->blocks.chunk);
    for (int64_t n = 0; n < k->count; n++) {
        for (int64_t d = 0; d < s->key.width; d += VL)
            v_store(k->d_key + n * s->key.width + d,
                    v_mul(part, v_load(s->d_mean_key + row * s->key.width + d)));
        for (int64_t d = 0; d < s->value.width; d += VL)
            v_store(k->d_value + n * s->value.width + d,
                    v_mul(part, v_load(s->d_mean_value + row * s->value.width + d)));
    }
}

static void put_keys(const keys *k, const nsa_view *v, nsa_size begin, const float *from,
                     int64_t depth, int64_t width) {
    const ejk_dtype dtype = (ejk_dtype)k->s->p->dtype;
    for (int64_t n = 0; v->dtype && n < k->count; n++) {
        const nsa_size at = nsa_at(v, k->b, begin + n, k->kv_head);
        for (int64_t d = 0; d < depth; d += VL)
            v_narrow_some(dtype, element_at(dtype, v->data, at + d), v_load(from + n * width + d),
                          depth - d);
    }
}

static void derive_block(keys *k, nsa_size row) {
    const shared *s = k->s;
    const nsa_problem *p = s->p;
    const ejki_range block = ejki_chunk_of_row(&p->blocks, row);
    if (block.begin >= block.end) return;
    k->line = nsa_line_of(p, line_of_row(p, row));
    k->first = block.begin - k->line.begin;
    k->count = block.end - block.begin;
    const int64_t tile_at = k->head * s->block_tiles + block_tile(block.begin, row);
    k->tiles = s->key.tiles + tile_at * KEY_TILE * s->key.depth;
    k->value_tiles = s->value.tiles + tile_at * KEY_TILE * s->value.depth;
    begin_block(k, &block);
    const int64_t *first = s->first + k->head * (p->rows + 1);
    const int32_t *token = s->token + k->head * p->tokens * p->slots;
    for (int64_t i = first[row]; i < first[row + 1]; i++)
        add_token(k, NSA_SELECTED, token[i], 0, token[i] - k->line.begin + 1);
    for (nsa_size t = block.begin;
         p->window > 0 && t < ejki_min(k->line.end, block.end - 1 + p->window); t++)
        add_token(k, NSA_WINDOW, t, t - k->line.begin + 1 - p->window, t - k->line.begin + 1);
    flush(k);
    put_keys(k, &p->d_key, block.begin, k->d_key, p->dim, s->key.width);
    put_keys(k, &p->d_value, block.begin, k->d_value, p->width, s->value.width);
}

static void each_row(shared *s, int64_t worker, void (*work)(keys *, nsa_size)) {
    const nsa_problem *p = s->p;
    keys k;
    place_keys(&k, s, s->scratch + worker * s->scratch_bytes);
    for (;;) {
        const int64_t at = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
        if (at >= p->batch * p->kv_heads * p->rows) return;
        open_keys(&k, at / p->rows);
        work(&k, at % p->rows);
    }
}
static void means_worker(void *argument, int64_t worker) {
    each_row(argument, worker, derive_means);
}
static void blocks_worker(void *argument, int64_t worker) {
    each_row(argument, worker, derive_block);
}

#endif
