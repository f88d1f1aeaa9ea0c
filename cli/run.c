/* SPDX-License-Identifier: Apache-2.0 */
/* `ejk run`: one call of any operation on tensors from files. */
#include "call.h"
#include "compare.h"
#include "gpu.h"
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct run_options {
    const char *output, *expect, *isa, *platform, *config, *device;
    double tolerance; /* 0 = that of the result's element type */
    int32_t threads;
    bool json, help;
} run_options;

/* All that a run holds. */
typedef struct op_run {
    const run_options *wish;
    op_call call;
    const char **files, **updated; /* by index of the field; of --NAME, of --NAME-out */
    ejk_states *states;            /* what the call updates in place, as it was */
    gpu_call gpu;
    ejk_context *context;
    ejk_plan *plan;
    ejk_owned_tensor expected;
    difference difference;
    double seconds;
} op_run;

/* ---- Inputs ---------------------------------------------------------------------------------------- */

/*
 * Operations want the last axis contiguous; files in Fortran order are brought into C order. What is
 * written must not lie in a file, which is mapped for reading.
 */
static bool straighten(const ejk_field *field, ejk_owned_tensor *loaded) {
    const ejk_tensor *tensor = &loaded->tensor;
    int32_t last = tensor->rank - 1;
    const bool straight_now = last < 0 || tensor->shape[last] < 2 || tensor->strides[last] == 1;
    if (straight_now && !ejk_field_is_output(field)) return true;
    ejk_owned_tensor straight;
    if (!succeeded(ejk_owned_tensor_create(tensor->dtype, tensor->rank, tensor->shape, &straight)))
        return false;
    if (!succeeded(ejk_tensor_copy(tensor, &straight.tensor))) {
        ejk_owned_tensor_close(&straight);
        return false;
    }
    ejk_owned_tensor_close(loaded);
    *loaded = straight;
    return true;
}

static bool load_input(op_run *run, int32_t index, const char *file) {
    ejk_owned_tensor *loaded = &run->call.owned[index];
    if (!succeeded(ejk_tensor_load(file, loaded)) ||
        !straighten(call_field(run->call.kernel, index), loaded))
        return false;
    *call_tensor(run->call.kernel, run->call.args, index) = loaded->tensor;
    return true;
}

/* The members of a list, from files with commas between. */
static bool load_list(op_run *run, const ejk_field *field, const char *files) {
    const int32_t first = call_member(run->call.kernel, field);
    ejk_tensors *list = (ejk_tensors *)(void *)((char *)run->call.args + field->offset);
    char *names = strdup(files), *at = names, *name;
    bool loaded = names || report_error("no memory for the files of --%s", field->name);
    while (loaded && (name = strsep(&at, ",")) != NULL) {
        if (list->count == EJK_MAX_TENSORS) {
            loaded = report_error("--%s has more than %d files", field->name, EJK_MAX_TENSORS);
        } else {
            list->count++;
            loaded = load_input(run, first + list->count - 1, name);
        }
    }
    free(names);
    return loaded;
}

static bool load_inputs(op_run *run) {
    const ejk_kernel *kernel = run->call.kernel;
    for (int32_t i = 0; i < kernel->args->count; i++) {
        const ejk_field *field = &kernel->args->fields[i];
        const bool list = field->kind == EJK_FIELD_TENSORS;
        if ((list || field->kind == EJK_FIELD_TENSOR) && ejk_field_is_required(field) &&
            ejk_field_is_input(field) && !run->files[i])
            return report_error("--%s is missing: %s with %s, %s", field->name,
                                list ? "files, with commas between," : "a file", field->doc,
                                field->unit);
        if (!run->files[i] || !ejk_field_is_input(field)) continue;
        if (!(list ? load_list(run, field, run->files[i]) : load_input(run, i, run->files[i])))
            return false;
    }
    for (int32_t i = 0; i < kernel->args->count; i++)
        if (run->updated[i] && !run->files[i])
            return report_error("--%s-out is given, but --%s is not", kernel->args->fields[i].name,
                                kernel->args->fields[i].name);
    return true;
}

/* ---- Results --------------------------------------------------------------------------------------- */

/* Required ones, and those whose flag is given. */
static bool is_wanted(const op_run *run, int32_t field) {
    const ejk_field *f = &run->call.kernel->args->fields[field];
    return f->kind == EJK_FIELD_TENSOR && !ejk_field_is_input(f) &&
           (ejk_field_is_required(f) || run->files[field]);
}

/* The file that a result, or what became of a state, goes to; NULL = none. */
static const char *target_of(const op_run *run, int32_t field) {
    if (call_is_updated(&run->call.kernel->args->fields[field])) return run->updated[field];
    return is_wanted(run, field) ? run->files[field] : NULL;
}

/* A plan, and with it what wanted results look like. */
static bool plan_results(op_run *run) {
    const ejk_kernel *kernel = run->call.kernel;
    const size_t room = (size_t)kernel->args->count * EJK_NAME_SIZE + 1;
    char *names = calloc(room, 1);
    if (!names) return report_error("no memory for the names of results");
    for (int32_t i = 0, used = 0; i < kernel->args->count; i++)
        if (is_wanted(run, i))
            used += snprintf(names + used, room - (size_t)used, "%s%s", used > 0 ? "," : "",
                             kernel->args->fields[i].name);
    const ejk_status status =
        ejk_plan_create_for_results(run->context, kernel, run->call.args, names, &run->plan);
    free(names);
    return succeeded(status);
}

static bool allocate_outputs(op_run *run) {
    const ejk_kernel *kernel = run->call.kernel;
    for (int32_t i = 0; i < kernel->args->count; i++) {
        if (!is_wanted(run, i)) continue;
        ejk_tensor *tensor = call_tensor(kernel, run->call.args, i);
        ejk_owned_tensor *memory = &run->call.owned[i];
        if (!succeeded(ejk_owned_tensor_create(tensor->dtype, tensor->rank, tensor->shape, memory)))
            return false;
        if (run->gpu.device < 0) tensor->data = memory->tensor.data;
    }
    return gpu_allocate(&run->gpu, &run->call) &&
           succeeded(ejk_states_save(kernel->args, run->call.args, &run->states));
}

static bool write_outputs(const op_run *run) {
    for (int32_t i = 0; i < run->call.kernel->args->count; i++)
        if (target_of(run, i) &&
            !succeeded(ejk_npy_write(target_of(run, i), &run->call.owned[i].tensor)))
            return false;
    return true;
}

/* ---- Running --------------------------------------------------------------------------------------- */

/* A first run also touches new memory and wakes threads; unless it is long, a second one is timed. */
static bool execute(op_run *run) {
    for (int i = 0; i < 2; i++) {
        if (!succeeded(ejk_states_restore(run->states))) return false;
        double start = ejk_now();
        if (!succeeded(ejk_plan_execute(run->plan, run->call.args, NULL, 0)) ||
            !gpu_wait(&run->gpu))
            return false;
        run->seconds = ejk_now() - start;
        if (run->seconds > 1) break;
    }
    return gpu_fetch(&run->gpu, &run->call);
}

static double tolerance_of(const op_run *run) {
    int32_t output = call_first_output(run->call.kernel);
    if (run->wish->tolerance > 0) return run->wish->tolerance;
    switch (call_tensor(run->call.kernel, run->call.args, output)->dtype) {
    case EJK_DTYPE_F64: return 1e-10;
    case EJK_DTYPE_F32: return 1e-5;
    default: return 1e-2;
    }
}

static bool passed(const op_run *run) {
    return run->difference.relative <= tolerance_of(run);
}

static bool compare_output(op_run *run) {
    if (!run->wish->expect) return true;
    int32_t output = call_first_output(run->call.kernel);
    return succeeded(ejk_tensor_load(run->wish->expect, &run->expected)) &&
           compare(&run->call.owned[output].tensor, &run->expected.tensor, &run->difference);
}

static bool compute(op_run *run) {
    const run_options *wish = run->wish;
    const ejk_context_options options = {.threads = wish->threads, .isa = wish->isa};
    return call_set_config(&run->call, wish->config) &&
           call_set_platform(run->call.kernel, run->call.args, wish->platform) &&
           succeeded(ejk_context_create(&options, &run->context)) && load_inputs(run) &&
           gpu_open(wish->device, &run->call, &run->gpu) && gpu_send(&run->gpu, &run->call) &&
           plan_results(run) && allocate_outputs(run) && execute(run) && compare_output(run) &&
           write_outputs(run);
}

/* ---- Report ---------------------------------------------------------------------------------------- */

static json_t *real_or_null(double value) {
    json_t *number = json_real(value); /* NULL for infinities, which JSON does not have */
    return number ? number : json_null();
}

static json_t *outputs_json(const op_run *run) {
    json_t *all = json_object();
    for (int32_t i = 0; i < run->call.kernel->args->count; i++) {
        if (!is_wanted(run, i) && !target_of(run, i)) continue;
        const ejk_tensor *tensor = &run->call.owned[i].tensor;
        json_t *shape = json_array();
        for (int32_t k = 0; k < tensor->rank; k++)
            json_array_append_new(shape, json_integer(tensor->shape[k]));
        json_object_set_new(all, run->call.kernel->args->fields[i].name,
                            json_pack("{s:s, s:o, s:s?}", "dtype", ejk_dtype_name(tensor->dtype),
                                      "shape", shape, "file", target_of(run, i)));
    }
    return all;
}

static json_t *report_json(const op_run *run) {
    char *description;
    if (!succeeded(ejk_plan_describe(run->plan, &description))) return NULL;
    json_t *plan = json_loads(description, 0, NULL);
    ejk_free(description);
    double flops = ejk_plan_cost(run->plan).flops;
    json_t *report = json_pack("{s:s, s:o, s:f, s:o, s:o}", "op", run->call.kernel->op_id, "plan",
                               plan, "time_s", run->seconds, "gflops",
                               flops > 0 ? real_or_null(flops / run->seconds * 1e-9) : json_null(),
                               "outputs", outputs_json(run));
    if (report && run->wish->expect)
        json_object_set_new(report, "expect",
                            json_pack("{s:s, s:o, s:o, s:f, s:b}", "file", run->wish->expect,
                                      "relative_error", real_or_null(run->difference.relative),
                                      "maximum_error", real_or_null(run->difference.maximum),
                                      "tolerance", tolerance_of(run), "passed", passed(run)));
    return report;
}

static void print_report(const op_run *run) {
    const ejk_implementation *chosen = ejk_plan_implementation(run->plan);
    printf("%s by %s, ", run->call.kernel->op_id, chosen->name);
    if (run->gpu.device < 0)
        printf("threads %d: %.4g ms", (int)ejk_plan_workers(run->plan), run->seconds * 1e3);
    else
        printf("cuda:%d: %.4g ms", (int)run->gpu.device, run->seconds * 1e3);
    double flops = ejk_plan_cost(run->plan).flops;
    if (flops > 0 && run->seconds > 0) printf(", %.4g GFLOP/s", flops / run->seconds * 1e-9);
    putchar('\n');
    for (int32_t i = 0; i < run->call.kernel->args->count; i++)
        if (target_of(run, i))
            printf("%s written to %s\n", run->call.kernel->args->fields[i].name, target_of(run, i));
    if (run->wish->expect)
        printf("relative error %.3g, tolerance %.3g; maximum error %.3g: %s\n",
               run->difference.relative, tolerance_of(run), run->difference.maximum,
               passed(run) ? "passed" : "failed");
}

static int report(const op_run *run) {
    if (run->wish->json) {
        if (!print_json(report_json(run))) return FAILED;
    } else {
        print_report(run);
    }
    if (!run->wish->expect || passed(run)) return DONE;
    report_error("the result differs from %s by %.3g, expected at most %.3g", run->wish->expect,
                 run->difference.relative, tolerance_of(run));
    return DIFFERS;
}

/* ---- The command ----------------------------------------------------------------------------------- */

static int print_help(const ejk_kernel *kernel, const option *own) {
    puts("usage: ejk run OPERATION --INPUT FILE... [--output FILE] [--flag value]...\n\n"
         "Runs an operation on tensors from files, FILE.npy, FILE.safetensors:NAME or "
         "FILE.gguf:NAME, and writes\n"
         "its results as .npy. Of NAME that is updated in place, --NAME gives the file it is read\n"
         "from, --NAME-out the one that what became of it is written to. A list of tensors takes "
         "its\n"
         "files with commas between. Flags are --name value or --name=value.\n");
    if (!options_help(own)) return FAILED;
    if (!kernel) {
        puts("\nThe other flags are the operation's arguments: `ejk run OPERATION --help`.");
        return DONE;
    }
    char *help;
    if (!succeeded(ejk_record_help(kernel->args, &help))) return FAILED;
    printf("\nArguments of %s:\n%s", kernel->op_id, help);
    ejk_free(help);
    return DONE;
}

static int run_operation(const ejk_kernel *kernel, int count, char **words, const option *own,
                         const void *wanted) {
    const run_options *wish = wanted;
    op_run run = {.wish = wish, .gpu = {.device = -1}};
    int status = FAILED;
    if (!call_open(kernel, &run.call)) return FAILED;
    run.files = calloc((size_t)kernel->args->count, sizeof *run.files);
    run.updated = calloc((size_t)kernel->args->count, sizeof *run.updated);
    const field_flags fields = {
        .kernel = kernel, .args = run.call.args, .files = run.files, .updated = run.updated};
    if (!run.files || !run.updated)
        report_error("no memory for the flags of %s", kernel->op_id);
    else if (options_parse(count, words, own, &fields)) {
        int32_t output = call_first_output(kernel);
        if (wish->output && output >= 0)
            *(call_is_updated(&kernel->args->fields[output]) ? &run.updated[output]
                                                             : &run.files[output]) = wish->output;
        if (compute(&run)) status = report(&run);
    }
    ejk_plan_destroy(run.plan);
    ejk_context_destroy(run.context);
    gpu_close(&run.gpu, &run.call);
    ejk_owned_tensor_close(&run.expected);
    ejk_states_destroy(run.states);
    free(run.files);
    free(run.updated);
    call_close(&run.call);
    return status;
}

int run_command(int count, char **words) {
    run_options wish = {0};
    const option own[] = {
        {"output", OPTION_TEXT, &wish.output, "FILE", "where the first result goes, as .npy"},
        {"expect", OPTION_TEXT, &wish.expect, "FILE", "compare the first result with this tensor"},
        {"tolerance", OPTION_NUMBER, &wish.tolerance, "X",
         "largest relative error (Frobenius) for --expect; 1e-5, for float64 1e-10"},
        {"threads", OPTION_COUNT, &wish.threads, "N",
         "threads; default EJKERNEL_NUM_THREADS or all"},
        {"device", OPTION_TEXT, &wish.device, "NAME", "where to run: cpu, cuda or cuda:N"},
        {"platform", OPTION_TEXT, &wish.platform, "NAME", "auto, simd, reference or cuda"},
        {"isa", OPTION_TEXT, &wish.isa, "TIER", "highest instruction-set tier, as avx2"},
        {"config", OPTION_TEXT, &wish.config, "JSON", "explicit configuration of the operation"},
        {"json", OPTION_ALONE, &wish.json, "", "report as JSON"},
        {"help", OPTION_ALONE, &wish.help, "", "this text, with the operation's arguments"},
        {.name = NULL}};
    return call_command(&(op_command){"run", print_help, run_operation}, count, words, own, &wish);
}
