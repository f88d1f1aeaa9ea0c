/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every implementation of the gradients of flash attention in f32, bf16 and f16 that this processor can run, on
 * random cases of its type:
 *   accuracy   error within SEMANTICS section 5; nothing else written, nothing beyond an input read
 *   workers    the same bits with 1, 2, 3 and 5 workers, and once more with 1
 * A quarter of the cases have packed sequences.
 *
 * EJK_TEST_SEED, EJK_TEST_CASES and EJK_TEST_FILTER as in test_flash_attention_kernels.c; a failure prints them.
 * EJK_TEST_BUDGET bounds the work of a case, and with it the case of a seed.
 * Its own main, because it also runs where only the C library is.
 */
#include "kernels/registry/builtin.h"
#include "support/flash_run.h"
#include "support/test_threads.h"
#include "support/vjp_oracle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MOST_PRINTED = 10 };

struct trial {
    struct vjp_case *c;
    const ejk_implementation *implementation;
    int64_t parameters[EJK_MAX_PARAMETERS];
    char text[1024];
    int *failures;
    int64_t *threaded; /* runs with several workers */
};

static void fail(const struct trial *t, const char *why) {
    if ((*t->failures)++ < MOST_PRINTED)
        printf("FAIL %s: %s [%s]\n", t->implementation->name, why, t->text);
    fflush(stdout);
}

/* Fallbacks half of the time, else anything within bounds, small steps more often. */
static void choose_parameters(struct trial *t, struct random *r) {
    const ejk_implementation *e = t->implementation;
    const bool fallback = random_chance(r, 0.5);
    size_t used = strlen(t->text);
    for (int32_t i = 0; i < e->parameter_count; i++) {
        const ejk_parameter *p = e->parameters + i;
        const double share = random_real(r);
        const int64_t steps = (p->maximum - p->minimum) / p->step;
        t->parameters[i] = p->minimum + p->step * (int64_t)((double)steps * share * share * share);
        if (fallback) t->parameters[i] = p->fallback;
        used += (size_t)snprintf(t->text + used, sizeof t->text - used, " %s=%" PRId64, p->name,
                                 t->parameters[i]);
    }
}

/* Runs, and takes all gradients. */
static bool run(struct trial *t, ejk_threads *threads, float *got[VJP_GRADIENTS]) {
    const ejk_implementation *e = t->implementation;
    const int32_t offered = ejk_threads_count(threads);
    ejk_launch launch = {.workers = 1};
    if (e->prepare(&t->c->problem, t->parameters, offered, &launch) != EJK_OK) {
        fail(t, ejk_last_error());
        return false;
    }
    if (launch.workers < 1 || launch.workers > offered)
        fail(t, "asks for more workers than there are");
    *t->threaded += launch.workers > 1;
    struct guarded workspace;
    guarded_create(&workspace, launch.workspace_bytes, GUARDED_END,
                   (64 - launch.workspace_bytes % 64) % 64);
    const ejk_run call = {.problem = &t->c->problem,
                          .parameters = t->parameters,
                          .workspace = workspace.data,
                          .threads = threads,
                          .workers = launch.workers};
    const bool ran = e->run(&call) == EJK_OK;
    if (!ran) fail(t, ejk_last_error());
    if (!guarded_intact(&workspace)) fail(t, "the workspace was overrun");
    guarded_destroy(&workspace);
    bool clean = true;
    for (int i = 0; i < VJP_GRADIENTS; i++) got[i] = vjp_case_take(t->c, i, &clean);
    if (!clean) fail(t, "something beside the gradients was written");
    return true;
}

static void release(float *got[VJP_GRADIENTS]) {
    for (int i = 0; i < VJP_GRADIENTS; i++) free(got[i]);
}

/* Equal bits; of NaN, any are equal. */
static bool same(const float *a, const float *b, int64_t count) {
    for (int64_t n = 0; n < count; n++)
        if (memcmp(a + n, b + n, sizeof *a) != 0 && !(isnan(a[n]) && isnan(b[n]))) return false;
    return true;
}

static void check_workers(struct trial *t, float *const alone[VJP_GRADIENTS],
                          ejk_threads *const threads[4]) {
    static const int counts[] = {1, 2, 3, 5};
    for (int k = 0; k < 4; k++) {
        float *got[VJP_GRADIENTS];
        char why[128];
        if (!run(t, threads[k], got)) return;
        for (int i = 0; i < VJP_GRADIENTS; i++)
            if (got[i] && !same(alone[i], got[i], t->c->rows[i] * t->c->width[i])) {
                snprintf(why, sizeof why, "%s has other bits with %d workers", vjp_names[i],
                         counts[k]);
                fail(t, why);
            }
        release(got);
    }
}

/* Where visible places hold NaN or infinities, which results they reach depends on what underflows. */
static void try_case(struct trial *t, struct vjp_oracle *o, ejk_threads *const threads[4],
                     double *worst) {
    struct random r = {.state = t->c->forward.seed ^ UINT64_C(0x5bd1e9955bd1e995)};
    vjp_case_print(t->c, t->text, sizeof t->text);
    choose_parameters(t, &r);
    float *got[VJP_GRADIENTS];
    char why[512];
    if (!run(t, NULL, got)) return;
    for (int i = 0; i < VJP_GRADIENTS; i++)
        if (o && got[i] && !vjp_oracle_accepts(o, i, got[i], worst, why, sizeof why)) fail(t, why);
    if (random_chance(&r, 0.5)) check_workers(t, got, threads);
    release(got);
}

static bool takes_part(const ejk_implementation *e) {
    const char *filter = getenv("EJK_TEST_FILTER");
    return strcasecmp(e->algorithm, "flash_attention_vjp") == 0 && e->dtype != EJK_DTYPE_F64 &&
           e->backend != EJK_BACKEND_GPU &&
           (e->isa == EJK_ISA_SCALAR || ejk_cpu()->tiers[e->isa]) &&
           (!filter || strstr(e->name, filter));
}

static uint64_t number_from(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* ---- Cases ---------------------------------------------------------------------------------------- */

enum { MOST = 512 };

/* Of each implementation, and cases done of each type. */
struct suite {
    ejk_threads *threads[4];
    int64_t budget, done[EJK_DTYPE_BOOL + 1];
    int64_t runs[MOST], threaded[MOST], packed[MOST];
    int failures[MOST];
    double worst[MOST];
};

/* Seeds at which bounds or kernels once were wrong. */
static const uint64_t remembered[] = {1498, 203918, 203920, 204531, 215004, 217038, 400495};

static void try_seed(struct suite *suite, uint64_t seed) {
    struct vjp_case c;
    struct vjp_oracle o;
    if (!vjp_case_create(&c, seed, suite->budget)) return;
    const bool exact = c.forward.traits.poison <= FLASH_IN_HIDDEN && !c.overflows;
    if (exact) vjp_oracle_create(&o, &c);
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        const ejk_implementation *e = ejki_builtin_implementations[i];
        if (!takes_part(e) || e->dtype != c.problem.forward.dtype ||
            (e->applicable && !e->applicable(&c.problem)))
            continue;
        struct trial t = {.c = &c,
                          .implementation = e,
                          .failures = &suite->failures[i],
                          .threaded = &suite->threaded[i]};
        try_case(&t, exact ? &o : NULL, suite->threads, &suite->worst[i]);
        suite->runs[i]++;
        suite->packed[i] += c.problem.forward.layout != EJKI_FLASH_DENSE;
    }
    if (exact) vjp_oracle_destroy(&o);
    suite->done[c.problem.forward.dtype]++;
    vjp_case_destroy(&c);
}

/* Until each type has had its cases; a single one is of whatever type it is. */
static void try_seeds(struct suite *suite, uint64_t first, int64_t cases) {
    const int64_t *done = suite->done;
    if (cases == 1) {
        try_seed(suite, first);
        return;
    }
    for (size_t i = 0; i < sizeof remembered / sizeof *remembered; i++)
        try_seed(suite, remembered[i]);
    for (uint64_t seed = first;
         done[EJK_DTYPE_F32] < cases || done[EJK_DTYPE_BF16] < cases || done[EJK_DTYPE_F16] < cases;
         seed++)
        if (done[flash_case_dtype(seed)] < cases) try_seed(suite, seed);
}

static int report(const struct suite *suite, int64_t cases) {
    int all = 0;
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        const ejk_implementation *e = ejki_builtin_implementations[i];
        if (!takes_part(e)) continue;
        const bool few = cases >= 100 && (suite->runs[i] < 100 || suite->packed[i] < 10);
        printf("%-4s %s: %" PRId64 " cases, %" PRId64 " of packed sequences, %" PRId64
               " runs with several workers, %d failures; at most %.2f of the tolerance\n",
               suite->failures[i] || few ? "FAIL" : "ok", e->name, suite->runs[i], suite->packed[i],
               suite->threaded[i], suite->failures[i], suite->worst[i]);
        all += suite->failures[i] + few;
    }
    return all;
}

int main(void) {
    static struct suite suite;
    const uint64_t first = number_from("EJK_TEST_SEED", 1);
    const int64_t cases = (int64_t)number_from("EJK_TEST_CASES", 300);
    suite.budget = (int64_t)number_from("EJK_TEST_BUDGET", 2000000);
    if (ejki_builtin_implementation_count > MOST) {
        printf("FAIL more than %d implementations\n", (int)MOST);
        return EXIT_FAILURE;
    }
    static const int counts[] = {2, 3, 5};
    for (int i = 1; i < 4; i++) suite.threads[i] = test_threads_create(counts[i - 1]);
    try_seeds(&suite, first, cases);
    for (int i = 1; i < 4; i++) ejk_threads_destroy(suite.threads[i]);
    return report(&suite, cases) ? EXIT_FAILURE : EXIT_SUCCESS;
}
