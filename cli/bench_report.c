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
    free(result->shape);
    free(result->plain);
    json_decref(result->plan);
    json_decref(result->arguments);
    *result = (bench_result){0};
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

static json_t *host_json(const bench_host *host) {
    const double *all = host->seconds, *undisturbed = host->seconds_undisturbed;
    return json_pack("{s:f, s:f, s:f, s:i, s:o, s:o, s:o, s:o}", "host_ns", all[BENCH_CALL] * 1e9,
                     "host_plan_ns", all[BENCH_PLAN] * 1e9, "host_executor_ns",
                     all[BENCH_EXECUTOR] * 1e9, "host_batches", (int)host->batches,
                     "host_undisturbed_batches",
                     host->undisturbed < 0 ? json_null() : json_integer(host->undisturbed),
                     "host_ns_undisturbed", known(undisturbed[BENCH_CALL] * 1e9),
                     "host_plan_ns_undisturbed", known(undisturbed[BENCH_PLAN] * 1e9),
                     "host_executor_ns_undisturbed", known(undisturbed[BENCH_EXECUTOR] * 1e9));
}

static json_t *result_json(const ejk_kernel *kernel, const bench_result *r) {
    json_t *row =
        json_pack("{s:s, s:s, s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:O}", "op", kernel->op_id,
                  "shape", r->shape, "dtype", ejk_dtype_name(r->dtype), "threads", (int)r->threads,
                  "isa", plan_member(r, "isa"), "platform", plan_member(r, "platform"),
                  "implementation", plan_member(r, "implementation"), "config",
                  plan_member(r, "parameters"), "chosen_by", plan_member(r, "chosen_by"), "workers",
                  plan_member(r, "workers"), "arguments", r->arguments);
    json_t *numbers = json_pack(
        "{s:f, s:f, s:f, s:i, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:I, s:I, s:o, "
        "s:o}",
        "time_s", r->time, "time_s_p10", r->time_p10, "time_s_p90", r->time_p90, "repetitions",
        (int)r->repetitions, "runs_per_repetition", (json_int_t)r->runs, "gflops",
        known(r->compute.rate * 1e-9), "peak_gflops", known(r->compute.ceiling * 1e-9),
        "share_of_peak", known(r->compute.share), "share_of_peak_max", known(r->compute.share_max),
        "gbps", known(r->memory.rate * 1e-9), "read_gbps", known(r->memory.ceiling * 1e-9),
        "share_of_bandwidth", known(r->memory.share), "share_of_bandwidth_max",
        known(r->memory.share_max), "cold", (int)r->cold, "rotated_bytes",
        (json_int_t)r->rotated_bytes, "input_copies", (json_int_t)r->copies, "flops",
        known(r->cost.flops), "bytes", known(r->cost.bytes));
    if (row && numbers) json_object_update(row, numbers);
    json_decref(numbers);
    if (row) json_object_update_new(row, host_json(&r->host));
    if (row)
        json_object_update_new(
            row, json_pack("{s:o, s:o, s:o}", "undisturbed_repetitions",
                           r->undisturbed < 0 ? json_null() : json_integer(r->undisturbed),
                           "share_of_peak_undisturbed", known(r->compute.share_undisturbed),
                           "share_of_bandwidth_undisturbed", known(r->memory.share_undisturbed)));
    if (row)
        json_object_update_new(
            row, json_pack("{s:s?, s:o, s:o, s:s?, s:o, s:o, s:o}", "lengths", r->lengths, "alive",
                           known(r->alive), "visible_scores", known(r->scores), "plain_shape",
                           r->plain, "time_per_score_over_plain", known(r->over_plain),
                           "time_per_score_over_plain_p10", known(r->over_plain_p10),
                           "time_per_score_over_plain_p90", known(r->over_plain_p90)));
    if (row && r->against)
        json_object_update_new(
            row, json_pack("{s:s, s:o, s:o, s:f}", "against", r->against, "error_against",
                           measured(r->difference.relative), "maximum_error_against",
                           measured(r->difference.maximum), "against_time_s", r->against_time));
    if (row && r->on_gpu) json_object_update_new(row, bench_gpu_json(r));
    return row;
}

static json_t *report_json(const ejk_kernel *kernel, const bench_result *results, int count) {
    json_t *rows = json_array();
    for (int i = 0; i < count; i++) json_array_append_new(rows, result_json(kernel, &results[i]));
    json_t *machine = machine_json();
    if (results[0].on_gpu)
        json_object_set_new(machine, "gpu", bench_gpu_machine(results[0].gpu.device));
    return json_pack("{s:o, s:o}", "machine", machine, "results", rows);
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
    table_add(table, "%s", r->shape);
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
    static const char *const titles[] = {"shape", "implementation", "threads", "time",  "p10",
                                         "p90",   "GFLOP/s",        "peak",    "share", "max",
                                         "GB/s",  "read",           "share"};
    text_table table = {.align = "llrrrrrrrrrrrr"};
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++) table_add(&table, "%s", titles[i]);
    table_add(&table, "%s", results[0].against ? "error" : "");
    for (int i = 0; i < count; i++) add_row(&table, &results[i]);
    return table_print(&table, 0);
}

static void print_undisturbed(const bench_result *r) {
    const double share = r->cold ? r->memory.share_undisturbed : r->compute.share_undisturbed;
    if (r->undisturbed < 0) return;
    printf("; %d with cores to themselves", (int)r->undisturbed);
    if (r->undisturbed > 0 && r->undisturbed < r->repetitions && share > 0)
        printf(": %.1f %% of %s", 100 * share, r->cold ? "bandwidth" : "peak");
}

static void print_notes(const bench_result *results, int count) {
    for (int i = 0; i < count; i++) {
        const bench_result *r = &results[i];
        char *parameters = json_dumps(json_object_get(r->plan, "parameters"), JSON_COMPACT);
        char bytes[32];
        printf("%d. %s by %s: %s", i + 1, r->shape, bench_plan_text(r, "implementation"),
               parameters ? parameters : "");
        free(parameters);
        printf(", %d repetitions of %lld runs", (int)r->repetitions, (long long)r->runs);
        if (r->cold)
            printf(", cold: %lld copies of the inputs rotate over %s", (long long)r->copies,
                   machine_bytes(r->rotated_bytes, bytes));
        print_undisturbed(r);
        if (r->lengths) printf(", lengths %s", r->lengths);
        if (r->alive > 0) printf(", %g of the blocks", r->alive);
        if (r->plain)
            printf(", a visible score takes %.3f (%.3f to %.3f) of the time of %s", r->over_plain,
                   r->over_plain_p10, r->over_plain_p90, r->plain);
        if (r->against) printf(", one run of %s takes %.3f ms", r->against, 1e3 * r->against_time);
        putchar('\n');
    }
}

/* Arguments but the tensors, which the shape tells already; of those, the optional ones by name. */
void bench_print_arguments(const ejk_kernel *kernel, const json_t *arguments) {
    printf("%s", kernel->op_id);
    for (int32_t i = 0; i < kernel->args->count; i++) {
        const ejk_field *field = &kernel->args->fields[i];
        const json_t *value = json_object_get(arguments, field->name);
        bool tensor = field->kind == EJK_FIELD_TENSOR;
        if (!value || (tensor && ejk_field_is_required(field))) continue;
        char *text =
            tensor ? NULL
                   : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        printf(", %s%s%s", field->name, text ? " " : "", text ? text : "");
        free(text);
    }
    putchar('\n');
}

static void print_host(const bench_host *host) {
    const double *all = host->seconds, *undisturbed = host->seconds_undisturbed;
    printf("host cost of a tiny call: %.0f ns, of its plan's execution: %.0f ns, through an "
           "executor: %.0f ns; %d batches",
           all[BENCH_CALL] * 1e9, all[BENCH_PLAN] * 1e9, all[BENCH_EXECUTOR] * 1e9,
           (int)host->batches);
    if (host->undisturbed >= 0) printf(", %d with cores to themselves", (int)host->undisturbed);
    if (host->undisturbed > 0)
        printf(": %.0f, %.0f, %.0f ns", undisturbed[BENCH_CALL] * 1e9,
               undisturbed[BENCH_PLAN] * 1e9, undisturbed[BENCH_EXECUTOR] * 1e9);
    putchar('\n');
}

static bool print_report(const ejk_kernel *kernel, const bench_result *results, int count) {
    const ejk_cpu_info *cpu = ejk_cpu();
    char l3[32];
    printf("%s, %s, %d cores, last cache %s\n", ejk_device_fingerprint(), cpu->name,
           (int)cpu->cores, machine_bytes(cpu->l3_bytes, l3));
    bench_print_arguments(kernel, results[0].arguments);
    printf("%s; shares are medians over repetitions, each of the ceilings around it\n\n",
           ejk_dtype_name(results[0].dtype));
    if (!print_rows(results, count)) return false;
    putchar('\n');
    print_notes(results, count);
    print_host(&results[0].host);
    return true;
}

bool bench_report(const ejk_kernel *kernel, const bench_result *results, int count, bool json) {
    if (json) return print_json(report_json(kernel, results, count));
    return results[0].on_gpu ? bench_gpu_print(kernel, results, count)
                             : print_report(kernel, results, count);
}
