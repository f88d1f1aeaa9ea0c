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

static call call_of(const void *args, bool gradient) {
    const ejk_mean_pooling_args *a = args;
    const ejk_mean_pooling_vjp_args *v = args;
    return gradient ? (call){&v->d_x, &v->d_out, &v->cu_seqlens, &v->chunk_size, "d_out"}
                    : (call){&a->x, &a->out, &a->cu_seqlens, &a->chunk_size, "out"};
}

static ejk_status resolve(const call c, bool gradient, pool_problem *p) {
    const bool packed = ejk_tensor_present(c.ends), chunked = c.chunk->set, flat = c.x->rank == 2;
    const int64_t batch = flat ? 1 : c.x->shape[0], tokens = c.x->shape[!flat];
    const int64_t sequences = packed ? c.ends->shape[0] - 1 : batch;
    const int32_t trailing = c.x->rank - 2 + flat;
    int64_t chunk;
    if (flat && !packed)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "x has rank 2 without cu_seqlens, expected [B,T,...]");
    EJKI_TRY(ejki_expect_one_row(c.ends, batch));
    EJKI_TRY(ejki_chunk_size(c.chunk, &chunk));
    const int64_t rows = chunked ? ejki_cdiv(tokens, chunk) + sequences - batch : 1;
    int64_t shape[EJK_MAX_RANK] = {chunked ? batch : sequences, rows};
    memcpy(shape + 1 + chunked, c.x->shape + 2 - flat, (size_t)trailing * sizeof *shape);
    EJKI_TRY(ejki_tensor_expect_shape(c.y, c.name, 1 + chunked + trailing, shape));
    EJKI_TRY(ejki_tensor_expect_countable(c.y, c.name, 512));
    EJKI_TRY(ejki_tensor_expect_countable(c.x, "x", 512));
    *p = (pool_problem){.batch = batch,
                        .rows = packed && !chunked ? sequences : rows,
                        .chunks = {.tokens = tokens,
                                   .sequences = sequences,
                                   .chunk = chunk,
                                   .packed = packed,
                                   .wide = packed && c.ends->dtype == EJK_DTYPE_I64},
                        .x = {.batch = packed ? 0 : c.x->strides[0], .step = c.x->strides[!flat]},
                        .y = {.batch = packed ? 0 : c.y->strides[0],
                              .step = chunked || packed ? c.y->strides[chunked] : 0},
                        .dtype = (int)c.x->dtype,
                        .gradient = gradient};
    ejki_runs_of(c.x, c.y, trailing, &p->runs, &p->x, &p->y);
    return EJK_OK;
}

static ejk_status prepare(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    return resolve(call_of(args, false), false, problem);
}
static ejk_status prepare_vjp(const void *args, const ejk_axes *axes, void *problem) {
    (void)axes;
    return resolve(call_of(args, true), true, problem);
}

static void bind(const void *args, void *problem) {
    pool_problem *p = problem;
    const call c = call_of(args, p->gradient);
    p->x.data = c.x->data;
    p->y.data = c.y->data;
    p->chunks.ends = p->chunks.packed ? c.ends->data : NULL;
}

static void cost(const void *problem, const void *args, ejk_cost *out) {
    (void)args;
    const pool_problem *p = problem;
    const double size = (double)ejk_dtype_size((ejk_dtype)p->dtype);
    out->flops = (double)(pool_items(p, p->chunks.tokens) * p->runs.width);
    out->bytes = out->flops * size + (double)(pool_items(p, p->rows) * p->runs.width) * size;
}

/* The formulas as they read, an element at a time in double precision: the sum of tokens, or of the one row. */
static ejk_status run_reference(const ejk_run *run) {
    const pool_problem *p = run->problem;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    const ejki_tokens *from = p->gradient ? &p->y : &p->x, *to = p->gradient ? &p->x : &p->y;
    const ejki_size steps = p->gradient ? p->chunks.tokens : p->rows, width = p->runs.width;
    for (ejki_size n = 0; n < pool_items(p, steps) * width; n++) {
        const ejki_item at = ejki_item_at(&p->runs, steps, n / width);
        const ejki_range range = p->gradient ? ejki_chunk_of_token(&p->chunks, at.step)
                                             : ejki_chunk_of_row(&p->chunks, at.step);
        const ejki_size end = p->gradient ? range.row + 1 : range.end, d = n % width;
        double sum = 0;
        for (ejki_size t = p->gradient ? ejki_max(range.row, 0) : range.begin; t < end; t++)
            sum += ejki_load_f64(dtype, from->data, ejki_run_start(&p->runs, from, &at, t) + d);
        ejki_store_f64(dtype, to->data, ejki_run_start(&p->runs, to, &at, at.step) + d,
                       sum / (double)ejki_max(range.end - range.begin, 1));
    }
    return EJK_OK;
}

EJKI_DECLARE(mean_pooling_reference, .version = 1, .run = run_reference)

#define SHARED                                                                                     \
    .version = "0", .config = &ejk_mean_pooling_config_record, .config_field = "cfg",              \
    .problem_size = sizeof(pool_problem), .bind = bind, .cost = cost
const ejk_kernel ejk_mean_pooling_kernel = {
    SHARED,
    .op_id = "mean_pooling",
    .doc = "means over the tokens of sequences, or of chunks of them",
    .args = &ejk_mean_pooling_args_record,
    .prepare = prepare,
};
const ejk_kernel ejk_mean_pooling_vjp_kernel = {
    SHARED,
    .op_id = "mean_pooling_vjp",
    .doc = "gradient of mean_pooling",
    .args = &ejk_mean_pooling_vjp_args_record,
    .prepare = prepare_vjp,
    .forward = &ejk_mean_pooling_kernel,
    .algorithm = "mean_pooling",
};

EJKI_DEFINE_CALL(mean_pooling)
EJKI_DEFINE_CALL(mean_pooling_vjp)
