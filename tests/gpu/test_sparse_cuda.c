/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Block-sparse attention on a GPU where the conformance harness has nothing to say: grids that name what is not there,
 * masks that are made here and moved there; and that a call of few rows is decoded. EJK_TEST_CASES rounds from
 * EJK_TEST_SEED on. Answers 77 where there is no GPU.
 */
#include "support/call_results.h"
#include "support/gpu_call.h"
#include "support/gpu_driver.h"
#include "support/sparse_world.h"

#include <inttypes.h>

struct trial {
    ejk_context *context;
    struct random random;
    uint64_t seed;
    int64_t failures;
};

static void note_failure(struct trial *t, const char *operation, const char *why) {
    t->failures++;
    printf("FAIL %s seed %" PRIu64 ": %s\n", operation, t->seed, why);
    fflush(stdout);
}

/* Results in f32 are near those that the reference has left in `args`. */
static void compare(struct trial *t, const ejk_kernel *kernel, const void *got, const void *args) {
    for (int32_t i = 0; i < kernel->args->count; i++) {
        const ejk_field *field = &kernel->args->fields[i];
        const ejk_tensor *a = call_tensor(got, field), *b = call_tensor(args, field);
        double error = 0, size = 0;
        if (!call_writes(field) || !ejk_tensor_present(a)) continue;
        void *straight = room(ejk_tensor_count(b), 4);
        ejk_tensor to = ejk_tensor_contiguous(straight, b->dtype, b->rank, b->shape);
        EXPECT_OK(ejk_tensor_copy(b, &to));
        for (int64_t n = 0; n < ejk_tensor_count(a); n++) {
            const double x = element_load(a->dtype, a->data, n);
            const double y = element_load(b->dtype, straight, n);
            if (isinf(y) && x == y) continue;
            error += (x - y) * (x - y);
            size += y * y;
        }
        free(straight);
        if (!(sqrt(error) <= 0x1p-17 * sqrt(size) + 1e-30))
            note_failure(t, kernel->op_id, field->name);
    }
}

/* ---- Grids that lie ---------------------------------------------------------------------------------- */

/* Cells that name what is not there count as empty; nothing else is touched. */
static void lying_case(struct trial *t) {
    struct random *r = &t->random;
    struct world w;
    open_world(r, EJK_DTYPE_F32, LARGE, &w);
    EXPECT_OK(ejk_blocksparse_attention_set_mask_info(&w.args, &w.info));
    ejk_blocksparse_attention_args bad = w.args, good = w.args;
    const int64_t cells = ejk_tensor_count(&w.args.fwd_block_mask);
    int8_t *state = room(cells, 8), *honest = room(cells, 8);
    int32_t *next = room(cells, 8);
    const ejk_tensor *from[] = {&w.args.fwd_block_mask, &w.args.fwd_data_next};
    good.fwd_block_mask = bad.fwd_block_mask =
        ejk_tensor_contiguous(state, EJK_DTYPE_I8, 3, from[0]->shape);
    good.fwd_data_next = bad.fwd_data_next =
        ejk_tensor_contiguous(next, EJK_DTYPE_I32, 3, from[1]->shape);
    EXPECT_OK(ejk_tensor_copy(from[0], &bad.fwd_block_mask));
    EXPECT_OK(ejk_tensor_copy(from[1], &bad.fwd_data_next));
    memcpy(honest, state, (size_t)cells);
    for (int64_t i = 0; i < cells; i++) {
        if (state[i] == 0 || !random_chance(r, 0.3)) continue;
        honest[i] = 0;
        if (random_chance(r, 0.5))
            state[i] = RANDOM_OF(r, ((int8_t[]){-1, 3, 127, -128}));
        else
            next[i] = RANDOM_OF(r, ((int32_t[]){-1, 1 << 20, INT32_MIN, INT32_MAX}));
    }
    struct gpu_call call;
    char why[700] = "";
    void *got = call_results(&ejk_blocksparse_attention_args_record, &bad);
    good.fwd_block_mask.data = honest;
    EXPECT_OK(call_reference(t->context, &ejk_blocksparse_attention_kernel, &good));
    gpu_call_open(&call, &ejk_blocksparse_attention_args_record, &bad, r);
    if (gpu_call_run(&call, t->context, &ejk_blocksparse_attention_kernel) != EJK_OK)
        note_failure(t, "blocksparse_attention", ejk_last_error());
    else if (!gpu_call_take(&call, got, why, sizeof why))
        note_failure(t, "blocksparse_attention", why);
    else
        compare(t, &ejk_blocksparse_attention_kernel, got, &good);
    gpu_call_close(&call);
    call_free_results(&ejk_blocksparse_attention_args_record, got);
    free(state);
    free(honest);
    free(next);
    close_world(&w);
}

/* ---- Masks that move to the GPU ---------------------------------------------------------------------- */

/* Makes one call with arguments on the GPU and takes its results. */
#define MOVED(call)                                                                                \
    do {                                                                                           \
        void *got = call_results(c.record, wanted);                                                \
        if ((call) != EJK_OK)                                                                      \
            note_failure(t, operation, ejk_last_error());                                          \
        else if (!gpu_call_take(&c, got, why, sizeof why))                                         \
            note_failure(t, operation, why);                                                       \
        else                                                                                       \
            compare(t, kernel, got, wanted);                                                       \
        call_free_results(c.record, got);                                                          \
    } while (0)

static void moved_case(struct trial *t) {
    struct random *r = &t->random;
    struct world w;
    struct gpu_call c;
    char why[700] = "";
    const char *operation = "blocksparse_attention";
    const ejk_kernel *kernel = &ejk_blocksparse_attention_kernel;
    const ejk_dtype dtype = EJK_DTYPE_F32;
    open_world(r, dtype, LARGE, &w);
    ejk_blocksparse_attention_args with_mask = w.args;
    ejk_blocksparse_mask_info there = {.owner = NULL};
    const void *wanted = &with_mask;
    poison(&w);
    EXPECT_OK(ejk_blocksparse_attention_set_mask_info(&with_mask, &w.info));
    EXPECT_OK(call_reference(t->context, kernel, &with_mask));
    gpu_call_open(&c, kernel->args, &w.args, r);
    ejk_blocksparse_attention_args *own = c.args;
    MOVED(ejk_blocksparse_attention_masked(t->context, own, w.mask));
    EXPECT_OK(ejk_blocksparse_mask_info_to_device(&w.info, 0, &there));
    EXPECT_OK(ejk_blocksparse_attention_set_mask_info(own, &there));
    MOVED(ejk_blocksparse_attention(t->context, own));
    ejk_blocksparse_mask_info_close(&there);
    gpu_call_close(&c);
    /* The library-wide MaskInfo, and flash attention. */
    ejk_mask_info *segments, *info;
    ejk_tensor ids[2] = {
        ejk_tensor_contiguous(w.query_ids, EJK_DTYPE_I32, 2, (int64_t[]){w.b, w.q}),
        ejk_tensor_contiguous(w.key_ids, EJK_DTYPE_I32, 2, (int64_t[]){w.b, w.kv})};
    EXPECT_OK(ejk_mask_info_from_segments(&ids[0], &ids[1], false, NULL, &segments));
    EXPECT_OK(ejk_mask_info_apply_causal(segments, NULL, &info));
    ejk_flash_attention_args flash = dense_call(&w, w.out, w.lse), masked;
    memset(flash.platform, 0, sizeof flash.platform);
    flash.attention_mask = flash.q_segment_ids = flash.kv_segment_ids =
        (ejk_tensor){.dtype = EJK_DTYPE_UNSET};
    flash.causal = random_chance(r, 0.5);
    masked = flash;
    kernel = &ejk_flash_attention_kernel;
    operation = "flash_attention";
    wanted = &masked;
    /* Some keys were made NaN for the other mask. */
    for (int64_t i = 0; i < w.b * w.kv_heads * w.kv * w.d; i++)
        if (isnan(((float *)w.key)[i])) ((float *)w.key)[i] = 1;
    for (int64_t i = 0; i < w.b * w.kv_heads * w.kv * w.dv; i++)
        if (isnan(((float *)w.value)[i])) ((float *)w.value)[i] = 1;
    EXPECT_OK(ejk_flash_attention_set_mask_info(&masked, info));
    EXPECT_OK(call_reference(t->context, kernel, &masked));
    gpu_call_open(&c, kernel->args, &flash, r);
    for (int i = 0; i < 2; i++) MOVED(ejk_flash_attention_masked(t->context, c.args, info));
    gpu_call_close(&c);
    ejk_mask_info_release(info);
    ejk_mask_info_release(segments);
    close_world(&w);
}

/* ---- Decoding ---------------------------------------------------------------------------------------- */

static void decoded_case(struct trial *t) {
    enum { ROWS = 8, KEYS = 4000, WIDTH = 128 };
    struct random *r = &t->random;
    void *query = numbers(r, EJK_DTYPE_BF16, ROWS * WIDTH), *out = room(ROWS * WIDTH, 2);
    void *key = numbers(r, EJK_DTYPE_BF16, KEYS * WIDTH);
    const ejk_flash_attention_args args = {
        .query = ejk_tensor_4d(query, EJK_DTYPE_BF16, 1, 1, ROWS, WIDTH),
        .key = ejk_tensor_4d(key, EJK_DTYPE_BF16, 1, KEYS, 1, WIDTH),
        .value = ejk_tensor_4d(key, EJK_DTYPE_BF16, 1, KEYS, 1, WIDTH),
        .out = ejk_tensor_4d(out, EJK_DTYPE_BF16, 1, 1, ROWS, WIDTH)};
    struct gpu_call call;
    ejk_plan *plan = NULL;
    gpu_call_open(&call, ejk_flash_attention_kernel.args, &args, r);
    const ejk_status status =
        ejk_plan_create(t->context, &ejk_flash_attention_kernel, call.args, &plan);
    const char *name = plan ? ejk_plan_implementation(plan)->name : ejk_last_error();
    if (status != EJK_OK || !strstr(name, "decode")) note_failure(t, "flash_attention", name);
    ejk_plan_destroy(plan);
    gpu_call_close(&call);
    free(query);
    free(out);
    free(key);
}

static uint64_t number_from(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

int main(void) {
    struct trial t = {.seed = number_from("EJK_TEST_SEED", 1)};
    const uint64_t end = t.seed + number_from("EJK_TEST_CASES", 12);
    if (!gpu_is_here()) return GPU_SKIPPED;
    if (ejk_context_create(NULL, &t.context) != EJK_OK) return EXIT_FAILURE;
    for (; t.seed < end; t.seed++) {
        t.random.state = t.seed;
        lying_case(&t);
        moved_case(&t);
        decoded_case(&t);
    }
    ejk_context_destroy(t.context);
    return t.failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
