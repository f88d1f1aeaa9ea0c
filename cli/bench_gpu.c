/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a case is measured on a GPU: by events, alone and in a row (gpu_measure.h), and its ceilings in the same two
 * ways before and after it. What the host does is measured apart, as it goes on while the device works.
 */
#include "bench.h"

#include <stdlib.h>

/* The chip cools down to the clock that it starts with; without it the case before is felt. */
#define REST_S 0.5

/* ---- The device's times ------------------------------------------------------------------------------ */

static ejk_status enqueue(void *user) {
    bench_case *bench = user;
    return ejk_plan_execute(bench->plan, bench_case_next(bench), NULL, 0);
}

static bool measure(bench_case *bench, const bench_options *wish, ejk_gpu_times *out) {
    const ejk_gpu_measure_options options = {.device = bench->device,
                                             .stream = bench->stream,
                                             .graph = wish->graph,
                                             .repetitions = wish->repeat,
                                             .rows = wish->repeat,
                                             .row = wish->row,
                                             .pause_s = REST_S};
    return succeeded(ejk_gpu_measure(&options, enqueue, bench, out));
}

/* The type that the implementation multiplies in. */
static ejk_dtype ceiling_dtype(const ejk_plan *plan) {
    const ejk_implementation *chosen = ejk_plan_implementation(plan);
    const ejk_dtype dtype = chosen ? chosen->dtype : EJK_DTYPE_F32;
    return dtype == EJK_DTYPE_BF16 || dtype == EJK_DTYPE_F16 ? dtype : EJK_DTYPE_F32;
}

static bool read_ceilings(const bench_case *bench, ejk_gpu_ceiling *peak, ejk_gpu_ceiling *read) {
    return succeeded(ejk_gpu_measure_peak(bench->device, ceiling_dtype(bench->plan), peak)) &&
           succeeded(ejk_gpu_measure_bandwidth(bench->device, read));
}

static ejk_gpu_ceiling mean(ejk_gpu_ceiling a, ejk_gpu_ceiling b) {
    return (ejk_gpu_ceiling){(a.alone + b.alone) / 2, (a.in_a_row + b.in_a_row) / 2};
}

static double share(double amount, double seconds, double ceiling) {
    return seconds > 0 && ceiling > 0 ? amount / seconds / ceiling : 0;
}

/* The line's own numbers are those alone. */
static bench_rate rate(double amount, double seconds, double ceiling) {
    const double part = share(amount, seconds, ceiling);
    return (bench_rate){.rate = seconds > 0 ? amount / seconds : 0,
                        .ceiling = ceiling,
                        .share = part,
                        .share_max = part};
}

static void summarise(bench_result *out) {
    bench_gpu *gpu = &out->gpu;
    const ejk_gpu_times *times = &gpu->times;
    out->time = times->alone_s;
    out->time_p10 = times->alone_p10_s;
    out->time_p90 = times->alone_p90_s;
    out->repetitions = times->repetitions;
    out->runs = 1;
    out->undisturbed = -1;
    out->compute = rate(out->cost.flops, out->time, gpu->peak.alone);
    out->memory = rate(out->cost.bytes, out->time, gpu->read.alone);
    gpu->compute_share = share(out->cost.flops, times->in_a_row_s, gpu->peak.in_a_row);
    gpu->memory_share = share(out->cost.bytes, times->in_a_row_s, gpu->read.in_a_row);
    gpu->graph_compute_share = share(out->cost.flops, times->graph_s, gpu->peak.in_a_row);
    gpu->graph_memory_share = share(out->cost.bytes, times->graph_s, gpu->read.in_a_row);
}

/* Times for a FLOP over those of another call. */
static bool measure_other(bench_case *other, const bench_options *wish, bench_result *out) {
    ejk_gpu_times times;
    const ejk_gpu_times *own = &out->gpu.times;
    if (!measure(other, wish, &times)) return false;
    const double flops = out->cost.flops > 0 ? other->cost.flops / out->cost.flops : 1;
    out->over_beside = (bench_quotient){own->alone_s / times.alone_s * flops,
                                        own->alone_p10_s / times.alone_s * flops,
                                        own->alone_p90_s / times.alone_s * flops};
    out->gpu.over_beside = own->in_a_row_s / times.in_a_row_s * flops;
    return true;
}

/* As often as the case was measured, and in the same two ways. */
static bool time_peer(bench_peer *peer, bool alone, int32_t count, int64_t runs, double *median) {
    double *times = calloc((size_t)count + 1, sizeof *times);
    bool timed = times || report_error("no memory for the times of a peer");
    for (int32_t i = -1; timed && i < count; i++) /* the first one warms up */
        timed = bench_peer_run(peer, runs, alone, &times[i < 0 ? 0 : i]);
    if (timed) *median = bench_quantile(times, count, 0.5);
    free(times);
    return timed;
}

static bool measure_peer(bench_peer *peer, bench_result *out) {
    const ejk_gpu_times *own = &out->gpu.times;
    if (!time_peer(peer, true, own->repetitions, 1, &out->peer_time) ||
        !time_peer(peer, false, own->rows, own->row, &out->gpu.peer_time))
        return false;
    out->over_peer =
        (bench_quotient){own->alone_s / out->peer_time, own->alone_p10_s / out->peer_time,
                         own->alone_p90_s / out->peer_time};
    out->gpu.over_peer = own->in_a_row_s / out->gpu.peer_time;
    return true;
}

bool bench_gpu_measure(bench_case *bench, const bench_beside *beside, const bench_options *wish,
                       bench_result *out) {
    ejk_gpu_ceiling peak[2], read[2];
    out->gpu.device = bench->device;
    out->cost = bench->cost;
    out->threads = 1;
    out->copies = bench->copies;
    out->cold = bench->cold;
    out->rotated_bytes = bench->input_bytes;
    if (!read_ceilings(bench, &peak[0], &read[0]) || !measure(bench, wish, &out->gpu.times) ||
        (beside->other && !measure_other(beside->other, wish, out)) ||
        (beside->peer && !measure_peer(beside->peer, out)) ||
        !read_ceilings(bench, &peak[1], &read[1]))
        return false;
    out->gpu.peak = mean(peak[0], peak[1]);
    out->gpu.read = mean(read[0], read[1]);
    summarise(out);
    return true;
}

/* ---- The host's ------------------------------------------------------------------------------------- */

/* Few enough calls that the driver's queue never fills. */
enum { CALLS = 100, BATCHES = 15 };

static bool time_calls(bench_case *tiny, ejk_context *context, ejk_executor *executor, int way,
                       double *seconds) {
    double times[BATCHES];
    const ejk_kernel *kernel = tiny->call.kernel;
    for (int batch = -1; batch < BATCHES; batch++) { /* the first one warms up */
        const double start = ejk_now();
        for (int i = 0; i < CALLS; i++) {
            const ejk_status status =
                way == BENCH_CALL ? ejk_call(context, kernel, tiny->args[0])
                                  : ejk_executor_call(executor, kernel, tiny->args[0], NULL);
            if (status != EJK_OK) return succeeded(status);
        }
        if (batch >= 0) times[batch] = (ejk_now() - start) / CALLS;
        if (!succeeded(ejk_device_synchronise(tiny->device, tiny->stream))) return false;
    }
    *seconds = bench_quantile(times, BATCHES, 0.5);
    return true;
}

bool bench_gpu_measure_host(bench_case *tiny, ejk_context *context, bench_host *host,
                            bench_gpu *out) {
    ejk_config_selector_chain *chain = NULL;
    ejk_executor *executor = NULL;
    const bool measured =
        succeeded(ejk_config_selector_chain_create(NULL, &chain)) &&
        succeeded(
            ejk_executor_create(context, &(ejk_executor_options){.selector = chain}, &executor)) &&
        succeeded(ejk_gpu_measure_launch(tiny->device, &out->bare_launch)) &&
        succeeded(ejk_plan_measure_host(tiny->plan, tiny->args[0], &out->host)) &&
        time_calls(tiny, context, executor, BENCH_CALL, &host->seconds[BENCH_CALL]) &&
        time_calls(tiny, context, executor, BENCH_EXECUTOR, &host->seconds[BENCH_EXECUTOR]);
    host->seconds[BENCH_PLAN] = out->host.plan_s;
    host->batches = BATCHES;
    host->undisturbed = -1;
    ejk_executor_destroy(executor);
    ejk_config_selector_chain_destroy(chain);
    return measured;
}

bool bench_gpu_measure_first(const bench_case *bench, ejk_context *context, bench_gpu *out) {
    return succeeded(
        ejk_plan_measure_first_use(context, bench->call.kernel, bench->call.args, &out->first));
}
