/* SPDX-License-Identifier: Apache-2.0 */
/* What the launchers of gradients share. */
#ifndef EJKI_CUDA_VJP_LAUNCH_H
#define EJKI_CUDA_VJP_LAUNCH_H

#include "operations/attention/cuda/common/launch.h"

/* What is prepared. */
enum {
    EJKI_CUDA_DELTA,
    EJKI_CUDA_SINKS,
    EJKI_CUDA_QUERY,
    EJKI_CUDA_KEYS,
    EJKI_CUDA_VALUES,
    EJKI_CUDA_BIAS,
    EJKI_CUDA_BLOCK_MASK,
    EJKI_CUDA_SM90,
    EJKI_CUDA_ROUND,
};

/* Of the kernels over rows and over keys. */
typedef struct ejki_cuda_vjp_tiling {
    int64_t rows, keys; /* of a tile of either */
    int64_t row_threads, key_threads;
    int64_t row_bytes, key_bytes; /* of shared memory */
    bool two_passes;              /* d_key and d_value by launches of their own */
} ejki_cuda_vjp_tiling;

/* All but memory. */
ejki_cuda_vjp_problem ejki_cuda_vjp_problem_of(const ejki_flash_vjp_problem *v,
                                               const ejki_cuda_vjp_tiling *t);

ejk_status ejki_cuda_vjp_check_aligned(const ejki_flash_vjp_problem *v);

/* Launches, but nothing for an empty grid. */
ejk_status ejki_cuda_vjp_begin(const ejk_run *run, int32_t slot, int64_t blocks, int64_t columns,
                               int64_t threads, int64_t bytes, ejki_cuda_vjp_problem *problem);

/* δ and shifts; the gradient of sinks; those of query, key and value by grids of at most so many blocks. */
ejk_status ejki_cuda_vjp_delta(const ejk_run *run, ejki_cuda_vjp_problem *problem);
ejk_status ejki_cuda_vjp_sinks(const ejk_run *run, ejki_cuda_vjp_problem *problem);
ejk_status ejki_cuda_vjp_products(const ejk_run *run, const ejki_cuda_vjp_tiling *t, int64_t most,
                                  ejki_cuda_vjp_problem *problem);

/*
 * The mma implementation, which also serves sm_90. With `recomputes` its kernels can be launched for all tiles by a
 * few CTAs, which check whether there is anything to do; that costs registers. Kernels and workspace are asked for
 * here.
 */
ejk_status ejki_cuda_vjp_mma_want(const ejki_flash_vjp_problem *v, const int64_t *parameters,
                                  bool recomputes, ejk_launch *launch, ejki_cuda_kernels *kernels);
ejk_status ejki_cuda_vjp_mma_run(const ejk_run *run);
ejki_cuda_vjp_tiling ejki_cuda_vjp_mma_tiling(const ejki_flash_vjp_problem *v,
                                              const int64_t *parameters);

/* The plain implementations in float32, for operations that make such a problem of theirs. */
extern const ejk_implementation ejki_flash_attention_f32_cuda_plain;
extern const ejk_implementation ejki_flash_attention_vjp_f32_cuda_plain;

#endif
