/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gated_rms_norm in vectors. A worker takes rows in the order of memory and asks for lines 16 KiB ahead, by PREFETCHT1;
 * a group is read for its sum of squares, in four sums, and again from the cache. Where the gate comes first, products
 * are kept as floats. Results of calls larger than a cache go past the caches, which would read their lines first.
 */
#include "kernels/simd/vec.h"

#include "kernels/declare.h"
#include "operations/norm/gated_rms_norm/row.h"

/* Bytes of results from which on they go past the caches. */
enum { STREAMED = 4 << 20 };

typedef struct row {
    const void *x, *gate;
    void *out;
    const void *next_x, *next_gate;
    const float *weights;
    float *products;
} row;

INLINE vf gate_at(const ejk_dtype dtype, const bool silu, const row *r, int64_t d, int64_t left) {
    const vf z = v_widen_some(dtype, element_at(dtype, r->gate, d), left);
    return silu ? v_silu(z) : v_sigmoid(z);
}

/* In the pass that computes most: lines that are asked for faster than they come are dropped. */
INLINE void ask_next(const ejk_dtype dtype, const norm_problem *p, const row *r, int64_t d) {
    ask(dtype, r->next_x, d);
    if (p->has_gate) ask(dtype, r->next_gate, d);
}

/* One element of what is normed, at VL components of which `left` count. */
INLINE vf element_of(const ejk_dtype dtype, const norm_problem *p, const bool first, const row *r,
                     int64_t d, int64_t left) {
    const vf x = v_widen_some(dtype, element_at(dtype, r->x, d), left);
    if (first || !p->has_gate) return x;
    ask_next(dtype, p, r, d);
    const vf product = v_mul(x, gate_at(dtype, p->silu, r, d, left));
    v_store(r->products + d, product);
    return product;
}

INLINE float squares_of(const ejk_dtype dtype, const norm_problem *p, const bool first,
                        const row *r, int64_t d, int64_t end) {
    vf sum[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    for (; d + 4 * VL <= end; d += 4 * VL) EJKI_UNROLL for (int i = 0; i < 4; i++) {
            const vf u = element_of(dtype, p, first, r, d + i * VL, VL);
            sum[i] = v_fma(u, u, sum[i]);
        }
    for (; d < end; d += VL) {
        const vf u = element_of(dtype, p, first, r, d, ejki_min(end - d, VL));
        sum[0] = v_fma(u, u, sum[0]);
    }
    return v_sum(v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3])));
}

INLINE void write_at(const ejk_dtype dtype, const norm_problem *p, const bool first,
                     const bool stream, const row *r, vf scale, int64_t d, int64_t left) {
    vf u;
    if (first || !p->has_gate) {
        ask_next(dtype, p, r, d);
        u = v_widen_some(dtype, element_at(dtype, r->x, d), left);
    } else {
        u = v_load(r->products + d);
    }
    u = v_mul(v_mul(u, scale), v_load_first(r->weights + d, left));
    if (first && p->has_gate) u = v_mul(u, gate_at(dtype, p->silu, r, d, left));
    if (stream)
        v_stream(element_at(dtype, r->out, d), u);
    else
        v_narrow_some(dtype, element_at(dtype, r->out, d), u, left);
}

INLINE void norm_row(const ejk_dtype dtype, const norm_problem *p, const bool first,
                     const bool stream, const row *r) {
    for (int64_t g = 0; g < p->width; g += p->group) {
        const int64_t end = g + p->group;
        const vf scale = v_set1(scale_of(p, squares_of(dtype, p, first, r, g, end)));
        int64_t d = g;
        for (; d + VL <= end; d += VL) write_at(dtype, p, first, stream, r, scale, d, VL);
        if (d < end) write_at(dtype, p, first, false, r, scale, d, end - d);
    }
}

#define ROW(name, dtype, stream)                                                                   \
    static __attribute__((noinline)) void name(const norm_problem *p, const row *r) {              \
        if (p->norm_first)                                                                         \
            norm_row(dtype, p, true, stream, r);                                                   \
        else                                                                                       \
            norm_row(dtype, p, false, stream, r);                                                  \
    }
ROW(row_f32, EJK_DTYPE_F32, false)
ROW(row_stream, EJK_DTYPE_F32, true)
ROW(row_bf16, EJK_DTYPE_BF16, false)
ROW(row_f16, EJK_DTYPE_F16, false)

/* ---- Tasks ------------------------------------------------------------------------------------------- */

static int64_t own_floats(const norm_problem *p) {
    return 2 * ejki_round_up(p->width + VL, LINE / 4);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const norm_problem *p = problem;
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, p->rows));
    launch->workspace_bytes = (size_t)(launch->workers * own_floats(p)) * sizeof(float);
    return EJK_OK;
}

/* Groups of whole lines, so that vectors can be written past the caches. */
static bool streams(const norm_problem *p) {
    const norm_size *stride = p->y.stride;
    return p->dtype == EJK_DTYPE_F32 && (double)p->rows * (double)p->width * 4 >= STREAMED &&
           (uintptr_t)p->y.data % LINE == 0 && p->group % (LINE / 4) == 0 &&
           stride[0] % (LINE / 4) == 0 && stride[1] % (LINE / 4) == 0 &&
           stride[2] % (LINE / 4) == 0;
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const norm_problem *p = run->problem;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const bool stream = streams(p);
    float *weights = (float *)run->workspace + index * own_floats(p);
    row r = {.weights = weights, .products = weights + own_floats(p) / 2};
    take_weights(p, weights);
    const int64_t end = p->rows * (index + 1) / run->workers;
    for (int64_t n = p->rows * index / run->workers; n < end; n++) {
        const int64_t next = row_ahead(p, n);
        r.x = row_at(dtype, p, &p->x, n);
        r.gate = row_at(dtype, p, &p->gate, n);
        r.out = row_at(dtype, p, &p->y, n);
        r.next_x = row_at(dtype, p, &p->x, next);
        r.next_gate = row_at(dtype, p, &p->gate, next);
        if (dtype == EJK_DTYPE_F32)
            (stream ? row_stream : row_f32)(p, &r);
        else
            (dtype == EJK_DTYPE_BF16 ? row_bf16 : row_f16)(p, &r);
    }
    if (stream) v_streamed();
}

EJKI_DEFINE_RUN(work)

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .prepare = prepare, .run = run)
