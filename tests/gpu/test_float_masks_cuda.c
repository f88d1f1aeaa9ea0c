/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A score of -inf hides its key on a GPU as well: every implementation of flash attention, of its gradients and of the
 * weights that this GPU has, on the problems of float_mask_world.h. EJK_TEST_FILTER is a part of a name. Answers 77
 * where there is no GPU.
 */
#define SIZES 5 /* the last is large enough for kernels of sm_90 */
#include "support/float_mask_world.h"
#include "support/gpu_driver.h"

#include <ejkernel/cuda.h>

enum { SKIPPED = 77 };

static void *memory; /* a world on the GPU */

static void need(ejk_status status) {
    if (status == EJK_OK) return;
    printf("FAIL %s\n", ejk_last_error());
    exit(EXIT_FAILURE);
}

static void copy(void *to, bool to_gpu, const void *from, bool from_gpu, size_t size) {
    const int64_t shape[] = {(int64_t)size / 4};
    ejk_tensor source = ejk_tensor_contiguous((void *)(uintptr_t)from, EJK_DTYPE_I32, 1, shape);
    ejk_tensor target = ejk_tensor_contiguous(to, EJK_DTYPE_I32, 1, shape);
    if (from_gpu) source = ejk_device_tensor((void *)(uintptr_t)from, 0, EJK_DTYPE_I32, 1, shape);
    if (to_gpu) target = ejk_device_tensor(to, 0, EJK_DTYPE_I32, 1, shape);
    need(ejk_device_copy(&source, &target, NULL));
    need(ejk_device_synchronise(0, NULL));
}

/* The address on the GPU of what lies in a world. */
static void *there(const struct world *w, const void *address) {
    return address ? (char *)memory + ((const char *)address - (const char *)w) : NULL;
}

static void move_forward(const struct world *w, ejki_flash_problem *p) {
    p->query.data = there(w, p->query.data);
    p->key.data = there(w, p->key.data);
    p->value.data = there(w, p->value.data);
    p->out.data = there(w, p->out.data);
    p->lse.data = there(w, p->lse.data);
    p->row_max.data = there(w, p->row_max.data);
    p->row_sum.data = there(w, p->row_sum.data);
    p->bias.data = there(w, p->bias.data);
    p->sinks = there(w, p->sinks);
}

static void move_gradients(const struct world *w, ejki_flash_vjp_problem *v) {
    move_forward(w, &v->forward);
    v->out_cotangent.data = there(w, v->out_cotangent.data);
    v->d_query.data = there(w, v->d_query.data);
    v->d_key.data = there(w, v->d_key.data);
    v->d_value.data = there(w, v->d_value.data);
    v->d_bias.data = there(w, v->d_bias.data);
}

static bool run_prepared(const ejk_implementation *e, const void *problem) {
    int64_t parameters[EJK_MAX_PARAMETERS] = {0};
    for (int32_t i = 0; i < e->parameter_count; i++) parameters[i] = e->parameters[i].fallback;
    ejk_launch launch = {.workers = 1};
    if (e->prepare && e->prepare(problem, parameters, 1, &launch) != EJK_OK) return false;
    ejk_run run = {.problem = problem,
                   .parameters = parameters,
                   .workers = launch.workers,
                   .prepared = launch.prepared};
    if (e->backend == EJK_BACKEND_GPU)
        need(ejk_device_allocate(0, launch.workspace_bytes + 256, &run.workspace));
    else
        run.workspace = calloc(1, launch.workspace_bytes + 64);
    if (!run.workspace) abort();
    bool ran = e->run(&run) == EJK_OK;
    if (e->backend == EJK_BACKEND_GPU) {
        ran = ejk_device_synchronise(0, NULL) == EJK_OK && ran;
        need(ejk_device_free(0, run.workspace));
    } else {
        free(run.workspace);
    }
    return ran;
}

/* Problems are those of `clean` or `dirty`; the reference runs here, kernels of CUDA with a copy of the world. */
static bool run(const ejk_implementation *e, const void *problem) {
    static struct world got;
    struct world *w = problem == &clean.v || problem == &clean.a ? &clean : &dirty;
    if (e->backend != EJK_BACKEND_GPU) return run_prepared(e, problem);
    copy(memory, true, w, false, sizeof *w);
    ejki_flash_vjp_problem v = w->v;
    ejki_attention_problem a = w->a;
    move_gradients(w, &v);
    move_forward(w, &a.flash);
    a.weights.data = there(w, a.weights.data);
    const bool weights = strcmp(e->algorithm, "attention_weights") == 0;
    if (!run_prepared(e, weights ? (const void *)&a : &v)) return false;
    copy(&got, false, memory, true, sizeof got);
    const size_t first = offsetof(struct world, query);
    memcpy((char *)w + first, (const char *)&got + first, sizeof got - first);
    return true;
}

/* What is not finite is recomputed: by the same products forward, by others' in gradients; no bits are promised. */
static bool is_exact(const ejk_implementation *e) {
    return strstr(e->name, "/plain") != NULL;
}

int main(void) {
    const char *filter = getenv("EJK_TEST_FILTER");
    ejk_gpu_info gpu;
    int failures = 0, found = 0;
    if (!gpu_is_here()) return SKIPPED;
    need(ejk_device_info(0, &gpu));
    need(ejk_device_allocate(0, sizeof(struct world), &memory));
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        const ejk_implementation *e = ejki_builtin_implementations[i];
        if (e->backend != EJK_BACKEND_GPU || gpu.capability < e->least_capability) continue;
        if (e->most_capability > 0 && gpu.capability > e->most_capability) continue;
        if (filter && !strstr(e->name, filter)) continue;
        failures += check_implementation(e, &found);
    }
    need(ejk_device_free(0, memory));
    return failures == 0 && found > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
