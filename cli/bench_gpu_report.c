/* SPDX-License-Identifier: Apache-2.0 */
/* What was measured on a GPU, as a table or as JSON. */
#include "bench.h"
#include "table.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- JSON -------------------------------------------------------------------------------------------- */

static json_t *known(double value) {
    json_t *number = value > 0 ? json_real(value) : NULL;
    return number ? number : json_null();
}

/* What times of a row have, whether it was launched or a graph's. */
static json_t *rates_json(const bench_result *r, double seconds, double p10, double p90,
                          double compute_share, double memory_share) {
    const ejk_gpu_times *t = &r->gpu.times;
    return json_pack("{s:f, s:f, s:f, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "time_s", seconds,
                     "time_s_p10", p10, "time_s_p90", p90, "rows", (int)t->rows, "launches",
                     (int)t->row, "gflops", known(r->cost.flops / seconds * 1e-9), "peak_gflops",
                     known(r->gpu.peak.in_a_row * 1e-9), "share_of_peak", known(compute_share),
                     "gbps", known(r->cost.bytes / seconds * 1e-9), "read_gbps",
                     known(r->gpu.read.in_a_row * 1e-9), "share_of_bandwidth", known(memory_share));
}

static json_t *in_a_row_json(const bench_result *r) {
    const ejk_gpu_times *t = &r->gpu.times;
    json_t *json = rates_json(r, t->in_a_row_s, t->in_a_row_p10_s, t->in_a_row_p90_s,
                              r->gpu.compute_share, r->gpu.memory_share);
    json_object_set_new(json, "time_per_flop_over_beside", known(r->gpu.over_beside));
    json_object_set_new(json, "peer_time_s", known(r->gpu.peer_time));
    json_object_set_new(json, "time_over_peer", known(r->gpu.over_peer));
    return json;
}

static json_t *graph_json(const bench_result *r) {
    const ejk_gpu_times *t = &r->gpu.times;
    if (t->graph_s <= 0) return json_null();
    return rates_json(r, t->graph_s, t->graph_p10_s, t->graph_p90_s, r->gpu.graph_compute_share,
                      r->gpu.graph_memory_share);
}

json_t *bench_gpu_json(const bench_result *r) {
    const bench_gpu *gpu = &r->gpu;
    return json_pack("{s:o, s:o, s:o, s:f, s:f, s:f, s:f, s:{s:f, s:o, s:i}}", "device",
                     json_sprintf("cuda:%d", (int)gpu->device), "in_a_row", in_a_row_json(r),
                     "in_a_graph", graph_json(r), "host_plan_driver_ns", gpu->host.driver_s * 1e9,
                     "host_plan_beyond_launch_ns", gpu->host.beyond_s * 1e9, "host_plan_launches",
                     gpu->host.launches, "host_bare_launch_ns", gpu->bare_launch * 1e9, "first_use",
                     "compile_s", gpu->first.compile_s, "load_s", known(gpu->first.load_s),
                     "kernels", (int)gpu->first.kernels);
}

json_t *bench_gpu_machine(int32_t device) {
    ejk_gpu_info gpu;
    ejk_cuda_info cuda;
    if (ejk_device_info(device, &gpu) != EJK_OK || ejk_cuda_look(&cuda) != EJK_OK)
        return json_null();
    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:s, s:i}", "fingerprint", gpu.fingerprint, "name",
                     gpu.name, "architecture", gpu.architecture, "multiprocessors",
                     (int)gpu.multiprocessors, "driver", (int)cuda.driver, "driver_build",
                     cuda.driver_build, "nvrtc", (int)cuda.nvrtc);
}

/* ---- Table ------------------------------------------------------------------------------------------- */

static void add_rate(text_table *table, double amount, double seconds, double ceiling,
                     double unit) {
    const double rate = seconds > 0 ? amount / seconds : 0;
    table_add(table, "%.4g", rate * unit);
    table_add(table, "%.4g", ceiling * unit);
    bench_add_share(table, ceiling > 0 ? rate / ceiling : 0);
}

/* How a line's times were measured. */
enum { ALONE, IN_A_ROW, IN_A_GRAPH, WAYS };

static void add_line(text_table *table, const bench_result *r, int way) {
    static const char *const names[] = {"alone", "in a row", "in a graph"};
    const bench_gpu *gpu = &r->gpu;
    const ejk_gpu_times *t = &gpu->times;
    const double times[WAYS][3] = {{t->alone_s, t->alone_p10_s, t->alone_p90_s},
                                   {t->in_a_row_s, t->in_a_row_p10_s, t->in_a_row_p90_s},
                                   {t->graph_s, t->graph_p10_s, t->graph_p90_s}};
    const double seconds = times[way][0];
    table_add(table, "%s", way ? "" : r->problem);
    table_add(table, "%s", way ? "" : bench_plan_text(r, "implementation"));
    table_add(table, "%s", names[way]);
    for (int i = 0; i < 3; i++) table_add_time(table, times[way][i]);
    add_rate(table, r->cost.flops, seconds, way ? gpu->peak.in_a_row : gpu->peak.alone, 1e-12);
    add_rate(table, r->cost.bytes, seconds, way ? gpu->read.in_a_row : gpu->read.alone, 1e-9);
    if (r->against && !way)
        table_add(table, "%.2g", r->difference.relative);
    else
        table_add(table, "%s", "");
}

static bool print_rows(const bench_result *results, int count) {
    static const char *const titles[] = {"problem", "implementation", "",     "time",  "p10",
                                         "p90",     "TFLOP/s",        "peak", "share", "GB/s",
                                         "read",    "share"};
    text_table table = {.align = "lllrrrrrrrrrr"};
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++) table_add(&table, "%s", titles[i]);
    table_add(&table, "%s", results[0].against ? "error" : "");
    for (int i = 0; i < count; i++) {
        for (int way = 0; way < WAYS; way++)
            if (way != IN_A_GRAPH || results[i].gpu.times.graph_s > 0)
                add_line(&table, &results[i], way);
    }
    return table_print(&table, 0);
}

static void print_notes(int number, const bench_result *r) {
    const bench_gpu *gpu = &r->gpu;
    char *parameters = json_dumps(json_object_get(r->plan, "parameters"), JSON_COMPACT);
    printf("%d. %s by %s: %s, alone %d times, in a row of %d launches %d times", number, r->problem,
           bench_plan_text(r, "implementation"), parameters ? parameters : "",
           (int)gpu->times.repetitions, (int)gpu->times.row, (int)gpu->times.rows);
    free(parameters);
    if (r->cold) printf(", %lld copies of the inputs rotate", (long long)r->copies);
    if (r->against) printf(", one run of %s takes %.3f ms", r->against, 1e3 * r->against_time);
    printf("\n   first use: %.2f s with the compiler (%d kernels), ", gpu->first.compile_s,
           (int)gpu->first.kernels);
    if (gpu->first.load_s > 0)
        printf("%.2f ms from the disk\n", 1e3 * gpu->first.load_s);
    else
        puts("nothing is kept on the disk");
    bench_print_beside(r);
    bench_print_warnings(r);
}

static void print_host(const bench_result *r) {
    const ejk_host_cost *host = &r->gpu.host;
    if (r->host.batches == 0) return;
    printf(
        "%s, host cost of a tiny call: %.2f us, through an executor: %.2f us, of its plan's "
        "execution: %.2f us, of which %.2f us beyond %.3g launches by the driver; a bare launch: "
        "%.2f us\n",
        r->kernel->op_id, r->host.seconds[BENCH_CALL] * 1e6, r->host.seconds[BENCH_EXECUTOR] * 1e6,
        host->plan_s * 1e6, host->beyond_s * 1e6, host->launches, r->gpu.bare_launch * 1e6);
}

bool bench_gpu_print(const bench_result *results, int count) {
    ejk_gpu_info gpu;
    ejk_cuda_info cuda;
    const int32_t device = results[0].gpu.device;
    if (!succeeded(ejk_device_info(device, &gpu)) || !succeeded(ejk_cuda_look(&cuda))) return false;
    printf("cuda:%d, %s, %d SMs, driver %s, NVRTC %d.%d\n", (int)device, gpu.fingerprint,
           (int)gpu.multiprocessors, cuda.driver_build[0] ? cuda.driver_build : "unknown",
           (int)cuda.nvrtc / 1000, (int)cuda.nvrtc % 1000 / 10);
    puts("medians; ceilings are means of before and after, measured in the same two ways\n");
    if (!print_rows(results, count)) return false;
    putchar('\n');
    for (int i = 0; i < count; i++) print_notes(i + 1, &results[i]);
    for (int i = 0; i < count; i++)
        if (i == 0 || results[i].kernel != results[i - 1].kernel) print_host(&results[i]);
    return true;
}
