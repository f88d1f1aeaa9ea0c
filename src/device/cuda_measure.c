/* SPDX-License-Identifier: Apache-2.0 */
/* Times by events, of what is alone and of what follows upon its like. */
#define _GNU_SOURCE 1
#include <ejkernel/gpu_measure.h>

#include "device/cuda.h"
#include "device/cuda_graph.h"
#include "device/cuda_timer.h"

#include <math.h>
#include <time.h>

enum { MOST = 1000, WARM_RUNS = 2 };
#define FLUSHED   (INT64_C(256) << 20)
#define MOST_REST 10.0

/* ---- The ways of measuring --------------------------------------------------------------------------- */

/* All that a measurement holds. */
typedef struct meter {
    ejk_gpu_measure_options options;
    ejk_status (*enqueue)(void *user);
    void *user;
    ejki_cuda_timer timer;
    void *flushed;
    size_t flushed_bytes;
} meter;

static ejk_status read_count(const char *name, int32_t given, int32_t otherwise, int32_t *out) {
    if (given < 0 || given > MOST)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is %d, expected 1 to %d, or 0 for %d",
                         name, (int)given, MOST, (int)otherwise);
    *out = given ? given : otherwise;
    return EJK_OK;
}

static ejk_status read_options(const ejk_gpu_measure_options *given, ejk_gpu_measure_options *out) {
    *out = *given;
    if (!(given->pause_s >= 0 && given->pause_s <= MOST_REST))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "pause_s is %g, expected 0 to %g",
                         given->pause_s, MOST_REST);
    EJKI_TRY(read_count("repetitions", given->repetitions, 10, &out->repetitions));
    EJKI_TRY(read_count("rows", given->rows, 5, &out->rows));
    if (given->graph && !given->stream)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "stream is NULL, expected one that can be captured into a graph");
    return read_count("row", given->row, 10, &out->row);
}

static ejk_status open_meter(meter *m) {
    const ejk_gpu_info *gpu;
    EJKI_TRY(ejki_cuda_gpu(m->options.device, &gpu));
    m->flushed_bytes = (size_t)ejki_min(FLUSHED, gpu->memory_bytes / 8);
    EJKI_TRY(ejk_device_allocate(m->options.device, m->flushed_bytes, &m->flushed));
    return ejki_cuda_timer_open(m->options.device, m->options.stream, &m->timer);
}

static ejk_status run_times(const meter *m, int32_t times) {
    for (int32_t i = 0; i < times; i++) EJKI_TRY(m->enqueue(m->user));
    return EJK_OK;
}

static ejk_status time_runs(const meter *m, int32_t runs, double *seconds) {
    EJKI_TRY(ejki_cuda_timer_start(&m->timer));
    EJKI_TRY(run_times(m, runs));
    EJKI_TRY(ejki_cuda_timer_stop(&m->timer));
    EJKI_TRY(ejki_cuda_timer_read(&m->timer, seconds));
    *seconds /= runs;
    return EJK_OK;
}

static ejk_status time_alone(const meter *m, double *seconds) {
    EJKI_TRY(ejki_cuda_set(m->options.device, m->flushed, 1, m->flushed_bytes, m->options.stream));
    return time_runs(m, 1, seconds);
}

static void rest(double seconds) {
    const double whole = floor(seconds);
    struct timespec left = {(time_t)whole, (long)((seconds - whole) * 1e9)};
    while (seconds > 0 && nanosleep(&left, &left) != 0) {
    }
}

/* Median, 10th and 90th percentile. */
static void put(double *times, int32_t count, double *median, double *p10, double *p90) {
    *median = ejki_quantile(times, count, 0.5);
    *p10 = ejki_quantile(times, count, 0.1);
    *p90 = ejki_quantile(times, count, 0.9);
}

static ejk_status enqueue_graph(void *graph) {
    return ejki_cuda_graph_launch(graph);
}

/* The first launch moves it to the device. */
static ejk_status measure_graph(const meter *m, double *times, ejk_gpu_times *out) {
    const ejk_gpu_measure_options *o = &m->options;
    ejki_cuda_graph graph;
    ejk_status status =
        ejki_cuda_graph_make(o->device, o->stream, m->enqueue, m->user, o->row, &graph);
    const meter row = {.options = *o, .enqueue = enqueue_graph, .user = &graph, .timer = m->timer};
    if (status == EJK_OK) status = run_times(&row, 1);
    for (int32_t i = 0; i < o->rows && status == EJK_OK; i++) {
        status = time_runs(&row, 1, &times[i]);
        times[i] /= o->row;
    }
    if (status == EJK_OK) put(times, o->rows, &out->graph_s, &out->graph_p10_s, &out->graph_p90_s);
    ejki_cuda_graph_close(&graph);
    return status;
}

static ejk_status measure(const meter *m, ejk_gpu_times *out) {
    double times[MOST];
    const ejk_gpu_measure_options *o = &m->options;
    EJKI_TRY(run_times(m, WARM_RUNS));
    EJKI_TRY(ejk_device_synchronise(o->device, o->stream));
    rest(o->pause_s);
    *out = (ejk_gpu_times){.repetitions = o->repetitions, .rows = o->rows, .row = o->row};
    for (int32_t i = 0; i < o->repetitions; i++) EJKI_TRY(time_alone(m, &times[i]));
    put(times, o->repetitions, &out->alone_s, &out->alone_p10_s, &out->alone_p90_s);
    for (int32_t i = 0; i < o->rows; i++) EJKI_TRY(time_runs(m, o->row, &times[i]));
    put(times, o->rows, &out->in_a_row_s, &out->in_a_row_p10_s, &out->in_a_row_p90_s);
    return o->graph ? measure_graph(m, times, out) : EJK_OK;
}

ejk_status ejk_gpu_measure(const ejk_gpu_measure_options *options,
                           ejk_status (*enqueue)(void *user), void *user, ejk_gpu_times *out) {
    if (!options || !enqueue || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !options   ? "options"
                         : !enqueue ? "enqueue"
                                    : "out");
    meter m = {.enqueue = enqueue, .user = user};
    ejk_gpu_times found = {0};
    EJKI_TRY(read_options(options, &m.options));
    ejk_status status = open_meter(&m);
    if (status == EJK_OK) status = measure(&m, &found);
    ejki_cuda_timer_close(&m.timer);
    if (m.flushed) ejki_cuda_release(m.options.device, m.flushed);
    if (status == EJK_OK) *out = found;
    return status;
}
