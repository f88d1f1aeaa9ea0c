/* SPDX-License-Identifier: Apache-2.0 */
/* Products of many rows with codes of 4 or 8 bits by codes_many.cu: what it takes, and launches. */
#include "operations/matmul/cuda/sm90/codes.h"

static const char text[] = "operations/matmul/cuda/sm90/codes_many.cu";

enum {
    COLUMNS = 128, /* of a tile */
    MOST_LINES = 256,
    LINES_STEP = 16,  /* of a wgmma's columns */
    LEAST_ROWS = 65,  /* fewer are worth sums of groups by themselves */
    MOST_ROWS = 1024, /* more are worth values that are made first */
    GROUP = 64,       /* codes of a scale are a multiple */
    WARPS = 12,
    STAGES = 3, /* of codes */
    MOST_ROW_STAGES = 8,
    BLOCK_BYTES = 226 * 1024,
    SERVICE_BYTES = 1024,
    SCALE_BYTES = 16 * 1024,
    MANY_BLOCKS = 100, /* keep a GPU busy */
    MOST_SPLIT = 4,
};

typedef struct shape {
    int64_t tiles, lines, steps, split, window, row_stages, shared_bytes; /* tiles: of rows */
} shape;

static int64_t column_tiles(const mm_product *p) {
    return ejki_cdiv(p->columns, COLUMNS);
}

static shape shape_of(const mm_product *p) {
    shape s = {.tiles = ejki_cdiv(p->rows, MOST_LINES), .split = 1};
    s.lines = ejki_round_up(ejki_cdiv(p->rows, s.tiles), LINES_STEP);
    s.steps = ejki_cdiv(p->depth, ejki_mm_codes_depth(&p->quant));
    /* By the sizes of the matrix alone: bits do not depend on how many rows there are. */
    while (s.split < MOST_SPLIT && column_tiles(p) * s.split < MANY_BLOCKS &&
           2 * s.split <= s.steps)
        s.split *= 2;
    const int64_t scales = CODE_CHUNKS / ejki_mm_codes_chunks(p) * COLUMNS * (int64_t)sizeof(float);
    /* Lanes that share a row of codes have steps in turn. */
    s.window = ejki_round_up(ejki_min(SCALE_BYTES / scales, ejki_cdiv(s.steps, s.split)), 2);
    const int64_t table = ejki_mm_codes_have_table(&p->quant) ? CODE_TABLE_BYTES : 0;
    const int64_t codes = STAGES * COLUMNS * CODE_BYTES, box = s.lines * 128;
    const int64_t fixed = codes + s.window * scales + table + SERVICE_BYTES;
    s.row_stages = ejki_min((BLOCK_BYTES - fixed) / box, MOST_ROW_STAGES);
    s.shared_bytes = fixed + s.row_stages * box;
    return s;
}

static bool takes(const mm_product *p) {
    const mm_quant *q = &p->quant;
    return p->split == MM_EVEN && p->groups == 1 && !p->gated && !p->gather.present &&
           !ejki_quant_shows_rounding(p) && p->rows >= LEAST_ROWS && p->rows <= MOST_ROWS &&
           ejki_mm_codes_suit(p) && q->mode != MM_NF4 && !q->zero_type && !q->has_factor &&
           (q->size % GROUP == 0 || q->size >= p->depth);
}

static void want(const mm_product *p, int32_t n, ejki_cuda_kernels *kernels) {
    const shape s = shape_of(p);
    ejki_cuda_constants constants = ejki_mm_codes_constants(p);
    ejki_cuda_add(&constants, "LINES", s.lines);
    ejki_cuda_add(&constants, "WINDOW", s.window);
    ejki_cuda_add(&constants, "SPLIT_DEPTH", s.split);
    ejki_cuda_add(&constants, "STAGES", STAGES);
    ejki_cuda_add(&constants, "ROW_STAGES", s.row_stages);
    ejki_cuda_want(kernels, MM_CUDA_OWN_SLOTS + n, text, "product", &constants);
}

static ejk_status run_many(const ejk_run *run, int32_t n, const mm_product *p) {
    const shape s = shape_of(p);
    codes_arguments a = {.p = *p, .tiles = s.tiles, .steps = s.steps};
    const ejki_cuda_work work = {.slot = MM_CUDA_OWN_SLOTS + n,
                                 .threads = 32 * WARPS,
                                 .blocks = column_tiles(p) * s.tiles * s.split,
                                 .shared_bytes = s.shared_bytes,
                                 .overlaps = true};
    EJKI_TRY(
        ejki_mm_codes_map(run->device, p, CODE_BYTES, ejki_mm_codes_box(p, COLUMNS), &a.codes));
    EJKI_TRY(ejki_mm_codes_map_rows(run->device, p, s.lines, &a.a));
    return ejki_cuda_begin(run, &work, &a);
}

const ejki_mm_fast ejki_mm_codes_many = {
    .takes = takes, .want = want, .can_run = ejki_mm_codes_can_run, .run = run_many};
