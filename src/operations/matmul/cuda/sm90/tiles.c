/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products by tiles.cu, of matrices and of codes: what it takes, and launches. */
#include "operations/matmul/cuda/sm90/codes.h"
#include "operations/matmul/cuda/sm90/maps.h"
#include "operations/matmul/cuda/sm90/tiles.cuh"

static const char text[] = "operations/matmul/cuda/sm90/tiles.cu";

enum {
    TILE_ROWS = 128,
    TILE_COLUMNS = 256,      /* of b */
    PROCESSORS = 132,        /* for which the width of tiles is chosen */
    CODE_TILE_COLUMNS = 128, /* with converters there are too few registers for sums of more */
    CODE_ROWS = 512, /* at most: more are worth wider tiles, for which values are made first */
    THREADS = 384,
    CONVERTER_THREADS = 256,
    BOX_LINES = 64,
    CODE_SHARED_BYTES = 6 * 4 * 8192 + TILE_CODE_BUFFERS * CODE_TILE_COLUMNS * TILE_CODE_ROW + 6144,
    SHARED_BYTES =
        5 * 5 * 8192 + 8192, /* stages, and barriers, tiles, the order of groups, biases */
};

/* ---- Tiles ------------------------------------------------------------------------------------------- */

/* Where rows are dealt out, the most that there can be. */
static double tiles_of(const mm_product *p, int64_t wide) {
    const double columns = (double)ejki_cdiv(mm_columns_of_b(p), wide);
    if (p->split == MM_ROWS)
        return (double)(p->rows / TILE_ROWS + ejki_min(p->groups + 1, p->rows)) * columns;
    return (double)(p->split == MM_DEPTH ? p->held : p->groups) *
           (double)ejki_cdiv(p->rows, TILE_ROWS) * columns;
}

/* The width of which a processor has the fewest columns, if all take one tile at most; it changes no bits. */
static int64_t columns_of(const mm_product *p) {
    if (p->split != MM_EVEN || p->gated) return TILE_COLUMNS;
    return tiles_of(p, 128) <= PROCESSORS   ? 128
           : tiles_of(p, 192) <= PROCESSORS ? 192
                                            : TILE_COLUMNS;
}

/* ---- Plans ------------------------------------------------------------------------------------------- */

static bool takes(const mm_product *p) {
    return p->has_out && ejki_mm_sm90_takes(p) && !p->gather.present &&
           tiles_of(p, TILE_COLUMNS) < 0x1p40;
}

static bool can_run(const mm_product *p) {
    return ejki_mm_sm90_is_mapped(p) &&
           !(ejki_mm_sm90_maps_added(p) && (uintptr_t)p->add.data % CODE_ALIGNMENT);
}

static void want(const mm_product *p, int32_t n, ejki_cuda_kernels *kernels) {
    ejki_cuda_constants constants = ejki_mm_sm90_constants(p);
    ejki_cuda_add(&constants, "A_FLIPPED", p->a.flipped);
    ejki_cuda_add(&constants, "COLUMNS", columns_of(p));
    ejki_cuda_add(&constants, "ADD_BOXES", ejki_mm_sm90_maps_added(p));
    ejki_cuda_add(&constants, "QUANT", 0);
    ejki_cuda_want(kernels, MM_CUDA_OWN_SLOTS + n, text, "product", &constants);
}

static ejk_status run_tiles(const ejk_run *run, int32_t n, const mm_product *p) {
    const ejk_gpu_info *gpu;
    tiles_arguments a = {.p = p->scatter.present ? ejki_mm_cuda_rows_alone(run, p) : *p};
    EJKI_TRY(ejki_cuda_gpu(run->device, &gpu));
    EJKI_TRY(ejki_mm_sm90_maps(run->device, p, 64, &a.a, &a.b));
    if (ejki_mm_sm90_maps_added(p)) EJKI_TRY(ejki_mm_sm90_map_added(run->device, p, &a.add));
    const ejki_cuda_work work = {
        .slot = MM_CUDA_OWN_SLOTS + n,
        .threads = THREADS,
        .blocks = ejki_min((int64_t)tiles_of(p, columns_of(p)), gpu->multiprocessors),
        .shared_bytes = SHARED_BYTES};
    EJKI_TRY(ejki_cuda_begin(run, &work, &a));
    return p->scatter.present ? ejki_mm_cuda_scatter(run, p) : EJK_OK;
}

/* ---- Codes ------------------------------------------------------------------------------------------- */

/* The product with values, wherever they are. */
static mm_product with_values(const mm_product *p) {
    mm_product own = *p;
    own.quant.present = 0;
    own.b = (mm_view){.row = 1,
                      .column = ejki_round_up(p->depth, CODE_ALIGNMENT),
                      .dtype = p->a.dtype,
                      .flipped = 1,
                      .present = 1};
    return own;
}

static bool takes_codes(const mm_product *p) {
    const mm_product own = with_values(p);
    const mm_quant *q = &p->quant;
    if (p->split != MM_EVEN || p->groups != 1 || p->gated || p->rows > CODE_ROWS ||
        !ejki_mm_codes_suit(p))
        return false;
    return (q->size % BOX_LINES == 0 || q->size >= p->depth) && takes(&own);
}

static void want_codes(const mm_product *p, int32_t n, ejki_cuda_kernels *kernels) {
    const mm_product own = with_values(p);
    ejki_cuda_constants constants = ejki_mm_sm90_constants(&own);
    ejki_cuda_add(&constants, "A_FLIPPED", 0);
    ejki_cuda_add(&constants, "COLUMNS", CODE_TILE_COLUMNS);
    ejki_cuda_add(&constants, "ADD_BOXES", 0);
    ejki_cuda_add(&constants, "QUANT", 1);
    ejki_cuda_add(&constants, "MODE", p->quant.mode);
    ejki_cuda_add(&constants, "BITS", p->quant.bits);
    ejki_cuda_add(&constants, "SCALE", p->quant.scale_type);
    ejki_cuda_add(&constants, "ZERO", p->quant.zero_type);
    ejki_cuda_add(&constants, "FACTOR", p->quant.has_factor);
    ejki_cuda_want(kernels, MM_CUDA_OWN_SLOTS + n, text, "product", &constants);
}

static ejk_status run_tiles_of_codes(const ejk_run *run, int32_t n, const mm_product *p) {
    const ejk_gpu_info *gpu;
    tiles_arguments a = {.p = *p};
    a.p.b.flipped = 1;
    EJKI_TRY(ejki_cuda_gpu(run->device, &gpu));
    EJKI_TRY(ejki_mm_codes_map_rows(run->device, p, BOX_LINES, &a.a));
    EJKI_TRY(ejki_mm_codes_map(run->device, p, TILE_CODE_ROW, BOX_LINES, &a.b));
    const ejki_cuda_work work = {
        .slot = MM_CUDA_OWN_SLOTS + n,
        .threads = THREADS + CONVERTER_THREADS,
        .blocks = ejki_min(ejki_cdiv(p->rows, TILE_ROWS) * ejki_cdiv(p->columns, CODE_TILE_COLUMNS),
                           gpu->multiprocessors),
        .shared_bytes = CODE_SHARED_BYTES};
    return ejki_cuda_begin(run, &work, &a);
}

const ejki_mm_fast ejki_mm_tiles_of_codes = {.takes = takes_codes,
                                             .want = want_codes,
                                             .can_run = ejki_mm_codes_can_run,
                                             .run = run_tiles_of_codes};

const ejki_mm_fast ejki_mm_tiles = {
    .takes = takes, .want = want, .can_run = can_run, .run = run_tiles};
