/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations on top of flash attention, and decoding, on a GPU: random calls, each made by the reference on the CPU and with tensors on the
 * GPU, by the library's own choice: the results agree, twice the same bits, and
 * nothing but them was written.
 *
 * EJK_TEST_PROCESSES, one for each CPU, share EJK_TEST_CASES from EJK_TEST_SEED on; after EJK_TEST_SECONDS, 100, none is
 * begun. EJK_TEST_FILTER takes one operation; EJK_TEST_EXACT as in test_flash_attention_cuda.c. Answers 77 where there is no GPU.
 */
#include "kernels/builtin.h"
#include "support/dense_case.h"
#include "support/gpu_call.h"
#include "support/gpu_processes.h"
#include "support/sparse_places.h"

#include <inttypes.h>

enum { OPERATIONS = 9 };

struct counts {
    char doing[160];
    int64_t calls[OPERATIONS], failures;
    double worst[OPERATIONS];
};
static const char *const operations[OPERATIONS] = {"blocksparse_attention",
                                                   "blocksparse_attention_vjp",
                                                   "attention",
                                                   "attention_vjp",
                                                   "scaled_dot_product_attention",
                                                   "scaled_dot_product_attention_vjp",
                                                   "flash_attention",
                                                   "attention_merge",
                                                   "attention_merge_vjp"};

struct trial {
    struct counts *counts;
    ejk_context *context;
    struct random random;
    uint64_t seed;
};

static int number_of(const char *operation) {
    int i = 0;
    while (i < OPERATIONS && strcmp(operations[i], operation) != 0) i++;
    if (i == OPERATIONS) abort();
    return i;
}

static void note_failure(struct trial *t, const char *operation, const char *why) {
    t->counts->failures++;
    printf("FAIL %s seed %" PRIu64 ": %s\n", operation, t->seed, why);
    fflush(stdout);
}

/* ---- Comparing -------------------------------------------------------------------------------------- */

static void compare(struct trial *t, const ejk_kernel *kernel, ejk_dtype dtype, const void *got,
                    const void *again, const void *wanted) {
    char why[256], text[320];
    for (int32_t i = 0; i < kernel->args->count; i++) {
        const ejk_field *field = &kernel->args->fields[i];
        const ejk_tensor *a = gpu_call_tensor(got, field), *b = gpu_call_tensor(again, field);
        if (!gpu_call_writes(field) || !ejk_tensor_present(a)) continue;
        const ejk_tensor expected = gpu_call_straight(gpu_call_tensor(wanted, field));
        if (!gpu_call_near(a, &expected, dtype, &t->counts->worst[number_of(kernel->op_id)], why,
                           sizeof why)) {
            snprintf(text, sizeof text, "%s: %s", field->name, why);
            note_failure(t, kernel->op_id, text);
        }
        free(expected.data);
        if (memcmp(a->data, b->data, (size_t)ejk_tensor_count(a) * ejk_dtype_size(a->dtype)) != 0) {
            snprintf(text, sizeof text, "%s has other bits the second time", field->name);
            note_failure(t, kernel->op_id, text);
        }
    }
}

/* ---- Calls ------------------------------------------------------------------------------------------ */

/* The call on the CPU, in double precision. */
static ejk_status call_reference(struct trial *t, const ejk_kernel *kernel, const void *args) {
    void *own = malloc(kernel->args->size);
    if (!own) abort();
    memcpy(own, args, kernel->args->size);
    for (int32_t i = 0; i < kernel->args->count; i++)
        if (strcmp(kernel->args->fields[i].name, "platform") == 0)
            strcpy((char *)own + kernel->args->fields[i].offset, "reference");
    const ejk_status status = ejk_call(t->context, kernel, own);
    free(own);
    return status;
}

/* Makes the call of the reference, whose results `args` are to hold then, and that of the GPU. */
static void try_call(struct trial *t, const ejk_kernel *kernel, const void *args, ejk_dtype dtype) {
    const char *filter = getenv("EJK_TEST_FILTER");
    const int number = number_of(kernel->op_id);
    void *got = gpu_call_results(kernel->args, args), *again = gpu_call_results(kernel->args, args);
    struct gpu_call call;
    char why[700];
    snprintf(t->counts->doing, sizeof t->counts->doing, "%s seed %" PRIu64, kernel->op_id, t->seed);
    if (call_reference(t, kernel, args) != EJK_OK) {
        snprintf(why, sizeof why, "the reference: %.600s", ejk_last_error());
        note_failure(t, kernel->op_id, why);
        return;
    }
    if (!filter || strcmp(filter, kernel->op_id) == 0) {
        t->counts->calls[number]++;
        gpu_call_open(&call, kernel->args, args, &t->random);
        ejk_status status = gpu_call_run(&call, t->context, kernel);
        if (status == EJK_OK) {
            if (!gpu_call_take(&call, got, why, sizeof why)) note_failure(t, kernel->op_id, why);
            status = gpu_call_run(&call, t->context, kernel);
        }
        if (status == EJK_OK) {
            if (!gpu_call_take(&call, again, why, sizeof why)) note_failure(t, kernel->op_id, why);
            compare(t, kernel, dtype, got, again, args);
        } else {
            snprintf(why, sizeof why, "%s: %.600s", ejk_status_name(status), ejk_last_error());
            note_failure(t, kernel->op_id, why);
        }
        gpu_call_close(&call);
    }
    gpu_call_free_results(kernel->args, got);
    gpu_call_free_results(kernel->args, again);
}

static ejk_tensor at(ejk_tensor t, void *data) {
    if (t.dtype != EJK_DTYPE_UNSET) t.data = data;
    return t;
}

/* ---- Block-sparse attention -------------------------------------------------------------------------- */

static const ejk_dtype types[] = {EJK_DTYPE_F32, EJK_DTYPE_BF16, EJK_DTYPE_BF16, EJK_DTYPE_F16};

static void add_bias(struct trial *t, struct world *w, void **bias, void **d_bias) {
    struct random *r = &t->random;
    const int64_t shape[] = {random_chance(r, 0.5) ? w->b : 1, random_chance(r, 0.5) ? w->heads : 1,
                             random_chance(r, 0.5) ? w->q : 1, w->kv};
    const int64_t count = shape[0] * shape[1] * shape[2] * shape[3];
    *bias = numbers(r, w->dtype, count);
    *d_bias = room(count, 8);
    w->args.bias = ejk_tensor_contiguous(*bias, w->dtype, 4, shape);
}

static void sparse_case(struct trial *t) {
    struct random *r = &t->random;
    struct world w;
    struct places places = {.query = NULL};
    void *bias = NULL, *d_bias = NULL;
    const ejk_dtype dtype = RANDOM_OF(r, types);
    open_world(r, dtype, RANDOM_OF(r, ((int[]){SMALL, LARGE, LARGE, WIDE})), &w);
    if (random_chance(r, 0.3))
        open_places(r, &w, &places);
    else if (random_chance(r, 0.3))
        w.args.chunk_size = ejk_int(random_int(r, 1, w.kv + 1));
    if (random_chance(r, 0.3) && w.q * w.kv < 100000) add_bias(t, &w, &bias, &d_bias);
    if (random_chance(r, 0.9)) {
        poison(&w);
        EXPECT_OK(ejk_blocksparse_attention_set_mask_info(&w.args, &w.info));
    }
    try_call(t, &ejk_blocksparse_attention_kernel, &w.args, dtype);
    void *gradients[4] = {room(w.b * w.heads * w.q * w.d, 8),
                          room(w.b * w.kv_heads * w.kv * w.d, 8),
                          room(w.b * w.kv_heads * w.kv * w.dv, 8), room(w.heads * 2, 8)};
    ejk_blocksparse_attention_vjp_args v = {
        .out = w.args.out, .lse = w.args.lse, .d_out = at(w.args.out, w.d_out)};
    memcpy(&v, &w.args, offsetof(ejk_blocksparse_attention_args, out));
    if (random_chance(r, 0.8)) v.d_query = at(w.args.query, gradients[0]);
    if (random_chance(r, 0.8)) v.d_key = at(w.args.key, gradients[1]);
    v.d_value = at(w.args.value, gradients[2]);
    v.d_softmax_aux = at(w.args.softmax_aux, gradients[3]);
    v.d_bias = at(w.args.bias, d_bias);
    /* Other grids of the same mask in place of that of the call. */
    if (ejk_tensor_present(&v.fwd_block_mask) && random_chance(r, 0.5)) {
        ejk_blocksparse_attention_vjp_args own = v;
        own.fwd_data_next = own.fwd_mask_next = own.fwd_block_mask = own.fwd_partial_mask_blocks =
            (ejk_tensor){.dtype = EJK_DTYPE_UNSET};
        memset(own.mask_function, 0, sizeof own.mask_function);
        EXPECT_OK(ejk_blocksparse_attention_vjp_set_mask_info(&own, &w.info));
        v = own;
    }
    try_call(t, &ejk_blocksparse_attention_vjp_kernel, &v, dtype);
    for (int i = 0; i < 4; i++) free(gradients[i]);
    free(bias);
    free(d_bias);
    if (places.query) close_places(&places);
    close_world(&w);
}

/* ---- Dense attention --------------------------------------------------------------------------------- */

#define DENSE_GRADIENTS(v, a)                                                                      \
    do {                                                                                           \
        (v).out = (a).out;                                                                         \
        (v).lse = (a).lse;                                                                         \
        (v).d_out = at((a).out, d_out);                                                            \
        (v).d_query = at((a).query, gradients[0]);                                                 \
        (v).d_key = at((a).key, gradients[1]);                                                     \
        (v).d_value = at((a).value, gradients[2]);                                                 \
        (v).d_bias = at((a).bias, gradients[3]);                                                   \
    } while (0)

static void dense_cases(struct trial *t) {
    static dense_case c;
    static double d_out[DENSE_MOST], gradients[5][DENSE_MOST];
    const ejk_dtype dtype = RANDOM_OF(&t->random, types);
    dense_fill(&c, t->seed, dtype);
    for (int64_t i = 0; i < DENSE_MOST; i++)
        flash_store(dtype, d_out, i, random_normal(&t->random));
    const ejk_scaled_dot_product_attention_args sdpa = dense_sdpa(&c);
    try_call(t, &ejk_attention_kernel, &c.args, dtype);
    ejk_attention_vjp_args v = {.causal = false};
    memcpy(&v, &c.args, offsetof(ejk_attention_vjp_args, out));
    DENSE_GRADIENTS(v, c.args);
    v.d_softmax_aux = at(c.args.softmax_aux, gradients[4]);
    try_call(t, &ejk_attention_vjp_kernel, &v, dtype);
    try_call(t, &ejk_scaled_dot_product_attention_kernel, &sdpa, dtype);
    ejk_scaled_dot_product_attention_vjp_args s = {.causal = false};
    memcpy(&s, &sdpa, offsetof(ejk_scaled_dot_product_attention_args, out));
    DENSE_GRADIENTS(s, sdpa);
    try_call(t, &ejk_scaled_dot_product_attention_vjp_kernel, &s, dtype);
}

/* ---- Few rows ---------------------------------------------------------------------------------------- */

static void need_implementation(struct trial *t, const ejk_kernel *kernel, const void *args,
                                const char *part) {
    ejk_plan *plan = NULL;
    struct gpu_call call;
    char why[300];
    gpu_call_open(&call, kernel->args, args, &t->random);
    const ejk_status status = ejk_plan_create(t->context, kernel, call.args, &plan);
    const char *name = plan ? ejk_plan_implementation(plan)->name : ejk_last_error();
    if (status != EJK_OK || !strstr(name, part)) {
        snprintf(why, sizeof why, "'%.200s', expected %s", name, part);
        note_failure(t, kernel->op_id, why);
    }
    ejk_plan_destroy(plan);
    gpu_call_close(&call);
}

static void decode_case(struct trial *t) {
    struct random *r = &t->random;
    const ejk_dtype dtype = random_chance(r, 0.6) ? EJK_DTYPE_BF16 : EJK_DTYPE_F16;
    const int64_t b = random_int(r, 1, 3), queries = random_int(r, 1, 4), kv = random_int(r, 1, 3);
    const int64_t group = random_int(r, 1, 16 / queries), heads = kv * group;
    const int64_t d = RANDOM_OF(r, ((int64_t[]){32, 64, 96, 128, 128, 256}));
    const int64_t dv = RANDOM_OF(r, ((int64_t[]){64, 128, 128, 192, 256}));
    const int64_t keys = random_chance(r, 0.2)
                             ? random_int(r, 0, 20)
                             : random_int(r, 1, RANDOM_OF(r, ((int[]){300, 4000})));
    const int64_t rows = b * queries * heads, all = b * keys * kv;
    void *query = numbers(r, dtype, rows * d), *key = numbers(r, dtype, all * d);
    void *value = numbers(r, dtype, all * dv), *sinks = numbers(r, dtype, heads * 2);
    void *out = room(rows * dv, 8);
    float *lse = room(rows, 4), *max = room(rows, 4), *sum = room(rows, 4);
    ejk_flash_attention_args args = {.query = ejk_tensor_4d(query, dtype, b, queries, heads, d),
                                     .key = ejk_tensor_4d(key, dtype, b, keys, kv, d),
                                     .value = ejk_tensor_4d(value, dtype, b, keys, kv, dv),
                                     .out = ejk_tensor_4d(out, dtype, b, queries, heads, dv),
                                     .lse = ejk_tensor_3d(lse, EJK_DTYPE_F32, b, heads, queries)};
    args.causal = random_chance(r, 0.6);
    if (random_chance(r, 0.3)) args.sliding_window.left = ejk_int(random_int(r, 0, keys));
    if (random_chance(r, 0.2)) args.causal_offset = ejk_int(random_int(r, -5, keys + 5));
    if (random_chance(r, 0.3)) args.logits_soft_cap = ejk_float(2);
    if (random_chance(r, 0.2)) args.softmax_scale = ejk_float(random_chance(r, 0.5) ? -0.2 : 0.5);
    if (random_chance(r, 0.3))
        args.softmax_aux = ejk_tensor_contiguous(sinks, dtype, 2, (int64_t[]){heads, 2});
    if (random_chance(r, 0.3)) {
        args.normalize_output = EJK_FALSE;
        args.out = ejk_tensor_4d(out, EJK_DTYPE_F32, b, queries, heads, dv);
        args.row_max = ejk_tensor_3d(max, EJK_DTYPE_F32, b, heads, queries);
        args.row_sum = ejk_tensor_3d(sum, EJK_DTYPE_F32, b, heads, queries);
    }
    if (random_chance(r, 0.6)) {
        args.cfg.fwd_params.num_warps = ejk_int(random_int(r, 1, 8));
        args.cfg.fwd_params.num_stages = ejk_int(random_int(r, 1, 8));
        args.cfg.fwd_params.num_key_splits = ejk_int(RANDOM_OF(r, ((int64_t[]){1, 2, 7, 40})));
    }
    /* Scores that rise from key to key: bases are left again and again. */
    if (random_chance(r, 0.2) && !args.softmax_scale.set)
        for (int64_t i = 0; i < all * d; i++)
            flash_store(dtype, key, i,
                        flash_load(dtype, key, i) * (1 + (double)(i / d / kv % (keys + 1)) / 99));
    /* Values that are not finite, where rows may see them or not. */
    for (int64_t n = random_chance(r, 0.3) ? 3 : 0; n > 0 && all > 0; n--)
        flash_store(dtype, value, random_int(r, 0, all * dv - 1),
                    RANDOM_OF(r, ((double[]){INFINITY, -INFINITY, NAN})));
    try_call(t, &ejk_flash_attention_kernel, &args, dtype);
    if (random_chance(r, 0.2)) need_implementation(t, &ejk_flash_attention_kernel, &args, "decode");
    void *memory[] = {query, key, value, sinks, out, lse, max, sum};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
}

/* ---- Merging ----------------------------------------------------------------------------------------- */

static void merge_case(struct trial *t) {
    struct random *r = &t->random;
    const ejk_dtype dtype = RANDOM_OF(r, types);
    const int64_t n = random_int(r, 1, 6), b = random_int(r, 1, 3), q = random_int(r, 1, 40);
    const int64_t heads = random_int(r, 1, 6), dv = RANDOM_OF(r, ((int64_t[]){1, 7, 64, 128, 200}));
    const int64_t rows = b * heads * q, outs = rows * dv;
    void *part = numbers(r, dtype, n * outs), *out = room(outs, 8), *sinks = numbers(r, dtype, 12);
    void *d_out = numbers(r, dtype, outs), *d_part = room(n * outs, 8), *d_sinks = room(12, 8);
    float *logs = numbers(r, EJK_DTYPE_F32, n * rows), *lse = room(rows, 4);
    float *d_lse = numbers(r, EJK_DTYPE_F32, rows), *d_logs = room(n * rows, 4);
    /* Parts that saw nothing, whose sums may be anything; and rows of which no part saw anything. */
    for (int64_t i = 0; i < n * rows; i++) {
        const int64_t row = i % rows, token = row % q, h = row / q % heads, batch = row / q / heads;
        if (!random_chance(r, 0.2) && row % 7 != 3) continue;
        logs[i] = -INFINITY;
        for (int64_t d = 0; d < dv; d++)
            flash_store(dtype, part, (((i / rows * b + batch) * q + token) * heads + h) * dv + d,
                        NAN);
    }
    ejk_attention_merge_args args = {
        .partial_out = ejk_tensor_contiguous(part, dtype, 5, (int64_t[]){n, b, q, heads, dv}),
        .partial_lse = ejk_tensor_contiguous(logs, EJK_DTYPE_F32, 4, (int64_t[]){n, b, heads, q}),
        .out = ejk_tensor_4d(out, dtype, b, q, heads, dv),
        .lse = ejk_tensor_3d(lse, EJK_DTYPE_F32, b, heads, q)};
    if (random_chance(r, 0.5))
        args.softmax_aux = random_chance(r, 0.5)
                               ? ejk_tensor_contiguous(sinks, dtype, 1, (int64_t[]){3})
                               : ejk_tensor_contiguous(sinks, dtype, 2, (int64_t[]){heads, 2});
    try_call(t, &ejk_attention_merge_kernel, &args, dtype);
    ejk_attention_merge_vjp_args v = {.partial_out = args.partial_out,
                                      .partial_lse = args.partial_lse,
                                      .softmax_aux = args.softmax_aux,
                                      .out = args.out,
                                      .lse = args.lse,
                                      .d_out = at(args.out, d_out)};
    if (random_chance(r, 0.5)) v.d_lse = at(args.lse, d_lse);
    if (random_chance(r, 0.8)) v.d_partial_out = at(args.partial_out, d_part);
    if (random_chance(r, 0.8)) v.d_partial_lse = at(args.partial_lse, d_logs);
    v.d_softmax_aux = at(args.softmax_aux, d_sinks);
    try_call(t, &ejk_attention_merge_vjp_kernel, &v, dtype);
    void *all[] = {part, out, sinks, d_out, d_part, d_sinks, logs, lse, d_lse, d_logs};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
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
    void *got = gpu_call_results(&ejk_blocksparse_attention_args_record, &bad);
    good.fwd_block_mask.data = honest;
    EXPECT_OK(call_reference(t, &ejk_blocksparse_attention_kernel, &good));
    gpu_call_open(&call, &ejk_blocksparse_attention_args_record, &bad, r);
    if (gpu_call_run(&call, t->context, &ejk_blocksparse_attention_kernel) != EJK_OK)
        note_failure(t, "blocksparse_attention", ejk_last_error());
    else if (!gpu_call_take(&call, got, why, sizeof why))
        note_failure(t, "blocksparse_attention", why);
    else
        compare(t, &ejk_blocksparse_attention_kernel, EJK_DTYPE_F32, got, got, &good);
    gpu_call_close(&call);
    gpu_call_free_results(&ejk_blocksparse_attention_args_record, got);
    free(state);
    free(honest);
    free(next);
    close_world(&w);
}

/* ---- Masks that move to the GPU ---------------------------------------------------------------------- */

/* Makes one call with arguments on the GPU and takes its results. */
#define MOVED(call)                                                                                \
    do {                                                                                           \
        void *got = gpu_call_results(c.record, wanted);                                            \
        if ((call) != EJK_OK)                                                                      \
            note_failure(t, operation, ejk_last_error());                                          \
        else if (!gpu_call_take(&c, got, why, sizeof why))                                         \
            note_failure(t, operation, why);                                                       \
        else                                                                                       \
            compare(t, kernel, dtype, got, got, wanted);                                           \
        gpu_call_free_results(c.record, got);                                                      \
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
    EXPECT_OK(call_reference(t, kernel, &with_mask));
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
    EXPECT_OK(call_reference(t, kernel, &masked));
    gpu_call_open(&c, kernel->args, &flash, r);
    for (int i = 0; i < 2; i++) MOVED(ejk_flash_attention_masked(t->context, c.args, info));
    gpu_call_close(&c);
    ejk_mask_info_release(info);
    ejk_mask_info_release(segments);
    close_world(&w);
}

/* ---- Processes --------------------------------------------------------------------------------------- */

static void run_cases(void *counts, const gpu_share *share) {
    struct trial t = {.counts = counts};
    if (ejk_context_create(NULL, &t.context) != EJK_OK) abort();
    for (uint64_t n = share->first; n < share->cases && time(NULL) < share->end; n += share->step) {
        t.seed = gpu_number("EJK_TEST_SEED", 1) + n;
        t.random.state = t.seed;
        switch (t.seed % 8) {
        case 0: merge_case(&t); break;
        case 1: dense_cases(&t); break;
        case 2:
            if (t.seed % 16 == 2)
                lying_case(&t);
            else
                moved_case(&t);
            break;
        case 3:
        case 4: decode_case(&t); break;
        default: sparse_case(&t); break;
        }
    }
    ejk_context_destroy(t.context);
}

static int64_t report(const struct counts *all, int processes) {
    int64_t failures = 0;
    struct counts sum = {.doing = ""};
    for (int n = 0; n < processes; n++) {
        failures += all[n].failures;
        for (int i = 0; i < OPERATIONS; i++) {
            sum.calls[i] += all[n].calls[i];
            sum.worst[i] = fmax(sum.worst[i], all[n].worst[i]);
        }
    }
    for (int i = 0; i < OPERATIONS; i++)
        printf("%-34s %4" PRId64 " calls, at most %.2f of the tolerance\n", operations[i],
               sum.calls[i], sum.worst[i]);
    return failures;
}

int main(void) {
    const gpu_work work = {
        .run = run_cases, .size = sizeof(struct counts), .cases = 240, .seconds = 100};
    void *all;
    int processes;
    if (!gpu_present()) return GPU_SKIPPED;
    int64_t failures = gpu_run_processes(&work, &all, &processes);
    failures += report(all, processes);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
