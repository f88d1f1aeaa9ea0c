/* SPDX-License-Identifier: Apache-2.0 */
/* Products of few rows with codes of 4 bits by codes.cu: what it takes, how the depth is split, and launches. */
#include "operations/matmul/cuda/sm90/codes.h"

#include "device/cuda_driver.h"
#include "operations/matmul/cuda/sm90/codes.cuh"
#include "operations/matmul/cuda/sm90/maps.h"

static const char text[] = "operations/matmul/cuda/sm90/codes.cu";
static const char prepare_text[] = "operations/matmul/cuda/sm90/codes_prepare.cu";

enum { PRODUCT = MM_CUDA_OWN_SLOTS, PREPARE };
enum {
    THREADS = 384,
    BLOCK_BYTES = 225 * 1024, /* of shared memory */
    SERVICE_BYTES = 1024,
    BLOCKS = 128,    /* that clusters of eight fill the smallest GPU of this kind with */
    START_STEPS = 2, /* what a block costs besides its depth */
    MOST_ROWS = 64,
    ALIGNMENT = 16, /* bytes */
};

typedef struct shape {
    int64_t lines, steps, split, stages, shared_bytes;
} shape;

/* Parts of the depth: those with which the slowest processor has least to do. Rows do not count. */
static int64_t split_of(int64_t tiles, int64_t steps) {
    int64_t best = 1, least = INT64_MAX;
    for (int64_t split = 1; split <= 8 && split <= ejki_max(steps, 1); split *= 2) {
        const int64_t cost =
            ejki_cdiv(tiles * split, BLOCKS) * (ejki_cdiv(steps, split) + START_STEPS);
        if (cost < least) least = cost, best = split;
    }
    return best;
}

static shape shape_of(const mm_product *p) {
    shape s = {.lines = p->rows <= 16   ? 16
                        : p->rows <= 32 ? 32
                                        : 64,
               .steps = ejki_cdiv(p->depth, CODE_STEP)};
    const int64_t stage = CODE_COLUMNS * CODE_STEP / 2 + s.lines * CODE_STEP * 2;
    s.split = split_of(ejki_cdiv(p->columns, CODE_COLUMNS), s.steps);
    s.stages = (BLOCK_BYTES - SERVICE_BYTES) / stage;
    s.shared_bytes = s.stages * stage + SERVICE_BYTES;
    return s;
}

/* ---- Plans ------------------------------------------------------------------------------------------- */

static bool is_half_or_float(int dtype) {
    return dtype == EJK_DTYPE_F32 || ejki_mm_cuda_is_half(dtype);
}
static bool is_number(const mm_view *v) {
    return !v->present || (v->column == 1 && is_half_or_float(v->dtype));
}

bool ejki_mm_codes_takes(const mm_product *p) {
    const mm_quant *q = &p->quant;
    if (!p->has_out || !q->present || q->mode != MM_AFFINE || q->bits != 4 || q->has_factor)
        return false;
    if (!p->b.flipped || p->split != MM_EVEN || p->groups != 1 || p->a.flipped || p->gated)
        return false;
    if (q->size % CODE_BLOCK || q->code_row % ALIGNMENT || q->code_row <= 0 ||
        p->columns >= INT32_MAX)
        return false;
    if (q->zero_type && q->zero_type != EJK_DTYPE_U8 && q->zero_type != EJK_DTYPE_I8) return false;
    if (!ejki_mm_cuda_is_half(p->a.dtype) || !is_half_or_float(q->scale_type)) return false;
    if (!is_number(&p->out) || !is_number(&p->add) || !is_number(&p->bias)) return false;
    return p->rows > 0 && p->rows <= MOST_ROWS && p->columns > 0 && p->depth > 0 &&
           p->depth < INT32_MAX;
}

ejk_status ejki_mm_codes_prepare(const mm_product *p, ejk_launch *launch) {
    const shape s = shape_of(p);
    ejki_cuda_kernels kernels = {.count = 0};
    ejki_cuda_constants order = {.count = 0}, constants = ejki_mm_sm90_finish(p);
    ejki_cuda_add(&order, "ELEMENT", p->a.dtype);
    ejki_cuda_add(&constants, "ELEMENT", p->a.dtype);
    ejki_cuda_add(&constants, "LINES", s.lines);
    ejki_cuda_add(&constants, "SPLIT_DEPTH", s.split);
    ejki_cuda_add(&constants, "STAGES", s.stages);
    ejki_cuda_add(&constants, "SCALE", p->quant.scale_type);
    ejki_cuda_add(&constants, "ZERO", p->quant.zero_type);
    ejki_mm_cuda_want(p, 0, &kernels);
    ejki_cuda_want(&kernels, PREPARE, prepare_text, "prepare", &order);
    ejki_cuda_want(&kernels, PRODUCT, text, "product", &constants);
    launch->workspace_bytes = (size_t)(s.lines * s.steps * CODE_STEP * 2);
    return ejki_cuda_ready_all(launch, &kernels);
}

/* ---- Runs -------------------------------------------------------------------------------------------- */

/* `inner` elements of so many lines, in boxes under a swizzle of 128 bytes. The device's context is current. */
static ejk_status map_of(const void *data, ejk_dtype dtype, int64_t inner, int64_t lines,
                         int64_t stride, int32_t box_inner, int32_t box_lines, ejki_cuda_map *map) {
    const int64_t sizes[] = {inner, lines, 1, 1}, strides[] = {stride, stride, stride};
    const int32_t box[] = {box_inner, box_lines, 1, 1};
    ejki_cuda_tensor_map made;
    EJKI_TRY(ejki_cuda_tensor_map_encode(data, dtype, 4, sizes, strides, box, 128, &made));
    for (int i = 0; i < 16; i++) map->opaque[i] = made.opaque[i];
    return EJK_OK;
}

static ejk_status set_maps(const mm_product *p, const shape *s, codes_arguments *a) {
    const int64_t depth = s->steps * CODE_STEP;
    EJKI_TRY(map_of(a->ordered, (ejk_dtype)p->a.dtype, depth, s->lines, 2 * depth, 64,
                    (int32_t)s->lines, &a->a));
    return map_of(p->quant.codes, EJK_DTYPE_U8, ejki_cdiv(p->depth, 2), p->columns,
                  p->quant.code_row, CODE_STEP / 2, CODE_COLUMNS, &a->codes);
}

static ejk_status run_codes(const ejk_run *run, const mm_product *p) {
    const shape s = shape_of(p);
    codes_arguments a = {.p = *p, .ordered = run->workspace, .lines = s.lines, .steps = s.steps};
    const int64_t blocks = s.lines * s.steps * (CODE_STEP / CODE_BLOCK);
    const ejki_cuda_work order = {.slot = PREPARE,
                                  .threads = CODE_PREPARE_THREADS,
                                  .blocks = ejki_cdiv(blocks, CODE_PREPARE_THREADS / 32)};
    const ejki_cuda_work work = {.slot = PRODUCT,
                                 .threads = THREADS,
                                 .blocks = ejki_cdiv(p->columns, CODE_COLUMNS) * s.split,
                                 .shared_bytes = s.shared_bytes,
                                 .overlaps = true};
    bool pushed;
    EJKI_TRY(ejki_cuda_enter(run->device, &pushed)); /* the driver wants a context */
    const ejk_status status = set_maps(p, &s, &a);
    ejki_cuda_leave(pushed);
    EJKI_TRY(status);
    EJKI_TRY(ejki_cuda_begin(run, &order, &a));
    return ejki_cuda_begin(run, &work, &a);
}

ejk_status ejki_mm_codes_run(const ejk_run *run, const mm_product *p) {
    return (uintptr_t)p->quant.codes % ALIGNMENT == 0 ? run_codes(run, p)
                                                      : ejki_mm_cuda_run(run, 0, p);
}
