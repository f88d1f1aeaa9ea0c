/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mean_pooling and its gradient: every implementation on random shapes and views against the definition, bits between
 * numbers of threads, what lies between rows, and bad calls.
 */
#include "support/expect.h"
#include "support/random.h"

#include <ejkernel/ejkernel.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 100000, CASES = 60 };
static const double FILL = -7; /* exact in every type */

static struct {
    ejk_dtype dtype;
    int64_t batch, tokens, sequences, chunk, rows, axes[4];
    int32_t trailing;
    bool flat; /* [T,D] */
    int32_t ends[8];
    ejk_tensor x, out, d_x, cu;
} m;
static double memory[4][MOST];

static double get(const ejk_tensor *t, int64_t at) {
    float single;
    uint16_t half;
    memcpy(&single, (float *)t->data + at, 4 * (t->dtype == EJK_DTYPE_F32));
    if (t->dtype == EJK_DTYPE_F32) return (double)single;
    if (t->dtype == EJK_DTYPE_F64) return ((double *)t->data)[at];
    half = ((uint16_t *)t->data)[at];
    return (double)(t->dtype == EJK_DTYPE_BF16 ? ejk_bf16_to_f32(half) : ejk_f16_to_f32(half));
}
static void put(const ejk_tensor *t, int64_t at, double value) {
    if (t->dtype == EJK_DTYPE_F64)
        ((double *)t->data)[at] = value;
    else if (t->dtype == EJK_DTYPE_F32)
        ((float *)t->data)[at] = (float)value;
    else
        ((uint16_t *)t->data)[at] = t->dtype == EJK_DTYPE_BF16 ? ejk_f32_to_bf16((float)value)
                                                               : ejk_f32_to_f16((float)value);
}

/* Where element n, counted row-major, lies. */
static int64_t at(const ejk_tensor *t, int64_t n) {
    int64_t place = 0;
    for (int32_t i = t->rank - 1; i >= 0; n /= t->shape[i--])
        place += n % t->shape[i] * t->strides[i];
    return place;
}

/* With gaps between axes, as the seed says; filled with FILL. */
static ejk_tensor view(struct random *r, int which, int32_t rank, const int64_t *shape) {
    ejk_tensor t = ejk_tensor_contiguous(memory[which], m.dtype, rank, shape);
    int64_t step = 1;
    for (int32_t i = rank - 1; i >= 0; i--) {
        t.strides[i] = step;
        step *= shape[i] > 0 ? shape[i] : 1;
        if (random_chance(r, 0.3)) step += random_int(r, 1, 4);
    }
    assert_true(step <= MOST);
    for (int64_t n = 0; n < MOST; n++) put(&t, n, FILL);
    return t;
}

static void make(struct random *r, ejk_dtype dtype) {
    static const int64_t widths[] = {1, 3, 8, 16, 31, 64, 100};
    memset(&m, 0, sizeof m);
    m.dtype = dtype;
    m.trailing = (int32_t)random_int(r, 1, 4);
    for (int i = 0; i < m.trailing - 1; i++) m.axes[i] = random_int(r, 1, 2);
    m.axes[m.trailing - 1] = random_chance(r, 0.03) ? 0 : RANDOM_OF(r, widths);
    m.tokens = random_chance(r, 0.1) ? 300 : random_int(r, random_chance(r, 0.1) ? 0 : 1, 40);
    if (m.tokens == 300) m.axes[m.trailing - 1] = random_int(r, 1, 40);
    m.chunk = random_chance(r, 0.5) ? random_int(r, 1, 20) : 0;
    m.sequences = random_chance(r, 0.5) ? random_int(r, 1, 6) : 0;
    m.batch = m.sequences ? 1 : random_int(r, 1, 2);
    for (int64_t n = 1; n <= m.sequences; n++)
        m.ends[n] = (int32_t)random_int(r, m.ends[n - 1], m.tokens);
    m.rows = m.chunk ? (m.tokens + m.chunk - 1) / m.chunk : 1;
    if (m.sequences) m.rows = m.chunk ? m.rows + m.sequences - 1 : m.sequences;
    int64_t x[6] = {m.batch, m.tokens}, out[6] = {m.batch, m.rows};
    memcpy(x + 2, m.axes, sizeof m.axes);
    memcpy(out + 2, m.axes, sizeof m.axes);
    m.flat = m.sequences && m.trailing == 1 && random_chance(r, 0.5);
    m.x = view(r, 0, m.trailing + 2 - m.flat, x + m.flat);
    m.d_x = view(r, 2, m.trailing + 2 - m.flat, x + m.flat);
    if (!m.chunk && !m.sequences) out[1] = m.batch;
    m.out = view(r, 1, m.trailing + 1 + (m.chunk > 0), out + (m.chunk == 0));
    for (int64_t n = 0; n < ejk_tensor_count(&m.x); n++)
        put(&m.x, at(&m.x, n), random_normal(r) + 1);
    const int64_t count = m.sequences + 1;
    if (m.sequences) m.cu = ejk_tensor_contiguous(m.ends, EJK_DTYPE_I32, 1, &count);
}

/* The row of a token, counted over the batch, and how many tokens it has; -1: none. */
static int64_t row_of(int64_t b, int64_t token, int64_t *count) {
    int64_t begin = 0, end = m.tokens, row = 0;
    if (m.sequences) {
        int64_t n = 0;
        while (n < m.sequences && m.ends[n + 1] <= token) n++;
        if (n == m.sequences) return -1;
        begin = m.ends[n], end = m.ends[n + 1], row = (m.chunk ? begin / m.chunk : 0) + n;
    }
    if (m.chunk) {
        const int64_t chunk = (token - begin) / m.chunk;
        row += chunk, begin += chunk * m.chunk;
        if (begin + m.chunk < end) end = begin + m.chunk;
    }
    *count = end - begin;
    return b * m.rows + row;
}

static void near_(double have, double want, double size) {
    static const double eps[] = {[EJK_DTYPE_F64] = 0x1p-52,
                                 [EJK_DTYPE_F32] = 0x1p-23,
                                 [EJK_DTYPE_BF16] = 0x1p-8,
                                 [EJK_DTYPE_F16] = 0x1p-11};
    const double sum = m.dtype == EJK_DTYPE_F64 ? 0x1p-49 : 0x1p-20;
    if (!(fabs(have - want) <=
          eps[m.dtype] * fabs(want) + sum * size + 1e-7 * (eps[m.dtype] > 1e-6)))
        fail_msg("%.9g, expected %.9g", have, want);
}

static void check_means(void) {
    static double sums[MOST], sizes[MOST];
    static int64_t counts[MOST];
    const int64_t width = m.batch && m.tokens ? ejk_tensor_count(&m.x) / m.batch / m.tokens : 0;
    const int64_t total = ejk_tensor_count(&m.out);
    memset(sums, 0, sizeof sums), memset(sizes, 0, sizeof sizes), memset(counts, 0, sizeof counts);
    for (int64_t n = 0; n < m.batch * m.tokens; n++) {
        int64_t count, row = row_of(n / m.tokens, n % m.tokens, &count);
        for (int64_t d = 0; d < width && row >= 0; d++) {
            const double value = get(&m.x, at(&m.x, n * width + d));
            sums[row * width + d] += value, sizes[row * width + d] += fabs(value);
            counts[row * width + d] = count;
        }
    }
    for (int64_t n = 0; n < total; n++) {
        const double count = counts[n] ? (double)counts[n] : 1;
        near_(get(&m.out, at(&m.out, n)), sums[n] / count, sizes[n] / count);
    }
    for (int64_t n = 0; n < m.batch * m.tokens; n++) {
        int64_t count = 1, row = row_of(n / m.tokens, n % m.tokens, &count);
        for (int64_t d = 0; d < width; d++) {
            const double g = row < 0 ? 0 : get(&m.out, at(&m.out, row * width + d));
            near_(get(&m.d_x, at(&m.d_x, n * width + d)), g / (double)count, 0);
        }
    }
}

/* What is no element has to be as it was. */
static void check_gaps(ejk_tensor t) {
    for (int64_t n = 0; n < ejk_tensor_count(&t); n++) put(&t, at(&t, n), FILL);
    for (int64_t n = 0; n < MOST; n++) assert_true(get(&t, n) == FILL);
}

static ejk_mean_pooling_args call(void) {
    return (ejk_mean_pooling_args){
        .x = m.x, .cu_seqlens = m.cu, .out = m.out, .chunk_size = {m.chunk, m.chunk > 0}};
}

/* The operation, and the gradient with out as its cotangent. */
static void run(const char *isa, int32_t threads, const char *platform) {
    ejk_context *context;
    EXPECT_OK(ejk_context_create(&(ejk_context_options){.threads = threads, .isa = isa}, &context));
    ejk_mean_pooling_args a = call();
    strcpy(a.platform, platform);
    EXPECT_OK(ejk_mean_pooling(context, &a));
    ejk_mean_pooling_vjp_args v = {.x = m.x,
                                   .cu_seqlens = a.cu_seqlens,
                                   .chunk_size = a.chunk_size,
                                   .d_out = a.out,
                                   .d_x = m.d_x};
    ejk_mean_pooling_config cfg = {.backend = ""};
    strcpy(cfg.platform, platform);
    v.cfg = cfg;
    EXPECT_OK(ejk_mean_pooling_vjp(context, &v));
    ejk_context_destroy(context);
}

static void against_the_definition(void **state) {
    (void)state;
    static const ejk_dtype types[] = {EJK_DTYPE_F32, EJK_DTYPE_BF16, EJK_DTYPE_F16, EJK_DTYPE_F64};
    static const char *const tiers[] = {"scalar", "avx2", "avx512", "neon"};
    static double before[2][MOST];
    for (uint64_t seed = 1; seed <= CASES; seed++) {
        struct random r = {seed * 7919};
        make(&r, types[seed % 4]);
        run(NULL, 1, "reference");
        check_means();
        for (size_t i = 0; i < sizeof tiers / sizeof *tiers && m.dtype != EJK_DTYPE_F64; i++) {
            ejk_isa isa;
            EXPECT_OK(ejk_isa_from_name(tiers[i], &isa));
            if (!ejk_cpu()->tiers[isa]) continue;
            for (int32_t threads = 1; threads <= 3; threads++) {
                run(tiers[i], threads, "simd");
                check_means();
                if (threads > 1) {
                    assert_memory_equal(before[0], memory[1], sizeof memory[1]);
                    assert_memory_equal(before[1], memory[2], sizeof memory[2]);
                }
                memcpy(before[0], memory[1], sizeof memory[1]);
                memcpy(before[1], memory[2], sizeof memory[2]);
            }
        }
        check_gaps(m.out);
        check_gaps(m.d_x);
    }
}

/* ---- Refusals --------------------------------------------------------------------------------------- */

static ejk_context *context;

#define REFUSED(status, words, change)                                                             \
    do {                                                                                           \
        ejk_mean_pooling_args a = call();                                                          \
        change;                                                                                    \
        EXPECT_FAIL(status, words, ejk_mean_pooling(context, &a));                                 \
        assert_true(get(&m.out, 0) == FILL);                                                       \
    } while (0)

/* x [2,12,4], chunks of 5, or packed sequences in [1,12,4]. */
static void small(bool packed) {
    memset(&m, 0, sizeof m);
    m.dtype = EJK_DTYPE_F32, m.batch = packed ? 1 : 2, m.tokens = 12, m.chunk = 5;
    m.sequences = packed ? 2 : 0, m.ends[1] = 7, m.ends[2] = 12;
    m.x = ejk_tensor_contiguous(memory[0], m.dtype, 3, (int64_t[]){m.batch, 12, 4});
    m.out = ejk_tensor_contiguous(memory[1], m.dtype, 3, (int64_t[]){m.batch, packed ? 4 : 3, 4});
    if (packed) m.cu = ejk_tensor_contiguous(m.ends, EJK_DTYPE_I32, 1, (int64_t[]){3});
    for (int64_t n = 0; n < 100; n++) put(&m.out, n, FILL);
}

static void wrong_calls_are_refused(void **state) {
    (void)state;
    EXPECT_OK(ejk_context_create(NULL, &context));
    small(false);
    REFUSED(INVALID_SHAPE, "5 chunks on axis 1, expected 3",
            a.out = ejk_tensor_3d(memory[1], m.dtype, 2, 5, 4));
    REFUSED(INVALID_SHAPE, "out: shape [2,3,5]",
            a.out = ejk_tensor_3d(memory[1], m.dtype, 2, 3, 5));
    REFUSED(INVALID_SHAPE, "rank 3, expected 2 without", a.chunk_size.set = false);
    REFUSED(INVALID_ARGUMENT, "chunk_size is -1", a.chunk_size.value = -1);
    REFUSED(INVALID_ARGUMENT, "chunk_size is 0", a.chunk_size.value = 0);
    REFUSED(INVALID_DTYPE, "out", a.out.dtype = EJK_DTYPE_BF16);
    REFUSED(INVALID_LAYOUT, "out", a.out.data = a.x.data);
    REFUSED(INVALID_ARGUMENT, "rank 2 without cu_seqlens",
            a.x = ejk_tensor_2d(memory[0], m.dtype, 12, 4);
            a.out = ejk_tensor_3d(memory[1], m.dtype, 1, 3, 4));
    small(true);
    REFUSED(INVALID_SHAPE, "out: shape [1,5,4]",
            a.out = ejk_tensor_3d(memory[1], m.dtype, 1, 5, 4));
    REFUSED(INVALID_SHAPE, "2 on axis 0, expected 1",
            a.out = ejk_tensor_3d(memory[1], m.dtype, 2, 5, 4));
    REFUSED(INVALID_ARGUMENT, "cu_seqlens is 13", m.ends[1] = 13);
    small(true);
    REFUSED(INVALID_SHAPE, "batch 2, expected 1", a.x = ejk_tensor_3d(memory[0], m.dtype, 2, 12, 4);
            a.out = ejk_tensor_3d(memory[1], m.dtype, 2, 3, 4));
    EXPECT_FAIL(INVALID_ARGUMENT, "args", ejk_mean_pooling(context, NULL));
    ejk_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_the_definition),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
