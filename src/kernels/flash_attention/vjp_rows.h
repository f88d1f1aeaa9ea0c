/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What gradients need of each row before the first task, and what is left after the last one: statistics,
 * rounding of sums, sinks. Part of vjp_body.h, which includes it behind its types.
 */
#ifndef EJKI_VJP_ROWS_H
#define EJKI_VJP_ROWS_H

/* VL numbers of each of `count` rows, a column in each vector, 0 beyond `left` numbers. */
static inline void vjp_columns(ejk_dtype dtype, const void *const row[VL], int64_t count, int64_t d,
                               int64_t left, vf column[VL]) {
    for (int i = 0; i < VL; i++)
        column[i] = i < count ? v_widen_some(dtype, element_at(dtype, row[i], d), left) : v_zero();
    v_transpose(column);
}

/* δ of up to VL rows, less the cotangents of lse. It adds up in the order of the products <dO, value>, so that
 * where out is one value, and the two cancel, nothing is left of them. */
static void vjp_delta(const ejki_flash_vjp_problem *v, const flash_row *rows, int64_t count,
                      float *delta) {
    const ejki_flash_problem *p = &v->forward;
    const void *out[VL], *cotangent[VL];
    for (int64_t i = 0; i < count; i++) {
        out[i] = flash_out(p, &rows[i]);
        cotangent[i] = vjp_cotangent(v, &rows[i]);
    }
    vf sum = v_zero(), a[VL], b[VL];
    for (int64_t d = 0; d < p->value_dim; d += VL) {
        const int64_t left = p->value_dim - d;
        vjp_columns(p->dtype, out, count, d, left, a);
        vjp_columns(p->dtype, cotangent, count, d, left, b);
        for (int k = 0; k < VL && k < left; k++) sum = v_fma(b[k], a[k], sum);
    }
    v_store_first(delta, sum, count);
    for (int64_t i = 0; v->has_lse_cotangent && i < count; i++)
        delta[i] -= *flash_at(&v->lse_cotangent, &rows[i]);
}

/* A worker's share of what comes first: statistics of rows, and zeros where others will add. */
static void vjp_begin(void *argument, int64_t index) {
    const vjp_shared *shared = argument;
    const vjp_plan *t = &shared->plan;
    const ejki_flash_vjp_problem *v = shared->problem;
    const ejki_flash_problem *p = &v->forward;
    for (int64_t n = index; n < t->bias_rows; n += shared->workers) {
        const ejki_bias_gradient *bias = &v->d_bias;
        const int64_t queries = bias->stride_t ? p->queries : 1;
        const int64_t heads = bias->stride_h ? p->query_heads : 1;
        void *row =
            element_at(p->dtype, bias->data,
                       n / queries / heads * bias->stride_b + n / queries % heads * bias->stride_h +
                           n % queries * bias->stride_t);
        memset(row, 0, (size_t)(p->keys * element_size(p->dtype)));
    }
    const int64_t rows = t->heads * t->all_rows, share = ejki_cdiv(rows, shared->workers);
    for (int64_t n = index * share, end = ejki_min(rows, n + share), count; n < end; n += count) {
        flash_row row[VL];
        count = ejki_min(VL, end - n);
        for (int64_t i = 0; i < count; i++) {
            const int64_t head = (n + i) / t->all_rows;
            row[i] = flash_row_of(p, head / p->kv_heads, head % p->kv_heads, (n + i) % t->all_rows);
            shared->lse[n + i] = *flash_at(&p->lse, &row[i]);
            if (v->wants_query && p->head_dim > 0)
                memset(vjp_query_sum(shared, &row[i], n + i), 0,
                       (size_t)p->head_dim * sizeof(float));
        }
        vjp_delta(v, row, count, shared->delta + n);
        for (int64_t i = 0; i < count; i++)
            if (shared->lse[n + i] == -INFINITY) shared->delta[n + i] = 0;
    }
}

/* A worker's share of what comes last in 16 bits: sums of rows are rounded. */
static void vjp_end(void *argument, int64_t index) {
    const vjp_shared *shared = argument;
    const vjp_plan *t = &shared->plan;
    const ejki_flash_vjp_problem *v = shared->problem;
    const ejki_flash_problem *p = &v->forward;
    const int64_t rows = t->heads * t->all_rows, share = ejki_cdiv(rows, shared->workers);
    for (int64_t n = index * share; n < ejki_min(rows, (index + 1) * share); n++) {
        const int64_t head = n / t->all_rows;
        const flash_row r =
            flash_row_of(p, head / p->kv_heads, head % p->kv_heads, n % t->all_rows);
        const float *sums = vjp_query_sum(shared, &r, n);
        void *out = flash_row_at(&v->d_query, p->dtype, &r);
        for (int64_t d = 0; d < p->head_dim; d += VL)
            v_narrow_some(p->dtype, element_at(p->dtype, out, d),
                          v_load_first(sums + d, ejki_min(VL, p->head_dim - d)), p->head_dim - d);
    }
}

/* Gradients of the sinks of one head, or of all where they share them: sums in f64, over rows in order. */
static void vjp_sink(const vjp_shared *shared, int64_t sink_head) {
    const vjp_plan *t = &shared->plan;
    const ejki_flash_vjp_problem *v = shared->problem;
    const ejki_flash_problem *p = &v->forward;
    const bool all = p->sink_stride_h == 0;
    for (int64_t n = 0; n < p->sink_count; n++) {
        const float sink = element_load(p->dtype, p->sinks, sink_head * p->sink_stride_h + n);
        double sum = 0;
        for (int64_t row = 0; row < t->heads * t->all_rows; row++) {
            const int64_t head = row / t->all_rows % p->kv_heads * p->group + row % p->group;
            if ((!all && head / p->sink_group != sink_head) || shared->lse[row] == -INFINITY)
                continue;
            sum -= (double)expf(sink - shared->lse[row]) * (double)shared->delta[row];
        }
        element_store(p->dtype, v->d_sinks, sink_head * v->d_sink_stride_h + n, (float)sum);
    }
}

static void vjp_sinks(void *argument, int64_t index) {
    const vjp_shared *shared = argument;
    const ejki_flash_problem *p = &shared->problem->forward;
    const int64_t heads = p->sink_stride_h == 0 ? 1 : p->query_heads / p->sink_group;
    for (int64_t head = index; head < heads; head += shared->workers) vjp_sink(shared, head);
}

#endif
