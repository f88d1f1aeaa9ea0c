/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a case is measured. Clocks change by tens of percent within a second and neighbours come and go, so
 * a time says little by itself, and a ceiling measured a minute ago says nothing. Therefore ceilings and
 * batches of runs alternate closely,
 *
 *     ceiling, batch, ceiling, batch, ceiling, …
 *
 * and each batch counts as a share of the mean of the two ceilings around it. Reported is the median of
 * these shares, never a quotient of numbers from different moments. A short look before and after each
 * batch tells whether another program ran on the same cores; the median of the repetitions where none did is
 * reported besides, never instead.
 *
 * The arithmetic ceiling is that of the implementation's own tier and type, on as many threads as the
 * call was offered. The memory ceiling is reading a buffer as large as all inputs together; where these
 * rotate it is taken around every batch, else before the first and after the last.
 */
#include "bench.h"

#include <math.h>
#include <stdlib.h>

/* A batch is long against the clock's resolution and a thread's waking up, short against a change of clock. */
#define BATCH_SECONDS   0.020
#define CEILING_SECONDS 0.015
#define SHARE_SECONDS   0.003

/* Cores that give less than this are shared (device.h). Disturbed ones were seen at 0.70 to 0.93. */
#define UNDISTURBED 0.97

#define LEAST_REPETITIONS 3

/* Values of all repetitions. */
typedef struct samples {
    double *time, *share, *ceiling, *memory_share, *memory_ceiling;
    double *core_share; /* the lesser of before and after; NaN = not known */
    double
        *over_plain; /* time per visible score over that of the plain call; only if there is one */
    int32_t count;
} samples;

typedef struct ceilings {
    double flops, bytes;
    double core_share[2]; /* when their measurement began and when it ended */
} ceilings;

/* Where ceilings are measured. */
typedef struct ceiling_meter {
    ejk_threads *threads;
    ejk_isa isa;
    ejk_dtype dtype;
    void *buffer;
    int64_t bytes;
} ceiling_meter;

/* A case that is measured in turn with another. */
typedef struct beside {
    bench_case *plain; /* or NULL */
    int64_t runs;
} beside;

/* ---- Statistics ------------------------------------------------------------------------------------ */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(double *values, int32_t count, double part) {
    if (count == 0) return 0;
    qsort(values, (size_t)count, sizeof *values, by_value);
    double place = part * (count - 1);
    int32_t below = (int32_t)place, above = below + 1 < count ? below + 1 : below;
    return values[below] + (place - below) * (values[above] - values[below]);
}

static bool open_samples(samples *out) {
    double *all = calloc((size_t)7 * BENCH_MOST_REPETITIONS, sizeof *all);
    if (!all) return complain("no memory for the measurements");
    *out = (samples){.time = all,
                     .share = all + BENCH_MOST_REPETITIONS,
                     .ceiling = all + 2 * BENCH_MOST_REPETITIONS,
                     .memory_share = all + 3 * BENCH_MOST_REPETITIONS,
                     .memory_ceiling = all + 4 * BENCH_MOST_REPETITIONS,
                     .core_share = all + 5 * BENCH_MOST_REPETITIONS,
                     .over_plain = all + 6 * BENCH_MOST_REPETITIONS};
    return true;
}

/* ---- Ceilings -------------------------------------------------------------------------------------- */

/* NaN where there is no way to tell. */
static bool read_core_share(const ceiling_meter *meter, double *out) {
    *out = NAN;
    return !ejk_cpu()->tiers[EJK_ISA_AVX2] ||
           succeeded(ejk_measure_core_share(meter->threads, SHARE_SECONDS, out));
}

static bool read_flops(const ceiling_meter *meter, double *out) {
    return succeeded(
        ejk_measure_peak(meter->threads, meter->isa, meter->dtype, CEILING_SECONDS, out));
}

static bool read_bytes(const ceiling_meter *meter, double *out) {
    return succeeded(ejk_measure_read_bandwidth(meter->threads, meter->buffer, meter->bytes,
                                                CEILING_SECONDS, out));
}

/* What stands between two batches; the ceiling of memory only if asked for. */
static bool read_ceilings(const ceiling_meter *meter, bool memory, ceilings *out) {
    return read_core_share(meter, &out->core_share[0]) && read_flops(meter, &out->flops) &&
           (!memory || read_bytes(meter, &out->bytes)) &&
           read_core_share(meter, &out->core_share[1]);
}

/* The element type that the implementation multiplies in: f32, unless its tier has products of bf16. */
static ejk_dtype ceiling_dtype(const ejk_implementation *chosen) {
    if (chosen->dtype == EJK_DTYPE_F64) return EJK_DTYPE_F64;
    const bool products = chosen->isa == EJK_ISA_AMX || chosen->isa == EJK_ISA_AVX512_BF16;
    if (chosen->dtype == EJK_DTYPE_BF16 && products) return EJK_DTYPE_BF16;
    return EJK_DTYPE_F32;
}

static bool open_meter(const bench_case *bench, ejk_context *context, ceiling_meter *out) {
    const ejk_implementation *chosen = ejk_plan_implementation(bench->plan);
    const int32_t threads = ejk_threads_count(ejk_context_threads(context));
    int64_t bytes = bench->cold ? bench->input_bytes : ejk_rotation_bytes(threads);
    int64_t least = 64 * (int64_t)threads;
    *out = (ceiling_meter){.threads = ejk_context_threads(context),
                           .isa = chosen->isa,
                           .dtype = ceiling_dtype(chosen),
                           .bytes = bytes < least ? least : bytes};
    out->buffer = bench_allocate(out->bytes);
    return out->buffer != NULL;
}

/* ---- Runs ------------------------------------------------------------------------------------------ */

/* A batch begins with the states of the first; within it they go on as they do in use. */
static bool run_batch(bench_case *bench, int64_t runs, double *seconds) {
    if (!bench_case_restore(bench)) return false;
    double start = ejk_now();
    for (int64_t i = 0; i < runs; i++)
        if (!bench_case_run(bench)) return false;
    *seconds = (ejk_now() - start) / (double)runs;
    return true;
}

/* Warms caches, threads and clock; says how many runs fill a batch. */
static bool warm_up(bench_case *bench, double seconds, int64_t *runs) {
    double start = ejk_now(), time;
    *runs = 1;
    do {
        if (!run_batch(bench, *runs, &time)) return false;
        double needed = ceil(BATCH_SECONDS / fmax(time, 1e-9));
        *runs = (int64_t)fmin(fmax(needed, 1), 2 * (double)*runs);
    } while (ejk_now() - start < seconds || time * (double)*runs < BATCH_SECONDS / 2);
    return true;
}

static void add_sample(const ejk_cost *cost, double time, const ceilings *before,
                       const ceilings *after, samples *all) {
    int32_t i = all->count++;
    all->time[i] = time;
    all->ceiling[i] = (before->flops + after->flops) / 2;
    all->memory_ceiling[i] = (before->bytes + after->bytes) / 2;
    all->share[i] = cost->flops / time / all->ceiling[i];
    all->memory_share[i] = cost->bytes / time / all->memory_ceiling[i];
    const double just_before = before->core_share[1], just_after = after->core_share[0];
    all->core_share[i] = just_before < just_after ? just_before : just_after;
}

/* The last ceiling of memory, where it is not taken around each batch, comes after all. */
static bool finish_memory(const ceiling_meter *meter, const ejk_cost *cost, double first,
                          samples *all) {
    double last;
    if (!read_bytes(meter, &last)) return false;
    for (int32_t i = 0; i < all->count; i++) {
        all->memory_ceiling[i] = (first + last) / 2;
        all->memory_share[i] = cost->bytes / all->time[i] / all->memory_ceiling[i];
    }
    return true;
}

/* A batch of the plain call, right after one of the case, which was the last sample. */
static bool run_plain(const bench_case *bench, bench_case *plain, int64_t runs, samples *all) {
    double time;
    if (!run_batch(plain, runs, &time)) return false;
    all->over_plain[all->count - 1] =
        all->time[all->count - 1] / time * plain->scores / bench->scores;
    return true;
}

static bool repeat(bench_case *bench, const beside *other, const ceiling_meter *meter,
                   const bench_options *wish, const bench_result *facts, samples *all) {
    ceilings before, after;
    if (!read_ceilings(meter, true, &before)) return false;
    double first = before.bytes, end = ejk_now() + wish->seconds;
    int32_t least = wish->repeat ? wish->repeat : LEAST_REPETITIONS;
    int32_t most = wish->repeat ? wish->repeat : BENCH_MOST_REPETITIONS;
    while (all->count < least || (all->count < most && ejk_now() < end)) {
        double time;
        after = before;
        if (!run_batch(bench, facts->runs, &time) || !read_ceilings(meter, facts->cold, &after))
            return false;
        add_sample(&facts->cost, time, &before, &after, all);
        before = after;
        if (other->plain && (!run_plain(bench, other->plain, other->runs, all) ||
                             !read_ceilings(meter, facts->cold, &before)))
            return false;
    }
    return facts->cold || finish_memory(meter, &facts->cost, first, all);
}

/* The values of undisturbed repetitions; how many there are. */
static int32_t pick_undisturbed(const double *core_share, int32_t count, const double *values,
                                double *out) {
    int32_t picked = 0;
    for (int32_t i = 0; i < count; i++)
        if (core_share[i] >= UNDISTURBED) out[picked++] = values[i];
    return picked;
}

/* Sorts ceilings and shares. */
static bench_rate rate_of(const samples *all, double amount, double time, double *ceilings_,
                          double *shares) {
    double undisturbed[BENCH_MOST_REPETITIONS];
    const int32_t count = pick_undisturbed(all->core_share, all->count, shares, undisturbed);
    return (bench_rate){.rate = amount / time,
                        .ceiling = bench_quantile(ceilings_, all->count, 0.5),
                        .share = bench_quantile(shares, all->count, 0.5),
                        .share_max = bench_quantile(shares, all->count, 1),
                        .share_undisturbed = bench_quantile(undisturbed, count, 0.5)};
}

static int32_t count_undisturbed(const samples *all) {
    int32_t count = 0;
    for (int32_t i = 0; i < all->count; i++) {
        if (isnan(all->core_share[i])) return -1;
        count += all->core_share[i] >= UNDISTURBED;
    }
    return count;
}

static void summarise(samples *all, bool beside_plain, bench_result *out) {
    const int32_t compared = beside_plain ? all->count : 0;
    out->over_plain = bench_quantile(all->over_plain, compared, 0.5);
    out->over_plain_p10 = bench_quantile(all->over_plain, compared, 0.1);
    out->over_plain_p90 = bench_quantile(all->over_plain, compared, 0.9);
    out->repetitions = all->count;
    out->undisturbed = count_undisturbed(all);
    out->time = bench_quantile(all->time, all->count, 0.5);
    out->time_p10 = bench_quantile(all->time, all->count, 0.1);
    out->time_p90 = bench_quantile(all->time, all->count, 0.9);
    out->compute = rate_of(all, out->cost.flops, out->time, all->ceiling, all->share);
    out->memory = rate_of(all, out->cost.bytes, out->time, all->memory_ceiling, all->memory_share);
}

static json_t *describe(const ejk_plan *plan) {
    char *text;
    if (!succeeded(ejk_plan_describe(plan, &text))) return NULL;
    json_t *description = json_loads(text, 0, NULL);
    ejk_free(text);
    if (!description) complain("no memory for the description of a plan");
    return description;
}

bool bench_measure(bench_case *bench, bench_case *plain, ejk_context *context,
                   const bench_options *wish, bench_result *out) {
    out->plan = describe(bench->plan);
    if (!out->plan) return false;
    out->cost = bench->cost;
    out->scores = bench->scores;
    out->threads = ejk_threads_count(ejk_context_threads(context));
    out->copies = bench->copies;
    out->cold = bench->cold;
    ceiling_meter meter;
    if (!open_meter(bench, context, &meter)) return false;
    out->rotated_bytes = meter.bytes;
    samples all = {0};
    beside other = {.plain = plain};
    const double warming = fmin(0.2, wish->seconds / 4);
    bool measured = open_samples(&all) && warm_up(bench, warming, &out->runs) &&
                    (!plain || warm_up(plain, warming, &other.runs)) &&
                    repeat(bench, &other, &meter, wish, out, &all);
    if (measured) summarise(&all, plain != NULL, out);
    free(all.time);
    free(meter.buffer);
    return measured;
}

/* ---- Host cost ------------------------------------------------------------------------------------- */

enum { HOST_BATCHES = 31, HOST_CALLS = 2000 };

/* Batches of half a millisecond; one way's after another's, between two looks at the cores. */
typedef struct host_samples {
    double time[BENCH_WAYS][HOST_BATCHES];
    double core_share[HOST_BATCHES];
} host_samples;

static bool run_host_batch(bench_case *tiny, ejk_context *context, ejk_executor *executor, int way,
                           double *seconds) {
    const ejk_kernel *kernel = tiny->call.kernel;
    const void *args = tiny->args[0];
    double start = ejk_now();
    for (int i = 0; i < HOST_CALLS; i++) {
        ejk_status status = way == BENCH_PLAN   ? ejk_plan_execute(tiny->plan, args, NULL, 0)
                            : way == BENCH_CALL ? ejk_call(context, kernel, args)
                                                : ejk_executor_call(executor, kernel, args, NULL);
        if (status != EJK_OK) return succeeded(status);
    }
    *seconds = (ejk_now() - start) / HOST_CALLS;
    return true;
}

static bool repeat_host(bench_case *tiny, ejk_context *context, ejk_executor *executor,
                        host_samples *all) {
    const ceiling_meter meter = {.threads = ejk_context_threads(context)};
    double before, after, time[BENCH_WAYS];
    for (int batch = -1; batch < HOST_BATCHES; batch++) { /* the first one warms up */
        if (batch <= 0 && !read_core_share(&meter, &before)) return false;
        for (int way = 0; way < BENCH_WAYS; way++)
            if (!run_host_batch(tiny, context, executor, way, &time[way])) return false;
        if (!read_core_share(&meter, &after)) return false;
        if (batch >= 0) {
            for (int way = 0; way < BENCH_WAYS; way++) all->time[way][batch] = time[way];
            all->core_share[batch] = before < after ? before : after;
        }
        before = after;
    }
    return true;
}

static void summarise_host(host_samples *all, bench_host *out) {
    double undisturbed[HOST_BATCHES];
    out->batches = HOST_BATCHES;
    for (int way = 0; way < BENCH_WAYS; way++) {
        out->undisturbed =
            pick_undisturbed(all->core_share, HOST_BATCHES, all->time[way], undisturbed);
        out->seconds_undisturbed[way] = bench_quantile(undisturbed, out->undisturbed, 0.5);
        out->seconds[way] = bench_quantile(all->time[way], HOST_BATCHES, 0.5);
    }
    if (isnan(all->core_share[0])) out->undisturbed = -1;
}

bool bench_measure_host(bench_case *tiny, ejk_context *context, bench_host *out) {
    ejk_config_selector_chain *chain = NULL;
    ejk_executor *executor = NULL;
    host_samples all;
    bool measured = succeeded(ejk_config_selector_chain_create(NULL, &chain)) &&
                    succeeded(ejk_executor_create(
                        context, &(ejk_executor_options){.selector = chain}, &executor)) &&
                    repeat_host(tiny, context, executor, &all);
    if (measured) summarise_host(&all, out);
    ejk_executor_destroy(executor);
    ejk_config_selector_chain_destroy(chain);
    return measured;
}
