/* SPDX-License-Identifier: Apache-2.0 */
/* Products of experts with codes of 4 or 8 bits by experts.cu: what it takes, and launches. */
#include "operations/matmul/cuda/sm90/experts.cuh"

#include "operations/matmul/cuda/sm90/codes.h"
#include "operations/matmul/cuda/sm90/maps.h"

static const char text[] = "operations/matmul/cuda/sm90/experts.cu";

enum {
    FEW_LINES = 16, /* more want all registers of a processor */
    PART_WARPS = CODE_COLUMNS / 32 * CODE_PHASES,
    SERVICE_WARPS = 4,
    BLOCK_BYTES = 226 * 1024, /* of shared memory, for all blocks on a processor */
    SERVICE_BYTES = 128,      /* barriers of scales, and gaps */
    BARRIERS_BYTES = 16,      /* of a stage */
    WINDOW_BYTES = 4 * 1024,  /* of scales that are made at once */
    LEAST_WINDOW_BYTES = 2 * 1024,
    EXPERTS_STEP = 64, /* experts whose places a kernel has, a multiple */
    BUFFERS = 2,
    ROW_PADDING = 16, /* bytes */
    LEAST_STAGES = 3, /* of codes, where rows are kept */
};

typedef struct shape {
    int64_t lines, steps, window, resident, stages, threads, shared_bytes;
    bool keeps; /* rows of a tile for all tiles of columns */
} shape;

/* Groups are larger than on average. */
static int64_t lines_of(const mm_product *p) {
    return ejki_mm_codes_lines(p, ejki_cdiv(3 * p->rows, 2 * ejki_max(p->groups, 1)));
}

static int64_t most_experts(const mm_product *p) {
    return ejki_round_up(p->groups, (int64_t)EXPERTS_STEP);
}

/* With scales of so many bytes made at once. */
static shape shape_with(const mm_product *p, int64_t window_bytes) {
    const mm_quant *q = &p->quant;
    const bool has_table = ejki_mm_codes_have_table(q);
    const int64_t depth = ejki_mm_codes_depth(q);
    shape s = {.lines = lines_of(p), .steps = ejki_cdiv(p->depth, depth)};
    const int64_t scales = CODE_CHUNKS / ejki_mm_codes_chunks(p) * CODE_COLUMNS *
                           (int64_t)sizeof(float) * (q->zero_type ? 2 : 1);
    s.window = ejki_min(ejki_max(window_bytes / scales, 1), s.steps);
    s.resident = s.lines <= FEW_LINES && !has_table ? 2 : 1;
    const int64_t sums = CODE_PHASES * s.lines * (CODE_COLUMNS + 4) * (int64_t)sizeof(float);
    const int64_t fixed =
        sums + BUFFERS * s.window * scales + (has_table ? CODE_TABLE_BYTES : 0) + SERVICE_BYTES +
        2 * (most_experts(p) + 2) * (int64_t)sizeof(int) +
        (p->sizes.present ? 0 : 2 * CODE_OWN_ROWS + s.lines * (int64_t)sizeof(int));
    const int64_t codes = CODE_COLUMNS * CODE_BYTES + BARRIERS_BYTES;
    const int64_t rows = s.lines * (2 * depth + ROW_PADDING);
    const int64_t left = BLOCK_BYTES / s.resident - fixed;
    s.keeps = left - s.steps * rows >= LEAST_STAGES * codes;
    s.stages = s.keeps ? (left - s.steps * rows) / codes : left / (codes + rows);
    s.shared_bytes =
        s.keeps ? s.stages * codes + s.steps * rows + fixed : s.stages * (codes + rows) + fixed;
    s.threads = 32 * (PART_WARPS + SERVICE_WARPS);
    return s;
}

/* Scales may make room for rows that stay. */
static shape shape_of(const mm_product *p) {
    const shape wide = shape_with(p, WINDOW_BYTES), narrow = shape_with(p, LEAST_WINDOW_BYTES);
    return narrow.keeps && !wide.keeps ? narrow : wide;
}

static int64_t column_tiles(const mm_product *p) {
    return ejki_cdiv(mm_columns_of_b(p), CODE_COLUMNS);
}
/* The most that there can be. */
static int64_t row_tiles(const mm_product *p, const shape *s) {
    return p->rows / s->lines + ejki_min(p->groups + 1, p->rows);
}

static bool takes(const mm_product *p) {
    if (p->split != MM_ROWS || !p->sizes.wide || p->groups > CODE_EXPERTS || p->rows > INT32_MAX ||
        p->depth % (CODE_ALIGNMENT / 2) || !ejki_mm_codes_suit(p))
        return false;
    const shape s = shape_of(p);
    return (double)row_tiles(p, &s) * (double)column_tiles(p) <= INT32_MAX;
}

static void want(const mm_product *p, int32_t n, ejki_cuda_kernels *kernels) {
    const shape s = shape_of(p);
    ejki_cuda_constants constants = ejki_mm_codes_constants(p);
    ejki_cuda_add(&constants, "LINES", s.lines);
    ejki_cuda_add(&constants, "COLUMNS", CODE_COLUMNS);
    ejki_cuda_add(&constants, "RESIDENT", s.resident);
    ejki_cuda_add(&constants, "WINDOW", s.window);
    ejki_cuda_add(&constants, "STAGES", s.stages);
    ejki_cuda_add(&constants, "STEPS", s.keeps ? s.steps : 0);
    /* Rows that are gathered come from outside; others are what a product of the same call has made. */
    ejki_cuda_add(&constants, "EXPERTS", most_experts(p));
    ejki_cuda_add(&constants, "EARLY", !p->gather.present);
    ejki_cuda_add(&constants, "OWN_LISTS", !p->sizes.present);
    ejki_cuda_want(kernels, MM_CUDA_OWN_SLOTS + n, text, "product", &constants);
}

static bool sorts(const mm_product *p) {
    return p->rows <= CODE_OWN_ROWS;
}

static ejk_status begin(const ejk_run *run, int32_t n, experts_arguments *a) {
    const mm_product *p = &a->p;
    const shape s = shape_of(p);
    const ejk_gpu_info *gpu;
    EJKI_TRY(ejki_cuda_gpu(run->device, &gpu));
    const ejki_cuda_work work = {
        .slot = MM_CUDA_OWN_SLOTS + n,
        .threads = (int32_t)s.threads,
        .blocks = ejki_min(row_tiles(p, &s) * column_tiles(p), s.resident * gpu->multiprocessors),
        .shared_bytes = s.shared_bytes,
        .overlaps = true};
    a->steps = s.steps;
    EJKI_TRY(ejki_mm_codes_map(run->device, p, CODE_BYTES, ejki_mm_codes_box(p, CODE_COLUMNS),
                               &a->codes));
    return ejki_cuda_begin(run, &work, a);
}

static ejk_status run_experts(const ejk_run *run, int32_t n, const mm_product *p) {
    experts_arguments a = {.p = *p};
    return begin(run, n, &a);
}

static ejk_status run_choice(const ejk_run *run, int32_t n, const mm_product *p,
                             const moe_arguments *choice) {
    experts_arguments a = {.p = *p, .choice = *choice};
    return begin(run, n, &a);
}

const ejki_mm_fast ejki_mm_experts = {.takes = takes,
                                      .want = want,
                                      .can_run = ejki_mm_codes_can_run,
                                      .run = run_experts,
                                      .sorts = sorts,
                                      .run_choice = run_choice};
