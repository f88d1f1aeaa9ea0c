/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of flash attention on NVIDIA GPUs: delta first, then a kernel each for d_query, for d_key and d_value, for
 * the bias and the sinks, as they are wanted. Scores are computed anew by each, and nothing is added by more than one
 * block, so that the same call has the same bits; besides results, only delta is kept.
 */
#include "kernels/cuda/launch.h"

/* What is prepared. */
enum { DELTA, SINKS, QUERY, KEYS, VALUES, BIAS };

/* Of the kernels over rows and over keys. */
typedef struct tiling {
    int64_t rows, keys; /* of a tile of either */
    int64_t row_threads, key_threads;
    int64_t row_bytes, key_bytes; /* of shared memory */
    bool two_passes;              /* d_key and d_value by launches of their own */
} tiling;

static bool wants_keys(const ejki_flash_vjp_problem *v) {
    return v->wants_key || v->wants_value;
}

static bool too_large(const ejki_flash_vjp_problem *v, const tiling *t) {
    const ejki_flash_problem *p = &v->forward;
    return ejki_cuda_blocks(p, ejki_cuda_tiles(p, p->queries, p->group, t->rows)) > INT32_MAX ||
           ejki_cuda_blocks(p, ejki_cuda_tiles(p, p->keys, 1, t->keys)) > INT32_MAX;
}

/* ---- Bias: one kernel for all -------------------------------------------------------------------------- */

enum { PLAIN_WARPS = 4, PLAIN_THREADS = 128, PLAIN_STEP = 32, PLAIN_CHUNK = 64 };

static int64_t plain_rows(const ejki_flash_problem *p) {
    return ejki_max(p->head_dim, p->value_dim) > 256 ? 2 : 4;
}

static int64_t plain_bytes(const ejki_flash_problem *p) {
    const int64_t rows = PLAIN_WARPS * plain_rows(p);
    return (rows * (ejki_round_up(ejki_max(p->head_dim, 1), PLAIN_CHUNK) +
                    ejki_round_up(ejki_max(p->value_dim, 1), PLAIN_CHUNK)) +
            PLAIN_STEP * (PLAIN_CHUNK + 4) + rows * PLAIN_STEP) *
           (int64_t)sizeof(float);
}

/* True if the bias has no axis of queries. */
static bool all_queries(const ejki_flash_vjp_problem *v) {
    return v->d_bias.stride_t == 0;
}

static int64_t bias_blocks(const ejki_flash_vjp_problem *v) {
    const ejki_flash_problem *p = &v->forward;
    return (v->d_bias.stride_b ? p->batch : 1) * (v->d_bias.stride_h ? p->query_heads : 1) *
           (all_queries(v) ? 1 : ejki_cdiv(p->queries, PLAIN_WARPS * plain_rows(p)));
}

/* ---- Both ---------------------------------------------------------------------------------------------- */

/* What all kernels need besides those over rows and keys. */
static ejk_status prepare_rest(const ejki_flash_vjp_problem *v, const tiling *t,
                               ejk_launch *launch) {
    const ejki_flash_problem *p = &v->forward;
    if (too_large(v, t) || bias_blocks(v) > INT32_MAX || p->keys > 65535 * (int64_t)PLAIN_STEP)
        return ejki_fail(
            EJK_STATUS_OVERFLOW,
            "gradients of %lld keys and %lld queries are more than a GPU's grid can count",
            (long long)p->keys, (long long)p->queries);
    launch->workers = 1;
    launch->workspace_bytes = (size_t)ejki_cuda_rows(p) * sizeof(float);
    ejki_cuda_constants constants = ejki_cuda_constants_of(p);
    EJKI_TRY(ejki_cuda_ready(launch, DELTA, "backward_rows.cu", "delta", &constants));
    EJKI_TRY(ejki_cuda_ready(launch, SINKS, "backward_rows.cu", "sinks", &constants));
    if (!v->wants_bias) return EJK_OK;
    ejki_cuda_add(&constants, "ROWS", plain_rows(p));
    ejki_cuda_add(&constants, "ALL_QUERIES", all_queries(v));
    return ejki_cuda_ready(launch, BIAS, "backward_bias.cu", "d_bias", &constants);
}

static ejki_cuda_bthd bthd(const ejki_bthd *t) {
    return (ejki_cuda_bthd){t->data, t->stride_b, t->stride_t, t->stride_h};
}

static ejki_cuda_vjp_problem problem_of(const ejki_flash_vjp_problem *v, const tiling *t) {
    const ejki_flash_problem *p = &v->forward;
    const ejki_bht *l = &v->lse_cotangent;
    const ejki_bias_gradient *bias = &v->d_bias;
    ejki_cuda_vjp_problem problem = {
        .forward = ejki_cuda_problem_of(p),
        .out_cotangent = bthd(&v->out_cotangent),
        .d_bias = {bias->data, bias->stride_b, bias->stride_h, bias->stride_t},
        .d_sinks = v->d_sinks,
        .d_sink_stride_h = v->d_sink_stride_h,
        .key_tiles = (int)ejki_cuda_tiles(p, p->keys, 1, t->keys),
    };
    problem.forward.tiles = (int)ejki_cuda_tiles(p, p->queries, p->group, t->rows);
    if (v->wants_query) problem.d_query = bthd(&v->d_query);
    if (v->wants_key) problem.d_key = bthd(&v->d_key);
    if (v->wants_value) problem.d_value = bthd(&v->d_value);
    if (v->has_lse_cotangent)
        problem.lse_cotangent = (ejki_cuda_bhts){l->data, l->stride_b, l->stride_h, l->stride_t};
    return problem;
}

static ejk_status check_aligned(const ejki_flash_vjp_problem *v) {
    const int64_t size = (int64_t)ejk_dtype_size(v->forward.dtype);
    EJKI_TRY(ejki_cuda_check_aligned(&v->forward));
    EJKI_TRY(ejki_cuda_check_address(v->out_cotangent.data, size, "the cotangent of out"));
    if (v->has_lse_cotangent)
        EJKI_TRY(ejki_cuda_check_address(v->lse_cotangent.data, 4, "the cotangent of lse"));
    if (v->wants_query) EJKI_TRY(ejki_cuda_check_address(v->d_query.data, size, "d_query"));
    if (v->wants_key) EJKI_TRY(ejki_cuda_check_address(v->d_key.data, size, "d_key"));
    if (v->wants_value) EJKI_TRY(ejki_cuda_check_address(v->d_value.data, size, "d_value"));
    if (v->wants_bias) EJKI_TRY(ejki_cuda_check_address(v->d_bias.data, size, "d_bias"));
    return v->wants_sinks ? ejki_cuda_check_address(v->d_sinks, size, "d_sinks") : EJK_OK;
}

/* Launches nothing for an empty grid. */
static ejk_status begin(const ejk_run *run, int32_t place, int64_t blocks, int64_t columns,
                        int64_t threads, int64_t bytes, ejki_cuda_vjp_problem *problem) {
    const ejki_cuda_work work = {.place = place,
                                 .threads = (int32_t)threads,
                                 .blocks = blocks,
                                 .splits = columns,
                                 .shared_bytes = bytes};
    return blocks > 0 && columns > 0 ? ejki_cuda_begin(run, &work, problem) : EJK_OK;
}

static ejk_status run_all(const ejk_run *run, const tiling *t) {
    const ejki_flash_vjp_problem *v = run->problem;
    const ejki_flash_problem *p = &v->forward;
    EJKI_TRY(check_aligned(v));
    ejki_cuda_vjp_problem problem = problem_of(v, t);
    problem.delta = run->workspace;
    EJKI_TRY(begin(run, DELTA, ejki_cdiv(ejki_cuda_rows(p), 4), 1, 128, 0, &problem));
    if (v->wants_query && p->head_dim > 0)
        EJKI_TRY(begin(run, QUERY, p->queries > 0 ? ejki_cuda_blocks(p, problem.forward.tiles) : 0,
                       1, t->row_threads, t->row_bytes, &problem));
    const int64_t key_blocks = p->keys > 0 ? ejki_cuda_blocks(p, problem.key_tiles) : 0;
    if (wants_keys(v) && !(t->two_passes && !v->wants_key))
        EJKI_TRY(begin(run, KEYS, key_blocks, 1, t->key_threads, t->key_bytes, &problem));
    if (t->two_passes && v->wants_value)
        EJKI_TRY(begin(run, VALUES, key_blocks, 1, t->key_threads, t->key_bytes, &problem));
    if (v->wants_bias)
        EJKI_TRY(begin(run, BIAS, bias_blocks(v), ejki_cdiv(p->keys, PLAIN_STEP), PLAIN_THREADS,
                       plain_bytes(p), &problem));
    if (!v->wants_sinks) return EJK_OK;
    const int64_t heads = p->sink_stride_h == 0 ? 1 : p->query_heads / p->sink_group;
    return begin(run, SINKS, p->query_heads > 0 ? heads * p->sink_count : p->sink_count, 1, 256, 0,
                 &problem);
}

/* ---- Plain --------------------------------------------------------------------------------------------- */

static tiling plain_tiling(const ejki_flash_vjp_problem *v) {
    const int64_t rows = PLAIN_WARPS * plain_rows(&v->forward), bytes = plain_bytes(&v->forward);
    return (tiling){.rows = rows,
                    .keys = rows,
                    .row_threads = PLAIN_THREADS,
                    .key_threads = PLAIN_THREADS,
                    .row_bytes = bytes,
                    .key_bytes = bytes};
}

static bool plain_applicable(const void *problem) {
    return ejki_cuda_fits(&((const ejki_flash_vjp_problem *)problem)->forward);
}

static ejk_status plain_prepare(const void *problem, const int64_t *parameters, int32_t threads,
                                ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    const ejki_flash_vjp_problem *v = problem;
    const tiling t = plain_tiling(v);
    EJKI_TRY(prepare_rest(v, &t, launch));
    ejki_cuda_constants constants = ejki_cuda_constants_of(&v->forward);
    ejki_cuda_add(&constants, "ROWS", plain_rows(&v->forward));
    EJKI_TRY(ejki_cuda_ready(launch, QUERY, "backward_plain.cu", "d_query_plain", &constants));
    return ejki_cuda_ready(launch, KEYS, "backward_plain.cu", "d_keys_plain", &constants);
}

static ejk_status plain_run(const ejk_run *run) {
    const tiling t = plain_tiling(run->problem);
    return run_all(run, &t);
}

/* ---- Implementations ----------------------------------------------------------------------------------- */

#define PLAIN(symbol, text, element)                                                               \
    extern const ejk_implementation symbol;                                                        \
    const ejk_implementation symbol = {                                                            \
        .algorithm = "flash_attention_vjp",                                                        \
        .name = text "/cuda/plain",                                                                \
        .platform = EJK_PLATFORM_CUDA,                                                             \
        .backend = EJK_BACKEND_GPU,                                                                \
        .dtype = element,                                                                          \
        .version = 1,                                                                              \
        .least_capability = 70,                                                                    \
        .applicable = plain_applicable,                                                            \
        .prepare = plain_prepare,                                                                  \
        .run = plain_run,                                                                          \
    }
PLAIN(ejki_flash_attention_vjp_f32_cuda_plain, "f32", EJK_DTYPE_F32);
PLAIN(ejki_flash_attention_vjp_bf16_cuda_plain, "bf16", EJK_DTYPE_BF16);
PLAIN(ejki_flash_attention_vjp_f16_cuda_plain, "f16", EJK_DTYPE_F16);
