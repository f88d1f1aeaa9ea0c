/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_merge: splits of the keys against all keys at once, both forms against the definition, gradients
 * against slopes, and what is refused.
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

/* ---- The definition --------------------------------------------------------------------------------- */

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

static double sink(int64_t h, int64_t k) {
    return m.aux[(m.sink_heads ? h / (m.h / m.sink_heads) : 0) * m.sink_count + k];
}

static void expect(void) {
    for (int64_t row = 0; row < m.b * m.t * m.h; row++) {
        const int64_t b = row / (m.t * m.h), t = row / m.h % m.t, h = row % m.h;
        double total = 0;
        for (int64_t k = 0; k < m.sink_count; k++) total += exp(sink(h, k));
        for (int64_t n = 0; n < m.n; n++)
            total += exp((double)m.logs[((n * m.b + b) * m.h + h) * m.t + t]);
        m.lse[(b * m.h + h) * m.t + t] = log(total);
        for (int64_t d = 0; d < m.dv; d++) {
            double sum = 0;
            for (int64_t n = 0; n < m.n; n++) {
                const double l = (double)m.logs[((n * m.b + b) * m.h + h) * m.t + t];
                if (isinf(l)) continue;
                sum += exp(l) / total * m.part[(n * m.b * m.t * m.h + row) * m.dv + d];
            }
            m.out[row * m.dv + d] = sum;
        }
    }
}

static void compare(uint64_t seed, double tolerance) {
    expect();
    for (int64_t i = 0; i < m.b * m.t * m.h * m.dv; i++) {
        const double x = load(m.dtype, m.out_storage, i);
        if (!(fabs(x - m.out[i]) <= tolerance * (1 + fabs(m.out[i]))))
            fail_msg("seed %llu, %s: out[%d] is %.9g, expected %.9g", (unsigned long long)seed,
                     ejk_dtype_name(m.dtype), (int)i, x, m.out[i]);
    }
    for (int64_t i = 0; i < m.b * m.t * m.h; i++) {
        const double x = (double)m.lse_storage[i];
        if (x != m.lse[i] && !(fabs(x - m.lse[i]) <= 2e-6 * (1 + fabs(m.lse[i]))))
            fail_msg("seed %llu: lse[%d] is %.9g, expected %.9g", (unsigned long long)seed, (int)i,
                     x, m.lse[i]);
    }
}

static void results_are_the_definition(void **state) {
    (void)state;
    static const struct {
        ejk_dtype dtype;
        double tolerance;
    } types[] = {{EJK_DTYPE_F64, 1e-12},
                 {EJK_DTYPE_F32, 2e-6},
                 {EJK_DTYPE_BF16, 1e-2},
                 {EJK_DTYPE_F16, 2e-3}};
    static const ejk_isa tiers[] = {EJK_ISA_SCALAR, EJK_ISA_NEON, EJK_ISA_AVX2, EJK_ISA_AVX512};
    for (size_t tier = 0; tier < sizeof tiers / sizeof *tiers; tier++) {
        if (!ejk_cpu()->tiers[tiers[tier]]) continue;
        ejk_context *own;
        const ejk_context_options options = {.threads = 2, .isa = ejk_isa_name(tiers[tier])};
        EXPECT_OK(ejk_context_create(&options, &own));
        for (size_t k = 0; k < sizeof types / sizeof *types; k++)
            for (uint64_t seed = 0; seed < 150; seed++) {
                draw(seed, types[k].dtype, 40);
                if (seed % 5 == 0) strcpy(m.args.platform, "reference");
                EXPECT_OK(ejk_attention_merge_fwd(own, &m.args));
                compare(seed, types[k].tolerance);
            }
        ejk_context_destroy(own);
    }
}

/* The same bits for any number of threads, and for rows that lie elsewhere in a block. */
static void bits_do_not_depend_on_threads_or_place(void **state) {
    (void)state;
    static double out[MOST];
    for (int threads = 1; threads <= 4; threads++) {
        ejk_context *own;
        EXPECT_OK(ejk_context_create(&(ejk_context_options){.threads = threads}, &own));
        for (uint64_t seed = 500; seed < 550; seed++) {
            draw(seed, seed % 2 ? EJK_DTYPE_F32 : EJK_DTYPE_BF16, 40);
            EXPECT_OK(ejk_attention_merge(context, &m.args));
            memcpy(out, m.out_storage, sizeof out);
            memset(m.out_storage, 0xff, sizeof m.out_storage);
            EXPECT_OK(ejk_attention_merge(own, &m.args));
            assert_memory_equal(out, m.out_storage, sizeof out);
            if (m.t < 2) continue;
            const int64_t skip = m.t / 2, size = (int64_t)ejk_dtype_size(m.dtype);
            ejk_attention_merge_args a = m.args;
            a.partial_out.shape[2] = a.partial_lse.shape[3] = a.out.shape[1] = a.lse.shape[2] =
                m.t - skip;
            a.partial_out.data = (char *)a.partial_out.data + skip * m.h * m.dv * size;
            a.out.data = (char *)a.out.data + skip * m.h * m.dv * size;
            a.partial_lse.data = m.logs + skip;
            a.lse.data = m.lse_storage + skip;
            memset(m.out_storage, 0xff, sizeof m.out_storage);
            EXPECT_OK(ejk_attention_merge(own, &a));
            for (int64_t b = 0; b < m.b; b++) {
                const int64_t from = (b * m.t + skip) * m.h * m.dv * size;
                assert_memory_equal((char *)out + from, (char *)m.out_storage + from,
                                    (size_t)((m.t - skip) * m.h * m.dv * size));
            }
        }
        ejk_context_destroy(own);
    }
}

/* ---- Gradients -------------------------------------------------------------------------------------- */

static double d_out[MOST], d_part[MOST], d_aux[64];
static float d_lse[MOST], d_logs[MOST];

static double loss(void) {
    double sum = 0;
    expect();
    for (int64_t i = 0; i < m.b * m.t * m.h * m.dv; i++) sum += m.out[i] * d_out[i];
    for (int64_t i = 0; i < m.b * m.t * m.h; i++)
        if (isfinite(m.lse[i])) sum += m.lse[i] * (double)d_lse[i];
    return sum;
}

static void expect_slope(uint64_t seed, const char *what, int64_t i, double got, double above,
                         double below, double step) {
    const double slope = (above - below) / step;
    if (fabs(got - slope) <= 2e-5 * (1 + fabs(slope))) return;
    fail_msg("seed %llu: gradient %d of %s is %.9g, differences say %.9g", (unsigned long long)seed,
             (int)i, what, got, slope);
}

/* The definition's own slopes, in double precision. */
static void gradients_are_the_slopes(void **state) {
    (void)state;
    for (uint64_t seed = 700; seed < 900; seed++) {
        struct random r = {seed};
        draw(seed, EJK_DTYPE_F64, 5);
        for (int64_t i = 0; i < MOST; i++) {
            d_out[i] = random_normal(&r);
            d_lse[i] = (float)random_normal(&r);
        }
        EXPECT_OK(ejk_attention_merge_fwd(context, &m.args));
        ejk_attention_merge_vjp_args v = {.partial_out = m.args.partial_out,
                                          .partial_lse = m.args.partial_lse,
                                          .softmax_aux = m.args.softmax_aux,
                                          .out = m.args.out,
                                          .lse = m.args.lse,
                                          .d_out = m.args.out,
                                          .d_lse = m.args.lse,
                                          .d_partial_out = m.args.partial_out,
                                          .d_partial_lse = m.args.partial_lse,
                                          .d_softmax_aux = m.args.softmax_aux};
        v.d_out.data = d_out;
        v.d_lse.data = d_lse;
        v.d_partial_out.data = d_part;
        v.d_partial_lse.data = d_logs;
        if (ejk_tensor_present(&v.d_softmax_aux)) v.d_softmax_aux.data = d_aux;
        memset(d_part, 0xff, sizeof d_part);
        EXPECT_OK(ejk_attention_merge_vjp(context, &v));
        for (int64_t i = 0; i < m.n * m.b * m.t * m.h * m.dv; i++) {
            if (isnan(m.part[i])) {
                assert_true(d_part[i] == 0);
                continue;
            }
            const double kept = m.part[i];
            m.part[i] = kept + 1e-4;
            const double above = loss();
            m.part[i] = kept - 1e-4;
            expect_slope(seed, "partial_out", i, d_part[i], above, loss(), 2e-4);
            m.part[i] = kept;
        }
        for (int64_t i = 0; i < m.n * m.b * m.h * m.t; i++) {
            if (isinf(m.logs[i])) {
                assert_true(d_logs[i] == 0);
                continue;
            }
            const float kept = m.logs[i], up = kept + 2e-3f, down = kept - 2e-3f;
            m.logs[i] = up;
            const double above = loss();
            m.logs[i] = down;
            expect_slope(seed, "partial_lse", i, (double)d_logs[i], above, loss(),
                         (double)up - (double)down);
            m.logs[i] = kept;
        }
        const int64_t count = m.sink_count * (m.sink_heads ? m.sink_heads : 1);
        for (int64_t i = 0; i < count; i++) {
            const double kept = m.aux[i];
            m.aux[i] = kept + 1e-4;
            const double above = loss();
            m.aux[i] = kept - 1e-4;
            expect_slope(seed, "softmax_aux", i, d_aux[i], above, loss(), 2e-4);
            m.aux[i] = kept;
        }
    }
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
        cmocka_unit_test(results_are_the_definition),
        cmocka_unit_test(bits_do_not_depend_on_threads_or_place),
        cmocka_unit_test(gradients_are_the_slopes),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
