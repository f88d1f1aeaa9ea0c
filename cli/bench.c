/* SPDX-License-Identifier: Apache-2.0 */
/* `ejk bench`: from flags and lists to calls, threads and results. */
#include "bench.h"
#include "interrupt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The calling thread's own, CU_STREAM_PER_THREAD: the default stream cannot be captured. */
#define CAPTURED_STREAM ((void *)(uintptr_t)2)

/* What calling an operation costs, measured once for each. */
typedef struct host_facts {
    const ejk_kernel *kernel;
    bench_host host;
    bench_gpu gpu;
} host_facts;

/* All that a bench holds. */
typedef struct bench_state {
    const bench_options *wish;
    ejk_context *catalogue; /* what lines are read in */
    line_call *lines;
    int line_count;
    int32_t device; /* -1 = the CPU */
    void *stream;
    int32_t *threads;
    int thread_counts;
    bench_peer *peer;
    host_facts host;
    bench_result *results;
    int count, failures;
    const volatile int *cancel; /* not 0: somebody wants it to end */
} bench_state;

/* ---- What is asked for ----------------------------------------------------------------------------- */

/* "1,2" as numbers; without a flag the library's own number. */
static bool read_threads(bench_state *state) {
    const char *text = state->wish->threads;
    state->threads = calloc(text ? strlen(text) + 1 : 1, sizeof *state->threads);
    if (!state->threads) return report_error("no memory for --threads");
    if (!text) {
        state->threads[state->thread_counts++] = ejk_threads_default();
        return true;
    }
    for (const char *at = text;; at++) {
        char *end;
        long value = strtol(at, &end, 10);
        if (end == at || value < 1 || value > 1024 || (*end && *end != ','))
            return report_error("--threads is '%s', expected numbers from 1 to 1024 as 1,2", text);
        state->threads[state->thread_counts++] = (int32_t)value;
        at = end;
        if (!*at) return true;
    }
}

static bool add_room(bench_state *state) {
    line_call *lines = realloc(state->lines, ((size_t)state->line_count + 1) * sizeof *lines);
    if (!lines) return report_error("no memory for %d calls", state->line_count + 1);
    state->lines = lines;
    return true;
}

static bool add_shapes(bench_state *state, const ejk_kernel *kernel, const char *items) {
    const bench_options *wish = state->wish;
    if (wish->suite)
        return report_error("--suite brings its own calls, but %s is given", kernel->op_id);
    if (wish->shapes.count == 0) return line_needs_shape("bench", kernel);
    for (int i = 0; i < wish->shapes.count; i++)
        if (!add_room(state) ||
            !line_of_words(kernel, wish->shapes.items[i], &wish->words, items, state->catalogue,
                           &state->lines[state->line_count++]))
            return false;
    return true;
}

/* One of a list. */
static ejk_status add_problem(void *user, int64_t number, ejk_problem *problem) {
    bench_state *state = user;
    (void)number;
    if (add_room(state) && line_of_problem(problem, &state->wish->words, state->catalogue,
                                           &state->lines[state->line_count++]))
        return EJK_OK;
    state->failures++;
    return EJK_STATUS_INVALID_ARGUMENT;
}

static bool add_suite(bench_state *state) {
    const bench_options *wish = state->wish;
    const call_words *words = &wish->words;
    if (!wish->suite)
        return report_error("bench needs an operation first, as `ejk bench OPERATION --help`, or "
                            "--suite");
    if (wish->shapes.count || words->dtype || words->with || words->layout)
        return report_error("--suite brings its own calls, --%s cannot be given with it",
                            wish->shapes.count ? "shape"
                            : words->dtype     ? "dtype"
                            : words->with      ? "with"
                                               : "layout");
    const ejk_status status =
        ejk_problem_read_file(state->catalogue, wish->suite, add_problem, state);
    if (status != EJK_OK && state->failures > 0) return false; /* it was said */
    return succeeded(status) &&
           (state->line_count > 0 || report_error("%s has no calls", wish->suite));
}

static bool prepare(bench_state *state) {
    const bench_options *wish = state->wish;
    if (wish->repeat > BENCH_MOST_REPETITIONS)
        return report_error("--repeat is %d, expected at most %d", (int)wish->repeat,
                            (int)BENCH_MOST_REPETITIONS);
    if (wish->row > BENCH_MOST_REPETITIONS)
        return report_error("--row is %d, expected at most %d", (int)wish->row,
                            (int)BENCH_MOST_REPETITIONS);
    if (wish->plain && wish->beside)
        return report_error("--plain and --beside are given, expected one");
    const size_t rows = (size_t)state->line_count;
    if (!gpu_device(wish->words.device, &state->device) || !read_threads(state)) return false;
    if (wish->graph && state->device < 0)
        return report_error("--graph is for calls on a GPU, expected --device cuda");
    if (wish->graph) state->stream = CAPTURED_STREAM;
    state->results = calloc(rows * (size_t)state->thread_counts, sizeof *state->results);
    return state->results || report_error("no memory for the results");
}

/* ---- Measuring ------------------------------------------------------------------------------------- */

static char *shape_text(const ejk_axes *axes) {
    char text[sizeof axes->axis / sizeof *axes->axis * 32];
    size_t used = 0;
    *text = '\0';
    for (int32_t i = 0; i < axes->count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s=%lld", i ? "," : "",
                                 axes->axis[i].name, (long long)axes->axis[i].length);
    return strdup(text);
}

/* Scalars as they are set, tensors with their types and shapes. */
static json_t *arguments_json(const op_call *call) {
    char *text;
    if (!succeeded(ejk_record_to_json(call->kernel->args, call->args, EJK_JSON_SET_ONLY, &text)))
        return NULL;
    json_t *arguments = json_loads(text, 0, NULL);
    ejk_free(text);
    if (!arguments) report_error("no memory for the arguments of a shape");
    return arguments;
}

static ejk_dtype first_dtype(const op_call *call) {
    for (int32_t i = 0; i < call_count(call->kernel); i++) {
        const ejk_tensor *tensor = call_tensor(call->kernel, call->args, i);
        if (tensor && ejk_tensor_present(tensor)) return tensor->dtype;
    }
    return EJK_DTYPE_UNSET;
}

/* What is known of a row before it is measured. */
static bool describe(const line_call *line, const op_call *call, const ejk_plan *plan,
                     int32_t threads, bench_result *out) {
    out->kernel = call->kernel;
    out->threads = threads;
    out->problem = line_text(call->kernel, call->args, ejk_problem_inputs(line->problem));
    out->shape = shape_text(ejk_problem_axes(line->problem));
    out->arguments = arguments_json(call);
    out->dtype = first_dtype(call);
    out->plan = bench_describe(plan);
    return out->problem && out->shape && out->arguments && out->plan;
}

static bool measure_case(const bench_state *state, ejk_context *context, bench_case *bench,
                         bench_case *other, bench_result *out) {
    bench_beside beside = {.other = other, .peer = state->peer};
    if (beside.peer && !bench_peer_begin(beside.peer, bench, out)) return false;
    if (out->peer_skips) beside.peer = NULL;
    out->host = state->host.host;
    if (bench->device < 0) return bench_measure(bench, &beside, context, state->wish, out);
    out->on_gpu = true;
    out->gpu = state->host.gpu;
    return bench_gpu_measure(bench, &beside, state->wish, out) &&
           bench_gpu_measure_first(bench, context, &out->gpu);
}

static bench_request request_of(const bench_state *state, const op_call *call,
                                const ejk_inputs *inputs) {
    return (bench_request){call, inputs,
                           state->wish->cold ? BENCH_ROTATE : BENCH_ROTATE_BY_INTENSITY,
                           state->device, state->stream};
}

static bool measure_with(const bench_state *state, ejk_context *context, bench_case *bench,
                         const op_call *other, const ejk_inputs *inputs, bench_result *out) {
    const bench_request request = request_of(state, other, inputs);
    bench_case beside;
    if (!bench_case_open(&request, context, &beside)) return false;
    out->beside = line_text(other->kernel, other->args, inputs);
    const bool measured = out->beside && measure_case(state, context, bench, &beside, out);
    bench_case_close(&beside);
    return measured;
}

/* In turn with the plain call, or with one that is given. */
static bool measure_beside(const bench_state *state, ejk_context *context, const line_call *line,
                           bench_case *bench, bench_result *out) {
    const ejk_inputs any = {.seed = 0};
    line_call other = {.problem = NULL};
    const bool measured =
        state->wish->plain
            ? line_plain(line, &other.call) &&
                  measure_with(state, context, bench, &other.call, &any, out)
            : line_read(state->wish->beside, &state->wish->words, state->catalogue, &other) &&
                  measure_with(state, context, bench, &other.call,
                               ejk_problem_inputs(other.problem), out);
    line_close(&other);
    return measured;
}

static bool measure_row(const bench_state *state, ejk_context *context, const line_call *line,
                        bench_case *bench, bench_result *out) {
    const bench_options *wish = state->wish;
    const int32_t threads = ejk_threads_count(ejk_context_threads(context));
    return describe(line, &bench->call, bench->plan, threads, out) && bench_verify(bench) &&
           (!wish->against || bench_compare(bench, context, wish->against, out)) &&
           (wish->plain || wish->beside ? measure_beside(state, context, line, bench, out)
                                        : measure_case(state, context, bench, NULL, out));
}

static bool with_context(const bench_state *state, int32_t threads, ejk_context **out) {
    const ejk_context_options options = {
        .threads = threads, .isa = state->wish->words.isa, .stream = state->stream};
    return succeeded(ejk_context_create(&options, out));
}

static int rows_in_all(const bench_state *state) {
    return state->line_count * (state->device < 0 ? state->thread_counts : 1);
}

static bool add_result(bench_state *state, const line_call *line, int32_t threads) {
    const bench_request request = request_of(state, &line->call, ejk_problem_inputs(line->problem));
    ejk_context *context;
    bench_case bench;
    if (!with_context(state, threads, &context)) return false;
    bench_result *out = &state->results[state->count];
    bool measured = bench_case_open(&request, context, &bench);
    if (measured) {
        measured = measure_row(state, context, line, &bench, out);
        bench_case_close(&bench);
    }
    if (measured)
        bench_tell(out, ++state->count, rows_in_all(state));
    else
        bench_result_close(out);
    ejk_context_destroy(context);
    return measured;
}

/* The plain call with all sizes 1: what is left is the cost of calling. */
static bool tiny_text(const line_call *line, item_text *out) {
    op_call plain;
    ejk_axes symbols;
    if (!line_plain(line, &plain)) return false;
    bool made = succeeded(ejk_record_symbols(plain.kernel->args, plain.args, &symbols)) &&
                item_text_add(out, "dtype=%s", ejk_dtype_name(first_dtype(&plain)));
    for (int32_t i = 0; made && i < symbols.count; i++)
        made = item_text_add(out, ",%s=1", symbols.axis[i].name);
    call_close(&plain);
    return made;
}

/* Without a problem where the operation takes no such sizes: what calling costs is not known then. */
static bool tiny_line(const bench_state *state, const line_call *line, ejk_context *context,
                      line_call *out) {
    const ejk_kernel *kernel = line->call.kernel;
    const call_words words = {.platform = state->wish->words.platform,
                              .config = state->wish->words.config};
    item_text text = {.text = NULL};
    ejk_plan *plan;
    bool made = item_text_add(&text, "%s:", kernel->op_id) && tiny_text(line, &text);
    if (made && ejk_problem_parse(context, text.text, &out->problem) == EJK_OK) {
        ejk_problem_destroy(out->problem);
        made = line_read(text.text, &words, context, out);
        gpu_place_tensors(state->device, kernel, out->call.args);
        if (made && ejk_plan_create(context, kernel, out->call.args, &plan) == EJK_OK)
            ejk_plan_destroy(plan);
        else
            line_close(out);
    }
    free(text.text);
    return made;
}

/* Once for each operation of a list that has its calls together. */
static bool measure_host(bench_state *state, const line_call *line) {
    if (state->host.kernel == line->call.kernel) return true;
    state->host = (host_facts){.kernel = line->call.kernel};
    line_call tiny = {.problem = NULL};
    ejk_context *context;
    bench_case bench;
    if (!with_context(state, 1, &context)) return false;
    bool measured = tiny_line(state, line, context, &tiny);
    const bench_request request = {&tiny.call, ejk_problem_inputs(tiny.problem), BENCH_KEEP,
                                   state->device, state->stream};
    if (measured && tiny.problem && (measured = bench_case_open(&request, context, &bench))) {
        host_facts *host = &state->host;
        measured = bench.device < 0
                       ? bench_measure_host(&bench, context, &host->host)
                       : bench_gpu_measure_host(&bench, context, &host->host, &host->gpu);
        bench_case_close(&bench);
    }
    line_close(&tiny);
    ejk_context_destroy(context);
    return measured;
}

/* What would be measured. */
static bool add_plan(bench_state *state, const line_call *line, int32_t threads) {
    ejk_context *context;
    ejk_plan *plan;
    op_call call;
    if (!with_context(state, threads, &context)) return false;
    bool made = call_open(line->call.kernel, &call);
    if (made) {
        bench_result *out = &state->results[state->count++];
        memcpy(call.args, line->call.args, call.kernel->args->size);
        gpu_place_tensors(state->device, call.kernel, call.args);
        made = call_plan(&call, context, &plan);
        if (made) {
            out->cost = ejk_plan_cost(plan);
            made = describe(line, &call, plan, threads, out);
            ejk_plan_destroy(plan);
        }
        call_close(&call);
    }
    ejk_context_destroy(context);
    return made;
}

static bool measure_line(bench_state *state, const line_call *line) {
    const int rows = state->device < 0 ? state->thread_counts : 1;
    if (!state->wish->plan && !measure_host(state, line)) return false;
    for (int k = 0; k < rows && !*state->cancel; k++)
        if (!(state->wish->plan ? add_plan(state, line, state->threads[k])
                                : add_result(state, line, state->threads[k])))
            return false;
    return true;
}

/* Of a list, a call that cannot be measured is told and left out. Once interrupted, what is measured is reported. */
static bool measure_all(bench_state *state) {
    for (int i = 0; i < state->line_count && !*state->cancel; i++) {
        const line_call *line = &state->lines[i];
        if (measure_line(state, line)) continue;
        char *text = line_text(line->call.kernel, line->call.args, NULL);
        if (state->wish->suite && text) report_error("%s is left out", text);
        free(text);
        state->failures++;
        if (!state->wish->suite) return false;
    }
    if (*state->cancel) {
        report_error("interrupted after %d of %d rows", state->count, rows_in_all(state));
        state->failures++;
    }
    return state->count > 0;
}

/* ---- The command ----------------------------------------------------------------------------------- */

static const char method[] =
    "\nMethod. Floats are uniform in [-1, 1), masks true nine times in ten, integers what suits "
    "the\n"
    "operation. Results are computed once into memory full of NaN, and the first has to be "
    "finite;\n"
    "--against compares all with another platform's. After warming up, ceilings and batches of "
    "runs\n"
    "(20 ms or more) alternate: the multiply-add ceiling of the implementation's tier and type, "
    "on\n"
    "as many threads, is measured before and after each batch, and a share is the batch's rate "
    "over\n"
    "the mean of these two. Times and shares are medians over repetitions. A repetition that was\n"
    "disturbed does not count: one in which a thread waited more than 1 % of the time for its "
    "core,\n"
    "as the scheduler counts it, or beside which the core's other hardware thread was busy. If "
    "all\n"
    "were, all count, and a warning says so; another one is given where a share is above 102 %.\n"
    "FLOPs count what the arguments and the data leave to be done; bytes count inputs and outputs\n"
    "once. --beside and --plain measure another call in turn: the median quotient of times for a\n"
    "FLOP is told.\n"
    "Calls with fewer than 8 FLOPs per byte, and all with --cold, take their inputs in turn from "
    "as\n"
    "much memory as twice the last cache for each thread, and the read ceiling of a buffer of "
    "that\n"
    "size, read from one place or from four in turn, whichever is faster, is measured around\n"
    "each batch as well. Elsewhere inputs may lie in a cache, and a share of bandwidth\n"
    "above 1 says that they do. Host cost is the time of a call, and of a plan's execution, with\n"
    "all sizes 1, on one thread: the median of batches.\n\n"
    "On a GPU times are taken by events: alone, behind 256 MiB that are set, half a second after\n"
    "what came before (10 times, or --repeat), and in a row of 10 launches or --row\n"
    "(5 times, or --repeat).\n"
    "The ceilings, tensor cores and reading, are measured in both ways before and after; a share "
    "is\n"
    "over the mean of the two. Host cost of a plan is told with what of it is the driver's "
    "launch;\n"
    "first use is what making the plan takes with the compiler, and from the disk.\n";

static int print_help(const ejk_kernel *kernel, const option *own) {
    puts("usage: ejk bench OPERATION --shape SYMBOL=SIZE,... [--flag value]...\n"
         "       ejk bench --suite FILE [--flag value]...\n"
         "       ejk bench mask_info [--flag value]...\n\n"
         "Measures an operation, or the calls of a list, and what share of this machine's ceilings "
         "is\n"
         "reached. A shape has the sizes of the operation's symbols, and may have any other item "
         "of\n"
         "a problem's text; flags are --name value or --name=value.\n");
    if (!options_help(own)) return FAILED;
    fputs(method, stdout);
    call_help_flags(kernel);
    return DONE;
}

static bool report(const bench_state *state) {
    const bench_options *wish = state->wish;
    if (wish->plan) return bench_report_plans(state->results, state->count, wish->json);
    return bench_report(state->results, state->count, wish->json) &&
           (!wish->plot || bench_plot(wish->plot, state->results, state->count));
}

/* Of an operation whose flags are `words`, or of a list if `kernel` is NULL. */
static int bench(const ejk_kernel *kernel, int count, char **words, const option *own,
                 const bench_options *wish) {
    bench_state state = {.wish = wish, .cancel = interrupt_begin()};
    item_text items = {.text = NULL};
    const field_flags fields = {.kernel = kernel, .items = &items};
    const bool done = options_parse(count, words, own, kernel ? &fields : NULL) &&
                      open_catalogue(&state.catalogue) &&
                      (kernel ? add_shapes(&state, kernel, items.text) : add_suite(&state)) &&
                      prepare(&state) &&
                      (!wish->peer || bench_peer_open(wish->peer, &state.peer)) &&
                      measure_all(&state) && report(&state);
    interrupt_end();
    bench_peer_close(state.peer);
    for (int i = 0; i < state.count; i++) bench_result_close(&state.results[i]);
    for (int i = 0; i < state.line_count; i++) line_close(&state.lines[i]);
    free(state.results);
    free(state.lines);
    free(state.threads);
    free(items.text);
    ejk_context_destroy(state.catalogue);
    return done && state.failures == 0 ? DONE : FAILED;
}

static int bench_operation(const ejk_kernel *kernel, int count, char **words, const option *own,
                           const void *wanted) {
    return bench(kernel, count, words, own, wanted);
}

int bench_command(int count, char **words) {
    if (count > 0 && strcmp(words[0], "mask_info") == 0)
        return bench_mask_info(count - 1, words + 1);
    bench_options wish = {.seconds = 3};
    call_words *call = &wish.words;
    const option own[] = {
        {"shape", OPTION_TEXTS, &wish.shapes, "SIZES",
         "sizes of the symbols, and any item of a line; may be repeated"},
        {"suite", OPTION_TEXT, &wish.suite, "FILE", "a list of calls, one on each line, instead"},
        LINE_OPTIONS(call),
        {"threads", OPTION_TEXT, &wish.threads, "N,...", "numbers of threads, each one a row"},
        {"config", OPTION_TEXT, &call->config, "JSON", "explicit configuration of the operation"},
        {"seconds", OPTION_NUMBER, &wish.seconds, "X",
         "time of measuring a row; default 3; not on a GPU"},
        {"repeat", OPTION_COUNT, &wish.repeat, "N", "repetitions, in place of --seconds"},
        {"row", OPTION_COUNT, &wish.row, "N", "launches in a row, on a GPU; default 10"},
        {"graph", OPTION_ALONE, &wish.graph, "", "time them from a captured graph, too"},
        {"cold", OPTION_ALONE, &wish.cold, "", "let every run find its inputs in memory only"},
        {"plain", OPTION_ALONE, &wish.plain, "",
         "tell the time for a FLOP over that of the call without options, measured in turn"},
        {"beside", OPTION_TEXT, &wish.beside, "CALL", "the same over that of another call"},
        {"against", OPTION_TEXT, &wish.against, "NAME", "a platform to compare results with"},
        {"against-python", OPTION_TEXT, &wish.peer, "SCRIPT",
         "a script that computes the same, timed in turn"},
        {"plan", OPTION_ALONE, &wish.plan, "", "only tell what would run"},
        {"plot", OPTION_TEXT, &wish.plot, "FILE", "draw a roofline, as SVG"},
        {"json", OPTION_ALONE, &wish.json, "", "report as JSON"},
        {"help", OPTION_ALONE, &wish.help, "", "this text"},
        {.name = NULL}};
    if (!options_texts(count, &wish.shapes)) return FAILED;
    const bool list = count == 0 || words[0][0] == '-';
    const int status = list && !options_ask_help(count, words)
                           ? bench(NULL, count, words, own, &wish)
                           : call_command(&(op_command){"bench", print_help, bench_operation},
                                          count, words, own, &wish);
    free(wish.shapes.items);
    return status;
}
