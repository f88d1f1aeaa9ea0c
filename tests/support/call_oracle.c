/* SPDX-License-Identifier: Apache-2.0 */
#include "support/call_oracle.h"

#include "operations/attention/dense/problem.h"
#include "operations/attention/merge/problem.h"
#include "operations/attention/blocksparse/problem.h"
#include "support/call_results.h"
#include "support/oracle.h"
#include "support/vjp_oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOR(index, count) for (int64_t index = 0; index < (count); index++)

enum { FAR_BITS = 61 }; /* offsets without an end, as problem.h has them */

/* What an operation's prepare writes; all but merging begin with the problem of flash attention. */
union problem {
    ejki_flash_problem flash;
    ejki_attention_problem attention;
    ejki_flash_vjp_problem vjp;
    ejki_blocksparse_vjp_problem sparse_vjp;
    ejki_merge_problem merge;
    ejki_merge_vjp_problem merge_vjp;
};

static void *room(int64_t count, size_t size) {
    void *memory = calloc((size_t)count + 1, size);
    if (!memory) abort();
    return memory;
}

static void problem_of(const ejk_kernel *kernel, const void *args, union problem *out) {
    ejk_axes axes = {.count = 0};
    memset(out, 0, sizeof *out);
    if (ejk_record_check_tensors(kernel->args, args, &axes) != EJK_OK ||
        kernel->prepare(args, &axes, out) != EJK_OK) {
        printf("FAIL %s: %s\n", kernel->op_id, ejk_last_error());
        exit(EXIT_FAILURE);
    }
    kernel->bind(args, out);
}

/* ---- What is visible -------------------------------------------------------------------------------- */

static bool sees(const ejki_flash_problem *p, int64_t b, int64_t h, int64_t i, int64_t j) {
    int64_t first, end, low, high;
    ejki_flash_visible(p, i, &first, &end);
    if (j < first || j >= end || !flash_visible(p, b, h, i, j)) return false;
    if (p->positions.given) {
        const int64_t position = ejki_key_position(&p->positions, b, j);
        ejki_position_range(&p->positions, b, i, &low, &high);
        if (position < low || position > high) return false;
    }
    return ejki_block_mask_visible(&p->block_mask, h, i, j);
}

/* All that hides becomes one mask, to be freed, where the oracles know less than all of it; else NULL. */
static uint8_t *only_mask(ejki_flash_problem *p) {
    if (ejki_block_mask_is_empty(&p->block_mask) && !p->positions.given) return NULL;
    uint8_t *shown = room(p->batch * p->query_heads * p->queries * p->keys, 1), *at = shown;
    FOR(b, p->batch)
    FOR(h, p->query_heads) FOR(i, p->queries) FOR(j, p->keys) *at++ = sees(p, b, h, i, j);
    p->mask =
        (ejki_bhts){shown, p->query_heads * p->queries * p->keys, p->queries * p->keys, p->keys};
    p->has_mask = true;
    p->mask_group = 1;
    p->has_segments = false;
    p->first_offset = -(INT64_C(1) << FAR_BITS);
    p->last_offset = INT64_C(1) << FAR_BITS;
    p->block_mask = (ejki_block_mask){.name = NULL};
    p->positions = (ejki_positions){.given = false};
    return shown;
}

/* ---- Forward ---------------------------------------------------------------------------------------- */

static bool forward(const ejki_flash_problem *p, const ejki_flash_problem *got, double *worst,
                    char *why, size_t size) {
    struct flash_oracle oracle;
    struct flash_values values = flash_values_at(got);
    flash_oracle_create(&oracle, p);
    const bool good = flash_oracle_accepts(&oracle, p, &values, worst, why, size);
    flash_oracle_destroy(&oracle);
    flash_values_release(&values);
    return good;
}

static bool weights(const ejki_flash_problem *p, const ejki_attention_problem *got, double *worst,
                    char *why, size_t size) {
    ejki_flash_problem q = *p;
    void *identity = room(p->keys * p->keys, sizeof(float));
    FOR(j, p->keys) flash_store(p->dtype, identity, j * p->keys + j, 1);
    q.value = (ejki_bthd){identity, 0, p->keys, 0};
    q.value_dim = p->keys;
    ejki_flash_problem of_got = q;
    of_got.out = (ejki_bthd){got->weights.data, got->weights.stride_b, got->weights.stride_t,
                             got->weights.stride_h};
    of_got.lse.data = of_got.row_max.data = of_got.row_sum.data = NULL;
    char text[300];
    const bool good = forward(&q, &of_got, worst, text, sizeof text);
    if (!good) snprintf(why, size, "as weights, %s", text);
    free(identity);
    return good;
}

/* ---- Gradients -------------------------------------------------------------------------------------- */

/* What oracles look at of a case whose memory is someone else's. */
static struct vjp_case case_of(const ejki_flash_vjp_problem *v) {
    const ejki_flash_problem *p = &v->forward;
    struct vjp_case c = {.problem = *v, .entries = p->batch};
    struct flash_traits *t = &c.forward.traits;
    t->bias_batch = p->bias.stride_b != 0;
    t->bias_heads = p->bias.stride_h != 0;
    t->bias_queries = p->bias.stride_t != 0;
    c.rows[VJP_QUERY] = p->batch * p->queries * p->query_heads;
    c.rows[VJP_KEY] = c.rows[VJP_VALUE] = p->batch * p->keys * p->kv_heads;
    c.width[VJP_QUERY] = c.width[VJP_KEY] = p->head_dim;
    c.width[VJP_VALUE] = p->value_dim;
    if (p->has_bias) {
        c.rows[VJP_BIAS] = (t->bias_batch ? p->batch : 1) * (t->bias_heads ? p->query_heads : 1) *
                           (t->bias_queries ? p->queries : 1);
        c.width[VJP_BIAS] = p->keys;
    }
    if (p->has_sinks) {
        c.rows[VJP_SINKS] = p->sink_stride_h == 0 ? 1 : p->query_heads / p->sink_group;
        c.width[VJP_SINKS] = p->sink_count;
    }
    return c;
}

/* Where a gradient's rows lie, as axes from the outermost to that of the row. */
struct view {
    const void *data;
    int64_t count[4], stride[4];
};

static struct view view_of(const struct vjp_case *c, const ejki_flash_vjp_problem *got, int which) {
    const ejki_flash_problem *p = &c->problem.forward;
    const struct flash_traits *t = &c->forward.traits;
    const ejki_bthd *const tensors[] = {&got->d_query, &got->d_key, &got->d_value};
    const ejki_bias_gradient *b = &got->d_bias;
    if (which == VJP_SINKS)
        return (struct view){
            got->d_sinks, {1, 1, c->rows[which], c->width[which]}, {0, 0, got->d_sink_stride_h, 1}};
    if (which == VJP_BIAS)
        return (struct view){b->data,
                             {t->bias_batch ? p->batch : 1, t->bias_heads ? p->query_heads : 1,
                              t->bias_queries ? p->queries : 1, p->keys},
                             {b->stride_b, b->stride_h, b->stride_t, 1}};
    const ejki_bthd *v = tensors[which];
    return (struct view){v->data,
                         {p->batch, which == VJP_QUERY ? p->queries : p->keys,
                          which == VJP_QUERY ? p->query_heads : p->kv_heads, c->width[which]},
                         {v->stride_b, v->stride_t, v->stride_h, 1}};
}

static float *straight(ejk_dtype dtype, const struct view *v) {
    const int64_t *n = v->count, *s = v->stride;
    float *values = room(n[0] * n[1] * n[2] * n[3], sizeof *values), *at = values;
    FOR(a, n[0])
    FOR(b, n[1])
    FOR(c, n[2])
    FOR(d, n[3])
    *at++ = (float)flash_load(dtype, v->data, a * s[0] + b * s[1] + c * s[2] + d * s[3]);
    return values;
}

static bool accepts(struct vjp_oracle *o, const struct view *view, ejk_dtype dtype, int which,
                    double *worst, char *why, size_t size) {
    float *values = straight(dtype, view);
    const bool good = vjp_oracle_accepts(o, which, values, worst, why, size);
    free(values);
    return good;
}

static bool gradients(const ejki_flash_vjp_problem *v, const ejki_flash_vjp_problem *got,
                      double *worst, char *why, size_t size) {
    const bool wanted[] = {got->wants_query, got->wants_key, got->wants_value, got->wants_bias,
                           got->wants_sinks};
    const struct vjp_case c = case_of(v);
    struct vjp_oracle oracle;
    bool good = true;
    vjp_oracle_create(&oracle, &c);
    for (int i = 0; i < VJP_GRADIENTS && good; i++) {
        const struct view view = view_of(&c, got, i);
        if (wanted[i]) good = accepts(&oracle, &view, v->forward.dtype, i, worst, why, size);
    }
    vjp_oracle_destroy(&oracle);
    return good;
}

/* ---- Merging ---------------------------------------------------------------------------------------- */

/* The memory of a merge as attention in f32: each row of results a head of one query, the parts its keys. */
struct merged {
    float *value, *bias, *sinks, *out, *lse, *d_out, *d_lse;
};

static void merged_free(struct merged *m) {
    float *const all[] = {m->value, m->bias, m->sinks, m->out, m->lse, m->d_out, m->d_lse};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* What a part that saw nothing holds may be anything: 0 here. */
static ejki_flash_problem merge_as_flash(const ejki_merge_problem *m, struct merged *own) {
    const int64_t heads = m->heads * m->queries, dv = m->value_dim;
    ejki_flash_problem p = {.batch = m->batch,
                            .queries = 1,
                            .keys = m->parts,
                            .query_heads = heads,
                            .kv_heads = heads,
                            .group = 1,
                            .value_dim = dv,
                            .dtype = EJK_DTYPE_F32,
                            .has_bias = true,
                            .mask_group = 1,
                            .scale = 1,
                            .first_offset = -(INT64_C(1) << FAR_BITS),
                            .last_offset = INT64_C(1) << FAR_BITS,
                            .normalize = true};
    *own = (struct merged){.value = room(m->batch * m->parts * heads * dv, sizeof(float)),
                           .bias = room(m->batch * heads * m->parts, sizeof(float))};
    FOR(b, m->batch) FOR(n, m->parts) FOR(h, m->heads) FOR(t, m->queries) {
        const int64_t head = h * m->queries + t;
        const float lse =
            m->lse.data[n * m->lse.stride_n + b * m->lse.stride_b + h * m->lse.stride_h + t];
        own->bias[(b * heads + head) * m->parts + n] = lse;
        for (int64_t d = 0; d < dv && lse != -INFINITY; d++)
            own->value[((b * m->parts + n) * heads + head) * dv + d] =
                (float)flash_load(m->dtype, m->part.data,
                                  n * m->part.stride_n + b * m->part.stride_b +
                                      t * m->part.stride_t + h * m->part.stride_h + d);
    }
    p.value = (ejki_bthd){own->value, m->parts * heads * dv, heads * dv, dv};
    p.bias = (ejki_bhts){own->bias, heads * m->parts, m->parts, 0};
    if (!m->has_sinks) return p;
    const int64_t reach = m->sink_stride_h
                              ? (m->heads / m->sink_group - 1) * m->sink_stride_h + m->sink_count
                              : m->sink_count;
    own->sinks = room(reach, sizeof(float));
    FOR(n, reach) own->sinks[n] = (float)flash_load(m->dtype, m->sinks, n);
    p.has_sinks = true;
    p.sinks = own->sinks;
    p.sink_count = m->sink_count;
    p.sink_stride_h = m->sink_stride_h;
    p.sink_group = m->sink_group * m->queries;
    return p;
}

/* Rows [B, H, T, width] of a merge as attention's results. */
static struct flash_values rows_of(const ejki_merge_problem *m, ejk_dtype dtype,
                                   const ejki_bthd *out, int64_t width, const ejki_bht *lse) {
    const ejki_flash_problem p = {.batch = m->batch,
                                  .queries = m->queries,
                                  .query_heads = m->heads,
                                  .value_dim = width,
                                  .dtype = dtype,
                                  .normalize = true,
                                  .out = *out,
                                  .lse = *lse};
    return flash_values_at(&p);
}

static bool merge(const ejki_merge_problem *m, const ejki_merge_problem *got, double *worst,
                  char *why, size_t size) {
    struct merged own;
    struct flash_oracle oracle;
    const ejki_flash_problem p = merge_as_flash(m, &own);
    struct flash_values values =
        rows_of(m, m->out_dtype, &got->out, m->value_dim, &got->merged_lse);
    flash_oracle_create(&oracle, &p);
    const ejki_flash_problem of_results = {.dtype = m->out_dtype, .normalize = true};
    const bool good = flash_oracle_accepts(&oracle, &of_results, &values, worst, why, size);
    flash_oracle_destroy(&oracle);
    flash_values_release(&values);
    merged_free(&own);
    return good;
}

static float *narrowed(const double *wide, int64_t count) {
    float *values = room(count, sizeof *values);
    FOR(n, wide ? count : 0) values[n] = (float)wide[n];
    return values;
}

/* Parts' gradients in the order of values and of the bias. */
static struct view view_of_parts(const ejki_merge_vjp_problem *got, int64_t head) {
    const ejki_merge_parts *v = &got->d_part;
    const ejki_merge_problem *m = &got->forward;
    return (struct view){(char *)v->data + (size_t)(head * v->stride_h) * ejk_dtype_size(m->dtype),
                         {m->batch, m->parts, m->queries, m->value_dim},
                         {v->stride_b, v->stride_n, v->stride_t, 1}};
}

static bool merge_gradients(const ejki_merge_vjp_problem *v, const ejki_merge_vjp_problem *got,
                            double *worst, char *why, size_t size) {
    const ejki_merge_problem *m = &v->forward;
    const int64_t heads = m->heads * m->queries, dv = m->value_dim;
    struct merged own;
    struct vjp_oracle o;
    ejki_flash_vjp_problem f = {.forward = merge_as_flash(m, &own),
                                .wants_value = true,
                                .wants_bias = true,
                                .wants_sinks = m->has_sinks,
                                .has_lse_cotangent = v->has_lse_cotangent};
    struct flash_values wrote = rows_of(m, m->dtype, &m->out, dv, &m->merged_lse);
    struct flash_values cotangents = rows_of(m, m->dtype, &v->d_out, dv, &v->d_lse);
    own.out = narrowed(wrote.out, m->batch * heads * dv);
    own.lse = narrowed(wrote.lse, m->batch * heads);
    own.d_out = narrowed(cotangents.out, m->batch * heads * dv);
    own.d_lse = narrowed(cotangents.lse, m->batch * heads);
    flash_values_release(&wrote);
    flash_values_release(&cotangents);
    f.forward.out = (ejki_bthd){own.out, heads * dv, 0, dv};
    f.forward.lse = (ejki_bht){own.lse, heads, 1, 0};
    f.out_cotangent = (ejki_bthd){own.d_out, heads * dv, 0, dv};
    f.lse_cotangent = (ejki_bht){own.d_lse, heads, 1, 0};
    f.d_bias = (ejki_bias_gradient){NULL, heads * m->parts, m->parts, 0};
    f.d_sink_stride_h = m->sink_stride_h ? m->sink_count : 0;
    const struct vjp_case c = case_of(&f);
    vjp_oracle_create(&o, &c);
    bool good = true;
    if (got->wants_lse) {
        const ejki_merge_rows *d = &got->d_part_lse;
        /* [B, H T, N]: T of a head follow one another here and there. */
        float *values = room(o.count[VJP_BIAS], sizeof *values), *at = values;
        FOR(b, m->batch)
        FOR(h, m->heads)
        FOR(t, m->queries)
        FOR(n, m->parts)
        *at++ = d->data[n * d->stride_n + b * d->stride_b + h * d->stride_h + t];
        good = vjp_oracle_accepts(&o, VJP_BIAS, values, worst, why, size);
        free(values);
    }
    o.dtype = m->dtype;
    if (good && got->wants_parts) {
        float *values = room(o.count[VJP_VALUE], sizeof *values);
        FOR(h, m->heads) {
            const struct view view = view_of_parts(got, h);
            float *own_head = straight(m->dtype, &view), *from = own_head;
            FOR(bn, m->batch * m->parts) {
                const int64_t row = bn * heads + h * m->queries;
                memcpy(values + row * dv, from, (size_t)(m->queries * dv) * sizeof *values);
                from += m->queries * dv;
            }
            free(own_head);
        }
        good = vjp_oracle_accepts(&o, VJP_VALUE, values, worst, why, size);
        free(values);
    }
    if (good && got->wants_sinks) {
        const struct view view = {got->d_sinks,
                                  {1, 1, c.rows[VJP_SINKS], c.width[VJP_SINKS]},
                                  {0, 0, got->d_sink_stride_h, 1}};
        good = accepts(&o, &view, m->dtype, VJP_SINKS, worst, why, size);
    }
    vjp_oracle_destroy(&o);
    merged_free(&own);
    return good;
}

/* ---- Operations ------------------------------------------------------------------------------------- */

bool call_oracle_accepts(const ejk_kernel *kernel, const void *args, const void *got_args,
                         double *worst, char *why, size_t size) {
    union problem wanted, got;
    problem_of(kernel, args, &wanted);
    problem_of(kernel, got_args, &got);
    if (kernel == &ejk_attention_merge_kernel)
        return merge(&wanted.merge, &got.merge, worst, why, size);
    if (kernel == &ejk_attention_merge_vjp_kernel) {
        char text[300];
        if (merge_gradients(&wanted.merge_vjp, &got.merge_vjp, worst, text, sizeof text))
            return true;
        snprintf(why, size, "as attention over the parts, %s", text);
        return false;
    }
    uint8_t *shown = only_mask(&wanted.flash);
    bool good = kernel->forward ? gradients(&wanted.vjp, &got.vjp, worst, why, size)
                                : forward(&wanted.flash, &got.flash, worst, why, size);
    if (good && kernel == &ejk_attention_kernel && got.attention.wants_weights)
        good = weights(&wanted.flash, &got.attention, worst, why, size);
    free(shown);
    return good;
}
