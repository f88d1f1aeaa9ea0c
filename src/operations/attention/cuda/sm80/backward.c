/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of flash attention by plain and mma kernels: delta first, then a kernel each for d_query, for d_key and
 * d_value, for the bias and the sinks, as wanted. Each recomputes the scores, and each sum belongs to one CTA, so
 * that the same call gives the same bits; the workspace has delta and -lse only.
 */
#include "kernels/declare.h"
#include "operations/attention/cuda/sm80/backward.h"
#include "operations/attention/shared/suggest.h"

typedef ejki_cuda_vjp_tiling tiling;

static bool wants_keys(const ejki_flash_vjp_problem *v) {
    return v->wants_key || v->wants_value;
}

static bool too_large(const ejki_flash_vjp_problem *v, const tiling *t) {
    const ejki_flash_problem *p = &v->forward;
    return ejki_flash_cuda_blocks(p, ejki_flash_cuda_tiles(p, p->queries, p->group, t->rows)) >
               INT32_MAX ||
           ejki_flash_cuda_blocks(p, ejki_flash_cuda_tiles(p, p->keys, 1, t->keys)) > INT32_MAX;
}

/* ---- Bias: one kernel for all -------------------------------------------------------------------------- */

enum { PLAIN_WARPS = 4, PLAIN_THREADS = 128, PLAIN_STEP = 32, PLAIN_CHUNK = 64 };
enum { MOST_COLUMNS = 65535 }; /* of a grid */

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
static ejk_status want_rest(const ejki_flash_vjp_problem *v, const tiling *t, ejk_launch *launch,
                            ejki_cuda_kernels *kernels) {
    const ejki_flash_problem *p = &v->forward;
    const bool wide = v->wants_bias &&
                      (bias_blocks(v) > INT32_MAX || ejki_cdiv(p->keys, PLAIN_STEP) > MOST_COLUMNS);
    if (too_large(v, t) || wide)
        return ejki_fail(
            EJK_STATUS_OVERFLOW,
            "gradients of %lld keys and %lld queries are more than a GPU's grid can count",
            (long long)p->keys, (long long)p->queries);
    launch->workers = 1;
    launch->workspace_bytes = (size_t)ejki_flash_cuda_block_mask_bytes(p) +
                              2 * (size_t)ejki_flash_cuda_rows(p) * sizeof(float);
    EJKI_TRY(ejki_flash_cuda_ready_block_mask(launch, EJKI_CUDA_BLOCK_MASK, p));
    ejki_cuda_constants constants = ejki_flash_cuda_constants_of(p);
    ejki_cuda_want(kernels, EJKI_CUDA_DELTA, "operations/attention/cuda/sm80/backward_rows.cu",
                   "delta", &constants);
    ejki_cuda_want(kernels, EJKI_CUDA_SINKS, "operations/attention/cuda/sm80/backward_rows.cu",
                   "sinks", &constants);
    if (!v->wants_bias) return EJK_OK;
    ejki_cuda_add(&constants, "ROWS", plain_rows(p));
    ejki_cuda_add(&constants, "ALL_QUERIES", all_queries(v));
    ejki_cuda_want(kernels, EJKI_CUDA_BIAS, "operations/attention/cuda/sm80/backward_bias.cu",
                   "d_bias", &constants);
    return EJK_OK;
}

static ejki_cuda_bthd bthd(const ejki_bthd *t) {
    return (ejki_cuda_bthd){t->data, t->stride_b, t->stride_t, t->stride_h};
}

ejki_cuda_vjp_problem ejki_cuda_vjp_problem_of(const ejki_flash_vjp_problem *v, const tiling *t) {
    const ejki_flash_problem *p = &v->forward;
    const ejki_bht *l = &v->lse_cotangent;
    const ejki_bias_gradient *bias = &v->d_bias;
    ejki_cuda_vjp_problem problem = {
        .forward = ejki_flash_cuda_problem_of(p),
        .out_cotangent = bthd(&v->out_cotangent),
        .d_bias = {bias->data, bias->stride_b, bias->stride_h, bias->stride_t},
        .d_sinks = v->d_sinks,
        .d_sink_stride_h = v->d_sink_stride_h,
        .key_tiles = (int)ejki_flash_cuda_tiles(p, p->keys, 1, t->keys),
    };
    problem.forward.tiles = (int)ejki_flash_cuda_tiles(p, p->queries, p->group, t->rows);
    if (v->wants_query) problem.d_query = bthd(&v->d_query);
    if (v->wants_key) problem.d_key = bthd(&v->d_key);
    if (v->wants_value) problem.d_value = bthd(&v->d_value);
    if (v->has_lse_cotangent)
        problem.lse_cotangent = (ejki_cuda_bhts){l->data, l->stride_b, l->stride_h, l->stride_t};
    return problem;
}

ejk_status ejki_cuda_vjp_check_aligned(const ejki_flash_vjp_problem *v) {
    const int64_t size = (int64_t)ejk_dtype_size(v->forward.dtype);
    EJKI_TRY(ejki_flash_cuda_check_aligned(&v->forward));
    EJKI_TRY(ejki_cuda_check_address(v->out_cotangent.data, size, "the cotangent of out"));
    if (v->has_lse_cotangent)
        EJKI_TRY(ejki_cuda_check_address(v->lse_cotangent.data, 4, "the cotangent of lse"));
    if (v->wants_query) EJKI_TRY(ejki_cuda_check_address(v->d_query.data, size, "d_query"));
    if (v->wants_key) EJKI_TRY(ejki_cuda_check_address(v->d_key.data, size, "d_key"));
    if (v->wants_value) EJKI_TRY(ejki_cuda_check_address(v->d_value.data, size, "d_value"));
    if (v->wants_bias) EJKI_TRY(ejki_cuda_check_address(v->d_bias.data, size, "d_bias"));
    return v->wants_sinks ? ejki_cuda_check_address(v->d_sinks, size, "d_sinks") : EJK_OK;
}

ejk_status ejki_cuda_vjp_begin(const ejk_run *run, int32_t slot, int64_t blocks, int64_t columns,
                               int64_t threads, int64_t bytes, ejki_cuda_vjp_problem *problem) {
    const ejki_cuda_work work = {.slot = slot,
                                 .threads = (int32_t)threads,
                                 .blocks = blocks,
                                 .splits = columns,
                                 .shared_bytes = bytes};
    return blocks > 0 && columns > 0 ? ejki_cuda_begin(run, &work, problem) : EJK_OK;
}

ejk_status ejki_cuda_vjp_delta(const ejk_run *run, ejki_cuda_vjp_problem *problem) {
    const ejki_flash_vjp_problem *v = run->problem;
    /* As backward_rows.cu has them: lanes of a row, and four rows for each of a block's. */
    const int64_t lanes = v->forward.value_dim > 128 ? 32 : v->forward.value_dim > 64 ? 16 : 8;
    return ejki_cuda_vjp_begin(run, EJKI_CUDA_DELTA,
                               ejki_cdiv(ejki_flash_cuda_rows(&v->forward), 4 * 256 / lanes), 1,
                               256, 0, problem);
}

ejk_status ejki_cuda_vjp_sinks(const ejk_run *run, ejki_cuda_vjp_problem *problem) {
    const ejki_flash_vjp_problem *v = run->problem;
    const ejki_flash_problem *p = &v->forward;
    if (!v->wants_sinks) return EJK_OK;
    const int64_t heads = v->d_sink_stride_h == 0 ? 1 : p->query_heads / p->sink_group;
    return ejki_cuda_vjp_begin(run, EJKI_CUDA_SINKS, heads * p->sink_count, 1, 256, 0, problem);
}

ejk_status ejki_cuda_vjp_products(const ejk_run *run, const tiling *t, int64_t most,
                                  ejki_cuda_vjp_problem *problem) {
    const ejki_flash_vjp_problem *v = run->problem;
    const ejki_flash_problem *p = &v->forward;
    if (v->wants_query && p->head_dim > 0 && p->queries > 0) {
        const int64_t blocks = ejki_flash_cuda_blocks(p, problem->forward.tiles);
        problem->jobs = (int)blocks;
        EJKI_TRY(ejki_cuda_vjp_begin(run, EJKI_CUDA_QUERY, ejki_min(blocks, most), 1,
                                     t->row_threads, t->row_bytes, problem));
    }
    const int64_t blocks = p->keys > 0 ? ejki_flash_cuda_blocks(p, problem->key_tiles) : 0;
    problem->jobs = (int)blocks;
    if (wants_keys(v) && !(t->two_passes && !v->wants_key))
        EJKI_TRY(ejki_cuda_vjp_begin(run, EJKI_CUDA_KEYS, ejki_min(blocks, most), 1, t->key_threads,
                                     t->key_bytes, problem));
    if (t->two_passes && v->wants_value)
        EJKI_TRY(ejki_cuda_vjp_begin(run, EJKI_CUDA_VALUES, ejki_min(blocks, most), 1,
                                     t->key_threads, t->key_bytes, problem));
    return EJK_OK;
}

static ejk_status run_all(const ejk_run *run, const tiling *t) {
    const ejki_flash_vjp_problem *v = run->problem;
    const ejki_flash_problem *p = &v->forward;
    EJKI_TRY(ejki_cuda_vjp_check_aligned(v));
    ejki_cuda_vjp_problem problem = ejki_cuda_vjp_problem_of(v, t);
    problem.forward.visibility.block_mask = run->workspace;
    if (ejki_flash_cuda_rows(p) > 0)
        problem.delta =
            (float *)(void *)((char *)run->workspace + ejki_flash_cuda_block_mask_bytes(p));
    problem.shift = problem.delta ? problem.delta + ejki_flash_cuda_rows(p) : NULL;
    EJKI_TRY(ejki_flash_cuda_begin_block_mask(run, EJKI_CUDA_BLOCK_MASK, p, run->workspace));
    EJKI_TRY(ejki_cuda_vjp_delta(run, &problem));
    EJKI_TRY(ejki_cuda_vjp_products(run, t, INT32_MAX, &problem));
    if (v->wants_bias)
        EJKI_TRY(ejki_cuda_vjp_begin(run, EJKI_CUDA_BIAS, bias_blocks(v),
                                     ejki_cdiv(p->keys, PLAIN_STEP), PLAIN_THREADS, plain_bytes(p),
                                     &problem));
    return ejki_cuda_vjp_sinks(run, &problem);
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
    return ejki_flash_cuda_fits(&((const ejki_flash_vjp_problem *)problem)->forward);
}

static ejk_status plain_prepare(const void *problem, const int64_t *parameters, int32_t threads,
                                ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    const ejki_flash_vjp_problem *v = problem;
    const tiling t = plain_tiling(v);
    ejki_cuda_kernels kernels = {.count = 0};
    EJKI_TRY(want_rest(v, &t, launch, &kernels));
    ejki_cuda_constants constants = ejki_flash_cuda_constants_of(&v->forward);
    ejki_cuda_add(&constants, "ROWS", plain_rows(&v->forward));
    ejki_cuda_want(&kernels, EJKI_CUDA_QUERY, "operations/attention/cuda/sm80/backward_plain.cu",
                   "d_query_plain", &constants);
    ejki_cuda_want(&kernels, EJKI_CUDA_KEYS, "operations/attention/cuda/sm80/backward_plain.cu",
                   "d_keys_plain", &constants);
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status plain_run(const ejk_run *run) {
    const tiling t = plain_tiling(run->problem);
    return run_all(run, &t);
}

/* ---- Tensor cores -------------------------------------------------------------------------------------- */

typedef struct mma_tiling {
    tiling t;
    int64_t warps, row_block, key_block; /* steps of the kernel over keys, and of that over rows */
    int64_t row_stages, key_stages;      /* of the kernels over rows, and over keys */
} mma_tiling;

static int64_t row_of_tile(const ejki_flash_problem *p) {
    return (ejki_round_up(p->head_dim, 64) + ejki_round_up(p->value_dim, 64)) * 2;
}

/* Fewer stages, then shorter steps, where shared memory would not hold them. Answers its bytes. */
static int64_t fit(const ejki_flash_problem *p, int64_t own, int64_t more, int64_t *block,
                   int64_t *stages) {
    for (;;) {
        const int64_t bytes = own * row_of_tile(p) + *stages * *block * (row_of_tile(p) + more);
        if (bytes <= EJKI_CUDA_SHARED_BYTES || (*stages == 1 && *block == 16)) return bytes;
        if (*stages > 1)
            --*stages;
        else
            *block -= 16;
    }
}

static mma_tiling mma_tiling_of(const ejki_flash_vjp_problem *v, const int64_t *parameters) {
    const ejki_flash_problem *p = &v->forward;
    mma_tiling m = {.warps = parameters[2] >= 8   ? 8
                             : parameters[2] >= 4 ? 4
                                                  : 2,
                    .row_block = parameters[0],
                    .key_block = parameters[1],
                    .row_stages = parameters[3],
                    .key_stages = parameters[3]};
    while (m.warps > 2 && 16 * (m.warps + 1) * row_of_tile(p) > EJKI_CUDA_SHARED_BYTES)
        m.warps /= 2;
    const int64_t own = 16 * m.warps;
    m.t = (tiling){.rows = own,
                   .keys = own,
                   .row_threads = 32 * m.warps,
                   .key_threads = 32 * m.warps,
                   .row_bytes = fit(p, own, 0, &m.key_block, &m.row_stages),
                   .key_bytes = fit(p, own, 8, &m.row_block, &m.key_stages),
                   .two_passes = p->head_dim + p->value_dim > 256};
    return m;
}

static bool mma_applicable(const void *problem) {
    const ejki_flash_problem *p = &((const ejki_flash_vjp_problem *)problem)->forward;
    return ejki_flash_cuda_fits(p) && p->head_dim > 0 && p->value_dim > 0 && p->head_dim <= 256 &&
           p->value_dim <= 256;
}

static void want(ejki_cuda_kernels *kernels, int32_t slot, const char *entry,
                 ejki_cuda_constants constants, const char *first, const char *second) {
    ejki_cuda_add(&constants, first, 1);
    if (second) ejki_cuda_add(&constants, second, 1);
    ejki_cuda_want(kernels, slot, "operations/attention/cuda/sm80/backward_mma.cu", entry,
                   &constants);
}

ejk_status ejki_cuda_vjp_mma_want(const ejki_flash_vjp_problem *v, const int64_t *parameters,
                                  bool recomputes, ejk_launch *launch, ejki_cuda_kernels *kernels) {
    const ejki_flash_problem *p = &v->forward;
    const mma_tiling m = mma_tiling_of(v, parameters);
    EJKI_TRY(want_rest(v, &m.t, launch, kernels));
    ejki_cuda_constants base = ejki_flash_cuda_constants_of(p);
    ejki_cuda_add(&base, "FOLDED", (float)p->scale > 0 && p->soft_cap <= 0 && !p->has_bias);
    ejki_cuda_add(&base, "WARPS", m.warps);
    ejki_cuda_add(&base, "RECOMPUTES", recomputes);
    ejki_cuda_constants rows = base, keys = base;
    ejki_cuda_add(&rows, "BLOCK", m.key_block);
    ejki_cuda_add(&rows, "STAGES", m.row_stages);
    ejki_cuda_add(&keys, "BLOCK", m.row_block);
    ejki_cuda_add(&keys, "STAGES", m.key_stages);
    if (v->wants_query) want(kernels, EJKI_CUDA_QUERY, "d_query_mma", rows, "D_QUERY", NULL);
    if (!m.t.two_passes && wants_keys(v))
        want(kernels, EJKI_CUDA_KEYS, "d_keys_mma", keys, "D_KEY", "D_VALUE");
    if (m.t.two_passes && v->wants_key)
        want(kernels, EJKI_CUDA_KEYS, "d_keys_mma", keys, "D_KEY", NULL);
    if (m.t.two_passes && v->wants_value)
        want(kernels, EJKI_CUDA_VALUES, "d_keys_mma", keys, "D_VALUE", NULL);
    return EJK_OK;
}

static ejk_status mma_prepare(const void *problem, const int64_t *parameters, int32_t threads,
                              ejk_launch *launch) {
    (void)threads;
    ejki_cuda_kernels kernels = {.count = 0};
    EJKI_TRY(ejki_cuda_vjp_mma_want(problem, parameters, false, launch, &kernels));
    return ejki_cuda_ready_all(launch, &kernels);
}

ejk_status ejki_cuda_vjp_mma_run(const ejk_run *run) {
    const mma_tiling m = mma_tiling_of(run->problem, run->parameters);
    return run_all(run, &m.t);
}

tiling ejki_cuda_vjp_mma_tiling(const ejki_flash_vjp_problem *v, const int64_t *parameters) {
    return mma_tiling_of(v, parameters).t;
}

static const ejk_parameter mma_parameters[] = {
    {"q_blocksize", 16, 128, 16, 64, "rows of a step of the kernel over keys"},
    {"kv_blocksize", 16, 128, 16, 64, "keys of a step of the kernel over rows"},
    {"num_warps", 2, 8, 2, 4, "warps of a GPU block, each with 16 rows or keys: 2, 4 or 8"},
    {"num_stages", 1, 3, 1, 2, "steps in shared memory"},
};

/* Rows, keys, warps, stages. */
static const ejk_candidate mma_candidates[] = {
    {{64, 64, 4, 2}}, {{32, 64, 4, 2}}, {{64, 32, 4, 2}},
    {{32, 32, 4, 2}}, {{64, 64, 8, 2}}, {{64, 64, 4, 1}},
};

/* ---- Implementations ----------------------------------------------------------------------------------- */

EJKI_DECLARE(flash_attention_vjp_plain_cuda, .version = 1, .applicable = plain_applicable,
             .needs = "heads up to 576", .prepare = plain_prepare, .run = plain_run)

EJKI_DECLARE(flash_attention_vjp_mma_cuda, .version = 1, .priority = 10,
             .parameters = mma_parameters, .candidates = mma_candidates,
             .candidate_count = sizeof mma_candidates / sizeof *mma_candidates,
             .suggest = ejki_sm80_suggest_vjp, .parameter_count = 4, .applicable = mma_applicable,
             .needs = "heads of 1 to 256", .prepare = mma_prepare, .run = ejki_cuda_vjp_mma_run)
