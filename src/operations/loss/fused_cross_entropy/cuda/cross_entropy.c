/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fused_cross_entropy and its gradient on GPUs: launches of cross_entropy.cu, and between them the products of blocks
 * by the general kernels of matmul. Nothing is known to the host but sizes: tokens that do not count are multiplied,
 * too, as 0, and the whole can be captured.
 */
#include "kernels/declare.h"
#include "operations/loss/fused_cross_entropy/blocks.h"
#include "operations/loss/fused_cross_entropy/cuda/arguments.cuh"
#include "operations/matmul/cuda/fast.h"

static const char text[] = "operations/loss/fused_cross_entropy/cuda/cross_entropy.cu";

/*
 * Products, those over fewer classes at the end once more; a fast kernel of the former has a slot MM_CUDA_OWN_SLOTS
 * further on. Behind them other kernels.
 */
enum { LOGITS, D_HIDDEN, D_WEIGHT, LAST };
enum { FOLD = MM_CUDA_OWN_SLOTS + LAST, SLOPES, SERVE };
/* Where logits are given there are no products, but variants for rows that do not lie at multiples of 16 bytes. */
enum { NARROW_FOLD, NARROW_SLOPES };

/* ---- Blocks and memory ------------------------------------------------------------------------------- */

/* Blocks of tokens are equally long, behind the last token too: their products are of one shape. */
typedef struct blocks {
    int64_t tokens, rows, classes, columns;
} blocks;

static blocks blocks_of(const loss_problem *p) {
    blocks b = {.rows = ejki_max(ejki_cdiv(loss_rows(p), p->block_tokens), 1),
                .columns = ejki_cdiv(p->vocab, p->block_classes),
                .classes = p->block_classes};
    b.tokens = ejki_max(ejki_round_up(ejki_cdiv(loss_rows(p), b.rows), 16), 16);
    return b;
}

static int64_t classes_of(const loss_problem *p, int64_t column) {
    return ejki_min(p->block_classes, p->vocab - column * p->block_classes);
}

typedef struct places {
    int64_t states, shares, each, hidden, logits, slopes, d_hidden, d_weight, d_bias, end;
} places;

static places places_of(const loss_problem *p) {
    const blocks b = blocks_of(p);
    const int64_t rows = b.rows * b.tokens, size = (int64_t)ejk_dtype_size((ejk_dtype)p->dtype);
    places at = {.end = 0};
    at.states = loss_reserve(&at.end, loss_rows(p) * (int64_t)sizeof(loss_state));
    at.shares = loss_reserve(&at.end, loss_rows(p) * (int64_t)sizeof(loss_share));
    at.each = loss_reserve(&at.end, (int64_t)sizeof(float));
    if (p->width < 0) return at;
    at.hidden = loss_reserve(&at.end, rows * p->width * size);
    at.logits = loss_reserve(&at.end, b.tokens * loss_stride(p) * 4);
    if (!p->gradient) return at;
    at.slopes = loss_reserve(&at.end, b.tokens * loss_stride(p) * size);
    if (p->d_hidden.dtype) at.d_hidden = loss_reserve(&at.end, rows * p->width * 4);
    if (p->d_weight.present) at.d_weight = loss_reserve(&at.end, p->width * loss_stride(p) * 4);
    if (p->d_bias.present) at.d_bias = loss_reserve(&at.end, loss_stride(p) * 4);
    return at;
}

/* ---- Products --------------------------------------------------------------------------------------- */

/* Of a block of tokens and one of classes. */
static mm_product product_of(const loss_problem *p, void *memory, int which, int64_t row,
                             int64_t column) {
    const places at = places_of(p);
    const blocks b = blocks_of(p);
    const int64_t size = (int64_t)ejk_dtype_size((ejk_dtype)p->dtype);
    const int64_t before = row * b.tokens * p->width;
    const loss_block own = {.tokens = b.tokens,
                            .first = column * p->block_classes,
                            .classes = classes_of(p, column),
                            .hidden = loss_place(memory, at.hidden + before * size),
                            .logits = loss_place(memory, at.logits),
                            .slopes = loss_place(memory, at.slopes),
                            .d_hidden = loss_place(memory, at.d_hidden + before * 4)};
    if (which == LOGITS) return loss_logits(p, &own);
    mm_product m = which == D_HIDDEN ? loss_d_hidden(p, &own) : loss_d_weight(p, &own);
    if (which == D_WEIGHT)
        m.out = loss_rows_at(loss_place(memory, at.d_weight), loss_stride(p), EJK_DTYPE_F32);
    m.add = m.out;
    return m;
}

static bool is_wanted(const loss_problem *p, int which) {
    if (which == LOGITS) return p->width >= 0;
    return p->width >= 0 && (which == D_HIDDEN ? p->d_hidden.dtype != 0 : p->d_weight.present != 0);
}

static int32_t slot_of(const loss_problem *p, int which, int64_t column) {
    return classes_of(p, column) == p->block_classes ? which : LAST + which;
}

/* ---- Plans ------------------------------------------------------------------------------------------- */

static bool is_float(int dtype) {
    return dtype != EJK_DTYPE_F64;
}

/* Without fast kernels. */
static const ejki_mm_fast *none(const mm_product *p) {
    (void)p;
    return NULL;
}

static bool applicable(const void *problem) {
    const loss_problem *p = problem;
    mm_problem products = {.count = 0};
    for (int which = LOGITS; which <= D_WEIGHT; which++)
        if (is_wanted(p, which) && p->vocab > 0)
            products.product[products.count++] = product_of(p, NULL, which, 0, 0);
    return is_float(p->soft.dtype) && is_float(p->bias.dtype) && is_float(p->weights.dtype) &&
           loss_rows(p) < INT32_MAX / 2 && p->vocab > 0 && p->vocab < INT32_MAX / 2 &&
           ejki_mm_cuda_applicable(&products);
}

static bool applicable_sm90(const void *problem) {
    const loss_problem *p = problem;
    if (p->width < 0 || !applicable(problem)) return false;
    const mm_product m = product_of(p, NULL, LOGITS, 0, 0);
    return ejki_mm_fast_of(&m) != NULL;
}

/* Whether rows of logits, and of their gradients, lie at multiples of 16 bytes as far as strides tell. */
static bool is_even(const loss_problem *p) {
    const loss_view *views[] = {&p->logits, &p->d_logits};
    const int64_t each = 16 / (int64_t)ejk_dtype_size((ejk_dtype)p->dtype);
    bool even = true;
    for (int i = 0; i < 2; i++)
        even = even && views[i]->batch % each == 0 && views[i]->token % each == 0;
    return even;
}

static ejki_cuda_constants constants_of(const loss_problem *p, bool wide) {
    ejki_cuda_constants constants = {.count = 0};
    ejki_cuda_add(&constants, "ELEMENT", p->width < 0 ? p->dtype : EJK_DTYPE_F32);
    ejki_cuda_add(&constants, "OUT", p->dtype);
    ejki_cuda_add(&constants, "HIDDEN", p->dtype);
    ejki_cuda_add(&constants, "CAP", p->cap > 0);
    ejki_cuda_add(&constants, "WIDE", wide);
    return constants;
}

/* Kernels of products over classes of a column. */
static ejk_status ready_column(const loss_problem *p, ejki_mm_choice *choose, int64_t column,
                               ejk_launch *launch) {
    ejki_cuda_kernels kernels = {.count = 0};
    for (int which = LOGITS; which <= D_WEIGHT; which++) {
        if (!is_wanted(p, which)) continue;
        const mm_product m = product_of(p, NULL, which, 0, column);
        const ejki_mm_fast *fast = choose(&m);
        ejki_mm_cuda_want(&m, slot_of(p, which, column), &kernels);
        if (fast && slot_of(p, which, column) == which) fast->want(&m, which, &kernels);
    }
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status ready_products(const loss_problem *p, ejki_mm_choice *choose,
                                 ejk_launch *launch) {
    const int64_t last = ejki_cdiv(p->vocab, p->block_classes) - 1;
    EJKI_TRY(ready_column(p, choose, 0, launch));
    if (slot_of(p, LOGITS, last) == LOGITS) return EJK_OK;
    return ready_column(p, choose, last, launch);
}

static ejk_status prepare_by(const loss_problem *p, ejki_mm_choice *choose, ejk_launch *launch) {
    const bool given = p->width < 0;
    const ejki_cuda_constants wide = constants_of(p, true), narrow = constants_of(p, false);
    ejki_cuda_kernels kernels = {.count = 0};
    launch->workspace_bytes = (size_t)places_of(p).end;
    if (!given || is_even(p)) {
        ejki_cuda_want(&kernels, FOLD, text, "fold", &wide);
        if (p->gradient) ejki_cuda_want(&kernels, SLOPES, text, "slopes", &wide);
    }
    ejki_cuda_want(&kernels, SERVE, text, "serve", &narrow);
    if (given) {
        ejki_cuda_want(&kernels, NARROW_FOLD, text, "fold", &narrow);
        if (p->gradient) ejki_cuda_want(&kernels, NARROW_SLOPES, text, "slopes", &narrow);
        return ejki_cuda_ready_all(launch, &kernels);
    }
    EJKI_TRY(ejki_cuda_ready_all(launch, &kernels));
    return ready_products(p, choose, launch);
}

/* ---- Runs -------------------------------------------------------------------------------------------- */

static ejk_status check(const loss_problem *p) {
    const struct {
        const void *data;
        int dtype;
        const char *name;
    } all[] = {{p->logits.data, p->logits.dtype, "logits"},
               {p->hidden.data, p->hidden.dtype, "hidden"},
               {p->targets.data, p->targets.dtype, "targets"},
               {p->weights.data, p->weights.dtype, "weights"},
               {p->soft.data, p->soft.dtype, "soft_targets"},
               {p->lse.data, p->lse.dtype, "lse"},
               {p->d_logits.data, p->d_logits.dtype, "d_logits"},
               {p->d_hidden.data, p->d_hidden.dtype, "d_hidden"},
               {p->weight.data, p->weight.dtype, "lm_head_weight"},
               {p->bias.data, p->bias.dtype, "lm_head_bias"},
               {p->d_weight.data, p->d_weight.dtype, "d_lm_head_weight"},
               {p->d_bias.data, p->d_bias.dtype, "d_lm_head_bias"},
               {p->loss, p->result, p->gradient ? "d_loss" : "loss"},
               {p->z_loss_out, p->result, "z_loss_out"},
               {p->weight_sum, p->result, "weight_sum"},
               {p->accuracy, p->result, "accuracy"}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        EJKI_TRY(ejki_cuda_check_tensor(all[i].data, all[i].dtype, all[i].name));
    return EJK_OK;
}

static ejk_status begin(const ejk_run *run, int32_t slot, int64_t count, loss_arguments *a) {
    const ejki_cuda_work work = {.slot = slot, .threads = LOSS_THREADS, .blocks = count};
    return ejki_cuda_begin(run, &work, a);
}

/* One of the small kernels. */
static ejk_status serve(const ejk_run *run, int which, int64_t count, loss_arguments *a) {
    a->serves = which;
    return begin(run, SERVE, count, a);
}

static loss_arguments arguments_of(const loss_problem *p, void *memory) {
    const places at = places_of(p);
    return (loss_arguments){.p = *p,
                            .x = p->logits,
                            .to = p->d_logits,
                            .rows = loss_rows(p),
                            .classes = p->vocab,
                            .begins = 1,
                            .ends = 1,
                            .folds = 1,
                            .states = loss_place(memory, at.states),
                            .shares = loss_place(memory, at.shares),
                            .each = loss_place(memory, at.each),
                            .hidden = loss_place(memory, at.hidden),
                            .d_hidden = loss_place(memory, at.d_hidden),
                            .d_weight = loss_place(memory, at.d_weight),
                            .d_bias = loss_place(memory, at.d_bias),
                            .stride = loss_stride(p)};
}

static bool is_wide(const loss_problem *p) {
    return is_even(p) && (uintptr_t)p->logits.data % 16 == 0 &&
           (uintptr_t)p->d_logits.data % 16 == 0;
}

static ejk_status run_given(const ejk_run *run, loss_arguments *a) {
    const loss_problem *p = run->problem;
    const bool wide = is_wide(p);
    if (!p->gradient) {
        EJKI_TRY(begin(run, wide ? FOLD : NARROW_FOLD, a->rows, a));
        return serve(run, p->gradient ? LOSS_WEIGH : LOSS_TOTALS, 1, a);
    }
    if (!p->d_logits.dtype) return EJK_OK;
    EJKI_TRY(serve(run, p->gradient ? LOSS_WEIGH : LOSS_TOTALS, 1, a));
    return begin(run, wide ? SLOPES : NARROW_SLOPES, a->rows, a);
}

static ejk_status multiply(const ejk_run *run, ejki_mm_choice *choose, int which, int64_t row,
                           int64_t column) {
    const loss_problem *p = run->problem;
    const mm_product m = product_of(p, run->workspace, which, row, column);
    const int32_t slot = slot_of(p, which, column);
    const ejki_mm_fast *fast = slot == which ? choose(&m) : NULL;
    return (fast && fast->can_run(&m) ? fast->run : ejki_mm_cuda_run)(run, slot, &m);
}

/* `count` rows of `width` floats become 0. */
static ejk_status clear(const ejk_run *run, float *floats, int64_t count, int64_t width,
                        loss_arguments *a) {
    a->clears = floats;
    a->clear_width = width;
    return serve(run, LOSS_CLEAR, count, a);
}

static void take_block(const loss_problem *p, int64_t row, int64_t column, loss_arguments *a) {
    const blocks b = blocks_of(p);
    a->first = row * b.tokens;
    a->rows = b.tokens;
    a->class_first = column * p->block_classes;
    a->classes = classes_of(p, column);
    a->begins = column == 0;
    a->ends = column == b.columns - 1;
    a->adds = row > 0;
    a->closes = row == b.rows - 1;
}

static ejk_status fold_products(const ejk_run *run, ejki_mm_choice *choose, loss_arguments *a) {
    const loss_problem *p = run->problem;
    const blocks b = blocks_of(p);
    for (int64_t row = 0; row < b.rows; row++)
        for (int64_t column = 0; column < b.columns; column++) {
            take_block(p, row, column, a);
            EJKI_TRY(multiply(run, choose, LOGITS, row, column));
            EJKI_TRY(begin(run, FOLD, b.tokens, a));
        }
    return EJK_OK;
}

static ejk_status derive_block(const ejk_run *run, ejki_mm_choice *choose, int64_t row,
                               int64_t column, loss_arguments *a) {
    const loss_problem *p = run->problem;
    take_block(p, row, column, a);
    EJKI_TRY(multiply(run, choose, LOGITS, row, column));
    EJKI_TRY(begin(run, SLOPES, a->rows, a));
    if (p->d_weight.present && !a->adds) EJKI_TRY(clear(run, a->d_weight, p->width, a->stride, a));
    if (p->d_hidden.dtype) EJKI_TRY(multiply(run, choose, D_HIDDEN, row, column));
    if (p->d_weight.present) EJKI_TRY(multiply(run, choose, D_WEIGHT, row, column));
    if (p->d_weight.present && a->closes) EJKI_TRY(serve(run, LOSS_PUT_WEIGHT, p->width, a));
    if (!p->d_bias.present) return EJK_OK;
    return serve(run, LOSS_ADD_BIAS, ejki_cdiv(a->classes, LOSS_THREADS), a);
}

static ejk_status run_products(const ejk_run *run, ejki_mm_choice *choose, loss_arguments *a) {
    const loss_problem *p = run->problem;
    const blocks b = blocks_of(p);
    const places at = places_of(p);
    a->x = (loss_view){.data = loss_place(run->workspace, at.logits)};
    a->to = (loss_view){.data = loss_place(run->workspace, at.slopes)};
    a->folds = 0;
    EJKI_TRY(serve(run, LOSS_PACK, b.rows * b.tokens, a));
    if (!p->gradient) {
        EJKI_TRY(fold_products(run, choose, a));
        return serve(run, LOSS_TOTALS, 1, a);
    }
    EJKI_TRY(serve(run, LOSS_WEIGH, 1, a));
    if (!p->lse.dtype) EJKI_TRY(fold_products(run, choose, a));
    if (p->d_hidden.dtype) EJKI_TRY(clear(run, a->d_hidden, b.rows * b.tokens, p->width, a));
    for (int64_t column = 0; column < b.columns; column++)
        for (int64_t row = 0; row < b.rows; row++)
            EJKI_TRY(derive_block(run, choose, row, column, a));
    return p->d_hidden.dtype ? serve(run, LOSS_PUT_HIDDEN, loss_rows(p), a) : EJK_OK;
}

static ejk_status run_by(const ejk_run *run, ejki_mm_choice *choose) {
    const loss_problem *p = run->problem;
    loss_arguments a = arguments_of(p, run->workspace);
    EJKI_TRY(check(p));
    return p->width < 0 ? run_given(run, &a) : run_products(run, choose, &a);
}

/* ---- Implementations --------------------------------------------------------------------------------- */

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    return prepare_by(problem, none, launch);
}
static ejk_status prepare_sm90(const void *problem, const int64_t *parameters, int32_t threads,
                               ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    return prepare_by(problem, ejki_mm_fast_of, launch);
}

static ejk_status run(const ejk_run *run) {
    return run_by(run, none);
}
static ejk_status run_sm90(const ejk_run *run) {
    return run_by(run, ejki_mm_fast_of);
}

EJKI_DECLARE(fused_cross_entropy_cuda, .version = 1, .applicable = applicable, .prepare = prepare,
             .run = run, .needs = "no float64, a class at least")
EJKI_DECLARE(fused_cross_entropy_sm90_cuda, .version = 1, .priority = 20,
             .applicable = applicable_sm90, .prepare = prepare_sm90, .run = run_sm90,
             .needs = "hidden, rows of it and of lm_head_weight at multiples of 8 elements")
