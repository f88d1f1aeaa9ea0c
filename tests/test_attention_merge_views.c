/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attention_merge and its gradients, every tier and type, on views: axes in any order, with gaps, backwards, between
 * pages that fault, among bytes that nothing may write. Parts that saw nothing hold NaN. Results are compared with
 * the formulas in double precision, and bit by bit between 1, 2 and 3 threads.
 */
#include "support/expect.h"
#include "support/guarded.h"
#include "support/random.h"

#include <ejkernel/ejkernel.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 10000, CASES = 40, RESULTS = 5 };

/* ---- Views ------------------------------------------------------------------------------------------ */

typedef struct view {
    struct guarded memory;
    ejk_tensor tensor;
} view;

/* The last axis is contiguous, the others lie in any order, and some of them backwards. */
static void view_create(view *v, struct random *r, ejk_dtype dtype, int32_t rank,
                        const int64_t *shape) {
    const int64_t size = (int64_t)ejk_dtype_size(dtype);
    int32_t order[EJK_MAX_RANK];
    for (int32_t i = 0; i < rank - 1; i++) order[i] = i;
    for (int32_t i = rank - 2; i > 0 && random_chance(r, 0.5); i--) {
        const int32_t j = (int32_t)random_int(r, 0, i), axis = order[i];
        order[i] = order[j];
        order[j] = axis;
    }
    v->tensor = ejk_tensor_contiguous(NULL, dtype, rank, shape);
    const bool gaps = random_chance(r, 0.5);
    int64_t step = shape[rank - 1] + (gaps ? random_int(r, 0, 3) : 0);
    if (step == 0) step = 1;
    for (int32_t i = rank - 2; i >= 0; i--) {
        v->tensor.strides[order[i]] = random_chance(r, 0.2) ? -step : step;
        step *= shape[order[i]] > 0 ? shape[order[i]] : 1;
        if (gaps) step += random_int(r, 0, 2);
    }
    int64_t low, high;
    ejk_tensor_span(&v->tensor, &low, &high);
    guarded_create(&v->memory, (size_t)(high - low),
                   random_chance(r, 0.5) ? GUARDED_END : GUARDED_START,
                   (size_t)(random_int(r, 0, 3) * size));
    guarded_fill(&v->memory);
    v->tensor.data = v->memory.data - low;
}

static void *place(const view *v, int64_t i) {
    int64_t rest = i, at = 0;
    for (int32_t axis = v->tensor.rank - 1; axis >= 0; axis--) {
        at += rest % v->tensor.shape[axis] * v->tensor.strides[axis];
        rest /= v->tensor.shape[axis];
    }
    return (char *)v->tensor.data + at * (int64_t)ejk_dtype_size(v->tensor.dtype);
}

static double get(const view *v, int64_t i) {
    const void *at = place(v, i);
    float x;
    uint16_t bits;
    if (v->tensor.dtype == EJK_DTYPE_F32) return memcpy(&x, at, sizeof x), (double)x;
    memcpy(&bits, at, sizeof bits);
    return (double)(v->tensor.dtype == EJK_DTYPE_BF16 ? ejk_bf16_to_f32(bits)
                                                      : ejk_f16_to_f32(bits));
}

/* Writes rounded, and returns that. */
static double set(view *v, int64_t i, double value) {
    const float x = (float)value;
    const uint16_t bits =
        v->tensor.dtype == EJK_DTYPE_BF16 ? ejk_f32_to_bf16(x) : ejk_f32_to_f16(x);
    if (v->tensor.dtype == EJK_DTYPE_F32)
        memcpy(place(v, i), &x, sizeof x);
    else
        memcpy(place(v, i), &bits, sizeof bits);
    return get(v, i);
}

/* A result's elements are cleared: what is left has to be as it was before the call. */
static void view_clean(view *v, uint64_t seed, const char *what) {
    const int64_t count = ejk_tensor_count(&v->tensor);
    for (int64_t i = 0; i < count; i++)
        memset(place(v, i), GUARDED_FILL, ejk_dtype_size(v->tensor.dtype));
    if (!guarded_blank(&v->memory))
        fail_msg("seed %llu: bytes around %s were written", (unsigned long long)seed, what);
}

/* ---- A case ----------------------------------------------------------------------------------------- */

static struct {
    uint64_t seed;
    int64_t n, b, t, h, dv, sink_heads, sink_count;
    ejk_dtype dtype;
    bool has_d_lse, wants[3];
    view part, logs, aux, out, lse, d_out, d_lse, given_out, given_lse, d_part, d_logs, d_aux;
} m;

static double wanted_out[MOST], wanted_lse[MOST], bound_out[MOST], wanted_aux[64], bound_aux[64];

/* Places in [N, B, Hq, T] and in [N, B, T, Hq, Dv] of part n of row (b, h, t). */
static int64_t log_at(int64_t n, int64_t b, int64_t h, int64_t t) {
    return ((n * m.b + b) * m.h + h) * m.t + t;
}
static int64_t part_at(int64_t n, int64_t b, int64_t h, int64_t t) {
    return (((n * m.b + b) * m.t + t) * m.h + h) * m.dv;
}
static int64_t aux_at(int64_t h, int64_t k) {
    return (m.sink_heads ? h / (m.h / m.sink_heads) : 0) * m.sink_count + k;
}

static void create(uint64_t seed, ejk_dtype dtype) {
    struct random r = {seed * 977 + 5};
    memset(&m, 0, sizeof m);
    m.seed = seed, m.dtype = dtype;
    m.n = random_int(&r, 0, 5), m.b = random_int(&r, 1, 2), m.dv = random_int(&r, 1, 90);
    m.t = random_chance(&r, 0.05) ? 0 : random_int(&r, 1, 40), m.h = random_int(&r, 1, 10) * 2;
    while (m.n * m.b * m.t * m.h * m.dv > MOST || m.b * m.t * m.h * m.dv > MOST) m.t /= 2;
    m.sink_heads = random_chance(&r, 0.3) ? 0 : random_chance(&r, 0.5) ? m.h : m.h / 2;
    m.sink_count = random_chance(&r, 0.4) ? 0 : random_int(&r, 1, 2);
    m.has_d_lse = random_chance(&r, 0.7);
    for (int i = 0; i < 3; i++) m.wants[i] = random_chance(&r, 0.8);
    const int64_t parts[] = {m.n, m.b, m.t, m.h, m.dv}, logs[] = {m.n, m.b, m.h, m.t};
    const int64_t sinks[] = {m.sink_heads, m.sink_count};
    const bool flat = m.sink_heads == 0;
    view *outs[] = {&m.out, &m.d_out, &m.given_out}, *rows[] = {&m.lse, &m.d_lse, &m.given_lse};
    view_create(&m.part, &r, dtype, 5, parts);
    view_create(&m.d_part, &r, dtype, 5, parts);
    view_create(&m.logs, &r, EJK_DTYPE_F32, 4, logs);
    view_create(&m.d_logs, &r, EJK_DTYPE_F32, 4, logs);
    view_create(&m.aux, &r, dtype, flat ? 1 : 2, sinks + flat);
    view_create(&m.d_aux, &r, dtype, flat ? 1 : 2, sinks + flat);
    for (int i = 0; i < 3; i++) view_create(outs[i], &r, dtype, 4, parts + 1);
    for (int i = 0; i < 3; i++) view_create(rows[i], &r, EJK_DTYPE_F32, 3, logs + 1);
    for (int64_t i = 0; i < m.n * m.b * m.h * m.t; i++)
        set(&m.logs, i, random_chance(&r, 0.3) ? -INFINITY : 4 * random_normal(&r));
    for (int64_t n = 0; n < m.n; n++)
        for (int64_t row = 0; row < m.b * m.t * m.h; row++) {
            const int64_t b = row / (m.t * m.h), t = row / m.h % m.t, h = row % m.h;
            const bool dead = isinf(get(&m.logs, log_at(n, b, h, t)));
            for (int64_t d = 0; d < m.dv; d++)
                set(&m.part, part_at(n, b, h, t) + d, dead ? NAN : random_normal(&r));
        }
    for (int64_t i = 0; i < ejk_tensor_count(&m.aux.tensor); i++)
        set(&m.aux, i, random_chance(&r, 0.2) ? -INFINITY : random_normal(&r));
    for (int64_t i = 0; i < m.b * m.t * m.h * m.dv; i++) set(&m.d_out, i, random_normal(&r));
    for (int64_t i = 0; i < m.b * m.t * m.h; i++) set(&m.d_lse, i, random_normal(&r));
}

static view *const inputs[] = {&m.part,  &m.logs,      &m.aux,      &m.d_out,
                               &m.d_lse, &m.given_out, &m.given_lse};
static view *const results[RESULTS] = {&m.out, &m.lse, &m.d_part, &m.d_logs, &m.d_aux};
static const char *const result_names[RESULTS] = {"out", "lse", "d_partial_out", "d_partial_lse",
                                                  "d_softmax_aux"};

static void destroy(void) {
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) guarded_destroy(&inputs[i]->memory);
    for (int i = 0; i < RESULTS; i++) guarded_destroy(&results[i]->memory);
}

/* What is expected of the merge, and, rounded, what the gradients are given. */
static void expect_merge(void) {
    for (int64_t row = 0; row < m.b * m.t * m.h; row++) {
        const int64_t b = row / (m.t * m.h), t = row / m.h % m.t, h = row % m.h;
        double total = 0;
        for (int64_t k = 0; k < m.sink_count; k++) total += exp(get(&m.aux, aux_at(h, k)));
        for (int64_t n = 0; n < m.n; n++) total += exp(get(&m.logs, log_at(n, b, h, t)));
        wanted_lse[log_at(0, b, h, t)] = log(total);
        set(&m.given_lse, log_at(0, b, h, t), log(total));
        for (int64_t d = 0; d < m.dv; d++) {
            const int64_t at = part_at(0, b, h, t) + d;
            wanted_out[at] = bound_out[at] = 0;
            for (int64_t n = 0; n < m.n; n++) {
                const double l = get(&m.logs, log_at(n, b, h, t));
                if (isinf(l)) continue;
                const double share = exp(l) / total * get(&m.part, part_at(n, b, h, t) + d);
                wanted_out[at] += share;
                bound_out[at] += fabs(share);
            }
            set(&m.given_out, at, wanted_out[at]);
        }
    }
}

/* ---- Comparisons ------------------------------------------------------------------------------------ */

/* Rounding of the result's type, and of float32 relative to what was added. */
static void expect_close(const view *v, const char *what, int64_t i, double wanted, double added) {
    const double got = get(v, i);
    const ejk_dtype dtype = v->tensor.dtype;
    const double eps = dtype == EJK_DTYPE_F32    ? 0x1p-24
                       : dtype == EJK_DTYPE_BF16 ? 0x1p-8
                                                 : 0x1p-11;
    const double least = dtype == EJK_DTYPE_F16 ? 0x1p-24 : 0x1p-133;
    if (fabs(got - wanted) <= eps * fabs(wanted) + 64 * 0x1p-24 * added + least) return;
    if (got == wanted) return;
    fail_msg("seed %llu, %s: %s[%d] is %.9g, expected %.9g", (unsigned long long)m.seed,
             ejk_dtype_name(m.dtype), what, (int)i, got, wanted);
}

static void check_merge(void) {
    for (int64_t i = 0; i < m.b * m.t * m.h * m.dv; i++)
        expect_close(&m.out, "out", i, wanted_out[i], bound_out[i]);
    for (int64_t i = 0; i < m.b * m.t * m.h; i++)
        expect_close(&m.lse, "lse", i, wanted_lse[i], 1 + fabs(wanted_lse[i]));
}

static void check_gradients(void) {
    memset(wanted_aux, 0, sizeof wanted_aux);
    memset(bound_aux, 0, sizeof bound_aux);
    for (int64_t row = 0; row < m.b * m.t * m.h; row++) {
        const int64_t b = row / (m.t * m.h), t = row / m.h % m.t, h = row % m.h;
        const double lse = get(&m.given_lse, log_at(0, b, h, t));
        double delta = 0, size = 0;
        for (int64_t d = 0; d < m.dv; d++) {
            const int64_t at = part_at(0, b, h, t) + d;
            delta += get(&m.d_out, at) * get(&m.given_out, at);
            size += fabs(get(&m.d_out, at) * get(&m.given_out, at));
        }
        if (m.has_d_lse) delta -= get(&m.d_lse, log_at(0, b, h, t));
        if (m.has_d_lse) size += fabs(get(&m.d_lse, log_at(0, b, h, t)));
        for (int64_t n = 0; n < m.n; n++) {
            const double l = get(&m.logs, log_at(n, b, h, t)), w = isinf(l) ? 0 : exp(l - lse);
            double dot = 0, added = size;
            for (int64_t d = 0; d < m.dv; d++) {
                const double g = get(&m.d_out, part_at(0, b, h, t) + d);
                const double x = w == 0 ? 0 : get(&m.part, part_at(n, b, h, t) + d);
                dot += g * x;
                added += fabs(g * x);
                if (m.wants[0])
                    expect_close(&m.d_part, "d_partial_out", part_at(n, b, h, t) + d, w * g,
                                 w * fabs(g));
            }
            if (m.wants[1])
                expect_close(&m.d_logs, "d_partial_lse", log_at(n, b, h, t), w * (dot - delta),
                             w * added);
        }
        for (int64_t k = 0; k < m.sink_count; k++) {
            const double a = get(&m.aux, aux_at(h, k)), w = isinf(a) ? 0 : exp(a - lse);
            wanted_aux[aux_at(h, k)] -= w * delta;
            bound_aux[aux_at(h, k)] += w * size;
        }
    }
    for (int64_t i = 0; m.wants[2] && i < ejk_tensor_count(&m.aux.tensor); i++)
        expect_close(&m.d_aux, "d_softmax_aux", i, wanted_aux[i], bound_aux[i]);
}

/* ---- Runs ------------------------------------------------------------------------------------------- */

static void call(ejk_context *context, const char *platform) {
    const bool sinks = m.sink_count > 0;
    ejk_attention_merge_args a = {.partial_out = m.part.tensor,
                                  .partial_lse = m.logs.tensor,
                                  .out = m.out.tensor,
                                  .lse = m.lse.tensor};
    ejk_attention_merge_vjp_args v = {.partial_out = m.part.tensor,
                                      .partial_lse = m.logs.tensor,
                                      .out = m.given_out.tensor,
                                      .lse = m.given_lse.tensor,
                                      .d_out = m.d_out.tensor};
    if (sinks) a.softmax_aux = v.softmax_aux = m.aux.tensor;
    if (m.has_d_lse) v.d_lse = m.d_lse.tensor;
    m.wants[2] = m.wants[2] && sinks;
    if (m.wants[0]) v.d_partial_out = m.d_part.tensor;
    if (m.wants[1]) v.d_partial_lse = m.d_logs.tensor;
    if (m.wants[2]) v.d_softmax_aux = m.d_aux.tensor;
    strcpy(a.platform, platform);
    strcpy(v.platform, platform);
    EXPECT_OK(ejk_attention_merge(context, &a));
    EXPECT_OK(ejk_attention_merge_vjp(context, &v));
}

/* One case by contexts of 1, 2 and 3 threads. */
static void run(ejk_context *const contexts[3], const char *platform) {
    unsigned char *before[RESULTS] = {NULL};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) guarded_protect(&inputs[i]->memory);
    for (int k = 0; k < 3; k++) {
        call(contexts[k], platform);
        if (k == 0) {
            check_merge();
            check_gradients();
        }
        for (int i = 0; i < RESULTS; i++) {
            const size_t size = results[i]->memory.size;
            if (k == 0) {
                before[i] = malloc(size + 1);
                assert_non_null(before[i]);
                if (size) memcpy(before[i], results[i]->memory.data, size);
            } else if (size) {
                assert_memory_equal(before[i], results[i]->memory.data, size);
            }
            view_clean(results[i], m.seed, result_names[i]);
        }
    }
    for (int i = 0; i < RESULTS; i++) free(before[i]);
}

static void views_of_every_tier_and_type(void **state) {
    (void)state;
    static const ejk_dtype types[] = {EJK_DTYPE_F32, EJK_DTYPE_BF16, EJK_DTYPE_F16};
    static const ejk_isa tiers[] = {EJK_ISA_SCALAR, EJK_ISA_NEON, EJK_ISA_AVX2, EJK_ISA_AVX512};
    for (size_t tier = 0; tier < sizeof tiers / sizeof *tiers; tier++) {
        if (!ejk_cpu()->tiers[tiers[tier]]) continue;
        ejk_context *contexts[3];
        for (int k = 0; k < 3; k++)
            EXPECT_OK(ejk_context_create(
                &(ejk_context_options){.threads = k + 1, .isa = ejk_isa_name(tiers[tier])},
                &contexts[k]));
        for (size_t type = 0; type < sizeof types / sizeof *types; type++)
            for (uint64_t seed = 0; seed < CASES; seed++) {
                create(seed, types[type]);
                expect_merge();
                run(contexts, seed % 8 == 7 ? "reference" : "simd");
                destroy();
            }
        for (int k = 0; k < 3; k++) ejk_context_destroy(contexts[k]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views_of_every_tier_and_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
