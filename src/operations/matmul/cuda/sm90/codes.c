/* SPDX-License-Identifier: Apache-2.0 */
/* Products of few rows with codes of 4 or 8 bits by codes.cu: what it takes, how the depth is split, and launches. */
#include "operations/matmul/cuda/sm90/codes.cuh"

#include "device/cuda_driver.h"
#include "operations/matmul/cuda/fast.h"
#include "operations/matmul/cuda/sm90/maps.h"

static const char text[] = "operations/matmul/cuda/sm90/codes.cu";

enum {
    PART_WARPS = CODE_COLUMNS / 32 * CODE_PHASES, /* that multiply */
    FEW_LINES = 16,                               /* more want registers of other warps */
    BOX_ROWS = 64,            /* of codes that are copied at once; half of a tile's are gates */
    BLOCK_BYTES = 226 * 1024, /* of shared memory, for all blocks on a processor */
    SERVICE_BYTES = 1024,
    SCALE_BYTES = 16 * 1024, /* of scales of a block's next steps, two steps at least */
    MOST_STAGES = 12,
    PROCESSORS = 132,
    MANY_TILES = 100, /* keep the memory busy */
    MOST_SPLIT = 4,
    MOST_ROWS = 128,
    ALIGNMENT = 16, /* bytes */
};

/* Depth of a step, chunks of a group; a warp's steps of which scales are at hand. */
typedef struct shape {
    int64_t lines, depth, steps, group, split, window, resident, stages, threads, shared_bytes;
} shape;

static bool has_table(const mm_quant *q) {
    return q->mode == MM_NF4 || q->mode == MM_FP4;
}

static int64_t lines_of(const mm_product *p) {
    /* Groups are larger than on average. */
    const int64_t rows =
        p->split == MM_ROWS ? ejki_cdiv(3 * p->rows, 2 * ejki_max(p->groups, 1)) : p->rows;
    /* With zeros registers do not hold sums of 64. */
    return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 || p->quant.zero_type ? 32 : 64;
}

static int64_t column_tiles(const mm_product *p) {
    return ejki_cdiv(mm_columns_of_b(p), CODE_COLUMNS);
}
static int64_t row_tiles(const mm_product *p, int64_t lines) {
    if (p->split == MM_ROWS) return p->rows / lines + ejki_min(p->groups + 1, p->rows);
    return ejki_cdiv(p->rows, lines);
}

/* Blocks that share a depth, by the sizes of the matrix alone: rows do not count. */
static int64_t split_of(const mm_product *p, int64_t steps) {
    int64_t split = 1;
    if (p->split == MM_ROWS) return 1;
    while (split < MOST_SPLIT && column_tiles(p) * split < MANY_TILES &&
           2 * split * CODE_PHASES <= steps)
        split *= 2;
    return split;
}

static shape shape_of(const mm_product *p) {
    const mm_quant *q = &p->quant;
    shape s = {.lines = lines_of(p), .depth = 8 * CODE_BYTES / q->bits};
    s.steps = ejki_cdiv(p->depth, s.depth);
    s.split = split_of(p, s.steps);
    s.group =
        q->size >= p->depth ? CODE_CHUNKS : ejki_min(q->size, s.depth) * CODE_CHUNKS / s.depth;
    const int64_t stage = CODE_COLUMNS * CODE_BYTES + s.lines * s.depth * 2;
    const int64_t table = has_table(q) ? CODE_TABLE_BYTES : 0;
    const int64_t scales =
        PART_WARPS * (CODE_CHUNKS / s.group) * 32 * (int64_t)sizeof(float) * (q->zero_type ? 2 : 1);
    s.window =
        ejki_min(ejki_max(2, SCALE_BYTES / scales), ejki_cdiv(s.steps, s.split * CODE_PHASES));
    const double blocks = (double)row_tiles(p, s.lines) * (double)column_tiles(p) * (double)s.split;
    s.resident = s.lines <= FEW_LINES && !table && blocks > PROCESSORS ? 2 : 1;
    const int64_t left = BLOCK_BYTES / s.resident - SERVICE_BYTES - table - s.window * scales;
    s.stages = ejki_min(MOST_STAGES, left / stage);
    s.shared_bytes = s.stages * stage + table + s.window * scales + SERVICE_BYTES;
    s.threads = 32 * (PART_WARPS + (s.lines > FEW_LINES ? 4 : 1));
    return s;
}

/* ---- Plans ------------------------------------------------------------------------------------------- */

static bool is_half_or_float(int dtype) {
    return dtype == EJK_DTYPE_F32 || ejki_mm_cuda_is_half(dtype);
}
static bool is_number(const mm_view *v) {
    return !v->present || (v->column == 1 && is_half_or_float(v->dtype));
}

/* Groups are whole chunks of a step, or whole steps. */
static bool takes_groups(const mm_quant *q, int64_t columns) {
    const int64_t depth = 8 * CODE_BYTES / q->bits, chunk = depth / CODE_CHUNKS;
    if (q->bits != 4 && q->bits != 8) return false;
    return q->size >= columns || q->size % depth == 0 || q->size == chunk || q->size == 2 * chunk ||
           q->size == 4 * chunk;
}

static bool takes(const mm_product *p) {
    const mm_quant *q = &p->quant;
    if (!p->has_out || !q->present || q->packed || q->rounds || !takes_groups(q, p->depth))
        return false;
    if (!p->b.flipped || p->a.flipped || p->gather.present || p->scatter.present) return false;
    if (p->split == MM_DEPTH || (p->split == MM_EVEN && p->groups != 1)) return false;
    if (q->code_row % ALIGNMENT || q->code_row <= 0 || q->code_group % ALIGNMENT ||
        (p->a_rows > 1 && (p->a.row % (ALIGNMENT / 2) || p->a.row <= 0)))
        return false;
    if (!ejki_mm_cuda_is_half(p->a.dtype) || !is_number(&p->out) || !is_number(&p->add) ||
        (p->bias.present && !is_half_or_float(p->bias.dtype)))
        return false;
    const double blocks = (double)row_tiles(p, lines_of(p)) * (double)column_tiles(p) * MOST_SPLIT;
    /* Experts with many rows have no other fast kernel. */
    const bool has_few = p->split == MM_ROWS || p->rows <= MOST_ROWS;
    return p->rows > 0 && has_few && p->columns > 0 && p->depth > 0 && p->held > 0 &&
           p->held < INT32_MAX && p->depth < INT32_MAX && mm_columns_of_b(p) < INT32_MAX &&
           blocks <= INT32_MAX;
}

static void want(const mm_product *p, int32_t n, ejki_cuda_kernels *kernels) {
    const shape s = shape_of(p);
    ejki_cuda_constants constants = ejki_mm_sm90_finish(p);
    ejki_cuda_add(&constants, "ELEMENT", p->a.dtype);
    ejki_cuda_add(&constants, "SPLIT", p->split);
    ejki_cuda_add(&constants, "MODE", p->quant.mode);
    ejki_cuda_add(&constants, "BITS", p->quant.bits);
    ejki_cuda_add(&constants, "TABLE", has_table(&p->quant));
    ejki_cuda_add(&constants, "LINES", s.lines);
    ejki_cuda_add(&constants, "GROUP", s.group);
    ejki_cuda_add(&constants, "WINDOW", s.window);
    ejki_cuda_add(&constants, "SPLIT_DEPTH", s.split);
    ejki_cuda_add(&constants, "STAGES", s.stages);
    ejki_cuda_add(&constants, "RESIDENT", s.resident);
    ejki_cuda_add(&constants, "SCALE", p->quant.scale_type);
    ejki_cuda_add(&constants, "ZERO", p->quant.zero_type);
    ejki_cuda_add(&constants, "FACTOR", p->quant.has_factor);
    ejki_cuda_want(kernels, MM_CUDA_OWN_SLOTS + n, text, "product", &constants);
}

/* ---- Runs -------------------------------------------------------------------------------------------- */

static bool can_run(const mm_product *p) {
    return ((uintptr_t)p->quant.codes | (uintptr_t)p->a.data) % ALIGNMENT == 0;
}

/* `inner` elements of so many lines, for each group, in boxes under a swizzle of 128 bytes. Strides are bytes. */
static ejk_status map_of(const void *data, ejk_dtype dtype, const int64_t sizes[4], int64_t line,
                         int64_t group, int32_t box_inner, int32_t box_lines, ejki_cuda_map *map) {
    const int64_t any = ejki_round_up(sizes[0] * (int64_t)ejk_dtype_size(dtype), ALIGNMENT);
    const int64_t strides[] = {sizes[1] > 1 ? line : any, sizes[2] > 1 ? group : any, any};
    const int32_t box[] = {box_inner, box_lines, 1, 1};
    ejki_cuda_tensor_map made;
    EJKI_TRY(ejki_cuda_tensor_map_encode(data, dtype, 4, sizes, strides, box, 128, &made));
    for (int i = 0; i < 16; i++) map->opaque[i] = made.opaque[i];
    return EJK_OK;
}

static ejk_status set_maps(const mm_product *p, const shape *s, codes_arguments *a) {
    const mm_quant *q = &p->quant;
    const int64_t held = p->split == MM_ROWS ? p->held : 1;
    const int64_t rows[] = {p->depth, p->a_rows, 1, 1};
    const int64_t codes[] = {ejki_cdiv(p->depth * q->bits, 8), mm_columns_of_b(p), held, 1};
    EJKI_TRY(map_of(p->a.data, (ejk_dtype)p->a.dtype, rows, 2 * p->a.row, 0, 64, (int32_t)s->lines,
                    &a->a));
    return map_of(q->codes, EJK_DTYPE_U8, codes, q->code_row, q->code_group, CODE_BYTES,
                  p->gated && !p->interleaved ? BOX_ROWS / 2 : BOX_ROWS, &a->codes);
}

static ejk_status run_codes(const ejk_run *run, int32_t n, const mm_product *p) {
    const shape s = shape_of(p);
    codes_arguments a = {.p = *p, .tiles = row_tiles(p, s.lines), .steps = s.steps};
    const ejki_cuda_work work = {.slot = MM_CUDA_OWN_SLOTS + n,
                                 .threads = (int32_t)s.threads,
                                 .blocks = column_tiles(p) * a.tiles * s.split,
                                 .shared_bytes = s.shared_bytes,
                                 .overlaps = s.resident == 1 || p->split == MM_ROWS};
    bool pushed;
    EJKI_TRY(ejki_cuda_enter(run->device, &pushed)); /* the driver wants a context */
    const ejk_status status = set_maps(p, &s, &a);
    ejki_cuda_leave(pushed);
    EJKI_TRY(status);
    return ejki_cuda_begin(run, &work, &a);
}

const ejki_mm_fast ejki_mm_codes = {takes, want, can_run, run_codes};
