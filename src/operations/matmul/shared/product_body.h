/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products (product.cuh) in vectors. A worker has a range of columns and of rows. Of these it takes up to
 * PRODUCT_ROWS rows and PRODUCT_COLUMNS columns of a group at a time, walks over the depth in blocks of PRODUCT_DEPTH
 * words, packs both operands of a block, and adds their products to float32 sums, a tile of TILE_ROWS x TILE_COLUMNS
 * after the other, down the rows first: a panel of b stays in the first-level cache meanwhile, a and all panels of b
 * in the second. Sums then become results.
 *
 * An element's sum runs over its depth in order, one fused multiply-add after the other, whatever rows, columns and
 * threads there are beside it: sums of a block are written and read back as they are. So bits depend on the element
 * alone. With TILE_BF16_DOT a pair is added by VDPBF16PS, the second element first; where a tile or a block of b has
 * numbers so tiny that it would take their products for 0, the same is done in floats, which gives the same bits else.
 *
 * Matrices of b that no row needs are not looked at.
 */
#include <ejkernel/device.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/matmul/shared/product_finish.h"
#include "operations/matmul/shared/product_sums.h"
#ifndef TILE_BYTE_DOT
#include "operations/matmul/shared/product_dense.h"
#endif

#include <string.h>

/* ---- Plan ------------------------------------------------------------------------------------------- */

/* How a product is cut: workers side by side and one below the other, and the memory of each, in floats. */
typedef struct product_plan {
    int64_t across, down;    /* workers */
    int64_t rows, columns;   /* of a block; columns of b */
    int64_t a, b, sums, own; /* sizes; `own` of all three */
    int64_t scattered;       /* for all workers together */
} product_plan;

static mm_size rows_in_all(const mm_product *p) {
    return p->split == MM_EVEN ? p->groups * p->rows : p->rows;
}

/* Codes whose groups run along the depth: product_groups.h. */
static bool by_groups(const mm_product *p) {
    return p->quant.present && p->b.flipped;
}

/* Columns of out that make a panel of b, or two for gates and values. */
static mm_size panel_of(const mm_product *p) {
    const mm_size width = by_groups(p) ? PACKED_COLUMNS : TILE_COLUMNS;
    return p->gated && p->interleaved ? width / 2 : width;
}

/* True if rows of results are added up, in memory that workers share: by columns only. */
static bool adds_up(const mm_product *p) {
    return p->scatter.present || p->fold.present;
}

static mm_size rows_added_up(const mm_product *p) {
    return p->scatter.present ? p->out_rows : p->fold.present ? p->held * p->out_rows : 0;
}

/* The same for product_groups.h, where rows are packed for the whole depth and lie even in their blocks. */
static void plan_groups(const mm_product *p, product_plan *plan) {
    const packed_form form = packed_form_of(&p->quant, mm_columns_of_b(p), p->depth);
    const mm_size all = ejki_max(1, rows_in_all(p));
    plan->rows = ejki_round_up(ejki_cdiv(all, ejki_cdiv(all, PRODUCT_ROWS)), TILE_ROWS);
    plan->columns = ejki_min(plan->columns, GROUP_COLUMNS);
    plan->a = plan->rows * (group_words(&form) + 3 * group_blocks(&form));
    plan->b = GROUP_DEPTH * TILE_COLUMNS + plan->rows * PACKED_COLUMNS;
    if (!p->quant.packed) plan->b += form.stream / 4;
}

static product_plan plan_of(const mm_product *p, int64_t workers) {
    const mm_size panels = ejki_max(1, ejki_cdiv(p->columns, panel_of(p)));
    const mm_size tiles = ejki_max(1, ejki_cdiv(rows_in_all(p), TILE_ROWS));
    product_plan plan = {.across = 1, .down = 1};
    mm_size least = panels * tiles;
    for (int64_t across = 1; across <= workers && across <= panels; across++) {
        const int64_t down = adds_up(p) ? 1 : ejki_min(workers / across, tiles);
        const mm_size load = ejki_cdiv(panels, across) * ejki_cdiv(tiles, down);
        if (load > least) continue;
        least = load;
        plan.across = across;
        plan.down = down;
    }
    plan.rows = ejki_min(PRODUCT_ROWS, tiles * TILE_ROWS);
    plan.columns = ejki_min(PRODUCT_COLUMNS, panels * panel_of(p) * (p->gated ? 2 : 1));
    plan.a = plan.rows * PRODUCT_DEPTH + VL;
    plan.b = plan.columns * PRODUCT_DEPTH;
    if (by_groups(p)) plan_groups(p, &plan);
    plan.sums = plan.columns * plan.rows;
    plan.own = ejki_round_up(plan.a, 16) + plan.b + plan.sums;
    plan.scattered = ejki_round_up(rows_added_up(p) * p->columns, 16);
    return plan;
}

/*
 * Where workers have their memory, in floats: each `own`, behind what is scattered to by all. A worker may be at
 * another product than its neighbour, so that sizes are those of the largest, and products scatter to own places.
 */
typedef struct product_memory {
    int64_t own, scattered[MM_PRODUCTS], workers;
} product_memory;

static product_memory memory_of(const mm_problem *problem, int64_t workers) {
    product_memory memory = {0};
    for (int n = 0; n < problem->count; n++) {
        const product_plan plan = plan_of(&problem->product[n], workers);
        memory.own = ejki_max(memory.own, plan.own);
        memory.scattered[n] = memory.workers;
        memory.workers += plan.scattered;
    }
    return memory;
}

/* ---- Results ---------------------------------------------------------------------------------------- */

/* n columns of a row from `j` of the block on, activated. */
INLINE vf result_of(const product_block *k, const float *sums, mm_size j, mm_size n) {
    const mm_product *p = k->p;
    const mm_size column = k->column + j, stride = k->capacity * TILE_COLUMNS;
    float both[2 * VL];
    vf gate, value = v_zero();
    if (!p->gated) {
        gate = v_load(sums + j / TILE_COLUMNS * stride + j % TILE_COLUMNS);
        return activate(p, with_bias(p, k->s, gate, column, n), value);
    }
    if (!p->interleaved) {
        const mm_size second = ejki_cdiv(k->columns, TILE_COLUMNS) * stride;
        sums += j / TILE_COLUMNS * stride + j % TILE_COLUMNS;
        gate = with_bias(p, k->s, v_load(sums), column, n);
        value = with_bias(p, k->s, v_load(sums + second), p->columns + column, n);
        return activate(p, gate, value);
    }
    for (int half = 0; half < 2; half++) {
        const mm_size at = 2 * j + half * VL, left = 2 * n - half * VL;
        const vf sum = v_load(sums + at / TILE_COLUMNS * stride + at % TILE_COLUMNS);
        v_store(both + half * VL,
                left > 0 ? with_bias(p, k->s, sum, 2 * k->column + at, left) : sum);
    }
    return activate(p, every_other(both, VL), every_other(both + 1, VL));
}

/* n results of row `row` times elements of a view, at `at` and then `step` apart. */
static vf times(const mm_view *v, mm_size at, mm_size step, vf value, mm_size n) {
    float lane[VL];
    v_store(lane, value);
    for (mm_size i = 0; i < n; i++) lane[i] *= element_load(dtype_of(v), v->data, at + i * step);
    return v_load(lane);
}

/* Factors of MM_DEPTH. */
static vf with_factors(const product_block *k, vf v, mm_size row, mm_size column, mm_size n) {
    const mm_product *p = k->p;
    const mm_view *fold = &p->fold;
    float lane[VL];
    if (p->scale.present) {
        v_store(lane, v);
        for (mm_size i = 0; i < n; i++)
            lane[i] *= element_load(dtype_of(&p->scale), p->scale.data,
                                    mm_scale_at(p, k->s->held, row, column + i));
        v = v_load(lane);
    }
    if (!fold->present) return v;
    return times(fold, k->s->held * fold->group + row * fold->row + column * fold->column,
                 fold->column, v, n);
}

/* The row that a row of results is added to, and its weight; NULL: it is a result itself. */
static float *added_to(const product_block *k, mm_size row, float *weight) {
    const mm_product *p = k->p;
    mm_size at = 0;
    *weight = 1;
    if (!adds_up(p)) return NULL;
    if (p->fold.present) at = k->s->held * p->out_rows + row / p->block;
    if (p->scatter.present) at = mm_number(&p->scatter, row);
    if (p->weight_type) *weight = element_load((ejk_dtype)p->weight_type, p->weight, row);
    return k->scattered + at * p->columns + k->column;
}

static void finish_row(const product_block *k, mm_size i) {
    const mm_product *p = k->p;
    const mm_segment *s = k->s;
    const mm_size row = s->first + k->row + i;
    float weight, *sums = added_to(k, row, &weight);
    for (mm_size j = 0; j < k->columns; j += VL) {
        const mm_size n = ejki_min(k->columns - j, VL), column = k->column + j;
        vf v = s->idle ? v_zero() : result_of(k, k->sums + i * TILE_COLUMNS, j, n);
        if (p->split == MM_DEPTH && !mm_is_empty(p, s)) v = with_factors(k, v, row, column, n);
        if (sums) {
            v = v_fma(v, v_set1(weight), v_load_first(sums + j, n));
            v_store_first(sums + j, v, n);
            continue;
        }
        if (p->add.present) v = v_add(v, view_load(&p->add, s->add + row * p->add.row + column, n));
        void *out = element_at(dtype_of(&p->out), p->out.data, s->out + row * p->out.row + column);
        v_narrow_some(dtype_of(&p->out), out, v, n);
    }
}

/* What was added up in columns first to end - 1 becomes out. */
static void finish_scattered(const mm_product *p, const float *scattered, mm_size first,
                             mm_size end) {
    for (mm_size i = 0; i < rows_added_up(p); i++)
        for (mm_size j = first; j < end; j += VL) {
            const mm_size n = ejki_min(end - j, VL);
            vf v = v_load_first(scattered + i * p->columns + j, n);
            if (p->add.present) v = v_add(v, view_load(&p->add, i * p->add.row + j, n));
            v_narrow_some(
                dtype_of(&p->out),
                element_at(dtype_of(&p->out), p->out.data,
                           i / p->out_rows * p->out.group + i % p->out_rows * p->out.row + j),
                v, n);
        }
}

/* ---- Workers ---------------------------------------------------------------------------------------- */

INLINE void sums_of(const ejk_dtype dtype, product_block *k) {
#ifdef TILE_BYTE_DOT
    sum_groups(dtype, k);
#else
    if (by_groups(k->p))
        sum_groups(dtype, k);
    else
        sum_block(dtype, k);
#endif
}

static void do_block(product_block *k) {
    if (!k->s->idle) {
#ifdef TILE_BF16_DOT
        sums_of(EJK_DTYPE_BF16, k);
#else
        if (k->p->a.dtype == EJK_DTYPE_F32)
            sums_of(EJK_DTYPE_F32, k);
        else if (k->p->a.dtype == EJK_DTYPE_BF16)
            sums_of(EJK_DTYPE_BF16, k);
        else
            sums_of(EJK_DTYPE_F16, k);
#endif
    }
    for (mm_size i = 0; i < k->rows; i++) finish_row(k, i);
}

/* Rows low to high - 1 of all, and columns first to end - 1. */
static void do_part(product_block *k, const product_plan *plan, mm_size low, mm_size high,
                    mm_size first, mm_size end) {
    const mm_product *p = k->p;
    const mm_size step = p->gated ? plan->columns / 2 : plan->columns;
    const ejk_dtype dtype = dtype_of(&p->a);
    mm_segment s = {0}, later = {0};
    mm_size reached = 0; /* segments that `later` has seen */
    k->s = &s;
    for (mm_size g = 0; g < mm_segments(p); g++) {
        mm_take(p, g, &s);
        if (s.idle && (p->split == MM_DEPTH || p->scatter.present)) continue;
        const mm_size base = p->split == MM_EVEN ? g * p->rows : s.first;
        const mm_size from = ejki_max(low - base, 0), to = ejki_min(high - base, s.rows);
        while (reached <= g || (reached < p->groups && (later.idle || later.rows == 0)))
            mm_take(p, reached++, &later);
        const bool goes_on = later.group > g && !later.idle && later.rows > 0;
        for (k->row = from; k->row < to; k->row += plan->rows)
            for (k->column = first; k->column < end; k->column += step) {
                const bool last = k->column + step >= end,
                           repeats = last && k->row + plan->rows < to;
                const mm_segment *next = last && !repeats ? &later : &s;
                const mm_size column = last ? first : k->column + step;
                k->rows = ejki_min(to - k->row, plan->rows);
                k->columns = ejki_min(end - k->column, step);
                k->after = last && !repeats && !goes_on
                               ? NULL
                               : element_at(dtype, p->b.data,
                                            next->b + mm_step(p, &p->b, next->step, p->b.row) +
                                                column * p->b.column);
                do_block(k);
            }
    }
}

static void do_product(const mm_product *p, const ejk_run *run, int64_t index, float *own,
                       float *scattered) {
    const product_plan plan = plan_of(p, run->workers);
    const mm_size panels = ejki_cdiv(p->columns, panel_of(p)), all = rows_in_all(p);
    const int64_t across = index % plan.across, down = index / plan.across;
    if (!p->has_out || down >= plan.down) return;
    const mm_size first = panels * across / plan.across * panel_of(p);
    const mm_size end = ejki_min(panels * (across + 1) / plan.across * panel_of(p), p->columns);
    product_block k = {.p = p, .a = own, .capacity = plan.rows, .scattered = scattered};
    k.packed_group = -1;
    k.b = own + ejki_round_up(plan.a, 16);
    k.sums = k.b + plan.b;
    for (mm_size i = 0; i < rows_added_up(p); i++)
        memset(k.scattered + i * p->columns + first, 0,
               (size_t)(end - first) * sizeof *k.scattered);
    do_part(&k, &plan, all * down / plan.down, all * (down + 1) / plan.down, first, end);
    finish_scattered(p, k.scattered, first, end);
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const mm_problem *problem = run->problem;
    const product_memory memory = memory_of(problem, run->workers);
    float *all = run->workspace, *own = all + memory.workers + index * memory.own;
#ifdef TILE_AMX
    tiles_open();
#endif
    for (int n = 0; n < problem->count; n++)
        do_product(&problem->product[n], run, index, own, all + memory.scattered[n]);
#ifdef TILE_AMX
    tiles_close();
#endif
}

EJKI_DEFINE_RUN(work)

/* ---- Launch ----------------------------------------------------------------------------------------- */

/* A thread is worth waking for this many multiplications. */
enum { WORTH = 200000 };

static ejk_status prepare(const void *problem_, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const mm_problem *problem = problem_;
    double most = 0;
    for (int n = 0; n < problem->count; n++) {
        const mm_product *p = &problem->product[n];
        const double work = (double)rows_in_all(p) * (double)p->depth * (double)mm_columns_of_b(p);
        if (work > most) most = work;
    }
    if (most < (double)threads * WORTH) threads = (int32_t)(most / WORTH) + 1;
    launch->workers = threads;
    const product_memory memory = memory_of(problem, threads);
    launch->workspace_bytes = (size_t)(memory.workers + memory.own * threads) * sizeof(float);
    return EJK_OK;
}

static bool is_simple(const mm_view *v) {
    return !v->present || v->ones || v->dtype == EJK_DTYPE_F32 || v->dtype == EJK_DTYPE_BF16 ||
           v->dtype == EJK_DTYPE_F16;
}

/* Whether this tier has operands for b: of rows rounded to 8 bits, bytes where codes are whole numbers. */
static bool multiplies(const mm_product *p) {
    const bool bytes = p->quant.rounds && p->quant.mode != MM_NF4 && p->quant.mode != MM_FP8;
    const bool floats = p->scale.present && p->split != MM_DEPTH;
#if defined(TILE_BYTE_DOT)
    ejk_features wanted = EJK_FEATURE_AVX512_VNNI;
#ifdef TILE_AMX
    wanted |= EJK_FEATURE_AMX_INT8;
#endif
    return bytes && by_groups(p) && !floats && !(wanted & ~ejk_cpu()->features);
#elif defined(TILE_BF16_DOT)
    return !bytes && !floats && (!p->quant.present || by_groups(p));
#else
    (void)bytes;
    (void)floats;
    return true;
#endif
}

/* float64 has the reference only. */
static bool applicable(const void *problem_) {
    const mm_problem *problem = problem_;
    for (int n = 0; n < problem->count; n++) {
        const mm_product *p = &problem->product[n];
        if (!multiplies(p)) return false;
        if (!is_simple(&p->out) || !is_simple(&p->add) || !is_simple(&p->bias) ||
            !is_simple(&p->scale) || p->weight_type == EJK_DTYPE_F64)
            return false;
    }
    return true;
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .needs = "no float64", .applicable = applicable,
             .prepare = prepare, .run = run)
