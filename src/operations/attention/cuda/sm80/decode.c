/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention of few rows over many keys: launches of decode.cu and of its split-KV combine, from sm_90 on by
 * programmatic dependent launch.
 */
#include "kernels/declare.h"
#include "operations/attention/cuda/common/launch.h"
#include "operations/attention/shared/suggest.h"

enum { KEYS = 16, MOST_ROWS = 16 }; /* as decode.cu has them */
enum { MAIN, JOIN };                /* what is prepared */

typedef struct tiling {
    int64_t warps, halves, stages, resident;
    int64_t splits, split_keys;
    int64_t shared_bytes;
    bool direct, overlap;
} tiling;

static int64_t stage_bytes(const ejki_flash_problem *p) {
    return KEYS * (ejki_round_up(p->head_dim, 64) + ejki_round_up(p->value_dim, 64)) * 2;
}

/* Bytes in which warps leave what they found; the ring's, reused. */
static int64_t left_bytes(const ejki_flash_problem *p, const tiling *t) {
    return t->warps * 8 * t->halves * (p->value_dim + 2) * (int64_t)sizeof(float);
}

/* Parameters: num_warps, num_stages, num_key_splits. Stages, then warps, are fewer where memory would not hold them. */
static ejk_status tiling_of(const ejki_flash_problem *p, const int64_t *parameters, int32_t device,
                            tiling *out) {
    const ejk_gpu_info *gpu;
    EJKI_TRY(ejki_cuda_gpu(device, &gpu));
    const int64_t room = gpu->shared_bytes > 0 ? gpu->shared_bytes : EJKI_CUDA_SHARED_BYTES;
    tiling t = {.warps = parameters[0] >= 8   ? 8
                         : parameters[0] >= 4 ? 4
                                              : ejki_min(parameters[0], 2),
                .halves = p->queries * p->group > 8 ? 2 : 1,
                .stages = parameters[1]};
    /* Two blocks of keys and the sums have to fit the registers of a thread. */
    t.direct = t.stages == 1 && t.halves == 1 && ejki_max(p->head_dim, p->value_dim) <= 128;
    while (t.stages > 1 && t.warps * t.stages * stage_bytes(p) > room) t.stages--;
    while (t.warps > 1 && ejki_max(t.warps * stage_bytes(p), left_bytes(p, &t)) > room)
        t.warps /= 2;
    t.shared_bytes = ejki_max(t.warps * t.stages * stage_bytes(p), left_bytes(p, &t));
    /* Blocks that fit together, each with the KiB that the system takes; registers for more are not asked for. */
    t.resident = ejki_max(1, ejki_min(room / (t.shared_bytes + 1024), 8 / t.warps));
    t.split_keys = ejki_round_up(ejki_max(1, ejki_cdiv(p->keys, parameters[2])), KEYS * t.warps);
    t.splits = ejki_max(1, ejki_cdiv(p->keys, t.split_keys));
    t.overlap = t.splits > 1 && gpu->capability >= 90;
    *out = t;
    return EJK_OK;
}

static bool applicable(const void *problem) {
    const ejki_flash_problem *p = problem;
    return ejki_flash_cuda_fits(p) && p->layout == EJKI_FLASH_DENSE &&
           ejki_block_mask_is_empty(&p->block_mask) && !p->positions.given && p->queries > 0 &&
           p->queries * p->group <= MOST_ROWS && p->head_dim > 0 && p->head_dim % 32 == 0 &&
           p->value_dim > 0 && p->value_dim % 64 == 0 && p->head_dim <= 256 &&
           p->value_dim <= 256 && !p->has_bias && !p->has_mask && !p->has_segments &&
           p->dropout <= 0;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)threads;
    const ejki_flash_problem *p = problem;
    tiling t;
    EJKI_TRY(tiling_of(p, parameters, launch->device, &t));
    const int64_t rows = ejki_flash_cuda_rows(p);
    int64_t bytes = 0;
    const bool counted = ejki_mul(rows, t.splits, &bytes) &&
                         ejki_mul(bytes, (p->value_dim + 2) * (int64_t)sizeof(float), &bytes);
    if (!counted || rows > INT32_MAX || t.splits > 65535)
        return ejki_fail(EJK_STATUS_OVERFLOW,
                         "%lld parts of %lld rows are more than a GPU's grid can count",
                         (long long)t.splits, (long long)rows);
    launch->workspace_bytes = t.splits > 1 ? (size_t)bytes : 0;
    ejki_cuda_constants constants = ejki_flash_cuda_constants_of(p);
    ejki_cuda_add(&constants, "WARPS", t.warps);
    ejki_cuda_add(&constants, "STAGES", t.stages);
    ejki_cuda_add(&constants, "DIRECT", t.direct);
    ejki_cuda_add(&constants, "HALVES", t.halves);
    ejki_cuda_add(&constants, "RESIDENT", t.resident);
    ejki_cuda_add(&constants, "FOLDED", (float)p->scale > 0 && p->soft_cap <= 0);
    ejki_cuda_add(&constants, "OVERLAP", t.overlap);
    EJKI_TRY(ejki_cuda_ready(launch, MAIN, "operations/attention/cuda/sm80/decode.cu", "decode",
                             &constants));
    if (t.splits == 1) return EJK_OK;
    EJKI_TRY(ejki_cuda_ready(launch, JOIN, "operations/attention/cuda/sm80/decode.cu", "join",
                             &constants));
    return EJK_OK;
}

static ejki_cuda_decode_problem problem_of(const ejki_flash_problem *f, const tiling *t) {
    const ejki_cuda_problem p = ejki_flash_cuda_problem_of(f);
    return (ejki_cuda_decode_problem){
        .key = p.key,
        .value = p.value,
        .query = p.query,
        .queries = p.queries,
        .keys = p.keys,
        .kv_heads = p.kv_heads,
        .group = p.group,
        .splits = (int)t->splits,
        .split_keys = (int)t->split_keys,
        .scale = p.scale,
        .soft_cap = p.soft_cap,
        .first_offset = p.first_offset,
        .last_offset = p.last_offset,
        .out = p.out,
        .batch = p.batch,
        .normalize = p.normalize,
        .sink_count = p.sink_count,
        .sink_group = p.sink_group,
        .sinks = p.sinks,
        .sink_stride_h = p.sink_stride_h,
        .lse = p.lse,
        .row_max = p.row_max,
        .row_sum = p.row_sum,
    };
}

static ejk_status run(const ejk_run *run) {
    const ejki_flash_problem *p = run->problem;
    const int64_t rows = ejki_flash_cuda_rows(p);
    tiling t;
    if (rows == 0) return EJK_OK;
    EJKI_TRY(ejki_flash_cuda_check_aligned(p));
    EJKI_TRY(tiling_of(p, run->parameters, run->device, &t));
    ejki_cuda_decode_problem problem = problem_of(p, &t);
    problem.parts = run->workspace;
    const ejki_cuda_work work = {.slot = MAIN,
                                 .blocks = p->kv_heads * p->batch,
                                 .splits = t.splits,
                                 .threads = (int32_t)t.warps * 32,
                                 .shared_bytes = t.shared_bytes};
    EJKI_TRY(ejki_cuda_begin(run, &work, &problem));
    if (t.splits == 1) return EJK_OK;
    const ejki_cuda_work join = {
        .slot = JOIN, .blocks = rows, .splits = 1, .threads = 32, .overlaps = t.overlap};
    return ejki_cuda_begin(run, &join, &problem);
}

static const ejk_parameter parameters[] = {
    {"num_warps", 1, 8, 1, 8, "warps of a GPU block: 1, 2, 4 or 8"},
    {"num_stages", 1, 8, 1, 3,
     "blocks of 16 keys that a warp has in shared memory; 1 = two in registers, if they suffice"},
    {"num_key_splits", 1, 65535, 1, 1, "KV splits, combined at the end"},
};

static const char needs[] = "1 to 16 rows of a KV head, head_dim a multiple of 32, that of values "
                            "of 64, up to 256, and no bias, mask, segment "
                            "ids, positions, packed sequences or dropout";

EJKI_DECLARE(flash_attention_decode_cuda, .version = 1, .priority = 30, .parameters = parameters,
             .suggest = ejki_sm80_suggest_decode, .parameter_count = 3, .applicable = applicable,
             .needs = needs, .prepare = prepare, .run = run)
