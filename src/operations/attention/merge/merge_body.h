/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_merge in vectors. A task is a block of rows of some heads. Its weights come first, lanes along the
 * rows, kept as [head][part][row]; then each row adds its parts in order, lanes along Dv, a few vectors at a time,
 * parts of weight 0 left out. Elements of 16 bits become floats, and floats elements, in registers. Results that no
 * cache will hold are written past it where the processor can, which saves reading their lines.
 */
#include <ejkernel/device.h>

#include <string.h>

#include "operations/attention/merge/merge_block.h"

typedef struct merge_task {
    const ejki_merge_problem *p;
    int64_t b, first, rows; /* rows first … first + rows - 1 */
    int64_t head, heads;
    float *weights;       /* [heads][parts][ROWS] */
    const void **sources; /* of a row: its parts that count */
    float *factors;
    bool streams;
    int64_t distance; /* of prefetches, in bytes */
} merge_task;

/* A Zen 4 overlaps prefetches 16 KiB ahead best: N=4, Dv=128 reads at 75 to 85 % in place of 62 to 72; N=8, Dv=64 as
 * before. */
static int64_t prefetch_distance(void) {
    const ejk_cpu_info *cpu = ejk_cpu();
    const bool zen4 =
        strcmp(cpu->vendor, "amd") == 0 && cpu->family == 25 && cpu->tiers[EJK_ISA_AVX512];
    return zen4 ? 16 << 10 : AHEAD;
}

/* ---- Weights ---------------------------------------------------------------------------------------- */

/* Values of `rows` rows; the others get `rest`. */
static vf load_rows(const merge_task *t, const ejki_merge_rows *from, int64_t h, int64_t n,
                    int64_t row, float rest) {
    const merge_row r = {t->b, h, t->first + row};
    const char *source = (const char *)from->data + merge_lse_start(from, &r, n) * 4;
    float values[VL];
    const int64_t count = ejki_min(t->rows - row, VL);
    for (int64_t i = count; i < VL; i++) values[i] = rest;
    memcpy(values, source, (size_t)count * sizeof *values);
    return v_load(values);
}

/* Writes the weights of VL rows of a head; what no part and no sink counts in has weights of 0. */
static void weigh(const merge_task *t, int64_t h, int64_t row, float sink_max, double sink_sum) {
    const ejki_merge_problem *p = t->p;
    float *weights = t->weights + (h - t->head) * p->parts * ROWS + row;
    const vf hidden = v_set1(-__builtin_inff()), log2e = v_set1(LOG2E), zero = v_zero();
    vf max = v_set1(sink_max);
    for (int64_t n = 0; n < p->parts; n++) {
        const vf l = load_rows(t, &p->lse, h, n, row, -__builtin_inff());
        v_store(weights + n * ROWS, l);
        max = v_max(max, l);
    }
    /* Where nothing counts, -inf less 0 stays -inf. */
    const vf base = v_select_gt(max, hidden, max, zero);
    vf sum = zero;
    for (int64_t n = 0; n < p->parts; n++) {
        const vf e = v_exp2(v_mul(v_sub(v_load(weights + n * ROWS), base), log2e));
        vf share = e;
        if (p->has_sums) {
            const vf counted = v_mul(e, load_rows(t, &p->sums, h, n, row, 0));
            share = v_select_gt(v_abs(e), zero, counted, e);
        }
        v_store(weights + n * ROWS, e);
        sum = v_add(sum, share);
    }
    float bases[VL], sums[VL];
    v_store(bases, base);
    v_store(sums, sum);
    const int64_t count = ejki_min(t->rows - row, VL);
    for (int64_t i = 0; i < VL; i++) {
        double total = (double)sums[i];
        if (p->has_sinks) total += sink_sum * exp((double)sink_max - (double)bases[i]);
        if (p->merged_lse.data && i < count) {
            const merge_row r = {t->b, h, t->first + row + i};
            p->merged_lse.data[merge_scalar_start(&p->merged_lse, &r)] =
                (float)((double)bases[i] + log(total));
        }
        sums[i] = total == 0 ? 0 : (float)(1 / total);
    }
    const vf factor = v_load(sums);
    for (int64_t n = 0; n < p->parts; n++)
        v_store(weights + n * ROWS, v_mul(v_load(weights + n * ROWS), factor));
}

/* The sinks of a head relative to their largest. */
static double sum_sinks(const ejki_merge_problem *p, int64_t h, double *largest) {
    double sum = 0;
    *largest = -INFINITY;
    for (int64_t m = 0; p->has_sinks && m < p->sink_count; m++)
        *largest = row_larger(*largest, merge_sink(p, h, m));
    for (int64_t m = 0; p->has_sinks && m < p->sink_count; m++)
        sum += row_weight(merge_sink(p, h, m), *largest);
    return sum;
}

static void weigh_all(const merge_task *t) {
    for (int64_t h = t->head; h < t->head + t->heads; h++) {
        double sink_max;
        const double sink_sum = sum_sinks(t->p, h, &sink_max);
        for (int64_t row = 0; row < t->rows; row += VL) weigh(t, h, row, (float)sink_max, sink_sum);
    }
}

/* ---- Rows ------------------------------------------------------------------------------------------- */

/* `count` parts onto `to`. */
static inline __attribute__((always_inline)) void add_parts(const ejk_dtype from_dtype,
                                                            const ejk_dtype to_dtype,
                                                            const merge_task *t, int64_t count,
                                                            void *to, bool streams) {
    const int64_t size = t->p->value_dim;
    int64_t d = 0;
    for (; d + AT_ONCE * VL <= size; d += AT_ONCE * VL) {
        vf sum[AT_ONCE];
        for (int k = 0; k < AT_ONCE; k++) sum[k] = v_zero();
        for (int64_t n = 0; n < count; n++) {
            const void *from = element_at(from_dtype, t->sources[n], d);
            const vf w = v_set1(t->factors[n]);
            for (int k = 0; k < AT_ONCE; k++) {
                const void *at = element_at(from_dtype, from, k * VL);
                sum[k] = v_fma(w, v_widen(from_dtype, at), sum[k]);
                __builtin_prefetch((const void *)((uintptr_t)at + (uintptr_t)t->distance), 0, 2);
            }
        }
        for (int k = 0; k < AT_ONCE; k++)
            put(to_dtype, element_at(to_dtype, to, d + k * VL), sum[k], streams);
    }
    for (; d < size; d += VL) {
        const int64_t left = ejki_min(size - d, VL);
        vf sum = v_zero();
        for (int64_t n = 0; n < count; n++) {
            const void *from = element_at(from_dtype, t->sources[n], d);
            sum = v_fma(v_set1(t->factors[n]), v_widen_first(from_dtype, from, left), sum);
        }
        v_narrow_first(to_dtype, element_at(to_dtype, to, d), sum, left);
    }
}

static void add_row(const merge_task *t, const merge_row *r) {
    const ejki_merge_problem *p = t->p;
    const float *weights = t->weights + (r->h - t->head) * p->parts * ROWS + (r->i - t->first);
    int64_t count = 0;
    for (int64_t n = 0; n < p->parts; n++) {
        const float w = weights[n * ROWS];
        if (w == 0) continue;
        t->factors[count] = w;
        t->sources[count++] = element_at(p->dtype, p->part.data, merge_part_start(&p->part, r, n));
    }
    const ejk_dtype from = p->dtype, out = p->out_dtype;
    void *to = element_at(out, p->out.data, merge_out_start(&p->out, r));
    const bool streams = may_stream(out, to, t->streams);
    if (from == EJK_DTYPE_F32 && out == EJK_DTYPE_F32)
        add_parts(EJK_DTYPE_F32, EJK_DTYPE_F32, t, count, to, streams);
    else if (from == EJK_DTYPE_F32 && out == EJK_DTYPE_BF16)
        add_parts(EJK_DTYPE_F32, EJK_DTYPE_BF16, t, count, to, streams);
    else if (from == EJK_DTYPE_F32)
        add_parts(EJK_DTYPE_F32, EJK_DTYPE_F16, t, count, to, streams);
    else if (from == EJK_DTYPE_BF16)
        add_parts(EJK_DTYPE_BF16, EJK_DTYPE_BF16, t, count, to, streams);
    else
        add_parts(EJK_DTYPE_F16, EJK_DTYPE_F16, t, count, to, streams);
}

/* ---- Tasks ------------------------------------------------------------------------------------------ */

static bool scratch_bytes(const ejki_merge_problem *p, int64_t *bytes) {
    if (!ejki_mul(p->parts, HEADS * ROWS * 4 + 8 + 4, bytes) || !ejki_add(*bytes, 63, bytes))
        return false;
    *bytes &= ~INT64_C(63);
    return true;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const ejki_merge_problem *p = problem;
    int64_t tasks, bytes;
    if (!ejki_mul(p->batch, row_blocks(p), &tasks) || !ejki_mul(tasks, head_blocks(p), &tasks) ||
        !scratch_bytes(p, &bytes) || !ejki_mul(bytes, threads, &bytes))
        return ejki_fail(EJK_STATUS_OVERFLOW, "%lld parts of %lld x %lld rows cannot be counted",
                         (long long)p->parts, (long long)p->batch, (long long)p->queries);
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, tasks));
    launch->workspace_bytes = (size_t)(bytes / threads * launch->workers);
    return EJK_OK;
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const ejki_merge_problem *p = run->problem;
    int64_t bytes = 0;
    if (!scratch_bytes(p, &bytes)) return; /* prepare() refused these */
    char *scratch = (char *)run->workspace + index * bytes;
    const int64_t out_bytes =
        p->batch * p->queries * p->heads * p->value_dim * element_size(p->out_dtype);
    merge_task t = {.p = p,
                    .weights = (float *)(void *)scratch,
                    .sources = (const void **)(void *)(scratch + p->parts * HEADS * ROWS * 4),
                    .streams = out_bytes > STREAMED,
                    .distance = prefetch_distance()};
    t.factors = (float *)(void *)(t.sources + p->parts);
    const int64_t blocks = row_blocks(p) * head_blocks(p), tasks = p->batch * blocks;
    for (int64_t n = tasks * index / run->workers; n < tasks * (index + 1) / run->workers; n++) {
        t.b = n / blocks;
        t.first = n % blocks / head_blocks(p) * ROWS;
        t.rows = ejki_min(p->queries - t.first, ROWS);
        t.head = n % head_blocks(p) * HEADS;
        t.heads = ejki_min(p->heads - t.head, HEADS);
        weigh_all(&t);
        for (int64_t i = t.first; i < t.first + t.rows; i++)
            for (int64_t h = t.head; h < t.head + t.heads; h++)
                add_row(&t, &(merge_row){t.b, h, i});
    }
#ifdef MERGE_STREAM
    MERGE_FENCE();
#endif
}

EJKI_DEFINE_RUN(work)

static bool applicable(const void *problem) {
    return ((const ejki_merge_problem *)problem)->out_dtype != EJK_DTYPE_F64;
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .applicable = applicable, .prepare = prepare, .run = run)
