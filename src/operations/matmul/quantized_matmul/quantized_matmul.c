/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with quantised matrices, and their gradients, each a product itself: d_x of d_out with the matrix; d_scales
 * and d_zeros of rows, transposed, with d_out, folded by derivatives of values (mm_product).
 */
#include <ejkernel/quantized_matmul.h>

#include "base/base.h"
#include "operations/matmul/shared/product_call.h"
#include "operations/matmul/shared/quant_format.h"

#include <string.h>

#define SYMBOLS "M,K,N,R=K,W=N/8,S=N/64"

#define EJK_RECORD_SELF ejk_quantized_matmul_args
EJK_RECORD_DEFINE_WITH(ejk_quantized_matmul_args_record, ejk_quantized_matmul_args,
                       EJK_QUANTIZED_MATMUL_ARGS, SYMBOLS, NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_quantized_matmul_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_quantized_matmul_vjp_args_record, ejk_quantized_matmul_vjp_args,
                       EJK_QUANTIZED_MATMUL_VJP_ARGS, SYMBOLS, NULL);
#undef EJK_RECORD_SELF

/* `flipped`: rows of codes are columns of b. */
static ejk_status with_codes(const ejki_quant_words *words, bool flipped, mm_size rows,
                             mm_size columns, mm_product *p) {
    p->b = (mm_view){.present = 1, .flipped = flipped, .dtype = (int)words->w->dtype};
    return ejki_quant_format(words, rows, columns, &p->quant);
}

static ejk_status check_packed(const ejk_tensor *scales, bool transposed) {
    if (ejk_tensor_present(scales) || transposed) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "scales is missing: only with transpose may w be what prepack made");
}

static ejk_status prepare(const void *args_, const ejk_axes *axes, void *problem_) {
    (void)axes;
    const ejk_quantized_matmul_args *args = args_;
    mm_problem *problem = problem_;
    const mm_size k = args->x.shape[1], n = args->out.shape[1];
    mm_product p = ejki_mm_product(args->x.shape[0], k, n);
    const ejk_opt_float none = {0};
    EJKI_TRY(check_packed(&args->scales, args->transpose));
    EJKI_TRY(ejki_mm_check_out(args->preferred_element_type, &args->x, &args->out));
    EJKI_TRY(ejki_mm_activation(args->activation, false, &none, n, &p));
    EJKI_TRY(with_codes(EJKI_QUANT_WORDS(args), args->transpose, args->transpose ? n : k,
                        args->transpose ? k : n, &p));
    EJKI_TRY(ejki_quant_rounds(&args->activation_bits, args->transpose, &p.quant));
    p.a = ejki_mm_matrix(&args->x);
    p.out = ejki_mm_matrix(&args->out);
    p.add = ejki_mm_matrix(&args->residual);
    p.bias = ejki_mm_vector(&args->bias);
    problem->count = 1;
    problem->product[0] = p;
    return EJK_OK;
}

static void bind(const void *args_, void *problem_) {
    const ejk_quantized_matmul_args *args = args_;
    mm_product *p = &((mm_problem *)problem_)->product[0];
    p->a.data = args->x.data;
    p->out.data = args->out.data;
    p->add.data = args->residual.data;
    p->bias.data = args->bias.data;
    ejki_quant_bind(EJKI_QUANT_WORDS(args), &p->quant);
}

static ejk_status validate(const void *problem) {
    const mm_product *p = &((const mm_problem *)problem)->product[0];
    const mm_size columns = p->columns, depth = p->depth;
    return ejki_quant_validate(&p->quant, 1, p->b.flipped ? columns : depth,
                               p->b.flipped ? depth : columns);
}

/* Packed matrices are no bytes like others. */
static ejk_status inputs(void *args_, const ejk_axes *axes, const ejk_inputs *how) {
    ejk_quantized_matmul_args *args = args_;
    mm_problem problem;
    if (ejk_tensor_present(&args->scales)) return EJK_OK;
    EJKI_TRY(prepare(args, axes, &problem));
    const mm_product *p = &problem.product[0];
    return ejki_quant_invent(&p->quant, 1, p->columns, p->depth, how->seed, args->w.data);
}

/* What the matrix would have as its gradient, a column for each row of codes, times derivatives, summed over groups. */
static mm_product of_codes(const ejk_quantized_matmul_vjp_args *args, const mm_quant *quant, int by,
                           const ejk_tensor *gradient) {
    const bool along = args->transpose;
    const mm_size k = args->x.shape[1], n = args->d_out.shape[1];
    mm_product p = ejki_mm_product(along ? k : n, args->x.shape[0], along ? n : k);
    p.a = ejki_mm_transposed(along ? &args->x : &args->d_out);
    p.b = ejki_mm_matrix(along ? &args->d_out : &args->x);
    p.out = ejki_mm_transposed(gradient);
    p.fold = (mm_view){.dtype = EJK_DTYPE_F32, .present = 1, .ones = 1};
    p.fold_by = (unsigned char)by;
    p.quant = *quant;
    p.quant.present = 0;
    p.block = quant->size;
    p.out_rows = gradient->shape[1];
    return p;
}

static ejk_status check_gradient(const char *name, const ejk_tensor *gradient,
                                 const ejk_tensor *of) {
    if (!ejk_tensor_present(gradient)) return EJK_OK;
    if (!ejk_tensor_present(of))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "d_%s is given without %s", name, name);
    if (of->dtype == EJK_DTYPE_F32 || of->dtype == EJK_DTYPE_BF16 || of->dtype == EJK_DTYPE_F16)
        return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "d_%s is given, but %s of %s have no gradient, expected float32, bfloat16 or "
                     "float16",
                     name, name, ejk_dtype_name(of->dtype));
}

static ejk_status prepare_vjp(const void *args_, const ejk_axes *axes, void *problem_) {
    (void)axes;
    const ejk_quantized_matmul_vjp_args *args = args_;
    mm_problem *problem = problem_;
    const mm_size k = args->x.shape[1], n = args->d_out.shape[1];
    mm_product p = ejki_mm_product(args->x.shape[0], n, k);
    EJKI_TRY(check_packed(&args->scales, args->transpose));
    EJKI_TRY(with_codes(EJKI_QUANT_WORDS(args), !args->transpose, args->transpose ? n : k,
                        args->transpose ? k : n, &p));
    EJKI_TRY(check_gradient("scales", &args->d_scales, &args->scales));
    EJKI_TRY(check_gradient("zeros", &args->d_zeros, &args->zeros));
    p.a = ejki_mm_matrix(&args->d_out);
    p.out = ejki_mm_matrix(&args->d_x);
    problem->count = 1;
    problem->product[0] = p;
    if (ejk_tensor_present(&args->d_scales))
        problem->product[problem->count++] = of_codes(args, &p.quant, MM_BY_SCALE, &args->d_scales);
    if (ejk_tensor_present(&args->d_zeros))
        problem->product[problem->count++] = of_codes(args, &p.quant, MM_BY_ZERO, &args->d_zeros);
    return EJK_OK;
}

static void bind_vjp(const void *args_, void *problem_) {
    const ejk_quantized_matmul_vjp_args *args = args_;
    mm_problem *problem = problem_;
    for (int i = 0; i < problem->count; i++) {
        mm_product *p = &problem->product[i];
        const bool rows_first = p->fold_by && args->transpose;
        p->a.data = rows_first ? args->x.data : args->d_out.data;
        if (p->fold_by) p->b.data = rows_first ? args->d_out.data : args->x.data;
        p->out.data = p->fold_by == MM_BY_SCALE  ? args->d_scales.data
                      : p->fold_by == MM_BY_ZERO ? args->d_zeros.data
                                                 : args->d_x.data;
        ejki_quant_bind(EJKI_QUANT_WORDS(args), &p->quant);
    }
}

/* Gradients of scales and zeros have the type of these, if nobody says another. */
static bool result_vjp(const void *args_, const char *name, ejk_tensor *view) {
    const ejk_quantized_matmul_vjp_args *args = args_;
    const ejk_tensor *of = strcmp(name, "d_scales") == 0  ? &args->scales
                           : strcmp(name, "d_zeros") == 0 ? &args->zeros
                                                          : NULL;
    if (!of || !ejk_tensor_present(of)) return false;
    view->dtype = of->dtype;
    view->rank = of->rank;
    memcpy(view->shape, of->shape, sizeof view->shape);
    return true;
}

static bool result(const void *args_, const char *name, ejk_tensor *view) {
    (void)name;
    const ejk_quantized_matmul_args *args = args_;
    const ejk_tensor *bias = &args->bias, *residual = &args->residual;
    const bool packed = !ejk_tensor_present(&args->scales) && args->transpose;
    const int64_t columns = packed ? 0 : ejki_quant_columns(EJKI_QUANT_WORDS(args));
    if (columns < 0 || args->x.rank != 2 || args->w.rank != 2) return false;
    /* What has no padding says the length first. */
    int64_t length = args->transpose ? args->w.shape[0] : columns;
    if (ejk_tensor_present(residual) && residual->rank == 2) length = residual->shape[1];
    if (ejk_tensor_present(bias) && bias->rank == 1) length = bias->shape[0];
    view->rank = 2;
    view->shape[0] = args->x.shape[0];
    view->shape[1] = length;
    return true;
}

const ejk_kernel ejk_quantized_matmul_kernel = {
    .op_id = "quantized_matmul",
    .version = "0",
    .doc = "products with quantised matrices",
    .args = &ejk_quantized_matmul_args_record,
    .config = &ejk_quantized_matmul_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(mm_problem),
    .prepare = prepare,
    .bind = bind,
    .cost = ejki_mm_cost,
    .validate = validate,
    .inputs = inputs,
    .result = result,
};

const ejk_kernel ejk_quantized_matmul_vjp_kernel = {
    .op_id = "quantized_matmul_vjp",
    .version = "0",
    .doc = "gradients of quantized_matmul",
    .args = &ejk_quantized_matmul_vjp_args_record,
    .config = &ejk_quantized_matmul_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(mm_problem),
    .prepare = prepare_vjp,
    .bind = bind_vjp,
    .cost = ejki_mm_cost,
    .validate = validate,
    .result = result_vjp,
    .forward = &ejk_quantized_matmul_kernel,
    .algorithm = "quantized_matmul",
};

ejk_status ejk_quantized_matmul(ejk_context *context, const ejk_quantized_matmul_args *args) {
    return ejk_call(context, &ejk_quantized_matmul_kernel, args);
}

ejk_status ejk_quantized_matmul_vjp(ejk_context *context,
                                    const ejk_quantized_matmul_vjp_args *args) {
    return ejk_call(context, &ejk_quantized_matmul_vjp_kernel, args);
}
