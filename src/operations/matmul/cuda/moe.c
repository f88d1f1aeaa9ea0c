/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A layer of experts on GPUs: tokens are sorted by expert, and rows of results added up. Rows of hidden are copied side
 * by side, so that the kernels of single products take them as they are, unless one takes them from a list. Nothing is
 * known to the host but sizes: the whole can be captured.
 */
#include "operations/matmul/cuda/moe.h"

#include "kernels/declare.h"
#include "operations/matmul/cuda/moe.cuh"

static const char text[] = "operations/matmul/cuda/moe.cu";

/* Slots behind those of both products, general and fast. */
enum { SORT = MM_CUDA_OWN_SLOTS + 2, GATHER, COMBINE };

/* ---- Memory ------------------------------------------------------------------------------------------ */

/* Where things lie in the workspace. */
typedef struct places {
    int64_t sizes, token, place, weights, gathered, middle, rows, end;
} places;

static int64_t put(int64_t *end, int64_t count, int64_t bytes) {
    const int64_t at = *end;
    *end = ejki_round_up(at + count * bytes, 256);
    return at;
}

static places places_of(const moe_problem *p) {
    const mm_product *first = &p->products.product[MOE_FIRST];
    const mm_product *second = &p->products.product[MOE_SECOND];
    const int64_t rows = first->rows, element = (int64_t)ejk_dtype_size((ejk_dtype)first->a.dtype);
    places at = {.end = 0};
    at.sizes = put(&at.end, p->experts, 8);
    at.token = put(&at.end, rows, 8);
    at.place = put(&at.end, rows, 8);
    at.weights = put(&at.end, rows, 4);
    at.gathered = put(&at.end, rows * first->depth, element);
    at.middle = put(&at.end, rows * first->columns, element);
    at.rows = put(&at.end, rows * second->columns, 4);
    return at;
}

/* NULL while there is no memory. */
static char *at_place(char *memory, int64_t place) {
    return memory ? memory + place : NULL;
}

static mm_view matrix(char *data, int64_t columns, int dtype) {
    return (mm_view){.data = data, .row = columns, .column = 1, .dtype = dtype, .present = 1};
}

static bool sorts(ejki_mm_choice *choose, const mm_product *p) {
    const ejki_mm_fast *fast = choose(p);
    return fast && fast->sorts && fast->sorts(p);
}

/* Both products over sorted rows, of those that `choose` knows kernels of; pointers from `memory` on. */
static mm_problem sorted_products(const moe_problem *p, ejki_mm_choice *choose, char *memory) {
    const places at = places_of(p);
    mm_problem sorted = p->products;
    mm_product *first = &sorted.product[MOE_FIRST], *second = &sorted.product[MOE_SECOND];
    second->scatter.present = 0;
    first->sizes.data = second->sizes.data = at_place(memory, at.sizes);
    first->gather.data = at_place(memory, at.token);
    if (!choose(first)) {
        first->gather.present = 0;
        first->a_rows = first->rows;
        first->a = matrix(at_place(memory, at.gathered), first->depth, first->a.dtype);
    }
    first->out = second->a = matrix(at_place(memory, at.middle), first->columns, first->out.dtype);
    second->out = matrix(at_place(memory, at.rows), second->columns, EJK_DTYPE_F32);
    second->weight = at_place(memory, at.weights);
    /* Kernels that find rows by themselves are told by sizes that are not there. */
    first->sizes.present = second->sizes.present = !(sorts(choose, first) && sorts(choose, second));
    return sorted;
}

static moe_arguments arguments_of(const moe_problem *p, char *memory) {
    const places at = places_of(p);
    const mm_product *first = &p->products.product[MOE_FIRST];
    return (moe_arguments){.tokens = p->tokens,
                           .each = p->each,
                           .experts = p->experts,
                           .width = first->depth,
                           .index = p->index,
                           .index_row = p->index_row,
                           .weight = p->weight,
                           .hidden = first->a,
                           .out = p->products.product[MOE_SECOND].out,
                           .sizes = (mm_size *)(at_place(memory, at.sizes)),
                           .token = (mm_size *)(at_place(memory, at.token)),
                           .place = (mm_size *)(at_place(memory, at.place)),
                           .weights = at_place(memory, at.weights),
                           .gathered = at_place(memory, at.gathered),
                           .rows = (const float *)(at_place(memory, at.rows))};
}

static int64_t combine_blocks(const moe_problem *p) {
    return p->tokens * ejki_cdiv(p->products.product[MOE_SECOND].columns, MOE_THREADS);
}

/* Without fast kernels: what a GPU before sm_90 runs, too, on which nothing overlaps. */
static const ejki_mm_fast *none(const mm_product *p) {
    (void)p;
    return NULL;
}

/* ---- Plans ------------------------------------------------------------------------------------------- */

bool ejki_moe_cuda_applicable(const moe_problem *p, ejki_mm_choice *choose) {
    const mm_problem sorted = sorted_products(p, choose, NULL);
    return p->weight.dtype != EJK_DTYPE_F64 && p->products.product[MOE_FIRST].rows <= INT32_MAX &&
           combine_blocks(p) <= INT32_MAX && ejki_mm_cuda_applicable(&sorted);
}

ejk_status ejki_moe_cuda_prepare(const moe_problem *p, ejki_mm_choice *choose, ejk_launch *launch) {
    const mm_problem sorted = sorted_products(p, choose, NULL);
    const ejki_cuda_constants plain = {.count = 0};
    ejki_cuda_kernels kernels = {.count = 0};
    for (int n = MOE_FIRST; n <= MOE_SECOND; n++) {
        const ejki_mm_fast *fast = choose(&sorted.product[n]);
        ejki_mm_cuda_want(&sorted.product[n], n, &kernels);
        if (fast) fast->want(&sorted.product[n], n, &kernels);
    }
    ejki_cuda_want(&kernels, SORT, text, "sort", &plain);
    ejki_cuda_want(&kernels, GATHER, text, "gather", &plain);
    ejki_cuda_want(&kernels, COMBINE, text, "combine", &plain);
    launch->workspace_bytes = (size_t)places_of(p).end;
    return ejki_cuda_ready_all(launch, &kernels);
}

/* ---- Runs -------------------------------------------------------------------------------------------- */

static ejk_status check(const moe_problem *p) {
    const mm_product *first = &p->products.product[MOE_FIRST];
    const mm_product *second = &p->products.product[MOE_SECOND];
    const int64_t element = (int64_t)ejk_dtype_size((ejk_dtype)first->a.dtype);
    const ejki_cuda_address list[] = {
        {first->a.data, element, "hidden"},
        {second->out.data, element, "out"},
        {p->index.data, p->index.wide ? 8 : 4, "expert_index"},
        {p->weight.data, (int64_t)ejk_dtype_size((ejk_dtype)p->weight.dtype), "expert_weight"}};
    return ejki_cuda_check_addresses(list, sizeof list / sizeof *list);
}

static ejk_status begin(const ejk_run *run, ejki_mm_choice *choose, int32_t slot, int64_t blocks,
                        moe_arguments *a) {
    const ejki_cuda_work work = {
        .slot = slot, .threads = MOE_THREADS, .blocks = blocks, .overlaps = choose != none};
    return ejki_cuda_begin(run, &work, a);
}

/* By kernels that find rows by themselves. */
static ejk_status run_choice(const ejk_run *run, ejki_mm_choice *choose, const mm_problem *sorted,
                             const moe_arguments *a) {
    for (int n = MOE_FIRST; n <= MOE_SECOND; n++)
        EJKI_TRY(choose(&sorted->product[n])->run_choice(run, n, &sorted->product[n], a));
    return EJK_OK;
}

static ejk_status run_sorted(const ejk_run *run, ejki_mm_choice *choose, const mm_problem *sorted,
                             moe_arguments *a) {
    const mm_product *first = &sorted->product[MOE_FIRST];
    const bool is_compiled = first->sizes.present;
    EJKI_TRY(begin(run, choose, SORT, a->experts, a));
    if (!first->gather.present) EJKI_TRY(begin(run, choose, GATHER, first->rows, a));
    for (int n = MOE_FIRST; n <= MOE_SECOND; n++) {
        const mm_product *p = &sorted->product[n];
        const ejki_mm_fast *fast = choose(p);
        const bool is_fast = fast && is_compiled && fast->can_run(p);
        EJKI_TRY((is_fast ? fast->run : ejki_mm_cuda_run)(run, n, p));
    }
    return EJK_OK;
}

ejk_status ejki_moe_cuda_run(const ejk_run *run, ejki_mm_choice *choose) {
    const moe_problem *p = run->problem;
    const mm_problem sorted = sorted_products(p, choose, run->workspace);
    const mm_product *first = &sorted.product[MOE_FIRST], *second = &sorted.product[MOE_SECOND];
    moe_arguments a = arguments_of(p, run->workspace);
    EJKI_TRY(check(p));
    EJKI_TRY(ejki_mm_cuda_check(&sorted));
    if (!first->sizes.present && choose(first)->can_run(first) && choose(second)->can_run(second))
        EJKI_TRY(run_choice(run, choose, &sorted, &a));
    else
        EJKI_TRY(run_sorted(run, choose, &sorted, &a));
    return begin(run, choose, COMBINE, combine_blocks(p), &a);
}

/* ---- Implementation ---------------------------------------------------------------------------------- */

static bool applicable(const void *problem) {
    return ejki_moe_cuda_applicable(problem, none);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    return ejki_moe_cuda_prepare(problem, none, launch);
}

static ejk_status run(const ejk_run *run) {
    return ejki_moe_cuda_run(run, none);
}

EJKI_DECLARE(moe_cuda, .version = 1, .applicable = applicable, .prepare = prepare, .run = run,
             .needs = "no float64")
