/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block-sparse attention forward: the implementations of flash attention that know patterns, once the grids
 * have been looked at. Nothing is written before that.
 */
#include "kernels/blocksparse_attention/problem.h"

#include <ejkernel/registry.h>

#include "base/base.h"

static const ejk_parameter parameters[] = {
    {"q_blocksize", 1, 65536, 1, 256, "query rows of a task, at most those of a block"},
    {"kv_blocksize", 1, 512, 1, 256, "keys packed at a time, at most those of a block"},
};

/* On AMX blocks are packed together, so many that lie apart as well as a part of one. */
#if defined(__x86_64__)
static const ejk_parameter matrix_parameters[] = {
    {"q_blocksize", 1, 65536, 1, 1024, "query rows of a task, at most those of a block"},
    {"kv_blocksize", 1, 2048, 1, 1024, "keys packed at a time, of one or more blocks"},
};
#endif

static ejk_status prepare_with(const ejk_implementation *dense, const void *problem,
                               const int64_t *values, int32_t threads, ejk_launch *launch) {
    return dense->prepare(problem, values, threads, launch);
}

static ejk_status run_with(const ejk_implementation *dense, const ejk_run *run) {
    const ejki_flash_problem *p = run->problem;
    EJKI_TRY(ejki_pattern_check(p, &p->pattern));
    return dense->run(run);
}

<<<<<<< HEAD
#define SPARSE_OPERATION           "blocksparse_attention"
#define SPARSE_KIND                "tile"
#define SPARSE_TILE(element, name) element##_##name##_tile
#define SPARSE_MATRIX              bf16_amx_tile
#define SPARSE_REFERENCE(element)  element##_reference
#include "kernels/blocksparse_attention/implementations_body.h"
=======
#define BLOCKSPARSE(symbol, id, tier, element, technology, hardware, list, count)                  \
    extern const ejk_implementation ejki_flash_attention_##symbol;                                 \
    static ejk_status prepare_##symbol(const void *problem, const int64_t *values,                 \
                                       int32_t threads, ejk_launch *launch) {                      \
        return ejki_flash_attention_##symbol.prepare(problem, values, threads, launch);            \
    }                                                                                              \
    static ejk_status run_##symbol(const ejk_run *run) {                                           \
        return run_checked(&ejki_flash_attention_##symbol, run);                                   \
    }                                                                                              \
    extern const ejk_implementation ejki_blocksparse_attention_##symbol;                           \
    const ejk_implementation ejki_blocksparse_attention_##symbol = {                               \
        .algorithm = "blocksparse_attention",                                                      \
        .name = id,                                                                                \
        .platform = EJK_PLATFORM_##technology,                                                     \
        .backend = EJK_BACKEND_##hardware,                                                         \
        .isa = EJK_ISA_##tier,                                                                     \
        .dtype = EJK_DTYPE_##element,                                                              \
        .version = 1,                                                                              \
        .parameters = list,                                                                        \
        .parameter_count = count,                                                                  \
        .prepare = prepare_##symbol,                                                               \
        .run = run_##symbol,                                                                       \
    };

#define TILE(tier, name, element, type)                                                            \
    BLOCKSPARSE(element##_##name##_tile, #element "/" #name "/tile", tier, type, SIMD, CPU,        \
                parameters, 2)
#define TILES(tier, name)                                                                          \
    TILE(tier, name, f32, F32) TILE(tier, name, bf16, BF16) TILE(tier, name, f16, F16)
#define REFERENCE(symbol, id, element)                                                             \
    BLOCKSPARSE(symbol, id, SCALAR, element, REFERENCE, ANY, NULL, 0)

#if defined(__x86_64__)
    BLOCKSPARSE(bf16_amx_tile, "bf16/amx/matrix", AMX, BF16, SIMD, CPU, amx_parameters, 2)
        TILES(AVX512, avx512) TILES(AVX2, avx2)
#elif defined(__aarch64__)
    TILES(NEON, neon)
#endif
            TILES(SCALAR, scalar) REFERENCE(f32_reference, "f32/reference", F32)
                REFERENCE(f64_reference, "f64/reference", F64)
                    REFERENCE(bf16_reference, "bf16/reference", BF16)
                        REFERENCE(f16_reference, "f16/reference", F16)
>>>>>>> wt-amxfwd
