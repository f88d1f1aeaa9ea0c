/* SPDX-License-Identifier: Apache-2.0 */
/* `ejk bench`: from flags to shapes, threads and results. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All that a bench holds. */
typedef struct bench_state {
    const bench_options *wish;
    op_call call;  /* the arguments that are no tensors */
    op_call plain; /* platform and configuration only */
    call_layout layout;
    bench_request request;
    int32_t *threads;
    int thread_counts;
    bench_host host;
    bench_gpu gpu; /* what is measured once */
    bench_result *results;
    int count;
} bench_state;

/* ---- What is asked for ----------------------------------------------------------------------------- */

/* "1,2" as numbers; without a flag the library's own number. */
static bool read_threads(bench_state *state) {
    const char *text = state->wish->threads;
    state->threads = calloc(text ? strlen(text) + 1 : 1, sizeof *state->threads);
    if (!state->threads) return complain("no memory for --threads");
    if (!text) {
        state->threads[state->thread_counts++] = ejk_threads_default();
        return true;
    }
    for (const char *at = text;; at++) {
        char *end;
        long value = strtol(at, &end, 10);
        if (end == at || value < 1 || value > 1024 || (*end && *end != ','))
            return complain("--threads is '%s', expected numbers from 1 to 1024 as 1,2", text);
        state->threads[state->thread_counts++] = (int32_t)value;
        at = end;
        if (!*at) return true;
    }
}

static bool set_options(const bench_options *wish, const op_call *call) {
    return call_set_config(call, wish->config) &&
           call_set_platform(call->kernel, call->args, wish->platform);
}

static bool prepare(bench_state *state) {
    const bench_options *wish = state->wish;
    if (wish->shapes.count == 0)
        return complain("bench needs a shape, as --shape B=1,Hq=8,T=1024,D=64");
    if (wish->repeat > BENCH_MOST_REPETITIONS)
        return complain("--repeat is %d, expected at most %d", (int)wish->repeat,
                        (int)BENCH_MOST_REPETITIONS);
    if (!gpu_device(wish->device, &state->request.device)) return false;
    state->request.cold = wish->cold;
    state->request.arguments = &state->call;
    if (!set_options(wish, &state->call) || !set_options(wish, &state->plain) ||
        !shape_options(wish->dtype, wish->with, wish->layout, &state->request.shape) ||
        !layout_open(&wish->data, state->call.kernel, &state->layout))
        return false;
    state->request.shape.layout = &state->layout;
    if (wish->plain || layout_given(&state->layout)) state->request.plain = &state->plain;
    return read_threads(state);
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
    if (!arguments) complain("no memory for the arguments of a shape");
    return arguments;
}

static bool measure_case(const bench_state *state, ejk_context *context, bench_case *bench,
                         bench_case *plain, bench_result *out) {
    if (bench->device < 0) return bench_measure(bench, plain, context, state->wish, out);
    out->on_gpu = true;
    out->gpu = state->gpu;
    return bench_gpu_measure(bench, plain, state->wish, out) &&
           bench_gpu_measure_first(bench, context, &out->gpu);
}

/* In turn with the plain call. */
static bool measure_beside(const bench_state *state, ejk_context *context, bench_case *bench,
                           bench_result *out) {
    const bench_request request = bench_plain(&state->request);
    bench_case plain;
    if (!(bench->scores > 0))
        return complain("--plain is given, but what %s costs by visible score is not known",
                        state->call.kernel->op_id);
    if (!bench_case_open(&request, context, &plain)) return false;
    out->plain = shape_text(&request.shape.axes);
    const bool measured = out->plain && measure_case(state, context, bench, &plain, out);
    bench_case_close(&plain);
    return measured;
}

static bool measure_shape(const bench_state *state, ejk_context *context, bench_case *bench,
                          bench_result *out) {
    const char *against = state->wish->against;
    out->shape = shape_text(&state->request.shape.axes);
    out->arguments = arguments_json(&bench->call);
    out->dtype = state->request.shape.dtype;
    out->host = state->host;
    out->lengths = state->layout.text;
    out->alive = state->layout.alive;
    return out->shape && out->arguments && bench_verify(bench) &&
           (!against || bench_compare(bench, context, against, out)) &&
           (state->wish->plain ? measure_beside(state, context, bench, out)
                               : measure_case(state, context, bench, NULL, out));
}

static bool with_context(const bench_state *state, int32_t threads, ejk_context **out) {
    const ejk_context_options options = {.threads = threads, .isa = state->wish->isa};
    return succeeded(ejk_context_create(&options, out));
}

static bool add_result(bench_state *state, int32_t threads) {
    ejk_context *context;
    bench_case bench;
    if (!with_context(state, threads, &context)) return false;
    bool measured = bench_case_open(&state->request, context, &bench);
    if (measured) {
        measured = measure_shape(state, context, &bench, &state->results[state->count++]);
        bench_case_close(&bench);
    }
    ejk_context_destroy(context);
    return measured;
}

/* All symbols 8, batch and heads 1: what is left is the cost of calling. */
static bool measure_host(bench_state *state) {
    bench_request tiny = state->request;
    if (layout_given(&state->layout)) tiny = bench_plain(&tiny);
    tiny.plain = NULL;
    tiny.cold = false;
    for (int32_t i = 0; i < tiny.shape.axes.count; i++) {
        const char *name = tiny.shape.axes.axis[i].name;
        tiny.shape.axes.axis[i].length = *name == 'B' || *name == 'H' ? 1 : 8;
    }
    ejk_context *context;
    bench_case bench;
    if (!with_context(state, 1, &context)) return false;
    bool measured = bench_case_open(&tiny, context, &bench);
    if (measured) {
        measured = bench.device < 0
                       ? bench_measure_host(&bench, context, &state->host)
                       : bench_gpu_measure_host(&bench, context, &state->host, &state->gpu);
        bench_case_close(&bench);
    }
    ejk_context_destroy(context);
    return measured;
}

static bool measure_all(bench_state *state) {
    const texts *shapes = &state->wish->shapes;
    state->results =
        calloc((size_t)shapes->count * (size_t)state->thread_counts, sizeof *state->results);
    if (!state->results) return complain("no memory for the results");
    for (int i = 0; i < shapes->count; i++) {
        if (!shape_sizes(shapes->items[i], &state->layout, &state->request.shape.axes))
            return false;
        if (i == 0 && !measure_host(state)) return false;
        const int rows = state->request.device < 0 ? state->thread_counts : 1;
        for (int k = 0; k < rows; k++)
            if (!add_result(state, state->threads[k])) return false;
    }
    return true;
}

/* ---- The command ----------------------------------------------------------------------------------- */

static const char method[] =
    "\nMethod. Inputs are uniform in [-1, 1), masks true nine times in ten. The result is\n"
    "computed once into memory full of NaN and has to be finite; --against compares it with\n"
    "another platform's. After warming up, ceilings and batches of runs (20 ms or more) "
    "alternate:\n"
    "the multiply-add ceiling of the implementation's tier and type, on as many threads, is\n"
    "measured before and after each batch, and a share is the batch's rate over the mean of these\n"
    "two. The report has medians over all repetitions; shares are medians of shares. A loop that\n"
    "notices whether another program uses the same cores runs before and after each batch too;\n"
    "repetitions with cores to themselves are counted, and their median share is told besides.\n"
    "FLOPs count what causal, window, --lengths and --alive leave visible; bytes count inputs and\n"
    "outputs once. --lengths packs sequences (cum_seqlens_q and cum_seqlens_k), and --alive fills "
    "a\n"
    "MaskInfo: in each row of blocks as many are full, at random places. --plain compares with "
    "the\n"
    "dense call without masks, biases, sinks and caps, for packed sequences with as many of one\n"
    "length and as many scores: a batch of it follows each batch, and the median quotient of "
    "their\n"
    "times per visible score is told.\n"
    "Shapes with fewer than 8 FLOPs per byte, and all with --cold, take their inputs in turn from "
    "as "
    "much\n"
    "memory as twice the last cache for each thread, and the read ceiling of a buffer of that\n"
    "size, read from one place or from four in turn, whichever is faster, is measured around\n"
    "each batch as well. Elsewhere inputs may lie in a cache, and a share of bandwidth\n"
    "above 1 says that they do. Host cost is the time of a call, and of a plan's execution, with\n"
    "all sizes 8 and one head, on one thread: the median of batches.\n\n"
    "On a GPU times are taken by events: alone, behind 256 MiB that are set, half a second after\n"
    "what came before (10 times, or --repeat), and in a row of 10 launches (5 times, or "
    "--repeat).\n"
    "The ceilings, tensor cores and reading, are measured in both ways before and after; a share "
    "is\n"
    "over the mean of the two. Host cost of a plan is told with what of it is the driver's "
    "launch;\n"
    "first use is what making the plan takes with the compiler, and from the disk.\n";

static int print_help(const ejk_kernel *kernel, const option *own) {
    puts(
        "usage: ejk bench OPERATION --shape B=1,Hq=8,T=1024,D=64 [--flag value]...\n"
        "       ejk bench mask_info [--flag value]...\n\n"
        "Measures an operation and what share of this machine's ceilings it reaches. Symbols of a\n"
        "shape left out are B=1, Hkv=Hq, S=T, Dv=D. Flags are --name value or --name=value.\n");
    if (!options_help(own)) return FAILED;
    fputs(method, stdout);
    call_help_flags(kernel);
    return DONE;
}

static int bench_operation(const ejk_kernel *kernel, int count, char **words, const option *own,
                           const void *wanted) {
    const bench_options *wish = wanted;
    bench_state state = {.wish = wish};
    const bool opened = call_open(kernel, &state.call) && call_open(kernel, &state.plain);
    const field_flags fields = {kernel, state.call.args, NULL, NULL};
    bool measured = opened && options_parse(count, words, own, &fields) && prepare(&state) &&
                    measure_all(&state) &&
                    bench_report(kernel, state.results, state.count, wish->json) &&
                    (!wish->plot || bench_plot(wish->plot, kernel, state.results, state.count));
    for (int i = 0; i < state.count; i++) bench_result_close(&state.results[i]);
    free(state.results);
    free(state.threads);
    layout_close(&state.layout);
    if (opened) call_close(&state.plain);
    if (state.call.args) call_close(&state.call);
    return measured ? DONE : FAILED;
}

int bench_command(int count, char **words) {
    if (count > 0 && strcmp(words[0], "mask_info") == 0)
        return bench_mask_info(count - 1, words + 1);
    bench_options wish = {.seconds = 3};
    const option own[] = {
        {"shape", OPTION_TEXTS, &wish.shapes, "SIZES", "sizes of the symbols; may be repeated"},
        {"dtype", OPTION_TEXT, &wish.dtype, "TYPE", "element type of the inputs; default f32"},
        {"with", OPTION_TEXT, &wish.with, "NAMES", "optional tensors to give, as bias,softmax_aux"},
        {"layout", OPTION_TEXT, &wish.layout, "ORDER", "bthd (default), or bhtd: heads first"},
        LAYOUT_OPTIONS(&wish.data),
        {"plain", OPTION_ALONE, &wish.plain, "",
         "tell the time per visible score over that of the plain call, measured in turn"},
        {"threads", OPTION_TEXT, &wish.threads, "N,...", "numbers of threads, each one a row"},
        {"isa", OPTION_TEXT, &wish.isa, "TIER", "highest instruction-set tier, as avx2"},
        {"platform", OPTION_TEXT, &wish.platform, "NAME", "auto, simd, reference or cuda"},
        {"device", OPTION_TEXT, &wish.device, "NAME", "cpu (default), cuda or cuda:N"},
        {"config", OPTION_TEXT, &wish.config, "JSON", "explicit configuration of the operation"},
        {"seconds", OPTION_NUMBER, &wish.seconds, "X",
         "time of measuring a row; default 3; not on a GPU"},
        {"repeat", OPTION_COUNT, &wish.repeat, "N", "repetitions, in place of --seconds"},
        {"cold", OPTION_ALONE, &wish.cold, "", "let every run find its inputs in memory only"},
        {"against", OPTION_TEXT, &wish.against, "NAME", "a platform to compare results with"},
        {"plot", OPTION_TEXT, &wish.plot, "FILE", "draw a roofline, as SVG"},
        {"json", OPTION_ALONE, &wish.json, "", "report as JSON"},
        {"help", OPTION_ALONE, &wish.help, "", "this text"},
        {.name = NULL}};
    if (!options_texts(count, &wish.shapes)) return FAILED;
    const int status =
        call_command(&(op_command){"bench", print_help, bench_operation}, count, words, own, &wish);
    free(wish.shapes.items);
    return status;
}
