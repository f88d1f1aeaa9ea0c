/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradients of block-sparse attention: those of flash attention that know patterns. Keys and values may have
 * a grid of their own. Where it hides what the other one hides, as grids of one mask do, tiles compute all
 * gradients in one pass; else, and in the reference, a second pass reads it.
 */
#include "kernels/blocksparse_attention/problem.h"

#include <ejkernel/registry.h>

#include "base/base.h"

/* ---- Whether two grids say the same ----------------------------------------------------------------- */

static const uint8_t *element_of(const ejki_pattern *p, const uint8_t *block, int64_t a,
                                 int64_t b) {
    return block + (p->by_column ? b * p->block_row + a : a * p->block_row + b);
}

static bool same_elements(const ejki_pattern *p, const uint8_t *block, const ejki_pattern *q,
                          const uint8_t *other) {
    for (int64_t a = 0; a < p->block_q; a++)
        for (int64_t b = 0; b < p->block_kv; b++)
            if ((*element_of(p, block, a, b) != 0) != (*element_of(q, other, a, b) != 0))
                return false;
    return true;
}

static bool same_sizes(const ejki_pattern *p, const ejki_pattern *q) {
    return p->planes == q->planes && p->block_q == q->block_q && p->block_kv == q->block_kv;
}

static int64_t count_cells(const ejki_pattern *p) {
    int64_t count = 0;
    for (int64_t plane = 0; plane < p->planes; plane++)
        for (int64_t row = 0; row < p->rows; row++)
            for (int64_t column = 0; column < p->columns; column++)
                count += ejki_grid_at(&p->state, plane, row, column) != 0;
    return count;
}

/* Pairs of partial blocks that were found to be equal lately; masks have few distinct ones. */
enum { REMEMBERED = 64 };
typedef struct memory {
    const uint8_t *block[REMEMBERED], *other[REMEMBERED];
} memory;

static bool same_cell(memory *m, const ejki_pattern *p, ejki_cell cell, const ejki_pattern *q,
                      ejki_cell other) {
    if (cell.state != other.state || (cell.block == NULL) != (other.block == NULL)) return false;
    if (cell.block == NULL) return true;
    const int64_t at = (cell.block - p->blocks) / ejki_max(1, p->block_stride) % REMEMBERED;
    if (m->block[at] == cell.block && m->other[at] == other.block) return true;
    if (!same_elements(p, cell.block, q, other.block)) return false;
    m->block[at] = cell.block;
    m->other[at] = other.block;
    return true;
}

/* p goes by rows, q by columns; their predicates are the same. */
static bool same_pattern(const ejki_pattern *p, const ejki_pattern *q) {
    if (!same_sizes(p, q) || count_cells(p) != count_cells(q)) return false;
    memory remembered = {{NULL}, {NULL}};
    for (int64_t plane = 0; plane < p->planes; plane++)
        for (int64_t row = 0; row < p->rows; row++)
            for (int64_t at = ejki_pattern_seek(p, plane, row, 0); at < p->columns;
                 at = ejki_pattern_seek(p, plane, row, at + 1)) {
                const int64_t column = ejki_grid_at(&p->next, plane, row, at);
                if (!same_cell(&remembered, p, ejki_pattern_cell(p, plane, row, at), q,
                               ejki_pattern_find(q, plane, row, column)))
                    return false;
            }
    return true;
}

/* ---- Passes ------------------------------------------------------------------------------------------ */

/* The gradients that the grid of queries decides, and those that the one of keys does. */
static ejki_flash_vjp_problem part_of_queries(const ejki_blocksparse_vjp_problem *v) {
    ejki_flash_vjp_problem part = v->flash;
    part.wants_key = part.wants_value = false;
    return part;
}
static ejki_flash_vjp_problem part_of_keys(const ejki_blocksparse_vjp_problem *v) {
    ejki_flash_vjp_problem part = v->flash;
    part.forward.pattern = v->keys;
    part.wants_query = part.wants_bias = part.wants_sinks = false;
    return part;
}

static ejk_status run_part(const ejk_implementation *dense, const ejk_run *run,
                           const ejki_flash_vjp_problem *part) {
    ejk_run own = *run;
    own.problem = part;
    return dense->run(&own);
}

static ejk_status run_checked(const ejk_implementation *dense, const ejk_run *run) {
    const ejki_blocksparse_vjp_problem *v = run->problem;
    EJKI_TRY(ejki_pattern_check(&v->flash.forward, &v->flash.forward.pattern));
    if (v->keys.planes == 0) return run_part(dense, run, &v->flash);
    EJKI_TRY(ejki_pattern_check(&v->flash.forward, &v->keys));
    if (dense->platform == EJK_PLATFORM_SIMD && same_pattern(&v->flash.forward.pattern, &v->keys))
        return run_part(dense, run, &v->flash);
    ejki_flash_vjp_problem part = part_of_queries(v);
    if (part.wants_query || part.wants_bias || part.wants_sinks)
        EJKI_TRY(run_part(dense, run, &part));
    part = part_of_keys(v);
    return part.wants_key || part.wants_value ? run_part(dense, run, &part) : EJK_OK;
}

static bool applies(const ejk_implementation *dense, const void *problem) {
    const ejki_blocksparse_vjp_problem *v = problem;
    return !dense->applicable || dense->applicable(&v->flash);
}

/* Memory and workers that serve whichever passes there will be: entries decide, and may change. */
static ejk_status prepare_all(const ejk_implementation *dense, const void *problem,
                              const int64_t *values, int32_t threads, ejk_launch *launch) {
    const ejki_blocksparse_vjp_problem *v = problem;
    EJKI_TRY(dense->prepare(&v->flash, values, threads, launch));
    if (v->keys.planes == 0) return EJK_OK;
    const ejki_flash_vjp_problem parts[] = {v->flash, part_of_queries(v), part_of_keys(v)};
    int32_t workers = threads;
    for (int i = 0; i < 3; i++) {
        EJKI_TRY(dense->prepare(&parts[i], values, workers, launch));
        workers = launch->workers;
    }
    size_t bytes = 0;
    for (int i = 0; i < 3; i++) {
        EJKI_TRY(dense->prepare(&parts[i], values, workers, launch));
        if (launch->workspace_bytes > bytes) bytes = launch->workspace_bytes;
    }
    launch->workspace_bytes = bytes;
    return EJK_OK;
}

static const ejk_parameter parameters[] = {
    {"q_blocksize", 1, 512, 1, 96, "query rows beside a block of keys, at most those of a block"},
    {"kv_blocksize", 1, 512, 1, 256, "keys of a task, at most those of a block"},
};

static const ejk_parameter matrix_parameters[] = {
    {"q_blocksize", 1, 512, 1, 128, "query rows beside a block of keys; several blocks may be"},
    {"kv_blocksize", 1, 2048, 1, 512, "keys of a task; several blocks may be"},
};

#define BACKWARD(symbol, id, tier, element, technology, hardware, list, count, preferred)          \
    extern const ejk_implementation ejki_flash_attention_vjp_##symbol;                             \
    static ejk_status prepare_##symbol(const void *problem, const int64_t *values,                 \
                                       int32_t threads, ejk_launch *launch) {                      \
        return prepare_all(&ejki_flash_attention_vjp_##symbol, problem, values, threads, launch);  \
    }                                                                                              \
    static bool applies_##symbol(const void *problem) {                                            \
        return applies(&ejki_flash_attention_vjp_##symbol, problem);                               \
    }                                                                                              \
    static ejk_status run_##symbol(const ejk_run *run) {                                           \
        return run_checked(&ejki_flash_attention_vjp_##symbol, run);                               \
    }                                                                                              \
    extern const ejk_implementation ejki_blocksparse_attention_vjp_##symbol;                       \
    const ejk_implementation ejki_blocksparse_attention_vjp_##symbol = {                           \
        .algorithm = "blocksparse_attention_vjp",                                                  \
        .name = id,                                                                                \
        .platform = EJK_PLATFORM_##technology,                                                     \
        .backend = EJK_BACKEND_##hardware,                                                         \
        .isa = EJK_ISA_##tier,                                                                     \
        .dtype = EJK_DTYPE_##element,                                                              \
        .priority = preferred,                                                                     \
        .version = 1,                                                                              \
        .parameters = list,                                                                        \
        .parameter_count = count,                                                                  \
        .applicable = applies_##symbol,                                                            \
        .prepare = prepare_##symbol,                                                               \
        .run = run_##symbol,                                                                       \
    };

#define TILE(tier, name, element, type)                                                            \
    BACKWARD(element##_##name, #element "/" #name "/vjp", tier, type, SIMD, CPU, parameters, 2, 0)
#define TILES(tier, name)                                                                          \
    TILE(tier, name, f32, F32) TILE(tier, name, bf16, BF16) TILE(tier, name, f16, F16)
#define REFERENCE(symbol, id, element)                                                             \
    BACKWARD(symbol, id, SCALAR, element, REFERENCE, ANY, NULL, 0, 0)

#if defined(__x86_64__)
BACKWARD(bf16_amx, "bf16/amx/matrix", AMX, BF16, SIMD, CPU, matrix_parameters, 2, 5)
TILES(AVX512, avx512)
TILES(AVX2, avx2)
#elif defined(__aarch64__)
TILES(NEON, neon)
#endif
TILES(SCALAR, scalar)
REFERENCE(f32_reference, "f32/reference", F32)
REFERENCE(f64_reference, "f64/reference", F64)
REFERENCE(bf16_reference, "bf16/reference", BF16)
REFERENCE(f16_reference, "f16/reference", F16)
