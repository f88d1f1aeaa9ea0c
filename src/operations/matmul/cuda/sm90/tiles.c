/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by tiles.cu: what it takes, and launches. */
#include "operations/matmul/cuda/fast.h"
#include "operations/matmul/cuda/sm90/maps.h"

static const char text[] = "operations/matmul/cuda/sm90/tiles.cu";

enum {
    TILE_ROWS = 128,
    TILE_COLUMNS = 256, /* of b */
    THREADS = 384,
    SHARED_BYTES = 4 * 6 * 8192 + 4096, /* stages, and barriers, tiles and the order of groups */
};

/* As the kernel has them. */
typedef struct tiles_arguments {
    mm_product p;
    ejki_cuda_map a, b;
} tiles_arguments;

/* ---- Tiles ------------------------------------------------------------------------------------------- */

/* Where rows are dealt out, the most that there can be. */
static double tiles_of(const mm_product *p) {
    const double columns = (double)ejki_cdiv(mm_columns_of_b(p), TILE_COLUMNS);
    if (p->split == MM_ROWS)
        return (double)(p->rows / TILE_ROWS + ejki_min(p->groups + 1, p->rows)) * columns;
    return (double)(p->split == MM_DEPTH ? p->held : p->groups) *
           (double)ejki_cdiv(p->rows, TILE_ROWS) * columns;
}

/* ---- Plans ------------------------------------------------------------------------------------------- */

static bool takes(const mm_product *p) {
    return p->has_out && ejki_mm_sm90_takes(p) && !p->gather.present && tiles_of(p) < 0x1p40;
}

static void want(const mm_product *p, int32_t n, ejki_cuda_kernels *kernels) {
    ejki_cuda_constants constants = ejki_mm_sm90_constants(p);
    ejki_cuda_add(&constants, "A_FLIPPED", p->a.flipped);
    ejki_cuda_want(kernels, MM_CUDA_OWN_SLOTS + n, text, "product", &constants);
}

static ejk_status run_tiles(const ejk_run *run, int32_t n, const mm_product *p) {
    const ejk_gpu_info *gpu;
    tiles_arguments a = {.p = p->scatter.present ? ejki_mm_cuda_rows_alone(run, p) : *p};
    EJKI_TRY(ejki_cuda_gpu(run->device, &gpu));
    EJKI_TRY(ejki_mm_sm90_maps(run->device, p, 64, &a.a, &a.b));
    const ejki_cuda_work work = {.slot = MM_CUDA_OWN_SLOTS + n,
                                 .threads = THREADS,
                                 .blocks = ejki_min((int64_t)tiles_of(p), gpu->multiprocessors),
                                 .shared_bytes = SHARED_BYTES};
    EJKI_TRY(ejki_cuda_begin(run, &work, &a));
    return p->scatter.present ? ejki_mm_cuda_scatter(run, p) : EJK_OK;
}

const ejki_mm_fast ejki_mm_tiles = {takes, want, ejki_mm_sm90_is_mapped, run_tiles};
