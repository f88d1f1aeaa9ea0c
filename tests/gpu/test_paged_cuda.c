/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over pages on a GPU, longer than cases of the conformance harness can be: latents of 128 heads and of keys
 * in several parts, prompts that take high tiles, decoding of many keys; beside the CPU's kernels, and over and over
 * with the same bits, also of calls that follow each other in a graph. Answers 77 where there is no GPU.
 */
#include "support/call_results.h"
#include "support/element.h"
#include "support/gpu_call.h"
#include "support/gpu_driver.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 5, REPLAYS = 500, MOST_SEQUENCES = 8, MOST_TENSORS = 16 };

/* Sequences that have `rows` new tokens each, the last of `keys` keys. */
struct shape {
    const char *name;
    ejk_dtype dtype;
    int64_t page, heads, kv_heads, dim, sequences, keys[MOST_SEQUENCES], rows[MOST_SEQUENCES];
};
static const struct shape latents[] = {
    {"latents of 128 heads", EJK_DTYPE_BF16, 64, 128, 1, 512, 4, {4096, 9000, 70, 1}, {1, 1, 1, 1}},
    {"latents of 128 heads, pages of 16", EJK_DTYPE_BF16, 16, 128, 1, 512, 2, {5000, 2047}, {3, 1}},
    {"latents of 128 heads", EJK_DTYPE_F16, 64, 128, 1, 512, 2, {4200, 2100}, {1, 2}},
    {"latents of 16 heads", EJK_DTYPE_BF16, 64, 16, 1, 512, 3, {8192, 4096, 33}, {1, 1, 4}},
};
static const struct shape paged[] = {
    {"prompts", EJK_DTYPE_BF16, 16, 8, 2, 128, 3, {2100, 2600, 300}, {2100, 1700, 300}},
    {"prompts", EJK_DTYPE_F16, 64, 8, 2, 128, 2, {1600, 1537}, {1600, 1537}},
    {"prompts", EJK_DTYPE_BF16, 64, 4, 4, 64, 2, {2000, 2300}, {2000, 1600}},
    {"decoding", EJK_DTYPE_BF16, 16, 32, 8, 128, 4, {8192, 17, 3000, 16384}, {1, 1, 1, 1}},
    {"decoding", EJK_DTYPE_F16, 64, 32, 8, 128, 2, {9001, 5000}, {1, 2}},
    {"decoding of many",
     EJK_DTYPE_BF16,
     16,
     32,
     8,
     128,
     8,
     {5000, 1, 0, 300, 17, 4097, 2, 900},
     {1, 1, 0, 1, 1, 1, 1, 1}},
    {"decoding of many",
     EJK_DTYPE_BF16,
     16,
     16,
     8,
     64,
     8,
     {2500, 5, 513, 4100, 64, 3, 256, 0},
     {2, 3, 1, 4, 1, 2, 1, 0}},
};

/* Calls with a CTA for each part, and with CTAs that have many. */
static const struct shape replayed[] = {
    {"replays of decoding", EJK_DTYPE_BF16, 16, 32, 8, 128, 1, {8192}, {1}},
    {"replays of decoding",
     EJK_DTYPE_BF16,
     16,
     32,
     8,
     128,
     5,
     {3000, 16, 1, 5000, 900},
     {1, 1, 1, 1, 1}},
};

struct trial {
    ejk_context *context;
    struct random random;
    int64_t failures;
    void *memory[MOST_TENSORS];
    int used;
};

static void need(ejk_status status) {
    if (status == EJK_OK) return;
    printf("FAIL %s\n", ejk_last_error());
    exit(EXIT_FAILURE);
}

static void fail(struct trial *t, const struct shape *s, const char *why) {
    printf("FAIL %s %s: %s\n", s->name, ejk_dtype_name(s->dtype), why);
    t->failures++;
}

static ejk_tensor tensor(struct trial *t, ejk_dtype dtype, int32_t rank, const int64_t *shape) {
    ejk_tensor made = ejk_tensor_contiguous(NULL, dtype, rank, shape);
    made.data = t->memory[t->used++] =
        calloc((size_t)ejk_tensor_count(&made), ejk_dtype_size(dtype));
    if (!made.data) exit(EXIT_FAILURE);
    return made;
}
#define TENSOR(t, dtype, ...)                                                                      \
    tensor(t, dtype, (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                \
           (const int64_t[]){__VA_ARGS__})

static ejk_tensor filled(struct trial *t, ejk_tensor made, double size) {
    for (int64_t i = 0; i < ejk_tensor_count(&made); i++)
        element_store(made.dtype, made.data, i, size * random_normal(&t->random));
    return made;
}

static int64_t most(const int64_t *list, int64_t count) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) found = list[i] > found ? list[i] : found;
    return found;
}

/* Lengths, and pages in random order; answers how many pages there are. */
static int64_t lay_out(struct trial *t, const struct shape *s, ejk_tensor *lengths,
                       ejk_tensor *starts, ejk_tensor *tables, int64_t columns) {
    const int64_t pages = s->sequences * columns;
    *lengths = TENSOR(t, EJK_DTYPE_I32, s->sequences);
    *starts = TENSOR(t, EJK_DTYPE_I32, s->sequences + 1);
    *tables = TENSOR(t, EJK_DTYPE_I32, s->sequences, columns);
    int32_t *length = lengths->data, *start = starts->data, *table = tables->data;
    for (int64_t n = 0; n < s->sequences; n++) {
        length[n] = (int32_t)s->keys[n];
        start[n + 1] = start[n] + (int32_t)s->rows[n];
    }
    for (int64_t i = 0; i < pages; i++) {
        const int64_t other = random_int(&t->random, 0, i);
        table[i] = table[other];
        table[other] = (int32_t)i;
    }
    return pages;
}

/* Of each row and head; a wrong block of keys shows there, where it would be lost in a sum over all. */
static void compare(struct trial *t, const struct shape *s, const ejk_tensor *got,
                    const ejk_tensor *right) {
    const int64_t width = s->dim, lines = ejk_tensor_count(right) / width;
    double worst = 0;
    for (int64_t line = 0; line < lines; line++) {
        double error = 0, size = 0;
        for (int64_t i = line * width; i < (line + 1) * width; i++) {
            const double x = element_load(got->dtype, got->data, i);
            const double y = element_load(right->dtype, right->data, i);
            error += (x - y) * (x - y);
            size += y * y;
        }
        const double part = sqrt(error / (size + 1e-30));
        worst = part > worst || isnan(part) ? part : worst;
    }
    const bool good = worst < 0.02;
    printf("%-4s %s %s: rows differ by %.2g at most\n", good ? "ok" : "FAIL", s->name,
           ejk_dtype_name(s->dtype), worst);
    t->failures += !good;
}

static size_t bytes_of(const ejk_tensor *t) {
    return (size_t)ejk_tensor_count(t) * ejk_dtype_size(t->dtype);
}

/* On the GPU, again and again, and on the CPU. */
static void try_call(struct trial *t, const struct shape *s, const ejk_kernel *kernel,
                     const void *args) {
    const ejk_field *field = ejk_record_find(kernel->args, "out", NULL);
    void *got = call_results(kernel->args, args), *first = NULL;
    const ejk_tensor *out = call_tensor(got, field);
    struct gpu_call call;
    char why[700] = "";
    gpu_call_open(&call, kernel->args, args, &t->random);
    for (int n = 0; n < REPEATS; n++) {
        need(gpu_call_run(&call, t->context, kernel));
        if (!gpu_call_take(&call, got, why, sizeof why)) fail(t, s, why);
        if (!first && !(first = malloc(bytes_of(out)))) exit(EXIT_FAILURE);
        if (n == 0) memcpy(first, out->data, bytes_of(out));
        if (memcmp(first, out->data, bytes_of(out)) != 0) fail(t, s, "other bits another time");
    }
    gpu_call_close(&call);
    need(ejk_call(t->context, kernel, args));
    compare(t, s, out, call_tensor(args, field));
    call_free_results(kernel->args, got);
    free(first);
}

static void free_all(struct trial *t) {
    while (t->used > 0) free(t->memory[--t->used]);
}

static void try_latents(struct trial *t, const struct shape *s) {
    enum { ROPE = 64 };
    const int64_t columns = (most(s->keys, s->sequences) + s->page - 1) / s->page;
    ejk_multi_latent_ragged_page_attention_args a = {.softmax_scale = ejk_float(0.06)};
    ejk_tensor tables;
    const int64_t pages = lay_out(t, s, &a.kv_lens, &a.query_start_loc, &tables, columns);
    const int64_t rows = ((int32_t *)a.query_start_loc.data)[s->sequences], entries[] = {pages};
    a.block_tables = ejk_tensor_contiguous(tables.data, EJK_DTYPE_I32, 1, entries);
    a.distribution = TENSOR(t, EJK_DTYPE_I32, 3);
    ((int32_t *)a.distribution.data)[2] = (int32_t)s->sequences;
    a.queries_nope = filled(t, TENSOR(t, s->dtype, rows, s->heads, s->dim), 1);
    a.queries_pe = filled(t, TENSOR(t, s->dtype, rows, s->heads, ROPE), 1);
    a.keys_values = filled(t, TENSOR(t, s->dtype, rows, s->dim), 1);
    a.keys_pe = filled(t, TENSOR(t, s->dtype, rows, ROPE), 1);
    a.kv_cache = filled(t, TENSOR(t, s->dtype, pages, s->page, s->dim + ROPE), 1);
    a.out = TENSOR(t, s->dtype, rows, s->heads, s->dim);
    try_call(t, s, &ejk_multi_latent_ragged_page_attention_kernel, &a);
    free_all(t);
}

static ejk_unified_attention_args paged_call(struct trial *t, const struct shape *s) {
    const int64_t columns = (most(s->keys, s->sequences) + s->page - 1) / s->page;
    ejk_unified_attention_args a = {.softmax_scale = ejk_float(0.1)};
    const int64_t pages = lay_out(t, s, &a.kv_lens, &a.query_start_loc, &a.block_tables, columns);
    const int64_t rows = ((int32_t *)a.query_start_loc.data)[s->sequences];
    a.query = filled(t, TENSOR(t, s->dtype, rows, s->heads, s->dim), 1);
    a.key_cache = filled(t, TENSOR(t, s->dtype, pages, s->page, s->kv_heads, s->dim), 1);
    a.value_cache = filled(t, TENSOR(t, s->dtype, pages, s->page, s->kv_heads, s->dim), 1);
    a.out = TENSOR(t, s->dtype, rows, s->heads, s->dim);
    return a;
}

static void try_paged(struct trial *t, const struct shape *s) {
    ejk_unified_attention_args a = paged_call(t, s);
    try_call(t, s, &ejk_unified_attention_kernel, &a);
    free_all(t);
}

static unsigned char *results_of(const struct gpu_call *call) {
    unsigned char *bytes = malloc(gpu_call_copy_results(call, NULL) + 1);
    if (!bytes) exit(EXIT_FAILURE);
    gpu_call_copy_results(call, bytes);
    return bytes;
}

/* Two calls with one workspace, one after the other in a graph: kernels of one begin while the other's still run. */
static void try_replays(struct trial *t, const struct shape *s) {
    const ejk_kernel *kernel = &ejk_unified_attention_kernel;
    ejk_unified_attention_args args[2] = {paged_call(t, s)};
    struct gpu_call calls[2];
    unsigned char *right[2];
    ejk_plan *plan = NULL;
    void *workspace = NULL;
    int64_t differ = 0;
    args[1] = args[0];
    args[1].query = filled(t, tensor(t, s->dtype, 3, args[0].query.shape), 1);
    args[1].out = tensor(t, s->dtype, 3, args[0].out.shape);
    const struct random same = t->random; /* the same strides, so that there is one plan */
    for (int n = 0; n < 2; n++) {
        struct random layout = same;
        gpu_call_open(&calls[n], kernel->args, &args[n], &layout);
        if (!plan) {
            need(ejk_plan_create(t->context, kernel, calls[n].args, &plan));
            need(ejk_device_allocate(0, ejk_plan_workspace(plan), &workspace));
        }
        need(ejk_plan_execute(plan, calls[n].args, workspace, ejk_plan_workspace(plan)));
        need(ejk_device_synchronise(0, NULL));
        right[n] = results_of(&calls[n]);
    }
    gpu_enter();
    void *stream = gpu_stream_create();
    gpu_graph_begin(stream);
    for (int n = 0; n < 2; n++)
        need(ejk_plan_execute_on(plan, calls[n].args, workspace, ejk_plan_workspace(plan), stream));
    struct gpu_graph graph = gpu_graph_end(stream);
    for (int64_t replay = 0; replay < REPLAYS; replay++) {
        gpu_graph_launch(&graph, stream);
        need(ejk_device_synchronise(0, stream));
        for (int n = 0; n < 2; n++) {
            unsigned char *got = results_of(&calls[n]);
            differ += memcmp(got, right[n], gpu_call_copy_results(&calls[n], NULL)) != 0;
            free(got);
        }
    }
    gpu_graph_destroy(&graph);
    gpu_stream_destroy(stream);
    gpu_leave();
    printf("%-4s %s: %lld of %d differ\n", differ ? "FAIL" : "ok", s->name, (long long)differ,
           2 * REPLAYS);
    t->failures += differ != 0;
    for (int n = 0; n < 2; n++) {
        gpu_call_close(&calls[n]);
        free(right[n]);
    }
    ejk_plan_destroy(plan);
    need(ejk_device_free(0, workspace));
    free_all(t);
}

int main(void) {
    struct trial t = {.random = {.state = 20}};
    if (!gpu_is_here()) return GPU_SKIPPED;
    need(ejk_context_create(NULL, &t.context));
    for (size_t i = 0; i < sizeof latents / sizeof *latents; i++) try_latents(&t, &latents[i]);
    for (size_t i = 0; i < sizeof paged / sizeof *paged; i++) try_paged(&t, &paged[i]);
    for (size_t i = 0; i < sizeof replayed / sizeof *replayed; i++) try_replays(&t, &replayed[i]);
    ejk_context_destroy(t.context);
    return t.failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
