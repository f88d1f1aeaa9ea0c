/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients of flash attention in bf16 on AMX tiles, and by VDPBF16PS, on random cases, against the formulas in double
 * precision: error at most twice that of a naive evaluation (weights and dS rounded to bf16) plus 4 eps; nothing that is hidden
 * reaches a result; nothing read beyond an input or written beside an output; the same bits for one, two and three
 * workers.
 */
#include "base/base.h"
#include "operations/attention/shared/dropout.h"
#include "operations/attention/flash/vjp_problem.h"
#include "support/expect.h"
#include "support/flash_run.h"
#include "support/test_threads.h"
#include "support/vjp_amx_case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 250 };
static const char *const names[GRADIENTS] = {"d_query", "d_key", "d_value", "d_sinks"};

/* ---- The expected results ----------------------------------------------------------------------------- */

/* Gradients without gaps: [B, T or S, H, D], and [heads of sinks, n]. */
typedef struct results {
    double *of[GRADIENTS];
} results;

static void row_count(const ejki_flash_problem *p, int64_t rows[GRADIENTS],
                      int64_t width[GRADIENTS]) {
    rows[D_QUERY] = p->batch * p->queries * p->query_heads;
    rows[D_KEY] = rows[D_VALUE] = p->batch * p->keys * p->kv_heads;
    rows[D_SINKS] = p->has_sinks ? p->sink_stride_h ? p->query_heads : 1 : 0;
    width[D_QUERY] = width[D_KEY] = p->head_dim;
    width[D_VALUE] = p->value_dim;
    width[D_SINKS] = p->sink_count;
}

static double *doubles(int64_t count) {
    double *memory = calloc((size_t)count + 1, sizeof *memory);
    if (!memory) abort();
    return memory;
}

static results results_create(const ejki_flash_problem *p) {
    int64_t rows[GRADIENTS], width[GRADIENTS];
    results r;
    row_count(p, rows, width);
    for (int g = 0; g < GRADIENTS; g++) r.of[g] = doubles(rows[g] * width[g]);
    return r;
}

static void results_destroy(results *r) {
    for (int g = 0; g < GRADIENTS; g++) free(r->of[g]);
}

static double *dense(const ejki_bthd *v, int64_t b, int64_t t, int64_t h, int64_t d) {
    double *memory = doubles(b * t * h * d);
    for (int64_t n = 0; n < b * t * h; n++)
        for (int64_t l = 0; l < d; l++)
            memory[n * d + l] = element(v->data, at(v, n / h / t, n / h % t, n % h) + l);
    return memory;
}

/* What both evaluations share. */
typedef struct evaluation {
    world *w;
    double *query, *key, *value, *cotangent, *z, *slope, *product, *kept;
    results exact, naive, spread;
    int64_t pairs;
} evaluation;

typedef struct place {
    int64_t b, h, i;
} place;

static double dot(const double *a, const double *b, int64_t count, double *size) {
    double sum = 0;
    for (int64_t d = 0; d < count; d++) sum += a[d] * b[d];
    for (int64_t d = 0; size && d < count; d++) *size += fabs(a[d] * b[d]);
    return sum;
}

static int64_t key_row(const ejki_flash_problem *p, place r, int64_t j) {
    return (r.b * p->keys + j) * p->kv_heads + r.h / p->group;
}

/* Adds what one row adds to every gradient; naive: with lse and out as they are stored, and coefficients rounded. */
static void add_row(evaluation *e, place r, double lse, double delta, bool naive) {
    const ejki_flash_vjp_problem *v = &e->w->v;
    const ejki_flash_problem *p = &v->forward;
    const int64_t row = (r.b * p->queries + r.i) * p->query_heads + r.h;
    double **to = naive ? e->naive.of : e->exact.of;
    for (int64_t j = 0; j < p->keys; j++) {
        if (!visible(p, r.b, r.h, r.i, j)) continue;
        const double z = naive ? (double)(float)e->z[j] : e->z[j];
        double weight = exp(z - lse), slope = weight * (e->product[j] - delta) * e->slope[j];
        const int64_t k = key_row(p, r, j);
        if (weight == 0) continue;
        const double size = weight * (fabs(e->product[j]) + fabs(delta)) * fabs(p->scale);
        if (naive) weight = rounded(weight), slope = rounded(slope);
        slope *= p->scale;
        const double rest = weight * e->kept[j];
        for (int64_t d = 0; rest != 0 && d < p->value_dim; d++)
            to[D_VALUE][k * p->value_dim + d] += rest * e->cotangent[row * p->value_dim + d];
        for (int64_t d = 0; d < p->head_dim; d++) {
            const double key = e->key[k * p->head_dim + d], query = e->query[row * p->head_dim + d];
            to[D_QUERY][row * p->head_dim + d] += slope * key;
            to[D_KEY][k * p->head_dim + d] += slope * query;
            if (naive) continue;
            e->spread.of[D_QUERY][row * p->head_dim + d] += size * fabs(key);
            e->spread.of[D_KEY][k * p->head_dim + d] += size * fabs(query);
        }
        for (int64_t d = 0; !naive && rest != 0 && d < p->value_dim; d++)
            e->spread.of[D_VALUE][k * p->value_dim + d] +=
                fabs(rest * e->cotangent[row * p->value_dim + d]);
    }
    const int64_t sinks = p->sink_stride_h ? r.h * p->sink_count : 0;
    for (int64_t n = 0; n < p->sink_count; n++) {
        const double term = exp(element(p->sinks, r.h * p->sink_stride_h + n) - lse) * delta;
        to[D_SINKS][sinks + n] -= term;
        if (!naive) e->spread.of[D_SINKS][sinks + n] += fabs(term);
    }
}

/* A row's scores, what the forward pass writes, and what it adds. */
static void evaluate_row(evaluation *e, place r) {
    const ejki_flash_vjp_problem *v = &e->w->v;
    const ejki_flash_problem *p = &v->forward;
    const int64_t row = (r.b * p->queries + r.i) * p->query_heads + r.h;
    const int64_t statistic = (r.b * p->query_heads + r.h) * p->queries + r.i;
    const int64_t out_at = at(&p->out, r.b, r.i, r.h);
    double top = -INFINITY, sum = 0, stored = 0, exact = 0;
    bool nan = false;
    for (int64_t j = 0; j < p->keys; j++) {
        if (!visible(p, r.b, r.h, r.i, j)) continue;
        const int64_t k = key_row(p, r, j);
        double z = p->scale *
                   dot(e->query + row * p->head_dim, e->key + k * p->head_dim, p->head_dim, NULL);
        e->slope[j] = 1;
        if (p->soft_cap > 0) {
            const double th = tanh(z / p->soft_cap);
            z = p->soft_cap * th;
            e->slope[j] = 1 - th * th;
        }
        if (p->has_bias)
            z += element(p->bias.data, r.b * p->bias.stride_b + r.h * p->bias.stride_h +
                                           r.i * p->bias.stride_t + j);
        e->z[j] = z;
        e->kept[j] = p->dropout == 0                           ? 1
                     : ejki_dropout_keeps(p, r.b, r.h, r.i, j) ? 1 / (1 - p->dropout)
                                                               : 0;
        e->product[j] = e->kept[j] * dot(e->cotangent + row * p->value_dim,
                                         e->value + k * p->value_dim, p->value_dim, NULL);
        if (e->kept[j] == 0) e->product[j] = 0;
        e->pairs++;
        nan |= isnan(z);
        top = fmax(top, z);
    }
    if (nan) top = NAN;
    for (int64_t n = 0; n < p->sink_count; n++)
        top = nan ? NAN : fmax(top, element(p->sinks, r.h * p->sink_stride_h + n));
    for (int64_t n = 0; n < p->sink_count; n++)
        sum += exp(element(p->sinks, r.h * p->sink_stride_h + n) - top);
    for (int64_t j = 0; j < p->keys; j++)
        if (top != -INFINITY && visible(p, r.b, r.h, r.i, j)) sum += exp(e->z[j] - top);
    const double lse = top == -INFINITY ? -INFINITY : top + log(sum);
    for (int64_t d = 0; d < p->value_dim; d++) {
        double out = 0;
        for (int64_t j = 0; lse != -INFINITY && j < p->keys; j++)
            if (visible(p, r.b, r.h, r.i, j))
                out += e->kept[j] == 0 ? 0
                                       : e->kept[j] * exp(e->z[j] - lse) *
                                             e->value[key_row(p, r, j) * p->value_dim + d];
        put(p->out.data, out_at + d, out);
        stored += rounded(out) * e->cotangent[row * p->value_dim + d];
        exact += out * e->cotangent[row * p->value_dim + d];
    }
    p->lse.data[statistic] = (float)lse;
    if (lse == -INFINITY) return;
    const double more = v->has_lse_cotangent ? (double)v->lse_cotangent.data[statistic] : 0;
    add_row(e, r, lse, exact - more, false);
    add_row(e, r, (double)(float)lse, (double)(float)(stored - more), true);
}

static void evaluate(evaluation *e, world *w) {
    const ejki_flash_problem *p = &w->v.forward;
    *e = (evaluation){.w = w};
    e->query = dense(&p->query, p->batch, p->queries, p->query_heads, p->head_dim);
    e->key = dense(&p->key, p->batch, p->keys, p->kv_heads, p->head_dim);
    e->value = dense(&p->value, p->batch, p->keys, p->kv_heads, p->value_dim);
    e->cotangent = dense(&w->v.out_cotangent, p->batch, p->queries, p->query_heads, p->value_dim);
    e->z = doubles(p->keys);
    e->slope = doubles(p->keys);
    e->product = doubles(p->keys);
    e->kept = doubles(p->keys);
    e->exact = results_create(p);
    e->naive = results_create(p);
    e->spread = results_create(p);
    for (int64_t n = 0; n < p->batch * p->query_heads * p->queries; n++)
        evaluate_row(e, (place){n / p->queries / p->query_heads, n / p->queries % p->query_heads,
                                n % p->queries});
}

static void evaluation_destroy(evaluation *e) {
    double *all[] = {e->query, e->key, e->value, e->cotangent, e->z, e->slope, e->product, e->kept};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    results_destroy(&e->exact);
    results_destroy(&e->naive);
    results_destroy(&e->spread);
}

/* ---- Checks ------------------------------------------------------------------------------------------- */

static int64_t gradient_at(const world *w, int g, int64_t row) {
    const ejki_flash_vjp_problem *v = &w->v;
    const ejki_flash_problem *p = &v->forward;
    const ejki_bthd *view = g == D_QUERY ? &v->d_query : g == D_KEY ? &v->d_key : &v->d_value;
    const int64_t t = g == D_QUERY ? p->queries : p->keys;
    const int64_t h = g == D_QUERY ? p->query_heads : p->kv_heads;
    if (g == D_SINKS) return row * v->d_sink_stride_h;
    return at(view, row / h / t, row / h % t, row % h);
}

/* Takes a gradient out of its memory and leaves that as before a run; false if anything beside it was written. */
static bool take(world *w, int g, double *values) {
    int64_t rows_of[GRADIENTS], width[GRADIENTS];
    row_count(&w->v.forward, rows_of, width);
    for (int64_t row = 0; row < rows_of[g]; row++) {
        unsigned char *from = w->gradient[g].data + 2 * gradient_at(w, g, row);
        for (int64_t d = 0; d < width[g]; d++) values[row * width[g] + d] = element(from, d);
        memset(from, GUARDED_FILL, (size_t)width[g] * 2);
    }
    const bool clean = guarded_blank(&w->gradient[g]);
    guarded_fill(&w->gradient[g]);
    return clean;
}

typedef struct norm {
    double squares, largest;
} norm;

static void measure(norm *n, double value) {
    n->squares += value * value;
    n->largest = fmax(n->largest, fabs(value));
}

static bool accepts(const evaluation *e, int g, const double *got) {
    const ejki_flash_problem *p = &e->w->v.forward;
    int64_t rows_of[GRADIENTS], width[GRADIENTS];
    norm error = {0}, naive = {0}, size = {0}, spread = {0};
    row_count(p, rows_of, width);
    const int64_t count = rows_of[g] * width[g];
    for (int64_t n = 0; n < count; n++) {
        const double exact = e->exact.of[g][n];
        if (!isfinite(exact) || !isfinite(e->naive.of[g][n])) continue;
        if (!isfinite(got[n])) {
            print_message("%s: element %lld is %g, expected %g [%s]\n", names[g], (long long)n,
                          got[n], exact, e->w->text);
            return false;
        }
        measure(&error, got[n] - exact);
        measure(&naive, rounded(e->naive.of[g][n]) - exact);
        measure(&size, exact);
        measure(&spread, e->spread.of[g][n]);
    }
    /* Few numbers, and sums of which little remains: there eps counts from what was added. */
    const bool few = count < 256 || rows_of[D_QUERY] < 16 || e->pairs < 4 * rows_of[D_QUERY] ||
                     size.squares < 0x1p-12 * spread.squares;
    const norm *scale = few ? &spread : &size;
    const double eps = 0x1p-8;
    if (sqrt(error.squares) <= 2 * sqrt(naive.squares) + 4 * eps * sqrt(scale->squares) &&
        error.largest <= 2 * naive.largest + 4 * eps * scale->largest)
        return true;
    print_message("%s: error %.3g (naive %.3g) of %.3g, largest %.3g (naive %.3g) of %.3g [%s]\n",
                  names[g], sqrt(error.squares), sqrt(naive.squares), sqrt(scale->squares),
                  error.largest, naive.largest, scale->largest, e->w->text);
    return false;
}

static const ejk_implementation *subject;

static ejk_threads *pool[4];

/* Runs, and takes what was wanted. */
static bool run(world *w, int workers, results *got) {
    ejk_launch launch = {.workers = 1};
    const int64_t parameters[2] = {w->parameters[0],
                                   ejki_min(w->parameters[1], subject->parameters[1].maximum)};
    if (subject->prepare(&w->v, parameters, workers, &launch) != EJK_OK) {
        print_message("%s: %s [%s]\n", subject->name, ejk_last_error(), w->text);
        return false;
    }
    struct guarded workspace;
    guarded_create(&workspace, launch.workspace_bytes, GUARDED_END,
                   (64 - launch.workspace_bytes % 64) % 64);
    const ejk_run call = {.problem = &w->v,
                          .parameters = parameters,
                          .workspace = workspace.data,
                          .threads = pool[workers],
                          .workers = launch.workers};
    bool right = subject->run(&call) == EJK_OK && guarded_intact(&workspace);
    guarded_destroy(&workspace);
    for (int g = 0; g < GRADIENTS; g++)
        if (w->gradient[g].pages && !take(w, g, got->of[g])) right = false;
    if (!right) print_message("failed, or written beside its memory [%s]\n", w->text);
    return right;
}

static bool same(const world *w, const results *a, const results *b, int workers) {
    int64_t rows_of[GRADIENTS], width[GRADIENTS];
    row_count(&w->v.forward, rows_of, width);
    for (int g = 0; g < GRADIENTS; g++)
        for (int64_t n = 0; n < rows_of[g] * width[g]; n++)
            if (memcmp(a->of[g] + n, b->of[g] + n, sizeof(double)) != 0 &&
                !(isnan(a->of[g][n]) && isnan(b->of[g][n]))) {
                print_message("%s has other bits with %d workers [%s]\n", names[g], workers,
                              w->text);
                return false;
            }
    return true;
}

/* What only the kernel on AMX promises: dropout beside blocks of keys that begin anywhere, which no operation has, and
 * that a bias of -inf keeps a cotangent that is not finite from a key. */
static bool is_for_amx(const world *w) {
    const ejki_flash_problem *p = &w->v.forward;
    const bool anywhere = p->block_mask.mask_heads > 0 && p->block_mask.block_kv % 4 != 0;
    return (p->dropout > 0 && anywhere) || (p->has_bias && w->pattern == NAN_ROW);
}

static bool check_case(uint64_t seed) {
    world w;
    evaluation e;
    create(&w, seed);
    if (subject->isa != EJK_ISA_AMX && is_for_amx(&w)) {
        destroy(&w);
        return true;
    }
    evaluate(&e, &w);
    for (int i = 0; i < TENSORS; i++) guarded_protect(&w.memory[i]);
    guarded_protect(&w.lse);
    results one = results_create(&w.v.forward);
    bool right = run(&w, 1, &one);
    for (int g = 0; right && g < GRADIENTS; g++)
        if (w.gradient[g].pages) right = accepts(&e, g, one.of[g]);
    for (int workers = 2; right && workers < 4; workers++) {
        results other = results_create(&w.v.forward);
        right = run(&w, workers, &other) && same(&w, &one, &other, workers);
        results_destroy(&other);
    }
    results_destroy(&one);
    evaluation_destroy(&e);
    destroy(&w);
    return right;
}

static void test_random_cases(void **state) {
    (void)state;
    const char *first_text = getenv("EJK_TEST_SEED"), *many = getenv("EJK_TEST_CASES");
    const uint64_t first = first_text ? strtoull(first_text, NULL, 10) : 1;
    const int64_t cases = many ? strtoll(many, NULL, 10) : first_text ? 1 : CASES;
    int64_t wrong = 0;
    for (int64_t i = 0; i < cases; i++) wrong += !check_case(first + (uint64_t)i);
    assert_int_equal(wrong, 0);
}

/* Of AMX, or of the tier that is the argument: avx512_bf16. */
int main(int argc, char **argv) {
#if defined(__x86_64__)
    extern const ejk_implementation ejki_flash_attention_vjp_bf16_amx_matrix,
        ejki_flash_attention_vjp_bf16_avx512_bf16_vjp;
    const bool dots = argc > 1 && strcmp(argv[1], "avx512_bf16") == 0;
    subject = dots ? &ejki_flash_attention_vjp_bf16_avx512_bf16_vjp
                   : &ejki_flash_attention_vjp_bf16_amx_matrix;
    if (!ejk_cpu()->tiers[subject->isa]) return 77;
    for (int i = 1; i < 4; i++) pool[i] = test_threads_create(i);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_cases)};
    const int failed = cmocka_run_group_tests_name(subject->name, tests, NULL, NULL);
    for (int i = 1; i < 4; i++) ejk_threads_destroy(pool[i]);
    return failed;
#else
    (void)argc, (void)argv;
    return 77;
#endif
}
