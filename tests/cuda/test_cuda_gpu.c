/* SPDX-License-Identifier: Apache-2.0 */
/*
 * On a real GPU: copies, attention_merge against the reference, streams, graphs, other users' contexts. Answers 77
 * where there is no GPU.
 */
#include "device/cuda.h"
#include "operations/attention/merge/cuda/arguments.cuh"
#include "support/context.h"
#include "support/expect.h"
#include "support/gpu_driver.h"
#include "support/random.h"

#include <ejkernel/ejkernel.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 16, CANARY = 64 };

/* ---- Facts and copies ------------------------------------------------------------------------------- */

static void facts_of_the_device(void **state) {
    (void)state;
    int32_t count = 0;
    ejk_gpu_info info;
    ejk_cuda_info cuda;
    EXPECT_OK(ejk_device_count(&count));
    assert_in_range(count, 1, 64);
    EXPECT_OK(ejk_device_info(0, &info));
    EXPECT_OK(ejk_cuda_look(&cuda));
    print_message("%s, %s, %d SMs, %.1f GiB, L2 %.0f MiB, shared %d, driver %d (%s), NVRTC %d %s\n",
                  info.fingerprint, info.architecture, (int)info.multiprocessors,
                  (double)info.memory_bytes / (1 << 30), (double)info.l2_bytes / (1 << 20),
                  (int)info.shared_bytes, (int)cuda.driver, cuda.driver_build, (int)cuda.nvrtc,
                  cuda.nvrtc_path);
    assert_true(strlen(info.name) > 0 && info.capability >= 50 && info.multiprocessors > 0);
    assert_true(info.memory_bytes > 1 << 28 && info.l2_bytes > 0 && info.shared_bytes >= 49152);
    assert_int_equal(strncmp(info.architecture, "sm_", 3), 0);
}

static void elements_survive_the_way(void **state) {
    (void)state;
    static float there[MOST], back[MOST];
    const int64_t shape[] = {16, MOST / 16};
    ejk_owned_tensor first, second;
    EXPECT_OK(ejk_device_tensor_create(0, EJK_DTYPE_F32, 2, shape, &first));
    EXPECT_OK(ejk_device_tensor_create(0, EJK_DTYPE_F32, 2, shape, &second));
    for (int i = 0; i < MOST; i++) there[i] = (float)i * 0.5f;
    const ejk_tensor a = ejk_tensor_2d(there, EJK_DTYPE_F32, 16, MOST / 16),
                     b = ejk_tensor_2d(back, EJK_DTYPE_F32, 16, MOST / 16);
    EXPECT_OK(ejk_device_copy(&a, &first.tensor, NULL));
    EXPECT_OK(ejk_device_copy(&first.tensor, &second.tensor, NULL));
    EXPECT_OK(ejk_device_copy(&second.tensor, &b, NULL));
    assert_memory_equal(there, back, sizeof back);
    void *huge;
    EXPECT_FAIL(OUT_OF_MEMORY, "are free", ejk_device_allocate(0, (size_t)1 << 44, &huge));
    EXPECT_FAIL(INVALID_ARGUMENT, "did not hand out", ejk_device_free(0, there));
    ejk_owned_tensor_close(&first);
    ejk_owned_tensor_close(&second);
}

/* ---- attention_merge -------------------------------------------------------------------------------- */

/* A tensor on both sides, in the middle of what nobody may touch. */
typedef struct twin {
    ejk_tensor here, there;
    ejk_owned_tensor memory, device;
} twin;

/* Rows of `skip` further elements lie between those of the last axis. */
static twin twin_of(ejk_dtype dtype, int32_t rank, const int64_t *shape, int64_t skip) {
    twin made;
    int64_t count = shape[rank - 1] + skip;
    for (int32_t i = 0; i < rank - 1; i++) count *= shape[i];
    count += 2 * CANARY;
    EXPECT_OK(ejk_owned_tensor_create(dtype, 1, &count, &made.memory));
    EXPECT_OK(ejk_device_tensor_create(0, dtype, 1, &count, &made.device));
    const size_t offset = CANARY * ejk_dtype_size(dtype);
    made.here = ejk_tensor_contiguous((char *)made.memory.tensor.data + offset, dtype, rank, shape);
    int64_t step = shape[rank - 1] + skip;
    for (int32_t i = rank - 2; i >= 0; i--) {
        made.here.strides[i] = step;
        step *= shape[i];
    }
    made.there = made.here;
    made.there.data = (char *)made.device.tensor.data + offset;
    made.there.device_type = EJK_DEVICE_CUDA;
    return made;
}

static void twin_close(twin *t) {
    ejk_owned_tensor_close(&t->memory);
    ejk_owned_tensor_close(&t->device);
}

static void send(const twin *t) {
    EXPECT_OK(ejk_device_copy(&t->memory.tensor, &t->device.tensor, NULL));
}

static void fill(twin *t, struct random *r, double spread) {
    const int64_t count = t->memory.tensor.shape[0];
    float *numbers = malloc((size_t)count * sizeof *numbers);
    for (int64_t i = 0; i < count; i++) numbers[i] = (float)(spread * random_normal(r));
    const ejk_tensor from = ejk_tensor_1d(numbers, EJK_DTYPE_F32, count);
    EXPECT_OK(ejk_tensor_copy(&from, &t->memory.tensor));
    free(numbers);
    send(t);
}

static void poison(twin *t) {
    memset(t->memory.tensor.data, 0xff,
           (size_t)t->memory.tensor.shape[0] * ejk_dtype_size(t->memory.tensor.dtype));
    send(t);
}

/* What the device has, against what the CPU has, whose memory has the canaries too. */
static void compare(uint64_t seed, const char *what, const twin *t, double tolerance) {
    const int64_t count = t->memory.tensor.shape[0];
    float *wanted = malloc((size_t)count * sizeof *wanted),
          *got = malloc((size_t)count * sizeof *got);
    const ejk_tensor first = ejk_tensor_1d(wanted, EJK_DTYPE_F32, count),
                     second = ejk_tensor_1d(got, EJK_DTYPE_F32, count);
    EXPECT_OK(ejk_tensor_copy(&t->memory.tensor, &first));
    EXPECT_OK(ejk_device_copy(&t->device.tensor, &second, NULL));
    for (int64_t i = 0; i < count; i++) {
        const double off = fabs((double)got[i] - (double)wanted[i]);
        if (got[i] == wanted[i] || (isnan(got[i]) && isnan(wanted[i])) ||
            off <= tolerance * (1 + fabs((double)wanted[i])))
            continue;
        fail_msg("seed %llu: %s[%d] is %.9g, expected %.9g", (unsigned long long)seed, what, (int)i,
                 (double)got[i], (double)wanted[i]);
    }
    free(wanted);
    free(got);
}

/* Some parts saw nothing: their logarithm is -inf and their elements NaN. */
static void blind(twin *part, twin *lse, int64_t parts, struct random *r) {
    if (!random_chance(r, 0.4)) return;
    const int64_t n = random_int(r, 0, parts - 1), step = part->here.strides[0];
    const size_t size = ejk_dtype_size(part->here.dtype);
    memset((char *)part->here.data + (size_t)(n * step) * size, 0xff, (size_t)step * size);
    float *rows = lse->here.data;
    for (int64_t i = 0; i < lse->here.strides[0]; i++)
        rows[n * lse->here.strides[0] + i] = -INFINITY;
    send(part);
    send(lse);
}

static double tolerance_of(ejk_dtype dtype) {
    return dtype == EJK_DTYPE_F32 ? 2e-6 : dtype == EJK_DTYPE_F16 ? 1e-3 : 8e-3;
}

static void merge_once(uint64_t seed) {
    static const ejk_dtype types[] = {EJK_DTYPE_F32, EJK_DTYPE_BF16, EJK_DTYPE_F16};
    struct random r = {seed};
    const ejk_dtype dtype = types[seed % 3];
    const int64_t n = random_int(&r, 1, 9), b = random_int(&r, 1, 3), t = random_int(&r, 1, 9),
                  h = 2 * random_int(&r, 1, 3),
                  dv = random_chance(&r, 0.5) ? 16 * random_int(&r, 1, 18) : random_int(&r, 1, 70),
                  skip = random_chance(&r, 0.5) ? 0 : random_int(&r, 1, 16),
                  sinks = random_int(&r, 1, 3);
    twin part = twin_of(dtype, 5, (int64_t[]){n, b, t, h, dv}, skip),
         lse = twin_of(EJK_DTYPE_F32, 4, (int64_t[]){n, b, h, t}, 0),
         aux = twin_of(dtype, 2, (int64_t[]){2, sinks}, 0),
         out = twin_of(dtype, 4, (int64_t[]){b, t, h, dv}, random_chance(&r, 0.5) ? 0 : 8),
         all = twin_of(EJK_DTYPE_F32, 3, (int64_t[]){b, h, t}, 0);
    fill(&part, &r, 2);
    fill(&lse, &r, 3);
    fill(&aux, &r, 2);
    blind(&part, &lse, n, &r);
    poison(&out);
    poison(&all);
    ejk_attention_merge_args args = {
        .partial_out = part.there, .partial_lse = lse.there, .out = out.there};
    const bool with_sinks = random_chance(&r, 0.5), with_lse = random_chance(&r, 0.7);
    if (with_sinks) args.softmax_aux = aux.there;
    if (with_lse) args.lse = all.there;
    EXPECT_OK(ejk_call(context, &ejk_attention_merge_kernel, &args));
    EXPECT_OK(ejk_device_synchronise(0, NULL));
    args = (ejk_attention_merge_args){
        .partial_out = part.here, .partial_lse = lse.here, .out = out.here};
    if (with_sinks) args.softmax_aux = aux.here;
    if (with_lse) args.lse = all.here;
    strcpy(args.platform, "reference");
    EXPECT_OK(ejk_call(context, &ejk_attention_merge_kernel, &args));
    compare(seed, "out", &out, tolerance_of(dtype));
    compare(seed, "lse", &all, 2e-6);
    twin_close(&part);
    twin_close(&lse);
    twin_close(&aux);
    twin_close(&out);
    twin_close(&all);
}

static void merge_agrees_with_the_reference(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 48; seed++) merge_once(seed);
}

/* Parts that are not normalised, into every type of result. */
static void accumulators_agree_with_the_reference(void **state) {
    (void)state;
    static const ejk_dtype types[] = {EJK_DTYPE_F32, EJK_DTYPE_BF16, EJK_DTYPE_F16};
    for (uint64_t seed = 0; seed < 6; seed++) {
        struct random r = {seed};
        const int64_t n = 4, b = 2, t = 3, h = 2, dv = seed < 3 ? 128 : 37;
        twin part = twin_of(EJK_DTYPE_F32, 5, (int64_t[]){n, b, t, h, dv}, 0),
             most = twin_of(EJK_DTYPE_F32, 4, (int64_t[]){n, b, h, t}, 0),
             sums = twin_of(EJK_DTYPE_F32, 4, (int64_t[]){n, b, h, t}, 0),
             out = twin_of(types[seed % 3], 4, (int64_t[]){b, t, h, dv}, 0);
        fill(&part, &r, 2);
        fill(&most, &r, 2);
        fill(&sums, &r, 1);
        float *positive = sums.memory.tensor.data;
        for (int64_t i = 0; i < sums.memory.tensor.shape[0]; i++)
            positive[i] = 1 + fabsf(positive[i]);
        send(&sums);
        poison(&out);
        ejk_attention_merge_accumulators_args args = {.accumulator = part.there,
                                                      .row_max = most.there,
                                                      .row_sum = sums.there,
                                                      .out = out.there};
        EXPECT_OK(ejk_attention_merge_accumulators(context, &args));
        EXPECT_OK(ejk_device_synchronise(0, NULL));
        args = (ejk_attention_merge_accumulators_args){
            .accumulator = part.here, .row_max = most.here, .row_sum = sums.here, .out = out.here};
        strcpy(args.platform, "reference");
        EXPECT_OK(ejk_attention_merge_accumulators(context, &args));
        compare(seed, "out", &out, tolerance_of(types[seed % 3]));
        twin_close(&part);
        twin_close(&most);
        twin_close(&sums);
        twin_close(&out);
    }
}

/* ---- Streams and graphs ----------------------------------------------------------------------------- */

static void a_plan_goes_into_a_graph(void **state) {
    (void)state;
    enum { N = 8, B = 2, T = 16, H = 8, D = 128 };
    struct random r = {5};
    twin part = twin_of(EJK_DTYPE_BF16, 5, (int64_t[]){N, B, T, H, D}, 0),
         lse = twin_of(EJK_DTYPE_F32, 4, (int64_t[]){N, B, H, T}, 0),
         out = twin_of(EJK_DTYPE_BF16, 4, (int64_t[]){B, T, H, D}, 0);
    fill(&part, &r, 1);
    fill(&lse, &r, 1);
    poison(&out);
    const ejk_attention_merge_args args = {
        .partial_out = part.there, .partial_lse = lse.there, .out = out.there};
    ejk_plan *plan;
    void *current = &plan;
    EXPECT_OK(ejk_plan_create(context, &ejk_attention_merge_kernel, &args, &plan));
    /* The thread has no context of its own, and still none after a call. */
    assert_int_equal(gpu_driver("cuCtxGetCurrent", &current, NULL, NULL), 0);
    assert_null(current);
    gpu_enter();
    void *stream = gpu_stream_create();
    gpu_graph_begin(stream);
    for (int i = 0; i < 3; i++) EXPECT_OK(ejk_plan_execute_on(plan, &args, NULL, 0, stream));
    struct gpu_graph graph = gpu_graph_end(stream);
    gpu_graph_launch(&graph, stream);
    EXPECT_OK(ejk_device_synchronise(0, stream));
    ejk_attention_merge_args here = {
        .partial_out = part.here, .partial_lse = lse.here, .out = out.here};
    strcpy(here.platform, "reference");
    EXPECT_OK(ejk_call(context, &ejk_attention_merge_kernel, &here));
    compare(0, "out", &out, tolerance_of(EJK_DTYPE_BF16));
    ejk_plan_destroy(plan);
    gpu_graph_destroy(&graph);
    gpu_stream_destroy(stream);
    gpu_leave();
    twin_close(&part);
    twin_close(&lse);
    twin_close(&out);
}

/* Host seconds of a launch that finds nothing to do. */
static double bare_launch(int calls) {
    const ejki_cuda_constant constants[] = {
        {"ELEMENT", EJK_DTYPE_F32}, {"OUT", EJK_DTYPE_F32}, {"VECTOR", 1}, {"LANES", 32}};
    ejki_cuda_function_t *function;
    merge_arguments nothing = {.sink_group = 1};
    void *arguments[] = {&nothing};
    const ejki_cuda_launch how = {.grid = {1, 1, 1}, .block = {256, 1, 1}};
    EXPECT_OK(ejki_cuda_function(0, ejki_cuda_text("operations/attention/merge/cuda/merge.cu"),
                                 "merge", constants, 4, &function));
    const double start = ejk_now();
    for (int i = 0; i < calls; i++) EXPECT_OK(ejki_cuda_run(function, &how, arguments));
    const double seconds = (ejk_now() - start) / calls;
    EXPECT_OK(ejk_device_synchronise(0, NULL));
    return seconds;
}

static void first_use_and_warm_calls(void **state) {
    (void)state;
    enum { N = 8, B = 1, T = 1024, H = 32, D = 128, CALLS = 200 };
    twin part = twin_of(EJK_DTYPE_BF16, 5, (int64_t[]){N, B, T, H, D}, 0),
         lse = twin_of(EJK_DTYPE_F32, 4, (int64_t[]){N, B, H, T}, 0),
         out = twin_of(EJK_DTYPE_BF16, 4, (int64_t[]){B, T, H, D}, 0);
    struct random r = {1};
    fill(&lse, &r, 1);
    send(&part);
    const ejk_attention_merge_args args = {
        .partial_out = part.there, .partial_lse = lse.there, .out = out.there};
    double start = ejk_now();
    EXPECT_OK(ejk_call(context, &ejk_attention_merge_kernel, &args));
    EXPECT_OK(ejk_device_synchronise(0, NULL));
    const double first = ejk_now() - start;
    start = ejk_now();
    for (int i = 0; i < CALLS; i++)
        EXPECT_OK(ejk_call(context, &ejk_attention_merge_kernel, &args));
    const double host = (ejk_now() - start) / CALLS;
    EXPECT_OK(ejk_device_synchronise(0, NULL));
    const double whole = (ejk_now() - start) / CALLS;
    const double bytes = (double)B * T * H * (N * (2 * D + 4) + 2 * D);
    bare_launch(CALLS);
    print_message("merge of %d parts, %d rows of %d: first call %.3f ms, then %.2f us on the host "
                  "(%.2f a bare launch), %.2f us each, %.0f GB/s\n",
                  N, B * T * H, D, first * 1e3, host * 1e6, bare_launch(CALLS) * 1e6, whole * 1e6,
                  bytes / whole * 1e-9);
    twin_close(&part);
    twin_close(&lse);
    twin_close(&out);
}

int main(void) {
    if (!gpu_is_here()) return GPU_SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(facts_of_the_device),
        cmocka_unit_test(elements_survive_the_way),
        cmocka_unit_test(merge_agrees_with_the_reference),
        cmocka_unit_test(accumulators_agree_with_the_reference),
        cmocka_unit_test(a_plan_goes_into_a_graph),
        cmocka_unit_test(first_use_and_warm_calls),
    };
    return cmocka_run_group_tests_name("cuda_gpu", tests, context_set_up, context_tear_down);
}
