/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The implementations of block-sparse attention, or of its gradients: one for each of flash attention's that
 * knows patterns. Included once by the file that has, beforehand,
 *
 *     SPARSE_OPERATION            "blocksparse_attention"
 *     SPARSE_KIND                 "tile", where names of fast ones end
 *     SPARSE_TILE(element, name)  how their symbols end, both here and in flash attention
 *     SPARSE_MATRIX               that of the one on AMX
 *     SPARSE_REFERENCE(element)   those of the reference
 *     parameters                  two of them; on x86-64 also matrix_parameters, of the one on AMX
 */
#include <ejkernel/registry.h>

#define SPARSE_ENTRY(symbol, id, tier, element, technology, hardware, list, count)                 \
    extern const ejk_implementation ejki_flash_attention_##symbol;                                 \
    static bool applicable_##symbol(const void *problem) {                                         \
        const ejk_implementation *dense = &ejki_flash_attention_##symbol;                          \
        return !dense->applicable || dense->applicable(problem);                                   \
    }                                                                                              \
    static ejk_status prepare_##symbol(const void *problem, const int64_t *values,                 \
                                       int32_t threads, ejk_launch *launch) {                      \
        return ejki_flash_attention_##symbol.prepare(problem, values, threads, launch);            \
    }                                                                                              \
    static ejk_status run_##symbol(const ejk_run *run) {                                           \
        return ejki_flash_attention_##symbol.run(run);                                             \
    }                                                                                              \
    extern const ejk_implementation ejki_blocksparse_attention_##symbol;                           \
    const ejk_implementation ejki_blocksparse_attention_##symbol = {                               \
        .algorithm = SPARSE_OPERATION,                                                             \
        .name = id,                                                                                \
        .platform = EJK_PLATFORM_##technology,                                                     \
        .backend = EJK_BACKEND_##hardware,                                                         \
        .isa = EJK_ISA_##tier,                                                                     \
        .dtype = EJK_DTYPE_##element,                                                              \
        .version = 1,                                                                              \
        .parameters = list,                                                                        \
        .parameter_count = count,                                                                  \
        .applicable = applicable_##symbol,                                                         \
        .prepare = prepare_##symbol,                                                               \
        .run = run_##symbol,                                                                       \
    };

/* One more step, so that symbols are what their macros stand for before they are pasted. */
#define SPARSE_NAMED(...) SPARSE_ENTRY(__VA_ARGS__)

#define SPARSE_FAST(tier, name, element, type)                                                     \
    SPARSE_NAMED(SPARSE_TILE(element, name), #element "/" #name "/" SPARSE_KIND, tier, type, SIMD, \
                 CPU, parameters, 2)
#define SPARSE_TIER(tier, name)                                                                    \
    SPARSE_FAST(tier, name, f32, F32)                                                              \
    SPARSE_FAST(tier, name, bf16, BF16) SPARSE_FAST(tier, name, f16, F16)
#define SPARSE_PLAIN(element, type)                                                                \
    SPARSE_NAMED(SPARSE_REFERENCE(element), #element "/reference", SCALAR, type, REFERENCE, ANY,   \
                 NULL, 0)

#if defined(__x86_64__)
SPARSE_NAMED(SPARSE_MATRIX, "bf16/amx/matrix", AMX, BF16, SIMD, CPU, matrix_parameters, 2)
SPARSE_FAST(AVX512_BF16, avx512_bf16, bf16, BF16)
SPARSE_TIER(AVX512, avx512)
SPARSE_TIER(AVX2, avx2)
#elif defined(__aarch64__)
SPARSE_TIER(NEON, neon)
#endif
SPARSE_TIER(SCALAR, scalar)
SPARSE_PLAIN(f32, F32)
SPARSE_PLAIN(f64, F64)
SPARSE_PLAIN(bf16, BF16)
SPARSE_PLAIN(f16, F16)
