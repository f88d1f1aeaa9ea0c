/* SPDX-License-Identifier: Apache-2.0 */
/* What the launchers of this folder share: problems as kernels take them, constants, and tiles. */
#ifndef EJKI_CUDA_LAUNCH_H
#define EJKI_CUDA_LAUNCH_H

#include <ejkernel/registry.h>

#include "base/base.h"
#include "device/cuda.h"
#include "kernels/cuda/problem.cuh"
#include "operations/attention/flash/vjp_problem.h"

/* Shared memory that a block may have on every GPU from sm_80 up. */
enum { EJKI_CUDA_SHARED_BYTES = 99 * 1024 };

/* What a kernel is compiled for. */
typedef struct ejki_cuda_constants {
    ejki_cuda_constant list[32];
    int32_t count;
} ejki_cuda_constants;

void ejki_cuda_add(ejki_cuda_constants *constants, const char *name, int64_t value);

/* Those of base.cuh, the pattern's included. */
ejki_cuda_constants ejki_cuda_constants_of(const ejki_flash_problem *p);

/* Sizes that the kernels' 32-bit numbers hold. */
bool ejki_cuda_fits(const ejki_flash_problem *p);

/* Rows of all heads, those of the tensors. */
int64_t ejki_cuda_rows(const ejki_flash_problem *p);

/* Entries of the batch axis. */
int64_t ejki_cuda_entries(const ejki_flash_problem *p);

/* Tiles of `size` of `times` rows for each of `tokens` tokens; for packed sequences as many as there can be. */
int64_t ejki_cuda_tiles(const ejki_flash_problem *p, int64_t tokens, int64_t times, int64_t size);

/* Blocks of the grid for so many tiles. */
int64_t ejki_cuda_blocks(const ejki_flash_problem *p, int64_t tiles);

/* All but tiles and parts of keys. */
ejki_cuda_problem ejki_cuda_problem_of(const ejki_flash_problem *p);

/* ---- Patterns: pattern.c -------------------------------------------------------------------------------- */

/* Adds what a pattern and positions are to the constants; the same for a problem, with cells made by the below. */
void ejki_cuda_add_pattern(ejki_cuda_constants *constants, const ejki_flash_problem *p);
ejki_cuda_pattern ejki_cuda_pattern_of(const ejki_flash_problem *p, int *cells);

/* Offsets of visible keys, narrowed by a predicate that goes by indices. */
int64_t ejki_cuda_first_offset(const ejki_flash_problem *p);
int64_t ejki_cuda_last_offset(const ejki_flash_problem *p);

/* Bytes of the cells of a problem, a multiple of 256; 0 = it has none, -1 = more than can be counted. */
int64_t ejki_cuda_cell_bytes(const ejki_flash_problem *p);

/* Compiles what makes cells of grids, if there are any; launches it. */
ejk_status ejki_cuda_ready_cells(ejk_launch *launch, int32_t place, const ejki_flash_problem *p);
ejk_status ejki_cuda_begin_cells(const ejk_run *run, int32_t place, const ejki_flash_problem *p,
                                 int *cells);

/* INVALID_LAYOUT as below, of the arrays of a pattern. */
ejk_status ejki_cuda_check_pattern(const ejki_flash_problem *p);

/* ---- Launches ------------------------------------------------------------------------------------------- */

/* INVALID_LAYOUT if a pointer is not a multiple of its element's size, which a GPU needs. */
ejk_status ejki_cuda_check_aligned(const ejki_flash_problem *p);
ejk_status ejki_cuda_check_address(const void *data, int64_t size, const char *name);

/* Compiles `entry` of a text into a place of what is prepared. */
ejk_status ejki_cuda_ready(ejk_launch *launch, int32_t place, const char *text, const char *entry,
                           const ejki_cuda_constants *constants);

/* The same for several, whose texts are compiled side by side. */
enum { EJKI_CUDA_MOST_KERNELS = 8 };
typedef struct ejki_cuda_kernels {
    struct {
        int32_t place;
        const char *text, *entry;
        ejki_cuda_constants constants;
    } list[EJKI_CUDA_MOST_KERNELS];
    int32_t count;
} ejki_cuda_kernels;
void ejki_cuda_want(ejki_cuda_kernels *kernels, int32_t place, const char *text, const char *entry,
                    const ejki_cuda_constants *constants);
ejk_status ejki_cuda_ready_all(ejk_launch *launch, const ejki_cuda_kernels *kernels);

/* Launches it with one argument. */
typedef struct ejki_cuda_work {
    int32_t place, threads;
    int64_t blocks, splits; /* of the grid */
    int64_t shared_bytes;
    bool overlaps; /* as ejki_cuda_launch has it */
} ejki_cuda_work;
ejk_status ejki_cuda_begin(const ejk_run *run, const ejki_cuda_work *work, void *argument);

/* The members that all implementations of these kernels share, and others behind them. */
#define EJKI_CUDA_IMPLEMENTATION(symbol, of, text, element, ...)                                   \
    extern const ejk_implementation symbol;                                                        \
    const ejk_implementation symbol = {.algorithm = of,                                            \
                                       .name = text,                                               \
                                       .platform = EJK_PLATFORM_CUDA,                              \
                                       .backend = EJK_BACKEND_GPU,                                 \
                                       .dtype = element,                                           \
                                       .version = 1,                                               \
                                       __VA_ARGS__}

#endif
