/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of E4M3 with scales of blocks, in vectors or tiles. A worker has a range of columns, or of rows where there
 * are too few columns. It makes words of up to PRODUCT_ROWS rows for the whole depth, floats or, where the tier
 * multiplies these, pairs of bf16, which E4M3 fits exactly. Then it takes a panel of columns at a time, makes operands
 * of a block of it, and all rows meet them (product_chunk.h). A block's sum counts times both scales, in float32.
 *
 * A result's bits depend on its row and its column alone.
 */
#include "base/base.h"
#include "kernels/declare.h"
#include "operations/matmul/scaled_matmul/problem.cuh"
#include "operations/matmul/shared/product_chunk.h"
#include "operations/matmul/shared/product_finish.h"

_Static_assert((int)SCALED_BLOCK == (int)PACKED_BLOCK, "a block of both");

/* Workers side by side and one below the other, and the memory of each, in floats. */
typedef struct scaled_plan {
    packed_form form; /* blocks of the depth */
    int64_t across, down;
    int64_t rows; /* taken at a time */
    int64_t words, blocks, own;
} scaled_plan;

static scaled_plan plan_of(const mm_product *p, int64_t workers) {
    const int64_t panels = ejki_max(1, ejki_cdiv(p->columns, TILE_COLUMNS));
    const int64_t tiles = ejki_max(1, ejki_cdiv(p->rows, TILE_ROWS));
    scaled_plan plan = {.form = {.unit = 8, .columns = p->depth, .size = SCALED_BLOCK}};
    plan.across = ejki_min(workers, panels);
    plan.down = ejki_min(workers / plan.across, tiles);
    plan.rows = ejki_min(PRODUCT_ROWS, tiles * TILE_ROWS);
    plan.words = group_words(&plan.form);
    plan.blocks = group_blocks(&plan.form);
    plan.own = ejki_round_up(plan.rows * (plan.words + plan.blocks), 16) +
               (GROUP_DEPTH + plan.rows) * TILE_COLUMNS;
    return plan;
}

/* Elements of a block, 0 behind the last one. */
static void load_block(const uint8_t *from, mm_size count, uint8_t to[SCALED_BLOCK]) {
    memset(to, 0, SCALED_BLOCK);
    memcpy(to, from, (size_t)count);
}

/* Rows `first` on of lhs; what a tile has too much is the last one. */
static void words_of_rows(const scaled_problem *s, const scaled_plan *plan, mm_size first,
                          mm_size rows, group_rows *r) {
    const mm_product *p = &s->product;
    for (int64_t i = 0; i < ejki_round_up(rows, TILE_ROWS); i++) {
        const mm_size row = first + ejki_min(i, rows - 1);
        const uint8_t *from = (const uint8_t *)p->a.data + row * p->a.row;
        packed_block b = {0};
        int64_t at = 0;
        for (int64_t n = 0; packed_next(&plan->form, &b); n++) {
            uint8_t bytes[SCALED_BLOCK];
            float x[SCALED_BLOCK];
            load_block(from + b.first, b.count, bytes);
            for (int k = 0; k < SCALED_BLOCK; k += VL) v_store(x + k, v_load_e4m3(bytes + k));
            r->scales[n * r->capacity + i] = s->a_scale[row * s->a_scale_row + n];
            at = rows_place(8, &b, x, i, at, r);
        }
    }
}

/* VL words of a row of rhs. */
INLINE vf words_of(const codes_table *t, const uint8_t *at) {
#ifdef TILE_BF16_DOT
    return codes_e4m3_pairs(t, _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)at)));
#else
    (void)t;
    return v_load_e4m3(at);
#endif
}

/* Block `b` of the columns from `column` on, which are rows of rhs; what a panel has too much is 0. */
static void words_of_columns(const scaled_problem *s, const codes_table *t, const packed_block *b,
                             mm_size column, group_chunk *chunk) {
    const mm_product *p = &s->product;
    const int64_t steps = pack_room(b->words * (8 / CODES_STEP));
    static const uint8_t none[SCALED_BLOCK] = {0};
    for (mm_size j = 0; j < TILE_COLUMNS; j += VL) {
        const uint8_t *from[VL];
        uint8_t rest[VL][SCALED_BLOCK];
        for (mm_size i = 0; i < VL; i++) {
            const mm_size own = column + j + i;
            from[i] = none;
            if (own >= p->columns) continue;
            from[i] = (const uint8_t *)p->b.data + own * p->b.column + b->first;
            if (b->count == SCALED_BLOCK) continue;
            load_block(from[i], b->count, rest[i]);
            from[i] = rest[i];
        }
        for (int64_t w = 0; w < steps; w += VL) {
            vf block[VL];
            EJKI_UNROLL for (int i = 0; i < VL; i++) block[i] =
                words_of(t, from[i] + w * CODES_STEP);
            v_transpose(block);
            EJKI_UNROLL for (int i = 0; i < VL; i++)
                v_store(chunk->words + (w + i) * TILE_COLUMNS + j, block[i]);
        }
    }
    chunk->steps[0] = steps;
}

static void finish(const mm_product *p, mm_size row, mm_size rows, mm_size column, mm_size columns,
                   const float *totals) {
    const mm_segment whole = {0};
    for (mm_size i = row; i < row + rows; i++, totals += TILE_COLUMNS)
        for (mm_size j = 0; j < columns; j += VL) {
            const mm_size n = ejki_min(columns - j, VL), at = column + j;
            vf v = with_bias(p, &whole, v_load(totals + j), at, n);
            v = activate(p, v, v_zero());
            if (p->add.present) v = v_add(v, view_load(&p->add, i * p->add.row + at, n));
            v_narrow_some(dtype_of(&p->out),
                          element_at(dtype_of(&p->out), p->out.data, i * p->out.row + at), v, n);
        }
}

static void do_rows(const scaled_problem *s, const scaled_plan *plan, mm_size row, mm_size rows,
                    mm_size first, mm_size end, float *own) {
    const mm_product *p = &s->product;
    group_rows r = {.words = own, .tile = TILE_ROWS, .depth = plan->words, .capacity = plan->rows};
    r.scales = r.sums = own + plan->rows * plan->words;
    group_chunk chunk = {.rounds = true, .blocks = 1};
    chunk.words = own + ejki_round_up(plan->rows * (plan->words + plan->blocks), 16);
    float *totals = chunk.words + GROUP_DEPTH * TILE_COLUMNS;
    const codes_table table = codes_table_of(&(mm_quant){.mode = MM_FP8, .bits = 8});
    words_of_rows(s, plan, row, rows, &r);
    for (mm_size j = first; j < end; j += TILE_COLUMNS) {
        packed_block b = {0};
        const float *scale = s->b_scale + j / SCALED_BLOCK * s->b_scale_row;
        int64_t depth = 0;
        if (p->depth == 0) memset(totals, 0, sizeof *totals * (size_t)(rows * TILE_COLUMNS));
        for (chunk.first = 0; packed_next(&plan->form, &b); chunk.first++) {
            words_of_columns(s, &table, &b, j, &chunk);
            for (int i = 0; i < TILE_COLUMNS; i++) chunk.scale[0][i] = scale[chunk.first];
            for (int64_t t = 0; t < rows; t += TILE_ROWS)
                group_multiply(ejki_min(rows - t, TILE_ROWS), &chunk, &r, t,
                               r.words + t * r.depth + depth * TILE_ROWS,
                               totals + t * TILE_COLUMNS);
            depth += chunk.steps[0];
        }
        finish(p, row, rows, j, ejki_min(end - j, TILE_COLUMNS), totals);
    }
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const scaled_problem *s = run->problem;
    const mm_product *p = &s->product;
    const scaled_plan plan = plan_of(p, run->workers);
    const int64_t across = index % plan.across, down = index / plan.across;
    const mm_size panels = ejki_cdiv(p->columns, TILE_COLUMNS);
    const mm_size first = panels * across / plan.across * TILE_COLUMNS;
    const mm_size end = ejki_min(panels * (across + 1) / plan.across * TILE_COLUMNS, p->columns);
    if (down >= plan.down || first >= end) return;
    const mm_size stop = p->rows * (down + 1) / plan.down;
#ifdef TILE_AMX
    amx_open();
#endif
    for (mm_size row = p->rows * down / plan.down; row < stop; row += plan.rows)
        do_rows(s, &plan, row, ejki_min(stop - row, plan.rows), first, end,
                (float *)run->workspace + index * plan.own);
#ifdef TILE_AMX
    amx_close();
#endif
}

EJKI_DEFINE_RUN(work)

/* A thread is worth waking for this many multiplications. */
enum { WORTH = 200000 };

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const mm_product *p = &((const scaled_problem *)problem)->product;
    const double most = (double)p->rows * (double)p->depth * (double)p->columns;
    if (most < (double)threads * WORTH) threads = (int32_t)(most / WORTH) + 1;
    launch->workers = threads;
    launch->workspace_bytes = (size_t)(plan_of(p, threads).own * threads) * sizeof(float);
    return EJK_OK;
}

static bool is_simple(const mm_view *v) {
    return !v->present || v->dtype == EJK_DTYPE_F32 || v->dtype == EJK_DTYPE_BF16 ||
           v->dtype == EJK_DTYPE_F16;
}

static bool applicable(const void *problem) {
    const mm_product *p = &((const scaled_problem *)problem)->product;
    return is_simple(&p->out) && is_simple(&p->add) && is_simple(&p->bias);
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .needs = "no float64", .applicable = applicable,
             .prepare = prepare, .run = run)
