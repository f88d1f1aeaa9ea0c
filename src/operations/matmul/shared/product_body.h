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
#include "operations/matmul/shared/product_results.h"
#include "operations/matmul/shared/product_sums.h"
#include "operations/matmul/shared/quant_format.h"
#ifndef TILE_BYTE_DOT
#include "operations/matmul/shared/product_dense.h"
#endif

#include <string.h>

/* ---- Plan ------------------------------------------------------------------------------------------- */

/* How a product is cut: workers side by side and one below the other, and the memory of each, in floats. */
typedef struct product_plan {
    int64_t across, down;    /* workers */
    int64_t rows, columns;   /* of a block; columns of b */
    int64_t capacity;        /* rows whose sums are kept */
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
    plan->b = GROUP_DEPTH * TILE_COLUMNS + plan->rows * GROUP_COLUMNS;
    if (!p->quant.packed) plan->b += GROUP_STREAMS * form.stream / 4;
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
    plan.b = ejki_min(plan.columns, PACK_COLUMNS) * PRODUCT_DEPTH;
    if (by_groups(p)) plan_groups(p, &plan);
    plan.capacity = plan.rows;
#if defined(TILE_AMX) && !defined(TILE_BYTE_DOT)
    if (may_hold(p) && rows_in_all(p) > HELD_ROWS) {
        plan.a = ejki_max(plan.a, ejki_min(plan.columns, HELD_COLUMNS) * PRODUCT_DEPTH);
        if (may_hold_all(p)) plan.rows = tiles * TILE_ROWS;
    }
    if (may_pack_beside(p)) plan.b = ejki_max(plan.b, 2 * beside_size(p));
#endif
    plan.sums = plan.columns * plan.capacity;
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

/* Sums of a group of n rows of codes from j on, times -scale. */
static vf by_scales(const mm_quant *q, mm_size group, mm_size j, vf v, mm_size n) {
    float lane[VL];
    v_store(lane, v);
    for (mm_size i = 0; i < n; i++) lane[i] *= ejki_quant_slope(q, MM_BY_ZERO, j + i, group, 0);
    return v_load(lane);
}

/* n results of a row from column j on. */
static void put_results(const mm_view *out, mm_size row, mm_size j, vf v, mm_size n) {
    const ejk_dtype dtype = dtype_of(out);
    float lane[VL];
    if (out->column == 1) {
        v_narrow_some(dtype, element_at(dtype, out->data, row + j), v, n);
        return;
    }
    v_store(lane, v);
    for (mm_size i = 0; i < n; i++)
        element_store(dtype, out->data, row + (j + i) * out->column, lane[i]);
}

/* What was added up in columns first to end - 1 becomes out. */
static void finish_scattered(const mm_product *p, const float *scattered, mm_size first,
                             mm_size end) {
    for (mm_size i = 0; i < rows_added_up(p); i++)
        for (mm_size j = first; j < end; j += VL) {
            const mm_size n = ejki_min(end - j, VL);
            vf v = v_load_first(scattered + i * p->columns + j, n);
            if (p->add.present) v = v_add(v, view_load(&p->add, i * p->add.row + j, n));
            if (p->fold_by == MM_BY_ZERO && p->depth > 0) v = by_scales(&p->quant, i, j, v, n);
            put_results(&p->out, i / p->out_rows * p->out.group + i % p->out_rows * p->out.row, j,
                        v, n);
        }
}

/* ---- Workers ---------------------------------------------------------------------------------------- */

/* True if results are made of the sums already. */
static bool sums_of(ejk_dtype dtype, product_block *k) {
#ifndef TILE_BYTE_DOT
    if (!by_groups(k->p)) return sum_block(dtype, k);
#endif
    sum_groups(dtype, k);
    return false;
}

static void do_block(product_block *k) {
    const bool done = !k->s->idle && sums_of(dtype_of(&k->p->a), k);
    if (!done) finish_columns(k, 0, k->columns);
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
                k->after_columns = ejki_min(end - column, step);
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
    product_block k = {.p = p, .a = own, .capacity = plan.capacity, .scattered = scattered};
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
    amx_open();
#endif
    for (int n = 0; n < problem->count; n++)
        do_product(&problem->product[n], run, index, own, all + memory.scattered[n]);
#ifdef TILE_AMX
    amx_close();
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
    const bool rounds = p->quant.mode == MM_NF4 && ejki_quant_shows_rounding(p);
    return !bytes && !floats && (!p->quant.present || (by_groups(p) && !rounds));
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
