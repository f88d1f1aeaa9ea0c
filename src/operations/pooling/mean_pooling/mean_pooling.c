/* SPDX-License-Identifier: Apache-2.0 */
/* Means over tokens and their gradient: one problem, read in both directions. */
#include <ejkernel/mean_pooling.h>

#include "base/base.h"
#include "operations/pooling/mean_pooling/problem.cuh"

#define SYMBOLS "B=1,T,N=B,F,G,H,D"

#define EJK_RECORD_SELF ejk_mean_pooling_config
EJK_RECORD_DEFINE(ejk_mean_pooling_config_record, ejk_mean_pooling_config, EJK_MEAN_POOLING_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_mean_pooling_args
EJK_RECORD_DEFINE_WITH(ejk_mean_pooling_args_record, ejk_mean_pooling_args, EJK_MEAN_POOLING_ARGS,
                       SYMBOLS, NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_mean_pooling_vjp_args
EJK_RECORD_DEFINE_WITH(ejk_mean_pooling_vjp_args_record, ejk_mean_pooling_vjp_args,
                       EJK_MEAN_POOLING_VJP_ARGS, SYMBOLS, NULL);
#undef EJK_RECORD_SELF

/* A call of either; x and y are the tensors of tokens and of rows. */
typedef struct call {
    const ejk_tensor *x, *y, *ends;
    const ejk_opt_int *chunk;
} call;

static call forward_of(const ejk_mean_pooling_args *a) {
    return (call){&a->x, &a->out, &a->cu_seqlens, &a->chunk_size};
}

static call gradient_of(const ejk_mean_pooling_vjp_args *a) {
    return (call){&a->d_x, &a->d_out, &a->cu_seqlens, &a->chunk_size};
}

/* ---- Trailing axes --------------------------------------------------------------------------------- */

/* The innermost run takes in each axis that continues it in both tensors; the others are outer ones. */
static ejk_status fold(const ejk_tensor *x, const ejk_tensor *y, int32_t trailing,
                       pool_problem *p) {
    int32_t place = 3;
    int64_t total = 1, size = 1;
    pool_size *length = &p->width, step_x = 1, step_y = 1;
    p->width = p->outer[0] = p->outer[1] = p->outer[2] = 1;
    for (int32_t i = 1; i <= trailing; i++) {
        const int32_t ax = x->rank - i, ay = y->rank - i;
        size = x->shape[ax];
        if (!ejki_mul(total, size, &total))
            return ejki_fail(EJK_STATUS_OVERFLOW, "the trailing axes of x cannot be counted");
        if (size == 1) continue;
        if (x->strides[ax] != step_x * *length || y->strides[ay] != step_y * *length) {
            length = &p->outer[--place];
            p->x.outer[place] = step_x = x->strides[ax];
            p->y.outer[place] = step_y = y->strides[ay];
        }
        *length *= size;
    }
    if (total == 0) p->width = 0, p->outer[0] = p->outer[1] = p->outer[2] = 1;
    return EJK_OK;
}

/* ---- Problems --------------------------------------------------------------------------------------- */

static ejk_status check_rank(const call *c, int32_t trailing) {
    const int32_t wanted = trailing + (c->chunk->set ? 2 : 1);
    if (c->y->rank == wanted) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "means have rank %d, expected %d %s chunk_size",
                     (int)c->y->rank, (int)wanted, c->chunk->set ? "with" : "without");
}

static ejk_status check_trailing(const call *c, int32_t trailing) {
    for (int32_t i = 1; i <= trailing; i++)
        if (c->x->shape[c->x->rank - i] != c->y->shape[c->y->rank - i])
            return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                             "means have length %lld on axis %d from the end, expected %lld",
                             (long long)c->y->shape[c->y->rank - i], (int)i,
                             (long long)c->x->shape[c->x->rank - i]);
    return EJK_OK;
}

static ejk_status check_packed(const call *c) {
    const bool packed = ejk_tensor_present(c->ends);
    const int64_t batch = c->x->rank == 2 ? 1 : c->x->shape[0];
    if (packed && batch != 1)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "x has batch %lld, expected 1: with cu_seqlens sequences are packed",
                         (long long)batch);
    if (!packed && c->x->rank == 2)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "x has rank 2 without cu_seqlens, expected [B,T,...]");
    return EJK_OK;
}

/* Units leave it open which axis of the means is which. */
static ejk_status check_rows(const call *c, const pool_problem *p) {
    const int64_t *y = c->y->shape, sequences = p->packed ? p->sequences : p->batch;
    const int64_t first = p->chunk ? p->batch : sequences;
    if (y[0] != first)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "means have length %lld on axis 0, expected %lld", (long long)y[0],
                         (long long)first);
    if (!p->chunk) return EJK_OK;
    const int64_t rows = ejki_cdiv(p->tokens, p->chunk) + sequences - p->batch;
    if (y[1] == rows) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "means have %lld chunks on axis 1, expected %lld",
                     (long long)y[1], (long long)rows);
}

static ejk_status resolve(const call *c, bool gradient, pool_problem *p) {
    const int32_t trailing = c->x->rank == 2 ? 1 : c->x->rank - 2;
    if (c->chunk->set && c->chunk->value < 1)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "chunk_size is %lld, expected at least 1",
                         (long long)c->chunk->value);
    EJKI_TRY(check_rank(c, trailing));
    EJKI_TRY(check_trailing(c, trailing));
    EJKI_TRY(check_packed(c));
    *p = (pool_problem){.packed = ejk_tensor_present(c->ends),
                        .batch = c->x->rank == 2 ? 1 : c->x->shape[0],
                        .tokens = c->x->shape[c->x->rank == 2 ? 0 : 1],
                        .chunk = c->chunk->set ? c->chunk->value : 0,
                        .dtype = (int)c->x->dtype,
                        .gradient = gradient};
    EJKI_TRY(fold(c->x, c->y, trailing, p));
    p->x.batch = c->x->rank == 2 ? 0 : c->x->strides[0];
    p->x.step = c->x->strides[c->x->rank == 2 ? 0 : 1];
    p->y.batch = c->y->strides[0];
    p->y.step = c->chunk->set ? c->y->strides[1] : p->packed ? c->y->strides[0] : 0;
    p->rows = c->chunk->set ? c->y->shape[1] : p->packed ? c->y->shape[0] : 1;
    if (p->packed) {
        p->sequences = c->ends->shape[0] - 1;
        p->wide = c->ends->dtype == EJK_DTYPE_I64;
        p->x.batch = p->y.batch = 0;
    }
    EJKI_TRY(check_rows(c, p));
    int64_t count = p->width, bytes;
    if (!ejki_mul(count, pool_runs(p), &count) || !ejki_mul(count, p->batch, &count) ||
        !ejki_mul(count, ejki_max(p->tokens, p->rows), &count) || !ejki_mul(count, 512, &bytes))
        return ejki_fail(EJK_STATUS_OVERFLOW, "%lld x %lld tokens cannot be counted",
                         (long long)p->batch, (long long)p->tokens);
    return EJK_OK;
}

static void put_pointers(const call *c, pool_problem *p) {
    p->x.data = c->x->data;
    p->y.data = c->y->data;
    p->ends = p->packed ? c->ends->data : NULL;
}

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    const call c = forward_of(args);
    return resolve(&c, false, problem);
}
static void bind(const void *args, void *problem) {
    const call c = forward_of(args);
    put_pointers(&c, problem);
}
static ejk_status prepare_vjp(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    const call c = gradient_of(args);
    return resolve(&c, true, problem);
}
static void bind_vjp(const void *args, void *problem) {
    const call c = gradient_of(args);
    put_pointers(&c, problem);
}

static void cost(const void *problem, const void *args, ejk_cost *out) {
    (void)args;
    const pool_problem *p = problem;
    const double run = (double)p->batch * (double)pool_runs(p) * (double)p->width;
    out->flops = run * (double)p->tokens;
    out->bytes = run * (double)(p->tokens + p->rows) * (double)ejk_dtype_size((ejk_dtype)p->dtype);
}

/* ---- Descriptions ----------------------------------------------------------------------------------- */

const ejk_kernel ejk_mean_pooling_kernel = {
    .op_id = "mean_pooling",
    .version = "0",
    .doc = "means over the tokens of sequences, or of chunks of them",
    .args = &ejk_mean_pooling_args_record,
    .config = &ejk_mean_pooling_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(pool_problem),
    .prepare = prepare,
    .bind = bind,
    .cost = cost,
};

const ejk_kernel ejk_mean_pooling_vjp_kernel = {
    .op_id = "mean_pooling_vjp",
    .version = "0",
    .doc = "gradient of mean_pooling",
    .args = &ejk_mean_pooling_vjp_args_record,
    .config = &ejk_mean_pooling_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(pool_problem),
    .prepare = prepare_vjp,
    .bind = bind_vjp,
    .cost = cost,
    .forward = &ejk_mean_pooling_kernel,
    .algorithm = "mean_pooling",
};

ejk_status ejk_mean_pooling(ejk_context *context, const ejk_mean_pooling_args *args) {
    return ejk_call(context, &ejk_mean_pooling_kernel, args);
}

ejk_status ejk_mean_pooling_vjp(ejk_context *context, const ejk_mean_pooling_vjp_args *args) {
    return ejk_call(context, &ejk_mean_pooling_vjp_kernel, args);
}
