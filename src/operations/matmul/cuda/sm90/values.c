/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with quantised matrices on sm_90: few rows by codes.cu, more by codes_many.cu or tiles.cu, if they take the
 * codes; else values of the matrix, rounded to the type of the rows, are made in the workspace first, and multiplied
 * like others. Any format and both orders. What that costs is little beside many rows. Where results have more bits
 * than that type only codes.cu will do, which rounds no values but those of nf4. Gradients of scales and zeros, other
 * products of the call, are left to the general kernels.
 */
#include "kernels/declare.h"
#include "operations/matmul/cuda/fast.h"
#include "operations/matmul/cuda/quantize.cuh"
#include "operations/matmul/cuda/sm90/codes.h"

static const char text[] = "operations/matmul/cuda/quantize.cu";
static const char fast_text[] = "operations/matmul/cuda/values.cu";

enum { VALUES = MM_CUDA_OWN_SLOTS + 1, FAST_VALUES };

/* Rows and columns of codes, and of values, whose rows begin at multiples of 16 bytes. */
static int64_t rows_of(const mm_product *p) {
    return p->b.flipped ? p->columns : p->depth;
}
static int64_t columns_of(const mm_product *p) {
    return p->b.flipped ? p->depth : p->columns;
}
static int64_t pitch_of(const mm_product *p) {
    return ejki_round_up(columns_of(p), 8);
}

/* The product with values in place of codes. */
static mm_product with_values(const mm_product *p, void *values) {
    mm_product own = *p;
    own.quant.present = 0;
    own.b = (mm_view){.data = values,
                      .row = p->b.flipped ? 1 : pitch_of(p),
                      .column = p->b.flipped ? pitch_of(p) : 1,
                      .dtype = p->a.dtype,
                      .flipped = p->b.flipped,
                      .present = 1};
    return own;
}

/* Does values.cu take the codes, at addresses that suit it? */
static bool has_fast_values(const mm_product *p) {
    const mm_quant *q = &p->quant;
    return (q->bits == 4 || q->bits == 8) && q->code_row % 4 == 0 && columns_of(p) % UNIT == 0 &&
           (q->size % UNIT == 0 || q->size >= columns_of(p)) && columns_of(p) < INT32_MAX;
}

static void want_values(const mm_product *p, ejki_cuda_kernels *kernels) {
    ejki_cuda_constants constants = {.count = 0};
    ejki_cuda_want(kernels, VALUES, text, "dequantize", &constants);
    if (!has_fast_values(p)) return;
    ejki_cuda_add(&constants, "MODE", p->quant.mode);
    ejki_cuda_add(&constants, "BITS", p->quant.bits);
    ejki_cuda_add(&constants, "SCALE", p->quant.scale_type);
    ejki_cuda_add(&constants, "ZERO", p->quant.zero_type);
    ejki_cuda_add(&constants, "FACTOR", p->quant.has_factor);
    ejki_cuda_add(&constants, "OUT", p->a.dtype);
    ejki_cuda_want(kernels, FAST_VALUES, fast_text, "values", &constants);
}

static const ejki_mm_fast *fast_of(const mm_product *p) {
    const ejki_mm_fast *fast = ejki_mm_fast_of(p);
    const bool is_exact = fast == &ejki_mm_codes && p->quant.mode != MM_NF4;
    return is_exact || !ejki_quant_shows_rounding(p) ? fast : NULL;
}

static bool applicable(const void *problem_) {
    const mm_problem *problem = problem_;
    const mm_product *p = &problem->product[0];
    if (!p->quant.present || p->split != MM_EVEN || p->groups != 1 || p->gated) return false;
    if (fast_of(p)) return ejki_mm_cuda_applicable(problem);
    if (ejki_quant_shows_rounding(p)) return false;
    const mm_product own = with_values(p, NULL);
    return (double)rows_of(p) * (double)ejki_cdiv(columns_of(p), UNIT) <= INT32_MAX &&
           ejki_mm_fast_of(&own) && ejki_mm_cuda_applicable(problem);
}

static ejk_status prepare(const void *problem_, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    const mm_problem *problem = problem_;
    const mm_product *p = &problem->product[0];
    const mm_product own = with_values(p, NULL);
    ejki_cuda_kernels kernels = {.count = 0};
    for (int n = 1; n < problem->count; n++) ejki_mm_cuda_want(&problem->product[n], n, &kernels);
    if (fast_of(p)) {
        ejki_mm_cuda_want(p, 0, &kernels);
        fast_of(p)->want(p, 0, &kernels);
        return ejki_cuda_ready_all(launch, &kernels);
    }
    ejki_mm_cuda_want(&own, 0, &kernels);
    ejki_mm_fast_of(&own)->want(&own, 0, &kernels);
    want_values(p, &kernels);
    launch->workspace_bytes = (size_t)(rows_of(p) * pitch_of(p) * 2);
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status run_values(const ejk_run *run, const mm_product *p) {
    const mm_product own = with_values(p, run->workspace);
    const ejki_mm_fast *fast = ejki_mm_fast_of(&own);
    quantize_arguments a = {.quant = p->quant,
                            .values = {.data = run->workspace,
                                       .row = pitch_of(p),
                                       .column = 1,
                                       .dtype = p->a.dtype,
                                       .present = 1},
                            .rows = rows_of(p),
                            .columns = columns_of(p)};
    const bool is_fast = has_fast_values(p) && (uintptr_t)p->quant.codes % 4 == 0;
    const int64_t each = is_fast ? VALUES_COLUMNS : QUANTIZE_THREADS * UNIT;
    const ejki_cuda_work work = {.slot = is_fast ? FAST_VALUES : VALUES,
                                 .threads = QUANTIZE_THREADS,
                                 .blocks = rows_of(p) * ejki_cdiv(columns_of(p), each)};
    EJKI_TRY(ejki_cuda_begin(run, &work, &a));
    return (fast->can_run(&own) ? fast->run : ejki_mm_cuda_run)(run, 0, &own);
}

static ejk_status run_first(const ejk_run *run, const mm_product *p) {
    const ejki_mm_fast *fast = fast_of(p);
    if (!fast) return run_values(run, p);
    return (fast->can_run(p) ? fast->run : ejki_mm_cuda_run)(run, 0, p);
}

static ejk_status run(const ejk_run *run) {
    const mm_problem *problem = run->problem;
    EJKI_TRY(ejki_mm_cuda_check(problem));
    EJKI_TRY(run_first(run, &problem->product[0]));
    for (int n = 1; n < problem->count; n++)
        EJKI_TRY(ejki_mm_cuda_run(run, n, &problem->product[n]));
    return EJK_OK;
}

EJKI_DECLARE(quantized_matmul_sm90_cuda, .version = 1, .priority = 20, .applicable = applicable,
             .prepare = prepare, .run = run, .needs = "rows of x at multiples of 8 elements")
