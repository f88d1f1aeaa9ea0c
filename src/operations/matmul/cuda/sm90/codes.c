/* SPDX-License-Identifier: Apache-2.0 */
/* Products of few rows with codes of 4 or 8 bits by codes.cu: what it takes, how the depth is split, and launches. */
#include "operations/matmul/cuda/sm90/codes.h"

#include "device/cuda_driver.h"
#include "operations/matmul/cuda/sm90/maps.h"

static const char text[] = "operations/matmul/cuda/sm90/codes.cu";
static const char wide_text[] = "operations/matmul/cuda/sm90/codes_wide.cu";

enum {
    LEAST_LINES = 8,
    FEW_LINES = 16,           /* more want registers of other warps */
    BLOCK_BYTES = 226 * 1024, /* of shared memory, for all blocks on a processor */
    SERVICE_BYTES = 1024,
    SCALE_BYTES = 16 * 1024, /* of scales of a block's next steps, two steps at least */
    MOST_STAGES = 12,
    PROCESSORS = 132,
    MANY_TILES = 100, /* keep the memory busy */
    MOST_SPLIT = 4,
    MOST_ROWS = 128,
    /* Of codes_wide.cu. */
    WIDE_COLUMNS = 128,
    WIDE_WARPS = 8, /* that multiply */
    WIDE_SETS = 2,  /* parts of the depth of four of them */
};

/* Depth of a step, chunks of a group; a warp's steps of which scales are at hand. */
typedef struct shape {
    int64_t lines, depth, steps, group, split, window, resident, stages, threads, shared_bytes,
        columns;
    int64_t tiles; /* of 16 rows of codes, a warp of codes.cu has */
    bool is_wide;  /* by codes_wide.cu */
} shape;

bool ejki_mm_codes_have_table(const mm_quant *q) {
    return q->mode == MM_NF4 || q->mode == MM_FP4;
}

int64_t ejki_mm_codes_chunks(const mm_product *p) {
    const int64_t depth = ejki_mm_codes_depth(&p->quant);
    return p->quant.size >= p->depth ? CODE_CHUNKS
                                     : ejki_min(p->quant.size, depth) * CODE_CHUNKS / depth;
}

int64_t ejki_mm_codes_lines(const mm_product *p, int64_t rows) {
    /* With zeros registers do not hold sums of 64. */
    return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 || p->quant.zero_type ? 32 : 64;
}

static int64_t column_tiles(const mm_product *p) {
    return ejki_cdiv(mm_columns_of_b(p), CODE_COLUMNS);
}
static int64_t row_tiles(const mm_product *p, int64_t lines) {
    return ejki_cdiv(p->rows, lines);
}

/* Blocks that share a depth, by the sizes of the matrix alone: rows do not count. */
static int64_t split_of(const mm_product *p, int64_t steps) {
    int64_t split = 1;
    while (split < MOST_SPLIT && column_tiles(p) * split < MANY_TILES &&
           2 * split * CODE_PHASES <= steps)
        split *= 2;
    return split;
}

/* Zeros count by sums that it does not make. */
static bool is_wide(const mm_product *p, const shape *s) {
    return s->lines > FEW_LINES && !p->quant.zero_type;
}

/* Where blocks have the whole depth, tiles of twice the columns for two of them: rows of a are read half as often. */
static shape wide_shape(const mm_product *p, shape s) {
    s.is_wide = true;
    if (s.split == 1) s.columns = WIDE_COLUMNS, s.split = 2;
    const int64_t stage = s.columns * CODE_BYTES + s.lines * s.depth * 2;
    const int64_t table = ejki_mm_codes_have_table(&p->quant) ? CODE_TABLE_BYTES : 0;
    const int64_t scales = CODE_CHUNKS / s.group * WIDE_WARPS * 16 * (int64_t)sizeof(float);
    const int64_t parts = WIDE_COLUMNS / s.columns * WIDE_SETS * s.split;
    const int64_t most = ejki_max(SCALE_BYTES / scales / WIDE_SETS, 1);
    s.window = ejki_min(most, ejki_cdiv(s.steps, parts)) * WIDE_SETS;
    s.resident = 1;
    s.stages =
        ejki_min(MOST_STAGES, (BLOCK_BYTES - SERVICE_BYTES - table - s.window * scales) / stage);
    s.shared_bytes = s.stages * stage + table + s.window * scales + SERVICE_BYTES;
    s.threads = 32 * (WIDE_WARPS + 4);
    return s;
}

static shape shape_of(const mm_product *p) {
    const mm_quant *q = &p->quant;
    shape s = {.columns = CODE_COLUMNS,
               .lines = ejki_mm_codes_lines(p, p->rows),
               .depth = ejki_mm_codes_depth(q)};
    s.steps = ejki_cdiv(p->depth, s.depth);
    s.split = split_of(p, s.steps);
    s.group = ejki_mm_codes_chunks(p);
    if (is_wide(p, &s)) return wide_shape(p, s);
    const int64_t stage = CODE_COLUMNS * CODE_BYTES + s.lines * s.depth * 2;
    const int64_t table = ejki_mm_codes_have_table(q) ? CODE_TABLE_BYTES : 0;
    const int64_t scales = CODE_COLUMNS * CODE_PHASES * (CODE_CHUNKS / s.group) *
                           (int64_t)sizeof(float) * (q->zero_type ? 2 : 1);
    s.window =
        ejki_min(ejki_max(2, SCALE_BYTES / scales), ejki_cdiv(s.steps, s.split * CODE_PHASES));
    const double blocks = (double)row_tiles(p, s.lines) * (double)column_tiles(p) * (double)s.split;
    s.resident = s.lines <= FEW_LINES && !table && blocks > PROCESSORS ? 2 : 1;
    s.tiles = s.lines == LEAST_LINES && s.resident == 1 ? 1 : 2;
    const int64_t left = BLOCK_BYTES / s.resident - SERVICE_BYTES - table - s.window * scales;
    s.stages = ejki_min(MOST_STAGES, left / stage);
    s.shared_bytes = s.stages * stage + table + s.window * scales + SERVICE_BYTES;
    s.threads = 32 * (CODE_COLUMNS / 16 / s.tiles * CODE_PHASES + (s.lines > FEW_LINES ? 4 : 1));
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

bool ejki_mm_codes_suit(const mm_product *p) {
    const mm_quant *q = &p->quant;
    if (!p->has_out || !q->present || q->packed || q->rounds || !takes_groups(q, p->depth))
        return false;
    if (!p->b.flipped || p->a.flipped || p->scatter.present) return false;
    if (q->code_row % CODE_ALIGNMENT || q->code_row <= 0 || q->code_group % CODE_ALIGNMENT ||
        (p->a_rows > 1 && (p->a.row % (CODE_ALIGNMENT / 2) || p->a.row <= 0)))
        return false;
    if (!ejki_mm_cuda_is_half(p->a.dtype) || !is_number(&p->out) || !is_number(&p->add) ||
        (p->bias.present && !is_half_or_float(p->bias.dtype)))
        return false;
    return p->rows > 0 && p->columns > 0 && p->depth > 0 && p->held > 0 && p->held < INT32_MAX &&
           p->depth < INT32_MAX && mm_columns_of_b(p) < INT32_MAX;
}

/* More rows are faster with values that are rounded to the type of a. */
static bool takes(const mm_product *p) {
    if (p->split != MM_EVEN || p->groups != 1 || p->gather.present ||
        (p->rows > MOST_ROWS && !ejki_quant_shows_rounding(p)))
        return false;
    const double rows = (double)ejki_max(p->rows, MOST_ROWS);
    return ejki_mm_codes_suit(p) && (double)column_tiles(p) * rows * MOST_SPLIT <= INT32_MAX;
}

ejki_cuda_constants ejki_mm_codes_constants(const mm_product *p) {
    ejki_cuda_constants constants = ejki_mm_sm90_finish(p);
    ejki_cuda_add(&constants, "ELEMENT", p->a.dtype);
    ejki_cuda_add(&constants, "MODE", p->quant.mode);
    ejki_cuda_add(&constants, "BITS", p->quant.bits);
    ejki_cuda_add(&constants, "TABLE", ejki_mm_codes_have_table(&p->quant));
    ejki_cuda_add(&constants, "GROUP", ejki_mm_codes_chunks(p));
    ejki_cuda_add(&constants, "SCALE", p->quant.scale_type);
    ejki_cuda_add(&constants, "ZERO", p->quant.zero_type);
    ejki_cuda_add(&constants, "FACTOR", p->quant.has_factor);
    return constants;
}

static void want(const mm_product *p, int32_t n, ejki_cuda_kernels *kernels) {
    const shape s = shape_of(p);
    ejki_cuda_constants constants = ejki_mm_codes_constants(p);
    ejki_cuda_add(&constants, "LINES", s.lines);
    ejki_cuda_add(&constants, "WINDOW", s.window);
    ejki_cuda_add(&constants, "SPLIT_DEPTH", s.split);
    ejki_cuda_add(&constants, "STAGES", s.stages);
    if (s.is_wide) {
        ejki_cuda_add(&constants, "COLUMNS", s.columns);
    } else {
        ejki_cuda_add(&constants, "RESIDENT", s.resident);
        ejki_cuda_add(&constants, "TILES", s.tiles);
    }
    ejki_cuda_want(kernels, MM_CUDA_OWN_SLOTS + n, s.is_wide ? wide_text : text, "product",
                   &constants);
}

/* ---- Runs -------------------------------------------------------------------------------------------- */

bool ejki_mm_codes_can_run(const mm_product *p) {
    return ((uintptr_t)p->quant.codes | (uintptr_t)p->a.data) % CODE_ALIGNMENT == 0;
}

/* `sizes`: elements of so many lines, for each group, in boxes under a swizzle of their width. Strides are bytes. */
static ejk_status map_of(const void *data, ejk_dtype dtype, const int64_t sizes[4], int64_t line,
                         int64_t group, int32_t box_bytes, int32_t box_lines, ejki_cuda_map *map) {
    const int64_t any =
        ejki_round_up(sizes[0] * (int64_t)ejk_dtype_size(dtype), (int64_t)CODE_ALIGNMENT);
    const int64_t strides[] = {sizes[1] > 1 ? line : any, sizes[2] > 1 ? group : any, any};
    const int32_t box[] = {box_bytes / (int32_t)ejk_dtype_size(dtype), box_lines, 1, 1};
    ejki_cuda_tensor_map made;
    EJKI_TRY(ejki_cuda_tensor_map_encode(data, dtype, 4, sizes, strides, box, box_bytes, &made));
    for (int i = 0; i < 16; i++) map->opaque[i] = made.opaque[i];
    return EJK_OK;
}

ejk_status ejki_mm_codes_map(int32_t device, const mm_product *p, int64_t bytes, int64_t lines,
                             ejki_cuda_map *map) {
    const mm_quant *q = &p->quant;
    const int64_t held = p->split == MM_ROWS ? p->held : 1;
    const int64_t sizes[] = {ejki_cdiv(p->depth * q->bits, 8), mm_columns_of_b(p), held, 1};
    bool pushed;
    EJKI_TRY(ejki_cuda_enter(device, &pushed)); /* the driver wants a context */
    const ejk_status status = map_of(q->codes, EJK_DTYPE_U8, sizes, q->code_row, q->code_group,
                                     (int32_t)bytes, (int32_t)lines, map);
    ejki_cuda_leave(pushed);
    return status;
}

ejk_status ejki_mm_codes_map_rows(int32_t device, const mm_product *p, int64_t lines,
                                  ejki_cuda_map *map) {
    const int64_t sizes[] = {p->depth, p->a_rows, 1, 1};
    bool pushed;
    EJKI_TRY(ejki_cuda_enter(device, &pushed));
    const ejk_status status =
        map_of(p->a.data, (ejk_dtype)p->a.dtype, sizes, 2 * p->a.row, 0, 128, (int32_t)lines, map);
    ejki_cuda_leave(pushed);
    return status;
}

static ejk_status run_codes(const ejk_run *run, int32_t n, const mm_product *p) {
    const shape s = shape_of(p);
    codes_arguments a = {.p = *p, .tiles = row_tiles(p, s.lines), .steps = s.steps};
    const ejki_cuda_work work = {.slot = MM_CUDA_OWN_SLOTS + n,
                                 .threads = (int32_t)s.threads,
                                 .blocks =
                                     ejki_cdiv(mm_columns_of_b(p), s.columns) * a.tiles * s.split,
                                 .shared_bytes = s.shared_bytes,
                                 .overlaps = s.resident == 1};
    EJKI_TRY(
        ejki_mm_codes_map(run->device, p, CODE_BYTES, ejki_mm_codes_box(p, s.columns), &a.codes));
    EJKI_TRY(ejki_mm_codes_map_rows(run->device, p, s.lines, &a.a));
    return ejki_cuda_begin(run, &work, &a);
}

const ejki_mm_fast ejki_mm_codes = {
    .takes = takes, .want = want, .can_run = ejki_mm_codes_can_run, .run = run_codes};
