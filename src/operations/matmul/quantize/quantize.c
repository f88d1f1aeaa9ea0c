/* SPDX-License-Identifier: Apache-2.0 */
/* Making quantised matrices, and their values. */
#include <ejkernel/quantized_matmul.h>

#include "base/base.h"
#include "operations/matmul/quantize/problem.h"
#include "operations/matmul/shared/product_call.h"
#include "operations/matmul/shared/quant_format.h"

#include <string.h>

#define EJK_RECORD_SELF ejk_quantized_matmul_config
EJK_RECORD_DEFINE(ejk_quantized_matmul_config_record, ejk_quantized_matmul_config,
                  EJK_QUANTIZED_MATMUL_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_quantize_args
EJK_RECORD_DEFINE_WITH(ejk_quantize_args_record, ejk_quantize_args, EJK_QUANTIZE_ARGS,
                       "E=1,R,C,W=C/8,S=C/64", NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_dequantize_args
EJK_RECORD_DEFINE_WITH(ejk_dequantize_args_record, ejk_dequantize_args, EJK_DEQUANTIZE_ARGS,
                       "E=1,R,C,W=C/8,S=C/64", NULL);
#undef EJK_RECORD_SELF

static ejk_status resolve(const ejk_tensor *values, const ejki_quant_words *words,
                          quantize_problem *p) {
    p->values = ejki_mm_matrix(values);
    p->matrices = values->rank == 3 ? values->shape[0] : 1;
    p->unit = (mm_size)ejk_dtype_size(words->w->dtype);
    p->rows = values->shape[values->rank - 2];
    p->columns = values->shape[values->rank - 1];
    if (values->rank != words->w->rank)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "w has rank %d, values have %d",
                         (int)words->w->rank, (int)values->rank);
    return ejki_quant_format(words, p->rows, p->columns, &p->quant);
}

static ejk_status prepare(const void *args_, const ejk_axes *axes, void *problem) {
    (void)axes;
    const ejk_quantize_args *args = args_;
    quantize_problem *p = problem;
    p->floors = strcmp(args->scale_rule, "floor") == 0;
    if (args->scale_rule[0] && !p->floors && strcmp(args->scale_rule, "ceil") != 0)
        return ejki_fail(EJK_STATUS_UNKNOWN_NAME, "scale_rule is \"%s\", expected ceil or floor",
                         args->scale_rule);
    return resolve(&args->values, EJKI_QUANT_WORDS(args), p);
}

static void bind(const void *args_, void *problem) {
    const ejk_quantize_args *args = args_;
    quantize_problem *p = problem;
    p->values.data = args->values.data;
    ejki_quant_bind(EJKI_QUANT_WORDS(args), &p->quant);
}

static ejk_status prepare_values(const void *args_, const ejk_axes *axes, void *problem) {
    (void)axes;
    const ejk_dequantize_args *args = args_;
    return resolve(&args->out, EJKI_QUANT_WORDS(args), problem);
}

static void bind_values(const void *args_, void *problem) {
    const ejk_dequantize_args *args = args_;
    quantize_problem *p = problem;
    p->values.data = args->out.data;
    ejki_quant_bind(EJKI_QUANT_WORDS(args), &p->quant);
}

static void cost(const void *problem, const void *args, ejk_cost *out) {
    (void)args;
    const quantize_problem *p = problem;
    const double count = (double)p->matrices * (double)p->rows * (double)p->columns;
    out->flops = 2 * count;
    out->bytes = count * ((double)ejk_dtype_size((ejk_dtype)p->values.dtype) + p->quant.bits / 8.0);
}

/* Codes say nothing of what is computed with. */
static ejk_dtype dtype_of_values(const void *args) {
    return ((const ejk_dequantize_args *)args)->out.dtype;
}

static bool result(const void *args_, const char *name, ejk_tensor *view) {
    const ejk_quantize_args *args = args_;
    return ejki_quant_result(EJKI_QUANT_WORDS(args), &args->values, name, view);
}

/* Codes may be more than values, by less than a word. */
static bool result_values(const void *args_, const char *name, ejk_tensor *view) {
    (void)name;
    const ejk_dequantize_args *args = args_;
    const int64_t columns = ejki_quant_columns(EJKI_QUANT_WORDS(args));
    if (columns < 0) return false;
    view->rank = args->w.rank;
    memcpy(view->shape, args->w.shape, sizeof view->shape);
    view->shape[view->rank - 1] = columns;
    return true;
}

const ejk_kernel ejk_quantize_kernel = {
    .op_id = "quantize",
    .version = "0",
    .doc = "codes and scales of matrices",
    .args = &ejk_quantize_args_record,
    .config = &ejk_quantized_matmul_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(quantize_problem),
    .prepare = prepare,
    .bind = bind,
    .cost = cost,
    .result = result,
};

const ejk_kernel ejk_dequantize_kernel = {
    .op_id = "dequantize",
    .version = "0",
    .doc = "values of quantised matrices",
    .args = &ejk_dequantize_args_record,
    .config = &ejk_quantized_matmul_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(quantize_problem),
    .prepare = prepare_values,
    .bind = bind_values,
    .dtype = dtype_of_values,
    .cost = cost,
    .result = result_values,
};

ejk_status ejk_quantize(ejk_context *context, const ejk_quantize_args *args) {
    return ejk_call(context, &ejk_quantize_kernel, args);
}

ejk_status ejk_dequantize(ejk_context *context, const ejk_dequantize_args *args) {
    return ejk_call(context, &ejk_dequantize_kernel, args);
}
