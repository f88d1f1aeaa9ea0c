/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What measures calls on a GPU: times by events, what the host does, first use, tuning. The driver is the tests'
 * own, whose events have the time of the CPU and whose launches fill all memory with zeros.
 */
#include "cuda/cuda_world.h"

#include <ejkernel/ejkernel.h>
#include <math.h>

static void use_zeros(void) {
    setenv("FAKE_CUDA_CLEARS", "1", 1);
}

/* Of heads that forward_mma.cu alone takes. */
static ejk_flash_attention_args call_of(ejk_dtype dtype, void *data) {
    const int64_t shape[] = {1, 64, 2, 160};
    ejk_flash_attention_args args = {.causal = true};
    args.query = ejk_device_tensor(data, 0, dtype, 4, shape);
    args.key = args.value = args.out = args.query;
    return args;
}

/* ---- Times ------------------------------------------------------------------------------------------- */

typedef struct counter {
    int calls, refuse_from;
} counter;

static ejk_status count(void *user) {
    counter *c = user;
    if (++c->calls == c->refuse_from) return EJK_STATUS_INTERNAL;
    usleep(200);
    return EJK_OK;
}

static bool times(const void *unused) {
    (void)unused;
    counter c = {0, 0};
    ejk_gpu_times found = {.rows = -7};
    ejk_gpu_measure_options options = {.repetitions = 4, .rows = 3, .row = 6};
    WORKS(ejk_gpu_measure(&options, count, &c, &found));
    HOLDS(c.calls == 2 + 4 + 3 * 6);
    HOLDS(found.repetitions == 4 && found.rows == 3 && found.row == 6);
    HOLDS(found.alone_s >= 200e-6 && found.in_a_row_s >= 200e-6);
    HOLDS(found.alone_p10_s <= found.alone_s && found.alone_s <= found.alone_p90_s);
    HOLDS(found.in_a_row_p10_s <= found.in_a_row_p90_s);
    HOLDS(seen()->live == 0 && seen()->events == 0);
    ejk_gpu_times kept = found;
    c.refuse_from = c.calls + 5;
    HOLDS(ejk_gpu_measure(&options, count, &c, &found) == EJK_STATUS_INTERNAL);
    HOLDS(memcmp(&kept, &found, sizeof kept) == 0);
    HOLDS(seen()->live == 0 && seen()->events == 0);
    options = (ejk_gpu_measure_options){0};
    c = (counter){0, 0};
    WORKS(ejk_gpu_measure(&options, count, &c, &found));
    HOLDS(c.calls == 2 + 10 + 5 * 10);
    options.rows = 1001;
    FAILS(INVALID_ARGUMENT, "rows is 1001, expected 1 to 1000",
          ejk_gpu_measure(&options, count, &c, &found));
    options = (ejk_gpu_measure_options){.pause_s = NAN};
    FAILS(INVALID_ARGUMENT, "pause_s is nan", ejk_gpu_measure(&options, count, &c, &found));
    options = (ejk_gpu_measure_options){.device = 2};
    FAILS(INVALID_ARGUMENT, "device is 2", ejk_gpu_measure(&options, count, &c, &found));
    options = (ejk_gpu_measure_options){.graph = true};
    FAILS(INVALID_ARGUMENT, "stream is NULL", ejk_gpu_measure(&options, count, &c, &found));
    FAILS(INVALID_ARGUMENT, "options is NULL", ejk_gpu_measure(NULL, count, &c, &found));
    FAILS(INVALID_ARGUMENT, "enqueue is NULL", ejk_gpu_measure(&options, NULL, &c, &found));
    return true;
}

/* Calls are captured once, as many as a row has, and then launched together. */
static bool graphs(const void *unused) {
    (void)unused;
    int stream;
    counter c = {0, 0};
    ejk_gpu_times found;
    const ejk_gpu_measure_options options = {
        .stream = &stream, .repetitions = 1, .rows = 3, .row = 6, .graph = true};
    WORKS(ejk_gpu_measure(&options, count, &c, &found));
    HOLDS(c.calls == 2 + 1 + 3 * 6 + 6 && seen()->graph_launches == 1 + 3);
    HOLDS(seen()->stream == &stream && seen()->graphs == 0 && seen()->live == 0);
    HOLDS(found.graph_s > 0 &&
          found.graph_s < found.in_a_row_s); /* of six calls that take 200 us each */
    HOLDS(found.graph_p10_s <= found.graph_s && found.graph_s <= found.graph_p90_s);
    c = (counter){0, 2 + 1 + 3 * 6 + 4};
    HOLDS(ejk_gpu_measure(&options, count, &c, &found) == EJK_STATUS_INTERNAL);
    HOLDS(seen()->graphs == 0 && seen()->live == 0 && seen()->events == 0);
    c = (counter){0, 0}; /* the stream is captured no longer */
    WORKS(ejk_gpu_measure(&options, count, &c, &found));
    return true;
}

static bool ceilings(const void *unused) {
    (void)unused;
    ejk_gpu_ceiling peak, read;
    double launch = -1;
    WORKS(ejk_gpu_measure_peak(1, EJK_DTYPE_BF16, &peak));
    WORKS(ejk_gpu_measure_bandwidth(0, &read));
    WORKS(ejk_gpu_measure_launch(0, &launch));
    HOLDS(peak.alone > 0 && peak.in_a_row > 0 && read.alone > 0 && read.in_a_row > 0);
    HOLDS(launch > 0 && seen()->live == 0 && compiled() == 2); /* for bf16, and for the others */
    WORKS(ejk_gpu_measure_peak(1, EJK_DTYPE_F32, &peak));
    FAILS(INVALID_DTYPE, "dtype is int32", ejk_gpu_measure_peak(0, EJK_DTYPE_I32, &peak));
    FAILS(INVALID_ARGUMENT, "out is NULL", ejk_gpu_measure_peak(0, EJK_DTYPE_F32, NULL));
    FAILS(INVALID_ARGUMENT, "device is 2", ejk_gpu_measure_bandwidth(2, &read));
    return true;
}

static void times_by_events(void **state) {
    (void)state;
    IN_CHILD(times);
    IN_CHILD(graphs);
    IN_CHILD(ceilings);
}

/* ---- Plans ------------------------------------------------------------------------------------------- */

static bool host_cost(const void *unused) {
    (void)unused;
    void *room;
    ejk_context *context;
    ejk_plan *plan;
    ejk_host_cost cost;
    WORKS(ejk_device_allocate(0, 1 << 20, &room));
    WORKS(ejk_context_create(NULL, &context));
    ejk_flash_attention_args args = call_of(EJK_DTYPE_BF16, room);
    args.out.data = (char *)room + (1 << 19);
    WORKS(ejk_plan_create(context, &ejk_flash_attention_kernel, &args, &plan));
    const int before = seen()->launches;
    WORKS(ejk_plan_measure_host(plan, &args, &cost));
    HOLDS(seen()->launches - before == 1600);
    HOLDS(fabs(cost.launches - 1) < 1e-9);
    HOLDS(cost.driver_s > 0 && cost.beyond_s > 0 && cost.plan_s > cost.beyond_s);
    ejk_plan_destroy(plan);
    float numbers[64];
    const int64_t shape[] = {1, 1, 1, 8};
    const ejk_tensor here = ejk_tensor_contiguous(numbers, EJK_DTYPE_F32, 4, shape);
    args = (ejk_flash_attention_args){.query = here, .key = here, .value = here, .out = here};
    args.out.data = numbers + 8;
    WORKS(ejk_plan_create(context, &ejk_flash_attention_kernel, &args, &plan));
    FAILS(INVALID_ARGUMENT, "the plan is for the CPU", ejk_plan_measure_host(plan, &args, &cost));
    FAILS(INVALID_ARGUMENT, "args is NULL", ejk_plan_measure_host(plan, NULL, &cost));
    ejk_plan_destroy(plan);
    ejk_context_destroy(context);
    return true;
}

static bool first_use(const void *unused) {
    (void)unused;
    ejk_context *context;
    ejk_first_use first;
    ejk_plan *plan;
    const ejk_kernel *kernel = &ejk_flash_attention_kernel;
    ejk_flash_attention_args args = call_of(EJK_DTYPE_BF16, NULL);
    WORKS(ejk_context_create(NULL, &context));
    WORKS(ejk_plan_create(context, kernel, &args, &plan));
    HOLDS(compiled() == 1 && seen()->loaded == 1);
    /* The plan's own kernel stays, and is not what is measured. */
    WORKS(ejk_plan_measure_first_use(context, kernel, &args, &first));
    HOLDS(first.kernels == 1 && first.compile_s > 0 && first.load_s > 0);
    HOLDS(compiled() == 2 && seen()->loaded == 1);
    ejk_plan_destroy(plan);
    setenv("FAKE_NVRTC_REFUSED", "forward_mma", 1);
    first = (ejk_first_use){.kernels = 77};
    HOLDS(ejk_plan_measure_first_use(context, kernel, &args, &first) == EJK_STATUS_UNAVAILABLE);
    HOLDS(first.kernels == 77);
    WORKS(ejk_plan_create(context, kernel, &args, &plan)); /* which this process has */
    ejk_plan_destroy(plan);
    args.query.device_type = args.key.device_type = EJK_DEVICE_CPU;
    FAILS(INVALID_ARGUMENT, "lie on the CPU",
          ejk_plan_measure_first_use(context, kernel, &args, &first));
    ejk_context_destroy(context);
    return true;
}

/* Where nothing can be written, there is nothing to be loaded. */
static bool first_use_without_a_disk(const void *unused) {
    (void)unused;
    ejk_context *context;
    ejk_first_use first;
    const ejk_flash_attention_args args = call_of(EJK_DTYPE_BF16, NULL);
    const int before = compiled();
    setenv("EJKERNEL_CUDA_CACHE", "/proc/nowhere", 1);
    WORKS(ejk_context_create(NULL, &context));
    WORKS(ejk_plan_measure_first_use(context, &ejk_flash_attention_kernel, &args, &first));
    HOLDS(first.compile_s > 0 && first.load_s == 0 && compiled() == before + 6);
    ejk_context_destroy(context);
    return true;
}

static void costs_of_plans(void **state) {
    (void)state;
    IN_CHILD(host_cost);
    IN_CHILD(first_use);
    IN_CHILD(first_use_without_a_disk);
}

/* ---- Why an implementation --------------------------------------------------------------------------- */

static bool reasons(const void *unused) {
    (void)unused;
    ejk_context *context;
    ejk_plan *plan;
    char *text;
    ejk_flash_attention_args args = call_of(EJK_DTYPE_BF16, NULL);
    WORKS(ejk_context_create(NULL, &context));
    WORKS(ejk_plan_create(context, &ejk_flash_attention_kernel, &args, &plan));
    WORKS(ejk_plan_explain(plan, &text));
    HOLDS(strstr(text, "\"verdict\":\"chosen\""));
    HOLDS(strstr(text, "takes float16, the tensors have bfloat16"));
    HOLDS(strstr(text, "is for tensors on the CPU"));
    HOLDS(strstr(text, "another one is preferred"));
    ejk_free(text);
    FAILS(INVALID_ARGUMENT, "out is NULL", ejk_plan_explain(plan, NULL));
    ejk_plan_destroy(plan);
    ejk_context_destroy(context);
    return true;
}

static bool reasons_of_the_registry(const void *unused) {
    (void)unused;
    char why[200];
    const ejk_implementation new_only = {.platform = EJK_PLATFORM_CUDA,
                                         .backend = EJK_BACKEND_GPU,
                                         .least_capability = 100},
                             old_only = {.platform = EJK_PLATFORM_CUDA,
                                         .backend = EJK_BACKEND_GPU,
                                         .most_capability = 89};
    ejk_query query = {.place = EJK_BACKEND_GPU, .capability = 90};
    WORKS(ejk_registry_explain(&query, &new_only, why, sizeof why));
    HOLDS(strcmp(why, "needs compute capability 10.0 or later, the GPU has 9.0") == 0);
    WORKS(ejk_registry_explain(&query, &old_only, why, sizeof why));
    HOLDS(strcmp(why, "is for compute capabilities up to 8.9, the GPU has 9.0") == 0);
    WORKS(ejk_registry_explain(&query, &old_only, why, 6));
    HOLDS(strcmp(why, "is fo") == 0);
    query.capability = 89;
    WORKS(ejk_registry_explain(&query, &old_only, why, sizeof why));
    HOLDS(strcmp(why, "") == 0);
    query.place = EJK_BACKEND_CPU;
    WORKS(ejk_registry_explain(&query, &old_only, why, sizeof why));
    HOLDS(strcmp(why, "is for tensors on a GPU") == 0);
    FAILS(INVALID_ARGUMENT, "out", ejk_registry_explain(&query, &old_only, why, 0));
    return true;
}

static void explanations(void **state) {
    (void)state;
    IN_CHILD(reasons);
    IN_CHILD(reasons_of_the_registry);
}

/* ---- Tuning ------------------------------------------------------------------------------------------ */

static ejk_autotune_options quickly(void) {
    return (ejk_autotune_options){
        .tuner = {
            .iters = 1, .max_rounds = 1, .time_s = 60, .sample_s = {.value = 0, .set = true}}};
}

static bool one_does_not_compile(const void *unused) {
    (void)unused;
    ejk_context *context;
    ejk_tune_report *report;
    ejk_flash_attention_config best;
    const ejk_autotune_options options = quickly();
    const ejk_flash_attention_args args = call_of(EJK_DTYPE_BF16, NULL);
    use_zeros();
    setenv("FAKE_NVRTC_REFUSED", "-DWARPS=(8)", 1);
    WORKS(ejk_context_create(NULL, &context));
    WORKS(
        ejk_autotune(context, &ejk_flash_attention_kernel, &args, &options, &best, &report, NULL));
    int failed = 0;
    for (int32_t i = 0; i < report->count; i++) {
        const ejk_tune_candidate *each = &report->candidates[i];
        const bool refused = strstr(each->description, "\"num_warps\":8") != NULL;
        HOLDS(refused == (each->verdict == EJK_TUNE_VERDICT_FAILED));
        HOLDS(!refused || strstr(each->sentence, "forward_mma.cu cannot be compiled"));
        HOLDS(refused || each->difference == 0);
        failed += refused;
    }
    HOLDS(report->count > 4 && failed > 0);
    HOLDS(best.fwd_params.num_warps.set && best.fwd_params.num_warps.value != 8);
    ejk_tune_report_destroy(report);
    ejk_context_destroy(context);
    HOLDS(seen()->live == 0 && seen()->events == 0);
    return true;
}

static void note(void *user, const ejk_tuned_call *call) {
    snprintf(user, 256, "%s", call->key->device);
}

/* What was chosen is kept under the GPU's fingerprint, and found from there. */
static bool choices_are_kept(const void *unused) {
    (void)unused;
    ejk_context *context;
    ejk_persistent_cache *file;
    const ejk_persistent_options where = {.path = in_folder("choices.db")};
    const ejk_autotune_options options = quickly();
    const ejk_flash_attention_args args = call_of(EJK_DTYPE_F16, NULL);
    char device[256] = "";
    use_zeros();
    WORKS(ejk_context_create(NULL, &context));
    for (int pass = 0; pass < 2; pass++) {
        ejk_config_selector_chain *chain;
        ejk_executor *executor;
        ejk_plan *plan;
        WORKS(ejk_persistent_cache_open(&where, &file));
        WORKS(ejk_config_selector_chain_create(&(ejk_config_selector_options){.persistent = file},
                                               &chain));
        WORKS(ejk_executor_create(context, &(ejk_executor_options){.selector = chain}, &executor));
        if (pass == 0)
            WORKS(ejk_executor_autotune(executor, &ejk_flash_attention_kernel, &args, &options,
                                        note, device));
        WORKS(ejk_executor_compile(executor, &ejk_flash_attention_kernel, &args, NULL, &plan));
        HOLDS(ejk_plan_step(plan) == (pass ? EJK_CHOICE_PERSISTENT : EJK_CHOICE_MEMORY));
        ejk_plan_destroy(plan);
        ejk_executor_destroy(executor);
        ejk_config_selector_chain_destroy(chain);
        ejk_persistent_cache_close(file);
    }
    HOLDS(strcmp(device, "gpu|Fake   GPU 0; 9.0; 13.0") == 0);
    ejk_context_destroy(context);
    HOLDS(seen()->live == 0);
    return true;
}

/* Gradients, whose forward results the tuner computes; and decoding, whose inputs rotate. */
static bool other_calls(const void *unused) {
    (void)unused;
    ejk_context *context;
    ejk_tune_report *report;
    ejk_flash_attention_config best;
    ejk_autotune_options options = quickly();
    ejk_flash_attention_args args = call_of(EJK_DTYPE_BF16, NULL);
    use_zeros();
    WORKS(ejk_context_create(NULL, &context));
    options.pass = EJK_TUNE_BOTH;
    WORKS(
        ejk_autotune(context, &ejk_flash_attention_kernel, &args, &options, &best, &report, NULL));
    HOLDS(report->backward && report->backward->count > 1);
    HOLDS(best.bwd_params.q_blocksize.set);
    ejk_tune_report_destroy(report);
    options.pass = EJK_TUNE_FORWARD;
    const int64_t one[] = {1, 1, 2, 64}, many[] = {1, 512, 2, 64};
    args = (ejk_flash_attention_args){.query = ejk_device_tensor(NULL, 1, EJK_DTYPE_BF16, 4, one),
                                      .key = ejk_device_tensor(NULL, 1, EJK_DTYPE_BF16, 4, many),
                                      .value = ejk_device_tensor(NULL, 1, EJK_DTYPE_BF16, 4, many),
                                      .out = ejk_device_tensor(NULL, 1, EJK_DTYPE_BF16, 4, one)};
    /* Heads first, so that results do not lie one after the other. */
    args.key.strides[2] = args.value.strides[2] = 512 * 64;
    args.key.strides[1] = args.value.strides[1] = 64;
    WORKS(
        ejk_autotune(context, &ejk_flash_attention_kernel, &args, &options, &best, &report, NULL));
    HOLDS(report->candidates[0].difference == 0);
    ejk_tune_report_destroy(report);
    ejk_context_destroy(context);
    HOLDS(seen()->live == 0 && seen()->events == 0);
    return true;
}

static void tuning(void **state) {
    (void)state;
    IN_CHILD(one_does_not_compile);
    IN_CHILD(choices_are_kept);
    IN_CHILD(other_calls);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
    const struct CMUnitTest tests[] = {
        TEST(times_by_events),
        TEST(costs_of_plans),
        TEST(explanations),
        TEST(tuning),
    };
    return cmocka_run_group_tests_name("cuda_measure", tests, NULL, NULL);
}
