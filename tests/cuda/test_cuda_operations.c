/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations on a GPU as far as they go without one: which kernel is chosen, what is launched and how much workspace
 * that takes; MaskInfos that move there. The driver is the tests' own.
 */
#include "cuda/cuda_world.h"

#include <ejkernel/ejkernel.h>

/* A tensor somewhere on the GPU: nobody looks at its elements. */
static ejk_tensor somewhere(int place, ejk_dtype dtype, int32_t rank, const int64_t *shape) {
    return ejk_device_tensor((void *)((uintptr_t)(place + 1) << 40), 0, dtype, rank, shape);
}

/* ---- Decoding --------------------------------------------------------------------------------------- */

static ejk_flash_attention_args few_rows(int64_t b, int64_t t, int64_t s, int64_t d) {
    const int64_t rows[] = {b, t, 32, d}, keys[] = {b, s, 8, d};
    return (ejk_flash_attention_args){.query = somewhere(0, EJK_DTYPE_BF16, 4, rows),
                                      .key = somewhere(1, EJK_DTYPE_BF16, 4, keys),
                                      .value = somewhere(2, EJK_DTYPE_BF16, 4, keys),
                                      .out = somewhere(3, EJK_DTYPE_BF16, 4, rows)};
}

static bool decoding(const void *unused) {
    (void)unused;
    ejk_context *context;
    ejk_plan *plan;
    WORKS(ejk_context_create(NULL, &context));
    ejk_flash_attention_args args = few_rows(1, 1, 8192, 128);
    WORKS(ejk_plan_create(context, &ejk_flash_attention_kernel, &args, &plan));
    HOLDS(strcmp(ejk_plan_implementation(plan)->name, "bf16/cuda/decode") == 0);
    HOLDS(ejk_plan_workspace(plan) == 16 * 32 * (128 + 2) * sizeof(float));
    WORKS(ejk_plan_execute(plan, &args, NULL, 0));
    /* One block of threads for each row joins the parts, and may begin early. */
    HOLDS(seen()->launches == 2 && seen()->overlapping == 1 && seen()->waits == 0);
    HOLDS(seen()->grid == 32 && seen()->block == 32);
    ejk_plan_destroy(plan);
    /* Enough heads: nothing is split. */
    args = few_rows(32, 1, 8192, 128);
    WORKS(ejk_plan_create(context, &ejk_flash_attention_kernel, &args, &plan));
    HOLDS(ejk_plan_workspace(plan) == 0);
    WORKS(ejk_plan_execute(plan, &args, NULL, 0));
    HOLDS(seen()->launches == 3 && seen()->overlapping == 1 && seen()->grid == 256);
    ejk_plan_destroy(plan);
    const struct {
        int64_t t, d;
        bool masked, few;
    } others[] = {{4, 64, false, true},  {4, 256, false, true}, {5, 64, false, false},
                  {1, 80, false, false}, {1, 128, true, false}, {2, 96, false, false}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const int64_t mask[] = {1, 1, 1, 100};
        args = few_rows(1, others[i].t, 100, others[i].d);
        if (others[i].masked) args.attention_mask = somewhere(5, EJK_DTYPE_BOOL, 4, mask);
        WORKS(ejk_plan_create(context, &ejk_flash_attention_kernel, &args, &plan));
        const bool few = strstr(ejk_plan_implementation(plan)->name, "/decode") != NULL;
        ejk_plan_destroy(plan);
        HOLDS(few == others[i].few);
    }
    /* Rows that do not begin at whole elements are refused before anything runs. */
    args = few_rows(1, 1, 100, 64);
    args.key.data = (char *)args.key.data + 1;
    FAILS(INVALID_LAYOUT, "key lies at", ejk_call(context, &ejk_flash_attention_kernel, &args));
    HOLDS(seen()->launches == 3);
    ejk_context_destroy(context);
    return true;
}

static void few_rows_have_a_kernel_of_their_own(void **state) {
    (void)state;
    IN_CHILD(decoding);
}

/* ---- Tiles -------------------------------------------------------------------------------------------- */

/* Of Hopper's forward kernel, 64 queries for each warpgroup: no larger than sequences are, or than keep a GPU busy. */
static bool tiles(const void *unused) {
    (void)unused;
    static const struct {
        int64_t b, t, d, window, warpgroups;
        bool whole; /* not causal */
    } cases[] = {
        {32, 512, 64, -1, 4, false},  {1, 16384, 64, -1, 3, false}, {1, 16384, 64, 1023, 4, false},
        {5, 3072, 64, -1, 4, false},  {5, 3072, 64, -1, 3, true},   {32, 192, 64, -1, 3, false},
        {32, 128, 64, -1, 2, false},  {32, 64, 64, -1, 1, false},   {32, 512, 128, -1, 3, false},
        {32, 512, 128, -1, 2, true},  {16, 1024, 128, -1, 2, true}, {16, 1152, 128, -1, 3, true},
        {4, 4096, 128, -1, 3, false}, {32, 128, 128, -1, 2, false}, {1, 16384, 128, 1023, 3, false},
        {1, 256, 128, -1, 1, false},
    };
    ejk_context *context;
    WORKS(ejk_context_create(NULL, &context));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t t = cases[i].t, window = cases[i].window;
        ejk_flash_attention_args args = few_rows(cases[i].b, t, t, cases[i].d);
        if (!cases[i].whole) args.causal = EJK_TRUE;
        if (window >= 0) args.sliding_window.left = ejk_int(window);
        WORKS(ejk_call(context, &ejk_flash_attention_kernel, &args));
        /* The last launch is the one that does tiles again, without the warpgroup that copies. */
        HOLDS(seen()->block == 128 * cases[i].warpgroups);
    }
    ejk_context_destroy(context);
    return true;
}

static void tiles_are_as_large_as_is_of_use(void **state) {
    (void)state;
    IN_CHILD(tiles);
}

/* ---- Orders of sums --------------------------------------------------------------------------------- */

static ejk_flash_attention_vjp_args gradients_of(int64_t d) {
    const int64_t rows[] = {1, 700, 8, d}, lse[] = {1, 8, 700};
    return (ejk_flash_attention_vjp_args){.query = somewhere(0, EJK_DTYPE_BF16, 4, rows),
                                          .key = somewhere(1, EJK_DTYPE_BF16, 4, rows),
                                          .value = somewhere(2, EJK_DTYPE_BF16, 4, rows),
                                          .out = somewhere(3, EJK_DTYPE_BF16, 4, rows),
                                          .lse = somewhere(4, EJK_DTYPE_F32, 3, lse),
                                          .d_out = somewhere(5, EJK_DTYPE_BF16, 4, rows),
                                          .d_query = somewhere(6, EJK_DTYPE_BF16, 4, rows),
                                          .d_key = somewhere(7, EJK_DTYPE_BF16, 4, rows),
                                          .d_value = somewhere(8, EJK_DTYPE_BF16, 4, rows)};
}

/* Only who says so is given a kernel that adds in any order; the compiler here has none. */
static bool any_order(const void *unused) {
    (void)unused;
    ejk_context *context;
    ejk_plan *plan;
    setenv("FAKE_NVRTC_REFUSED", "-DORDERED=(0)", 1);
    WORKS(ejk_context_create(NULL, &context));
    ejk_flash_attention_vjp_args args = gradients_of(128);
    static const ejk_opt_bool ordered[] = {EJK_UNSET, EJK_TRUE};
    for (int i = 0; i < 2; i++) {
        args.deterministic = ordered[i];
        WORKS(ejk_plan_create(context, &ejk_flash_attention_vjp_kernel, &args, &plan));
        HOLDS(strcmp(ejk_plan_implementation(plan)->name, "bf16/cuda/sm90") == 0);
        ejk_plan_destroy(plan);
    }
    args.deterministic = EJK_FALSE;
    plan = NULL;
    FAILS(UNAVAILABLE, "sm90/backward.cu cannot be compiled",
          ejk_plan_create(context, &ejk_flash_attention_vjp_kernel, &args, &plan));
    HOLDS(plan == NULL);
    args = gradients_of(256); /* which are summed in order anyway */
    args.deterministic = EJK_FALSE;
    WORKS(ejk_plan_create(context, &ejk_flash_attention_vjp_kernel, &args, &plan));
    HOLDS(strcmp(ejk_plan_implementation(plan)->name, "bf16/cuda/mma") == 0);
    ejk_plan_destroy(plan);
    ejk_context_destroy(context);
    return true;
}

static void gradients_are_added_in_order(void **state) {
    (void)state;
    IN_CHILD(any_order);
}

/* ---- MaskInfos -------------------------------------------------------------------------------------- */

static bool same_bytes(const ejk_tensor *here, const ejk_tensor *there) {
    HOLDS(ejk_tensor_present(here) == ejk_tensor_present(there));
    if (!ejk_tensor_present(here)) return true;
    HOLDS(there->device_type == EJK_DEVICE_CUDA && there->data != here->data);
    return memcmp(here->data, there->data,
                  (size_t)ejk_tensor_count(here) * ejk_dtype_size(here->dtype)) == 0;
}

static bool blocks_move(const void *unused) {
    (void)unused;
    const int64_t shape[] = {256, 512}, rows[] = {1, 4, 256, 64}, keys[] = {1, 2, 512, 64};
    ejk_context *context;
    ejk_splash_mask *window;
    ejk_blocksparse_mask_info info, there = {.owner = NULL};
    WORKS(ejk_context_create(NULL, &context));
    WORKS(ejk_local_mask_create(shape, (ejk_window){ejk_int(40), ejk_int(0)}, 0, NULL, &window));
    const ejk_blocksparse_mask_options options = {.block_shape = {64, 128}};
    WORKS(ejk_blocksparse_mask_info_create(window, &options, &info));
    WORKS(ejk_blocksparse_mask_info_to_device(&info, 0, &there));
    HOLDS(same_bytes(&info.fwd.block_mask, &there.fwd.block_mask));
    HOLDS(same_bytes(&info.fwd.data_next, &there.fwd.data_next));
    HOLDS(same_bytes(&info.dkv.data_next, &there.dkv.data_next));
    HOLDS(same_bytes(&info.fwd.partial_mask_blocks, &there.fwd.partial_mask_blocks));
    ejk_blocksparse_attention_args args = {.query = somewhere(0, EJK_DTYPE_F16, 4, rows),
                                           .key = somewhere(1, EJK_DTYPE_F16, 4, keys),
                                           .value = somewhere(2, EJK_DTYPE_F16, 4, keys),
                                           .out = somewhere(3, EJK_DTYPE_F16, 4, rows)};
    ejk_blocksparse_attention_args mixed = args;
    WORKS(ejk_blocksparse_attention_set_mask_info(&mixed, &info));
    FAILS(INVALID_ARGUMENT, "lies on the CPU",
          ejk_call(context, &ejk_blocksparse_attention_kernel, &mixed));
    WORKS(ejk_blocksparse_attention_set_mask_info(&args, &there));
    const int before = seen()->launches, waits = seen()->waits;
    ejk_plan *plan;
    WORKS(ejk_plan_create(context, &ejk_blocksparse_attention_kernel, &args, &plan));
    HOLDS(strcmp(ejk_plan_implementation(plan)->name, "f16/cuda/mma") == 0);
    /* A cell of four bytes for each block of scores. */
    HOLDS(ejk_plan_workspace(plan) % 256 == 0 && ejk_plan_workspace(plan) >= 4 * 4 * 4);
    const int allocated = seen()->allocated;
    WORKS(ejk_plan_execute(plan, &args, NULL, 0));
    HOLDS(seen()->launches >= before + 2 && seen()->waits == waits);
    HOLDS(seen()->allocated == allocated);
    ejk_plan_destroy(plan);
    ejk_blocksparse_mask_info_close(&there);
    ejk_blocksparse_mask_info_close(&info);
    HOLDS(seen()->live == 0);
    FAILS(INVALID_ARGUMENT, "info is NULL", ejk_blocksparse_mask_info_to_device(NULL, 0, &there));
    ejk_splash_mask_release(window);
    ejk_context_destroy(context);
    return true;
}

static bool objects_move(const void *unused) {
    (void)unused;
    int32_t ids[2][6] = {{0, 0, 0, 1, 1, -1}, {0, 1, 1, 1, 2, 2}};
    const int64_t rows[] = {2, 6, 4, 64};
    ejk_mask_info *info;
    const ejk_tensor given = ejk_tensor_2d(ids, EJK_DTYPE_I32, 2, 6);
    WORKS(ejk_mask_info_from_segments(&given, NULL, false, NULL, &info));
    ejk_flash_attention_args first = {.query = somewhere(0, EJK_DTYPE_F32, 4, rows)},
                             second = first;
    WORKS(ejk_flash_attention_set_mask_info(&first, info));
    HOLDS(first.q_segment_ids.device_type == EJK_DEVICE_CUDA);
    HOLDS(memcmp(first.q_segment_ids.data, ids, sizeof ids) == 0);
    const int allocated = seen()->allocated;
    WORKS(ejk_flash_attention_set_mask_info(&second, info));
    HOLDS(seen()->allocated == allocated && second.q_segment_ids.data == first.q_segment_ids.data);
    ejk_attention_args third = {.query = first.query};
    third.query.device_index = 1;
    WORKS(ejk_attention_set_mask_info(&third, info));
    HOLDS(third.q_segment_ids.device_index == 1 && seen()->allocated > allocated);
    ejk_tensor none = {.dtype = EJK_DTYPE_UNSET};
    WORKS(ejk_mask_info_on_device(info, 0, &none));
    FAILS(INVALID_ARGUMENT, "view is NULL", ejk_mask_info_on_device(info, 0, NULL));
    ejk_tensor view = given;
    FAILS(INVALID_ARGUMENT, "device is 9", ejk_mask_info_on_device(info, 9, &view));
    HOLDS(view.data == given.data);
    ejk_mask_info_release(info);
    HOLDS(seen()->live == 0);
    return true;
}

static void masks_move_to_a_device(void **state) {
    (void)state;
    IN_CHILD(blocks_move);
    IN_CHILD(objects_move);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
    const struct CMUnitTest tests[] = {
        TEST(few_rows_have_a_kernel_of_their_own),
        TEST(tiles_are_as_large_as_is_of_use),
        TEST(gradients_are_added_in_order),
        TEST(masks_move_to_a_device),
    };
    return cmocka_run_group_tests_name("cuda_operations", tests, NULL, NULL);
}
