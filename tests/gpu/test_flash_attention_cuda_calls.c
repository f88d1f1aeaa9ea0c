/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same call with tensors on the CPU and on a GPU, by the library's own choice of kernel and configuration: results
 * and gradients agree. Sizes are those at which the configurations differ. Answers 77 where there is no GPU.
 */
#include "support/gpu_driver.h"
#include "support/random.h"

#include <ejkernel/ejkernel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TENSORS = 16 };

static void need(ejk_status status, const char *doing) {
    if (status == EJK_OK) return;
    printf("FAIL %s: %s\n", doing, ejk_last_error());
    exit(EXIT_FAILURE);
}

/* Tensors of a call on the CPU, and the same on the GPU. */
struct world {
    ejk_tensor here[MOST_TENSORS], there[MOST_TENSORS];
    int count;
    struct random random;
};

/* Adds a tensor of normal numbers; returns its index. */
static int add(struct world *w, ejk_dtype dtype, int64_t b, int64_t t, int64_t h, int64_t d) {
    const int64_t shape[] = {b, t, h, d}, count = b * t * h * d;
    float *values = malloc((size_t)count * sizeof *values);
    void *memory = calloc((size_t)count, ejk_dtype_size(dtype)), *copy;
    if (!values || !memory) abort();
    for (int64_t i = 0; i < count; i++) values[i] = (float)random_normal(&w->random);
    const ejk_tensor wide = ejk_tensor_contiguous(values, EJK_DTYPE_F32, 4, shape);
    w->here[w->count] = ejk_tensor_contiguous(memory, dtype, 4, shape);
    need(ejk_tensor_copy(&wide, &w->here[w->count]), "copying");
    need(ejk_device_allocate(0, (size_t)count * ejk_dtype_size(dtype), &copy), "allocating");
    w->there[w->count] = ejk_device_tensor(copy, 0, dtype, 4, shape);
    need(ejk_device_copy(&w->here[w->count], &w->there[w->count], NULL), "copying to the GPU");
    free(values);
    return w->count++;
}

static ejk_tensor rows(ejk_tensor t) {
    t.rank = 3;
    return t;
}

static double distance(struct world *w, int index) {
    const ejk_tensor *here = &w->here[index];
    const int64_t count = ejk_tensor_count(here);
    float *a = malloc((size_t)count * sizeof *a), *b = malloc((size_t)count * sizeof *b);
    if (!a || !b) abort();
    ejk_tensor of_a = ejk_tensor_contiguous(a, EJK_DTYPE_F32, here->rank, here->shape);
    ejk_tensor of_b = ejk_tensor_contiguous(b, EJK_DTYPE_F32, here->rank, here->shape);
    need(ejk_tensor_copy(here, &of_a), "copying");
    need(ejk_device_copy(&w->there[index], &of_b, NULL), "copying from the GPU");
    double error = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        error += pow((double)a[i] - (double)b[i], 2);
        size += pow((double)a[i], 2);
    }
    free(a);
    free(b);
    return sqrt(error / fmax(size, 1e-30));
}

struct shape {
    ejk_dtype dtype;
    int64_t b, t, s, hq, hkv, d;
    bool causal, bias;
};

static int try_shape(ejk_context *context, const struct shape *c) {
    static const char *const names[] = {"out", "lse", "d_query", "d_key", "d_value", "d_bias"};
    struct world w = {.random = {.state = 7}};
    const int q = add(&w, c->dtype, c->b, c->t, c->hq, c->d);
    const int k = add(&w, c->dtype, c->b, c->s, c->hkv, c->d);
    const int v = add(&w, c->dtype, c->b, c->s, c->hkv, c->d);
    const int g = add(&w, c->dtype, c->b, c->t, c->hq, c->d);
    const int bias = add(&w, c->dtype, 1, c->hq, c->t, c->s);
    const int out = add(&w, c->dtype, c->b, c->t, c->hq, c->d);
    const int lse = add(&w, EJK_DTYPE_F32, c->b, c->hq, c->t, 1);
    const int dq = add(&w, c->dtype, c->b, c->t, c->hq, c->d);
    const int dk = add(&w, c->dtype, c->b, c->s, c->hkv, c->d);
    const int dv = add(&w, c->dtype, c->b, c->s, c->hkv, c->d);
    const int db = add(&w, c->dtype, 1, c->hq, c->t, c->s);
    for (int side = 0; side < 2; side++) {
        const ejk_tensor *x = side ? w.there : w.here;
        ejk_flash_attention_args args = {.query = x[q], .key = x[k], .value = x[v], .out = x[out]};
        args.causal = c->causal;
        args.lse = rows(x[lse]);
        if (c->bias) args.bias = x[bias];
        need(ejk_flash_attention(context, &args), side ? "the call on the GPU" : "the call");
        ejk_flash_attention_vjp_args back = {.query = x[q], .key = x[k], .value = x[v]};
        back.causal = c->causal;
        back.out = x[out];
        back.lse = rows(x[lse]);
        back.d_out = x[g];
        back.d_query = x[dq];
        back.d_key = x[dk];
        back.d_value = x[dv];
        if (c->bias) back.bias = x[bias], back.d_bias = x[db];
        need(ejk_flash_attention_vjp(context, &back), side ? "gradients on the GPU" : "gradients");
    }
    need(ejk_device_synchronise(0, NULL), "waiting");
    const int results[] = {out, lse, dq, dk, dv, db};
    const double limit = c->dtype == EJK_DTYPE_F32    ? 1e-5
                         : c->dtype == EJK_DTYPE_BF16 ? 1.5e-2
                                                      : 2e-3;
    int failures = 0;
    for (int i = 0; i < 5 + c->bias; i++) {
        const double off = distance(&w, results[i]);
        const bool good = off <= (i == 1 ? 1e-4 : limit);
        failures += !good;
        if (!good)
            printf("FAIL %s B=%d T=%d S=%d Hq=%d Hkv=%d D=%d: %s is off by %.3g of itself\n",
                   ejk_dtype_name(c->dtype), (int)c->b, (int)c->t, (int)c->s, (int)c->hq,
                   (int)c->hkv, (int)c->d, names[i], off);
    }
    for (int i = 0; i < w.count; i++) {
        free(w.here[i].data);
        need(ejk_device_free(0, w.there[i].data), "freeing");
    }
    return failures;
}

int main(void) {
    static const struct shape shapes[] = {
        {EJK_DTYPE_F32, 2, 100, 130, 4, 2, 64, true, false},
        {EJK_DTYPE_F32, 1, 1, 3000, 4, 1, 80, false, true},
        {EJK_DTYPE_BF16, 2, 300, 300, 4, 2, 128, true, false},
        {EJK_DTYPE_BF16, 1, 1, 5000, 8, 2, 128, true, false},
        {EJK_DTYPE_BF16, 8, 520, 520, 16, 16, 64, false, false},
        {EJK_DTYPE_F16, 1, 33, 700, 6, 2, 256, true, true},
        {EJK_DTYPE_F16, 1, 20, 90, 2, 1, 300, false, false},
    };
    if (!gpu_is_here()) return GPU_SKIPPED;
    ejk_context *context = NULL;
    need(ejk_context_create(NULL, &context), "making a context");
    int failures = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        failures += try_shape(context, &shapes[i]);
    ejk_context_destroy(context);
    printf("%d calls, %d results that differ\n", (int)(sizeof shapes / sizeof *shapes), failures);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
