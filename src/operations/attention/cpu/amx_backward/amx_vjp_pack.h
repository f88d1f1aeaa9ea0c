/* SPDX-License-Identifier: Apache-2.0 */
/* Packing of the keys and values of a task, and of the queries and cotangents of a row block. */
#ifndef EJKI_AMX_VJP_PACK_H
#define EJKI_AMX_VJP_PACK_H

#include "operations/attention/cpu/amx_backward/amx_vjp_visible.h"

/* Packs the task's keys and values. */
static __attribute__((noinline)) void amx_vjp_pack_block(amx_vjp_state *s) {
    const ejki_flash_problem *p = &s->problem.forward;
    const amx_vjp_plan *t = &s->plan;
    const int64_t chunks = ejki_round_up(s->key_end - s->key, AMX_VJP_PANEL) / AMX_CHUNK;
    s->special_keys = false;
    for (int64_t c = 0; c < chunks; c++) {
        const char *keys[AMX_CHUNK], *values[AMX_CHUNK];
        for (int64_t j = 0; j < AMX_CHUNK; j++) {
            const int64_t key = s->key + c * AMX_CHUNK + j;
            const bool exists = key < s->key_end;
            keys[j] = exists ? amx_vjp_at(&p->key, key, s->kv_head) : NULL;
            values[j] = exists ? amx_vjp_at(&p->value, key, s->kv_head) : NULL;
            if (key + AMX_CHUNK >= s->key_end) continue;
            amx_prefetch(amx_vjp_at(&p->key, key + AMX_CHUNK, s->kv_head), 2 * p->head_dim);
            amx_prefetch(amx_vjp_at(&p->value, key + AMX_CHUNK, s->kv_head), 2 * p->value_dim);
        }
        amx_vjp_scan key = {.special = 0}, value = {.special = 0};
        uint16_t *transposed = s->keys_transposed + c * t->head_tiles * AMX_ELEMENT;
        amx_vjp_pack_keys(keys, p->head_dim, t->steps, s->keys + c * t->head_tiles * AMX_ELEMENT,
                          transposed, &key);
        amx_vjp_pack_keys(values, p->value_dim, t->value_steps,
                          s->values + c * t->value_tiles * AMX_ELEMENT, NULL, &value);
        s->chunk[c] =
            (amx_vjp_chunk){amx_top(key.top), amx_top(value.top), key.special || value.special};
        s->special_keys |= s->chunk[c].special;
        if (s->chunk[c].special)
            memset(transposed, 0, (size_t)(t->head_tiles * AMX_ELEMENT) * sizeof *transposed);
    }
    memset(s->d_keys, 0, (size_t)(chunks * AMX_CHUNK * 32 * t->steps) * sizeof(float));
    memset(s->d_values, 0, (size_t)(chunks * AMX_CHUNK * 32 * t->value_steps) * sizeof(float));
}

/* Key ranges, lse and δ of a tile's rows. `delta` is that of the head's rows. */
static inline void amx_vjp_describe(const amx_vjp_state *s, amx_vjp_tile *t, const float *delta) {
    const ejki_flash_problem *p = &s->problem.forward;
    const int64_t keys = s->key_end - s->key;
    t->low = t->most = s->key_end;
    t->high = t->least = 0;
    t->out_of_range = false;
    t->rows = 0;
    for (int64_t n = 0; n < AMX_ROWS; n++) {
        const int64_t i = amx_vjp_row(n / 2) + n % 2, even_odd = n % 2 * 16 + n / 2;
        t->base[i] = AMX_MAGIC;
        t->shift[i] = t->delta[even_odd] = 0;
        t->first[n] = t->end[n] = 0;
        if (i >= t->count) continue;
        const int64_t row = t->row + i;
        const float lse = amx_vjp_lse(p, s->head, row);
        if (lse == -INFINITY) continue;
        int64_t first, end;
        ejki_flash_visible(p, row, &first, &end);
        end = ejki_min(end, s->key_end);
        if (first < end) {
            t->low = ejki_min(t->low, first);
            t->high = ejki_max(t->high, end);
        }
        t->least = ejki_max(t->least, first);
        t->most = ejki_min(t->most, end);
        t->first[n] = (int16_t)ejki_max(0, ejki_min(first - s->key, keys));
        t->end[n] = (int16_t)ejki_max(0, end - s->key);
        t->rows |= (uint32_t)1 << n;
        t->shift[i] = lse * (float)LOG2_E;
        t->base[i] = AMX_VJP_BASE - AMX_VJP_STEPS * t->shift[i];
        t->delta[even_odd] = delta[row];
        if (!(fabsf(t->shift[i]) <= AMX_VJP_FAST_RANGE) || !(fabsf(delta[row]) <= 0x1p100f))
            t->out_of_range = true;
    }
}

/* Packs a tile of queries and cotangents; rows without any visible key count as 0. */
static inline void amx_vjp_pack_tile(amx_vjp_state *s, int64_t n) {
    const ejki_flash_vjp_problem *v = &s->problem;
    const ejki_flash_problem *p = &v->forward;
    const amx_vjp_plan *t = &s->plan;
    const char *queries[AMX_ROWS], *cotangents[AMX_ROWS];
    amx_vjp_tile *tile = &s->tile[n];
    amx_vjp_scan query = {.special = 0}, cotangent = {.special = 0};
    for (int64_t index = 0; index < AMX_ROWS; index++) {
        const int64_t i = amx_vjp_row(index / 2) + index % 2;
        const bool there = tile->rows >> index & 1;
        queries[i] = there ? amx_vjp_at(&p->query, tile->row + i, s->head) : NULL;
        cotangents[i] = there ? amx_vjp_at(&v->out_cotangent, tile->row + i, s->head) : NULL;
    }
    const int64_t at = n * t->head_tiles * AMX_ELEMENT, value_at = n * t->value_tiles * AMX_ELEMENT;
    amx_vjp_pack_rows(queries, p->head_dim, t->steps, false, s->queries + at, s->query_rows + at,
                      &query);
    amx_vjp_pack_rows(cotangents, p->value_dim, t->value_steps, true, s->cotangents + value_at,
                      s->cotangent_rows + value_at, &cotangent);
    tile->query_top = amx_top(query.top);
    tile->cotangent_top = amx_top(cotangent.top);
    tile->special = query.special || cotangent.special;
    if (!tile->special) return;
    memset(s->query_rows + at, 0, (size_t)(t->head_tiles * AMX_ELEMENT) * sizeof(uint16_t));
    memset(s->cotangent_rows + value_at, 0,
           (size_t)(t->value_tiles * AMX_ELEMENT) * sizeof(uint16_t));
}

/* Looks up the mask blocks of block row i for the task's keys; false if there is none. */
static inline bool amx_vjp_find(const amx_vjp_state *s, int64_t i) {
    const ejki_block_mask *t = &s->problem.forward.block_mask;
    const int64_t first = s->key / t->block_kv, end = ejki_cdiv(s->key_end, t->block_kv);
    bool found = false;
    amx_vjp_mask_blocks(t, s->head / t->heads_per_mask, i, first, end, s->mask_block);
    for (int64_t n = 0; n < end - first; n++) found |= s->mask_block[n].state != 0;
    return found;
}

/* Finds what the tiles of a row block see of the task's keys, and packs those that see any; false if none does. */
static __attribute__((noinline)) bool amx_vjp_pack_row_block(amx_vjp_state *s, const float *delta) {
    const ejki_block_mask *p = &s->problem.forward.block_mask;
    int64_t row = -1; /* of mask blocks */
    bool any = false, found = true;
    s->score_tiles = 0;
    memset(s->state, AMX_VJP_NONE, (size_t)(s->tiles * s->plan.chunks));
    for (int64_t n = 0; n < s->tiles; n++) {
        amx_vjp_tile *tile = &s->tile[n];
        tile->row = s->row + n * AMX_ROWS;
        tile->count = ejki_min(AMX_ROWS, s->count - n * AMX_ROWS);
        tile->visible = false;
        if (p->mask_heads > 0 && tile->row / p->block_q != row) {
            row = tile->row / p->block_q;
            found = amx_vjp_find(s, row);
        }
        if (!found) continue;
        amx_vjp_describe(s, tile, delta);
        amx_vjp_find_visible(s, n, p->mask_heads > 0 ? s->mask_block : NULL);
        if (tile->visible) amx_vjp_pack_tile(s, n);
        any |= tile->visible;
    }
    return any;
}

#endif
