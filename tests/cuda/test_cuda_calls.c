/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors on GPUs and calls with them: copies, what runs where, streams, workspace, kernels built ahead. The
 * driver is the tests' own, whose devices are memory of the CPU.
 */
#include "cuda/cuda_world.h"
#include "support/toy.h"

#include <dlpack/dlpack.h>
#include <ejkernel/ejkernel.h>

/* ---- Memory ----------------------------------------------------------------------------------------- */

static bool memory(const void *unused) {
    (void)unused;
    void *bytes = NULL, *none = &bytes;
    int32_t count;
    ejk_gpu_info info;
    WORKS(ejk_device_count(&count));
    HOLDS(count == 2);
    WORKS(ejk_device_info(1, &info));
    HOLDS(strcmp(info.name, "Fake   GPU 1") == 0 && info.capability == 90);
    HOLDS(strcmp(info.architecture, "sm_90a") == 0 && info.multiprocessors == 132);
    HOLDS(strcmp(info.fingerprint, "gpu|Fake   GPU 1; 9.0; 13.0") == 0);
    FAILS(INVALID_ARGUMENT, "device is 2, expected 0 to 1", ejk_device_info(2, &info));
    FAILS(INVALID_ARGUMENT, "device is -1", ejk_device_info(-1, &info));
    FAILS(INVALID_ARGUMENT, "out is NULL", ejk_device_count(NULL));
    FAILS(INVALID_ARGUMENT, "out is NULL", ejk_device_info(0, NULL));
    FAILS(INVALID_ARGUMENT, "out is NULL", ejk_device_allocate(0, 8, NULL));
    WORKS(ejk_device_allocate(0, 1000, &bytes));
    WORKS(ejk_device_allocate(0, 0, &none));
    HOLDS(bytes && (uintptr_t)bytes % 256 == 0 && none == NULL && seen()->live == 1);
    none = bytes;
    FAILS(OUT_OF_MEMORY, "no memory on cuda:0 for 99999999 bytes, 16776216 of 16777216 are free",
          ejk_device_allocate(0, 99999999, &none));
    HOLDS(none == bytes);
    FAILS(INVALID_ARGUMENT, "which cuda:0 did not hand out", ejk_device_free(0, &count));
    WORKS(ejk_device_free(0, bytes));
    WORKS(ejk_device_free(0, NULL));
    HOLDS(seen()->live == 0);
    int stream;
    WORKS(ejk_device_synchronise(1, &stream));
    HOLDS(seen()->stream == &stream && seen()->waits == 1);
    return true;
}

static bool copies(const void *unused) {
    (void)unused;
    const int64_t shape[] = {2, 3};
    float numbers[6] = {1, 2, 3, 4, 5, 6}, back[6] = {0};
    ejk_owned_tensor on_device, half;
    WORKS(ejk_device_tensor_create(1, EJK_DTYPE_F32, 2, shape, &on_device));
    WORKS(ejk_device_tensor_create(0, EJK_DTYPE_BF16, 2, shape, &half));
    HOLDS(on_device.tensor.device_type == EJK_DEVICE_CUDA && on_device.tensor.device_index == 1);
    ejk_tensor here = ejk_tensor_2d(numbers, EJK_DTYPE_F32, 2, 3),
               there = ejk_tensor_2d(back, EJK_DTYPE_F32, 2, 3);
    WORKS(ejk_device_copy(&here, &on_device.tensor, NULL));
    WORKS(ejk_device_copy(&on_device.tensor, &there, NULL));
    HOLDS(memcmp(numbers, back, sizeof back) == 0);
    /* Columns first on the CPU, and another type on the device. */
    here.strides[0] = 1;
    here.strides[1] = 2;
    WORKS(ejk_device_copy(&here, &half.tensor, NULL));
    WORKS(ejk_device_copy(&half.tensor, &there, NULL));
    static const float turned[6] = {1, 3, 5, 2, 4, 6};
    HOLDS(memcmp(turned, back, sizeof back) == 0);
    WORKS(ejk_device_copy(&there, &here, NULL));
    HOLDS(numbers[1] == 2);
    FAILS(INVALID_DTYPE, "source has bfloat16 and target float32 on GPUs",
          ejk_device_copy(&half.tensor, &on_device.tensor, NULL));
    ejk_tensor wrong = on_device.tensor;
    wrong.strides[0] = 1;
    wrong.strides[1] = 2;
    FAILS(INVALID_LAYOUT, "target lies on a GPU and is not contiguous",
          ejk_device_copy(&there, &wrong, NULL));
    wrong = there;
    wrong.shape[1] = 2;
    FAILS(INVALID_SHAPE, "differ in shape", ejk_device_copy(&wrong, &on_device.tensor, NULL));
    wrong = there;
    wrong.device_type = 10;
    FAILS(UNAVAILABLE, "source lies on device type 10", ejk_device_copy(&wrong, &there, NULL));
    FAILS(INVALID_ARGUMENT, "target is NULL", ejk_device_copy(&there, NULL, NULL));
    FAILS(INVALID_ARGUMENT, "device is 5",
          ejk_device_tensor_create(5, EJK_DTYPE_F32, 2, shape, &half));
    const int64_t negative[] = {-1, 3};
    FAILS(INVALID_SHAPE, "", ejk_device_tensor_create(0, EJK_DTYPE_F32, 2, negative, &half));
    ejk_owned_tensor_close(&on_device);
    ejk_owned_tensor_close(&half);
    HOLDS(seen()->live == 0);
    return true;
}

static void release_device(void *user) {
    ejk_owned_tensor_close(user);
}

/* The same memory goes out, comes in again, and is released by whoever had it last. */
static bool exchange(const void *unused) {
    (void)unused;
    const int64_t shape[] = {4, 5};
    ejk_owned_tensor owned;
    ejk_tensor again;
    struct DLManagedTensorVersioned *managed;
    WORKS(ejk_device_tensor_create(1, EJK_DTYPE_F16, 2, shape, &owned));
    const void *address = owned.tensor.data;
    WORKS(ejk_tensor_to_dlpack_versioned(&owned.tensor, false, release_device, &owned, &managed));
    HOLDS(managed->dl_tensor.device.device_type == kDLCUDA);
    HOLDS(managed->dl_tensor.device.device_id == 1 && managed->dl_tensor.data == address);
    WORKS(ejk_tensor_from_dlpack_versioned(managed, &again));
    HOLDS(again.data == address && again.device_type == EJK_DEVICE_CUDA && again.device_index == 1);
    managed->deleter(managed);
    HOLDS(seen()->live == 0);
    return true;
}

static void tensors_on_a_device(void **state) {
    (void)state;
    IN_CHILD(memory);
    IN_CHILD(copies);
    IN_CHILD(exchange);
}

/* ---- attention_merge -------------------------------------------------------------------------------- */

enum { N = 3, B = 2, T = 5, H = 4 };

/* A call over memory that is there for the asking; launches do nothing. */
static ejk_attention_merge_args merge_call(void *room, ejk_dtype dtype, int64_t dv,
                                           int32_t device) {
    const int64_t part[] = {N, B, T, H, dv}, lse[] = {N, B, H, T}, out[] = {B, T, H, dv};
    char *at = room;
    return (ejk_attention_merge_args){
        .partial_out = ejk_device_tensor(at, device, dtype, 5, part),
        .partial_lse = ejk_device_tensor(at + 65536, device, EJK_DTYPE_F32, 4, lse),
        .out = ejk_device_tensor(at + 131072, device, dtype, 4, out)};
}

static bool merges(const void *unused) {
    (void)unused;
    int stream, other;
    void *room;
    char *text;
    ejk_plan *plan;
    ejk_context *context;
    const ejk_context_options options = {
        .stream = &stream, .on_event = events_add, .on_event_user = &events};
    WORKS(ejk_device_allocate(1, 200000, &room));
    WORKS(ejk_context_create(&options, &context));
    ejk_attention_merge_args args = merge_call(room, EJK_DTYPE_BF16, 64, 1);
    WORKS(ejk_plan_create(context, &ejk_attention_merge_kernel, &args, &plan));
    HOLDS(strcmp(ejk_plan_implementation(plan)->name, "bf16/cuda") == 0);
    HOLDS(events_of("cuda_kernel_compiled") == 2 && events_of("plan_created") == 1);
    WORKS(ejk_plan_describe(plan, &text));
    HOLDS(strstr(text, "\"platform\":\"cuda\",\"backend\":\"gpu\"") &&
          strstr(text, "\"device\":\"cuda:1\""));
    ejk_free(text);
    WORKS(ejk_plan_execute(plan, &args, NULL, 0));
    HOLDS(seen()->launches == 1 && seen()->stream == &stream);
    HOLDS(seen()->grid == 2 && seen()->block == 256); /* 40 rows, 8 threads each */
    WORKS(ejk_plan_execute_on(plan, &args, NULL, 0, &other));
    HOLDS(seen()->launches == 2 && seen()->stream == &other);
    args.partial_out.data = (char *)room + 2; /* elements one by one: 32 threads a row */
    WORKS(ejk_call(context, &ejk_attention_merge_kernel, &args));
    HOLDS(seen()->launches == 3 && seen()->grid == 5 && seen()->stream == &stream);
    args.partial_out.data = (char *)room + 1;
    FAILS(INVALID_LAYOUT, "multiple of its element's",
          ejk_call(context, &ejk_attention_merge_kernel, &args));
    args = merge_call(room, EJK_DTYPE_BF16, 64, 0);
    FAILS(INVALID_ARGUMENT, "is not what the plan was made for",
          ejk_plan_execute(plan, &args, NULL, 0));
    WORKS(ejk_call_on(context, &ejk_attention_merge_kernel, &args, NULL));
    HOLDS(seen()->launches == 4 && seen()->stream == NULL && seen()->waits == 0);
    HOLDS(seen()->allocated == 1 && compiled() == 2);
    FAILS(INVALID_ARGUMENT, "context is NULL",
          ejk_call_on(NULL, &ejk_attention_merge_kernel, &args, NULL));
    FAILS(INVALID_ARGUMENT, "plan is NULL", ejk_plan_execute_on(NULL, &args, NULL, 0, NULL));
    ejk_plan_destroy(plan);
    ejk_context_destroy(context);
    return true;
}

/* Flash attention over one tensor as queries, keys and values. */
static ejk_flash_attention_args attention_call(void *room, int64_t queries, int64_t dim) {
    const int64_t shape[] = {1, queries, 2, dim};
    const ejk_tensor x = ejk_device_tensor(room, 0, EJK_DTYPE_BF16, 4, shape);
    const ejk_tensor out = ejk_device_tensor((char *)room + (1 << 20), 0, EJK_DTYPE_BF16, 4, shape);
    return (ejk_flash_attention_args){.query = x, .key = x, .value = x, .out = out};
}

static const char *attention_of(ejk_context *context, const ejk_flash_attention_args *args) {
    ejk_plan *plan;
    if (ejk_plan_create(context, &ejk_flash_attention_kernel, args, &plan) != EJK_OK) return "";
    const char *name = ejk_plan_implementation(plan)->name;
    ejk_plan_destroy(plan);
    return name;
}

/* What sm_90a has a kernel for of its own: which calls, and what is enqueued. */
static bool attends(const void *unused) {
    (void)unused;
    void *room;
    int other;
    ejk_plan *plan;
    ejk_context *context;
    WORKS(ejk_device_allocate(0, 2 << 20, &room));
    WORKS(ejk_context_create(NULL, &context));
    ejk_flash_attention_args args = attention_call(room, 400, 128);
    WORKS(ejk_plan_create(context, &ejk_flash_attention_kernel, &args, &plan));
    HOLDS(strcmp(ejk_plan_implementation(plan)->name, "bf16/cuda/sm90") == 0);
    HOLDS(ejk_plan_workspace(plan) == 14 * 256); /* 7 tiles of 64 rows for each head */
    WORKS(ejk_plan_execute_on(plan, &args, (char *)room + (3 << 19), 14 * 256, &other));
    HOLDS(seen()->launches == 2 && seen()->overlapping == 1 && seen()->maps == 3);
    HOLDS(seen()->grid == 14 && seen()->block == 128 && seen()->stream == &other);
    args.key.data = (char *)room + 8; /* no map begins there: one kernel does it all */
    WORKS(ejk_plan_execute(plan, &args, NULL, 0));
    HOLDS(seen()->launches == 3 && seen()->overlapping == 1 && seen()->maps == 3);
    args.key.data = (char *)room + 7;
    FAILS(INVALID_LAYOUT, "key lies at", ejk_plan_execute(plan, &args, NULL, 0));
    ejk_plan_destroy(plan);
    args = attention_call(room, 400, 128);
    args.causal = true;
    args.logits_soft_cap = ejk_float(30);
    HOLDS(strcmp(attention_of(context, &args), "bf16/cuda/sm90") == 0);
    args.softmax_scale = ejk_float(-0.1);
    HOLDS(strcmp(attention_of(context, &args), "bf16/cuda/mma") == 0);
    args.softmax_scale = ejk_float(0);
    HOLDS(strcmp(attention_of(context, &args), "bf16/cuda/mma") == 0);
    args.softmax_scale = ejk_float(1e-9); /* terms of its series would not be numbers */
    HOLDS(strcmp(attention_of(context, &args), "bf16/cuda/mma") == 0);
    args.softmax_scale = (ejk_opt_float){0};
    args.dropout_prob = 0.5;
    HOLDS(strcmp(attention_of(context, &args), "bf16/cuda/mma") == 0);
    args = attention_call(room, 100, 256);
    HOLDS(strcmp(attention_of(context, &args), "bf16/cuda/mma") == 0);
    args = attention_call(room, 20, 128);
    HOLDS(strcmp(attention_of(context, &args), "bf16/cuda/mma") == 0);
    args = attention_call(room, 400, 64);
    args.key.strides[1] += 4;
    HOLDS(strcmp(attention_of(context, &args), "bf16/cuda/mma") == 0);
    ejk_context_destroy(context);
    return true;
}

static ejk_status do_nothing(const ejk_run *run) {
    (void)run;
    return EJK_OK;
}

static bool misplaced(const void *unused) {
    (void)unused;
    static char host[200000];
    ejk_context *context;
    ejk_plan *plan = NULL;
    const int before = compiled();
    WORKS(ejk_context_create(NULL, &context));
    ejk_registry *registry = ejk_context_registry(context);
#define REFUSED(status, words, ...)                                                                \
    do {                                                                                           \
        ejk_attention_merge_args args = merge_call(host, EJK_DTYPE_F32, 16, 0);                    \
        __VA_ARGS__;                                                                               \
        FAILS(status, words, ejk_plan_create(context, &ejk_attention_merge_kernel, &args, &plan)); \
        HOLDS(plan == NULL);                                                                       \
    } while (0)
    REFUSED(INVALID_ARGUMENT, "out: lies on the CPU, but partial_out on cuda:0",
            args.out.device_type = EJK_DEVICE_CPU);
    REFUSED(INVALID_ARGUMENT, "partial_lse: lies on cuda:1, but partial_out on cuda:0",
            args.partial_lse.device_index = 1);
    REFUSED(UNAVAILABLE, "tensors on a GPU of compute capability 9.0, float32",
            strcpy(args.platform, "reference"));
    REFUSED(UNAVAILABLE, "on platform simd", strcpy(args.platform, "simd"));
    REFUSED(UNAVAILABLE, "float64", args = merge_call(host, EJK_DTYPE_F64, 16, 0));
    REFUSED(INVALID_ARGUMENT, "device is 7, expected 0 to 1",
            args.partial_out.device_index = args.partial_lse.device_index = args.out.device_index =
                7);
    REFUSED(UNAVAILABLE, "on platform cuda, backend any, float32, tensors on the CPU",
            args.partial_out.device_type = args.partial_lse.device_type = args.out.device_type =
                EJK_DEVICE_CPU;
            strcpy(args.platform, "cuda"));
    HOLDS(seen()->launches == 0 && seen()->allocated == 0 && compiled() == before);
    ejk_platform platform;
    WORKS(ejk_detect_platform(registry, "attention_merge", EJK_PLATFORM_CUDA, &platform));
    HOLDS(platform == EJK_PLATFORM_CUDA);
    WORKS(ejk_detect_platform(registry, "attention_merge", EJK_PLATFORM_AUTO, &platform));
    HOLDS(platform == EJK_PLATFORM_SIMD);
    const ejk_implementation here = {.algorithm = "of_the_cpu",
                                     .name = "f32",
                                     .platform = EJK_PLATFORM_REFERENCE,
                                     .run = do_nothing};
    WORKS(ejk_registry_register(registry, &here));
    FAILS(UNAVAILABLE, "these exist",
          ejk_detect_platform(registry, "of_the_cpu", EJK_PLATFORM_CUDA, &platform));
    ejk_context_destroy(context);
    return true;
}

/* The policy asks to measure, which is done on the device, and kept under its name. */
static bool tuned(const void *unused) {
    (void)unused;
    void *room;
    ejk_context *context;
    setenv("EJKERNEL_AUTOTUNE_POLICY", "autotune", 1);
    setenv("EJKERNEL_CACHE_DIR", in_folder("configs"), 1);
    setenv("FAKE_CUDA_CLEARS", "1", 1); /* else no run agrees with another */
    WORKS(ejk_device_allocate(0, 200000, &room));
    WORKS(ejk_context_create(NULL, &context));
    ejk_attention_merge_args args = merge_call(room, EJK_DTYPE_F32, 16, 0);
    WORKS(ejk_call(context, &ejk_attention_merge_kernel, &args));
    const int launches = seen()->launches;
    HOLDS(launches > 3);
    WORKS(ejk_call(context, &ejk_attention_merge_kernel, &args));
    HOLDS(seen()->launches == launches + 1);
    const ejk_invocation invocation = {.kernel = &ejk_attention_merge_kernel,
                                       .args = &args,
                                       .threads = 3,
                                       .context = context,
                                       .device_type = EJK_DEVICE_CUDA};
    ejk_config_key_text text;
    ejk_config_key key;
    WORKS(ejk_invocation_key(&invocation, &text, &key));
    HOLDS(strcmp(key.device, "gpu|Fake   GPU 0; 9.0; 13.0") == 0 && key.threads == 1);
    ejk_context_destroy(context);
    return true;
}

static void calls_on_a_device(void **state) {
    (void)state;
    IN_CHILD(merges);
    IN_CHILD(attends);
    IN_CHILD(misplaced);
    IN_CHILD(tuned);
}

/* ---- Workspace and hooks ---------------------------------------------------------------------------- */

static ejk_context *toy_on_device(const ejk_context_options *options, bool alone) {
    ejk_context *context = toy_context(options);
    ejk_implementation on_device = toy_implementation;
    on_device.name = "f32/gpu";
    on_device.platform = EJK_PLATFORM_CUDA;
    on_device.backend = EJK_BACKEND_GPU;
    on_device.least_capability = alone ? 91 : 80;
    on_device.most_capability = 99;
    return ejk_registry_register(ejk_context_registry(context), &on_device) == EJK_OK ? context
                                                                                      : NULL;
}

static toy_args toy_there(float *x, float *y) {
    toy_args args = toy_call(x, y, 2, 3);
    args.x.device_type = args.y.device_type = EJK_DEVICE_CUDA;
    return args;
}

static bool workspace(const void *unused) {
    (void)unused;
    float x[6] = {1, 2, 3, 4, 5, 6}, y[6] = {0};
    int stream, other;
    void *own;
    ejk_plan *plan;
    ejk_context *context = toy_on_device(&(ejk_context_options){.stream = &stream}, false);
    HOLDS(context);
    const toy_args args = toy_there(x, y);
    WORKS(ejk_plan_create(context, &toy_kernel, &args, &plan));
    HOLDS(seen()->allocated == 1 && ejk_plan_workspace(plan) == TOY_WORKSPACE);
    WORKS(ejk_plan_execute(plan, &args, NULL, 0));
    HOLDS(y[5] == 12);
    FAILS(INVALID_ARGUMENT, "a workspace of 192 bytes",
          ejk_plan_execute_on(plan, &args, NULL, 0, &other));
    WORKS(ejk_device_allocate(0, 1024, &own));
    WORKS(ejk_plan_execute_on(plan, &args, own, 192, &other));
    FAILS(INVALID_LAYOUT, "aligned to 256",
          ejk_plan_execute_on(plan, &args, (char *)own + 64, 192, &other));
    FAILS(WORKSPACE_TOO_SMALL, "191", ejk_plan_execute(plan, &args, own, 191));
    HOLDS(seen()->allocated == 2 && seen()->waits == 0);
    WORKS(ejk_device_free(0, own));
    ejk_plan_destroy(plan);
    HOLDS(seen()->live == 0);
    for (int i = 0; i < 3; i++) WORKS(ejk_call(context, &toy_kernel, &args));
    HOLDS(seen()->allocated == 3 && seen()->live == 1);
    ejk_context_destroy(context);
    HOLDS(seen()->live == 0);
    return true;
}

static bool no_room(const void *unused) {
    (void)unused;
    float x[6], y[6];
    ejk_plan *plan = NULL;
    setenv("FAKE_CUDA_MEMORY", "100", 1);
    ejk_context *context = toy_on_device(NULL, false);
    const toy_args args = toy_there(x, y);
    FAILS(OUT_OF_MEMORY, "no memory on cuda:0 for 192 bytes, 100 of 100 are free",
          ejk_plan_create(context, &toy_kernel, &args, &plan));
    HOLDS(plan == NULL);
    ejk_context_destroy(context);
    context = toy_on_device(NULL, true);
    FAILS(UNAVAILABLE, "tensors on a GPU of compute capability 9.0",
          ejk_plan_create(context, &toy_kernel, &args, &plan));
    ejk_context_destroy(context);
    return true;
}

static void *hook_stream;
static int hook_calls;
static ejk_status count_call(const ejk_hook_call *call) {
    hook_stream = call->stream;
    hook_calls++;
    return EJK_OK;
}

static bool hooked(const void *unused) {
    (void)unused;
    float x[6], y[6];
    int stream;
    ejk_hook hooks[] = {{.name = "run", .call = count_call}};
    ejk_kernel kernel = toy_kernel;
    kernel.op_id = "hooked";
    kernel.heuristic_cfg = NULL;
    kernel.hooks = hooks;
    kernel.hook_count = 1;
    ejk_context *context;
    WORKS(ejk_context_create(&(ejk_context_options){.stream = &stream}, &context));
    WORKS(ejk_context_add_kernel(context, &kernel));
    const toy_args args = toy_there(x, y);
    FAILS(UNKNOWN_NAME, "'hooked' is no algorithm", ejk_call(context, &kernel, &args));
    static const char *const names[] = {"run_gpu", "run_cuda"};
    for (int i = 0; i < 2; i++) {
        hooks[0].name = names[i];
        WORKS(ejk_call(context, &kernel, &args));
        HOLDS(hook_calls == i + 1 && hook_stream == &stream);
        ejk_context_destroy(context);
        WORKS(ejk_context_create(&(ejk_context_options){.stream = &stream}, &context));
    }
    ejk_context_destroy(context);
    return true;
}

static void memory_and_hooks_of_plans(void **state) {
    (void)state;
    IN_CHILD(workspace);
    IN_CHILD(no_room);
    IN_CHILD(hooked);
}

/* ---- Built ahead ------------------------------------------------------------------------------------ */

static bool build_ahead(const void *unused) {
    (void)unused;
    setenv("EJKERNEL_CUDA_LIBRARY", in_folder("nothing.so"), 1);
    ejk_context *context;
    ejk_prebuilt built = {0};
    ejk_attention_merge_args args = merge_call(NULL, EJK_DTYPE_F16, 128, 0);
    args.out.device_type = EJK_DEVICE_CPU; /* where they lie does not matter */
    WORKS(ejk_context_create(NULL, &context));
    WORKS(ejk_plan_prebuild(context, &ejk_attention_merge_kernel, &args, "sm_90a", &built));
    HOLDS(built.compiled == 2 && built.found == 0);
    WORKS(ejk_plan_prebuild(context, &ejk_attention_merge_kernel, &args, "sm_90a", &built));
    HOLDS(built.compiled == 2 && built.found == 2);
    WORKS(ejk_plan_prebuild(context, &ejk_attention_merge_kernel, &args, "sm_80", &built));
    HOLDS(built.compiled == 4 && built.found == 2 && compiled() == 4);
    FAILS(INVALID_ARGUMENT, "architecture is 'sm_1'",
          ejk_plan_prebuild(context, &ejk_attention_merge_kernel, &args, "sm_1", &built));
    FAILS(INVALID_ARGUMENT, "architecture is NULL",
          ejk_plan_prebuild(context, &ejk_attention_merge_kernel, &args, NULL, &built));
    ejk_plan *plan = NULL;
    args.out.device_type = EJK_DEVICE_CUDA; /* the target is forgotten */
    FAILS(UNAVAILABLE, "no GPU",
          ejk_plan_create(context, &ejk_attention_merge_kernel, &args, &plan));
    ejk_context_destroy(context);
    return true;
}

static bool use_what_was_built(const void *unused) {
    (void)unused;
    void *room;
    ejk_context *context;
    WORKS(ejk_device_allocate(0, 200000, &room));
    WORKS(ejk_context_create(NULL, &context));
    ejk_attention_merge_args args = merge_call(room, EJK_DTYPE_F16, 128, 0);
    WORKS(ejk_call(context, &ejk_attention_merge_kernel, &args));
    HOLDS(seen()->launches == 1 && compiled() == 4);
    ejk_context_destroy(context);
    return true;
}

static void kernels_built_ahead(void **state) {
    (void)state;
    IN_CHILD(build_ahead);
    IN_CHILD(use_what_was_built);
}

/* ---- After a fork ----------------------------------------------------------------------------------- */

struct parent {
    ejk_context *context;
    ejk_plan *plan;
    void *room;
};

static bool child_is_refused(const void *parent_) {
    static const char why[] = "is the child of a fork of one that used CUDA";
    const struct parent *parent = parent_;
    const ejk_attention_merge_args args = merge_call(parent->room, EJK_DTYPE_BF16, 64, 1);
    int32_t count;
    void *more;
    FAILS(UNAVAILABLE, why, ejk_device_count(&count));
    FAILS(UNAVAILABLE, why, ejk_device_allocate(1, 64, &more));
    FAILS(UNAVAILABLE, why, ejk_call(parent->context, &ejk_attention_merge_kernel, &args));
    FAILS(UNAVAILABLE, why, ejk_plan_execute(parent->plan, &args, NULL, 0));
    FAILS(UNAVAILABLE, why, ejk_device_free(1, parent->room));
    HOLDS(seen()->launches == 1); /* the parent's */
    ejk_plan_destroy(parent->plan);
    ejk_context_destroy(parent->context);
    return true;
}

static bool children_are_refused(const void *unused) {
    (void)unused;
    struct parent parent;
    WORKS(ejk_device_allocate(1, 200000, &parent.room));
    WORKS(ejk_context_create(NULL, &parent.context));
    ejk_attention_merge_args args = merge_call(parent.room, EJK_DTYPE_BF16, 64, 1);
    WORKS(ejk_plan_create(parent.context, &ejk_attention_merge_kernel, &args, &parent.plan));
    WORKS(ejk_plan_execute(parent.plan, &args, NULL, 0));
    HOLDS(holds_in_child(child_is_refused, &parent));
    WORKS(ejk_plan_execute(parent.plan, &args, NULL, 0));
    ejk_plan_destroy(parent.plan);
    ejk_context_destroy(parent.context);
    WORKS(ejk_device_free(1, parent.room));
    return true;
}

static void a_forks_child_is_refused(void **state) {
    (void)state;
    IN_CHILD(children_are_refused);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
    const struct CMUnitTest tests[] = {
        TEST(tensors_on_a_device), TEST(calls_on_a_device),        TEST(memory_and_hooks_of_plans),
        TEST(kernels_built_ahead), TEST(a_forks_child_is_refused),
    };
    return cmocka_run_group_tests_name("cuda_calls", tests, NULL, NULL);
}
