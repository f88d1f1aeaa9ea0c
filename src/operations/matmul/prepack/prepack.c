/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised matrices in the order of products. */
#include <ejkernel/quantized_matmul.h>

#include "base/base.h"
#include "operations/matmul/prepack/problem.h"
#include "operations/matmul/shared/packed.h"
#include "operations/matmul/shared/quant_format.h"

#include <string.h>

#define EJK_RECORD_SELF ejk_prepack_args
EJK_RECORD_DEFINE_WITH(ejk_prepack_args_record, ejk_prepack_args, EJK_PREPACK_ARGS, "E=1,R,W,S,P",
                       NULL);
#undef EJK_RECORD_SELF

/* Everything but pointers, and the bytes of a row: matrices begin at lines of the cache where the first one does. */
static ejk_status resolve(const ejk_prepack_args *args, prepack_problem *p, int64_t *width) {
    const ejki_quant_words *words = EJKI_QUANT_WORDS(args);
    const int32_t rank = args->w.rank;
    p->columns = args->columns.set ? args->columns.value : ejki_quant_columns(words);
    p->matrices = rank > 2 ? args->w.shape[0] : 1;
    p->rows = args->w.shape[rank - 2];
    if (p->columns < 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "columns is %lld, expected as many codes as a row has", p->columns);
    EJKI_TRY(ejki_quant_format(words, p->rows, p->columns, &p->quant));
    const packed_form form = packed_form_of(&p->quant, p->rows, p->columns);
    *width = ejki_cdiv(packed_bytes(&form), ejki_max(1, p->rows));
    while (*width * p->rows % PACKED_HEADER != 0) ++*width;
    return EJK_OK;
}

static ejk_status prepare(const void *args_, const ejk_axes *axes, void *problem) {
    (void)axes;
    const ejk_prepack_args *args = args_;
    const ejk_tensor *t = &args->packed;
    prepack_problem *p = problem;
    int64_t width = 0;
    EJKI_TRY(resolve(args, p, &width));
    if (t->rank != args->w.rank || t->shape[t->rank - 1] != width)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "packed has rows of %lld bytes, expected %lld",
                         (long long)t->shape[t->rank - 1], (long long)width);
    p->bytes = p->rows * width;
    if ((p->rows > 1 && t->strides[t->rank - 2] != width) ||
        (p->matrices > 1 && t->strides[0] != p->bytes))
        return ejki_fail(EJK_STATUS_INVALID_LAYOUT, "packed has gaps, expected none");
    return EJK_OK;
}

static void bind(const void *args_, void *problem) {
    const ejk_prepack_args *args = args_;
    prepack_problem *p = problem;
    p->packed = args->packed.data;
    ejki_quant_bind(EJKI_QUANT_WORDS(args), &p->quant);
}

/* Codes say nothing of what is computed with. */
static ejk_dtype dtype_of(const void *args) {
    (void)args;
    return EJK_DTYPE_F32;
}

static bool result(const void *args_, const char *name, ejk_tensor *view) {
    (void)name;
    const ejk_prepack_args *args = args_;
    int64_t width = 0;
    if (ejk_prepack_width(args, &width) != EJK_OK) return false;
    view->rank = args->w.rank;
    memcpy(view->shape, args->w.shape, sizeof view->shape);
    view->shape[view->rank - 1] = width;
    view->dtype = EJK_DTYPE_U8;
    return true;
}

static void cost(const void *problem, const void *args, ejk_cost *out) {
    (void)args;
    const prepack_problem *p = problem;
    out->flops = 0;
    out->bytes = (double)p->matrices * (double)p->bytes * 2;
}

const ejk_kernel ejk_prepack_kernel = {
    .op_id = "prepack",
    .version = "0",
    .doc = "quantised matrices in the order of products",
    .args = &ejk_prepack_args_record,
    .config = &ejk_quantized_matmul_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(prepack_problem),
    .prepare = prepare,
    .bind = bind,
    .dtype = dtype_of,
    .cost = cost,
    .result = result,
};

ejk_status ejk_prepack(ejk_context *context, const ejk_prepack_args *args) {
    return ejk_call(context, &ejk_prepack_kernel, args);
}

ejk_status ejk_prepack_width(const ejk_prepack_args *args, int64_t *out) {
    const int32_t rank = args ? args->w.rank : 0;
    prepack_problem p;
    int64_t width = 0;
    if (!out) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL");
    if (rank < 2 || rank > 3 || args->scales.rank != rank)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "w has rank %d, expected 2 or 3 as scales",
                         (int)rank);
    EJKI_TRY(resolve(args, &p, &width));
    *out = width;
    return EJK_OK;
}
