/* SPDX-License-Identifier: Apache-2.0 */
#include "support/operation_case.h"

#include "support/call_results.h"
#include "support/dense_case.h"
#include "support/sparse_places.h"

/* The reference first, as gradients read what it writes. */
static void made(struct operation_case *t, const ejk_kernel *kernel, const void *args) {
    if (call_reference(t->context, kernel, args) == EJK_OK) {
        t->call(t, kernel, args);
        return;
    }
    printf("FAIL the reference of %s, seed %llu: %s\n", kernel->op_id, (unsigned long long)t->seed,
           ejk_last_error());
    exit(EXIT_FAILURE);
}

static ejk_tensor at(ejk_tensor t, void *data) {
    if (t.dtype != EJK_DTYPE_UNSET) t.data = data;
    return t;
}

/* ---- Block-sparse attention -------------------------------------------------------------------------- */

static const ejk_dtype types[] = {EJK_DTYPE_F32, EJK_DTYPE_BF16, EJK_DTYPE_BF16, EJK_DTYPE_F16};

static void add_bias(struct operation_case *t, struct world *w, void **bias, void **d_bias) {
    struct random *r = &t->random;
    const int64_t shape[] = {random_chance(r, 0.5) ? w->b : 1, random_chance(r, 0.5) ? w->heads : 1,
                             random_chance(r, 0.5) ? w->q : 1, w->kv};
    const int64_t count = shape[0] * shape[1] * shape[2] * shape[3];
    *bias = numbers(r, w->dtype, count);
    *d_bias = room(count, 8);
    w->args.bias = ejk_tensor_contiguous(*bias, w->dtype, 4, shape);
}

static void sparse_case(struct operation_case *t) {
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
    made(t, &ejk_blocksparse_attention_kernel, &w.args);
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
    made(t, &ejk_blocksparse_attention_vjp_kernel, &v);
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

static void dense_cases(struct operation_case *t) {
    static dense_case c;
    static double d_out[DENSE_MOST], gradients[5][DENSE_MOST];
    const ejk_dtype dtype = RANDOM_OF(&t->random, types);
    dense_fill(&c, t->seed, dtype);
    for (int64_t i = 0; i < DENSE_MOST; i++)
        flash_store(dtype, d_out, i, random_normal(&t->random));
    const ejk_scaled_dot_product_attention_args sdpa = dense_sdpa(&c);
    made(t, &ejk_attention_kernel, &c.args);
    ejk_attention_vjp_args v = {.causal = false};
    memcpy(&v, &c.args, offsetof(ejk_attention_vjp_args, out));
    DENSE_GRADIENTS(v, c.args);
    v.d_softmax_aux = at(c.args.softmax_aux, gradients[4]);
    made(t, &ejk_attention_vjp_kernel, &v);
    made(t, &ejk_scaled_dot_product_attention_kernel, &sdpa);
    ejk_scaled_dot_product_attention_vjp_args s = {.causal = false};
    memcpy(&s, &sdpa, offsetof(ejk_scaled_dot_product_attention_args, out));
    DENSE_GRADIENTS(s, sdpa);
    made(t, &ejk_scaled_dot_product_attention_vjp_kernel, &s);
}

/* ---- Few rows ---------------------------------------------------------------------------------------- */

static void few_case(struct operation_case *t) {
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
    const bool rising = random_chance(r, 0.2) && !args.softmax_scale.set;
    if (rising)
        for (int64_t i = 0; i < all * d; i++)
            flash_store(dtype, key, i,
                        flash_load(dtype, key, i) * (1 + (double)(i / d / kv % (keys + 1)) / 99));
    /* Values that are not finite, where rows may see them or not, and no weight is too small for any precision. */
    for (int64_t n = !rising && random_chance(r, 0.3) ? 3 : 0; n > 0 && all > 0; n--)
        flash_store(dtype, value, random_int(r, 0, all * dv - 1),
                    RANDOM_OF(r, ((double[]){INFINITY, -INFINITY, NAN})));
    t->few_rows = true;
    made(t, &ejk_flash_attention_kernel, &args);
    t->few_rows = false;
    void *memory[] = {query, key, value, sinks, out, lse, max, sum};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
}

/* ---- Merging ----------------------------------------------------------------------------------------- */

static void merge_case(struct operation_case *t) {
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
    made(t, &ejk_attention_merge_kernel, &args);
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
    made(t, &ejk_attention_merge_vjp_kernel, &v);
    void *all[] = {part, out, sinks, d_out, d_part, d_sinks, logs, lse, d_lse, d_logs};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* ---- One of them -------------------------------------------------------------------------------------- */

void operation_case_run(struct operation_case *t) {
    t->random.state = t->seed;
    switch (operation_case_kind(t->seed) % 8) {
    case 0: merge_case(t); break;
    case 1: dense_cases(t); break;
    case 2:
    case 3:
    case 4: few_case(t); break;
    default: sparse_case(t); break;
    }
}
