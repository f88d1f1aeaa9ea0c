/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times implementations of flash attention on a GPU: reads lines of
 *
 *     algorithm implementation B T S Hq Hkv D causal parameter …
 *
 * and prints each with seconds of a launch, back to back, and TFLOP/s (4·B·Hq·T·S·D forward, 10 for gradients, half of
 * it under a causal mask). Inputs are normal numbers; nothing is checked.
 */
#include "kernels/builtin.h"
#include "kernels/flash_attention/vjp_problem.h"

#include <ejkernel/cuda.h>
#include <ejkernel/device.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POOL = 1 << 22, REPEATS = 5 };

static void need(ejk_status status) {
    if (status == EJK_OK) return;
    fprintf(stderr, "time_flash_attention: %s\n", ejk_last_error());
    exit(EXIT_FAILURE);
}

/* Normal numbers, the same ones again and again. */
static void *filled(ejk_dtype dtype, int64_t count) {
    static float *pool;
    if (!pool) {
        pool = malloc(POOL * sizeof *pool);
        if (!pool) abort();
        for (int i = 0; i < POOL; i++)
            pool[i] = (float)(sqrt(-2 * log((rand() + 1.0) / (RAND_MAX + 2.0))) *
                              cos(6.283185307179586 * rand() / RAND_MAX));
    }
    void *memory;
    const size_t size = ejk_dtype_size(dtype);
    need(ejk_device_allocate(0, (size_t)count * size, &memory));
    for (int64_t at = 0; at < count; at += POOL) {
        const int64_t shape[] = {count - at < POOL ? count - at : POOL};
        const ejk_tensor from = ejk_tensor_contiguous(pool, EJK_DTYPE_F32, 1, shape);
        const ejk_tensor to =
            ejk_device_tensor((char *)memory + (size_t)at * size, 0, dtype, 1, shape);
        need(ejk_device_copy(&from, &to, NULL));
    }
    return memory;
}

/* [B, H, T, D] in memory. */
static ejki_bthd bthd(ejk_dtype dtype, int64_t b, int64_t t, int64_t h, int64_t d) {
    return (ejki_bthd){filled(dtype, b * t * h * d), h * t * d, d, t * d};
}

static const ejk_implementation *find(const char *algorithm, const char *name) {
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        const ejk_implementation *e = ejki_builtin_implementations[i];
        if (strcmp(e->algorithm, algorithm) == 0 && strcmp(e->name, name) == 0) return e;
    }
    return NULL;
}

static void time_one(const ejk_implementation *e, ejki_flash_vjp_problem *v, bool backward,
                     const int64_t *parameters) {
    const void *problem = backward ? (const void *)v : (const void *)&v->forward;
    const ejki_flash_problem *p = &v->forward;
    if (e->applicable && !e->applicable(problem)) {
        printf("does not apply\n");
        return;
    }
    ejk_launch launch = {.workers = 1};
    need(e->prepare(problem, parameters, 1, &launch));
    void *workspace;
    need(ejk_device_allocate(0, launch.workspace_bytes, &workspace));
    const ejk_run run = {.problem = problem,
                         .parameters = parameters,
                         .workspace = workspace,
                         .workers = 1,
                         .prepared = launch.prepared};
    double best = INFINITY, start;
    need(e->run(&run));
    need(ejk_device_synchronise(0, NULL));
    start = ejk_now();
    need(e->run(&run));
    need(ejk_device_synchronise(0, NULL));
    const double once = ejk_now() - start;
    const int launches = once > 0.02 ? 3 : once > 0.002 ? 10 : 100;
    for (int r = 0; r < REPEATS; r++) {
        start = ejk_now();
        for (int i = 0; i < launches; i++) need(e->run(&run));
        need(ejk_device_synchronise(0, NULL));
        best = fmin(best, (ejk_now() - start) / launches);
    }
    const double flops = (backward ? 10.0 : 4.0) * (double)p->batch * (double)p->query_heads *
                         (double)p->queries * (double)p->keys * (double)p->head_dim /
                         (p->last_offset == 0 && p->queries == p->keys ? 2 : 1);
    printf("%.1f us, %.1f TFLOP/s\n", best * 1e6, flops / best * 1e-12);
    need(ejk_device_free(0, workspace));
}

static void time_line(const char *line) {
    char algorithm[64], name[64];
    long long n[7];
    int used = 0;
    if (sscanf(line, "%63s %63s %lld %lld %lld %lld %lld %lld %lld%n", algorithm, name, &n[0],
               &n[1], &n[2], &n[3], &n[4], &n[5], &n[6], &used) != 9)
        return;
    const ejk_implementation *e = find(algorithm, name);
    if (!e) {
        printf("%s: no such implementation\n", line);
        return;
    }
    int64_t parameters[EJK_MAX_PARAMETERS];
    for (int32_t i = 0; i < e->parameter_count; i++) {
        long long value;
        int more = 0;
        parameters[i] = e->parameters[i].fallback;
        if (sscanf(line + used, "%lld%n", &value, &more) == 1) parameters[i] = value;
        used += more;
    }
    const int64_t b = n[0], t = n[1], s = n[2], hq = n[3], hkv = n[4], d = n[5];
    const bool backward = strstr(algorithm, "vjp") != NULL;
    ejki_flash_vjp_problem v = {
        .forward = {.batch = b,
                    .queries = t,
                    .keys = s,
                    .query_heads = hq,
                    .kv_heads = hkv,
                    .group = hq / hkv,
                    .head_dim = d,
                    .value_dim = d,
                    .dtype = e->dtype,
                    .mask_group = 1,
                    .sink_group = 1,
                    .scale = 1 / sqrt((double)d),
                    .first_offset = -(INT64_C(1) << 61),
                    .last_offset = n[6] ? s - t : INT64_C(1) << 61,
                    .normalize = true},
        .wants_query = true,
        .wants_key = true,
        .wants_value = true,
    };
    ejki_flash_problem *p = &v.forward;
    p->query = bthd(e->dtype, b, t, hq, d);
    p->key = bthd(e->dtype, b, s, hkv, d);
    p->value = bthd(e->dtype, b, s, hkv, d);
    p->out = bthd(e->dtype, b, t, hq, d);
    p->lse = (ejki_bht){filled(EJK_DTYPE_F32, b * hq * t), hq * t, t, 1};
    if (backward) {
        v.out_cotangent = bthd(e->dtype, b, t, hq, d);
        v.d_query = bthd(e->dtype, b, t, hq, d);
        v.d_key = bthd(e->dtype, b, s, hkv, d);
        v.d_value = bthd(e->dtype, b, s, hkv, d);
    }
    printf("%.*s: ", (int)strcspn(line, "\n"), line);
    time_one(e, &v, backward, parameters);
    fflush(stdout);
    void *all[] = {p->query.data,        p->key.data,    p->value.data, p->out.data,   p->lse.data,
                   v.out_cotangent.data, v.d_query.data, v.d_key.data,  v.d_value.data};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) need(ejk_device_free(0, all[i]));
}

int main(void) {
    char line[512];
    while (fgets(line, sizeof line, stdin)) time_line(line);
    return EXIT_SUCCESS;
}
