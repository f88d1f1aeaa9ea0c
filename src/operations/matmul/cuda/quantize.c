/* SPDX-License-Identifier: Apache-2.0 */
/* quantize and dequantize on GPUs. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/matmul/quantize/problem.h"

#include "operations/matmul/cuda/quantize.cuh"

static const char text[] = "operations/matmul/cuda/quantize.cu";

static bool is_float64(int type) {
    return type == EJK_DTYPE_F64;
}

/* Blocks of dequantize: parts of rows. */
static int64_t value_blocks(const quantize_problem *p) {
    return p->matrices * p->rows * ejki_cdiv(p->columns, QUANTIZE_THREADS * UNIT);
}

static bool applicable(const void *problem) {
    const quantize_problem *p = problem;
    return !is_float64(p->values.dtype) && !is_float64(p->quant.scale_type) &&
           !is_float64(p->quant.zero_type) &&
           (double)p->matrices * (double)p->rows * (double)ejki_cdiv(p->columns, UNIT) <= INT32_MAX;
}

static ejk_status prepare_codes(const void *problem, const int64_t *parameters, int32_t threads,
                                ejk_launch *launch) {
    (void)problem;
    (void)parameters;
    (void)threads;
    return ejki_cuda_ready(launch, 0, text, "quantize", &(ejki_cuda_constants){.count = 0});
}

static ejk_status prepare_values(const void *problem, const int64_t *parameters, int32_t threads,
                                 ejk_launch *launch) {
    (void)problem;
    (void)parameters;
    (void)threads;
    return ejki_cuda_ready(launch, 0, text, "dequantize", &(ejki_cuda_constants){.count = 0});
}

static ejk_status begin(const ejk_run *run, int64_t blocks, const char *name) {
    const quantize_problem *p = run->problem;
    quantize_arguments a = {.quant = p->quant,
                            .values = p->values,
                            .rows = p->rows,
                            .columns = p->columns,
                            .bytes =
                                ejki_round_up(ejki_cdiv(p->columns * p->quant.bits, 8), p->unit),
                            .floors = p->floors};
    const ejki_cuda_work work = {.threads = QUANTIZE_THREADS, .blocks = blocks};
    EJKI_TRY(ejki_cuda_check_tensor(p->values.data, p->values.dtype, name));
    EJKI_TRY(ejki_cuda_check_tensor(p->quant.scales, p->quant.scale_type, "scales"));
    EJKI_TRY(ejki_cuda_check_tensor(p->quant.zeros, p->quant.zero_type, "zeros"));
    if (p->quant.has_factor) EJKI_TRY(ejki_cuda_check_address(p->quant.factor, 4, "tensor_scale"));
    return ejki_cuda_begin(run, &work, &a);
}

static ejk_status run_codes(const ejk_run *run) {
    const quantize_problem *p = run->problem;
    return begin(run, p->matrices * p->rows, "values");
}

static ejk_status run_values(const ejk_run *run) {
    return begin(run, value_blocks(run->problem), "out");
}

EJKI_DECLARE(quantize_cuda, .version = 1, .applicable = applicable, .prepare = prepare_codes,
             .run = run_codes, .needs = "no float64")
EJKI_DECLARE(dequantize_cuda, .version = 1, .applicable = applicable, .prepare = prepare_values,
             .run = run_values, .needs = "no float64")
