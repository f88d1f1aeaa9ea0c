/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times implementations of flash attention on a GPU: reads lines of
 *
 *     algorithm implementation B T S Hq Hkv D causal parameter … name=value …
 *
 * and answers each with microseconds of a launch alone, behind 256 MB that are cleared, of which the median of 10; of
 * a launch of ten back to back (five of gradients), the median of 5; and the TFLOP/s of both: 4·D for each score that
 * is visible, 10·D of gradients. Half a second of rest goes before. bench/gpu/compare.py does the same with PyTorch.
 *
 *     window=W   keys before the query's own that it sees
 *     cap=C      soft cap
 *     sinks=N    sinks of each head
 *     packed=N   sequences of 1 to T tokens, B of them in effect: B * T tokens are packed
 *     unordered=1   gradients may be added up in any order
 *     lse=1      log-sum-exp is a result too, which PyTorch leaves out where no gradients are wanted
 *
 * Inputs are normal numbers; nothing is checked.
 */
#include "kernels/registry/builtin.h"
#include "operations/attention/flash/vjp_problem.h"
#include "ops/core/core.h"

#include <ejkernel/cuda.h>
#include <ejkernel/device.h>
#include <ejkernel/flash_attention.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POOL = 1 << 22, ALONE = 10, ROUNDS = 5, FLUSHED = 256 << 20, MOST_SEQUENCES = 4096 };

static void need(ejk_status status) {
    if (status == EJK_OK) return;
    fprintf(stderr, "time_flash_attention: %s\n", ejk_last_error());
    exit(EXIT_FAILURE);
}

/* Normal numbers, the same ones again and again, but each tensor begins with others: queries are no keys. */
static void *filled(ejk_dtype dtype, int64_t count) {
    static float *pool;
    static int64_t first;
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
    first = (first + 1234577) % POOL;
    for (int64_t at = 0, from = first, more; at < count; at += more, from = 0) {
        more = count - at < POOL - from ? count - at : POOL - from;
        const ejk_tensor numbers = ejk_tensor_contiguous(pool + from, EJK_DTYPE_F32, 1, &more);
        const ejk_tensor to =
            ejk_device_tensor((char *)memory + (size_t)at * size, 0, dtype, 1, &more);
        need(ejk_device_copy(&numbers, &to, NULL));
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

/* ---- Events ------------------------------------------------------------------------------------------- */

static struct {
    int (*retain)(void **context, int device), (*make_current)(void *context);
    int (*create)(void **event, unsigned flags), (*record)(void *event, void *stream);
    int (*wait)(void *event), (*between)(float *ms, void *first, void *second);
    int (*fill)(unsigned long long to, unsigned char value, size_t count, void *stream);
    void *first, *second, *flushed;
} cuda;

static void find_events(void) {
    static const char *const names[] = {
        "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent",    "cuEventCreate",  "cuEventRecord",
        "cuEventSynchronize",       "cuEventElapsedTime", "cuMemsetD8Async"};
    void *const places[] = {&cuda.retain, &cuda.make_current, &cuda.create, &cuda.record,
                            &cuda.wait,   &cuda.between,      &cuda.fill};
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    for (int i = 0; library && i < 7; i++) {
        void *found = dlsym(library, names[i]);
        if (found) memcpy(places[i], &found, sizeof found);
    }
    need(ejk_device_allocate(0, FLUSHED, &cuda.flushed));
    if (cuda.retain(&context, 0) || cuda.make_current(context) || cuda.create(&cuda.first, 0) ||
        cuda.create(&cuda.second, 0))
        exit(EXIT_FAILURE);
}

/* Microseconds of a launch, of `count` one after the other. */
static double time_launches(const ejk_implementation *e, const ejk_run *run, int count,
                            bool flush) {
    float ms = 0;
    if (flush && cuda.fill((unsigned long long)(uintptr_t)cuda.flushed, 0, FLUSHED, NULL))
        exit(EXIT_FAILURE);
    cuda.record(cuda.first, NULL);
    for (int i = 0; i < count; i++) need(e->run(run));
    cuda.record(cuda.second, NULL);
    if (cuda.wait(cuda.second) || cuda.between(&ms, cuda.first, cuda.second)) exit(EXIT_FAILURE);
    return (double)ms * 1000 / count;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times, int count) {
    qsort(times, (size_t)count, sizeof *times, by_size);
    return count % 2 ? times[count / 2] : (times[count / 2 - 1] + times[count / 2]) / 2;
}

/* ---- Problems ----------------------------------------------------------------------------------------- */

struct wish {
    int64_t window, sinks, packed, lse, unordered;
    double cap;
};

static struct wish wish_of(const char *line) {
    struct wish w = {.window = -1};
    const char *at;
    if ((at = strstr(line, "window="))) w.window = atoll(at + 7);
    if ((at = strstr(line, "sinks="))) w.sinks = atoll(at + 6);
    if ((at = strstr(line, "packed="))) w.packed = atoll(at + 7);
    if ((at = strstr(line, "lse="))) w.lse = atoll(at + 4);
    if ((at = strstr(line, "unordered="))) w.unordered = atoll(at + 10);
    if ((at = strstr(line, "cap="))) w.cap = atof(at + 4);
    return w;
}

/* Scores that rows 0 … queries see of one head. */
static double visible(const ejki_flash_problem *p, int64_t queries, int64_t keys) {
    double count = 0;
    const int64_t more = p->ends_together ? keys - queries : 0;
    for (int64_t i = 0; i < queries; i++) {
        const int64_t low = p->first_offset < -(INT64_C(1) << 60) ? 0 : i + p->first_offset + more;
        const int64_t high =
            p->last_offset > INT64_C(1) << 60 ? keys : i + p->last_offset + more + 1;
        const int64_t first = low > 0 ? low : 0, end = high < keys ? high : keys;
        if (end > first) count += (double)(end - first);
    }
    return count;
}

/* Lengths of 1 to `most`, the same each time, until the tokens are used up. Answers the scores of a head. */
static double pack(ejki_flash_problem *p, int64_t count, int64_t tokens, int64_t most) {
    int32_t sums[MOST_SEQUENCES + 1] = {0};
    uint32_t state = 12345;
    double scores = 0;
    if (count > MOST_SEQUENCES) count = MOST_SEQUENCES;
    for (int64_t n = 0; n < count; n++) {
        state = state * 1664525u + 1013904223u;
        int64_t length = 1 + (int64_t)((double)(state >> 8) / (1 << 24) * (double)most);
        if (sums[n] + length > tokens) length = tokens - sums[n];
        sums[n + 1] = sums[n] + (int32_t)length;
    }
    void *memory;
    const int64_t shape[] = {count + 1};
    need(ejk_device_allocate(0, sizeof sums, &memory));
    const ejk_tensor from = ejk_tensor_contiguous(sums, EJK_DTYPE_I32, 1, shape);
    const ejk_tensor to = ejk_device_tensor(memory, 0, EJK_DTYPE_I32, 1, shape);
    need(ejk_device_copy(&from, &to, NULL));
    p->layout = EJKI_FLASH_TOKENS;
    p->batch = count;
    p->queries = p->keys = sums[count];
    p->query_sums = p->key_sums = memory;
    p->ends_together = true;
    for (int64_t n = 0; n < count; n++)
        scores += visible(p, sums[n + 1] - sums[n], sums[n + 1] - sums[n]);
    return scores;
}

static void time_one(const ejk_implementation *e, ejki_flash_vjp_problem *v, bool backward,
                     double scores, const int64_t *parameters) {
    const void *problem = backward ? (const void *)v : (const void *)&v->forward;
    const ejki_flash_problem *p = &v->forward;
    if (e->applicable && !e->applicable(problem)) {
        printf("does not apply\n");
        return;
    }
    ejk_launch launch = {.workers = 1};
    const double start = ejk_now();
    if (e->prepare(problem, parameters, 1, &launch) != EJK_OK) {
        printf("cannot be prepared: %.200s\n", ejk_last_error());
        return;
    }
    const double prepared = ejk_now() - start;
    void *workspace;
    need(ejk_device_allocate(0, launch.workspace_bytes, &workspace));
    const ejk_run run = {.problem = problem,
                         .parameters = parameters,
                         .workspace = workspace,
                         .workers = 1,
                         .prepared = launch.prepared};
    double alone[ALONE], rounds[ROUNDS];
    time_launches(e, &run, 1, true);
    const struct timespec rest = {.tv_nsec = 500000000};
    nanosleep(&rest, NULL);
    for (int i = 0; i < ALONE; i++) alone[i] = time_launches(e, &run, 1, true);
    for (int i = 0; i < ROUNDS; i++) rounds[i] = time_launches(e, &run, backward ? 5 : 10, false);
    const double flops = (backward ? 10.0 : 4.0) * scores * (double)p->query_heads *
                         (double)(p->head_dim + p->value_dim) / 2;
    const double one = median(alone, ALONE), many = median(rounds, ROUNDS);
    printf("%.1f %.1f us, %.1f %.1f TFLOP/s, prepared in %.4f s\n", one, many, flops / one * 1e-6,
           flops / many * 1e-6, prepared);
    need(ejk_device_free(0, workspace));
}

/* Those that were not given, as the library chooses them. */
static void choose(const ejk_implementation *e, const ejki_flash_vjp_problem *v, bool backward,
                   int32_t given, int64_t *parameters) {
    const ejk_kernel *kernel =
        backward ? &ejk_flash_attention_vjp_kernel : &ejk_flash_attention_kernel;
    const ejk_invocation invocation = {.kernel = kernel,
                                       .problem = backward ? (const void *)v : &v->forward,
                                       .implementation = e,
                                       .threads = 1,
                                       .device_type = EJK_DEVICE_CUDA};
    ejk_flash_attention_config config;
    memset(&config, 0, sizeof config);
    kernel->heuristic_cfg(&invocation, &config);
    for (int32_t i = given; i < e->parameter_count; i++) {
        const ejk_opt_int advice = ejki_parameter_of(kernel, &config, e->parameters[i].name);
        parameters[i] = advice.set ? advice.value : e->parameters[i].fallback;
    }
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
    int32_t given = 0;
    for (; given < e->parameter_count; given++) {
        long long value;
        int more = 0;
        if (sscanf(line + used, "%lld%n", &value, &more) != 1) break;
        parameters[given] = value;
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
    const struct wish wish = wish_of(line);
    ejki_flash_problem *p = &v.forward;
    if (wish.window >= 0) p->first_offset = s - t - wish.window;
    p->soft_cap = wish.cap;
    v.unordered = wish.unordered != 0;
    const int64_t rows = wish.packed ? 1 : b, of_rows = wish.packed ? b * t : t;
    const int64_t of_keys = wish.packed ? b * s : s;
    p->query = bthd(e->dtype, rows, of_rows, hq, d);
    p->key = bthd(e->dtype, rows, of_keys, hkv, d);
    p->value = bthd(e->dtype, rows, of_keys, hkv, d);
    p->out = bthd(e->dtype, rows, of_rows, hq, d);
    p->wants_lse = backward || wish.lse;
    if (p->wants_lse)
        p->lse = (ejki_bht){filled(EJK_DTYPE_F32, b * hq * t), hq * of_rows, of_rows, 1};
    if (backward) {
        v.out_cotangent = bthd(e->dtype, b, t, hq, d);
        v.d_query = bthd(e->dtype, b, t, hq, d);
        v.d_key = bthd(e->dtype, b, s, hkv, d);
        v.d_value = bthd(e->dtype, b, s, hkv, d);
    }
    double scores = (double)b * visible(p, t, s);
    if (wish.packed) {
        scores = pack(p, wish.packed, b * t, t);
    }
    p->has_sinks = wish.sinks > 0;
    p->sink_count = p->sink_stride_h = wish.sinks;
    if (p->has_sinks) p->sinks = filled(e->dtype, hq * wish.sinks);
    choose(e, &v, backward, given, parameters);
    printf("%.*s: ", (int)strcspn(line, "\n"), line);
    time_one(e, &v, backward, scores, parameters);
    fflush(stdout);
    void *all[] = {p->query.data,
                   p->key.data,
                   p->value.data,
                   p->out.data,
                   p->lse.data,
                   v.out_cotangent.data,
                   v.d_query.data,
                   v.d_key.data,
                   v.d_value.data,
                   (void *)(uintptr_t)p->sinks,
                   (void *)(uintptr_t)p->query_sums};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) need(ejk_device_free(0, all[i]));
}

int main(void) {
    char line[512];
    int32_t count = 0;
    if (ejk_device_count(&count) != EJK_OK) {
        printf("skip: %s\n", ejk_last_error());
        return 77;
    }
    find_events();
    while (fgets(line, sizeof line, stdin)) time_line(line);
    return EXIT_SUCCESS;
}
