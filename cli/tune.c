/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ejk tune`: measures which configuration of a call is fastest, and stores it where every process finds
 * it. The chain that remembers has no file of its own, so that a choice which rests on nothing, because it
 * was interrupted, can be left out.
 */
#include "tune.h"

#include "gpu.h"
#include "interrupt.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All that a tuning holds. */
typedef struct tune_state {
    const tune_options *wish;
    ejk_context *context;
    ejk_config_selector_chain *chain;
    ejk_executor *executor;
    config_store store;
    progress_bar bar;
    const volatile int *cancel;
    int32_t device;          /* of recorded calls; -1 = the CPU */
    json_t *tuned, *skipped; /* lists, with --json and of a recording */
    int kept;                /* choices in the cache, or told where --no-store is given */
    bool failed;             /* something that was told could not be printed or stored */
    bool unkept;             /* a choice rests on no comparison, and so is in no cache */
} tune_state;

/* ---- What was found ---------------------------------------------------------------------------------- */

static const char *why_not_stored(const tune_state *state, const ejk_tune_report *report) {
    if (state->wish->no_store) return "--no-store is given";
    if (!ejk_tune_report_is_settled(report))
        return report->cancelled ? "interrupted before anything proved faster than the default"
                                 : "the budget ended before candidates could be compared";
    return NULL;
}

static bool store_choice(tune_state *state, const ejk_config_key *key) {
    ejk_config_entry entry;
    bool found;
    if (!succeeded(ejk_config_cache_get(ejk_config_selector_chain_cache(state->chain), key, &entry,
                                        &found)))
        return false;
    bool stored = found && succeeded(ejk_persistent_cache_put(state->store.cache, key, &entry));
    if (found) ejk_config_entry_release(&entry);
    return stored;
}

static void told(void *user, const ejk_tuned_call *call) {
    tune_state *state = user;
    tune_outcome outcome = {.call = call, .unstored = why_not_stored(state, call->report)};
    progress_clear(&state->bar);
    if (!outcome.unstored) {
        bool stored = store_choice(state, call->key);
        if (stored && !ejk_persistent_cache_is_memory_only(state->store.cache))
            outcome.path = state->store.path;
        else
            outcome.unstored = "the cache cannot be written";
        state->failed |= !outcome.path;
    }
    const bool kept = outcome.path || state->wish->no_store;
    state->kept += kept;
    state->unkept |= !kept;
    if (state->wish->json) {
        json_t *object = tune_report_json(&outcome);
        state->failed |= !object || json_array_append_new(state->tuned, object) != 0;
        return;
    }
    if (state->bar.number > 1) putchar('\n');
    state->failed |= !tune_report_print(&outcome);
    fflush(stdout);
}

/* ---- Tuning ------------------------------------------------------------------------------------------ */

static ejk_status tune_call(tune_state *state, const ejk_kernel *kernel, const void *args) {
    const tune_options *wish = state->wish;
    void *configs = NULL;
    ejk_autotune_options options = {.pass = wish->backward ? EJK_TUNE_BACKWARD : EJK_TUNE_FORWARD,
                                    .tuner = {.time_s = wish->budget,
                                              .seed = (uint64_t)wish->seed,
                                              .cancel = state->cancel,
                                              .progress = progress_show,
                                              .progress_user = &state->bar}};
    if (!tune_candidates(&wish->candidates, kernel, &configs, &options.config_count)) {
        state->failed = true;
        return EJK_STATUS_INVALID_ARGUMENT;
    }
    options.configs = configs;
    const ejk_status status =
        ejk_executor_autotune(state->executor, kernel, args, &options, told, state);
    progress_clear(&state->bar);
    free(configs);
    return status;
}

/* An operation, and its flags as items of a line. */
typedef struct tune_request {
    const ejk_kernel *kernel;
    const char *items;
} tune_request;

static bool is_free(const ejk_problem *problem) {
    const ejk_kernel *kernel = ejk_problem_kernel(problem);
    size_t offset;
    const ejk_field *config =
        kernel->config_field ? ejk_record_find(kernel->args, kernel->config_field, &offset) : NULL;
    return !config || !ejk_record_is_set(config, ejk_problem_args(problem)) ||
           report_error("tune chooses the configuration, but --%s is given", config->name);
}

/* The line of a call and its place are read in the context that it is tuned in. */
static bool tune_operation(tune_state *state, const tune_request *request) {
    const call_words *words = &state->wish->call;
    line_call line;
    if (!words->shape) return line_needs_shape("tune", request->kernel);
    bool done = line_of_words(request->kernel, words->shape, words, request->items, state->context,
                              &line) &&
                is_free(line.problem) && line_place(&line, words->device, state->context);
    if (done) {
        state->bar.number = state->bar.total = 1;
        const ejk_status status = tune_call(state, line.call.kernel, line.call.args);
        done = !state->failed && succeeded(status);
    }
    line_close(&line);
    return done;
}

/* ---- Recordings -------------------------------------------------------------------------------------- */

static void skip(tune_state *state, const char *problem) {
    if (state->wish->json)
        json_array_append_new(state->skipped, json_pack("{s:s, s:s}", "problem", problem, "reason",
                                                        ejk_last_error()));
    else
        report_error("%s is passed over: %s", problem, ejk_last_error());
}

/* The call of a problem on the device that is asked for; tensors that have data bring it along. */
static ejk_status tune_problem(tune_state *state, const ejk_problem *problem) {
    const ejk_kernel *kernel = ejk_problem_kernel(problem);
    const void *args = ejk_problem_args(problem);
    op_call call;
    if (state->device < 0) return tune_call(state, kernel, args);
    if (!call_open(kernel, &call)) return EJK_STATUS_OUT_OF_MEMORY;
    memcpy(call.args, args, kernel->args->size);
    const bool moved = gpu_copy_tensors(state->device, &call);
    const ejk_status status =
        moved ? tune_call(state, kernel, call.args) : EJK_STATUS_OUT_OF_MEMORY;
    call_close(&call);
    return status;
}

static ejk_status tune_recorded(void *user, const ejk_recorded_invocation *invocation) {
    tune_state *state = user;
    ejk_problem *problem;
    if (*state->cancel || state->failed) return EJK_OK;
    state->bar.number++;
    ejk_status status = ejk_problem_parse(state->context, invocation->problem, &problem);
    if (status == EJK_OK) {
        status = tune_problem(state, problem);
        ejk_problem_destroy(problem);
    }
    if (status != EJK_OK && !state->failed) skip(state, invocation->problem);
    return EJK_OK;
}

static bool tune_recording(tune_state *state) {
    ejk_recording *recording;
    if (!succeeded(ejk_recording_create(&recording))) return false;
    bool done = succeeded(ejk_recording_load(recording, state->context, state->wish->recorded));
    state->bar.total = (int)ejk_recording_count(recording);
    if (done) done = succeeded(ejk_get_invocations(recording, NULL, tune_recorded, state));
    ejk_recording_destroy(recording);
    return done && !state->failed;
}

static bool print_recorded(tune_state *state) {
    bool cancelled = *state->cancel != 0;
    if (cancelled && !state->wish->json)
        printf("\nInterrupted at call %d of %d.\n", state->bar.number, state->bar.total);
    return !state->wish->json ||
           print_json(json_pack("{s:s, s:i, s:O, s:O, s:b}", "recorded", state->wish->recorded,
                                "calls", state->bar.total, "tuned", state->tuned, "skipped",
                                state->skipped, "cancelled", (int)cancelled));
}

/* ---- The command ------------------------------------------------------------------------------------- */

static bool open_state(tune_state *state) {
    const tune_options *wish = state->wish;
    state->tuned = json_array();
    state->skipped = json_array();
    state->bar = progress_open();
    if (!state->tuned || !state->skipped) return report_error("no memory for the report");
    return gpu_device(wish->call.device, &state->device) &&
           line_context(&wish->call, &state->context) &&
           succeeded(ejk_config_selector_chain_create(NULL, &state->chain)) &&
           succeeded(ejk_executor_create(state->context,
                                         &(ejk_executor_options){.selector = state->chain},
                                         &state->executor)) &&
           (wish->no_store || store_open(wish->cache, true, &state->store));
}

static void close_state(tune_state *state) {
    store_close(&state->store);
    ejk_executor_destroy(state->executor);
    ejk_config_selector_chain_destroy(state->chain);
    ejk_context_destroy(state->context);
    json_decref(state->tuned);
    json_decref(state->skipped);
}

/* DONE promises that a later call finds every choice. */
static int status_of(const tune_state *state, bool done) {
    if (!done) return FAILED;
    const bool none = state->bar.total > 0 && state->kept == 0;
    const bool cut_short = state->wish->recorded && *state->cancel;
    return state->unkept || none || cut_short ? DIFFERS : DONE;
}

/* Tunes a call, or the recording if there is none. */
static int tune(const tune_options *wish, const tune_request *request) {
    tune_state state = {.wish = wish};
    bool done = open_state(&state);
    if (done) {
        state.cancel = interrupt_begin();
        done = request ? tune_operation(&state, request) : tune_recording(&state);
        interrupt_end();
        if (request && json_array_size(state.tuned) > 0)
            done &= print_json(json_incref(json_array_get(state.tuned, 0)));
        else if (!request && done)
            done = print_recorded(&state);
    }
    const int status = status_of(&state, done);
    close_state(&state);
    return status;
}

static int print_help(const ejk_kernel *kernel, const option *own) {
    puts("usage: ejk tune OPERATION --shape SYMBOL=SIZE,... [--flag value]...\n"
         "       ejk tune --recorded FILE [--flag value]...\n\n"
         "Finds by measurement the fastest configuration of a call and stores it in the cache, "
         "where\n"
         "programs that use it find it. The default stays unless another one's result agrees with "
         "its\n"
         "own and is faster by more than the noise. Ctrl-C ends the search with what was found, a\n"
         "second one at once. On a GPU candidates are compiled before the time for measuring "
         "begins.\n"
         "The exit status is 0 if every choice is kept, or --no-store is given; 1 if one rests on "
         "no\n"
         "comparison, as the budget ended or Ctrl-C came before; 2 if something failed.\n");
    if (!options_help(own)) return FAILED;
    call_help_flags(kernel);
    return DONE;
}

static int tune_words(const ejk_kernel *kernel, int count, char **words, const option *own,
                      const void *wanted) {
    const tune_options *wish = wanted;
    item_text items = {.text = NULL};
    const field_flags fields = {.kernel = kernel, .items = &items};
    bool done = options_parse(count, words, own, &fields);
    if (done && wish->recorded)
        done = report_error("--recorded brings its own operations, but %s is given", kernel->op_id);
    const int status = done ? tune(wish, &(tune_request){kernel, items.text}) : FAILED;
    free(items.text);
    return status;
}

/* True if what is asked for is a recording. */
static bool asks_for_recording(int count, char **words, const option *own,
                               const tune_options *wish) {
    const call_words *call = &wish->call;
    if (!options_parse(count, words, own, NULL)) return false;
    if (!wish->recorded)
        return report_error("tune needs an operation first, as `ejk tune OPERATION --help`, or "
                            "--recorded");
    if (call->shape || call->dtype || call->with || call->layout || call->platform)
        return report_error("--recorded brings its own calls, --%s cannot be given with it",
                            call->shape    ? "shape"
                            : call->dtype  ? "dtype"
                            : call->with   ? "with"
                            : call->layout ? "layout"
                                           : "platform");
    return true;
}

int tune_command(int count, char **words) {
    tune_options wish = {.budget = 0};
    const option own[] = {
        CALL_OPTIONS(&wish.call),
        {"recorded", OPTION_TEXT, &wish.recorded, "FILE", "the calls of a recording instead"},
        {"budget", OPTION_TIME, &wish.budget, "TIME", "for a call, as 500ms or 2m; default 10s"},
        {"backward", OPTION_ALONE, &wish.backward, "", "tune the gradients' computation"},
        {"candidates", OPTION_TEXTS, &wish.candidates, "JSON",
         "configurations to try in place of the operation's own; may be repeated"},
        {"seed", OPTION_COUNT, &wish.seed, "N", "of the order in which candidates are timed"},
        {"cache", OPTION_TEXT, &wish.cache, "PATH", "where to store; see `ejk cache path`"},
        {"no-store", OPTION_ALONE, &wish.no_store, "", "only report"},
        {"json", OPTION_ALONE, &wish.json, "", "report as JSON"},
        {"help", OPTION_ALONE, &wish.help, "", "this text"},
        {.name = NULL}};
    if (!options_texts(count, &wish.candidates)) return FAILED;
    const op_command command = {"tune", print_help, tune_words};
    int status;
    if (!options_ask_help(count, words) && (count == 0 || words[0][0] == '-'))
        status = asks_for_recording(count, words, own, &wish) ? tune(&wish, NULL) : FAILED;
    else
        status = call_command(&command, count, words, own, &wish);
    free(wish.candidates.items);
    return status;
}
