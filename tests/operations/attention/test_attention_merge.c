/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_merge: splits of the keys against all keys at once, and what is refused.
 */
#include "support/expect.h"
#include "support/random.h"

#include <ejkernel/ejkernel.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 16384 };

static ejk_context *context;

static int setup(void **state) {
    (void)state;
    return ejk_context_create(&(ejk_context_options){.threads = 3}, &context) != EJK_OK;
}

static int teardown(void **state) {
    (void)state;
    ejk_context_destroy(context);
    return 0;
}

/* ---- Splits of the keys ----------------------------------------------------------------------------- */

static float query[MOST], key[MOST], value[MOST], sinks[64];
static float whole[MOST], whole_lse[MOST], part[4 * MOST], part_lse[4 * MOST], part_sum[4 * MOST];
static float merged[MOST], merged_lse[MOST];

static void fill(struct random *r, float *numbers, int64_t count) {
    for (int64_t i = 0; i < count; i++) numbers[i] = (float)(2 * random_normal(r));
}

static void expect_close(uint64_t seed, const char *what, const float *got, const float *wanted,
                         int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (got[i] == wanted[i] || fabsf(got[i] - wanted[i]) <= 1e-5f * (1 + fabsf(wanted[i])))
            continue;
        fail_msg("seed %llu: %s[%d] is %.9g, expected %.9g", (unsigned long long)seed, what, (int)i,
                 (double)got[i], (double)wanted[i]);
    }
}

static void merge_of_splits_is_the_whole(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct random r = {seed};
        const int64_t b = random_int(&r, 1, 2), t = random_int(&r, 1, 40),
                      s = random_int(&r, 0, 50), kv = random_int(&r, 1, 2),
                      h = kv * random_int(&r, 1, 2), d = random_int(&r, 1, 4),
                      dv = random_int(&r, 1, 40), n = random_int(&r, 1, 4), rows = b * h * t,
                      outs = rows * dv;
        if (outs > MOST) continue;
        const bool accumulators = random_chance(&r, 0.5);
        fill(&r, query, b * t * h * d);
        fill(&r, key, b * s * kv * d);
        fill(&r, value, b * s * kv * dv);
        fill(&r, sinks, 64);
        const bool flat = random_chance(&r, 0.5);
        const int64_t sink_shape[] = {random_chance(&r, 0.5) ? h : kv, random_int(&r, 1, 3)};
        ejk_tensor aux = {0};
        if (random_chance(&r, 0.5))
            aux = ejk_tensor_contiguous(sinks, EJK_DTYPE_F32, flat ? 1 : 2, sink_shape + flat);
        ejk_flash_attention_args call = {.query = ejk_tensor_4d(query, EJK_DTYPE_F32, b, t, h, d),
                                         .key = ejk_tensor_4d(key, EJK_DTYPE_F32, b, s, kv, d),
                                         .value = ejk_tensor_4d(value, EJK_DTYPE_F32, b, s, kv, dv),
                                         .softmax_aux = aux,
                                         .out = ejk_tensor_4d(whole, EJK_DTYPE_F32, b, t, h, dv),
                                         .lse = ejk_tensor_3d(whole_lse, EJK_DTYPE_F32, b, h, t)};
        EXPECT_OK(ejk_flash_attention(context, &call));
        call.softmax_aux = (ejk_tensor){0};
        if (accumulators) call.normalize_output = EJK_FALSE;
        for (int64_t k = 0, from = 0; k < n; k++) {
            const int64_t to = k == n - 1 ? s : random_int(&r, from, s); /* empty ones, too */
            call.key.data = key + from * kv * d;
            call.value.data = value + from * kv * dv;
            call.key.shape[1] = call.value.shape[1] = to - from;
            call.out.data = part + k * outs;
            call.lse = ejk_tensor_3d(part_lse + k * rows, EJK_DTYPE_F32, b, h, t);
            if (accumulators) {
                call.row_max = call.row_sum = call.lse;
                call.row_sum.data = part_sum + k * rows;
                call.lse = (ejk_tensor){0};
            }
            EXPECT_OK(ejk_flash_attention(context, &call));
            from = to;
        }
        const ejk_tensor parts = ejk_tensor_contiguous(part, EJK_DTYPE_F32, 5,
                                                       (int64_t[]){n, b, t, h, dv}),
                         logs = ejk_tensor_4d(part_lse, EJK_DTYPE_F32, n, b, h, t),
                         out = ejk_tensor_4d(merged, EJK_DTYPE_F32, b, t, h, dv),
                         lse = ejk_tensor_3d(merged_lse, EJK_DTYPE_F32, b, h, t);
        const char *platform = seed % 3 ? "" : "reference";
        memset(merged, 0xff, sizeof merged);
        memset(merged_lse, 0xff, sizeof merged_lse);
        if (accumulators) {
            ejk_attention_merge_accumulators_args args = {.accumulator = parts,
                                                          .row_max = logs,
                                                          .row_sum = logs,
                                                          .softmax_aux = aux,
                                                          .out = out,
                                                          .lse = lse};
            args.row_sum.data = part_sum;
            strcpy(args.platform, platform);
            EXPECT_OK(ejk_attention_merge_accumulators(context, &args));
        } else {
            ejk_attention_merge_args args = {.partial_out = parts,
                                             .partial_lse = logs,
                                             .softmax_aux = aux,
                                             .out = out,
                                             .lse = lse};
            strcpy(args.platform, platform);
            EXPECT_OK(ejk_attention_merge(context, &args));
        }
        expect_close(seed, "out", merged, whole, outs);
        expect_close(seed, "lse", merged_lse, whole_lse, rows);
    }
}

/* ---- A call ----------------------------------------------------------------------------------------- */

/* A call with numbers in double precision beside the tensors of its type. */
typedef struct sample {
    int64_t n, b, t, h, dv, sink_heads, sink_count;
    ejk_dtype dtype;
    double part[MOST], aux[64], out[MOST], lse[MOST];
    double part_storage[MOST], aux_storage[64], out_storage[MOST];
    float logs[MOST], lse_storage[MOST];
    ejk_attention_merge_args args;
} sample;

static sample m;

static double d_out[MOST], d_aux[64];

static double load(ejk_dtype dtype, const void *data, int64_t i) {
    switch (dtype) {
    case EJK_DTYPE_F64: return ((const double *)data)[i];
    case EJK_DTYPE_F32: return (double)((const float *)data)[i];
    case EJK_DTYPE_BF16: return (double)ejk_bf16_to_f32(((const uint16_t *)data)[i]);
    default: return (double)ejk_f16_to_f32(((const uint16_t *)data)[i]);
    }
}

static void store(ejk_dtype dtype, void *data, int64_t i, double x) {
    switch (dtype) {
    case EJK_DTYPE_F64: ((double *)data)[i] = x; break;
    case EJK_DTYPE_F32: ((float *)data)[i] = (float)x; break;
    case EJK_DTYPE_BF16: ((uint16_t *)data)[i] = ejk_f32_to_bf16((float)x); break;
    default: ((uint16_t *)data)[i] = ejk_f32_to_f16((float)x); break;
    }
}

/* Parts that saw nothing hold NaN. */
static void draw(uint64_t seed, ejk_dtype dtype, int64_t largest) {
    struct random r = {seed + 99};
    memset(&m, 0, sizeof m);
    m.dtype = dtype;
    m.n = random_int(&r, 0, 4), m.b = random_int(&r, 1, 2), m.t = random_int(&r, 1, largest),
    m.h = 2 * random_int(&r, 1, largest / 4 + 1), m.dv = random_int(&r, 1, largest);
    m.sink_heads = random_chance(&r, 0.3) ? 0 : random_chance(&r, 0.5) ? m.h : m.h / 2;
    m.sink_count = random_chance(&r, 0.4) ? 0 : random_int(&r, 1, 2);
    const int64_t rows = m.b * m.h * m.t;
    while (m.n * rows * m.dv > MOST || rows * m.dv > MOST) m.dv /= 2;
    for (int64_t i = 0; i < 64; i++) {
        store(dtype, m.aux_storage, i, random_normal(&r));
        m.aux[i] = load(dtype, m.aux_storage, i);
    }
    for (int64_t i = 0; i < m.n * rows; i++)
        m.logs[i] = random_chance(&r, 0.3) ? -INFINITY : (float)(3 * random_normal(&r));
    for (int64_t i = 0; i < m.n * rows * m.dv; i++) {
        const int64_t row = i / m.dv, part_ = row / rows, b = row / (m.t * m.h) % m.b,
                      t = row / m.h % m.t, h = row % m.h;
        const bool dead = isinf(m.logs[((part_ * m.b + b) * m.h + h) * m.t + t]);
        store(dtype, m.part_storage, i, dead ? NAN : random_normal(&r));
        m.part[i] = load(dtype, m.part_storage, i);
    }
    m.args = (ejk_attention_merge_args){
        .partial_out =
            ejk_tensor_contiguous(m.part_storage, dtype, 5, (int64_t[]){m.n, m.b, m.t, m.h, m.dv}),
        .partial_lse = ejk_tensor_4d(m.logs, EJK_DTYPE_F32, m.n, m.b, m.h, m.t),
        .out = ejk_tensor_4d(m.out_storage, dtype, m.b, m.t, m.h, m.dv),
        .lse = ejk_tensor_3d(m.lse_storage, EJK_DTYPE_F32, m.b, m.h, m.t)};
    if (m.sink_count && m.sink_heads)
        m.args.softmax_aux = ejk_tensor_2d(m.aux_storage, dtype, m.sink_heads, m.sink_count);
    else if (m.sink_count)
        m.args.softmax_aux =
            ejk_tensor_contiguous(m.aux_storage, dtype, 1, (int64_t[]){m.sink_count});
    memset(m.out_storage, 0xff, sizeof m.out_storage);
    memset(m.lse_storage, 0xff, sizeof m.lse_storage);
}

/* ---- Refusals --------------------------------------------------------------------------------------- */

#define REFUSED(status, words, change)                                                             \
    do {                                                                                           \
        draw(4, EJK_DTYPE_F32, 8);                                                                 \
        ejk_attention_merge_args a = m.args;                                                       \
        change;                                                                                    \
        static double before[MOST];                                                                \
        memcpy(before, m.out_storage, sizeof before);                                              \
        EXPECT_FAIL(status, words, ejk_attention_merge(context, &a));                              \
        assert_memory_equal(before, m.out_storage, sizeof before);                                 \
    } while (0)

static void wrong_calls_are_refused(void **state) {
    (void)state;
    REFUSED(INVALID_SHAPE, "partial_lse", a.partial_lse.shape[0]++);
    REFUSED(INVALID_SHAPE, "out", a.out.shape[3]++);
    REFUSED(INVALID_DTYPE, "out", a.out.dtype = EJK_DTYPE_BF16);
    REFUSED(INVALID_DTYPE, "partial_lse", a.partial_lse.dtype = EJK_DTYPE_F64);
    REFUSED(INVALID_LAYOUT, "out", a.out.data = a.partial_out.data);
    REFUSED(INVALID_ARGUMENT, "partial_out", a.partial_out.data = NULL);
    REFUSED(INVALID_SHAPE, "softmax_aux",
            a.softmax_aux = ejk_tensor_2d(m.aux_storage, EJK_DTYPE_F32, m.h + 1, 1));
    REFUSED(UNAVAILABLE, "triton", strcpy(a.platform, "triton"));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_attention_merge(context, NULL));
    draw(4, EJK_DTYPE_F32, 8);
    ejk_attention_merge_args a = m.args;
    a.lse = (ejk_tensor){0};
    EXPECT_FAIL(INVALID_ARGUMENT, "lse", ejk_attention_merge_fwd(context, &a));
    ejk_attention_merge_vjp_args v = {.partial_out = a.partial_out,
                                      .partial_lse = a.partial_lse,
                                      .out = a.out,
                                      .lse = m.args.lse,
                                      .d_out = a.out,
                                      .d_softmax_aux = ejk_tensor_2d(d_aux, EJK_DTYPE_F32, m.h, 1)};
    v.d_out.data = d_out;
    EXPECT_FAIL(INVALID_ARGUMENT, "d_softmax_aux", ejk_attention_merge_vjp(context, &v));
    v.softmax_aux = ejk_tensor_2d(m.aux_storage, EJK_DTYPE_F32, m.h / 2, 1);
    EXPECT_FAIL(INVALID_SHAPE, "d_softmax_aux", ejk_attention_merge_vjp(context, &v));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merge_of_splits_is_the_whole),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
