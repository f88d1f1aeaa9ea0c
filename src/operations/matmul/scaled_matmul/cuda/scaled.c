/* SPDX-License-Identifier: Apache-2.0 */
/* scaled_matmul on GPUs: launches of sm90.cu, or where it does not take the tensors of plain.cu. */
#include "operations/matmul/scaled_matmul/cuda/scaled.cuh"

#include "device/cuda_driver.h"
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/matmul/cuda/sm90/maps.h"

static const char plain_text[] = "operations/matmul/scaled_matmul/cuda/plain.cu";
static const char text[] = "operations/matmul/scaled_matmul/cuda/sm90.cu";

enum { PLAIN, FAST };
enum {
    PLAIN_TILE = 64,
    PLAIN_THREADS = 256,
    TILE = 128,
    THREADS = 384,
    STAGES = 6,
    STAGE_BYTES = 2 * TILE * TILE,
    SERVICE_BYTES = 1024,
    MANY_STEPS = 30, /* beside which up to three of zeros are little */
    ALIGNMENT = 16,  /* bytes */
};

static double tiles_of(const mm_product *p, int64_t size) {
    return (double)ejki_cdiv(p->rows, size) * (double)ejki_cdiv(p->columns, size);
}

static bool is_float(const mm_view *v) {
    return !v->present || v->dtype == EJK_DTYPE_F32 || ejki_mm_cuda_is_half(v->dtype);
}

static bool applicable(const void *problem) {
    const mm_product *p = &((const scaled_problem *)problem)->product;
    return is_float(&p->out) && is_float(&p->add) && is_float(&p->bias) &&
           tiles_of(p, PLAIN_TILE) <= INT32_MAX;
}

static bool is_line(int64_t lines, int64_t stride) {
    return lines == 1 || (stride > 0 && stride % ALIGNMENT == 0);
}

/* Tensor cores add with too few bits for results of 32. */
static bool applicable_fast(const void *problem) {
    const mm_product *p = &((const scaled_problem *)problem)->product;
    return applicable(problem) && ejki_mm_cuda_is_half(p->out.dtype) && p->rows > 0 &&
           p->columns > 0 && p->depth > 0 && p->rows < INT32_MAX && p->columns < INT32_MAX &&
           p->depth < INT32_MAX && is_line(p->rows, p->a.row) && is_line(p->columns, p->b.column);
}

static void want_plain(ejki_cuda_kernels *kernels) {
    ejki_cuda_want(kernels, PLAIN, plain_text, "product", &(ejki_cuda_constants){.count = 0});
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)problem;
    (void)parameters;
    (void)threads;
    ejki_cuda_kernels kernels = {.count = 0};
    want_plain(&kernels);
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status prepare_fast(const void *problem, const int64_t *parameters, int32_t threads,
                               ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    const mm_product *p = &((const scaled_problem *)problem)->product;
    ejki_cuda_kernels kernels = {.count = 0};
    ejki_cuda_constants constants = ejki_mm_sm90_finish(p);
    const int64_t steps = ejki_cdiv(p->depth, SCALED_BLOCK);
    ejki_cuda_add(&constants, "STAGES", STAGES);
    ejki_cuda_add(&constants, "DEEP", steps % 4 == 0 || steps > MANY_STEPS ? 4 : 2);
    want_plain(&kernels);
    ejki_cuda_want(&kernels, FAST, text, "product", &constants);
    return ejki_cuda_ready_all(launch, &kernels);
}

/* ---- Runs -------------------------------------------------------------------------------------------- */

static ejk_status check(const scaled_problem *s) {
    const mm_product *p = &s->product;
    const ejki_cuda_address list[] = {
        {s->a_scale, 4, "lhs_scale"},
        {s->b_scale, 4, "rhs_scale"},
        {p->out.data, (int64_t)ejk_dtype_size((ejk_dtype)p->out.dtype), "out"},
        {p->bias.data, p->bias.present ? (int64_t)ejk_dtype_size((ejk_dtype)p->bias.dtype) : 1,
         "bias"},
        {p->add.data, p->add.present ? (int64_t)ejk_dtype_size((ejk_dtype)p->add.dtype) : 1,
         "residual"}};
    return ejki_cuda_check_addresses(list, sizeof list / sizeof *list);
}

static ejk_status run_plain(const ejk_run *run) {
    const scaled_problem *s = run->problem;
    scaled_arguments a = {.p = *s};
    const ejki_cuda_work work = {.slot = PLAIN,
                                 .threads = PLAIN_THREADS,
                                 .blocks = (int64_t)tiles_of(&s->product, PLAIN_TILE)};
    EJKI_TRY(check(s));
    return ejki_cuda_begin(run, &work, &a);
}

static ejk_status map_of(const void *data, int64_t depth, int64_t lines, int64_t stride,
                         ejki_cuda_map *map) {
    const int64_t line = lines > 1 ? stride : ejki_round_up(depth, ALIGNMENT);
    const int64_t sizes[] = {depth, lines, 1, 1}, strides[] = {line, line, line};
    const int32_t box[] = {SCALED_BLOCK, TILE, 1, 1};
    ejki_cuda_tensor_map made;
    EJKI_TRY(ejki_cuda_tensor_map_encode(data, EJK_DTYPE_U8, 4, sizes, strides, box, 128, &made));
    for (int i = 0; i < 16; i++) map->opaque[i] = made.opaque[i];
    return EJK_OK;
}

static ejk_status set_maps(const mm_product *p, scaled_arguments *a) {
    EJKI_TRY(map_of(p->a.data, p->depth, p->rows, p->a.row, &a->a));
    return map_of(p->b.data, p->depth, p->columns, p->b.column, &a->b);
}

static ejk_status run_fast(const ejk_run *run) {
    const scaled_problem *s = run->problem;
    const mm_product *p = &s->product;
    scaled_arguments a = {.p = *s};
    const ejk_gpu_info *gpu;
    bool pushed;
    if (((uintptr_t)p->a.data | (uintptr_t)p->b.data) % ALIGNMENT) return run_plain(run);
    EJKI_TRY(check(s));
    EJKI_TRY(ejki_cuda_gpu(run->device, &gpu));
    EJKI_TRY(ejki_cuda_enter(run->device, &pushed)); /* the driver wants a context */
    const ejk_status status = set_maps(p, &a);
    ejki_cuda_leave(pushed);
    EJKI_TRY(status);
    const ejki_cuda_work work = {.slot = FAST,
                                 .threads = THREADS,
                                 .blocks =
                                     ejki_min((int64_t)tiles_of(p, TILE), gpu->multiprocessors),
                                 .shared_bytes = STAGES * STAGE_BYTES + SERVICE_BYTES};
    return ejki_cuda_begin(run, &work, &a);
}

EJKI_DECLARE(scaled_matmul_cuda, .version = 1, .applicable = applicable, .prepare = prepare,
             .run = run_plain)
EJKI_DECLARE(scaled_matmul_sm90_cuda, .version = 1, .priority = 20, .applicable = applicable_fast,
             .prepare = prepare_fast, .run = run_fast,
             .needs = "results of 16 bits, rows of lhs and rhs at multiples of 16 bytes")
