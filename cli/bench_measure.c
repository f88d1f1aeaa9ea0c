/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a case is measured. Clocks change by tens of percent within a second and neighbours come and go, so
 * a time says little by itself, and a ceiling measured a minute ago says nothing. Therefore ceilings and
 * batches of runs alternate closely,
 *
 *     ceiling, batch, ceiling, batch, ceiling, …
 *
 * and each batch counts as a share of the mean of the two ceilings around it. Reported is the median of
 * these shares, never a quotient of numbers from different moments. A repetition that was disturbed does not
 * count: one in which a thread waited for its core (bench_watch.c), in the batch or in a ceiling beside it, or around
 * which the second hardware thread of a core was busy. Where all were disturbed, all count, and the report says so.
 *
 * The arithmetic ceiling is that of the implementation's own tier and type, on as many threads as the
 * call was offered. The memory ceiling is reading a buffer as large as all inputs together; where these
 * rotate it is taken around every batch, else before the first and after the last.
 */
#include "bench.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* A batch is long against the clock's resolution and a thread's waking up, short against a change of clock. */
#define BATCH_SECONDS   0.020
#define CEILING_SECONDS 0.015
#define SHARE_SECONDS   0.003

/* Cores that give less than this are shared (device.h). Disturbed ones were seen at 0.70 to 0.93. */
#define UNDISTURBED 0.97

/* Part of the time that a thread may wait for its core: what a kernel does for itself takes less. */
#define MOST_LOST 0.01

#define LEAST_REPETITIONS 3

/* A repetition. */
typedef struct sample {
    double time, share, ceiling, memory_share, memory_ceiling;
    double core_share;      /* the lesser of before and after; NaN = not known */
    double lost;            /* the most of batches and ceilings */
    double over_beside;     /* time for a FLOP over that of the call beside; only if there is one */
    double peer, over_peer; /* the peer's time, and own time over it */
    bool counts;
} sample;

typedef struct samples {
    sample *list;
    double *values; /* room for one of each */
    int32_t count;
} samples;

typedef struct ceilings {
    double flops, bytes;
    double core_share[2]; /* when their measurement began and when it ended */
    double lost;          /* of the time of the measurement */
} ceilings;

/* Where ceilings are measured. */
typedef struct ceiling_meter {
    ejk_threads *threads;
    ejk_isa isa;
    ejk_dtype dtype;
    void *buffer;
    int64_t bytes;
    bench_watch watch;
} ceiling_meter;

/* What is run in turn with the case, and how often for a batch of it. */
typedef struct turns {
    bench_case *other; /* or NULL */
    bench_peer *peer;  /* or NULL */
    bench_watch watch; /* of the peer's threads */
    int64_t runs, peer_runs;
} turns;

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
    *out = (samples){.list = calloc(BENCH_MOST_REPETITIONS, sizeof *out->list),
                     .values = calloc(BENCH_MOST_REPETITIONS, sizeof *out->values)};
    return (out->list && out->values) || report_error("no memory for the measurements");
}

static void close_samples(samples *all) {
    free(all->list);
    free(all->values);
}

/* That of one member, over the repetitions that count. */
static double quantile_of(const samples *all, size_t member, double part) {
    int32_t count = 0;
    for (int32_t i = 0; i < all->count; i++)
        if (all->list[i].counts)
            all->values[count++] = *(const double *)((const char *)&all->list[i] + member);
    return bench_quantile(all->values, count, part);
}

#define QUANTILE(all, member, part) quantile_of(all, offsetof(sample, member), part)

/* Decides which repetitions count; how many there are that nothing disturbed. */
static int32_t choose_counted(samples *all) {
    int32_t undisturbed = 0;
    for (int32_t i = 0; i < all->count; i++) {
        sample *s = &all->list[i];
        s->counts = s->lost <= MOST_LOST && !(s->core_share < UNDISTURBED);
        undisturbed += s->counts;
    }
    for (int32_t i = 0; i < all->count && undisturbed == 0; i++) all->list[i].counts = true;
    return undisturbed;
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
static bool read_ceilings(ceiling_meter *meter, bool memory, ceilings *out) {
    bench_watch_lost(&meter->watch);
    const bool read =
        read_core_share(meter, &out->core_share[0]) && read_flops(meter, &out->flops) &&
        (!memory || read_bytes(meter, &out->bytes)) && read_core_share(meter, &out->core_share[1]);
    out->lost = bench_watch_lost(&meter->watch);
    return read;
}

/*
 * The element type that the implementation multiplies in: f32, unless its tier has products of bytes or of bf16. These
 * are for bf16, or for types of 8 bits in a kernel that is called after them.
 */
static ejk_dtype ceiling_dtype(const ejk_implementation *chosen) {
    if (chosen->dtype == EJK_DTYPE_F64) return EJK_DTYPE_F64;
    const char *kernel = strrchr(chosen->name, '/');
    if (!kernel) kernel = "";
    if (strcmp(kernel, "/bytes") == 0) return EJK_DTYPE_I8;
    const bool products = chosen->isa == EJK_ISA_AMX || chosen->isa == EJK_ISA_AVX512_BF16;
    const bool by_name = strcmp(kernel, "/matrix") == 0 || strcmp(kernel, "/pairs") == 0;
    return products && (chosen->dtype == EJK_DTYPE_BF16 || by_name) ? EJK_DTYPE_BF16
                                                                    : EJK_DTYPE_F32;
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

static void add_sample(const ejk_cost *cost, double time, double lost, const ceilings *before,
                       const ceilings *after, samples *all) {
    const double flops = (before->flops + after->flops) / 2;
    const double bytes = (before->bytes + after->bytes) / 2;
    all->list[all->count++] =
        (sample){.time = time,
                 .ceiling = flops,
                 .memory_ceiling = bytes,
                 .share = cost->flops / time / flops,
                 .memory_share = cost->bytes / time / bytes,
                 .core_share = fmin(before->core_share[1], after->core_share[0]),
                 .lost = fmax(lost, fmax(before->lost, after->lost))};
}

/* The last ceiling of memory, where it is not taken around each batch, comes after all. */
static bool finish_memory(const ceiling_meter *meter, const ejk_cost *cost, double first,
                          samples *all) {
    double last;
    if (!read_bytes(meter, &last)) return false;
    for (int32_t i = 0; i < all->count; i++) {
        sample *s = &all->list[i];
        s->memory_ceiling = (first + last) / 2;
        s->memory_share = cost->bytes / s->time / s->memory_ceiling;
    }
    return true;
}

static double per_flop(double seconds, const ejk_cost *cost) {
    return cost->flops > 0 ? seconds / cost->flops : seconds;
}

/* Batches of what is measured in turn, right after one of the case, which was the last sample. */
static bool take_turns(const bench_case *bench, turns *others, ceiling_meter *meter, samples *all) {
    double time;
    sample *last = &all->list[all->count - 1];
    if (others->other) {
        bench_watch_lost(&meter->watch);
        if (!run_batch(others->other, others->runs, &time)) return false;
        last->over_beside =
            per_flop(last->time, &bench->cost) / per_flop(time, &others->other->cost);
        last->lost = fmax(last->lost, bench_watch_lost(&meter->watch));
    }
    if (others->peer) {
        bench_watch_lost(&others->watch);
        if (!bench_peer_run(others->peer, others->peer_runs, false, &last->peer)) return false;
        last->over_peer = last->time / last->peer;
        last->lost = fmax(last->lost, bench_watch_lost(&others->watch));
    }
    return true;
}

static bool repeat(bench_case *bench, turns *others, ceiling_meter *meter,
                   const bench_options *wish, const bench_result *facts, samples *all) {
    ceilings before, after;
    if (!read_ceilings(meter, true, &before)) return false;
    double first = before.bytes, end = ejk_now() + wish->seconds;
    int32_t least = wish->repeat ? wish->repeat : LEAST_REPETITIONS;
    int32_t most = wish->repeat ? wish->repeat : BENCH_MOST_REPETITIONS;
    while (all->count < least || (all->count < most && ejk_now() < end)) {
        double time;
        after = before;
        bench_watch_lost(&meter->watch);
        if (!run_batch(bench, facts->runs, &time)) return false;
        const double lost = bench_watch_lost(&meter->watch);
        if (!read_ceilings(meter, facts->cold, &after)) return false;
        add_sample(&facts->cost, time, lost, &before, &after, all);
        before = after;
        if (others->other || others->peer) {
            if (!take_turns(bench, others, meter, all) ||
                !read_ceilings(meter, facts->cold, &before))
                return false;
        }
    }
    return facts->cold || finish_memory(meter, &facts->cost, first, all);
}

#define QUOTIENT(all, member)                                                                      \
    (bench_quotient) {                                                                             \
        QUANTILE(all, member, 0.5), QUANTILE(all, member, 0.1), QUANTILE(all, member, 0.9)         \
    }

static void summarise(samples *all, bench_result *out) {
    out->repetitions = all->count;
    out->undisturbed = choose_counted(all);
    out->over_beside = QUOTIENT(all, over_beside);
    out->over_peer = QUOTIENT(all, over_peer);
    out->peer_time = QUANTILE(all, peer, 0.5);
    out->time = QUANTILE(all, time, 0.5);
    out->time_p10 = QUANTILE(all, time, 0.1);
    out->time_p90 = QUANTILE(all, time, 0.9);
    out->lost = QUANTILE(all, lost, 0.5);
    out->core_share = QUANTILE(all, core_share, 0.5);
    out->compute = (bench_rate){.rate = out->cost.flops / out->time,
                                .ceiling = QUANTILE(all, ceiling, 0.5),
                                .share = QUANTILE(all, share, 0.5),
                                .share_max = QUANTILE(all, share, 1)};
    out->memory = (bench_rate){.rate = out->cost.bytes / out->time,
                               .ceiling = QUANTILE(all, memory_ceiling, 0.5),
                               .share = QUANTILE(all, memory_share, 0.5),
                               .share_max = QUANTILE(all, memory_share, 1)};
}

/* Warms a peer; its batches are as long as the case's. */
static bool open_peer(turns *others) {
    double time = 0;
    others->peer_runs = 1;
    for (int i = 0; i < 2; i++) {
        if (!bench_peer_run(others->peer, others->peer_runs, false, &time)) return false;
        others->peer_runs = (int64_t)fmax(ceil(BATCH_SECONDS / fmax(time, 1e-9)), 1);
    }
    return bench_watch_open(bench_peer_process(others->peer), &others->watch);
}

static bool measure(bench_case *bench, turns *others, ceiling_meter *meter,
                    const bench_options *wish, bench_result *out) {
    samples all = {0};
    const double warming = fmin(0.2, wish->seconds / 4);
    const bool measured = open_samples(&all) && warm_up(bench, warming, &out->runs) &&
                          (!others->other || warm_up(others->other, warming, &others->runs)) &&
                          (!others->peer || open_peer(others)) &&
                          bench_watch_open(0, &meter->watch) &&
                          repeat(bench, others, meter, wish, out, &all);
    if (measured) summarise(&all, out);
    close_samples(&all);
    bench_watch_close(&others->watch);
    bench_watch_close(&meter->watch);
    return measured;
}

bool bench_measure(bench_case *bench, const bench_beside *beside, ejk_context *context,
                   const bench_options *wish, bench_result *out) {
    turns others = {.other = beside->other, .peer = beside->peer};
    ceiling_meter meter;
    out->cost = bench->cost;
    out->writes = bench_case_writes(bench);
    out->threads = ejk_threads_count(ejk_context_threads(context));
    out->copies = bench->copies;
    out->cold = bench->cold;
    if (!open_meter(bench, context, &meter)) return false;
    out->rotated_bytes = meter.bytes;
    const bool measured = measure(bench, &others, &meter, wish, out);
    free(meter.buffer);
    return measured;
}

/* ---- Host cost ------------------------------------------------------------------------------------- */

enum { HOST_BATCHES = 31, HOST_CALLS = 2000 };

/* Batches of half a millisecond; one way's after another's. */
typedef struct host_samples {
    double time[BENCH_WAYS][HOST_BATCHES];
    bool undisturbed[HOST_BATCHES];
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
                        bench_watch *watch, host_samples *all) {
    const ceiling_meter meter = {.threads = ejk_context_threads(context)};
    double before, after, time[BENCH_WAYS];
    for (int batch = -1; batch < HOST_BATCHES; batch++) { /* the first one warms up */
        if (batch <= 0 && !read_core_share(&meter, &before)) return false;
        bench_watch_lost(watch);
        for (int way = 0; way < BENCH_WAYS; way++)
            if (!run_host_batch(tiny, context, executor, way, &time[way])) return false;
        const double lost = bench_watch_lost(watch);
        if (!read_core_share(&meter, &after)) return false;
        if (batch >= 0) {
            for (int way = 0; way < BENCH_WAYS; way++) all->time[way][batch] = time[way];
            all->undisturbed[batch] = lost <= MOST_LOST && !(fmin(before, after) < UNDISTURBED);
        }
        before = after;
    }
    return true;
}

/* Over undisturbed batches, or all where there are none. */
static void summarise_host(const host_samples *all, bench_host *out) {
    double counted[HOST_BATCHES];
    out->batches = HOST_BATCHES;
    out->undisturbed = 0;
    for (int batch = 0; batch < HOST_BATCHES; batch++) out->undisturbed += all->undisturbed[batch];
    for (int way = 0; way < BENCH_WAYS; way++) {
        int32_t count = 0;
        for (int batch = 0; batch < HOST_BATCHES; batch++)
            if (all->undisturbed[batch] || out->undisturbed == 0)
                counted[count++] = all->time[way][batch];
        out->seconds[way] = bench_quantile(counted, count, 0.5);
    }
}

bool bench_measure_host(bench_case *tiny, ejk_context *context, bench_host *out) {
    ejk_config_selector_chain *chain = NULL;
    ejk_executor *executor = NULL;
    bench_watch watch = {.count = 0};
    host_samples all;
    bool measured =
        succeeded(ejk_config_selector_chain_create(NULL, &chain)) &&
        succeeded(
            ejk_executor_create(context, &(ejk_executor_options){.selector = chain}, &executor)) &&
        bench_watch_open(0, &watch) && repeat_host(tiny, context, executor, &watch, &all);
    if (measured) summarise_host(&all, out);
    bench_watch_close(&watch);
    ejk_executor_destroy(executor);
    ejk_config_selector_chain_destroy(chain);
    return measured;
}
