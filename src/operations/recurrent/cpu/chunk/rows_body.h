/* SPDX-License-Identifier: Apache-2.0 */
/* A chunk's tokens and what is loaded of them: rows, values, and products of rows. */
#ifndef EJKI_RECURRENT_CHUNK_ROWS_BODY_H
#define EJKI_RECURRENT_CHUNK_ROWS_BODY_H

#include "operations/recurrent/cpu/chunk/gates_body.h"
#include "operations/recurrent/cpu/chunk/tile.h"
#include "operations/recurrent/cpu/scan/token_body.h"
#include "operations/recurrent/shared/kept.h"

#include <math.h>
#include <string.h>

static rec_size pitch_of(const rec_problem *p) {
    return ejki_round_up(p->key_size, 16);
}
static rec_size slabs_of(const rec_problem *p) {
    return ejki_cdiv(p->value_size, TILE_COLUMNS);
}

/* Floats of a chunk. */
static rec_size chunk_floats(const rec_problem *p) {
    const rec_size pitch = pitch_of(p);
    return (6 * CHUNK + 10) * pitch + 4 * CHUNK * CHUNK + 2 * CHUNK * TILE_COLUMNS;
}

static void place_chunk(chunk *c, float *memory) {
    const rec_size rows = CHUNK * c->pitch;
    c->q = memory;
    c->k = c->q + rows;
    c->d = c->k + rows;
    c->carried = c->d + rows;
    c->qt = c->carried + rows;
    c->kt = c->qt + rows;
    c->hats = c->kt + rows;
    c->total = c->hats + 8 * c->pitch;
    c->whole = c->total + c->pitch;
    c->qk = c->whole + c->pitch;
    c->kk = c->qk + CHUNK * CHUNK;
    c->own = c->kk + CHUNK * CHUNK;
    c->rest = c->own + CHUNK * CHUNK;
    c->u = c->rest + CHUNK * CHUNK;
    c->x = c->u + CHUNK * TILE_COLUMNS;
}

/* What chunks are for; sequences shorter than one are better walked through token by token. */
static bool chunks_apply(const void *problem) {
    const rec_problem *p = problem;
    return p->update != REC_RANK_ONE && !p->value_decay && p->heads > 0 && p->key_size >= 16 &&
           p->value_size > 0 && p->tokens >= CHUNK &&
           (!p->packed || p->tokens >= CHUNK * p->sequences);
}

/* Tokens from step n on that are a chunk; the step behind them. */
static rec_size next_chunk(chunk *c, rec_size n, bool *resets) {
    const rec_size end = c->sequence.end - c->sequence.begin;
    const rec_size stop = ejki_min(n / CHUNK * CHUNK + CHUNK, end);
    c->count = c->paddings = 0;
    *resets = false;
    for (; n < stop; n++) {
        const rec_turn turn = rec_turn_of(c->p, &c->sequence, n);
        const rec_size place = rec_token(c->p, &c->sequence, n);
        if (turn.resets && c->count > 0) break;
        *resets |= turn.resets;
        if (turn.counts)
            c->token[c->count++] = place;
        else
            c->padding[c->paddings++] = place;
    }
    c->rows = (int)ejki_round_up(c->count, TILE_ROWS);
    return n;
}

/* ---- States ------------------------------------------------------------------------------------------ */

/* Columns `at` on of the state of a head, of tensor `role`, into a slab; 0 where there is none. */
static void load_slab(const chunk *c, int role, rec_size h, rec_size at, float *to) {
    const rec_view *v = &c->p->view[role];
    const rec_size columns = ejki_min(c->p->value_size - at, TILE_COLUMNS);
    memset(to, 0, (size_t)(c->pitch * TILE_COLUMNS) * sizeof *to);
    if (!v->present || c->sequence.row < 0) return;
    const rec_size first = rec_state_at(v, c->sequence.row, h) + at * v->stride[3];
    for (rec_size i = 0; i < c->p->key_size; i++)
        for (rec_size j = 0; j < columns; j++)
            to[i * TILE_COLUMNS + j] = view_load(v, first + i * v->stride[2] + j * v->stride[3]);
}

static void store_slab(const chunk *c, int role, rec_size h, rec_size at, const float *from) {
    const rec_view *v = &c->p->view[role];
    const rec_size columns = ejki_min(c->p->value_size - at, TILE_COLUMNS);
    if (!v->present || c->sequence.row < 0) return;
    const rec_size first = rec_state_at(v, c->sequence.row, h) + at * v->stride[3];
    for (rec_size i = 0; i < c->p->key_size; i++)
        for (rec_size j = 0; j < columns; j++)
            element_store((ejk_dtype)v->dtype, v->data, first + i * v->stride[2] + j * v->stride[3],
                          from[i * TILE_COLUMNS + j]);
}

/* ---- Rows -------------------------------------------------------------------------------------------- */

/* Columns `at` on of a tensor's rows of a head, times a number, and 0 behind `size` and behind the last token. */
INLINE void load_part_of(const ejk_dtype dtype, const chunk *c, const rec_view *v, rec_size head,
                         rec_size at, rec_size width, rec_size size, vf scale, float *to,
                         rec_size step) {
    const rec_size first = rec_at(v, c->sequence.batch, 0, head) + at, stride = v->stride[1];
    const void *data = v->data;
    for (rec_size i = 0; i < c->rows; i++, to += step) {
        const rec_size row = i < c->count ? first + c->token[i] * stride : 0;
        const rec_size some = i < c->count ? size - at : 0;
        for (rec_size j = 0; some >= width && j < width; j += VL)
            v_store(to + j, v_mul(scale, v_widen(dtype, element_at(dtype, data, row + j))));
        for (rec_size j = 0; some < width && j < width; j += VL)
            v_store(to + j, j < some
                                ? v_mul(scale, v_widen_some(dtype, element_at(dtype, data, row + j),
                                                            some - j))
                                : v_zero());
    }
}
static void load_part(const chunk *c, int role, rec_size head, rec_size at, rec_size width,
                      rec_size size, float scale, float *to, rec_size step) {
    const rec_view *v = &c->p->view[role];
    ELEMENT_CALL((ejk_dtype)v->dtype, load_part_of, c, v, head, at, width, size, v_set1(scale), to,
                 step);
}

/* Rows of queries or keys times a number, and what they were normalised by; their place behind key_size is 0. */
static void load_rows_of(const chunk *c, int role, rec_size head, float scale, float *to,
                         float *norm) {
    const bool normalise = c->p->normalise;
    load_part(c, role, head, 0, c->pitch, c->p->key_size, normalise ? 1 : scale, to, c->pitch);
    for (rec_size i = 0; i < CHUNK; i += VL) v_store(norm + i, v_set1(1));
    for (rec_size i = 0; i < c->count && normalise; i += VL) {
        vf sum[VL];
        for (rec_size n = 0; n < VL; n++) {
            const float *row = to + (i + n) * c->pitch;
            sum[n] = v_zero();
            for (rec_size d = 0; d < c->pitch && i + n < c->count; d += VL)
                sum[n] = v_fma(v_load(row + d), v_load(row + d), sum[n]);
        }
        v_store(norm + i, v_sums(sum));
        for (rec_size n = i; n < i + VL; n++) norm[n] = 1 / sqrtf(norm[n] + (float)REC_EPSILON);
    }
    for (rec_size i = 0; i < c->count && normalise; i++) {
        const vf factor = v_set1(norm[i] * scale);
        float *row = to + i * c->pitch;
        for (rec_size d = 0; d < c->pitch; d += VL)
            v_store(row + d, v_mul(v_load(row + d), factor));
    }
}
static void load_queries(chunk *c, rec_size h) {
    load_rows_of(c, REC_QUERY, rec_head(c->p, h, c->p->query_heads), c->scale, c->q, c->q_norm);
}
static void load_keys(chunk *c, rec_size h) {
    load_rows_of(c, REC_KEY, rec_head(c->p, h, c->p->key_heads), 1, c->k, c->k_norm);
}

/* Step sizes, vectors of them at once. */
static void load_steps(chunk *c, rec_size h) {
    const rec_view *g = &c->p->view[REC_G], *bias = &c->p->view[REC_DT_BIAS];
    const float own = bias->present ? view_load(bias, h * bias->stride[2]) : 0;
    for (int i = 0; i < c->count; i++)
        c->beta[i] = own + view_load(g, rec_at(g, c->sequence.batch, c->token[i], h));
    for (int i = 0; i < c->count; i += VL)
        v_store(c->beta + i, step_size(c->p, v_load(c->beta + i)));
    for (int i = c->count; i < CHUNK; i++) c->beta[i] = 0;
}

static void load_betas(chunk *c, rec_size h) {
    if (c->p->by_step) {
        load_steps(c, h);
        return;
    }
    for (int i = 0; i < c->rows; i++)
        c->beta[i] = i < c->count ? load_beta(c->p, &c->sequence, c->token[i], h) : 0;
}

/* Columns `at` on of the values. */
static void load_values(chunk *c, rec_size h, rec_size at) {
    load_part(c, REC_VALUE, rec_head(c->p, h, c->p->value_heads), at, TILE_COLUMNS,
              c->p->value_size, 1, c->u, TILE_COLUMNS);
}

/* What heads with the same query and key share; as floats. */
static void load_shared(chunk *c, rec_size h) {
    load_queries(c, h);
    load_keys(c, h);
    if (c->p->key_decay) return;
    pack_transposed(c->k, c->pitch, c->count, c->pitch, c->kt);
    multiply_rows(c, c->q, c->qk);
    if (c->p->update == REC_DELTA) multiply_rows(c, c->k, c->kk);
}

/* Rows have the decays then; tokens that there are not have none. */
static void load_channel_decays(chunk *c, rec_size h) {
    for (int i = 0; i < c->rows; i++) {
        float *row = c->d + i * c->pitch;
        if (i < c->count && c->pairs)
            load_decays(true, c->p, &c->sequence, c->token[i], h, c->pitch, c->beta[i], row);
        else if (i < c->count)
            load_decays(false, c->p, &c->sequence, c->token[i], h, c->pitch, c->beta[i], row);
        else
            for (rec_size d = 0; d < c->pitch; d += VL) v_store(row + d, v_set1(1));
        c->since[i] = c->seen[i] = c->until[i] = 1;
    }
}

/* Sums of q, k and the bonus. */
static void load_bonuses(chunk *c, rec_size h) {
    const rec_view *u = &c->p->view[REC_BONUS];
    for (rec_size i = 0; i < c->rows; i++) {
        vf sum = v_zero();
        for (rec_size d = 0; d < c->p->key_size && u->present; d += VL) {
            const rec_size at = i * c->pitch + d;
            sum = v_fma(v_mul(v_load(c->q + at), v_load(c->k + at)),
                        view_part(u, h * u->stride[2], d, c->p->key_size), sum);
        }
        c->bonus[i] = v_sum(sum);
    }
}

/* `products` of a chunk with the form of the call as constants. */
#define CHANNEL_PRODUCTS(products, c)                                                              \
    do {                                                                                           \
        if ((c)->p->update == REC_DELTA)                                                           \
            products(c, true, false);                                                              \
        else if ((c)->p->read == REC_BEFORE)                                                       \
            products(c, false, true);                                                              \
        else                                                                                       \
            products(c, false, false);                                                             \
    } while (0)

/* Decays of a head, and what its tokens do to each other. */
static void load_products(chunk *c, rec_size h) {
    const bool delta = c->p->update == REC_DELTA, old = c->p->read == REC_BEFORE;
    load_betas(c, h);
    if (old) load_bonuses(c, h);
    if (!c->p->key_decay) {
        head_decays(c, h);
        if (delta)
            apply_head_decays(c, true, false);
        else if (old)
            apply_head_decays(c, false, true);
        else
            apply_head_decays(c, false, false);
        if (c->p->by_step) apply_steps(c, h);
        return;
    }
    load_channel_decays(c, h);
    CHANNEL_PRODUCTS(channel_products, c);
}

/* ---- Rows of the next chunk ---------------------------------------------------------------------- */

/* Asks for a row of `bytes` for each step from n on. */
static void ask_rows(chunk *c, int role, rec_size n, rec_size head, rec_size at, rec_size size) {
    const rec_view *v = &c->p->view[role];
    ahead *a = &c->ahead;
    const rec_size from = rec_token(c->p, &c->sequence, n);
    const rec_size bytes = element_size((ejk_dtype)v->dtype);
    a->row[a->count] = view_at(v, rec_at(v, c->sequence.batch, from, head) + at);
    a->step[a->count] = (c->p->reverse ? -1 : 1) * v->stride[1] * bytes;
    a->bytes[a->count++] = size * bytes;
}

/* Asks for the state that is kept before step n, a part with each row of a chunk. */
static void ask_kept(chunk *c, rec_size n, rec_size head) {
    const rec_view *v = &c->p->view[REC_STATES];
    ahead *a = &c->ahead;
    const bool together = v->stride[3] == 1 && v->stride[2] == c->p->value_size;
    if (!v->present || !together) return;
    a->row[a->count] = view_at(v, rec_kept_at(c->p, &c->sequence, n / CHUNK * CHUNK, head));
    a->step[a->count] = c->p->key_size * c->p->value_size * (rec_size)sizeof(float) / CHUNK;
    a->bytes[a->count] = a->step[a->count];
    a->count++;
}

#endif
