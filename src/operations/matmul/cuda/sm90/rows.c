/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of few rows by rows.cu: what it takes, how the depth is split, and launches. */
#include "operations/matmul/cuda/fast.h"
#include "operations/matmul/cuda/sm90/maps.h"

static const char text[] = "operations/matmul/cuda/sm90/rows.cu";

enum {
    TILE_COLUMNS = 128, /* of b; of groups, which have no parts of the depth, twice as many */
    DEPTH = 64,
    THREADS = 288,
    BLOCK_BYTES = 220 * 1024, /* of an SM's shared memory, for its blocks */
    SERVICE_BYTES = 1024,
    MANY_BLOCKS = 100,  /* keep the memory busy */
    ENOUGH_BLOCKS = 64, /* for which more parts are not worth it */
    LEAST_STEPS = 4,    /* of a part of the depth */
    MOST_PARTS = 8,
    FEW_ROWS = 64,
    MOST_ROWS = 512,
    FEW_TILES = 100, /* of tiles.cu: they would leave many processors without work */
};

/* As the kernel has them. */
typedef struct rows_arguments {
    mm_product p;
    ejki_cuda_map a, b;
    mm_size tiles;
} rows_arguments;

typedef struct shape {
    int64_t lines, columns, split, stages, resident, shared_bytes;
} shape;

static int64_t columns_of(const mm_product *p) {
    return p->split == MM_ROWS ? 2 * TILE_COLUMNS : TILE_COLUMNS;
}

static int64_t column_tiles(const mm_product *p) {
    return ejki_cdiv(mm_columns_of_b(p), columns_of(p));
}

/*
 * Parts of the depth, as many as there have to be. Rows do not count. One H100, N = K = 8192, in 1, 2 and 4 parts:
 * M = 1 46.2, 46.7 and 49.4 us, M = 64 52.3, 48.6 and 53.1 us; with tiles of 256 columns in two parts M = 64 50.2 us.
 */
static int64_t split_of(const mm_product *p) {
    const int64_t steps = ejki_cdiv(p->depth, DEPTH), tiles = column_tiles(p);
    int64_t split = 1;
    if (p->split == MM_ROWS) return 1;
    while (split < MOST_PARTS && split * tiles < (split == 1 ? MANY_BLOCKS : ENOUGH_BLOCKS) &&
           steps / (2 * split) >= LEAST_STEPS)
        split *= 2;
    return split;
}

static int64_t lines_of(const mm_product *p) {
    const int64_t rows = p->split == MM_ROWS ? ejki_cdiv(p->rows, ejki_max(p->groups, 1)) : p->rows;
    return rows <= 16 ? 16 : rows <= 32 ? 32 : rows <= 64 || p->split == MM_ROWS ? 64 : 128;
}

/* Two blocks on a processor: when one begins or ends the other reads. Large ones have it for themselves. */
static shape shape_of(const mm_product *p) {
    shape s = {.lines = lines_of(p), .columns = columns_of(p), .split = split_of(p)};
    const int64_t stage = (s.columns + s.lines) * DEPTH * 2;
    s.resident = s.lines > 64 ? 1 : 2;
    s.stages = (BLOCK_BYTES / s.resident - SERVICE_BYTES) / stage;
    if (p->split != MM_ROWS && s.lines <= 64) s.stages = ejki_min(s.stages, s.lines > 32 ? 3 : 4);
    s.shared_bytes = s.stages * stage + SERVICE_BYTES;
    return s;
}

static int64_t row_tiles(const mm_product *p, const shape *s) {
    if (p->split == MM_ROWS) return p->rows / s->lines + ejki_min(p->groups + 1, p->rows);
    return ejki_cdiv(p->rows, s->lines);
}

static double blocks_of(const mm_product *p, const shape *s) {
    const double groups = p->split == MM_EVEN ? (double)p->groups : 1;
    return groups * (double)row_tiles(p, s) * (double)column_tiles(p) * (double)s->split;
}

static bool is_few(const mm_product *p) {
    if (p->split == MM_ROWS) return p->rows <= FEW_ROWS * p->groups;
    return p->rows <= FEW_ROWS ||
           (p->rows <= MOST_ROWS &&
            (double)p->groups * (double)ejki_cdiv(p->rows, 128) *
                    (double)ejki_cdiv(mm_columns_of_b(p), p->gated ? 256 : 128) <
                FEW_TILES);
}

static bool takes(const mm_product *p) {
    const shape s = shape_of(p);
    return p->has_out && ejki_mm_sm90_takes(p) && p->split != MM_DEPTH && !p->a.flipped &&
           !p->gather.present && is_few(p) && blocks_of(p, &s) <= INT32_MAX;
}

static void want(const mm_product *p, int32_t n, ejki_cuda_kernels *kernels) {
    const shape s = shape_of(p);
    ejki_cuda_constants constants = ejki_mm_sm90_constants(p);
    ejki_cuda_add(&constants, "LINES", s.lines);
    ejki_cuda_add(&constants, "COLUMNS", s.columns);
    ejki_cuda_add(&constants, "SPLIT_DEPTH", s.split);
    ejki_cuda_add(&constants, "STAGES", s.stages);
    ejki_cuda_add(&constants, "RESIDENT", s.resident);
    ejki_cuda_want(kernels, MM_CUDA_OWN_SLOTS + n, text, "product", &constants);
}

static ejk_status run_rows(const ejk_run *run, int32_t n, const mm_product *p) {
    const shape s = shape_of(p);
    rows_arguments a = {.p = p->scatter.present ? ejki_mm_cuda_rows_alone(run, p) : *p,
                        .tiles = row_tiles(p, &s)};
    const ejki_cuda_work work = {.slot = MM_CUDA_OWN_SLOTS + n,
                                 .threads = THREADS,
                                 .blocks = (int64_t)blocks_of(p, &s),
                                 .shared_bytes = s.shared_bytes,
                                 .overlaps = p->split == MM_ROWS};
    EJKI_TRY(ejki_mm_sm90_maps(run->device, p, (int32_t)s.lines, &a.a, &a.b));
    EJKI_TRY(ejki_cuda_begin(run, &work, &a));
    return p->scatter.present ? ejki_mm_cuda_scatter(run, p) : EJK_OK;
}

const ejki_mm_fast ejki_mm_rows = {
    .takes = takes, .want = want, .can_run = ejki_mm_sm90_is_mapped, .run = run_rows};
