/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention on the inputs of a real, small language model: both kinds of its layers, against the exact
 * answer, with the share of this processor's peak that is reached. Argument: the folder of the inputs.
 */
#include <ejkernel/ejkernel.h>

#include <math.h>
#include <stdio.h>

/* Of the norm of the difference to the norm of the answer: what rounding to float32 explains. */
#define LARGEST_ERROR 1e-6

enum { LAYERS = 2, REPETITIONS = 41, RUNS = 8 };

typedef struct layer {
    ejk_owned_tensor query, key, value, sinks, expected, out;
    ejk_flash_attention_args args;
} layer;

typedef struct figures {
    double error, largest; /* relative to the answer's norm and to its largest magnitude */
    double seconds, flops, share;
} figures;

/* ---- Inputs ---------------------------------------------------------------------------------------- */

static ejk_status load(const char *folder, int index, const char *what, ejk_owned_tensor *out) {
    char path[4096];
    snprintf(path, sizeof path, "%s/layer%d_%s.npy", folder, index, what);
    return ejk_tensor_load(path, out);
}

static ejk_status open_layer(const char *folder, int index, layer *l) {
    ejk_status status = load(folder, index, "query", &l->query);
    if (status == EJK_OK) status = load(folder, index, "key", &l->key);
    if (status == EJK_OK) status = load(folder, index, "value", &l->value);
    if (status == EJK_OK) status = load(folder, index, "sinks", &l->sinks);
    if (status == EJK_OK) status = load(folder, index, "output", &l->expected);
    if (status == EJK_OK)
        status = ejk_owned_tensor_create(EJK_DTYPE_F32, l->expected.tensor.rank,
                                         l->expected.tensor.shape, &l->out);
    l->args = (ejk_flash_attention_args){.query = l->query.tensor,
                                         .key = l->key.tensor,
                                         .value = l->value.tensor,
                                         .softmax_aux = l->sinks.tensor,
                                         .out = l->out.tensor,
                                         .causal = true,
                                         .logits_soft_cap = ejk_float(30)};
    if (index == 1) l->args.sliding_window = ejk_window_of(127, 0);
    return status;
}

static void close_layer(layer *l) {
    ejk_owned_tensor *all[] = {&l->query, &l->key, &l->value, &l->sinks, &l->expected, &l->out};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) ejk_owned_tensor_close(all[i]);
}

/* ---- Figures --------------------------------------------------------------------------------------- */

/* Both tensors are contiguous; the answer is float64. */
static void compare(const layer *l, figures *f) {
    const float *out = l->out.tensor.data;
    const double *expected = l->expected.tensor.data;
    double squares = 0, norm = 0, most = 0, largest = 0;
    for (int64_t i = 0; i < ejk_tensor_count(&l->out.tensor); i++) {
        double difference = fabs((double)out[i] - expected[i]);
        squares += difference * difference;
        norm += expected[i] * expected[i];
        /* Not fmax(), which would pass over a NaN. */
        if (!(difference <= most)) most = difference;
        largest = fmax(largest, fabs(expected[i]));
    }
    f->error = sqrt(squares / norm);
    f->largest = most / largest;
}

static void insert(double *sorted, int count, double value) {
    int i = count;
    for (; i > 0 && sorted[i - 1] > value; i--) sorted[i] = sorted[i - 1];
    sorted[i] = value;
}

/* Each batch of runs is seen against the peak right before and after it: clocks change all the time. */
static ejk_status measure(ejk_context *context, const ejk_plan *plan,
                          const ejk_flash_attention_args *args, figures *f) {
    ejk_isa isa = ejk_plan_implementation(plan)->isa;
    ejk_threads *threads = ejk_context_threads(context);
    double times[REPETITIONS], shares[REPETITIONS], before, after;
    f->flops = ejk_plan_cost(plan).flops;
    ejk_status status = ejk_measure_peak(threads, isa, EJK_DTYPE_F32, 0.05, &before);
    for (int i = 0; i < REPETITIONS && status == EJK_OK; i++) {
        double start = ejk_now();
        for (int run = 0; run < RUNS && status == EJK_OK; run++)
            status = ejk_plan_execute(plan, args, NULL, 0);
        double seconds = (ejk_now() - start) / RUNS;
        if (status == EJK_OK) status = ejk_measure_peak(threads, isa, EJK_DTYPE_F32, 0.015, &after);
        if (status != EJK_OK) break;
        insert(times, i, seconds);
        insert(shares, i, f->flops / seconds / ((before + after) / 2));
        before = after;
    }
    if (status == EJK_OK) {
        f->seconds = times[REPETITIONS / 2];
        f->share = shares[REPETITIONS / 2];
    }
    return status;
}

static ejk_status run_layer(ejk_context *context, const char *folder, int index, figures *f) {
    layer l = {0};
    ejk_plan *plan = NULL;
    ejk_status status = open_layer(folder, index, &l);
    if (status == EJK_OK)
        status = ejk_plan_create(context, &ejk_flash_attention_kernel, &l.args, &plan);
    if (status == EJK_OK) status = ejk_plan_execute(plan, &l.args, NULL, 0);
    if (status == EJK_OK) {
        compare(&l, f);
        status = measure(context, plan, &l.args, f);
    }
    ejk_plan_destroy(plan);
    close_layer(&l);
    return status;
}

int main(int count, char **words) {
    const char *folder = count > 1 ? words[1] : "examples/data/bytelm";
    ejk_context *context = NULL;
    ejk_status status = ejk_context_create(NULL, &context);
    int wrong = 0;
    if (status == EJK_OK)
        printf("%s, %d threads\n"
               "layer  relative error  maximum error       time  GFLOP/s  share of peak\n",
               ejk_cpu()->name, (int)ejk_threads_count(ejk_context_threads(context)));
    for (int i = 0; i < LAYERS && status == EJK_OK; i++) {
        figures f = {0};
        status = run_layer(context, folder, i, &f);
        if (status != EJK_OK) break;
        printf("%5d  %14.3g  %13.3g  %7.3f ms  %7.1f  %11.1f %%\n", i, f.error, f.largest,
               1e3 * f.seconds, f.flops / f.seconds * 1e-9, 100 * f.share);
        wrong += !(f.error <= LARGEST_ERROR);
    }
    if (status != EJK_OK) fprintf(stderr, "%s: %s\n", ejk_status_name(status), ejk_last_error());
    if (wrong)
        fprintf(stderr, "%d layers are further from the answer than %g\n", wrong, LARGEST_ERROR);
    ejk_context_destroy(context);
    return status == EJK_OK && wrong == 0 ? 0 : 1;
}
