/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over time: in chunks, in sequences, forwards and backwards. */
#include "support/expect.h"
#include "support/random.h"
#include "support/strided.h"
#include "support/test_threads.h"

#include <ejkernel/sequence.h>
#include <stdlib.h>

#define SAME(got, ...)                                                                             \
    do {                                                                                           \
        const float wanted_[] = {__VA_ARGS__};                                                     \
        assert_memory_equal(got, wanted_, sizeof wanted_);                                         \
    } while (0)

/* ---- The examples of the documents ------------------------------------------------------------------- */

static float numbers[] = {1, 2, 3, 4, 5, 6};

static ejk_tensor six_steps(float *values) {
    return ejk_tensor_3d(values, EJK_DTYPE_F32, 1, 6, 1);
}

static void documented_chunks(void **state) {
    (void)state;
    float sums[6];
    ejk_tensor g = six_steps(numbers), out = six_steps(sums);
    ejk_cumsum_options options = {0};
    EXPECT_OK(ejk_chunk_local_cumsum(NULL, &g, 4, NULL, &out));
    SAME(sums, 1, 3, 6, 10, 5, 11);
    options.reverse = true;
    EXPECT_OK(ejk_chunk_local_cumsum(NULL, &g, 4, &options, &out));
    SAME(sums, 10, 9, 7, 4, 11, 6);
    options = (ejk_cumsum_options){.softmax_scale = ejk_float(0.5)};
    EXPECT_OK(ejk_chunk_local_cumsum(NULL, &g, 4, &options, &out));
    SAME(sums, 0.5F, 1.5F, 3, 5, 2.5F, 5.5F);
}

static void documented_whole(void **state) {
    (void)state;
    float sums[6];
    ejk_tensor s = six_steps(numbers), out = six_steps(sums);
    ejk_cumsum_options options = {0};
    EXPECT_OK(ejk_chunk_global_cumsum(NULL, &s, &options, &out));
    SAME(sums, 1, 3, 6, 10, 15, 21);
    options.reverse = true;
    EXPECT_OK(ejk_chunk_global_cumsum(NULL, &s, &options, &out));
    SAME(sums, 21, 20, 18, 15, 11, 6);
}

/* What is right where the earlier system was wrong: empty sequences, and reverse with sequences. */
static void documented_sequences(void **state) {
    (void)state;
    int32_t two[] = {0, 2, 6}, inner[] = {0, 2, 2, 4, 6}, leading[] = {0, 0, 3, 6},
            early[] = {0, 4};
    float sums[6];
    ejk_tensor s = six_steps(numbers), out = six_steps(sums);
    ejk_tensor cu = ejk_tensor_1d(two, EJK_DTYPE_I32, 3);
    ejk_cumsum_options options = {.reverse = true, .cu_seqlens = &cu};
    EXPECT_OK(ejk_chunk_global_cumsum(NULL, &s, &options, &out));
    SAME(sums, 3, 2, 18, 15, 11, 6);
    options.reverse = false;
    cu = ejk_tensor_1d(inner, EJK_DTYPE_I32, 5);
    EXPECT_OK(ejk_chunk_global_cumsum(NULL, &s, &options, &out));
    SAME(sums, 1, 3, 3, 7, 5, 11);
    cu = ejk_tensor_1d(leading, EJK_DTYPE_I32, 4);
    EXPECT_OK(ejk_chunk_global_cumsum(NULL, &s, &options, &out));
    SAME(sums, 1, 3, 6, 4, 9, 15);
    /* Steps of no sequence are 0. */
    cu = ejk_tensor_1d(early, EJK_DTYPE_I32, 2);
    EXPECT_OK(ejk_chunk_local_cumsum(NULL, &s, 3, &options, &out));
    SAME(sums, 1, 3, 6, 4, 0, 0);
}

static void integers_stop_at_the_ends(void **state) {
    (void)state;
    int8_t narrow[] = {100, 100, -100}, sums[3];
    int64_t wide[] = {INT64_MAX, 5, -7}, wide_sums[3];
    ejk_tensor in = ejk_tensor_3d(narrow, EJK_DTYPE_I8, 1, 3, 1);
    ejk_tensor out = ejk_tensor_3d(sums, EJK_DTYPE_I8, 1, 3, 1);
    EXPECT_OK(ejk_chunk_global_cumsum(NULL, &in, NULL, &out));
    assert_true(sums[0] == 100 && sums[1] == 127 && sums[2] == 100);
    in = ejk_tensor_3d(wide, EJK_DTYPE_I64, 1, 3, 1);
    out = ejk_tensor_3d(wide_sums, EJK_DTYPE_I64, 1, 3, 1);
    EXPECT_OK(ejk_chunk_global_cumsum(NULL, &in, NULL, &out));
    assert_true(wide_sums[1] == INT64_MAX && wide_sums[2] == INT64_MAX - 7);
}

/* ---- Random tensors against the obvious ---------------------------------------------------------------- */

static const ejk_dtype floating[] = {EJK_DTYPE_F64, EJK_DTYPE_F32, EJK_DTYPE_BF16, EJK_DTYPE_F16};
static const ejk_dtype whole[] = {EJK_DTYPE_I64, EJK_DTYPE_I32, EJK_DTYPE_I16, EJK_DTYPE_I8,
                                  EJK_DTYPE_U8};

enum { MOST_STEPS = 12000, MOST_SEQUENCES = 20 };

struct case_ {
    int64_t b, t, h, s; /* s = 0: rank 3 */
    int64_t chunk;      /* 0: global */
    ejk_cumsum_options options;
    int64_t sequences, ends[MOST_SEQUENCES + 1];
    int64_t shape[4];
    int32_t rank;
};

static void draw_case(struct case_ *c, struct random *r) {
    *c = (struct case_){
        .b = random_int(r, 0, 3), .t = random_int(r, 0, 60), .h = random_int(r, 0, 5)};
    if (random_chance(r, 0.5)) c->s = random_int(r, 1, 80);
    if (random_chance(r, 0.1)) {
        *c = (struct case_){.b = 1, .t = random_int(r, 3000, MOST_STEPS), .h = random_int(r, 1, 4)};
    }
    if (random_chance(r, 0.5)) c->chunk = random_int(r, 1, 70);
    c->options.reverse = random_chance(r, 0.5);
    c->options.head_first = random_chance(r, 0.5);
    c->sequences = -1;
    if (random_chance(r, 0.5)) {
        c->b = 1;
        c->sequences = random_int(r, 0, MOST_SEQUENCES);
        for (int64_t n = 0; n < c->sequences; n++) {
            int64_t most = (c->t - c->ends[n]) / (random_chance(r, 0.5) ? 2 : 6);
            c->ends[n + 1] = c->ends[n] + (random_chance(r, 0.2) ? 0 : random_int(r, 0, most));
        }
    }
    const int64_t time_first[] = {c->b, c->t, c->h, c->s}, head_first[] = {c->b, c->h, c->t, c->s};
    c->rank = c->s ? 4 : 3;
    for (int i = 0; i < c->rank; i++)
        c->shape[i] = (c->options.head_first ? head_first : time_first)[i];
}

static int64_t index_of(const struct case_ *c, int64_t b, int64_t t, int64_t h, int64_t s) {
    int64_t outer = c->options.head_first ? (b * c->h + h) * c->t + t : (b * c->t + t) * c->h + h;
    return outer * (c->s ? c->s : 1) + s;
}

/* True if the sum at `t` goes on from that of the step before it in time. */
static bool same_stretch(const struct case_ *c, int64_t before, int64_t t) {
    int64_t start = 0, end = c->t;
    for (int64_t n = 0; n < c->sequences; n++) {
        if (t < c->ends[n] || t >= c->ends[n + 1]) continue;
        start = c->ends[n];
        end = c->ends[n + 1];
    }
    if (before < start || before >= end) return false;
    return c->chunk == 0 || (before - start) / c->chunk == (t - start) / c->chunk;
}

/* Sums in the order of time, in f32 or f64, as the header says. */
static void sum_lane(const struct case_ *c, const double *in, double *out, bool wide,
                     const int64_t at[3]) {
    int64_t step = c->options.reverse ? -1 : 1;
    int64_t t = c->options.reverse ? c->t - 1 : 0;
    int64_t total = c->sequences < 0 ? c->t : c->ends[c->sequences];
    double sum = 0;
    double scale = c->options.softmax_scale.set ? c->options.softmax_scale.value : 1;
    for (int64_t done = 0; done < c->t; done++, t += step) {
        int64_t i = index_of(c, at[0], t, at[1], at[2]);
        if (!same_stretch(c, t - step, t)) sum = 0;
        sum = wide ? sum + in[i] : (double)((float)sum + (float)in[i]);
        out[i] = wide ? sum * scale : (double)((float)sum * (float)scale);
        if (t >= total) out[i] = sum = 0;
    }
}

static void sum_all(const struct case_ *c, const double *in, double *out, bool wide) {
    for (int64_t b = 0; b < c->b; b++) {
        for (int64_t h = 0; h < c->h; h++) {
            for (int64_t s = 0; s < (c->s ? c->s : 1); s++) {
                sum_lane(c, in, out, wide, (const int64_t[]){b, h, s});
            }
        }
    }
}

static void run_case(ejk_threads *threads, struct random *r, struct case_ *c, double *in,
                     double *got, double *wanted) {
    bool real = random_chance(r, 0.7);
    ejk_dtype from = real ? RANDOM_OF(r, floating) : RANDOM_OF(r, whole);
    ejk_dtype to = real ? RANDOM_OF(r, floating) : RANDOM_OF(r, whole);
    if (real && random_chance(r, 0.3)) c->options.softmax_scale = ejk_float(random_normal(r));
    int64_t count = c->b * c->t * c->h * (c->s ? c->s : 1);
    for (int64_t i = 0; i < count; i++)
        in[i] = real ? random_normal(r) : (double)random_int(r, 0, 9);
    struct strided input, sums, cu;
    strided_create(&input, r, from, c->rank, c->shape);
    strided_put(&input, EJK_DTYPE_F64, in);
    strided_get(&input, EJK_DTYPE_F64, in);
    strided_create(&sums, r, to, c->rank, c->shape);
    int64_t lengths = c->sequences + 1;
    if (c->sequences >= 0) {
        strided_create(&cu, r, random_chance(r, 0.5) ? EJK_DTYPE_I32 : EJK_DTYPE_I64, 1, &lengths);
        strided_put(&cu, EJK_DTYPE_I64, c->ends);
        c->options.cu_seqlens = &cu.view;
    }
    EXPECT_OK(c->chunk
                  ? ejk_chunk_local_cumsum(threads, &input.view, c->chunk, &c->options, &sums.view)
                  : ejk_chunk_global_cumsum(threads, &input.view, &c->options, &sums.view));
    strided_get(&sums, EJK_DTYPE_F64, got);
    sum_all(c, in, wanted, !real || from == EJK_DTYPE_F64 || to == EJK_DTYPE_F64);
    /* Rounded once to the type of the result. */
    struct strided rounded;
    strided_create(&rounded, r, to, c->rank, c->shape);
    strided_put(&rounded, EJK_DTYPE_F64, wanted);
    strided_get(&rounded, EJK_DTYPE_F64, wanted);
    for (int64_t i = 0; i < count; i++) EXPECT_NEAR(got[i], wanted[i], 0);
    assert_true(strided_gaps_untouched(&sums));
    if (c->sequences >= 0) strided_destroy(&cu);
    strided_destroy(&rounded);
    strided_destroy(&sums);
    strided_destroy(&input);
}

static void random_sums(void **state) {
    (void)state;
    struct random r = {31};
    ejk_threads *threads;
    threads = test_threads_create(3);
    enum { MOST = 3 * 60 * 5 * 80 };
    double *values = malloc(3 * MOST * sizeof *values);
    assert_non_null(values);
    for (int round = 0; round < 400; round++) {
        struct case_ c;
        draw_case(&c, &r);
        run_case(random_chance(&r, 0.7) ? threads : NULL, &r, &c, values, values + MOST,
                 values + 2 * MOST);
    }
    free(values);
    ejk_threads_destroy(threads);
}

/* ---- Errors -------------------------------------------------------------------------------------------- */

static void wrong_arguments(void **state) {
    (void)state;
    float sums[6] = {7, 7, 7, 7, 7, 7};
    int32_t counts[6] = {0}, ends[] = {0, 7}, falling[] = {0, 4, 2};
    ejk_tensor in = six_steps(numbers), out = six_steps(sums),
               cu = ejk_tensor_1d(ends, EJK_DTYPE_I32, 2);
    ejk_cumsum_options options = {.cu_seqlens = &cu};
    EXPECT_FAIL(INVALID_ARGUMENT, "chunk_size is 0",
                ejk_chunk_local_cumsum(NULL, &in, 0, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "chunk_size is -4",
                ejk_chunk_local_cumsum(NULL, &in, -4, NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "cu_seqlens ends at 7, expected at most the 6 steps",
                ejk_chunk_global_cumsum(NULL, &in, &options, &out));
    cu = ejk_tensor_1d(falling, EJK_DTYPE_I32, 3);
    EXPECT_FAIL(INVALID_ARGUMENT, "cu_seqlens[2] is 2, less than 4",
                ejk_chunk_local_cumsum(NULL, &in, 2, &options, &out));
    ejk_tensor batch = ejk_tensor_3d(numbers, EJK_DTYPE_F32, 2, 3, 1), batch_out = batch;
    batch_out.data = sums;
    EXPECT_FAIL(INVALID_SHAPE, "input has a batch of 2, expected 1",
                ejk_chunk_global_cumsum(NULL, &batch, &options, &batch_out));
    EXPECT_FAIL(INVALID_SHAPE, "sums_out has length 1 on axis 0, expected 2",
                ejk_chunk_global_cumsum(NULL, &batch, NULL, &out));
    ejk_tensor flat = ejk_tensor_2d(numbers, EJK_DTYPE_F32, 2, 3);
    EXPECT_FAIL(INVALID_SHAPE, "input has rank 2",
                ejk_chunk_global_cumsum(NULL, &flat, NULL, &out));
    ejk_tensor integers = ejk_tensor_3d(counts, EJK_DTYPE_I32, 1, 6, 1);
    EXPECT_FAIL(INVALID_DTYPE, "sums_out has element type int32, expected a floating type",
                ejk_chunk_global_cumsum(NULL, &in, NULL, &integers));
    EXPECT_FAIL(INVALID_DTYPE, "sums_out has element type float32, expected an integer type",
                ejk_chunk_global_cumsum(NULL, &integers, NULL, &out));
    EXPECT_FAIL(INVALID_LAYOUT, "sums_out at", ejk_chunk_global_cumsum(NULL, &in, NULL, &in));
    options = (ejk_cumsum_options){.softmax_scale = ejk_float(2)};
    int64_t more[6];
    ejk_tensor wide = ejk_tensor_3d(more, EJK_DTYPE_I64, 1, 6, 1);
    EXPECT_FAIL(INVALID_ARGUMENT, "softmax_scale is set to 2",
                ejk_chunk_global_cumsum(NULL, &integers, &options, &wide));
    SAME(sums, 7, 7, 7, 7, 7, 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documented_chunks),    cmocka_unit_test(documented_whole),
        cmocka_unit_test(documented_sequences), cmocka_unit_test(integers_stop_at_the_ends),
        cmocka_unit_test(random_sums),          cmocka_unit_test(wrong_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
