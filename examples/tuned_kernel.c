/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel of one's own that decides on its configuration: out = a·b, computed in blocks. It has a rule for
 * the block size, three configurations worth measuring, hooks for platforms and a gradient. An executor calls
 * it with the rule's choice, an explicit one, a measured one, one of a scope, and over a batch.
 * custom_kernel.c shows the other way: implementations in the registry.
 */
#include <ejkernel/ejkernel.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- 1. Configuration and arguments ----------------------------------------------------------------- */

#define MY_CONFIG(F, R)                                                                            \
    F(OPT_INT, block_size, EJK_OPTIONAL, "128", "", "rows and terms of a sum taken at a time")     \
    F(OPT_INT, num_warps, EJK_OPTIONAL, "4", "warps", "of a GPU; without effect on a CPU")         \
    F(NAME, algorithm, EJK_OPTIONAL, "default", "", "variant")

#define MY_ARGS(F, R)                                                                              \
    F(TENSOR, a, EJK_REQUIRED, "", "[M,K] float32", "left factor")                                 \
    F(TENSOR, b, EJK_REQUIRED, "", "[K,N] float32", "right factor")                                \
    F(NAME, platform, EJK_OPTIONAL, "auto", "", "whose hook runs")                                 \
    R(my_config, cfg, my_config_record, "explicit configuration")                                  \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[M,N] float32", "the product")

EJK_RECORD_STRUCT(my_config, MY_CONFIG);
#define EJK_RECORD_SELF my_config
EJK_RECORD_DEFINE(my_config_record, my_config, MY_CONFIG);
#undef EJK_RECORD_SELF

EJK_RECORD_STRUCT(my_args, MY_ARGS);
#define EJK_RECORD_SELF my_args
EJK_RECORD_DEFINE(my_args_record, my_args, MY_ARGS);
#undef EJK_RECORD_SELF

static my_config config_of(int64_t block_size, int64_t num_warps) {
    return (my_config){
        .block_size = ejk_int(block_size), .num_warps = ejk_int(num_warps), .algorithm = "default"};
}

/* ---- 2. The kernel ---------------------------------------------------------------------------------- */

static const char *ran; /* the hook of the last call */

static float *at(const ejk_tensor *t, int64_t row, int64_t column) {
    return (float *)t->data + row * t->strides[0] + column * t->strides[1];
}

static ejk_tensor transposed(ejk_tensor t) {
    const int64_t shape = t.shape[0], stride = t.strides[0];
    t.shape[0] = t.shape[1], t.strides[0] = t.strides[1];
    t.shape[1] = shape, t.strides[1] = stride;
    return t;
}

/* By the formula; nothing is done for a result without element type, which is not wanted. */
static void multiply(const ejk_tensor *left, const ejk_tensor *right, const ejk_tensor *result) {
    for (int64_t i = 0; result->dtype && i < result->shape[0]; i++)
        for (int64_t j = 0; j < result->shape[1]; j++) {
            double sum = 0;
            for (int64_t k = 0; k < left->shape[1]; k++)
                sum += (double)*at(left, i, k) * *at(right, k, j);
            *at(result, i, j) = (float)sum;
        }
}

static ejk_status run_reference(const ejk_hook_call *call) {
    const my_args *args = call->args;
    ran = "run_reference";
    multiply(&args->a, &args->b, &args->out);
    return EJK_OK;
}

/* One block of rows: the rows of b that are in use stay in the cache until all rows of a have had them. */
static void run_block(void *argument, int64_t index) {
    const ejk_hook_call *call = argument;
    const my_args *args = call->args;
    const int64_t block = ((const my_config *)call->config)->block_size.value;
    const int64_t columns = args->out.shape[1], terms = args->a.shape[1];
    const int64_t rows = args->out.shape[0], begin = index * block;
    const int64_t end = begin + block < rows ? begin + block : rows;
    for (int64_t i = begin; i < end; i++)
        for (int64_t j = 0; j < columns; j++) *at(&args->out, i, j) = 0;
    for (int64_t first = 0; first < terms; first += block)
        for (int64_t i = begin; i < end; i++)
            for (int64_t k = first; k < first + block && k < terms; k++) {
                const float factor = *at(&args->a, i, k), *row = at(&args->b, k, 0);
                float *out = at(&args->out, i, 0);
                for (int64_t j = 0; j < columns; j++) out[j] += factor * row[j];
            }
}

static ejk_status run_simd(const ejk_hook_call *call) {
    const my_args *args = call->args;
    const int64_t block = ((const my_config *)call->config)->block_size.value;
    ran = "run_simd";
    ejk_parallel_for(call->threads, (args->out.shape[0] + block - 1) / block, run_block,
                     (void *)(uintptr_t)call);
    return EJK_OK;
}

/* For platforms without a hook of their own. */
static ejk_status run(const ejk_hook_call *call) {
    const ejk_status status = run_reference(call);
    ran = "run";
    return status;
}

/* da = ct·bᵀ, db = aᵀ·ct. */
static ejk_status custom_vjp(const ejk_hook_call *call) {
    const my_args *args = call->args;
    const ejk_tensor a_t = transposed(args->a), b_t = transposed(args->b);
    multiply(&call->cotangents[0], &b_t, &call->gradients[0]);
    multiply(&a_t, &call->cotangents[0], &call->gradients[1]);
    return EJK_OK;
}

static void heuristic_cfg(const ejk_invocation *invocation, void *config) {
    const my_args *args = invocation->args;
    *(my_config *)config = config_of(args->a.shape[0] >= 128 ? 128 : 64, 4);
}

static ejk_status config_space(const ejk_invocation *invocation, void *configs, int32_t capacity,
                               int32_t *count) {
    const my_config space[] = {config_of(64, 2), config_of(128, 4), config_of(256, 8)};
    (void)invocation;
    *count = capacity < 3 ? capacity : 3;
    memcpy(configs, space, (size_t)*count * sizeof *space);
    return EJK_OK;
}

static const ejk_hook hooks[] = {
    {.name = "run", .call = run},
    {.name = "run_simd", .call = run_simd},
    {.name = "run_reference", .call = run_reference},
    {.name = "custom_vjp", .call = custom_vjp},
    {.name = "heuristic_cfg", .heuristic_cfg = heuristic_cfg},
    {.name = "config_space", .candidate_cfgs = config_space},
};

static const ejk_kernel my_kernel = {
    .op_id = "my_kernel",
    .doc = "product of two matrices",
    .args = &my_args_record,
    .config = &my_config_record,
    .config_field = "cfg",
    .parameters_field = "",
    .hooks = hooks,
    .hook_count = sizeof hooks / sizeof *hooks,
};

/* ---- 3. Using it ------------------------------------------------------------------------------------ */

enum { BATCH = 3, M = 150, K = 70, N = 90 };

static float a[BATCH * M * K], b[BATCH * K * N], out[BATCH * M * N];
static int wrong;

static void expect(bool holds, const char *what) {
    printf("%s  %s\n", holds ? "   ok" : "WRONG", what);
    wrong += !holds;
}

static void must(ejk_status status) {
    if (status == EJK_OK) return;
    fprintf(stderr, "%s: %s\n", ejk_status_name(status), ejk_last_error());
    exit(1);
}

static my_args call_of(int64_t rows) {
    return (my_args){.a = ejk_tensor_2d(a, EJK_DTYPE_F32, rows, K),
                     .b = ejk_tensor_2d(b, EJK_DTYPE_F32, K, N),
                     .out = ejk_tensor_2d(out, EJK_DTYPE_F32, rows, N)};
}

/* True if `count` products, one after the other in the arrays, are right; clears them. */
static bool right(int64_t count, int64_t rows) {
    double worst = 0;
    for (int64_t n = 0; n < count; n++)
        for (int64_t i = 0; i < rows * N; i++) {
            double sum = 0;
            for (int64_t k = 0; k < K; k++)
                sum += (double)a[(n * rows + i / N) * K + k] * b[(n * K + k) * N + i % N];
            worst = fmax(worst, fabs(sum - out[n * rows * N + i]));
        }
    memset(out, 0, sizeof out);
    return worst < 1e-4;
}

/* A call would be made with this block size (0 = any), chosen by this step. */
static void expect_choice(ejk_executor *executor, const my_args *args, const my_config *cfg,
                          ejk_choice_step step, int64_t block_size, const char *what) {
    my_config config;
    ejk_choice_step chosen_by;
    must(ejk_executor_choose_config(executor, &my_kernel, args, &(ejk_call_options){.cfg = cfg},
                                    &config, &chosen_by));
    printf("       %s chooses block_size %lld\n", ejk_choice_step_name(chosen_by),
           (long long)config.block_size.value);
    expect(chosen_by == step && (!block_size || config.block_size.value == block_size), what);
}

static void call_by_rule_and_by_hand(ejk_executor *executor) {
    my_args small = call_of(100), large = call_of(M);
    expect_choice(executor, &small, NULL, EJK_CHOICE_HEURISTICS, 64, "64 below 128 rows");
    expect_choice(executor, &large, NULL, EJK_CHOICE_HEURISTICS, 128, "128 from there on");
    static const char *const platforms[] = {"auto", "reference", "xla"};
    static const char *const expected[] = {"run_simd", "run_reference", "run"};
    for (int i = 0; i < 3; i++) {
        snprintf(large.platform, sizeof large.platform, "%s", platforms[i]);
        must(ejk_executor_call(executor, &my_kernel, &large, NULL));
        printf("       platform %s runs %s\n", platforms[i], ran);
        expect(right(1, M) && strcmp(ran, expected[i]) == 0, "the hook that fits best");
    }
    const my_config mine = config_of(32, 4);
    expect_choice(executor, &small, &mine, EJK_CHOICE_OVERRIDE, 32, "an explicit configuration");
    must(ejk_executor_call(executor, &my_kernel, &small, &(ejk_call_options){.cfg = &mine}));
    expect(right(1, 100), "is honoured");
}

/* A configuration put where calls of this device, operation, shape and type look. */
static void use_overlay(ejk_executor *executor) {
    const my_args args = call_of(100);
    ejk_config_cache *cache;
    char *op_id, call_key[EJK_SHORT_HASH_SIZE], text[] = "{\"block_size\":16}";
    must(ejk_config_cache_create(0, &cache));
    must(ejk_versioned_op_id(&my_kernel, &op_id));
    must(ejk_call_key(&my_kernel, &args, NULL, NULL, call_key));
    const ejk_config_key key = {ejk_device_fingerprint(), op_id, call_key, NULL, 0, EJK_FORWARD};
    must(ejk_config_cache_put(cache, &key, &(ejk_config_entry){.config = text}));
    ejk_overlay_scope scope;
    ejk_overlay_cache_begin(&scope, cache);
    expect_choice(executor, &args, NULL, EJK_CHOICE_OVERLAY, 16, "a scope's own cache");
    ejk_overlay_cache_end(&scope);
    expect_choice(executor, &args, NULL, EJK_CHOICE_HEURISTICS, 64, "ends with the scope");
    ejk_config_cache_destroy(cache);
    ejk_free(op_id);
}

static void tune(ejk_context *context, ejk_executor *executor) {
    const my_args args = call_of(M);
    my_config configs[3], best;
    int32_t count;
    must(config_space(NULL, configs, 3, &count));
    const ejk_autotune_options options = {
        .configs = configs,
        .config_count = count,
        .tuner = {.warmup = ejk_int(3), .iters = 10, .time_s = 0.5}};
    ejk_tune_report *report;
    must(ejk_autotune(context, &my_kernel, &args, &options, &best, &report, NULL));
    for (int32_t i = 0; i < report->count; i++)
        printf("       %s  %.1f us  %s\n", report->candidates[i].description,
               report->candidates[i].median_s * 1e6,
               ejk_tune_verdict_name(report->candidates[i].verdict));
    expect(best.block_size.value >= 64 && best.block_size.value <= 256, "measuring chose one");
    ejk_tune_report_destroy(report);
    expect_choice(executor, &args, NULL, EJK_CHOICE_AUTOTUNE, 0, "a chain measures by itself");
    expect_choice(executor, &args, NULL, EJK_CHOICE_MEMORY, 0, "once");
}

static void map_over_a_batch(ejk_executor *executor) {
    const my_args args = {.a = ejk_tensor_3d(a, EJK_DTYPE_F32, BATCH, M, K),
                          .b = ejk_tensor_3d(b, EJK_DTYPE_F32, BATCH, K, N),
                          .out = ejk_tensor_3d(out, EJK_DTYPE_F32, BATCH, M, N)};
    must(ejk_vmap_with_config(executor, &my_kernel, &args, NULL, NULL));
    expect(right(BATCH, M), "one configuration for all of a batch");
}

/* The product's weighted sum is linear in each element, so that a difference of any width is its slope. */
static double slope(ejk_executor *executor, const my_args *args, float *element, const float *ct) {
    double sum[2] = {0, 0};
    const float before = *element;
    for (int side = 0; side < 2; side++) {
        *element = before + (side ? 1.0F : -1.0F);
        must(ejk_executor_call(executor, &my_kernel, args, NULL));
        for (int64_t i = 0; i < M * N; i++) sum[side] += (double)ct[i] * out[i];
    }
    *element = before;
    return (sum[1] - sum[0]) / 2;
}

static void check_gradient(ejk_executor *executor) {
    static float ct[M * N], da[M * K], db[K * N];
    const my_args args = call_of(M);
    const ejk_tensor cotangent = ejk_tensor_2d(ct, EJK_DTYPE_F32, M, N);
    const ejk_tensor gradients[] = {ejk_tensor_2d(da, EJK_DTYPE_F32, M, K),
                                    ejk_tensor_2d(db, EJK_DTYPE_F32, K, N)};
    for (int i = 0; i < M * N; i++) ct[i] = cosf((float)i);
    must(ejk_executor_vjp(executor, &my_kernel, &args,
                          &(ejk_vjp_call){.cotangents = &cotangent,
                                          .cotangent_count = 1,
                                          .gradients = gradients,
                                          .gradient_count = 2},
                          NULL));
    double worst = 0;
    for (int i = 0; i < M * K; i += 1777)
        worst = fmax(worst, fabs(slope(executor, &args, &a[i], ct) - da[i]));
    for (int i = 0; i < K * N; i += 1013)
        worst = fmax(worst, fabs(slope(executor, &args, &b[i], ct) - db[i]));
    printf("       largest difference %.1e\n", worst);
    expect(worst < 1e-3, "the gradient is the slope");
}

/* Nothing is measured inside of the scope. */
static void call_in_scopes(ejk_executor *executor) {
    const ejk_autotune_policy quiet = {.allow_autotune = EJK_FALSE};
    ejk_policy_scope scope;
    ejk_policy_override_begin(&scope, NULL, &quiet);
    call_by_rule_and_by_hand(executor);
    use_overlay(executor);
    ejk_policy_override_end(&scope);
}

int main(void) {
    for (int i = 0; i < BATCH * M * K; i++) a[i] = sinf((float)i);
    for (int i = 0; i < BATCH * K * N; i++) b[i] = cosf(0.7F * (float)i);
    ejk_context *context;
    ejk_tuner *tuner;
    ejk_config_selector_chain *chain;
    ejk_executor *executor;
    must(ejk_context_create(NULL, &context));
    must(ejk_tuner_create(&(ejk_tuner_options){.time_s = 0.5}, &tuner));
    const ejk_config_tuner measures = ejk_tuner_config_tuner(tuner);
    must(ejk_config_selector_chain_create(
        &(ejk_config_selector_options){.policy = {.allow_autotune = EJK_TRUE}, .tuner = &measures},
        &chain));
    must(ejk_executor_create(context, &(ejk_executor_options){.selector = chain}, &executor));
    call_in_scopes(executor);
    tune(context, executor);
    map_over_a_batch(executor);
    check_gradient(executor);
    ejk_executor_destroy(executor);
    ejk_config_selector_chain_destroy(chain);
    ejk_tuner_destroy(tuner);
    ejk_context_destroy(context);
    printf("%d of these are wrong\n", wrong);
    return wrong ? 1 : 0;
}
