/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of frameworks with tensors on a GPU: XLA's stream and memory, states, and that nothing is waited for. XLA is
 * the test's own, the driver that of all tests without a GPU.
 */
#include "bindings/calls.h"
#include "bindings/jax/handler.h"
#include "cuda/cuda_world.h"

#include <ejkernel/ejkernel.h>

/* ---- A runtime ---------------------------------------------------------------------------------------- */

static struct {
    int device, stream;
    int taken, given; /* workspaces */
    size_t bytes;
    _Alignas(256) char memory[8192];
    bool is_full;
    XLA_FFI_Error_Code code;
    char sentence[512];
} runtime;

/* Its errors: any address will do. */
static XLA_FFI_Error *const failure = (XLA_FFI_Error *)(void *)&runtime;

static XLA_FFI_Error *make_error(XLA_FFI_Error_Create_Args *args) {
    runtime.code = args->errc;
    snprintf(runtime.sentence, sizeof runtime.sentence, "%s", args->message);
    return failure;
}

static void read_error(XLA_FFI_Error_GetMessage_Args *args) {
    args->message = "no room";
}

static void drop_error(XLA_FFI_Error_Destroy_Args *args) {
    (void)args;
}

static XLA_FFI_Error *get_stream(XLA_FFI_Stream_Get_Args *args) {
    args->stream = &runtime.stream;
    return NULL;
}

static XLA_FFI_Error *get_device(XLA_FFI_DeviceOrdinal_Get_Args *args) {
    args->device_ordinal = runtime.device;
    return NULL;
}

/* Memory that is aligned to no more than what was asked for. */
static XLA_FFI_Error *allocate(XLA_FFI_DeviceMemory_Allocate_Args *args) {
    if (runtime.is_full || args->alignment > 16 || args->size > sizeof runtime.memory - 16)
        return failure;
    runtime.taken++;
    runtime.bytes = args->size;
    args->data = runtime.memory + 16;
    return NULL;
}

static XLA_FFI_Error *give_back(XLA_FFI_DeviceMemory_Free_Args *args) {
    if (args->data != runtime.memory + 16 || args->size != runtime.bytes) return failure;
    runtime.given++;
    return NULL;
}

static const XLA_FFI_Api api = {.struct_size = XLA_FFI_Api_STRUCT_SIZE,
                                .XLA_FFI_Error_Create = make_error,
                                .XLA_FFI_Error_GetMessage = read_error,
                                .XLA_FFI_Error_Destroy = drop_error,
                                .XLA_FFI_Stream_Get = get_stream,
                                .XLA_FFI_DeviceMemory_Allocate = allocate,
                                .XLA_FFI_DeviceMemory_Free = give_back,
                                .XLA_FFI_DeviceOrdinal_Get = get_device};

/* ---- Its calls ---------------------------------------------------------------------------------------- */

enum { MOST = 8 };

typedef struct frame {
    XLA_FFI_Buffer buffers[MOST];
    int64_t shapes[MOST][4];
    void *operands[MOST], *results[MOST];
    XLA_FFI_ByteSpan name, text;
    XLA_FFI_ByteSpan *names[1];
    void *attributes[1];
    XLA_FFI_AttrType types[1];
    XLA_FFI_CallFrame call;
} frame;

static void begin(frame *f, const char *text) {
    *f = (frame){
        .name = {"call", 4}, .text = {text, strlen(text)}, .types = {XLA_FFI_AttrType_STRING}};
    f->names[0] = &f->name;
    f->attributes[0] = &f->text;
    f->call = (XLA_FFI_CallFrame){
        .api = &api,
        .stage = XLA_FFI_ExecutionStage_EXECUTE,
        .args = {.args = f->operands},
        .rets = {.rets = f->results},
        .attrs = {.size = 1, .types = f->types, .names = f->names, .attrs = f->attributes}};
}

static void add(frame *f, bool is_result, XLA_FFI_DataType type, void *data, int rank,
                const int64_t *shape) {
    const int64_t index = f->call.args.size + f->call.rets.size;
    memcpy(f->shapes[index], shape, (size_t)rank * sizeof *shape);
    f->buffers[index] =
        (XLA_FFI_Buffer){.dtype = type, .data = data, .rank = rank, .dims = f->shapes[index]};
    if (is_result)
        f->results[f->call.rets.size++] = &f->buffers[index];
    else
        f->operands[f->call.args.size++] = &f->buffers[index];
}

static const char attention[] = "flash_attention;query,key,value;out;0;{}";

/* Attention that needs workspace, 14 times 256 bytes. */
static void attention_frame(frame *f, char *room) {
    const int64_t shape[] = {1, 400, 2, 128};
    begin(f, attention);
    for (int i = 0; i < 3; i++) add(f, false, XLA_FFI_DataType_BF16, room, 4, shape);
    add(f, true, XLA_FFI_DataType_BF16, room + (1 << 20), 4, shape);
}

static bool xla_calls(const void *unused) {
    (void)unused;
    void *room;
    ejk_context *context;
    frame f;
    WORKS(ejk_device_allocate(0, 2 << 20, &room));
    attention_frame(&f, room);
    HOLDS(ejk_jax_call_on_gpu(&f.call) == failure);
    HOLDS(runtime.code == XLA_FFI_Error_Code_UNIMPLEMENTED &&
          strstr(runtime.sentence, "no context"));
    WORKS(ejk_context_create(NULL, &context));
    ejk_bindings_use(context);
    HOLDS(ejk_jax_call_on_gpu(&f.call) == NULL);
    HOLDS(runtime.taken == 1 && runtime.given == 1 && runtime.bytes == 15 * 256);
    HOLDS(seen()->launches == 2 && seen()->stream == &runtime.stream);
    HOLDS(seen()->allocated == 1 && seen()->waits == 0); /* the plan has no memory there */
    runtime.is_full = true;
    HOLDS(ejk_jax_call_on_gpu(&f.call) == failure);
    HOLDS(runtime.code == XLA_FFI_Error_Code_RESOURCE_EXHAUSTED &&
          strcmp(runtime.sentence, "XLA: no room") == 0 && seen()->launches == 2);
    runtime.is_full = false;
    runtime.device = 1; /* another plan, as its kernels are loaded there */
    const int loaded = seen()->loaded;
    HOLDS(ejk_jax_call_on_gpu(&f.call) == NULL && seen()->loaded == 2 * loaded);
    runtime.device = 7;
    HOLDS(ejk_jax_call_on_gpu(&f.call) == failure && strstr(runtime.sentence, "expected 0 to 1"));
    runtime.device = 0;
    XLA_FFI_Api old = api;
    old.struct_size = offsetof(XLA_FFI_Api, XLA_FFI_DeviceOrdinal_Get);
    f.call.api = &old;
    HOLDS(ejk_jax_call_on_gpu(&f.call) == failure && strstr(runtime.sentence, "on which GPU"));
    ejk_bindings_use(NULL);
    ejk_context_destroy(context);
    return true;
}

/* A state is updated where its result is, which has a copy of it first. */
static bool states(const void *unused) {
    (void)unused;
    static const int64_t x[] = {2, 5, 3}, weight[] = {3, 4}, state[] = {2, 3, 3};
    char *room;
    ejk_context *context;
    frame f;
    WORKS(ejk_device_allocate(0, 1 << 16, (void **)&room));
    memset(room, 0, 1 << 16);
    memset(room + 4096, 3, sizeof(float) * 18);
    WORKS(ejk_context_create(NULL, &context));
    ejk_bindings_use(context);
    begin(&f, "causal_conv1d;x,weight,conv_state;out,conv_state;0;{}");
    add(&f, false, XLA_FFI_DataType_F32, room, 3, x);
    add(&f, false, XLA_FFI_DataType_F32, room + 2048, 2, weight);
    add(&f, false, XLA_FFI_DataType_F32, room + 4096, 3, state);
    add(&f, true, XLA_FFI_DataType_F32, room + 8192, 3, x);
    add(&f, true, XLA_FFI_DataType_F32, room + 12288, 3, state);
    HOLDS(ejk_jax_call_on_gpu(&f.call) == NULL && seen()->launches > 0 && seen()->waits == 0);
    HOLDS(memcmp(room + 4096, room + 12288, sizeof(float) * 18) == 0);
    ejk_bindings_use(NULL);
    ejk_context_destroy(context);
    return true;
}

/* ---- Recorded calls ------------------------------------------------------------------------------------- */

/* Chooses the number in which a call's keys are split; whoever tuned another time found another. */
static ejk_status choose_splits(void *splits, const ejk_invocation *invocation, void *config,
                                ejk_choice_step *step) {
    (void)invocation;
    ((ejk_flash_attention_config *)config)->fwd_params.num_key_splits = ejk_int(*(int64_t *)splits);
    *step = EJK_CHOICE_PERSISTENT;
    return EJK_OK;
}

/* One query over 4096 keys, with `bytes` of workspace as its last result. */
static void decoding_frame(frame *f, const char *text, char *room, int64_t bytes) {
    const int64_t query[] = {1, 1, 1, 64}, keys[] = {1, 4096, 1, 64};
    begin(f, text);
    add(f, false, XLA_FFI_DataType_BF16, room, 4, query);
    add(f, false, XLA_FFI_DataType_BF16, room + (1 << 20), 4, keys);
    add(f, false, XLA_FFI_DataType_BF16, room + (2 << 20), 4, keys);
    add(f, true, XLA_FFI_DataType_BF16, room + 4096, 4, query);
    add(f, true, XLA_FFI_DataType_U8, room + (3 << 20), 1, &bytes);
}

/* A program whose call says the choice that was made has workspace enough when choices change. */
static bool recorded_calls(const void *unused) {
    (void)unused;
    static const char open[] = "flash_attention;query,key,value;out;0;{}",
                      said[] = "flash_attention;query,key,value;out;0;"
                               "{\"cfg\":{\"fwd_params\":{\"num_key_splits\":4}}}";
    char *room, *description;
    int64_t splits = 4, bytes, again;
    ejk_tensor tensors[4];
    ejk_context *context;
    frame f;
    const ejk_config_chooser chooser = {.self = &splits, .choose = choose_splits};
    WORKS(ejk_device_allocate(0, 4 << 20, (void **)&room));
    for (int i = 0; i < 4; i++)
        tensors[i] = ejk_device_tensor(NULL, 0, EJK_DTYPE_BF16, 4,
                                       (int64_t[]){1, i == 1 || i == 2 ? 4096 : 1, 1, 64});
    WORKS(ejk_context_create(&(ejk_context_options){.chooser = &chooser}, &context));
    ejk_bindings_use(context);
    WORKS(ejk_jax_workspace(open, tensors, 4, &bytes, &description));
    HOLDS(strstr(description, "\"num_key_splits\":4") && strstr(description, "\"persistent\""));
    ejk_free(description);
    WORKS(ejk_jax_workspace(said, tensors, 4, &again, &description));
    HOLDS(bytes > 256 && again == bytes && strstr(description, "\"num_key_splits\":\"override\""));
    ejk_free(description);
    decoding_frame(&f, open, room, bytes);
    HOLDS(ejk_jax_recorded_call_on_gpu(&f.call) == NULL && runtime.taken == 0);
    splits = 16;
    ejk_bindings_use(context); /* plans are made anew */
    HOLDS(ejk_jax_recorded_call_on_gpu(&f.call) == failure &&
          strstr(runtime.sentence, "compile it again"));
    decoding_frame(&f, said, room, bytes);
    HOLDS(ejk_jax_recorded_call_on_gpu(&f.call) == NULL && runtime.taken == 0);
    HOLDS(seen()->launches == 4 && seen()->waits == 0);
    ejk_bindings_use(NULL);
    ejk_context_destroy(context);
    return true;
}

/* ---- Calls that make their results ---------------------------------------------------------------------- */

typedef struct maker {
    char *room;
    int made, taken;
} maker;

static ejk_status make(void *user, const ejk_tensor *results, int32_t count, void **data) {
    maker *own = user;
    for (int32_t i = 0; i < count; i++) {
        if (results[i].device_type != EJK_DEVICE_CUDA || results[i].device_index != 1)
            return ejki_fail(EJK_STATUS_INTERNAL, "a result is somewhere else");
        data[i] = own->room + (1 << 20);
        own->made++;
    }
    return EJK_OK;
}

static ejk_status take(void *user, size_t bytes, void **out) {
    maker *own = user;
    own->taken++;
    *out = own->room + (3 << 19);
    return bytes == 14 * 256 ? EJK_OK : ejki_fail(EJK_STATUS_INTERNAL, "%zu bytes", bytes);
}

static bool made_results(const void *unused) {
    (void)unused;
    int stream;
    maker own = {.made = 0};
    ejk_context *context;
    const int64_t shape[] = {1, 400, 2, 128};
    ejki_call_tensor tensors[3];
    WORKS(ejk_device_allocate(1, 2 << 20, (void **)&own.room));
    WORKS(ejk_context_create(NULL, &context));
    ejk_bindings_use(context);
    for (int i = 0; i < 3; i++)
        tensors[i] =
            (ejki_call_tensor){.data = own.room,
                               .shape = shape,
                               .kind = ejki_call_kind(EJK_DTYPE_BF16, 4, EJK_DEVICE_CUDA, 1)};
    const ejki_call call = {.text = attention,
                            .length = sizeof attention - 1,
                            .tensors = tensors,
                            .count = 3,
                            .make = make,
                            .take = take,
                            .user = &own,
                            .stream = &stream};
    WORKS(ejki_run_call(&call));
    WORKS(ejki_run_call(&call));
    HOLDS(own.made == 2 && own.taken == 2);
    HOLDS(seen()->launches == 4 && seen()->stream == &stream && seen()->allocated == 1);
    tensors[1].kind = ejki_call_kind(EJK_DTYPE_BF16, 4, EJK_DEVICE_CUDA, 0);
    FAILS(INVALID_ARGUMENT, "one place", ejki_run_call(&call));
    ejk_bindings_use(NULL);
    ejk_context_destroy(context);
    return true;
}

/* ---- Texts ---------------------------------------------------------------------------------------------- */

enum { VALUES = 24 };

/* Causal attention and attention to all keys on the CPU, of two and of three tokens, texts at `at` or at their own. */
static bool attend(int which, char *at, const float *values, float *out) {
    static const char *const texts[] = {"flash_attention;query,key,value;out;0;{\"causal\":true }",
                                        "flash_attention;query,key,value;out;0;{\"causal\":false}"};
    const int64_t shape[] = {1, 2 + which / 2, 1, 8};
    XLA_FFI_Api without_threads = api;
    frame f;
    without_threads.struct_size = offsetof(XLA_FFI_Api, XLA_FFI_ThreadPool_NumThreads);
    begin(&f, at ? strcpy(at, texts[which % 2]) : texts[which % 2]);
    f.call.api = &without_threads;
    for (int i = 0; i < 3; i++) add(&f, false, XLA_FFI_DataType_F32, (void *)values, 4, shape);
    add(&f, true, XLA_FFI_DataType_F32, out, 4, shape);
    HOLDS(ejk_jax_call(&f.call) == NULL);
    return true;
}

/* Where a text lies says nothing: programs go, and other texts and shapes come to the same address. */
static bool texts_at_one_address(const void *unused) {
    (void)unused;
    char at[64];
    float values[VALUES], expected[4][VALUES] = {{0}};
    ejk_context *context;
    for (int i = 0; i < VALUES; i++) values[i] = (float)i / VALUES;
    WORKS(ejk_context_create(NULL, &context));
    ejk_bindings_use(context);
    for (int i = 0; i < 4; i++) HOLDS(attend(i, NULL, values, expected[i]));
    HOLDS(memcmp(expected[0], expected[1], sizeof *expected) != 0);
    for (int turn = 0; turn < 32; turn++) {
        float found[VALUES] = {0};
        HOLDS(attend((turn + turn / 3) % 4, at, values, found));
        HOLDS(memcmp(found, expected[(turn + turn / 3) % 4], sizeof found) == 0);
    }
    ejk_bindings_use(NULL);
    ejk_context_destroy(context);
    return true;
}

static void calls_of_frameworks(void **state) {
    (void)state;
    IN_CHILD(xla_calls);
    IN_CHILD(states);
    IN_CHILD(recorded_calls);
    IN_CHILD(made_results);
    IN_CHILD(texts_at_one_address);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(calls_of_frameworks, world_setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
