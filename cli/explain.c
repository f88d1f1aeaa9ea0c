/* SPDX-License-Identifier: Apache-2.0 */
/* `ejk explain`: which step chooses a call's configuration, and what follows from it. */
#include "cache_rows.h"
#include "line.h"
#include "options.h"
#include "table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = EJK_CHOICE_HEURISTICS + 1 };

typedef struct explain_options {
    call_words call;
    const char *cache;
    bool all, json, help;
} explain_options;

/* What is found out. */
typedef struct explanation {
    const explain_options *wish;
    config_store store;
    ejk_context *context;
    ejk_config_selector_chain *chain;
    ejk_executor *executor;
    line_call line;
    ejk_plan *plan;
    json_t *events[STEPS]; /* what the chain told of a step: its fields, or NULL */
    ejk_config_key_text room;
    ejk_config_key key;
} explanation;

/* ---- Asking ------------------------------------------------------------------------------------------ */

static int step_of(const char *event, const json_t *fields) {
    const char *name = strcmp(event, "cache_hit") == 0 || strcmp(event, "config_rejected") == 0
                           ? store_text(fields, "level")
                       : strcmp(event, "overlay_hit") == 0 ? "overlay"
                                                           : event;
    for (int step = 0; step < STEPS; step++)
        if (strcmp(ejk_choice_step_name((ejk_choice_step)step), name) == 0) return step;
    return STEPS;
}

static void hear(void *user, const char *event, const char *fields) {
    explanation *e = user;
    json_t *object = json_loads(fields, 0, NULL);
    int step = step_of(event, object);
    if (step < STEPS) {
        json_decref(e->events[step]);
        e->events[step] = json_incref(object);
    }
    json_decref(object);
}

/* A chooser that notes the key and asks the chain. */
static ejk_status choose(void *self, const ejk_invocation *invocation, void *config,
                         ejk_choice_step *step) {
    explanation *e = self;
    const ejk_status status = ejk_invocation_key(invocation, &e->room, &e->key);
    if (status != EJK_OK) return status;
    return ejk_config_selector_chain_choose(e->chain, invocation, config, step);
}

static bool ask(explanation *e) {
    const ejk_config_selector_options options = {
        .persistent = e->store.cache, .on_event = hear, .on_event_user = e};
    const ejk_config_chooser chooser = {e, choose, NULL};
    return succeeded(ejk_config_selector_chain_create(&options, &e->chain)) &&
           succeeded(ejk_executor_create(e->context, &(ejk_executor_options){.chooser = &chooser},
                                         &e->executor)) &&
           succeeded(ejk_executor_compile(e->executor, e->line.call.kernel, e->line.call.args, NULL,
                                          &e->plan));
}

/* ---- Steps ------------------------------------------------------------------------------------------- */

/* In one word what a step did. */
static const char *outcome_of(const explanation *e, int step) {
    const int chosen = (int)ejk_plan_step(e->plan);
    if (step == chosen) return "chosen";
    if (step > chosen) return "not asked";
    if (e->events[step]) return "rejected";
    switch (step) {
    case EJK_CHOICE_MEMORY:
    case EJK_CHOICE_PERSISTENT: return "miss";
    case EJK_CHOICE_AUTOTUNE: return "not allowed";
    default: return "none";
    }
}

static const char *detail_of(const explanation *e, int step, char *out, size_t room) {
    const json_t *event = e->events[step];
    *out = '\0';
    if (event && step == (int)ejk_plan_step(e->plan))
        return store_config_text(json_object_get(event, "cfg"), out, room);
    if (event) return store_text(event, "reason");
    if (step > (int)ejk_plan_step(e->plan)) return out;
    if (step == EJK_CHOICE_PERSISTENT)
        snprintf(out, room, "%s%s", e->store.path, e->store.cache ? "" : " does not exist");
    if (step == EJK_CHOICE_AUTOTUNE) return "by the policy: only `ejk tune` measures";
    return out;
}

static json_t *steps_json(const explanation *e) {
    json_t *steps = json_array();
    for (int step = 0; step < STEPS; step++) {
        char detail[1024];
        json_array_append_new(steps, json_pack("{s:s, s:s, s:s}", "step",
                                               ejk_choice_step_name((ejk_choice_step)step),
                                               "outcome", outcome_of(e, step), "detail",
                                               detail_of(e, step, detail, sizeof detail)));
    }
    return steps;
}

/* ---- Printing ---------------------------------------------------------------------------------------- */

static void add_line(text_table *table, const char *name, const char *value) {
    table_add(table, "%s", name);
    table_add(table, "%s", value);
}

static bool print_steps(const json_t *steps) {
    text_table table = {.align = "lll"};
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *step = json_array_get(steps, i);
        table_add(&table, "%s", store_text(step, "step"));
        table_add(&table, "%s", store_text(step, "outcome"));
        table_add(&table, "%s", store_text(step, "detail"));
    }
    return table_print(&table, 0);
}

/* What runs, of several steps one of them. */
static void add_runner(text_table *table, const char *title, const json_t *runner,
                       const char *dtype) {
    const char *name;
    json_t *value;
    table_add(table, "%s", title);
    table_add(table, "%s version %d: %s, %s, %s, %s", store_text(runner, "implementation"),
              (int)json_integer_value(json_object_get(runner, "implementation_version")),
              store_text(runner, "platform"), store_text(runner, "backend"),
              store_text(runner, "isa"), dtype);
    json_object_foreach(json_object_get(runner, "parameters"), name, value) {
        table_add(table, "%s", name);
        table_add(table, "%lld by %s", (long long)json_integer_value(value),
                  store_text(json_object_get(runner, "chosen_by"), name));
    }
    table_add(table, "workers");
    table_add(table, "%d", (int)json_integer_value(json_object_get(runner, "workers")));
}

static bool print_plan(const json_t *plan) {
    const json_t *steps = json_object_get(plan, "steps");
    const char *dtype = store_text(plan, "dtype");
    text_table table = {.align = "ll"};
    add_runner(&table, "implementation", plan, dtype);
    for (size_t i = 1; i < json_array_size(steps); i++)
        add_runner(&table, store_text(json_array_get(steps, i), "algorithm"),
                   json_array_get(steps, i), dtype);
    table_add(&table, "workspace");
    table_add(&table, "%lld bytes",
              (long long)json_integer_value(json_object_get(plan, "workspace_bytes")));
    return table_print(&table, 0);
}

/* The implementations that fit the call; with --all the others too, and why they do not. */
static bool print_implementations(const json_t *list, bool all) {
    text_table table = {.align = "llll"};
    size_t others = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *each = json_array_get(list, i);
        if (!all && strcmp(store_text(each, "verdict"), "does not fit") == 0) {
            others++;
            continue;
        }
        const char *algorithm = json_string_value(json_object_get(each, "algorithm"));
        table_add(&table, "%s%s%s", algorithm ? algorithm : "", algorithm ? " " : "",
                  store_text(each, "implementation"));
        table_add(&table, "%s", store_text(each, "platform"));
        table_add(&table, "%s", store_text(each, "verdict"));
        table_add(&table, "%s", store_text(each, "reason"));
    }
    if (!table_print(&table, 0)) return false;
    if (others > 0) printf("%zu more do not fit; --all says why\n", others);
    return true;
}

static bool print_key(const ejk_config_key *key) {
    text_table table = {.align = "ll"};
    add_line(&table, "device", key->device);
    add_line(&table, "op", key->op_id);
    add_line(&table, "call key", key->call_key);
    add_line(&table, "layout", key->layout);
    table_add(&table, "threads");
    table_add(&table, "%d", (int)key->threads);
    return table_print(&table, 0);
}

/* What is printed, in JSON. */
typedef struct answers {
    json_t *plan, *steps, *implementations;
} answers;

static bool print_all(const explanation *e, const char *problem, const answers *a) {
    if (e->wish->json)
        return print_json(json_pack("{s:s?, s:s, s:O, s:O, s:O, s:o, s:{s:s, s:b}}", "problem",
                                    problem, "step", ejk_choice_step_name(ejk_plan_step(e->plan)),
                                    "steps", a->steps, "plan", a->plan, "implementations",
                                    a->implementations, "key", store_key_json(&e->key), "cache",
                                    "path", e->store.path, "exists", e->store.cache != NULL));
    printf("%s\n\n", problem ? problem : e->line.call.kernel->op_id);
    return print_plan(a->plan) && putchar('\n') != EOF && print_steps(a->steps) &&
           putchar('\n') != EOF && print_key(&e->key) && putchar('\n') != EOF &&
           print_implementations(a->implementations, e->wish->all);
}

static json_t *read_json(ejk_status (*write)(const ejk_plan *plan, char **out),
                         const ejk_plan *plan) {
    char *text;
    if (!succeeded(write(plan, &text))) return NULL;
    json_t *read = json_loads(text, 0, NULL);
    ejk_free(text);
    return read;
}

static bool print(const explanation *e) {
    char *problem = NULL;
    /* A call that has no text is explained all the same. */
    if (ejk_problem_to_text(e->line.call.kernel, e->line.call.args, &problem) != EJK_OK)
        problem = NULL;
    const answers a = {read_json(ejk_plan_describe, e->plan), steps_json(e),
                       read_json(ejk_plan_explain, e->plan)};
    const bool done = a.plan && a.steps && a.implementations
                          ? print_all(e, problem, &a)
                          : report_error("no memory for an explanation");
    json_decref(a.plan);
    json_decref(a.steps);
    json_decref(a.implementations);
    ejk_free(problem);
    return done;
}

/* ---- The command ------------------------------------------------------------------------------------- */

static void close_explanation(explanation *e) {
    ejk_plan_destroy(e->plan);
    ejk_executor_destroy(e->executor);
    ejk_config_selector_chain_destroy(e->chain);
    store_close(&e->store);
    ejk_context_destroy(e->context);
    line_close(&e->line);
    for (int i = 0; i < STEPS; i++) json_decref(e->events[i]);
}

static int explain(const ejk_kernel *kernel, int count, char **words, const option *own,
                   const void *wanted) {
    const explain_options *wish = wanted;
    const call_words *call = &wish->call;
    explanation e = {.wish = wish};
    item_text items = {.text = NULL};
    const field_flags fields = {.kernel = kernel, .items = &items};
    bool done = options_parse(count, words, own, &fields) &&
                (kernel->config ||
                 report_error("%s has no configuration that could be chosen", kernel->op_id)) &&
                (call->shape || line_needs_shape("explain", kernel)) &&
                line_context(call, &e.context) &&
                line_of_words(kernel, call->shape, call, items.text, e.context, &e.line) &&
                line_place(&e.line, call->device, e.context) &&
                store_open(wish->cache, false, &e.store) && ask(&e) && print(&e);
    close_explanation(&e);
    free(items.text);
    return done ? DONE : FAILED;
}

static int print_help(const ejk_kernel *kernel, const option *own) {
    puts("usage: ejk explain OPERATION --shape SYMBOL=SIZE,... [--flag value]...\n\n"
         "Says which implementation a call gets and with which parameters, which step chose them,\n"
         "by which key they are kept, and which other implementations fit. Nothing is measured.\n");
    if (!options_help(own)) return FAILED;
    call_help_flags(kernel);
    return DONE;
}

int explain_command(int count, char **words) {
    explain_options wish = {.cache = NULL};
    call_words *call = &wish.call;
    const option own[] = {
        CALL_OPTIONS(call),
        {"config", OPTION_TEXT, &call->config, "JSON", "explicit configuration of the operation"},
        {"cache", OPTION_TEXT, &wish.cache, "PATH", "where to look; see `ejk cache path`"},
        {"all", OPTION_ALONE, &wish.all, "", "also implementations that do not fit, and why"},
        {"json", OPTION_ALONE, &wish.json, "", "the answer as JSON, with all implementations"},
        {"help", OPTION_ALONE, &wish.help, "", "this text"},
        {.name = NULL}};
    return call_command(&(op_command){"explain", print_help, explain}, count, words, own, &wish);
}
