/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every implementation of flash attention and of its gradients for GPUs, by plans, over and over: the same bits
 *   repeats    execution after execution
 *   load       while another stream keeps the GPU busy
 *   graphs     replayed from a graph, with other inputs in the same places, under that load
 *   threads    from two threads on two streams at once, each with inputs of its own
 *   unordered  not the same bits, but near, where gradients may be added in any order
 *
 * EJK_TEST_PROCESSES, one for each CPU, share the cases; EJK_TEST_FILTER takes implementations by a part of
 * "algorithm name". Answers 77 where there is no GPU.
 */
#include "kernels/registry/builtin.h"
#include "support/element.h"
#include "support/gpu_driver.h"
#include "support/gpu_processes.h"
#include "support/random.h"

#include <ejkernel/ejkernel.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 6, UNDER_LOAD = 12, ROUNDS = 6, MOST_CASES = 256 };
enum { CHECK_REPEATS, CHECK_LOAD, CHECK_GRAPHS, CHECK_THREADS, CHECK_UNORDERED, CHECKS };
static const char *const check_names[CHECKS] = {"repeats", "load", "graphs", "threads",
                                                "unordered"};

static void need(ejk_status status, const char *doing) {
    if (status == EJK_OK) return;
    printf("FAIL %s: %s\n", doing, ejk_last_error());
    fflush(stdout);
    _Exit(EXIT_FAILURE);
}

/* ---- Cases ------------------------------------------------------------------------------------------ */

/* Each implementation takes at least one of them; which, it says itself. */
static const struct shape {
    int64_t b, t, s, hq, hkv, d, dv;
    bool causal;
} shapes[] = {
    {1, 700, 700, 8, 2, 128, 128, true}, /* tiles that end in the middle, heads of a group */
    {2, 333, 900, 6, 3, 64, 64, false},
    {1, 300, 300, 2, 2, 80, 96, true},
    {3, 2, 2500, 8, 2, 128, 128, true}, /* keys that are split */
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

struct counts {
    char doing[160];
    int64_t runs[MOST_CASES][CHECKS], failures[MOST_CASES][CHECKS], tried[MOST_CASES];
};

/* ---- Tensors ---------------------------------------------------------------------------------------- */

enum { QUERY, KEY, VALUE, D_OUT, OUT, LSE, D_QUERY, D_KEY, D_VALUE, TENSORS };

/* Tensors of one side's calls, what is in them beforehand, and what the first execution made of them. */
struct side {
    ejk_tensor there[TENSORS];
    void *before[TENSORS], *wanted[TENSORS];
    void *stream, *workspace;
};

struct subject {
    struct counts *counts;
    int number; /* of the case */
    const struct shape *shape;
    const ejk_implementation *implementation;
    bool backward;
    ejk_context *context;
    ejk_plan *plan;
    struct side sides[2];
    char name[200];
};

static void fail(struct subject *s, int check, const char *why) {
    if (s->counts->failures[s->number][check]++) return;
    printf("FAIL %s %s: %s\n", s->name, check_names[check], why);
    fflush(stdout);
}

static size_t bytes_of(const ejk_tensor *t) {
    return (size_t)ejk_tensor_count(t) * ejk_dtype_size(t->dtype);
}

/* Bytes here as a tensor of bytes there. */
static void copy(const ejk_tensor *there, void *here, bool to_gpu, void *stream) {
    const int64_t shape[] = {(int64_t)bytes_of(there)};
    const ejk_tensor a = ejk_device_tensor(there->data, 0, EJK_DTYPE_U8, 1, shape);
    const ejk_tensor b = ejk_tensor_contiguous(here, EJK_DTYPE_U8, 1, shape);
    need(to_gpu ? ejk_device_copy(&b, &a, stream) : ejk_device_copy(&a, &b, stream), "copying");
}

static bool is_result(const struct subject *s, int tensor) {
    return s->backward ? tensor >= D_QUERY : tensor == OUT || tensor == LSE;
}

static void add(struct side *side, int index, ejk_dtype dtype, const int64_t shape[4],
                struct random *r) {
    const int64_t count = shape[0] * shape[1] * shape[2] * shape[3];
    void *data;
    need(ejk_device_allocate(0, (size_t)count * ejk_dtype_size(dtype), &data), "allocating");
    ejk_tensor *t = &side->there[index];
    *t = ejk_device_tensor(data, 0, dtype, index == LSE ? 3 : 4, shape);
    side->before[index] = malloc(bytes_of(t));
    side->wanted[index] = malloc(bytes_of(t));
    if (!side->before[index] || !side->wanted[index]) abort();
    memset(side->before[index], 0xff, bytes_of(t)); /* NaN */
    for (int64_t i = 0; i < count && index <= D_OUT; i++)
        element_store(dtype, side->before[index], i, random_normal(r));
}

static void open_side(struct subject *s, struct side *side, uint64_t seed) {
    const struct shape *c = s->shape;
    const ejk_dtype dtype = s->implementation->dtype;
    struct random r = {.state = seed};
    const int64_t q[] = {c->b, c->t, c->hq, c->d}, k[] = {c->b, c->s, c->hkv, c->d},
                  v[] = {c->b, c->s, c->hkv, c->dv}, out[] = {c->b, c->t, c->hq, c->dv},
                  lse[] = {c->b, c->hq, c->t, 1};
    const int64_t *const all[TENSORS] = {q, k, v, out, out, lse, q, k, v};
    for (int i = 0; i < TENSORS; i++) add(side, i, i == LSE ? EJK_DTYPE_F32 : dtype, all[i], &r);
    side->stream = gpu_stream_create();
}

static void close_side(struct side *side) {
    for (int i = 0; i < TENSORS; i++) {
        need(ejk_device_free(0, side->there[i].data), "freeing");
        free(side->before[i]);
        free(side->wanted[i]);
    }
    need(ejk_device_free(0, side->workspace), "freeing");
    gpu_stream_destroy(side->stream);
}

/* ---- Calls ------------------------------------------------------------------------------------------ */

union arguments {
    ejk_flash_attention_args forward;
    ejk_flash_attention_vjp_args backward;
};

static union arguments arguments_of(const struct subject *s, const struct side *side) {
    const ejk_tensor *x = side->there;
    const ejk_flash_attention_args forward = {.query = x[QUERY],
                                              .key = x[KEY],
                                              .value = x[VALUE],
                                              .causal = s->shape->causal,
                                              .out = x[OUT],
                                              .lse = x[LSE]};
    if (!s->backward) return (union arguments){.forward = forward};
    return (union arguments){.backward = {.query = x[QUERY],
                                          .key = x[KEY],
                                          .value = x[VALUE],
                                          .causal = s->shape->causal,
                                          .out = x[OUT],
                                          .lse = x[LSE],
                                          .d_out = x[D_OUT],
                                          .d_query = x[D_QUERY],
                                          .d_key = x[D_KEY],
                                          .d_value = x[D_VALUE]}};
}

static void execute(struct subject *s, struct side *side) {
    const union arguments args = arguments_of(s, side);
    need(ejk_plan_execute_on(s->plan, &args, side->workspace, ejk_plan_workspace(s->plan),
                             side->stream),
         s->name);
}

/* Puts what is in a side's tensors beforehand into those of another; results are NaN then. */
static void fill(const struct side *from, struct side *to) {
    for (int i = 0; i < TENSORS; i++) copy(&to->there[i], from->before[i], true, to->stream);
}

/* Compares a side's results with what another's were at first. */
static void compare(struct subject *s, int check, const struct side *side,
                    const struct side *wanted) {
    static const char *const names[TENSORS] = {[OUT] = "out",
                                               [LSE] = "lse",
                                               [D_QUERY] = "d_query",
                                               [D_KEY] = "d_key",
                                               [D_VALUE] = "d_value"};
    char why[100];
    for (int i = 0; i < TENSORS; i++) {
        if (!is_result(s, i)) continue;
        const size_t bytes = bytes_of(&side->there[i]);
        void *got = malloc(bytes);
        if (!got) abort();
        copy(&side->there[i], got, false, side->stream);
        snprintf(why, sizeof why, "%s has other bits", names[i]);
        if (memcmp(got, wanted->wanted[i], bytes) != 0) fail(s, check, why);
        free(got);
    }
}

/* ---- A stream that is kept busy --------------------------------------------------------------------- */

/* Memory and multiprocessors, in pieces of different lengths. */
struct load {
    ejk_context *context;
    ejk_plan *plan;
    ejk_flash_attention_args args;
    void *stream;
    pthread_t thread;
    _Atomic bool ends;
};

static void *keep_busy(void *user) {
    struct load *l = user;
    gpu_enter();
    while (!l->ends) {
        for (int i = 0; i < 4; i++)
            need(ejk_plan_execute_on(l->plan, &l->args, NULL, 0, l->stream), "keeping busy");
        need(ejk_device_synchronise(0, l->stream), "waiting");
    }
    return NULL;
}

static void load_open(struct load *l) {
    const int64_t shape[] = {1, 1500, 24, 64};
    ejk_tensor *const all[] = {&l->args.query, &l->args.key, &l->args.value, &l->args.out};
    for (int i = 0; i < 4; i++) {
        ejk_owned_tensor memory;
        need(ejk_device_tensor_create(0, EJK_DTYPE_F32, 4, shape, &memory), "allocating");
        *all[i] = memory.tensor;
    }
    l->args.causal = true;
    l->stream = gpu_stream_create();
    need(ejk_context_create(&(ejk_context_options){.stream = l->stream}, &l->context), "a context");
    need(ejk_plan_create(l->context, &ejk_flash_attention_kernel, &l->args, &l->plan), "the load");
}

static void load_begin(struct load *l) {
    l->ends = false;
    if (pthread_create(&l->thread, NULL, keep_busy, l) != 0) abort();
}

static void load_end(struct load *l) {
    l->ends = true;
    pthread_join(l->thread, NULL);
}

/* ---- Checks ----------------------------------------------------------------------------------------- */

static void check_again(struct subject *s, int check, int times) {
    struct side *side = &s->sides[0];
    for (int i = 0; i < times; i++) {
        s->counts->runs[s->number][check]++;
        fill(side, side);
        execute(s, side);
        compare(s, check, side, side);
    }
}

/* The inputs in the graph's places change from replay to replay. */
static void check_graphs(struct subject *s) {
    struct side *side = &s->sides[0];
    gpu_graph_begin(side->stream);
    execute(s, side);
    execute(s, side);
    struct gpu_graph graph = gpu_graph_end(side->stream);
    for (int i = 0; i < ROUNDS; i++) {
        s->counts->runs[s->number][CHECK_GRAPHS]++;
        fill(&s->sides[i % 2], side);
        gpu_graph_launch(&graph, side->stream);
        if (i % 3 == 2) gpu_graph_launch(&graph, side->stream);
        compare(s, CHECK_GRAPHS, side, &s->sides[i % 2]);
    }
    gpu_graph_destroy(&graph);
    fill(side, side);
}

struct part {
    struct subject *subject;
    int side;
};

static void *run_side(void *user) {
    const struct part *p = user;
    struct side *side = &p->subject->sides[p->side];
    gpu_enter();
    for (int i = 0; i < ROUNDS; i++) {
        for (int k = 0; k < 3; k++) execute(p->subject, side);
        compare(p->subject, CHECK_THREADS, side, side);
    }
    return NULL;
}

static void check_threads(struct subject *s) {
    pthread_t threads[2];
    struct part parts[2] = {{s, 0}, {s, 1}};
    s->counts->runs[s->number][CHECK_THREADS]++;
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, run_side, &parts[i]) != 0) abort();
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

static double distance(ejk_dtype dtype, const void *a, const void *b, int64_t count) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        const double x = element_load(dtype, a, i), y = element_load(dtype, b, i);
        error += (x - y) * (x - y);
        size += x * x;
    }
    return sqrt(error / size);
}

/* A plan of its own, as a call's options are settled in it. */
static void check_unordered(struct subject *s) {
    struct side *side = &s->sides[0];
    const ejk_dtype dtype = s->implementation->dtype;
    union arguments args = arguments_of(s, side);
    args.backward.deterministic = EJK_FALSE;
    ejk_plan *plan;
    void *workspace;
    s->counts->runs[s->number][CHECK_UNORDERED]++;
    need(ejk_plan_create(s->context, &ejk_flash_attention_vjp_kernel, &args, &plan), s->name);
    need(ejk_device_allocate(0, ejk_plan_workspace(plan), &workspace), "allocating");
    fill(side, side);
    need(ejk_plan_execute_on(plan, &args, workspace, ejk_plan_workspace(plan), side->stream),
         s->name);
    for (int i = D_QUERY; i <= D_VALUE; i++) {
        void *got = malloc(bytes_of(&side->there[i]));
        if (!got) abort();
        copy(&side->there[i], got, false, side->stream);
        const double off = distance(dtype, side->wanted[i], got, ejk_tensor_count(&side->there[i]));
        /* Rounding to the type differs now and then. NaN is not below anything. */
        if (!(off <= (dtype == EJK_DTYPE_F32 ? 1e-6 : 2e-3)))
            fail(s, CHECK_UNORDERED, "it is far off");
        free(got);
    }
    ejk_plan_destroy(plan);
    need(ejk_device_free(0, workspace), "freeing");
}

/* ---- Subjects --------------------------------------------------------------------------------------- */

/* A plan by that implementation, in a context that prefers it. False if it does not take the shape. */
static bool open_plan(struct subject *s, char *preferred, size_t room) {
    ejk_implementation copy_of = *s->implementation;
    snprintf(preferred, room, "%s, preferred", s->implementation->name);
    copy_of.name = preferred;
    copy_of.priority = INT_MAX;
    need(ejk_context_create(NULL, &s->context), "a context");
    need(ejk_registry_register(ejk_context_registry(s->context), &copy_of), "registering");
    const union arguments args = arguments_of(s, &s->sides[0]);
    need(
        ejk_plan_create(s->context,
                        s->backward ? &ejk_flash_attention_vjp_kernel : &ejk_flash_attention_kernel,
                        &args, &s->plan),
        s->name);
    return ejk_plan_implementation(s->plan)->run == s->implementation->run;
}

/* What the gradients need of the forward pass becomes part of what is there beforehand. */
static void run_forward(struct subject *s, struct side *side) {
    const struct subject forward = {.shape = s->shape};
    const union arguments args = arguments_of(&forward, side);
    fill(side, side);
    need(ejk_flash_attention(s->context, &args.forward), "the forward pass");
    need(ejk_device_synchronise(0, NULL), "waiting");
    for (int i = OUT; i <= LSE; i++) copy(&side->there[i], side->before[i], false, NULL);
}

static void first_execution(struct subject *s, struct side *side) {
    need(ejk_device_allocate(0, ejk_plan_workspace(s->plan), &side->workspace), "allocating");
    if (s->backward) run_forward(s, side);
    fill(side, side);
    execute(s, side);
    for (int i = 0; i < TENSORS; i++)
        if (is_result(s, i)) copy(&side->there[i], side->wanted[i], false, side->stream);
}

static void try_subject(struct subject *s, struct load *load) {
    char preferred[160];
    s->counts->tried[s->number]++;
    for (int i = 0; i < 2; i++) open_side(s, &s->sides[i], (uint64_t)(2 * s->number + i + 1));
    if (open_plan(s, preferred, sizeof preferred)) {
        for (int i = 0; i < 2; i++) first_execution(s, &s->sides[i]);
        const int first = s->backward ? D_QUERY : OUT;
        if (memcmp(s->sides[0].wanted[first], s->sides[1].wanted[first],
                   bytes_of(&s->sides[0].there[first])) == 0)
            fail(s, CHECK_REPEATS, "the results of different inputs are equal");
        check_again(s, CHECK_REPEATS, REPEATS);
        load_begin(load);
        check_again(s, CHECK_LOAD, UNDER_LOAD);
        check_graphs(s);
        load_end(load);
        check_threads(s);
        if (s->backward) check_unordered(s);
    }
    ejk_plan_destroy(s->plan);
    for (int i = 0; i < 2; i++) close_side(&s->sides[i]);
    ejk_context_destroy(s->context);
}

/* ---- Processes -------------------------------------------------------------------------------------- */

/* Case n is the n-th of an implementation and a shape; NULL beyond the last. */
static const ejk_implementation *implementation_of(int n, const struct shape **shape) {
    const char *filter = getenv("EJK_TEST_FILTER");
    char name[200];
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        const ejk_implementation *e = ejki_builtin_implementations[i];
        if (e->platform != EJK_PLATFORM_CUDA || (strcmp(e->algorithm, "flash_attention") != 0 &&
                                                 strcmp(e->algorithm, "flash_attention_vjp") != 0))
            continue;
        snprintf(name, sizeof name, "%s %s", e->algorithm, e->name);
        if (filter && !strstr(name, filter)) continue;
        if (n < SHAPES) {
            *shape = &shapes[n];
            return e;
        }
        n -= SHAPES;
    }
    return NULL;
}

static void run_cases(void *counts, const gpu_share *share) {
    ejk_gpu_info info;
    struct load load = {.stream = NULL};
    need(ejk_device_info(0, &info), "looking at the GPU");
    gpu_enter();
    load_open(&load);
    for (int n = (int)share->first; n < MOST_CASES && time(NULL) < share->end;
         n += (int)share->step) {
        struct subject s = {.counts = counts, .number = n};
        s.implementation = implementation_of(n, &s.shape);
        if (!s.implementation) break;
        if (info.capability < s.implementation->least_capability ||
            (s.implementation->most_capability &&
             info.capability > s.implementation->most_capability))
            continue;
        s.backward = strcmp(s.implementation->algorithm, "flash_attention_vjp") == 0;
        snprintf(s.name, sizeof s.name, "%s %s shape %d", s.implementation->algorithm,
                 s.implementation->name, n % SHAPES);
        snprintf(s.counts->doing, sizeof s.counts->doing, "%.150s", s.name);
        try_subject(&s, &load);
    }
}

/* Every implementation that this GPU has takes a shape, if there was time for all of them. */
static int64_t report(const struct counts *all, int processes) {
    int64_t failures = 0;
    const struct shape *shape;
    const ejk_implementation *e;
    for (int first = 0; (e = implementation_of(first, &shape)) != NULL; first += SHAPES) {
        int64_t runs[CHECKS] = {0}, bad[CHECKS] = {0}, tried = 0;
        for (int n = first; n < first + SHAPES; n++)
            for (int p = 0; p < processes; p++) {
                tried += all[p].tried[n];
                for (int k = 0; k < CHECKS; k++) {
                    runs[k] += all[p].runs[n][k];
                    bad[k] += all[p].failures[n][k];
                }
            }
        printf("%s %s:", e->algorithm, e->name);
        for (int k = 0; k < CHECKS; k++) {
            printf(" %s %d/%d", check_names[k], (int)bad[k], (int)runs[k]);
            failures += bad[k];
        }
        const bool silent = tried == SHAPES && runs[0] == 0;
        failures += silent;
        printf("%s\n", silent ? " FAIL it takes none of the shapes" : runs[0] ? "" : " not run");
    }
    return failures;
}

int main(void) {
    const gpu_work work = {.run = run_cases, .size = sizeof(struct counts), .seconds = 120};
    const struct shape *shape;
    void *all;
    int processes;
    if (!gpu_present()) return GPU_SKIPPED;
    if (implementation_of(MOST_CASES, &shape)) {
        printf("FAIL more than %d cases\n", (int)MOST_CASES);
        return EXIT_FAILURE;
    }
    int64_t failures = gpu_run_processes(&work, &all, &processes);
    failures += report(all, processes);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
