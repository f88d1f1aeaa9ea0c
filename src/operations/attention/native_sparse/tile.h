/* SPDX-License-Identifier: Apache-2.0 */
/* A tile: some tokens of a sequence with the query heads of a key head as lanes, and what its branches see. */
#ifndef EJKI_NATIVE_SPARSE_TILE_H
#define EJKI_NATIVE_SPARSE_TILE_H

#include "operations/attention/native_sparse/choose.h"

/* A token as amx/selected.h has it: its queries, scores and weights, and tiles of the keys that it sees. */
typedef struct amx_token {
    uint16_t *query, *weights, *rows, *columns;
    float *scores, *sums;
    const void **key;
    const uint16_t **value;
    int64_t *seen, copies;
} amx_token;

/* A worker's memory and its tile. */
typedef struct tile {
    shared *s;
    nsa_size b, kv_head, head; /* head: of all entries' */
    nsa_line line;
    nsa_size n, first, count; /* line; tokens */
    int64_t used, lanes;      /* of the panel, that of query and cotangent */
    float *query, *cotangent; /* [components][lanes of the plan] */
    float *row;               /* a row with its zeros */
    float *scores, *own;      /* [keys][lanes] */
    float *sums, *all;        /* [lanes][width of values or keys] */
    float *most, *part, *inner, *factor;
    int64_t *low, *high;
    float *values; /* of the best blocks */
    int32_t *list;
    piece *pieces;
    amx_token amx;
} tile;

static int64_t most_pieces(const nsa_problem *p) {
    const int64_t spanned = (p->window + LANES) / p->blocks.chunk + 3;
    return ejki_max(ejki_max(p->slots, 1), ejki_min(spanned, p->rows + 1));
}

/* Rows of scores, rounded up to tiles, and lanes for them. */
static int64_t most_scores(const shared *s) {
    const nsa_problem *p = s->p;
    const int64_t means = ejki_cdiv(p->tokens, p->blocks.chunk) + KEY_TILE;
    const int64_t window = p->window > 0 ? ejki_min(p->window, p->tokens) + s->tile_tokens +
                                               2 * (p->blocks.chunk + KEY_TILE)
                                         : 0;
    const int64_t chosen =
        ejki_min(p->slots * p->blocks.chunk, p->tokens + p->blocks.chunk) + KEY_TILE;
    const int64_t wide = ejki_max(p->gate[NSA_COMPRESSED].dtype ? means : 0, window) * s->lanes;
    return ejki_max(wide, chosen * ejki_round_up(p->group, VL));
}

#ifdef EJKI_TIER_AMX
static void place_amx(amx_token *a, const shared *s, void *memory, int64_t *at);
#endif

static void place_tile(tile *w, shared *s, void *memory) {
    const nsa_problem *p = s->p;
    int64_t place = 0, *at = &place;
    const int64_t width = ejki_max(s->key.width, s->value.width), scores = most_scores(s);
    *w = (tile){.s = s};
    /* Behind a panel is a vector more, as lanes of the last token are read in whole vectors. */
    TAKE(w->query, p->dim * s->lanes + VL);
    if (p->gradient) TAKE(w->cotangent, p->width * s->lanes + VL);
    TAKE(w->row, 2 * width + VL);
    TAKE(w->scores, scores);
    if (p->gradient) TAKE(w->own, scores);
    TAKE(w->sums, s->lanes * width);
    TAKE(w->all, s->lanes * width);
    TAKE(w->most, s->lanes + VL);
    TAKE(w->part, s->lanes + VL);
    TAKE(w->inner, s->lanes + VL);
    TAKE(w->factor, s->lanes + VL);
    TAKE(w->low, s->lanes);
    TAKE(w->high, s->lanes);
    TAKE(w->values, p->slots);
    TAKE(w->list, p->slots * s->tile_tokens);
    TAKE(w->pieces, most_pieces(p));
#ifdef EJKI_TIER_AMX
    if (!p->gradient) place_amx(&w->amx, s, memory, at);
#endif
    s->scratch_bytes = ejki_max(s->scratch_bytes, place);
}

/* Rows of queries, or of cotangents, as a panel: a component after the other, lanes side by side. */
static void pack_panel(const tile *w, const nsa_view *v, int64_t depth, float *panel) {
    const shared *s = w->s;
    const nsa_problem *p = s->p;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    for (int64_t lane = 0; lane < s->lanes; lane += VL)
        for (int64_t d = 0; d < depth; d += VL) {
            vf block[VL];
            for (int64_t i = 0; i < VL; i++) {
                const int64_t n = lane + i;
                block[i] = v_zero();
                if (n >= w->used) continue;
                const nsa_size at =
                    nsa_at(v, w->b, w->first + n / p->group, w->kv_head * p->group + n % p->group);
                block[i] = v_widen_some(dtype, element_at(dtype, v->data, at + d), depth - d);
            }
            v_transpose(block);
            for (int64_t i = 0; i < ejki_min(VL, depth - d); i++)
                v_store(panel + (d + i) * s->lanes + lane, block[i]);
        }
}

static void open_tile(tile *w, nsa_size n, nsa_size first, nsa_size count) {
    const nsa_problem *p = w->s->p;
    w->n = n;
    w->line = nsa_line_of(p, n);
    w->first = first;
    w->count = count;
    w->used = count * p->group;
    w->lanes = ejki_round_up(w->used, VL);
    pack_panel(w, &p->query, p->dim, w->query);
    if (p->gradient) pack_panel(w, &p->out, p->width, w->cotangent);
}

/* Keys [low, high) of the line, counted from its first token, that lie in block c, from a whole tile on. */
static piece block_piece(const tile *w, int64_t c, int64_t low, int64_t high) {
    const shared *s = w->s;
    const int64_t chunk = s->p->blocks.chunk, row = w->head * s->p->rows + w->line.row + c;
    const int64_t first = ejki_max(low, c * chunk), end = ejki_min(high, (c + 1) * chunk);
    const int64_t skip = (first - c * chunk) / KEY_TILE * KEY_TILE;
    const int64_t token = w->line.begin + c * chunk + skip;
    const int64_t tile_at = w->head * s->block_tiles + skip / KEY_TILE +
                            block_tile(w->line.begin + c * chunk, w->line.row + c);
    piece part = {.first = c * chunk + skip, .finite = s->finite[row]};
    part.count = end - part.first;
    part.keys = s->key.tiles + tile_at * KEY_TILE * s->key.depth;
    part.value_rows = row_of(&s->value, s->value.rows, w->head, s->p->tokens, token);
    if (!s->p->gradient) return part;
    part.key_rows = row_of(&s->key, s->key.rows, w->head, s->p->tokens, token);
    part.values = s->value.tiles + tile_at * KEY_TILE * s->value.depth;
    return part;
}

static branch branch_of(const tile *w, int64_t pieces) {
    branch br = {.pieces = w->pieces,
                 .count = pieces,
                 .lanes = w->lanes,
                 .used = w->used,
                 .query = w->query,
                 .cotangent = w->cotangent,
                 .panel = w->s->lanes};
    for (int64_t i = 0; i < pieces; i++) br.keys += w->pieces[i].count;
    return br;
}

/* Complete blocks of each token. */
static branch compressed_branch(tile *w) {
    const shared *s = w->s;
    const nsa_problem *p = s->p;
    const int64_t tile_at = w->head * s->mean_tiles + mean_tile(&w->line, w->n);
    const int64_t row = w->head * p->rows + w->line.row;
    for (int64_t lane = 0; lane < w->used; lane++) {
        w->low[lane] = 0;
        w->high[lane] = (w->first + lane / p->group - w->line.begin + 1) / p->blocks.chunk;
    }
    piece *all = w->pieces;
    *all = (piece){.keys = s->key.mean_tiles + tile_at * KEY_TILE * s->key.depth,
                   .value_rows = s->value.mean_rows + row * s->value.width,
                   .count = w->used > 0 ? w->high[w->used - 1] : 0,
                   .finite = true};
    for (int64_t c = 0; c < all->count; c++) all->finite = all->finite && s->mean_finite[row + c];
    if (p->gradient) {
        all->key_rows = s->key.mean_rows + row * s->key.width;
        all->values = s->value.mean_tiles + tile_at * KEY_TILE * s->value.depth;
    }
    branch br = branch_of(w, 1);
    br.low = w->low;
    br.high = w->high;
    return br;
}

/* Lanes of token i of the tile, and its blocks. */
static branch selected_branch(tile *w, int64_t i, const int32_t *list, int64_t count) {
    const nsa_problem *p = w->s->p;
    const int64_t high = w->first + i - w->line.begin + 1;
    for (int64_t k = 0; k < count; k++) w->pieces[k] = block_piece(w, list[k], 0, high);
    branch br = branch_of(w, count);
    br.used = p->group;
    br.lanes = ejki_round_up(p->group, VL);
    br.query = w->query + i * p->group;
    if (p->gradient) br.cotangent = w->cotangent + i * p->group;
    return br;
}

static branch window_branch(tile *w) {
    const nsa_problem *p = w->s->p;
    const int64_t chunk = p->blocks.chunk, begin = w->first - w->line.begin;
    const int64_t low = ejki_max(0, begin - p->window + 1), high = begin + w->count;
    int64_t count = 0;
    for (int64_t lane = 0; lane < w->used; lane++) {
        w->high[lane] = begin + lane / p->group + 1;
        w->low[lane] = ejki_max(0, w->high[lane] - p->window);
    }
    for (int64_t c = low / chunk; c * chunk < high; c++)
        w->pieces[count++] = block_piece(w, c, low, high);
    branch br = branch_of(w, count);
    br.low = w->low;
    br.high = w->high;
    return br;
}

/* Softmax of a branch; parts take the place of sums. */
static softmax softmax_of(const tile *w, const branch *br) {
    const softmax s = {w->scores, w->most, w->part};
    weigh(w->s->p, br, &s);
    for (int64_t lane = 0; lane < br->lanes; lane++) w->part[lane] = part_of(&s, lane);
    return s;
}

static float gate_of(const tile *w, int which, int64_t lane) {
    const nsa_problem *p = w->s->p;
    const nsa_view *v = &p->gate[which];
    if (!v->dtype) return 1;
    return (float)ejki_load_f64(
        (ejk_dtype)v->dtype, v->data,
        nsa_at(v, w->b, w->first + lane / p->group, w->kv_head * p->group + lane % p->group));
}

/* Blocks of token i by its list. */
static int64_t listed(const tile *w, int64_t i, int32_t *list) {
    const nsa_problem *p = w->s->p;
    const nsa_size t = w->first + i, own = (t - w->line.begin) / p->blocks.chunk;
    const bool again = p->gradient && p->selected.dtype;
    const nsa_view *v = again ? &p->selected : &p->indices;
    return nsa_collect(v, nsa_at(v, w->b, t, w->kv_head),
                       again ? p->slots : nsa_limit(p, w->b, t, w->kv_head), own, list);
}

/* Blocks of each token of the tile: to w->list, and how many to `counts`. The compressed branch has been weighed if it
 * is what chooses. */
static void choose_all(const tile *w, const branch *br, const softmax *s, int64_t *counts) {
    const nsa_problem *p = w->s->p;
    const bool given = p->indices.dtype || (p->gradient && p->selected.dtype);
    for (int64_t i = 0; i < w->count; i++) {
        int32_t *list = w->list + i * p->slots;
        const nsa_size t = w->first + i;
        counts[i] = given ? listed(w, i, list)
                          : choose(p, br, s, i * p->group, (t - w->line.begin) / p->blocks.chunk,
                                   nsa_limit(p, w->b, t, w->kv_head), w->values, list);
    }
}

/* ---- Tasks ------------------------------------------------------------------------------------------ */

/* Tiles of tokens of all heads, cut at sequences' ends: `each` is called for each part, `none` for tokens of none. */
typedef void tile_work(tile *w);
static void each_tile(shared *s, tile *w, tile_work *each, tile_work *none) {
    const nsa_problem *p = s->p;
    const int64_t tiles = ejki_cdiv(p->tokens, s->tile_tokens);
    const int64_t count = p->batch * p->kv_heads * tiles;
    for (;;) {
        const int64_t at = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
        if (at >= count) return;
        /* The last tokens see the most keys, so they come first. */
        const int64_t tile_at = tiles - 1 - at / (p->batch * p->kv_heads);
        w->head = at % (p->batch * p->kv_heads);
        w->b = w->head / p->kv_heads;
        w->kv_head = w->head % p->kv_heads;
        const nsa_size last = ejki_min(p->tokens, (tile_at + 1) * s->tile_tokens);
        for (nsa_size t = tile_at * s->tile_tokens, end; t < last; t = end) {
            const nsa_size n = nsa_line_at(p, t);
            end = n < 0 ? t + 1 : ejki_min(last, nsa_line_of(p, n).end);
            w->first = t;
            w->count = end - t;
            w->used = w->count * p->group;
            if (n < 0) {
                none(w);
            } else {
                open_tile(w, n, t, end - t);
                each(w);
            }
        }
    }
}

#endif
