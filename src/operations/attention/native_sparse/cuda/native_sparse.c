/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_sparse_attention and its gradients on GPUs: launches of forward.cu and gradients.cu. Nothing is known to the
 * host but sizes, so that the whole can be captured.
 */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/attention/native_sparse/cuda/arguments.cuh"

enum { MEANS, TOKENS, KEY_MEANS, KEYS, SELECTED };
/* As selected.cu has them, with warps that leave room for three blocks on an SM of sm_90. */
enum { WARPS = 2, STAGES = 2, STAGE_KEYS = 32, MOST_MMA = 128 };
enum { MOST_WIDTH = 576, MOST_BLOCKS = 4096, IMPORTANCE_BYTES = 1 << 27 };

static const char forward_text[] = "operations/attention/native_sparse/cuda/forward.cu";
static const char selected_text[] = "operations/attention/native_sparse/cuda/selected.cu";
static const char gradients_text[] = "operations/attention/native_sparse/cuda/gradients.cu";

static int64_t heads_of(const nsa_problem *p) {
    return p->batch * p->kv_heads;
}

static int64_t parts_of(const nsa_problem *p) {
    return ejki_cdiv(p->blocks.chunk, NSA_ROWS);
}

/* Blocks that have tokens, each with room for numbers of all blocks of a sequence. From sizes alone. */
static int64_t token_blocks(const nsa_problem *p) {
    const int64_t room = IMPORTANCE_BYTES / (4 * ejki_max(p->rows, 1));
    return ejki_min(heads_of(p) * p->tokens, ejki_max(256, ejki_min(room, MOST_BLOCKS)));
}

static bool is_float(const nsa_view *v) {
    return v->dtype != EJK_DTYPE_F64;
}

static bool applicable(const void *problem) {
    const nsa_problem *p = problem;
    bool fits = p->dim <= MOST_WIDTH && p->width <= MOST_WIDTH && p->kv_heads > 0;
    for (int i = 0; i < NSA_BRANCHES; i++)
        fits = fits && is_float(&p->gate[i]) && is_float(&p->d_gate[i]);
    return fits && p->slots * p->blocks.chunk < INT32_MAX / 2 && p->group < INT32_MAX / 1024 &&
           (double)heads_of(p) * (double)p->rows * (double)parts_of(p) < INT32_MAX;
}

static bool applicable_mma(const void *problem) {
    const nsa_problem *p = problem;
    return applicable(p) && !p->gradient && p->dim % 16 == 0 && p->width % 16 == 0 && p->dim > 0 &&
           p->width > 0 && p->dim <= MOST_MMA && p->width <= MOST_MMA &&
           (double)heads_of(p) * (double)p->tokens * (double)p->group < INT32_MAX;
}

static void *take(char *memory, int64_t *at, int64_t bytes) {
    char *const place = memory ? memory + *at : NULL;
    *at += ejki_round_up(bytes, 256);
    return place;
}

/* Memory of a run; without memory its size. `rests`: selected.cu does the rest. */
static size_t place(nsa_arguments *a, const nsa_problem *p, bool rests, char *memory) {
    const int64_t heads = heads_of(p), rows = heads * p->rows, lists = heads * p->tokens;
    const int64_t queries = p->batch * p->tokens * p->heads, keys = p->gradient ? rows : 0;
    const bool totals = rests && nsa_has(p, NSA_COMPRESSED);
    int64_t at = 0;
    *a = (nsa_arguments){.p = *p, .rests = rests};
    a->key_pitch = ejki_round_up(p->dim, 4);
    a->value_pitch = ejki_round_up(p->width, 4);
    a->mean_key = take(memory, &at, 4 * rows * a->key_pitch);
    a->mean_value = take(memory, &at, 4 * rows * a->value_pitch);
    a->d_mean_key = take(memory, &at, 4 * keys * a->key_pitch);
    a->d_mean_value = take(memory, &at, 4 * keys * a->value_pitch);
    a->importance = take(memory, &at, 4 * token_blocks(p) * p->rows);
    a->chosen = take(memory, &at, 4 * lists * p->slots);
    a->count = take(memory, &at, p->gradient || rests ? 4 * lists : 0);
    for (int i = 0; i < NSA_BRANCHES; i++)
        a->kept[i] = take(memory, &at, p->gradient ? queries * (int64_t)sizeof(nsa_kept) : 0);
    a->total = take(memory, &at, totals ? 4 * queries * p->width : 0);
    return (size_t)at;
}

static ejk_status prepare_of(const nsa_problem *p, bool rests, ejk_launch *launch) {
    ejki_cuda_constants constants = {.count = 0};
    ejki_cuda_kernels kernels = {.count = 0};
    nsa_arguments a;
    const int64_t widest = p->gradient ? ejki_max(p->dim, p->width) : p->width;
    ejki_cuda_add(&constants, "ELEMENT", p->dtype);
    ejki_cuda_add(&constants, "CHUNKS", ejki_max(1, ejki_cdiv(widest, NSA_THREADS)));
    ejki_cuda_want(&kernels, MEANS, forward_text, "means", &constants);
    if (!p->gradient) {
        ejki_cuda_want(&kernels, TOKENS, forward_text, "forward", &constants);
        if (rests) {
            ejki_cuda_constants own = constants;
            ejki_cuda_add(&own, "HEAD_DIM", p->dim);
            ejki_cuda_add(&own, "VALUE_DIM", p->width);
            ejki_cuda_add(&own, "WARPS", WARPS);
            ejki_cuda_want(&kernels, SELECTED, selected_text, "attend_selected", &own);
        }
    } else {
        ejki_cuda_want(&kernels, TOKENS, gradients_text, "derive", &constants);
        ejki_cuda_want(&kernels, KEY_MEANS, gradients_text, "derive_means", &constants);
        ejki_cuda_want(&kernels, KEYS, gradients_text, "derive_keys", &constants);
    }
    launch->workspace_bytes = place(&a, p, rests, NULL);
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    return prepare_of(problem, false, launch);
}
static ejk_status prepare_mma(const void *problem, const int64_t *parameters, int32_t threads,
                              ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    return prepare_of(problem, true, launch);
}

static ejk_status check(const nsa_problem *p) {
    const struct {
        const nsa_view *view;
        const char *name;
    } list[] = {{&p->query, "query"},
                {&p->key, "key"},
                {&p->value, "value"},
                {&p->out, p->gradient ? "d_out" : "out"},
                {&p->gate[NSA_COMPRESSED], "g_cmp"},
                {&p->gate[NSA_SELECTED], "g_slc"},
                {&p->gate[NSA_WINDOW], "g_swa"},
                {&p->indices, "block_indices"},
                {&p->counts, "token_block_counts"},
                {&p->selected, "selected"},
                {&p->d_query, "d_query"},
                {&p->d_key, "d_key"},
                {&p->d_value, "d_value"},
                {&p->d_gate[NSA_COMPRESSED], "d_g_cmp"},
                {&p->d_gate[NSA_SELECTED], "d_g_slc"},
                {&p->d_gate[NSA_WINDOW], "d_g_swa"}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        EJKI_TRY(ejki_cuda_check_tensor(list[i].view->data, list[i].view->dtype, list[i].name));
    return ejki_cuda_check_address(p->blocks.ends, p->blocks.wide ? 8 : 4, "cu_seqlens");
}

/* Rows begin at multiples of four elements. */
static int is_whole(const nsa_view *v, int dtype) {
    const uintptr_t size = 4 * ejk_dtype_size((ejk_dtype)dtype);
    return (uintptr_t)v->data % size == 0 && ((v->batch | v->token | v->head) & 3) == 0;
}

static ejk_status begin(const ejk_run *run, int32_t slot, int64_t blocks, nsa_arguments *a) {
    const int64_t row = ejki_round_up(a->p.dim, 4) + ejki_round_up(a->p.width, 4);
    const ejki_cuda_work work = {.slot = slot,
                                 .threads = NSA_THREADS,
                                 .blocks = blocks,
                                 .shared_bytes =
                                     slot == MEANS ? 0 : NSA_ROWS * row * (int64_t)sizeof(float)};
    return ejki_cuda_begin(run, &work, a);
}

/* Two stages of keys and values for each warp. */
static ejk_status begin_selected(const ejk_run *run, nsa_arguments *a) {
    const nsa_problem *p = &a->p;
    const int64_t warps = heads_of(p) * ejki_cdiv(p->group, NSA_ROWS) * p->tokens;
    const int64_t row = 2 * (ejki_round_up(p->dim, 64) + ejki_round_up(p->width, 64));
    const ejki_cuda_work work = {.slot = SELECTED,
                                 .threads = 32 * WARPS,
                                 .blocks = ejki_cdiv(warps, WARPS),
                                 .shared_bytes = WARPS * STAGES * STAGE_KEYS * row};
    return ejki_cuda_begin(run, &work, a);
}

static ejk_status run_of(const ejk_run *run, bool rests) {
    const nsa_problem *p = run->problem;
    nsa_arguments a;
    EJKI_TRY(check(p));
    place(&a, p, rests, run->workspace);
    a.whole_query = is_whole(&p->query, p->dtype);
    a.whole_key = is_whole(&p->key, p->dtype);
    a.whole_value = is_whole(&p->value, p->dtype);
    a.whole_out = is_whole(&p->out, p->dtype);
    const int64_t rows = heads_of(p) * p->rows;
    if (nsa_has(p, NSA_COMPRESSED)) EJKI_TRY(begin(run, MEANS, rows, &a));
    EJKI_TRY(begin(run, TOKENS, token_blocks(p), &a));
    if (rests) return begin_selected(run, &a);
    if (!p->d_key.dtype && !p->d_value.dtype) return EJK_OK;
    if (nsa_has(p, NSA_COMPRESSED)) EJKI_TRY(begin(run, KEY_MEANS, rows, &a));
    return begin(run, KEYS, rows * parts_of(p), &a);
}

static ejk_status run(const ejk_run *run) {
    return run_of(run, false);
}
static ejk_status run_mma(const ejk_run *run) {
    return run_of(run, true);
}

EJKI_DECLARE(native_sparse_attention_mma_cuda, .version = 1, .applicable = applicable_mma,
             .needs = "heads of 16, 32 to 128 components, no gradients", .prepare = prepare_mma,
             .run = run_mma)
EJKI_DECLARE(native_sparse_attention_cuda, .version = 1, .applicable = applicable,
             .needs = "heads of up to 576 components, no float64", .prepare = prepare, .run = run)
