/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products on GPUs: which of product_mma.cu and product_plain.cu computes a product, and launches. */
#include "operations/matmul/cuda/product.h"

#include "kernels/declare.h"

enum { SCATTER_COLUMNS = 256 };

static const char mma_text[] = "operations/matmul/cuda/product_mma.cu";
static const char plain_text[] = "operations/matmul/cuda/product_plain.cu";
static const char scatter_text[] = "operations/matmul/cuda/scatter.cu";

/* As the kernels have them. */
typedef struct product_arguments {
    mm_product p;
    mm_size tiles;
} product_arguments;
typedef struct scatter_arguments {
    mm_product p;
    const float *rows;
} scatter_arguments;

/* ---- Tiles ------------------------------------------------------------------------------------------- */

typedef struct shape {
    int64_t rows, columns, warps_y, warps_x, stages, shared_bytes;
    bool is_mma;
} shape;

static const shape large = {128, 128, 2, 4, 3, 0, true}, small = {16, 64, 1, 4, 6, 0, true};

bool ejki_mm_cuda_is_half(int dtype) {
    return dtype == EJK_DTYPE_BF16 || dtype == EJK_DTYPE_F16;
}

/* Tensor cores take elements as they are; what is made of others is float32. */
static bool takes_mma(const mm_product *p) {
    const bool scales_b = p->scale.present && p->split != MM_DEPTH;
    if (p->quant.present || p->fold.present || scales_b || p->depth == 0) return false;
    if (!ejki_mm_cuda_is_half(p->a.dtype) || p->a.dtype != p->b.dtype) return false;
    if (p->split == MM_ROWS) return !p->a.flipped;
    if (p->split == MM_DEPTH || p->run) return (p->a.flipped || p->a.ones) && !p->b.flipped;
    return true;
}

/* Rows of a group, on average. */
static int64_t rows_of_group(const mm_product *p) {
    return p->split == MM_ROWS ? ejki_cdiv(p->rows, ejki_max(p->groups, 1)) : p->rows;
}

/* Elements of a line in shared memory, as pitch_of() in mma.cuh. */
static int64_t side_bytes(bool flipped, int64_t lines) {
    return 2 * 64 * (flipped ? ejki_round_up(lines, 64) : lines);
}

static int64_t plain_size(int64_t lines) {
    return lines > 64 ? 128 : 64;
}

static shape shape_of(const mm_product *p) {
    if (!takes_mma(p))
        return (shape){.rows = p->fold.present ? 64 : plain_size(rows_of_group(p)),
                       .columns = p->fold.present ? 64 : plain_size(mm_columns_of_b(p))};
    shape s = rows_of_group(p) > 16 ? large : small;
    s.shared_bytes =
        s.stages * (side_bytes(p->a.flipped, s.rows) + side_bytes(!p->b.flipped, s.columns));
    return s;
}

/* Tiles of rows: of a group, or where rows are dealt out, the most that there can be. */
static int64_t row_tiles(const mm_product *p, const shape *s) {
    if (p->split == MM_ROWS) return p->rows / s->rows + ejki_min(p->groups + 1, p->rows);
    return ejki_cdiv(p->rows, s->rows);
}

static double blocks_of(const mm_product *p, const shape *s) {
    const int64_t wide = p->gated ? s->columns / 2 : s->columns;
    const double columns = (double)ejki_cdiv(p->columns, wide);
    if (p->fold.present) return (double)p->held * (double)p->out_rows * columns;
    const double groups = p->split == MM_EVEN    ? (double)p->groups
                          : p->split == MM_DEPTH ? (double)p->held
                                                 : 1;
    return groups * (double)row_tiles(p, s) * columns;
}

/* ---- Plans ------------------------------------------------------------------------------------------- */

static bool is_float(const mm_view *v) {
    return !v->present || v->dtype == EJK_DTYPE_F32 || ejki_mm_cuda_is_half(v->dtype);
}

static bool can_take(const mm_product *p) {
    const shape s = shape_of(p);
    const mm_view *views[] = {&p->a, &p->out, &p->add, &p->bias, &p->scale, &p->fold};
    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        if (!is_float(views[i])) return false;
    if (!p->quant.present && !is_float(&p->b)) return false;
    if (p->quant.packed || p->quant.rounds) return false;
    if (p->weight_type == EJK_DTYPE_F64 || (p->gather.present && p->split == MM_DEPTH))
        return false;
    if (p->quant.present &&
        (p->quant.scale_type == EJK_DTYPE_F64 || p->quant.zero_type == EJK_DTYPE_F64))
        return false;
    return blocks_of(p, &s) <= INT32_MAX &&
           (double)p->out_rows * (double)ejki_cdiv(p->columns, SCATTER_COLUMNS) <= INT32_MAX;
}

bool ejki_mm_cuda_applicable(const mm_problem *problem) {
    for (int n = 0; n < problem->count; n++)
        if (problem->product[n].has_out && !can_take(&problem->product[n])) return false;
    return true;
}

void ejki_mm_cuda_want(const mm_product *p, int32_t n, ejki_cuda_kernels *kernels) {
    const shape s = shape_of(p);
    ejki_cuda_constants constants = {.count = 0};
    ejki_cuda_add(&constants, "ROWS", s.rows);
    ejki_cuda_add(&constants, "COLUMNS", s.columns);
    if (s.is_mma) {
        ejki_cuda_add(&constants, "ELEMENT", p->a.dtype);
        ejki_cuda_add(&constants, "A_FLIPPED", p->a.flipped);
        ejki_cuda_add(&constants, "B_FLIPPED", p->b.flipped);
        ejki_cuda_add(&constants, "GATHER", p->gather.present);
        ejki_cuda_add(&constants, "WARPS_Y", s.warps_y);
        ejki_cuda_add(&constants, "WARPS_X", s.warps_x);
        ejki_cuda_add(&constants, "STAGES", s.stages);
    } else {
        ejki_cuda_add(&constants, "QUANT", p->quant.present);
        ejki_cuda_add(&constants, "FOLD", p->fold.present ? 1 + p->fold_by : 0);
    }
    ejki_cuda_want(kernels, n, s.is_mma ? mma_text : plain_text, "product", &constants);
}

void ejki_mm_cuda_want_scatter(const mm_product *p, ejki_cuda_kernels *kernels,
                               ejk_launch *launch) {
    if (!p->scatter.present) return;
    ejki_cuda_want(kernels, MM_CUDA_SCATTER, scatter_text, "scatter",
                   &(ejki_cuda_constants){.count = 0});
    launch->workspace_bytes = (size_t)(p->rows * p->columns) * sizeof(float);
}

/* ---- Runs -------------------------------------------------------------------------------------------- */

static ejk_status check_list(const mm_list *list, const char *name) {
    return list->present ? ejki_cuda_check_address(list->data, list->wide ? 8 : 4, name) : EJK_OK;
}

static ejk_status check_view(const mm_view *v, const char *name) {
    if (!v->present || v->ones) return EJK_OK;
    return ejki_cuda_check_tensor(v->data, v->dtype, name);
}

static ejk_status check(const mm_product *p) {
    EJKI_TRY(check_view(&p->a, "a left matrix"));
    if (!p->quant.present) EJKI_TRY(check_view(&p->b, "a right matrix"));
    EJKI_TRY(check_view(&p->out, "a result"));
    EJKI_TRY(check_view(&p->add, "what is added"));
    EJKI_TRY(check_view(&p->bias, "bias"));
    EJKI_TRY(check_view(&p->scale, "rhs_scale"));
    EJKI_TRY(check_view(&p->fold, "rhs"));
    EJKI_TRY(check_list(&p->sizes, "group_sizes"));
    EJKI_TRY(check_list(&p->offset, "group_offset"));
    EJKI_TRY(check_list(&p->gather, "lhs_indices"));
    EJKI_TRY(check_list(&p->scatter, "out_indices"));
    EJKI_TRY(ejki_cuda_check_tensor(p->weight, p->weight_type, "out_weights"));
    if (!p->quant.present && !p->fold_by) return EJK_OK;
    EJKI_TRY(ejki_cuda_check_tensor(p->quant.scales, p->quant.scale_type, "scales"));
    EJKI_TRY(ejki_cuda_check_tensor(p->quant.zeros, p->quant.zero_type, "zeros"));
    return p->quant.has_factor ? ejki_cuda_check_address(p->quant.factor, 4, "tensor_scale")
                               : EJK_OK;
}

ejk_status ejki_mm_cuda_check(const mm_problem *problem) {
    for (int n = 0; n < problem->count; n++)
        if (problem->product[n].has_out) EJKI_TRY(check(&problem->product[n]));
    return EJK_OK;
}

mm_product ejki_mm_cuda_rows_alone(const ejk_run *run, const mm_product *p) {
    mm_product own = *p;
    own.out = (mm_view){.data = run->workspace,
                        .row = p->columns,
                        .column = 1,
                        .dtype = EJK_DTYPE_F32,
                        .present = 1};
    own.add.present = 0;
    return own;
}

ejk_status ejki_mm_cuda_scatter(const ejk_run *run, const mm_product *p) {
    scatter_arguments a = {*p, run->workspace};
    const ejki_cuda_work work = {.slot = MM_CUDA_SCATTER,
                                 .threads = SCATTER_COLUMNS,
                                 .blocks = p->out_rows * ejki_cdiv(p->columns, SCATTER_COLUMNS)};
    return ejki_cuda_begin(run, &work, &a);
}

ejk_status ejki_mm_cuda_run(const ejk_run *run, int32_t n, const mm_product *p) {
    const shape s = shape_of(p);
    product_arguments a = {p->scatter.present ? ejki_mm_cuda_rows_alone(run, p) : *p,
                           row_tiles(p, &s)};
    const ejki_cuda_work work = {.slot = n,
                                 .threads = s.is_mma ? (int32_t)(32 * s.warps_y * s.warps_x) : 256,
                                 .blocks = (int64_t)blocks_of(p, &s),
                                 .shared_bytes = s.shared_bytes};
    EJKI_TRY(ejki_cuda_begin(run, &work, &a));
    return p->scatter.present ? ejki_mm_cuda_scatter(run, p) : EJK_OK;
}

/* ---- Implementation ---------------------------------------------------------------------------------- */

static bool applicable(const void *problem) {
    return ejki_mm_cuda_applicable(problem);
}

static ejk_status prepare(const void *problem_, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    const mm_problem *problem = problem_;
    ejki_cuda_kernels kernels = {.count = 0};
    for (int n = 0; n < problem->count; n++) {
        if (!problem->product[n].has_out) continue;
        ejki_mm_cuda_want(&problem->product[n], n, &kernels);
        ejki_mm_cuda_want_scatter(&problem->product[n], &kernels, launch);
    }
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status run(const ejk_run *run) {
    const mm_problem *problem = run->problem;
    EJKI_TRY(ejki_mm_cuda_check(problem));
    for (int n = 0; n < problem->count; n++)
        if (problem->product[n].has_out) EJKI_TRY(ejki_mm_cuda_run(run, n, &problem->product[n]));
    return EJK_OK;
}

EJKI_DECLARE(matmul_cuda, .version = 1, .applicable = applicable, .prepare = prepare, .run = run,
             .needs = "no float64, packed codes or rounded rows")
