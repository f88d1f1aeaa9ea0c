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
#include "operations/matmul/shared/product_pack.h"
#ifndef TILE_BF16_DOT
#include "operations/matmul/shared/product_quant.h"
#endif

#include <string.h>

/* ---- Tiles ------------------------------------------------------------------------------------------ */

typedef void (*tile_fn)(int64_t words, const float *a, const float *b, float *c, bool add,
                        const gemm_prefetch *ahead);

#define TILE_DEFINE(n)                                                                             \
    static                                                                                         \
        __attribute__((noinline)) void tile_##n(int64_t words, const float *a, const float *b,     \
                                                float *c, bool add, const gemm_prefetch *ahead) {  \
        gemm(n, TILE_VECTORS, 1, TILE_ROWS, words, a, b, TILE_COLUMNS, c, TILE_COLUMNS, add,       \
             ahead);                                                                               \
    }
TILE_ROW_COUNTS(TILE_DEFINE)

/* The smallest tile that has `rows` rows; what it has more is not looked at. */
static tile_fn tile_of(int64_t rows) {
    tile_fn best = NULL;
#define TILE_TAKE(n)                                                                               \
    if (rows <= n) best = tile_##n;
    TILE_ROW_COUNTS(TILE_TAKE)
#undef TILE_TAKE
    return best;
}

#ifdef TILE_BF16_DOT
/* In floats, in the order of VDPBF16PS. */
static void tile_exact(int64_t rows, int64_t words, const float *a, const float *b, float *c,
                       bool add) {
    for (int64_t i = 0; i < rows; i++)
        for (int j = 0; j < TILE_COLUMNS; j += VL) {
            float *place = c + i * TILE_COLUMNS + j;
            vf sum = add ? v_load(place) : v_zero();
            for (int64_t k = 0; k < words; k++) {
                const vf x = v_set1(a[k * TILE_ROWS + i]), y = v_load(b + k * TILE_COLUMNS + j);
                sum = v_fma(v_of_second(x), v_of_second(y), sum);
                sum = v_fma(v_of_first(x), v_of_first(y), sum);
            }
            v_store(place, sum);
        }
}
#endif

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

/* Columns of out that make a panel of b, or two for gates and values. */
static mm_size panel_of(const mm_product *p) {
    return p->gated && p->interleaved ? TILE_COLUMNS / 2 : TILE_COLUMNS;
}

/* True if rows of results are added up, in memory that workers share: by columns only. */
static bool adds_up(const mm_product *p) {
    return p->scatter.present || p->fold.present;
}

static mm_size rows_added_up(const mm_product *p) {
    return p->scatter.present ? p->out_rows : p->fold.present ? p->held * p->out_rows : 0;
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
    plan.columns =
        ejki_min(PRODUCT_COLUMNS, panels * TILE_COLUMNS * (p->gated && !p->interleaved ? 2 : 1));
    plan.a = plan.rows * PRODUCT_DEPTH + VL;
    plan.b = plan.columns * PRODUCT_DEPTH;
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

/* ---- A block ---------------------------------------------------------------------------------------- */

/* What is asked for while tiles are multiplied: rows of memory `stride` apart, line by line. */
typedef struct product_ahead {
    const char *row;
    int64_t stride, bytes, rows; /* rows left */
    int64_t line;                /* of the first one */
    int64_t each;                /* lines for a tile */
} product_ahead;

typedef struct product_block {
    const mm_product *p;
    const mm_segment *s;
    mm_size row, rows;       /* of the segment */
    mm_size column, columns; /* of out */
    float *a, *b, *sums, *scattered;
    int64_t capacity;  /* rows of `sums` in each panel */
    const void *after; /* b of the block behind this one; NULL: there is none */
    product_ahead ahead;
    bool fit[PRODUCT_ROWS / TILE_ROWS];
} product_block;

INLINE void pack_a(const ejk_dtype dtype, product_block *k, mm_size first, mm_size depth) {
    const mm_product *p = k->p;
    const mm_segment *s = k->s;
    const void *from[2 * PRODUCT_DEPTH];
    const bool gathers = p->gather.present;
    for (mm_size d = 0; p->a.flipped && d < depth; d++) {
        const mm_size step = s->step + first + d;
        const mm_size at = gathers ? mm_number(&p->gather, step) : step;
        from[d] = element_at(dtype, p->a.data,
                             s->a + mm_step(p, &p->a, at, p->a.column) + s->first + k->row);
    }
    for (mm_size t = 0; t < k->rows; t += TILE_ROWS) {
        float *target = k->a + t * PRODUCT_DEPTH;
        bool *fit = &k->fit[t / TILE_ROWS];
        const mm_size rows = ejki_min(k->rows - t, TILE_ROWS);
        *fit = true;
        if (p->a.ones) {
            pack_ones(PRODUCT_DEPTH * TILE_ROWS, target);
            continue;
        }
        if (p->a.flipped) {
            *fit = pack_columns_side_by_side(dtype, from, rows, depth, target);
            for (mm_size d = 0; d < depth; d++) from[d] = element_at(dtype, from[d], TILE_ROWS);
            continue;
        }
        const void *row[TILE_ROWS];
        for (mm_size i = 0; i < TILE_ROWS; i++) {
            const mm_size own = s->first + k->row + t + (i < rows ? i : 0);
            const mm_size at = gathers ? mm_number(&p->gather, own) : own;
            row[i] =
                element_at(dtype, p->a.data,
                           s->a + at * p->a.row + mm_step(p, &p->a, s->step + first, p->a.column));
        }
        *fit = pack_rows_side_by_side(dtype, row, depth, target);
    }
}

/* `columns` columns of b from `column` on, to panels. */
INLINE bool pack_b(const ejk_dtype dtype, const product_block *k, mm_size first, mm_size depth,
                   mm_size column, mm_size columns, float *target) {
    const mm_product *p = k->p;
    const mm_size step = k->s->step + first;
#ifndef TILE_BF16_DOT
    if (p->quant.present) {
        pack_quant(&p->quant, k->s->held, p->b.flipped, step, depth, column, columns, target);
        return true;
    }
#endif
    const void *b = element_at(dtype, p->b.data,
                               k->s->b + mm_step(p, &p->b, step, p->b.row) + column * p->b.column);
    if (p->b.flipped) return pack_b_columns(dtype, b, p->b.column, depth, columns, target);
    return pack_b_rows(dtype, b, p->b.row, depth, columns, target);
}

/* Packed b times its scales; `words` are floats. */
static void scale_b(const product_block *k, mm_size first, mm_size words, mm_size column,
                    mm_size columns, float *target) {
    const mm_product *p = k->p;
    const ejk_dtype dtype = dtype_of(&p->scale);
    const mm_size held = k->s->held;
    for (mm_size at = first, end; at < first + words && !p->scale.flipped; at = end) {
        end = ejki_min((at / p->block + 1) * p->block, first + words);
        const void *scale = element_at(dtype, p->scale.data, mm_scale_at(p, held, at, column));
        pack_scaled(dtype, scale, words, at - first, end - first, columns, target);
    }
    for (mm_size w = 0; w < words && p->scale.flipped; w++)
        for (mm_size j = 0; j < columns; j++)
            target[(j / TILE_COLUMNS * words + w) * TILE_COLUMNS + j % TILE_COLUMNS] *=
                element_load(dtype, p->scale.data, mm_scale_at(p, held, first + w, column + j));
}

/* `words` rows or columns of b at `b` will be packed after `tiles` tiles. */
INLINE void look_ahead(const ejk_dtype dtype, product_block *k, const void *b, mm_size depth,
                       mm_size columns, int64_t tiles) {
    const mm_view *v = &k->p->b;
    product_ahead *ahead = &k->ahead;
    const int64_t across = (v->flipped ? depth : columns) * element_size(dtype);
    *ahead = (product_ahead){.row = b, .bytes = across};
    if (!b || across == 0 || k->p->quant.present) return;
    ahead->rows = v->flipped ? columns : depth;
    ahead->stride = (v->flipped ? v->column : v->row) * element_size(dtype);
    ahead->each = ejki_cdiv(ejki_cdiv(across, 64) * ahead->rows, ejki_max(tiles, 1));
}

/* Lines for one tile: of the sums of the next one, and of what is looked ahead to. */
INLINE void ask(product_block *k, const float *sums, gemm_prefetch *lines) {
    product_ahead *ahead = &k->ahead;
    int64_t count = 0;
    for (int64_t i = 0; sums && i < TILE_ROWS * TILE_COLUMNS; i += 16)
        lines->line[count++] = sums + i;
    for (int64_t i = 0; i < ahead->each && ahead->rows > 0 && count < GEMM_LINES; i++) {
        lines->line[count++] = (const float *)(const void *)(ahead->row + ahead->line);
        ahead->line += 64;
        if (ahead->line < ahead->bytes) continue;
        ahead->line = 0;
        ahead->row += ahead->stride;
        ahead->rows--;
    }
    lines->count = count;
}

/* Products of a block's rows with `panels` panels of b. */
INLINE void multiply(product_block *k, int64_t panels, int64_t words, bool fit, bool add) {
    gemm_prefetch lines;
    lines.near = false;
    for (int64_t n = 0; n < panels; n++)
        for (mm_size t = 0; t < k->rows; t += TILE_ROWS) {
            const mm_size rows = ejki_min(k->rows - t, TILE_ROWS);
            const float *a = k->a + t * PRODUCT_DEPTH, *b = k->b + n * words * TILE_COLUMNS;
            float *c = k->sums + (n * k->capacity + t) * TILE_COLUMNS;
            ask(k, t + TILE_ROWS < k->rows ? c + TILE_ROWS * TILE_COLUMNS : NULL, &lines);
#ifdef TILE_BF16_DOT
            if (!fit || !k->fit[t / TILE_ROWS]) {
                tile_exact(rows, words, a, b, c, add);
                continue;
            }
#else
            (void)fit;
#endif
            tile_of(rows)(words, a, b, c, add, &lines);
        }
}

INLINE void sum_block(const ejk_dtype dtype, product_block *k) {
    const mm_product *p = k->p;
    const bool halves = p->gated && !p->interleaved;
    const mm_size wide = p->gated && p->interleaved ? 2 : 1;
    const mm_size column = k->column * wide, columns = k->columns * wide, depth = k->s->depth;
    const int64_t each = ejki_cdiv(columns, TILE_COLUMNS), panels = halves ? 2 * each : each;
    if (depth == 0)
        memset(k->sums, 0, (size_t)(panels * k->capacity * TILE_COLUMNS) * sizeof *k->sums);
    for (mm_size first = 0, own; first < depth; first += own) {
        own = ejki_min(depth - first, PRODUCT_DEPTH * TILE_UNIT);
        if (p->run) own = ejki_min(own, p->run - first % p->run);
        const int64_t words = ejki_cdiv(own, TILE_UNIT);
        bool fit = true;
        for (int half = 0; half <= halves; half++) {
            float *target = k->b + half * each * words * TILE_COLUMNS;
            const mm_size from = column + (half ? p->columns : 0);
            fit &= pack_b(dtype, k, first, own, from, columns, target);
            if (p->scale.present && p->split != MM_DEPTH)
                scale_b(k, first, own, from, columns, target);
        }
        pack_a(dtype, k, first, own);
        const mm_size next = first + own, step = k->s->step + next;
        const void *b = element_at(
            dtype, p->b.data, k->s->b + mm_step(p, &p->b, step, p->b.row) + column * p->b.column);
        look_ahead(dtype, k, next < depth ? b : k->after,
                   next < depth ? ejki_min(own, depth - next) : own, columns,
                   panels * ejki_cdiv(k->rows, TILE_ROWS));
        multiply(k, panels, words, fit, first > 0);
    }
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
        if (p->split == MM_DEPTH) v = with_factors(k, v, row, column, n);
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

static void do_block(product_block *k) {
    if (!k->s->idle) {
#ifdef TILE_BF16_DOT
        sum_block(EJK_DTYPE_BF16, k);
#else
        if (k->p->a.dtype == EJK_DTYPE_F32)
            sum_block(EJK_DTYPE_F32, k);
        else if (k->p->a.dtype == EJK_DTYPE_BF16)
            sum_block(EJK_DTYPE_BF16, k);
        else
            sum_block(EJK_DTYPE_F16, k);
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
    for (int n = 0; n < problem->count; n++)
        do_product(&problem->product[n], run, index, own, all + memory.scattered[n]);
}

static ejk_status run(const ejk_run *run) {
    ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);
    return EJK_OK;
}

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

/* float64 has the reference only. Scales and codes become floats, not pairs. */
static bool applicable(const void *problem_) {
    const mm_problem *problem = problem_;
    for (int n = 0; n < problem->count; n++) {
        const mm_product *p = &problem->product[n];
        const bool floats = p->quant.present || (p->scale.present && p->split != MM_DEPTH);
        if (floats && TILE_UNIT == 2) return false;
        if (!is_simple(&p->out) || !is_simple(&p->add) || !is_simple(&p->bias) ||
            !is_simple(&p->scale) || p->weight_type == EJK_DTYPE_F64)
            return false;
    }
    return true;
}

#ifndef PRODUCT_PART /* of another body, which has a line of its own */
EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .needs = "no float64", .applicable = applicable,
             .prepare = prepare, .run = run)
#endif
