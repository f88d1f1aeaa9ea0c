/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Few rows, as in decoding: up to four rows of a KV head meet VL / 4 of its keys, or fewer rows more keys, where they
 * lie in the cache; sums of values pass through registers a few keys at a time. While keys of a block are read, its
 * values are prefetched, and with these the keys of the next block.
 */
#ifndef EJKI_PAGED_ROWS_H
#define EJKI_PAGED_ROWS_H

#include "operations/paged/cpu/paged_in_order.h"
#ifdef PAGED_AMX
#include "operations/paged/cpu/amx/paged_amx_rows.h"
#endif
#include "operations/paged/cpu/paged_sums.h"

/* What lines leave of keys, from d on, for all types and numbers of rows. */
static EJKI_SHARED void multiply_rest(ejk_dtype dtype, int rows, const char *const *key,
                                      paged_size d, paged_size dim, const float *query, vf *sum) {
    const int keys = VL / rows;
    for (; d < dim; d += LANES, query += rows * VL)
        for (int k = 0; k < keys; k++) {
            const char *from = key[k] + d * stored_size(dtype);
            const vf v = v_rest_operand(dtype, from, paged_least(dim - d, LANES));
            for (int r = 0; r < rows; r++)
                sum[r * keys + k] = OPERAND_TERM(v_load(query + r * VL), v, sum[r * keys + k]);
        }
}

/* Keys or their tails, and what queries have for them. */
typedef struct few_keys {
    const char *const *key;
    paged_size dim;
    const float *query;
    const paged_lines *prefetch;
} few_keys;

/* sum[r * keys + k] += row r times key k, a line of each at a time; vectors of rows take turns. */
static inline __attribute__((always_inline)) void multiply_keys(const ejk_dtype dtype,
                                                                const int rows, const few_keys *f,
                                                                vf sum[VL], operand_seen *seen) {
    const int keys = VL / rows, size = (int)stored_size(dtype), in_line = LINE / size;
    const char *const *key = f->key;
    const float *query = f->query;
    const paged_size dim = f->dim;
    paged_size d = 0;
    for (uintptr_t ahead = 0; d + in_line <= dim; d += in_line, ahead += f->prefetch->step) {
        operand_line line[VL];
        EJKI_UNROLL for (int k = 0; k < keys; k++)
            begin_line(dtype, key[k] + d * size, &line[k], seen);
        UNROLL_PARTS for (int part = 0; part < in_line / LANES; part++, query += rows * VL) {
            vf q[4];
            EJKI_UNROLL for (int r = 0; r < rows; r++) q[r] = v_load(query + r * VL);
            EJKI_UNROLL for (int k = 0; k < keys; k++) {
                const vf v = v_line_operand(dtype, key[k] + d * size, &line[k], part);
                EJKI_UNROLL for (int r = 0; r < rows; r++) sum[r * keys + k] =
                    OPERAND_TERM(q[r], v, sum[r * keys + k]);
            }
        }
        prefetch_beside(f->prefetch, keys, ahead);
    }
    if (d == dim) return;
    vf kept[VL];
    EJKI_UNROLL for (int k = 0; k < VL; k++) kept[k] = sum[k];
    multiply_rest(dtype, rows, key, d, dim, query, kept);
    EJKI_UNROLL for (int k = 0; k < VL; k++) sum[k] = kept[k];
}

static inline __attribute__((always_inline)) vf in_units(ejk_dtype dtype, vf sum) {
    return line_unit(dtype) == 1 ? sum : v_mul(sum, v_set1(line_unit(dtype)));
}

/* Products of `rows` rows of each of some heads, from row i of head `first` on, with `count` keys from t on. */
static inline __attribute__((always_inline)) void
score_keys(const ejk_dtype dtype, const int rows, few_pass *p, few_ahead *ahead, paged_size i,
           paged_size first, paged_size heads, paged_size t, int count, bool prefetches) {
    const paged_size depth = p->depth, bytes = VL / rows * p->dim * stored_size(dtype);
    const int keys = VL / rows;
    const paged_lines none = {.any = false};
    few_heads s;
    no_heads(&s, keys);
    operand_seen seen = p->seen;
    paged_size left = count;
    for (const paged_size end = t + count; t < end; t += keys) {
        const float *query = p->query + i * depth;
        float *scores = p->scores + i * BLOCK + t;
        for (paged_size h = first; h < first + heads; h++) {
            vf sum[VL];
            float products[VL];
            EJKI_UNROLL for (int k = 0; k < VL; k++) sum[k] = v_zero();
            find_heads(p, ahead, keys, bytes, first, h, t, prefetches, left, &s);
            left = heads > 1 && !ahead->single ? keys : 0;
            few_keys part = {s.row, p->dim, query, &s.prefetch};
            for (;;) { /* twice where keys have tails: two copies take twice as long to compile */
                multiply_keys(dtype, rows, &part, sum, &seen);
                if (part.key == s.tail || p->tail_dim == 0) break;
                part = (few_keys){s.tail, p->tail_dim, query + rows * padded(p->dim), &none};
            }
            v_store(products, in_units(dtype, v_sums(sum)));
            EJKI_UNROLL for (int r = 0; r < rows; r++)
                memcpy(scores + r * BLOCK, products + r * keys, (size_t)keys * sizeof(float));
            query += p->rows * depth;
            scores += p->rows * BLOCK;
        }
    }
    p->seen = seen;
}

/* Sums of such rows take in `count` values from t on. */
static inline __attribute__((always_inline)) void
add_values(const ejk_dtype dtype, const int rows, few_pass *p, few_ahead *ahead, paged_size i,
           paged_size first, paged_size heads, paged_size t, int count, bool prefetches) {
    const paged_size width = p->depth, bytes = VALUES_AT_ONCE * p->dim * stored_size(dtype);
    few_heads s;
    no_heads(&s, VALUES_AT_ONCE);
    operand_seen seen = p->seen;
    paged_size left = count;
    for (const paged_size end = t + count; t < end; t += VALUES_AT_ONCE) {
        const float *weights = p->scores + i * BLOCK + t / PAGED_PACK;
        float *sums = p->sums + i * width;
        for (paged_size h = first; h < first + heads; h++) {
            find_heads(p, ahead, VALUES_AT_ONCE, bytes, first, h, t, prefetches, left, &s);
            left = heads > 1 && !ahead->single ? VALUES_AT_ONCE : 0;
            add_columns(dtype, rows, s.row, weights, p->dim, sums, &seen, &s.prefetch);
            weights += p->rows * BLOCK;
            sums += p->rows * width;
        }
    }
    p->seen = seen;
}

/* Scores with keys of which a component is a NaN that products did not see. */
static __attribute__((noinline)) void spoil_scores(const few_pass *p) {
    const paged_size heads = p->f->j->heads;
    for (paged_size h = 0; h < heads; h++)
        for (paged_size t = p->low; t < p->high; t++) {
            const char *key = p->row[t] + h * p->step, *tail = p->tail[t] + h * p->tail_step;
            bool nan = false;
            for (paged_size d = 0; d < p->dim; d++) nan = nan || operand_is_nan((uint8_t)key[d]);
            for (paged_size d = 0; d < p->tail_dim; d++)
                nan = nan || operand_is_nan((uint8_t)tail[d]);
            for (paged_size i = h * p->rows; nan && i < (h + 1) * p->rows; i++)
                p->scores[i * BLOCK + t] = NAN;
        }
}

/* Rows of some heads in fours, twos and ones. */
#define FOR_ROWS(body, dtype, s, ahead, h, heads, t, step)                                         \
    do {                                                                                           \
        const paged_size rows_ = (s)->rows, from_ = (h)*rows_;                                     \
        paged_size i_ = 0;                                                                         \
        for (; i_ + 4 <= rows_; i_ += 4)                                                           \
            body(dtype, 4, s, ahead, from_ + i_, h, heads, t, step, i_ == 0);                      \
        if (i_ + 2 <= rows_) {                                                                     \
            body(dtype, 2, s, ahead, from_ + i_, h, heads, t, step, i_ == 0);                      \
            i_ += 2;                                                                               \
        }                                                                                          \
        if (i_ < rows_) body(dtype, 1, s, ahead, from_ + i_, h, heads, t, step, i_ == 0);          \
    } while (0)

static inline __attribute__((always_inline)) void block_scores(const ejk_dtype dtype,
                                                               paged_few *f) {
    few_pass s = pass_of(f, false);
    const paged_size all = f->j->heads, heads = f->together ? all : 1;
    const paged_size end = ejki_round_up(s.high, LANES);
    const int step = f->key_step;
    few_ahead ahead = ahead_of(f, true);
    for (paged_size t = s.low / LANES * LANES; t < end; t += step)
        for (paged_size h = 0; h < all; h += heads)
            if (dtype == EJK_DTYPE_F32 && f->key_order)
                score_in_order(&s, &ahead, h, t);
            else
                FOR_ROWS(score_keys, dtype, &s, &ahead, h, heads, t, step);
    if (operand_seen_nan(s.seen)) spoil_scores(&s);
}

static inline __attribute__((always_inline)) void block_values(const ejk_dtype dtype, paged_few *f,
                                                               paged_size first, paged_size count,
                                                               bool prefetches) {
    few_pass s = pass_of(f, true);
    const paged_size heads = f->together ? count : 1;
    const int step = f->value_step;
    few_ahead ahead = ahead_of(f, prefetches);
    for (paged_size t = s.low / step * step; t < s.high; t += step)
        for (paged_size h = first; h < first + count; h += heads)
            if (dtype == EJK_DTYPE_F32 && f->value_order)
                add_in_order(&s, &ahead, h, t, prefetches);
            else
                FOR_ROWS(add_values, dtype, &s, &ahead, h, heads, t, step);
    if (operand_seen_nan(s.seen)) spoil_sums(f, first, count);
}

#define SCORES_OF(T)                                                                               \
    static __attribute__((noinline)) void block_scores_##T(paged_few *f) {                         \
        block_scores(EJK_DTYPE_##T, f);                                                            \
    }
#define VALUES_OF(T)                                                                               \
    static __attribute__((noinline)) void block_values_##T(paged_few *f, paged_size h,             \
                                                           paged_size heads, bool prefetches) {    \
        block_values(EJK_DTYPE_##T, f, h, heads, prefetches);                                      \
    }
OPERAND_TYPES(SCORES_OF)
OPERAND_TYPES(VALUES_OF)
#define SCORES_CASE(T)                                                                             \
    case EJK_DTYPE_##T:                                                                            \
        block_scores_##T(f);                                                                       \
        break;
#define VALUES_CASE(T)                                                                             \
    case EJK_DTYPE_##T: block_values_##T(f, h, heads, prefetches); break;

static void any_block_scores(paged_few *f) {
#ifdef PAGED_AMX
    if (in_tiles(f->j)) {
        any_tile_scores(f);
        return;
    }
#endif
    switch (f->j->p->key.dtype) {
        OPERAND_TYPES(SCORES_CASE)
    default: break;
    }
}
static void any_block_values(paged_few *f, paged_size h, paged_size heads, bool prefetches) {
#ifdef PAGED_AMX
    if (f->tiles) {
        any_tile_values(f, h, heads);
        return;
    }
#endif
    switch (f->j->p->value.dtype) {
        OPERAND_TYPES(VALUES_CASE)
    default: break;
    }
}

/* Whether products of the block's values of a head are right for weights of 0, too. */
static bool is_fit(const paged_few *f, const paged_block *block, paged_size h) {
    const paged_problem *p = f->j->p;
    const ejk_dtype dtype = (ejk_dtype)p->value.dtype;
    paged_range range = range_none();
    for (paged_size t = block->low; t < block->high; t++) {
        const char *value = block->value[t] + h * p->value.head * stored_size(dtype);
        for (paged_size d = 0; d < p->value_dim; d += LANES)
            range = range_with(range, v_operand_first(dtype, value + d * stored_size(dtype),
                                                      paged_least(p->value_dim - d, LANES)));
    }
    return range_is_fit(range);
}

/* Scores of a row become weights: those of head h of the item. */
static void row_weights(paged_few *f, paged_size h, paged_size r, const paged_scale *scale) {
    const paged_job *j = f->j;
    const paged_size width = j->work->plan.width, low = f->block->low / LANES * LANES;
    const paged_size high = ejki_round_up(f->block->high, LANES), columns = high - low;
    const float *values = j->p->value.scaled_rows ? f->value_scale : NULL;
    const paged_size i = h * j->rows + r;
    float *z = f->scores + i * BLOCK + low;
    const float most = finish_scores(j, &f->row[i], scale, f->block->first + low, columns, z);
    const float factor = finish_weights(&f->row[i], most, columns, z, f->lanes + i * VL);
    const few_place at = place_of(f, h, r, has_tiles(f));
    if (factor != 1) multiply(place_in(f->sums, at, width), at.step, width, factor);
#ifdef PAGED_AMX
    if (f->bytes) {
        f->wrong[i] *= factor;
        end_byte_weights(f->scores + i * BLOCK, low, high, values, factor,
                         f->totals + i * TOTAL_LANES);
        return;
    }
#endif
    end_weights(f->scores + i * BLOCK, low, high, values, factor, f->totals + i * TOTAL_LANES);
}

/* No divisions: they took as long as all else here. */
static void few_weights(paged_few *f) {
    const paged_job *j = f->j;
    const paged_problem *p = j->p;
    for (paged_size h = 0; h < j->heads; h++) {
        paged_scale scale = score_scale(p, j->head + h);
        if (p->key.scaled_rows) find_scales(j, f->block, &p->key, j->head + h, BLOCK, f->key_scale);
        if (p->value.scaled_rows)
            find_scales(j, f->block, &p->value, j->head + h, BLOCK, f->value_scale);
        scale.key = p->key.scaled_rows ? f->key_scale + f->block->low / LANES * LANES : NULL;
        for (paged_size r = 0; r < j->rows; r++) row_weights(f, h, r, &scale);
    }
}

static void few_block(paged_few *f) {
    const paged_job *j = f->j;
    any_block_scores(f);
    few_weights(f);
    if (f->bytes || (sees_alike(j, f->block) && !f->exact)) {
        any_block_values(f, 0, j->heads, true);
        return;
    }
    for (paged_size h = 0; h < j->heads; h++)
        if (!f->exact && is_fit(f, f->block, h))
            any_block_values(f, h, 1, false);
        else
            for (paged_size i = 0; i < j->rows; i++) add_seen_any(f, h * j->rows + i, h);
}

static void few_blocks(paged_few *f) {
    const paged_job *j = f->j;
    const paged_size start = j->low / BLOCK * BLOCK;
    if (j->low < j->high) find_block(j, start, BLOCK, f->block);
    for (paged_size first = start; j->low < j->high && first < j->high; first += BLOCK) {
        f->next->high = 0;
        if (first + BLOCK < j->high) find_block(j, first + BLOCK, BLOCK, f->next);
        few_block(f);
        paged_block *done = f->block;
        f->block = f->next;
        f->next = done;
    }
}

/* Whether sums of head h have lost products: they are small, and values of their keys are. */
static bool lost_products(paged_few *f, paged_size h) {
    const paged_job *j = f->j;
    bool small = false;
    float *sums = f->value_scale + BLOCK;
    for (paged_size i = h * j->rows; i < (h + 1) * j->rows; i++) {
#ifdef PAGED_AMX
        if (f->bytes && bytes_have_lost(f, i)) return true;
        if (f->bytes) continue;
#endif
        move_sums(f, i, false, sums);
        small = small || has_lost(j->p->value.dtype, sums, j->p->value_dim);
    }
    for (paged_size first = j->low / BLOCK * BLOCK; small && first < j->high; first += BLOCK) {
        find_block(j, first, BLOCK, f->block);
        if (!is_fit(f, f->block, h)) return true;
    }
    return false;
}

/* Whether rows of a head lie side by side and can be read one after the other. */
static bool has_order(const paged_job *j, const paged_cache *c, paged_size dim,
                      paged_size columns) {
    return j->work->plan.prefetch_hint == PREFETCH_IN_STEP && c->dtype == (int)EJK_DTYPE_F32 &&
           j->rows == ORDER_ROWS && c->token == dim && dim % columns == 0;
}

/*
 * How the cache is read: where heads of a key lie together, as many keys as a product takes, of all heads; else VL keys
 * of a head.
 */
static void order_few(paged_few *f) {
    const paged_job *j = f->j;
    const paged_problem *p = j->p;
    const bool together = j->heads == 1 || p->key.head < p->key.token;
    const paged_size row = together ? j->heads * p->key.head : VL * p->dim;
    const paged_size bytes = paged_most(row * paged_bytes(p->key.dtype), 1);
    const paged_size ahead = paged_most(j->work->plan.prefetch_bytes / bytes, 1);
    const paged_size hint = j->work->plan.prefetch_hint;
    f->single = hint == PREFETCH_ROWS || hint == PREFETCH_ROWS_SECOND;
    f->first_level = hint == PREFETCH_ROWS;
    f->together = together;
    f->key_order = !together && p->tail_dim == 0 && has_order(j, &p->key, p->dim, VL);
    f->value_order = !together && has_order(j, &p->value, p->value_dim, ORDER_COLUMNS);
    f->key_step = !together ? VL : VL / (j->rows % 4 == 0 ? 4 : j->rows % 2 == 0 ? 2 : 1);
    f->value_step = together ? VALUES_AT_ONCE : VL;
    if (together) {
        f->rows_ahead =
            (int)ejki_round_up(paged_least(ahead, BLOCK), paged_most(f->key_step, VALUES_AT_ONCE));
    } else {
        const paged_size pieces = paged_least(ahead, BLOCK / VL * j->heads);
        f->rows_ahead = (int)(pieces / j->heads * VL);
        f->heads_ahead = (int)(pieces % j->heads);
    }
}

/* How products of an item are made, each in place of one that lost some. */
typedef enum few_care { CARE_BYTES, CARE_NONE, CARE_EXACT } few_care;

static void bind_few(paged_few *f, const paged_job *j, few_care care) {
    const paged_plan *t = &j->work->plan;
    const bool exact = care == CARE_EXACT;
    *f = (paged_few){.j = j, .count = j->heads * j->rows, .query = j->memory, .exact = exact};
    order_few(f);
    f->sums = f->query + f->count * t->depth;
    f->lanes = f->sums + f->count * t->width;
    f->totals = f->lanes + f->count * VL;
    f->scores = f->totals + f->count * TOTAL_LANES;
    f->key_scale = f->scores + f->count * BLOCK;
    f->value_scale = f->key_scale + BLOCK;
#ifdef PAGED_AMX
    f->tile_query = f->value_scale + BLOCK + t->scratch;
    f->tiles = in_tiles(j) && !exact;
    f->bytes = care == CARE_BYTES;
    find_codes(j->p->key.dtype, f->codes[0]);
    find_codes(j->p->value.dtype, f->codes[1]);
#endif
    memset(f->query, 0, (size_t)(f->scores - f->query) * sizeof(float));
}

/* Row i's query, in the order of its products. */
static void place_query(paged_few *f, paged_size i, const paged_row *row) {
    const paged_problem *p = f->j->p;
    const paged_plan *t = &f->j->work->plan;
    const paged_size tail = padded(p->dim);
    float *scratch = f->value_scale + BLOCK, *query = scratch + PAGED_PACK * t->depth;
    bool tiles = false;
#ifdef PAGED_AMX
    tiles = in_tiles(f->j);
#endif
    const few_place at = place_of(f, i / f->j->rows, i % f->j->rows, tiles);
    float *to = place_in(f->query, at, t->depth);
    memset(query, 0, (size_t)t->depth * sizeof(float));
    load_query(p, row, query, tail, 1, scratch);
    put_in_order(p->key.dtype, false, query, p->dim);
    put_in_order(p->key.dtype, false, query + tail, p->tail_dim);
    for (paged_size d = 0; d < t->depth; d += VL) v_store(to + d * at.step, v_load(query + d));
}

/* An item, of which heads are left out that lost products. */
static void few_rows(const paged_job *j, few_care care, bool lost[ROWS_AT_ONCE]) {
    const bool exact = care == CARE_EXACT;
    paged_block blocks[2];
    paged_row rows[ROWS_AT_ONCE];
    paged_few f;
    bind_few(&f, j, care);
    for (paged_size i = 0; i < f.count; i++) {
        rows[i] = row_of(j, i);
        place_query(&f, i, &rows[i]);
    }
    f.row = rows;
    f.block = &blocks[0];
    f.next = &blocks[1];
#ifdef PAGED_AMX
    if (in_tiles(j)) pack_queries(&f);
#endif
    few_blocks(&f);
#ifdef PAGED_AMX
    if (in_tiles(j)) amx_close();
    const paged_size width = j->work->plan.width;
    for (paged_size i = 0; f.tiles && i < f.count; i++)
        order_sums(&f, false, f.sums + i * width, f.value_scale + BLOCK);
#endif
    for (paged_size h = 0; h < j->heads; h++) lost[h] = !exact && lost_products(&f, h);
    for (paged_size i = 0; i < f.count; i++) {
        const float sum = v_sum(v_load(f.lanes + i * VL));
        const paged_state state = {rows[i].most, sum, total_of(sum, f.totals + i * TOTAL_LANES)};
        if (lost[i / j->rows]) continue;
        move_sums(&f, i, false, f.value_scale + BLOCK);
        put_row(j, &rows[i], f.value_scale + BLOCK, state);
    }
}

static void attend_with(const paged_job *j, few_care care) {
    bool lost[ROWS_AT_ONCE];
    few_rows(j, care, lost);
    for (paged_size h = 0; h < j->heads; h++) {
        paged_job again = *j;
        again.head += h;
        again.heads = 1;
        if (lost[h]) attend_with(&again, care + 1);
    }
}

static void attend_few(const paged_job *j) {
    few_care care = CARE_NONE;
#ifdef PAGED_AMX
    if (in_bytes(j)) care = CARE_BYTES;
#endif
    attend_with(j, care);
}

#endif
