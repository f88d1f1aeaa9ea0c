/* SPDX-License-Identifier: Apache-2.0 */
/* Means over tokens and their gradient: one problem, read in both directions; and the reference. */
#include <ejkernel/mean_pooling.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/pooling/mean_pooling/problem.cuh"
#include "tensor/access.h"
#include "tensor/view.h"

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
    const char *name; /* of y */
} call;
#define CALL(a, x, y) ((call){&(a)->x, &(a)->y, &(a)->cu_seqlens, &(a)->chunk_size, #y})

static ejk_status check(const call *c) {
    const bool packed = ejk_tensor_present(c->ends);
    if (c->chunk->set && c->chunk->value < 1)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "chunk_size is %lld, expected at least 1",
                         (long long)c->chunk->value);
    if (packed && c->x->rank > 2 && c->x->shape[0] != 1)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "x has batch %lld, expected 1: with cu_seqlens sequences are packed",
                         (long long)c->x->shape[0]);
    if (!packed && c->x->rank == 2)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "x has rank 2 without cu_seqlens, expected [B,T,...]");
    return EJK_OK;
}

static ejk_status resolve(const call c, bool gradient, pool_problem *p) {
    EJKI_TRY(check(&c));
    const bool packed = ejk_tensor_present(c.ends), chunked = c.chunk->set, flat = c.x->rank == 2;
    const int64_t batch = flat ? 1 : c.x->shape[0], tokens = c.x->shape[!flat];
    const int64_t sequences = packed ? c.ends->shape[0] - 1 : batch;
    const int64_t rows = chunked ? ejki_cdiv(tokens, c.chunk->value) + sequences - batch : 1;
    const int32_t trailing = c.x->rank - 2 + flat;
    int64_t shape[EJK_MAX_RANK] = {chunked ? batch : sequences, rows}, count, bytes;
    memcpy(shape + 1 + chunked, c.x->shape + 2 - flat, (size_t)trailing * sizeof *shape);
    EJKI_TRY(ejki_tensor_expect_shape(c.y, c.name, 1 + chunked + trailing, shape));
    *p = (pool_problem){.batch = batch,
                        .rows = packed && !chunked ? sequences : rows,
                        .chunks = {.tokens = tokens,
                                   .sequences = sequences,
                                   .chunk = chunked ? c.chunk->value : 0,
                                   .packed = packed,
                                   .wide = packed && c.ends->dtype == EJK_DTYPE_I64},
                        .x = {.batch = packed ? 0 : c.x->strides[0], .step = c.x->strides[!flat]},
                        .y = {.batch = packed ? 0 : c.y->strides[0],
                              .step = chunked || packed ? c.y->strides[chunked] : 0},
                        .dtype = (int)c.x->dtype,
                        .gradient = gradient};
    EJKI_TRY(ejki_runs_of(c.x, c.y, trailing, &p->runs, &p->x, &p->y));
    if (!ejki_mul(p->runs.width, ejki_run_count(&p->runs), &count) ||
        !ejki_mul(count, batch, &count) || !ejki_mul(count, ejki_max(tokens, p->rows), &count) ||
        !ejki_mul(count, 512, &bytes))
        return ejki_fail(EJK_STATUS_OVERFLOW, "%lld x %lld tokens cannot be counted",
                         (long long)batch, (long long)tokens);
    return EJK_OK;
}

static void put_pointers(const call c, pool_problem *p) {
    p->x.data = c.x->data;
    p->y.data = c.y->data;
    p->chunks.ends = p->chunks.packed ? c.ends->data : NULL;
}

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    return resolve(CALL((const ejk_mean_pooling_args *)args, x, out), false, problem);
}
static void bind(const void *args, void *problem) {
    put_pointers(CALL((const ejk_mean_pooling_args *)args, x, out), problem);
}
static ejk_status prepare_vjp(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    return resolve(CALL((const ejk_mean_pooling_vjp_args *)args, d_x, d_out), true, problem);
}
static void bind_vjp(const void *args, void *problem) {
    put_pointers(CALL((const ejk_mean_pooling_vjp_args *)args, d_x, d_out), problem);
}

static void cost(const void *problem, const void *args, ejk_cost *out) {
    (void)args;
    const pool_problem *p = problem;
    const double run = (double)(p->batch * ejki_run_count(&p->runs) * p->runs.width);
    out->flops = run * (double)p->chunks.tokens;
    out->bytes =
        run * (double)(p->chunks.tokens + p->rows) * (double)ejk_dtype_size((ejk_dtype)p->dtype);
}

/* ---- Reference -------------------------------------------------------------------------------------- */

/* The formulas as they read, an element at a time in double precision: the sum of tokens, or of the one row. */
static ejk_status run_reference(const ejk_run *run) {
    const pool_problem *p = run->problem;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const ejki_tokens *from = p->gradient ? &p->y : &p->x, *to = p->gradient ? &p->x : &p->y;
    const ejki_size steps = p->gradient ? p->chunks.tokens : p->rows, width = p->runs.width;
    const ejki_size runs = ejki_run_count(&p->runs);
    for (ejki_size n = 0; n < p->batch * steps * runs * width; n++) {
        const ejki_size step = n / width / runs % steps, b = n / width / runs / steps;
        const ejki_size d = n % width, i = n / width % runs;
        const ejki_range range = p->gradient ? ejki_chunk_of_token(&p->chunks, step)
                                             : ejki_chunk_of_row(&p->chunks, step);
        const ejki_size end = p->gradient ? range.row + 1 : range.end;
        double sum = 0;
        for (ejki_size t = p->gradient ? ejki_max(range.row, 0) : range.begin; t < end; t++)
            sum += ejki_load_f64(dtype, from->data, ejki_run_start(&p->runs, from, b, t, i) + d);
        ejki_store_f64(dtype, to->data, ejki_run_start(&p->runs, to, b, step, i) + d,
                       sum / (double)ejki_max(range.end - range.begin, 1));
    }
    return EJK_OK;
}

EJKI_DECLARE(mean_pooling_reference, .version = 1, .run = run_reference)

/* ---- Descriptions ----------------------------------------------------------------------------------- */

#define SHARED                                                                                     \
    .version = "0", .config = &ejk_mean_pooling_config_record, .config_field = "cfg",              \
    .problem_size = sizeof(pool_problem), .cost = cost
const ejk_kernel ejk_mean_pooling_kernel = {
    SHARED,
    .op_id = "mean_pooling",
    .doc = "means over the tokens of sequences, or of chunks of them",
    .args = &ejk_mean_pooling_args_record,
    .prepare = prepare,
    .bind = bind,
};
const ejk_kernel ejk_mean_pooling_vjp_kernel = {
    SHARED,
    .op_id = "mean_pooling_vjp",
    .doc = "gradient of mean_pooling",
    .args = &ejk_mean_pooling_vjp_args_record,
    .prepare = prepare_vjp,
    .bind = bind_vjp,
    .forward = &ejk_mean_pooling_kernel,
    .algorithm = "mean_pooling",
};

EJKI_DEFINE_CALL(mean_pooling)
EJKI_DEFINE_CALL(mean_pooling_vjp)
