/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights of dense attention in vectors. A task is a block of query rows of one KV head. Keys are packed a panel of 2
 * vectors at a time, [d][keys], and multiplied with all rows of the block, 4 at once, into whole rows of
 * scores; then each row is softened and written. A block has as many rows as scores fit into half a megabyte,
 * 4 to 64.
 *
 * Sums over a row run by absolute position of the keys and a row is decided on alone: bits do not depend on
 * tasks or threads. Hidden scores are -inf before they are looked at.
 */
#include "kernels/simd/vec.h"

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/attention/dense/problem.h"
#include "operations/attention/shared/dropout.h"
#include "operations/attention/flash/reference_row.h"
#include "kernels/simd/vec_math.h"

#define LOG2E 1.4426950408889634f
enum { PANEL = 2 * VL, TILE = 4, MOST_ROWS = 64, STRETCH = 256 };

/* Sizes of a task and of a worker's scratch, in elements. */
typedef struct weights_plan {
    int64_t rows, width, bytes; /* rows of a task, keys rounded up to panels, bytes of scratch */
    int64_t blocks;             /* tasks of a head */
} weights_plan;

static bool plan_of(const ejki_flash_problem *p, weights_plan *plan) {
    int64_t panel, scores, rows;
    if (!ejki_add(p->keys, PANEL - 1, &plan->width) || !ejki_mul(p->queries, p->group, &rows))
        return false;
    plan->width -= plan->width % PANEL;
    plan->rows = ejki_min(ejki_max((1 << 17) / ejki_max(plan->width, 1), TILE), MOST_ROWS);
    plan->rows -= plan->rows % TILE;
    plan->blocks = ejki_cdiv(rows, plan->rows);
    /* A panel, the queries of the block, and their scores. */
    return ejki_mul(p->head_dim, PANEL + plan->rows, &panel) &&
           ejki_mul(plan->width, plan->rows, &scores) && ejki_add(panel, scores, &plan->bytes) &&
           ejki_mul(plan->bytes, 4, &plan->bytes) && ejki_add(plan->bytes, 63, &plan->bytes) &&
           (plan->bytes &= ~INT64_C(63), true);
}

typedef struct weights_task {
    const ejki_attention_problem *a;
    const weights_plan *plan;
    int64_t b, head, first, rows; /* rows of the list i * G + g */
    float *panel, *queries, *scores;
} weights_task;

static reference_row row_of(const weights_task *t, int64_t row) {
    const ejki_flash_problem *p = &t->a->flash;
    reference_row r = {.problem = p,
                       .b = t->b,
                       .h = t->head * p->group + (t->first + row) % p->group,
                       .i = (t->first + row) / p->group};
    ejki_flash_visible(p, r.i, &r.first, &r.end);
    return r;
}

/* ---- Conversions ------------------------------------------------------------------------------------ */

static void read_floats(ejk_dtype dtype, const void *from, int64_t at, float *to, int64_t count) {
    uint16_t bits[STRETCH];
    if (dtype == EJK_DTYPE_F32) {
        memcpy(to, (const char *)from + at * 4, (size_t)count * 4);
        return;
    }
    for (int64_t i = 0; i < count; i += STRETCH) {
        const int64_t size = ejki_min(count - i, STRETCH);
        memcpy(bits, (const char *)from + (at + i) * 2, (size_t)size * 2);
        if (dtype == EJK_DTYPE_BF16)
            ejk_convert_bf16_to_f32(bits, to + i, size);
        else
            ejk_convert_f16_to_f32(bits, to + i, size);
    }
}

static void write_floats(ejk_dtype dtype, const float *from, void *to, int64_t at, int64_t count) {
    uint16_t bits[STRETCH];
    if (dtype == EJK_DTYPE_F32) {
        memcpy((char *)to + at * 4, from, (size_t)count * 4);
        return;
    }
    for (int64_t i = 0; i < count; i += STRETCH) {
        const int64_t size = ejki_min(count - i, STRETCH);
        if (dtype == EJK_DTYPE_BF16)
            ejk_convert_f32_to_bf16(from + i, bits, size);
        else
            ejk_convert_f32_to_f16(from + i, bits, size);
        memcpy((char *)to + (at + i) * 2, bits, (size_t)size * 2);
    }
}

/* ---- Scores ----------------------------------------------------------------------------------------- */

/* PANEL keys from `first`, [d][keys]; those that do not exist are 0. `scratch` has room for a key. */
static void pack(const weights_task *t, int64_t first, float *scratch) {
    const ejki_flash_problem *p = &t->a->flash;
    const int64_t count = ejki_min(p->keys - first, PANEL), depth = p->head_dim;
    for (int64_t k = 0; k < PANEL; k++) {
        if (k < count)
            read_floats(p->dtype, p->key.data,
                        t->b * p->key.stride_b + (first + k) * p->key.stride_t +
                            t->head * p->key.stride_h,
                        scratch, depth);
        for (int64_t d = 0; d < depth; d++) t->panel[d * PANEL + k] = k < count ? scratch[d] : 0;
    }
}

/* TILE rows by a panel. */
static void multiply(const weights_task *t, int64_t row, int64_t first) {
    const int64_t depth = t->a->flash.head_dim;
    const float *q = t->queries + row * depth;
    vf sums[TILE][2];
    for (int r = 0; r < TILE; r++) sums[r][0] = sums[r][1] = v_zero();
    for (int64_t d = 0; d < depth; d++) {
        const vf left = v_load(t->panel + d * PANEL), right = v_load(t->panel + d * PANEL + VL);
        for (int r = 0; r < TILE; r++) {
            const vf x = v_set1(q[r * depth + d]);
            sums[r][0] = v_fma(x, left, sums[r][0]);
            sums[r][1] = v_fma(x, right, sums[r][1]);
        }
    }
    for (int r = 0; r < TILE; r++) {
        float *to = t->scores + (row + r) * t->plan->width + first;
        v_store(to, sums[r][0]);
        v_store(to + VL, sums[r][1]);
    }
}

static void fill_scores(const weights_task *t, int64_t from, int64_t to) {
    const ejki_flash_problem *p = &t->a->flash;
    for (int64_t row = 0; row < t->plan->rows; row++) {
        float *q = t->queries + row * p->head_dim;
        if (row < t->rows) {
            const reference_row r = row_of(t, row);
            read_floats(p->dtype, p->query.data, row_start(&r, &p->query), q, p->head_dim);
        } else {
            memset(q, 0, (size_t)p->head_dim * sizeof *q);
        }
    }
    /* A key in floats lies between the queries and the scores while it is packed. */
    for (int64_t first = from; first < to; first += PANEL) {
        pack(t, first, t->panel + PANEL * p->head_dim + t->plan->rows * p->head_dim);
        for (int64_t row = 0; row < t->rows; row += TILE) multiply(t, row, first);
    }
}

/* ---- Rows ------------------------------------------------------------------------------------------- */

/* Scores of keys `from` to `end` of a row: scaled, capped, with bias, -inf where hidden. */
static void finish_scores(const reference_row *r, float *z, int64_t from, int64_t end) {
    const ejki_flash_problem *p = r->problem;
    const vf scale = v_set1((float)(p->soft_cap > 0 ? p->scale / p->soft_cap : p->scale)),
             cap = v_set1((float)p->soft_cap);
    for (int64_t j = from; j < end; j += VL) {
        vf x = v_mul(v_load(z + j), scale);
        if (p->soft_cap > 0) x = v_mul(v_tanh(x), cap);
        v_store(z + j, x);
    }
    const int64_t first = ejki_max(r->first, from), last = ejki_min(r->end, p->keys);
    if (p->has_bias) {
        float bias[STRETCH];
        const int64_t at =
            r->b * p->bias.stride_b + r->h * p->bias.stride_h + r->i * p->bias.stride_t;
        for (int64_t j = first; j < last; j += STRETCH) {
            const int64_t size = ejki_min(last - j, STRETCH);
            read_floats(p->dtype, p->bias.data, at + j, bias, size);
            for (int64_t k = 0; k < size; k++)
                z[j + k] = bias[k] == -INFINITY ? bias[k] : z[j + k] + bias[k];
        }
    }
    for (int64_t j = from; j < first; j++) z[j] = -INFINITY;
    if (p->has_mask || p->has_segments)
        for (int64_t j = first; j < last; j++)
            if (!row_sees(r, j)) z[j] = -INFINITY;
    for (int64_t j = ejki_max(last, from); j < end; j++) z[j] = -INFINITY;
}

/* Scores to weights; hidden ones are 0. */
static void soften(const reference_row *r, float *z, int64_t from, int64_t end) {
    const ejki_flash_problem *p = r->problem;
    float lanes[VL], largest = -INFINITY;
    vf max = v_set1(-INFINITY), sum = v_zero();
    for (int64_t j = from; j < end; j += VL) max = v_max(v_load(z + j), max);
    v_store(lanes, max);
    for (int i = 0; i < VL; i++) largest = lanes[i] > largest ? lanes[i] : largest;
    /* Where nothing is visible, -inf less 0 stays -inf. */
    const vf base = v_set1(largest == -INFINITY ? 0 : largest), log2e = v_set1(LOG2E);
    for (int64_t j = from; j < end; j += VL) {
        const vf e = v_exp2(v_mul(v_sub(v_load(z + j), base), log2e));
        v_store(z + j, e);
        sum = v_add(sum, e);
    }
    double total = 0, max_ = (double)largest;
    v_store(lanes, sum);
    for (int i = 0; i < VL; i++) total += (double)lanes[i];
    const double visible = total;
    total = row_add_sinks(r, total, &max_);
    double factor = total == 0 || visible == 0 ? 0 : row_weight((double)largest, max_) / total;
    if (isnan(visible)) factor = NAN;
    if (p->dropout > 0) factor *= ejki_dropout_factor(p->dropout);
    const vf f = v_set1((float)factor), zero = v_zero();
    for (int64_t j = from; j < end; j += VL) {
        const vf e = v_load(z + j);
        /* 0 stays 0 where the factor is NaN; a NaN is not above 0 either way round, and stays. */
        v_store(z + j, v_select_gt(v_set1(0x1p-127f), e, zero, v_mul(e, f)));
    }
    for (int64_t j = from; p->dropout > 0 && j < ejki_min(end, p->keys); j++)
        if (!ejki_dropout_keeps(p, r->b, r->h, r->i, j)) z[j] = 0;
}

static void write_zeros(const ejki_attention_problem *a, int64_t start, int64_t from, int64_t to) {
    const size_t size = ejk_dtype_size(a->flash.dtype);
    if (to > from)
        memset((char *)a->weights.data + (start + from) * (int64_t)size, 0,
               (size_t)(to - from) * size);
}

static void compute(const weights_task *t) {
    const ejki_attention_problem *a = t->a;
    const ejki_flash_problem *p = &a->flash;
    int64_t from = p->keys, to = 0;
    for (int64_t row = 0; row < t->rows; row++) {
        const reference_row r = row_of(t, row);
        if (r.first < r.end) from = ejki_min(from, r.first), to = ejki_max(to, r.end);
    }
    from -= from % PANEL;
    fill_scores(t, from, to);
    const int64_t end = ejki_max(ejki_round_up(to, PANEL), from);
    for (int64_t row = 0; row < t->rows; row++) {
        const reference_row r = row_of(t, row);
        float *z = t->scores + row * t->plan->width;
        const int64_t start =
            r.b * a->weights.stride_b + r.h * a->weights.stride_h + r.i * a->weights.stride_t;
        const int64_t last = ejki_min(end, p->keys);
        if (r.first >= r.end) {
            write_zeros(a, start, 0, p->keys);
            continue;
        }
        finish_scores(&r, z, from, end);
        soften(&r, z, from, end);
        write_zeros(a, start, 0, from);
        write_floats(p->dtype, z + from, a->weights.data, start + from, last - from);
        write_zeros(a, start, last, p->keys);
    }
}

/* ---- Tasks ------------------------------------------------------------------------------------------ */

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const ejki_flash_problem *p = problem;
    weights_plan plan;
    int64_t tasks, bytes;
    if (!plan_of(p, &plan) || !ejki_add(plan.bytes, p->head_dim * 4 + 64, &bytes) ||
        !ejki_mul(bytes, threads, &bytes) || !ejki_mul(p->batch, p->kv_heads, &tasks) ||
        !ejki_mul(tasks, plan.blocks, &tasks))
        return ejki_fail(EJK_STATUS_OVERFLOW, "rows of %lld weights are more than can be counted",
                         (long long)p->keys);
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, tasks));
    launch->workspace_bytes = (size_t)(bytes / threads * launch->workers);
    return EJK_OK;
}

/* Every workers-th task, so that causal rows, which grow, are spread evenly. */
static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const ejki_attention_problem *a = run->problem;
    const ejki_flash_problem *p = &a->flash;
    weights_plan plan;
    if (!plan_of(p, &plan)) return; /* prepare() refused these */
    const int64_t bytes = plan.bytes + p->head_dim * 4 + 64;
    weights_task t = {.a = a, .plan = &plan};
    t.panel = (float *)(void *)((char *)run->workspace + index * bytes);
    t.queries = t.panel + p->head_dim * PANEL;
    t.scores = t.queries + p->head_dim * plan.rows + p->head_dim;
    const int64_t tasks = p->batch * p->kv_heads * plan.blocks;
    for (int64_t n = index; n < tasks; n += run->workers) {
        const int64_t heads = n / plan.blocks;
        t.b = heads / p->kv_heads;
        t.head = heads % p->kv_heads;
        t.first = n % plan.blocks * plan.rows;
        t.rows = ejki_min(p->queries * p->group - t.first, plan.rows);
        compute(&t);
    }
}

static ejk_status run(const ejk_run *run) {
    const ejki_attention_problem *a = run->problem;
    if (a->flash.keys == 0) return EJK_OK;
    ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);
    return EJK_OK;
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .prepare = prepare, .run = run)
