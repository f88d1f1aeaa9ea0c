/* SPDX-License-Identifier: Apache-2.0 */
/* What was measured, as a table or as JSON. */
#include "bench.h"
#include "machine.h"
#include "table.h"

#include <stdio.h>
#include <stdlib.h>

const char *bench_plan_text(const bench_result *result, const char *name) {
    const char *text = json_string_value(json_object_get(result->plan, name));
    return text ? text : "";
}

void bench_result_close(bench_result *result) {
    free(result->problem);
    free(result->shape);
    free(result->beside);
    free(result->peer);
    free(result->peer_skips);
    json_decref(result->plan);
    json_decref(result->arguments);
    json_decref(result->differences);
    *result = (bench_result){0};
}

json_t *bench_describe(const ejk_plan *plan) {
    char *text;
    if (!succeeded(ejk_plan_describe(plan, &text))) return NULL;
    json_t *description = json_loads(text, 0, NULL);
    ejk_free(text);
    if (!description) report_error("no memory for the description of a plan");
    return description;
}

/* ---- Warnings -------------------------------------------------------------------------------------- */

/* Ceilings and rates are medians of neighbouring moments: noise alone does not bring one this far above the other. */
#define MOST_SHARE 1.02

static void warn_of_share(json_t *list, const char *ceiling, double share, double most) {
    if (share > most)
        json_array_append_new(
            list, json_sprintf("%.1f %% of %s is more than there can be: the ceiling was measured "
                               "too low, do not use this row",
                               100 * share, ceiling));
}

/* What the core's other hardware thread takes, where that is known. */
static const char *beside_another(const bench_result *r, char out[64]) {
    if (r->core_share < 1)
        snprintf(out, 64, ", and a core had %.0f %% of its speed", 100 * r->core_share);
    return out;
}

json_t *bench_warnings(const bench_result *r) {
    json_t *list = json_array();
    if (r->undisturbed == 0)
        json_array_append_new(
            list, json_sprintf("other programs disturbed every repetition: a thread waited %.1f %% "
                               "of the time for its core%s",
                               100 * r->lost, beside_another(r, (char[64]){0})));
    warn_of_share(list, "the peak", r->compute.share, MOST_SHARE);
    /* Some processors write beside what they read: 47 GB/s in all where reading alone has 32 (Zen 4). */
    if (r->cold)
        warn_of_share(list, "read bandwidth", r->memory.share, (r->writes ? 2 : 1) * MOST_SHARE);
    return list;
}

void bench_print_warnings(const bench_result *result) {
    json_t *list = bench_warnings(result), *each;
    size_t i;
    json_array_foreach(list, i, each) printf("   warning: %s\n", json_string_value(each));
    json_decref(list);
}

void bench_tell(const bench_result *r, int number, int total) {
    char time[TIME_ROOM];
    if (total < 2) return;
    fprintf(stderr, "%d of %d: %s", number, total, r->problem);
    if (!r->on_gpu) fprintf(stderr, ", %d thread%s", (int)r->threads, r->threads > 1 ? "s" : "");
    fprintf(stderr, ": %s", time_text(r->time, time));
    if (r->compute.share > 0) fprintf(stderr, ", %.1f %% of the peak", 100 * r->compute.share);
    if (r->memory.share > 0) fprintf(stderr, ", %.1f %% of read bandwidth", 100 * r->memory.share);
    if (r->peer && !r->peer_skips)
        fprintf(stderr, ", %.3f of the time of %s", r->over_peer.median, r->peer);
    fputc('\n', stderr);
}

/* ---- JSON ------------------------------------------------------------------------------------------ */

/* What is not known is null: an operation may not count its cost, and JSON has no infinity. */
static json_t *known(double value) {
    json_t *number = value > 0 ? json_real(value) : NULL;
    return number ? number : json_null();
}

static json_t *measured(double value) {
    json_t *number = json_real(value);
    return number ? number : json_null();
}

static json_t *plan_member(const bench_result *r, const char *name) {
    return json_incref(json_object_get(r->plan, name));
}

static json_t *count_or_null(int32_t count) {
    return count < 0 ? json_null() : json_integer(count);
}

static json_t *host_json(const bench_host *host) {
    const double *seconds = host->seconds;
    return json_pack("{s:o, s:o, s:o, s:i, s:o}", "host_ns", known(seconds[BENCH_CALL] * 1e9),
                     "host_plan_ns", known(seconds[BENCH_PLAN] * 1e9), "host_executor_ns",
                     known(seconds[BENCH_EXECUTOR] * 1e9), "host_batches", (int)host->batches,
                     "host_undisturbed_batches", count_or_null(host->undisturbed));
}

/* Which call it is, and what runs it. */
static json_t *row_json(const bench_result *r) {
    return json_pack("{s:s, s:s, s:s, s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:O, s:o, s:o}",
                     "problem", r->problem, "op", r->kernel->op_id, "shape", r->shape, "dtype",
                     ejk_dtype_name(r->dtype), "threads", (int)r->threads, "isa",
                     plan_member(r, "isa"), "platform", plan_member(r, "platform"),
                     "implementation", plan_member(r, "implementation"), "config",
                     plan_member(r, "parameters"), "chosen_by", plan_member(r, "chosen_by"),
                     "workers", plan_member(r, "workers"), "arguments", r->arguments, "flops",
                     known(r->cost.flops), "bytes", known(r->cost.bytes));
}

static json_t *times_json(const bench_result *r) {
    return json_pack("{s:f, s:f, s:f, s:i, s:o, s:f, s:o, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
                     "s:o, s:b, s:I, "
                     "s:I, s:o}",
                     "time_s", r->time, "time_s_p10", r->time_p10, "time_s_p90", r->time_p90,
                     "repetitions", (int)r->repetitions, "undisturbed_repetitions",
                     count_or_null(r->undisturbed), "lost_to_others", r->lost, "core_share",
                     known(r->core_share), "runs_per_repetition", (json_int_t)r->runs, "gflops",
                     known(r->compute.rate * 1e-9), "peak_gflops", known(r->compute.ceiling * 1e-9),
                     "share_of_peak", known(r->compute.share), "share_of_peak_max",
                     known(r->compute.share_max), "gbps", known(r->memory.rate * 1e-9), "read_gbps",
                     known(r->memory.ceiling * 1e-9), "share_of_bandwidth", known(r->memory.share),
                     "share_of_bandwidth_max", known(r->memory.share_max), "cold", (int)r->cold,
                     "rotated_bytes", (json_int_t)r->rotated_bytes, "input_copies",
                     (json_int_t)r->copies, "warnings", bench_warnings(r));
}

static json_t *beside_json(const bench_result *r) {
    return json_pack("{s:s, s:o, s:o, s:o}", "beside", r->beside, "time_per_flop_over_beside",
                     known(r->over_beside.median), "time_per_flop_over_beside_p10",
                     known(r->over_beside.p10), "time_per_flop_over_beside_p90",
                     known(r->over_beside.p90));
}

static json_t *against_json(const bench_result *r) {
    return json_pack("{s:s, s:o, s:o, s:O, s:f}", "against", r->against, "error_against",
                     measured(r->difference.relative), "maximum_error_against",
                     measured(r->difference.maximum), "errors_against", r->differences,
                     "against_time_s", r->against_time);
}

static json_t *peer_json(const bench_result *r) {
    if (r->peer_skips) return json_pack("{s:s, s:s}", "peer", r->peer, "peer_skips", r->peer_skips);
    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:o}", "peer", r->peer, "peer_time_s", r->peer_time,
                     "time_over_peer", r->over_peer.median, "time_over_peer_p10", r->over_peer.p10,
                     "time_over_peer_p90", r->over_peer.p90, "peer_error",
                     r->peer_error < 0 ? json_null() : measured(r->peer_error));
}

/* Adds the members of an object that is handed over. */
static void add_members(json_t *row, json_t *members) {
    if (members) json_object_update(row, members);
    json_decref(members);
}

static json_t *result_json(const bench_result *r) {
    json_t *row = row_json(r);
    add_members(row, times_json(r));
    add_members(row, host_json(&r->host));
    if (r->beside) add_members(row, beside_json(r));
    if (r->against) add_members(row, against_json(r));
    if (r->peer) add_members(row, peer_json(r));
    if (r->on_gpu) add_members(row, bench_gpu_json(r));
    return row;
}

static json_t *report_json(const bench_result *results, int count,
                           json_t *(*row)(const bench_result *r)) {
    json_t *rows = json_array();
    for (int i = 0; i < count; i++) json_array_append_new(rows, row(&results[i]));
    json_t *machine = machine_json();
    if (results[0].on_gpu)
        json_object_set_new(machine, "gpu", bench_gpu_machine(results[0].gpu.device));
    return json_pack("{s:i, s:o, s:o}", "schema", 1, "machine", machine, "results", rows);
}

/* ---- Table ----------------------------------------------------------------------------------------- */

void bench_add_share(text_table *table, double share) {
    if (share > 0)
        table_add(table, "%.1f %%", 100 * share);
    else
        table_add(table, "-");
}

static void add_rate(text_table *table, const bench_rate *rate) {
    table_add(table, "%.1f", rate->rate * 1e-9);
    table_add(table, "%.1f", rate->ceiling * 1e-9);
    bench_add_share(table, rate->share);
}

/* A share of bandwidth means something where inputs come from memory. */
static void add_row(text_table *table, const bench_result *r) {
    table_add(table, "%s", r->problem);
    table_add(table, "%s", bench_plan_text(r, "implementation"));
    table_add(table, "%d", (int)r->threads);
    table_add_time(table, r->time);
    table_add_time(table, r->time_p10);
    table_add_time(table, r->time_p90);
    add_rate(table, &r->compute);
    bench_add_share(table, r->compute.share_max);
    add_rate(table, &r->memory);
    if (r->against)
        table_add(table, "%.2g", r->difference.relative);
    else
        table_add(table, "%s", "");
}

static bool print_rows(const bench_result *results, int count) {
    static const char *const titles[] = {"problem", "implementation", "threads", "time",  "p10",
                                         "p90",     "GFLOP/s",        "peak",    "share", "max",
                                         "GB/s",    "read",           "share"};
    text_table table = {.align = "llrrrrrrrrrrrr"};
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++) table_add(&table, "%s", titles[i]);
    table_add(&table, "%s", results[0].against ? "error" : "");
    for (int i = 0; i < count; i++) add_row(&table, &results[i]);
    return table_print(&table, 0);
}

/* Counting those that nothing disturbed, or all. */
static void print_repetitions(const bench_result *r) {
    printf(", %d repetitions of %lld runs", (int)r->repetitions, (long long)r->runs);
    if (r->undisturbed == 0)
        printf(", all of them disturbed");
    else if (r->undisturbed > 0 && r->undisturbed < r->repetitions)
        printf(", of which %d were disturbed and do not count",
               (int)(r->repetitions - r->undisturbed));
}

static void print_notes(const bench_result *results, int count) {
    for (int i = 0; i < count; i++) {
        const bench_result *r = &results[i];
        char *parameters = json_dumps(json_object_get(r->plan, "parameters"), JSON_COMPACT);
        char bytes[32];
        printf("%d. %s by %s: %s", i + 1, r->problem, bench_plan_text(r, "implementation"),
               parameters ? parameters : "");
        free(parameters);
        print_repetitions(r);
        if (r->cold)
            printf(", cold: %lld copies of the inputs rotate over %s", (long long)r->copies,
                   machine_bytes(r->rotated_bytes, bytes));
        if (r->against) printf(", one run of %s takes %.3f ms", r->against, 1e3 * r->against_time);
        putchar('\n');
        bench_print_beside(r);
        bench_print_warnings(r);
    }
}

void bench_print_beside(const bench_result *r) {
    if (r->beside)
        printf("   a FLOP takes %.3f (%.3f to %.3f) of the time of %s\n", r->over_beside.median,
               r->over_beside.p10, r->over_beside.p90, r->beside);
    if (r->peer && r->peer_skips) printf("   %s does not: %s\n", r->peer, r->peer_skips);
    if (!r->peer || r->peer_skips) return;
    printf("   %.3f (%.3f to %.3f) of the time of %s", r->over_peer.median, r->over_peer.p10,
           r->over_peer.p90, r->peer);
    if (r->on_gpu) printf(", %.3f in a row", r->gpu.over_peer);
    if (r->peer_error >= 0) printf("; its result differs by %.2g", r->peer_error);
    putchar('\n');
}

static void print_host(const bench_result *r) {
    const bench_host *host = &r->host;
    const double *seconds = host->seconds;
    if (host->batches == 0) return;
    printf("%s, host cost of a tiny call: %.0f ns, of its plan's execution: %.0f ns, through an "
           "executor: %.0f ns; %d batches",
           r->kernel->op_id, seconds[BENCH_CALL] * 1e9, seconds[BENCH_PLAN] * 1e9,
           seconds[BENCH_EXECUTOR] * 1e9, (int)host->batches);
    if (host->undisturbed == 0)
        printf(", all of them disturbed");
    else if (host->undisturbed < host->batches)
        printf(", of which %d were disturbed and do not count",
               (int)(host->batches - host->undisturbed));
    putchar('\n');
}

static bool print_report(const bench_result *results, int count) {
    const ejk_cpu_info *cpu = ejk_cpu();
    char l3[32];
    printf("%s, %s, %d cores, last cache %s\n", ejk_device_fingerprint(), cpu->name,
           (int)cpu->cores, machine_bytes(cpu->l3_bytes, l3));
    puts("shares are medians over repetitions, each of the ceilings around it\n");
    if (!print_rows(results, count)) return false;
    putchar('\n');
    print_notes(results, count);
    for (int i = 0; i < count; i++)
        if (i == 0 || results[i].kernel != results[i - 1].kernel) print_host(&results[i]);
    return true;
}

bool bench_report(const bench_result *results, int count, bool json) {
    if (json) return print_json(report_json(results, count, result_json));
    return results[0].on_gpu ? bench_gpu_print(results, count) : print_report(results, count);
}

bool bench_report_plans(const bench_result *results, int count, bool json) {
    if (json) return print_json(report_json(results, count, row_json));
    text_table table = {.align = "llrl"};
    for (int i = 0; i < count; i++) {
        char *parameters = json_dumps(json_object_get(results[i].plan, "parameters"), JSON_COMPACT);
        table_add(&table, "%s", results[i].problem);
        table_add(&table, "%s", bench_plan_text(&results[i], "implementation"));
        table_add(&table, "%d", (int)results[i].threads);
        table_add(&table, "%s", parameters ? parameters : "");
        free(parameters);
    }
    return table_print(&table, 0);
}
