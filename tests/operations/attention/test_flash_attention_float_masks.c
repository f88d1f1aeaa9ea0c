/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A score of -inf hides its key as a mask does, whether by its bias or by its product: what K and V hold there, NaN
 * included, reaches no result and no gradient. Each implementation of the forward pass, of the weights and of the
 * gradients that this processor can run computes a problem twice, with and without NaN there; bits have to be equal,
 * and gradients of hidden keys and elements of the bias 0. Without normalisation row_sum has to be the sum of the
 * weights relative to row_max as it is written.
 *
 * Its own main instead of cmocka's, because it also runs where only the C library is.
 */
#define SIZES 4
#include "support/float_mask_world.h"
#include "support/test_threads.h"

static ejk_threads *threads;

static bool run(const ejk_implementation *e, const void *problem) {
    int64_t parameters[EJK_MAX_PARAMETERS] = {0};
    for (int32_t i = 0; i < e->parameter_count; i++) parameters[i] = e->parameters[i].fallback;
    ejk_launch launch = {.workers = 1};
    if (e->prepare && e->prepare(problem, parameters, 3, &launch) != EJK_OK) return false;
    ejk_run run = {.problem = problem,
                   .parameters = parameters,
                   .threads = threads,
                   .workers = launch.workers};
    run.workspace = aligned_alloc(64, (launch.workspace_bytes + 127) / 64 * 64);
    if (!run.workspace) abort();
    memset(run.workspace, 0xff, launch.workspace_bytes);
    const bool ran = e->run(&run) == EJK_OK;
    free(run.workspace);
    return ran;
}

/* What is not finite is added one by one, which is as exact as products of floats, and more so than those of bf16. */
static bool is_exact(const ejk_implementation *e) {
    return !strstr(e->name, "/matrix") && !strstr(e->name, "/avx512_bf16/");
}

int main(void) {
    const char *filter = getenv("EJK_TEST_FILTER");
    threads = test_threads_create(3);
    int failures = 0, found = 0;
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        const ejk_implementation *e = ejki_builtin_implementations[i];
        if (e->backend != EJK_BACKEND_CPU && e->backend != EJK_BACKEND_ANY) continue;
        if (e->isa != EJK_ISA_SCALAR && !ejk_cpu()->tiers[e->isa]) continue;
        if (filter && !strstr(e->name, filter)) continue;
        failures += check_implementation(e, &found);
    }
    ejk_threads_destroy(threads);
    return failures == 0 && found > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
