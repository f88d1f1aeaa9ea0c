/* SPDX-License-Identifier: Apache-2.0 */
/* The chunked form on GPUs: launches of chunk_prepare.cu or chunk_prepare_key.cu, and chunk_scan.cu. */
#include "operations/recurrent/cuda/chunk.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/recurrent/cuda/plan.h"

enum { PREPARE, SCAN };
/* As chunk_prepare.cu and rows of chunk_scan.cu have them. */
enum { PREPARE_THREADS = 128, PITCH = REC_CHUNK + 4, REST = 32 };

/* Pieces of what is multiplied: a state after the last token has the precision of floats. */
static int64_t pieces_of(const rec_problem *p) {
    return p->view[REC_FINAL].present ? 3 : 1;
}

/* How a scan is laid out: warps that share 16 columns, all of a block, chunks in shared memory at once. */
typedef struct layout {
    int64_t parts, warps, columns, stages;
} layout;

static layout layout_with(const rec_problem *p, int64_t parts) {
    layout l = {.parts = parts, .warps = 4, .stages = 1};
    while (p->value_size % (16 * l.warps / parts)) l.warps /= 2;
    l.columns = 16 * l.warps / parts;
    return l;
}
static int64_t scan_blocks(const rec_problem *p, const layout *l) {
    return p->sequences * p->heads * (p->value_size / l->columns);
}

static int64_t tile_bytes(int64_t columns) {
    return REC_CHUNK * ejki_round_up(columns, 64) * 2;
}
static int64_t prepare_bytes(const rec_problem *p) {
    const int64_t tiles = 2 * tile_bytes(p->key_size), inverse = REC_CHUNK * PITCH * 4;
    const int64_t rows = REC_CHUNK * (PITCH + 4) * 4;
    const int64_t gates = p->key_decay
                              ? (REC_CHUNK * (p->key_size + 4) + 10 * p->key_size + 4 * 16 * 17) * 4
                              : REC_CHUNK * (8 + 4);
    return ejki_max(tiles, inverse) + rows + gates;
}
static int64_t factor_floats(const rec_problem *p) {
    return p->key_decay ? p->key_size : REC_FACTOR_ROWS * REC_CHUNK;
}
static int64_t block_bytes(const rec_problem *p) {
    return (p->update == REC_DELTA ? pieces_of(p) + 1 : 1) * REC_TILES * REC_TILE_BYTES;
}
static int64_t stage_bytes(const rec_problem *p, const layout *l) {
    return (p->key_decay ? 3 : 2) * tile_bytes(p->key_size) + tile_bytes(l->columns) +
           block_bytes(p) + 4 * factor_floats(p);
}
static int64_t scan_bytes(const rec_problem *p, const layout *l) {
    const int64_t sums = l->parts > 1 ? l->warps * 2 * 8 * 512 : 0;
    return l->stages * stage_bytes(p, l) + sums;
}

/*
 * A warp has 128 rows of the state, as many as registers hold, or 64 where there are too few blocks for all
 * multiprocessors otherwise, or where products have several pieces. The next chunk is in shared memory, too, where two
 * blocks of a multiprocessor have room for it, or the only one. Bits depend on none of this.
 */
static ejk_status layout_of(const rec_problem *p, int32_t device, layout *out) {
    const ejk_gpu_info *gpu;
    EJKI_TRY(ejki_cuda_gpu(device, &gpu));
    layout l = layout_with(p, 1);
    if (p->key_size == 256 || pieces_of(p) > 1 || scan_blocks(p, &l) < gpu->multiprocessors)
        l = layout_with(p, p->key_size / 64);
    const int64_t resident = scan_blocks(p, &l) <= gpu->multiprocessors ? 1 : 2;
    l.stages = 2;
    if (resident * scan_bytes(p, &l) > gpu->shared_bytes) l.stages = 1;
    *out = l;
    return EJK_OK;
}

/* Memory of a call. */
static int64_t inverse_bytes(const rec_problem *p) {
    if (p->update != REC_DELTA) return 0;
    return rec_chunks(p) * p->heads * pieces_of(p) * REC_TILES * REC_TILE_BYTES;
}
static int64_t score_bytes(const rec_problem *p) {
    return rec_chunks(p) * p->heads * REC_TILES * REC_TILE_BYTES;
}
static int64_t operand_bytes(const rec_problem *p) {
    return p->key_decay ? rec_chunks(p) * p->heads * 3 * REC_CHUNK * p->key_size * 2 : 0;
}
static int64_t factor_bytes(const rec_problem *p) {
    return rec_chunks(p) * p->heads * factor_floats(p) * (int64_t)sizeof(float);
}

static bool applicable(const void *problem) {
    const rec_problem *p = problem;
    const bool is_bf16 = p->view[REC_QUERY].dtype == EJK_DTYPE_BF16 &&
                         p->view[REC_KEY].dtype == EJK_DTYPE_BF16 &&
                         p->view[REC_VALUE].dtype == EJK_DTYPE_BF16;
    const bool is_plain = !rec_cuda_by_step(p) && p->update != REC_RANK_ONE &&
                          p->read == REC_AFTER && !p->value_decay && !p->view[REC_SEGMENTS].present;
    /* Operands with decays of elements are rounded, which a state in floats must not see. */
    const bool is_exact = !p->key_decay || pieces_of(p) == 1;
    const bool has_size =
        p->key_size == 64 || p->key_size == 128 || (p->key_size == 256 && !p->key_decay);
    return is_bf16 && is_plain && is_exact && has_size && p->value_size >= 16 &&
           p->value_size % 16 == 0 && p->tokens < INT32_MAX - REC_CHUNK &&
           rec_chunks(p) * p->heads < INT32_MAX &&
           p->sequences * p->heads * p->value_size < INT32_MAX - REST;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const rec_problem *p = problem;
    layout l;
    ejki_cuda_constants first = {.count = 0};
    ejki_cuda_kernels kernels = {.count = 0};
    (void)parameters;
    (void)threads;
    EJKI_TRY(layout_of(p, launch->device, &l));
    ejki_cuda_add(&first, "ELEMENT", EJK_DTYPE_BF16);
    ejki_cuda_add(&first, "KEY_SIZE", p->key_size);
    ejki_cuda_add(&first, "UPDATE", p->update);
    ejki_cuda_add(&first, "TERMS", pieces_of(p));
    ejki_cuda_constants scan = first;
    ejki_cuda_add(&scan, "PARTS", l.parts);
    ejki_cuda_add(&scan, "WARPS", l.warps);
    ejki_cuda_add(&scan, "KEY_DECAY", p->key_decay);
    ejki_cuda_add(&scan, "STAGES", l.stages);
    ejki_cuda_add(&scan, "REST", REST);
    if (p->key_decay)
        ejki_cuda_want(&kernels, PREPARE, "operations/recurrent/cuda/chunk_prepare_key.cu",
                       "prepare_key", &first);
    else
        ejki_cuda_want(&kernels, PREPARE, "operations/recurrent/cuda/chunk_prepare.cu", "prepare",
                       &first);
    ejki_cuda_want(&kernels, SCAN, "operations/recurrent/cuda/chunk_scan.cu", "scan", &scan);
    launch->workspace_bytes =
        (size_t)(inverse_bytes(p) + score_bytes(p) + operand_bytes(p) + factor_bytes(p));
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status run(const ejk_run *run) {
    const rec_problem *p = run->problem;
    EJKI_TRY(rec_cuda_check(p));
    layout l;
    EJKI_TRY(layout_of(p, run->device, &l));
    char *scores = (char *)run->workspace + inverse_bytes(p), *operands = scores + score_bytes(p);
    rec_chunked a = {.p = *p,
                     .inverses = run->workspace,
                     .scores = scores,
                     .operands = operands,
                     .factors = (float *)(void *)(operands + operand_bytes(p)),
                     .chunks = rec_chunks(p)};
    const ejki_cuda_work first = {.slot = PREPARE,
                                  .threads = PREPARE_THREADS,
                                  .blocks = rec_chunks(p) * p->heads,
                                  .shared_bytes = prepare_bytes(p)};
    const ejki_cuda_work scan = {.slot = SCAN,
                                 .threads = (int32_t)(32 * l.warps),
                                 .blocks = scan_blocks(p, &l) + (p->packed ? REST : 0),
                                 .shared_bytes = scan_bytes(p, &l)};
    EJKI_TRY(ejki_cuda_begin(run, &first, &a));
    return ejki_cuda_begin(run, &scan, &a);
}

EJKI_DECLARE(recurrent_attention_chunk_cuda, .version = 1, .priority = 1, .applicable = applicable,
             .prepare = prepare, .run = run,
             .needs =
                 "sums or delta rules without decays of values or segments, Dk 64, 128 or 256, "
                 "Dv a multiple of 16; with decays of keys Dk up to 128 and no final state")
