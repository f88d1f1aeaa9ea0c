/* SPDX-License-Identifier: Apache-2.0 */
/* causal_conv1d and its gradients on GPUs: launches of causal_conv1d.cu. */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/state_space/causal_conv1d/problem.cuh"

enum { TOKENS, STATES, SUMS, WIDE, THREADS = 128 };
/*
 * Tokens of a thread: many enough to keep the window in registers, few enough to fill a GPU; gradients of many tokens
 * have more, since each segment has sums of its own.
 */
enum { SEGMENT = 64, LONG_SEGMENT = 256, MANY_TOKENS = 32768 };
/* Windows of more taps than this have a channel a thread. */
enum { MOST_TAPS = 4 };

static const char text[] = "operations/state_space/causal_conv1d/cuda/causal_conv1d.cu";

/* As causal_conv1d.cu has it. */
typedef struct arguments {
    conv_problem p;
    float *sums;
    int64_t segment;
} arguments;

static int64_t segment_of(const conv_problem *p) {
    const bool is_long = p->gradient && p->batch * p->sequences.tokens >= MANY_TOKENS;
    return is_long ? LONG_SEGMENT : SEGMENT;
}

static int64_t segments_of(const conv_problem *p) {
    return p->batch * ejki_cdiv(p->sequences.tokens, segment_of(p));
}

/* Channels of a thread, where addresses allow it; gradients have twice as much in registers. */
static ejki_cuda_rows rows_of(const conv_problem *p) {
    const int64_t strides[] = {p->channels,
                               p->x.batch,
                               p->x.step,
                               p->y.batch,
                               p->y.step,
                               p->d_x.data ? p->d_x.batch : 0,
                               p->d_x.data ? p->d_x.step : 0};
    ejki_cuda_rows rows = ejki_cuda_rows_of(p->channels, (ejk_dtype)p->dtype, strides,
                                            sizeof strides / sizeof *strides);
    if (p->width > MOST_TAPS) rows.vector = 1;
    rows.vector = ejki_min(rows.vector, p->gradient && p->dtype == EJK_DTYPE_F32 ? 2 : 4);
    return rows;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    (void)threads;
    const conv_problem *p = problem;
    const ejki_cuda_rows rows = rows_of(p);
    ejki_cuda_constants constants = {
        {{"ELEMENT", p->dtype}, {"WIDTH", p->width}, {"SILU", p->silu}, {"GRADIENT", p->gradient}},
        4};
    ejki_cuda_constants wide = constants;
    ejki_cuda_add(&constants, "VECTOR", 1);
    ejki_cuda_add(&wide, "VECTOR", rows.vector);
    ejki_cuda_kernels kernels = {.count = 0};
    const char *entry = p->gradient ? "gradients" : "forward";
    ejki_cuda_want(&kernels, TOKENS, text, entry, &constants);
    if (rows.vector > 1) ejki_cuda_want(&kernels, WIDE, text, entry, &wide);
    ejki_cuda_want(&kernels, STATES, text, p->gradient ? "initial_states" : "final_states",
                   &constants);
    if (p->gradient) {
        ejki_cuda_want(&kernels, SUMS, text, "add_sums", &constants);
        launch->workspace_bytes =
            (size_t)(segments_of(p) * (p->width + 1) * p->channels) * sizeof(float);
    }
    return ejki_cuda_ready_all(launch, &kernels);
}

static ejk_status begin(const ejk_run *run, int32_t slot, int64_t blocks, arguments *a) {
    const ejki_cuda_work work = {.slot = slot, .threads = THREADS, .blocks = blocks};
    return ejki_cuda_begin(run, &work, a);
}

static ejk_status run(const ejk_run *run) {
    const conv_problem *p = run->problem;
    const int64_t size = (int64_t)ejk_dtype_size((ejk_dtype)p->dtype);
    const bool states =
        p->width > 1 && (p->gradient ? p->d_before.data != NULL : p->has_after != 0);
    const ejki_cuda_address all[] = {
        {p->x.data, size, "x"},
        {p->y.data, size, p->gradient ? "d_out" : "out"},
        {p->d_x.data, size, "d_x"},
        {p->weight.data, size, "weight"},
        {p->bias, size, "bias"},
        {p->before.data, size, p->pooled ? "conv_state" : "initial_state"},
        {p->after.data, size, p->gradient ? "d_final_state" : "final_state"},
        {p->d_weight.data, size, "d_weight"},
        {p->d_bias, size, "d_bias"},
        {p->d_before.data, size, "d_initial_state"},
        {p->sequences.ends, p->sequences.wide_ends ? 8 : 4, "cu_seqlens"},
        {p->sequences.indices, p->sequences.wide_indices ? 8 : 4, "state_indices"}};
    EJKI_TRY(ejki_cuda_check_addresses(all, sizeof all / sizeof *all));
    arguments a = {*p, run->workspace, segment_of(p)};
    const ejki_cuda_rows rows = rows_of(p);
    const bool wide = ejki_cuda_is_wide(&rows, all, 3);
    const int64_t runs = p->channels / (wide ? rows.vector : 1),
                  tiles = ejki_cdiv(p->channels, THREADS);
    EJKI_TRY(begin(run, wide ? WIDE : TOKENS, ejki_cdiv(segments_of(p) * runs, THREADS), &a));
    if (p->gradient && (p->d_weight.data || p->d_bias))
        EJKI_TRY(begin(run, SUMS, ejki_cdiv((p->width + 1) * p->channels, THREADS), &a));
    return states ? begin(run, STATES, p->sequences.count * tiles, &a) : EJK_OK;
}

EJKI_DECLARE(causal_conv1d_cuda, .version = 1, .prepare = prepare, .run = run)
EJKI_DECLARE(causal_conv1d_vjp_cuda, .version = 1, .prepare = prepare, .run = run)
