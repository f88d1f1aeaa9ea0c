/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed sequences: each is attended to as if it were alone, whatever its neighbours and wherever it lies;
 * rows of no sequence are 0; lengths that do not fit are refused before anything is written.
 */
#include "support/expect.h"
#include "support/random.h"

#include <ejkernel/ejkernel.h>
#include <math.h>
#include <stdlib.h>

enum { MOST = 6, LENGTH = 70, TOKENS = MOST * LENGTH + 10, HQ = 4, HKV = 2, D = 20, DV = 9 };

static ejk_context *contexts[2]; /* of one thread and of three */
static float q[TOKENS * HQ * D], k[TOKENS * HKV * D], v[TOKENS * HKV * DV], sinks[HQ];

/* Results of [tokens, Hq, Dv] and [Hq, tokens]. */
struct results {
    float out[TOKENS * HQ * DV], lse[HQ * TOKENS];
};
static struct results expected, got, again;

/* `count` sequences; tokens of them and of the tensors, per batch entry if padded. */
struct world {
    bool padded;
    int64_t count, queries, keys;
    int64_t query_ends[MOST + 1], key_ends[MOST + 1];
    ejk_flash_attention_args call; /* what all have in common */
};

static int setup(void **state) {
    (void)state;
    struct random r = {.state = 5};
    for (size_t i = 0; i < sizeof q / sizeof *q; i++) q[i] = (float)random_normal(&r);
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) k[i] = (float)random_normal(&r);
    for (size_t i = 0; i < sizeof v / sizeof *v; i++) v[i] = (float)random_normal(&r);
    for (int i = 0; i < HQ; i++) sinks[i] = (float)random_normal(&r);
    for (int i = 0; i < 2; i++) {
        const ejk_context_options options = {.threads = 1 + 2 * i};
        if (ejk_context_create(&options, &contexts[i]) != EJK_OK) return 1;
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) ejk_context_destroy(contexts[i]);
    return 0;
}

static struct world world_of(struct random *r, bool padded) {
    struct world w = {.padded = padded, .count = random_int(r, padded ? 1 : 0, MOST)};
    for (int64_t n = 0; n < w.count; n++) {
        w.query_ends[n + 1] =
            w.query_ends[n] + (random_chance(r, 0.2) ? 0 : random_int(r, 1, LENGTH));
        w.key_ends[n + 1] = w.key_ends[n] + (random_chance(r, 0.2) ? 0 : random_int(r, 1, LENGTH));
    }
    w.queries = padded ? LENGTH : w.query_ends[w.count] + random_int(r, 0, 9);
    w.keys = padded ? LENGTH : w.key_ends[w.count] + random_int(r, 0, 9);
    w.call.causal = random_chance(r, 0.5);
    if (random_chance(r, 0.3)) w.call.sliding_window = ejk_window_of(random_int(r, 0, 9), 3);
    if (random_chance(r, 0.3)) w.call.causal_offset = ejk_int(random_int(r, -3, 3));
    if (random_chance(r, 0.3)) w.call.softmax_aux = ejk_tensor_2d(sinks, EJK_DTYPE_F32, HQ, 1);
    return w;
}

/* The packed call of a world. `sums` holds both cumulative lengths in the type asked for. */
static ejk_flash_attention_args packed(const struct world *w, ejk_dtype dtype,
                                       int64_t sums[2][MOST + 1], struct results *results) {
    ejk_flash_attention_args a = w->call;
    for (int64_t n = 0; n <= w->count; n++) {
        if (dtype == EJK_DTYPE_I64) {
            sums[0][n] = w->query_ends[n];
            sums[1][n] = w->key_ends[n];
        } else {
            ((int32_t *)sums[0])[n] = (int32_t)w->query_ends[n];
            ((int32_t *)sums[1])[n] = (int32_t)w->key_ends[n];
        }
    }
    a.cum_seqlens_q = ejk_tensor_1d(sums[0], dtype, w->count + 1);
    a.cum_seqlens_k = ejk_tensor_1d(sums[1], dtype, w->count + 1);
    const ejk_dtype f32 = EJK_DTYPE_F32;
    if (w->padded) {
        a.query = ejk_tensor_4d(q, f32, w->count, w->queries, HQ, D);
        a.key = ejk_tensor_4d(k, f32, w->count, w->keys, HKV, D);
        a.value = ejk_tensor_4d(v, f32, w->count, w->keys, HKV, DV);
        a.out = ejk_tensor_4d(results->out, f32, w->count, w->queries, HQ, DV);
        a.lse = ejk_tensor_3d(results->lse, f32, w->count, HQ, w->queries);
    } else {
        a.query = ejk_tensor_3d(q, f32, w->queries, HQ, D);
        a.key = ejk_tensor_3d(k, f32, w->keys, HKV, D);
        a.value = ejk_tensor_3d(v, f32, w->keys, HKV, DV);
        a.out = ejk_tensor_3d(results->out, f32, w->queries, HQ, DV);
        a.lse = ejk_tensor_2d(results->lse, f32, HQ, w->queries);
    }
    return a;
}

static void clear(struct results *results) {
    for (size_t i = 0; i < sizeof results->out / sizeof(float); i++) results->out[i] = -77;
    for (size_t i = 0; i < sizeof results->lse / sizeof(float); i++) results->lse[i] = -77;
}

/* What should come out: each sequence by a call of its own into where it lies, 0 and -inf elsewhere. */
static void expect_each_alone(const struct world *w, struct results *results) {
    const int64_t entries = w->padded ? w->count : 1, rows = entries * w->queries;
    clear(results);
    for (int64_t i = 0; i < rows * HQ * DV; i++) results->out[i] = 0;
    for (int64_t i = 0; i < rows * HQ; i++) results->lse[i] = -INFINITY;
    for (int64_t n = 0; n < w->count; n++) {
        const int64_t query = w->padded ? n * w->queries : w->query_ends[n];
        const int64_t key = w->padded ? n * w->keys : w->key_ends[n];
        const int64_t queries = w->query_ends[n + 1] - w->query_ends[n];
        const int64_t keys = w->key_ends[n + 1] - w->key_ends[n];
        const ejk_dtype f32 = EJK_DTYPE_F32;
        ejk_flash_attention_args a = w->call;
        a.query = ejk_tensor_4d(q + query * HQ * D, f32, 1, queries, HQ, D);
        a.key = ejk_tensor_4d(k + key * HKV * D, f32, 1, keys, HKV, D);
        a.value = ejk_tensor_4d(v + key * HKV * DV, f32, 1, keys, HKV, DV);
        a.out = ejk_tensor_4d(results->out + query * HQ * DV, f32, 1, queries, HQ, DV);
        float *lse = results->lse + (w->padded ? n * HQ * w->queries : query);
        a.lse = ejk_tensor_3d(lse, f32, 1, HQ, queries);
        a.lse.strides[1] = w->queries;
        strcpy(a.platform, "reference");
        assert_int_equal(ejk_flash_attention(contexts[0], &a), EJK_OK);
    }
}

static void call(ejk_context *context, ejk_flash_attention_args a, const char *platform,
                 struct results *results) {
    clear(results);
    strcpy(a.platform, platform);
    a.out.data = results->out;
    a.lse.data = results->lse;
    if (ejk_flash_attention(context, &a) != EJK_OK) fail_msg("%s", ejk_last_error());
}

static void expect_close(const float *a, const float *b, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!(a[i] == b[i] || fabsf(a[i] - b[i]) < 2e-5f * fmaxf(1, fabsf(b[i]))))
            fail_msg("element %zu is %g, expected %g", i, (double)a[i], (double)b[i]);
}

static void test_each_alone(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 120; seed++) {
        struct random r = {.state = seed * 77 + 1};
        random_bits(&r);
        const struct world w = world_of(&r, seed % 2);
        int64_t sums[2][MOST + 1];
        const ejk_dtype dtype = random_chance(&r, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64;
        const ejk_flash_attention_args a = packed(&w, dtype, sums, &got);
        expect_each_alone(&w, &expected);
        call(contexts[0], a, "reference", &got);
        assert_memory_equal(&got, &expected, sizeof got);
        call(contexts[0], a, "simd", &got);
        expect_close(got.out, expected.out, sizeof got.out / sizeof(float));
        expect_close(got.lse, expected.lse, sizeof got.lse / sizeof(float));
        call(contexts[1], a, "simd", &again);
        assert_memory_equal(&got, &again, sizeof got);
    }
}

/* Weights are dropped by the number of the sequence and by places inside it. */
static void test_dropout(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 40; seed++) {
        struct random r = {.state = seed * 91 + 1};
        random_bits(&r);
        struct world w = world_of(&r, seed % 2);
        w.call.dropout_prob = 0.4;
        w.call.dropout_seed = ejk_int((int64_t)seed + 3);
        int64_t sums[2][MOST + 1];
        const ejk_flash_attention_args a = packed(&w, EJK_DTYPE_I64, sums, &got);
        call(contexts[0], a, "reference", &expected);
        call(contexts[0], a, "simd", &got);
        expect_close(got.out, expected.out, sizeof got.out / sizeof(float));
        /* Sequences of the padded layout, first in its batch entry, against the dense call of that batch. */
        if (!w.padded) continue;
        for (int64_t n = 0; n <= w.count; n++) sums[0][n] = sums[1][n] = n * LENGTH;
        call(contexts[0], a, "simd", &got);
        ejk_flash_attention_args dense = a;
        dense.cum_seqlens_q = dense.cum_seqlens_k = (ejk_tensor){.data = NULL};
        call(contexts[0], dense, "reference", &expected);
        expect_close(got.out, expected.out, sizeof got.out / sizeof(float));
    }
}

static void refuse(ejk_flash_attention_args a, ejk_status status, const char *words, int line) {
    static const char *const platforms[] = {"simd", "reference"};
    for (int i = 0; i < 2; i++) {
        clear(&got);
        strcpy(a.platform, platforms[i]);
        expect_status(status, ejk_flash_attention(contexts[1], &a), words, "call", __FILE__, line);
        for (size_t n = 0; n < sizeof got.out / sizeof(float); n++) assert_true(got.out[n] == -77);
        for (size_t n = 0; n < sizeof got.lse / sizeof(float); n++) assert_true(got.lse[n] == -77);
    }
}

#define REFUSED(world, status, words, ...)                                                         \
    do {                                                                                           \
        int64_t sums[2][MOST + 1];                                                                 \
        ejk_flash_attention_args a = packed(world, EJK_DTYPE_I64, sums, &got);                     \
        __VA_ARGS__;                                                                               \
        refuse(a, EJK_STATUS_##status, words, __LINE__);                                           \
    } while (0)

static void test_refusals(void **state) {
    (void)state;
    struct world w = {.count = 2, .queries = 10, .keys = 12};
    for (int n = 1; n <= 2; n++) w.query_ends[n] = w.key_ends[n] = 5 * n;
    REFUSED(&w, INVALID_ARGUMENT, "cum_seqlens_q starts at 1", sums[0][0] = 1);
    REFUSED(&w, INVALID_ARGUMENT, "cum_seqlens_k starts at -3", sums[1][0] = -3);
    REFUSED(&w, INVALID_ARGUMENT, "cum_seqlens_k falls from 11 to 10", sums[1][1] = 11);
    REFUSED(&w, INVALID_ARGUMENT, "cum_seqlens_q is 11 at element 2", sums[0][2] = 11);
    REFUSED(&w, INVALID_ARGUMENT, "cum_seqlens_k is 13 at element 2", sums[1][2] = 13);
    REFUSED(&w, INVALID_ARGUMENT, "cum_seqlens_q is 9223372036854775807", sums[0][1] = INT64_MAX);
    REFUSED(&w, INVALID_SHAPE, "key has rank 4",
            a.key = ejk_tensor_4d(k, EJK_DTYPE_F32, 1, 12, HKV, D));
    REFUSED(&w, INVALID_SHAPE, "lse has rank 3",
            a.lse = ejk_tensor_3d(got.lse, EJK_DTYPE_F32, 1, HQ, 10));
    REFUSED(&w, INVALID_SHAPE, "query has rank 3, expected 4",
            a.cum_seqlens_q = a.cum_seqlens_k = (ejk_tensor){.data = NULL});
    REFUSED(&w, INVALID_ARGUMENT, "cum_seqlens_q is given alone",
            a.cum_seqlens_k = (ejk_tensor){.data = NULL});
    REFUSED(&w, INVALID_DTYPE, "cum_seqlens_k has type int32",
            a.cum_seqlens_k.dtype = EJK_DTYPE_I32);
    REFUSED(&w, INVALID_ARGUMENT, "bias is given",
            a.bias = ejk_tensor_4d(q, EJK_DTYPE_F32, 1, 1, 1, 12));
    w.padded = true;
    REFUSED(&w, INVALID_ARGUMENT, "at most 10 more", sums[0][2] = 16);
    REFUSED(&w, INVALID_SHAPE, "cum_seqlens_q has 2 elements, expected 3",
            a.cum_seqlens_q = a.cum_seqlens_k = ejk_tensor_1d(sums[0], EJK_DTYPE_I64, 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_alone),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
