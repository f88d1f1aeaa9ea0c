/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of queries: what they see, as operands of products, and results once their sums are complete. */
#ifndef EJKI_PAGED_ROW_H
#define EJKI_PAGED_ROW_H

#include "operations/paged/cpu/paged_plan.h"

static paged_row row_of(const paged_job *j, paged_size i) {
    const paged_problem *p = j->p;
    const paged_size at = j->first_row + i % j->rows, r = at / p->group;
    const paged_sequence own = j->prefix ? paged_sequence_of(p, paged_find(p, r)) : j->s;
    const paged_size token = j->s.begin + r;
    paged_row row = {.low = paged_low(p, &own, token - own.begin),
                     .high = paged_high(p, &own, token - own.begin),
                     .token = token,
                     .head = (j->head + i / j->rows) * p->group + at % p->group,
                     .r = r,
                     .most = -INFINITY};
    row.low = paged_most(row.low, j->low);
    row.high = paged_least(row.high, j->high);
    if (p->has_alibi) row.slope = element_load(EJK_DTYPE_F32, p->alibi, row.head) * (float)LOG2E;
    return row;
}

static float scale_of(const paged_cache *c, paged_size page, paged_size at, paged_size head) {
    if (!c->scaled) return 1;
    return element_load(EJK_DTYPE_F32, c->scale,
                        page * c->scale_page + at * c->scale_token + head * c->scale_head);
}

/* What scores of a KV head are multiplied by; of values likewise. Scales of rows come besides. */
static double factor_of(const paged_cache *c, paged_size head) {
    return (double)c->factor * (c->scaled_rows ? 1 : (double)scale_of(c, 0, 0, head));
}

/* An element of a query with query_scale, rounded as the cache is. */
static float asked(const paged_problem *p, const paged_rows *rows, paged_size at) {
    const float v =
        (float)((double)element_load((ejk_dtype)p->dtype, rows->data, at) / p->query_scale);
    switch (p->key.dtype) {
    case EJK_DTYPE_I8: return fminf(fmaxf(rintf(v), -128), 127);
    case EJK_DTYPE_F8E4M3: return ejki_e4m3_to_f32(ejki_f32_to_e4m3(v));
    case EJK_DTYPE_F8E5M2: return ejki_e5m2_to_f32(ejki_f32_to_e5m2(v));
    case EJK_DTYPE_BF16: return ejki_bf16_to_f32(ejki_f32_to_bf16(v));
    case EJK_DTYPE_F16: return ejki_f16_to_f32(ejki_f32_to_f16(v));
    default: return v;
    }
}

/* Lane i of `count` elements, of which a lane has PAGED_PACK; 0 behind the last. */
static void put_lane(float *to, const float *from, paged_size i, paged_size count) {
#if PAGED_PACK == 1
    *to = i < count ? from[i] : 0;
#else
    uint16_t pair[2];
    for (int half = 0; half < 2; half++)
        pair[half] = 2 * i + half < count ? ejki_f32_to_bf16(from[2 * i + half]) : 0;
    memcpy(to, pair, sizeof pair);
#endif
}

/* Lanes of `count` elements that memory has as they are, `step` apart; a last half is followed by 0. */
static void copy_lanes(const char *from, paged_size count, float *to, paged_size step) {
    const paged_size whole = count / PAGED_PACK;
    for (paged_size d = 0; d < whole; d++) memcpy(to + d * step, from + 4 * d, 4);
    if (whole == lanes_of(count)) return;
    to[whole * step] = 0;
    memcpy(to + whole * step, from + 4 * whole, 2);
}

/* Elements as floats, in whole vectors. */
static void widen_row(ejk_dtype dtype, const char *from, paged_size count, float *to) {
    const paged_size size = element_size(dtype);
    for (paged_size d = 0; d < count; d += VL)
        v_store(to + d, v_widen_some(dtype, from + d * size, count - d));
}

/* A query row as lanes `step` apart; those of its tail begin at lane `tail`. */
static void load_query(const paged_problem *p, const paged_row *row, float *to, paged_size tail,
                       paged_size step, float *scratch) {
    const paged_rows *parts[2] = {&p->query, &p->query_tail};
    const paged_size sizes[2] = {p->dim, p->tail_dim};
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const bool as_it_is =
        p->query_scale == 0 && dtype == (PAGED_PACK == 1 ? EJK_DTYPE_F32 : EJK_DTYPE_BF16);
    for (int i = 0; i < 2; i++, to += tail * step) {
        const paged_size start = paged_row_at(p, parts[i], row->token, row->head);
        if (as_it_is) {
            copy_lanes(element_at(dtype, parts[i]->data, start), sizes[i], to, step);
            continue;
        }
        if (p->query_scale == 0)
            widen_row(dtype, element_at(dtype, parts[i]->data, start), sizes[i], scratch);
        for (paged_size d = 0; p->query_scale != 0 && d < sizes[i]; d++)
            scratch[d] = asked(p, parts[i], start + d);
        for (paged_size d = 0; d < lanes_of(sizes[i]); d++)
            put_lane(to + d * step, scratch, d, sizes[i]);
    }
}

/* What a row's sums of values stand beside: its largest score in base 2, the sum of its weights, and that of the
 * weights as products took them. */
typedef struct paged_state {
    float most, sum, total;
} paged_state;

/* Writes a row. */
static void finish_row(const paged_problem *p, paged_size token, paged_size head, const float *sums,
                       paged_state s) {
    const paged_size sink = head / p->sink_group * p->sink_step;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    float top = s.most, factor = 1;
    for (paged_size i = 0; i < p->sink_count; i++)
        top = fmaxf(top, element_load((ejk_dtype)p->sink_dtype, p->sinks, sink + i) * (float)LOG2E);
    if (top > s.most) {
        factor = exp2f(s.most - top);
        s.sum *= factor;
        s.total *= factor;
    }
    for (paged_size i = 0; i < p->sink_count; i++) {
        const float z = element_load((ejk_dtype)p->sink_dtype, p->sinks, sink + i) * (float)LOG2E;
        if (z == -INFINITY) continue;
        s.sum += exp2f(z - top);
        s.total += exp2f(z - top);
    }
    const float by = (float)factor_of(&p->value, head / p->group);
    const vf scale = v_set1(s.total == 0 ? 0 : factor / s.total * by);
    char *out = element_at(dtype, p->out.data, paged_row_at(p, &p->out, token, head));
    for (paged_size d = 0; d < p->value_dim; d += VL)
        v_narrow_some(dtype, element_at(dtype, out, d), v_mul(v_load(sums + d), scale),
                      p->value_dim - d);
    if (!p->lse.data) return;
    const float lse = s.sum == 0 ? -INFINITY : (float)((double)top * LN2 + (double)logf(s.sum));
    element_store(EJK_DTYPE_F32, p->lse.data, paged_row_at(p, &p->lse, token, head), lse);
}

/* A row of an item is complete. */
static void put_row(const paged_job *j, const paged_row *row, const float *sums, paged_state s) {
    const paged_lists *lists = &j->work->lists;
    if (!has_parts(&j->work->plan, &j->s)) {
        finish_row(j->p, row->token, row->head, sums, s);
        return;
    }
    const paged_size width = j->work->plan.width, first = j->prefix ? 0 : lists->slots[j->s.n];
    const paged_size slot = first + (j->part * j->s.rows + row->r) * j->p->heads + row->head;
    for (paged_size d = 0; d < width; d += VL)
        v_store(lists->partial + slot * width + d, v_load(sums + d));
    memcpy(lists->state + 3 * slot, &s, sizeof s);
}

#endif
