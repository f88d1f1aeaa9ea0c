/* SPDX-License-Identifier: Apache-2.0 */
/* The selector chain: its steps in order, what each tells and remembers, scopes of threads, tuning once. */
#include "support/expect.h"
#include "support/toy.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Names of the events since the last look, the fields of the last, and of the last that was rejected. */
static char events[512], fields[2048], rejected[2048];

static void note(void *user, const char *event, const char *text) {
    (void)user;
    strncat(events, event, sizeof events - strlen(events) - 2);
    strcat(events, " ");
    snprintf(fields, sizeof fields, "%s", text);
    if (strcmp(event, "config_rejected") == 0) snprintf(rejected, sizeof rejected, "%s", text);
}

static void expect_events(const char *expected) {
    assert_string_equal(events, expected);
    events[0] = 0;
}

/* A tuner that chooses `rows` and counts. */
static _Atomic(int) tuned;
static int64_t tuned_rows;
static ejk_status tuner_answer;

static ejk_status tune(void *self, const ejk_invocation *invocation,
                       const ejk_autotune_policy *policy, void *config,
                       ejk_config_measurement *measurement) {
    (void)self;
    assert_ptr_equal(invocation->kernel, &toy_kernel);
    assert_int_equal(policy->allow_autotune, EJK_TRUE);
    tuned++;
    if (tuner_answer != EJK_OK) return tuner_answer;
    ((toy_config *)config)->params.rows = ejk_int(tuned_rows);
    *measurement = (ejk_config_measurement){.median_s = 1e-3, .reference_s = 2e-3};
    return EJK_OK;
}

static const ejk_config_tuner tuner = {.tune = tune};

static ejk_config_selector_chain *chain;
static ejk_context *context;
static float x[64], y[64];

static void open_with(ejk_config_selector_options options) {
    options.on_event = note;
    events[0] = 0;
    tuned = 0;
    tuned_rows = 48;
    tuner_answer = EJK_OK;
    EXPECT_OK(ejk_config_selector_chain_create(&options, &chain));
    const ejk_config_chooser chooser = ejk_config_selector_chain_chooser(chain);
    context = toy_context(&(ejk_context_options){.threads = 1, .chooser = &chooser});
    toy_advice = ejk_int(24);
}

static void close_all(void) {
    ejk_context_destroy(context);
    ejk_config_selector_chain_destroy(chain);
}

/* The rows and the step of a call's plan. */
static ejk_choice_step step_of(const toy_args *args, int64_t *rows) {
    ejk_plan *plan;
    EXPECT_OK(ejk_plan_create(context, &toy_kernel, args, &plan));
    const ejk_choice_step step = ejk_plan_step(plan);
    *rows = ((const toy_config *)ejk_plan_config(plan))->params.rows.value;
    ejk_plan_destroy(plan);
    return step;
}

static void expect_choice(const toy_args *args, ejk_choice_step step, int64_t rows) {
    int64_t got;
    assert_string_equal(ejk_choice_step_name(step_of(args, &got)), ejk_choice_step_name(step));
    assert_int_equal(got, rows);
}

/* The key of a toy call in this context. */
static ejk_config_key key_of(const toy_args *args, ejk_config_key_text *room) {
    ejk_config_key key;
    const ejk_invocation invocation = {.kernel = &toy_kernel, .args = args, .threads = 1};
    EXPECT_OK(ejk_invocation_key(&invocation, room, &key));
    return key;
}

static void put(ejk_config_cache *cache, const ejk_config_key *key, const char *config) {
    ejk_config_entry entry = {.config = (char *)(uintptr_t)config};
    EXPECT_OK(ejk_config_cache_put(cache, key, &entry));
}

#define ROWS(n) "{\"params\":{\"rows\":" #n "}}"

static void test_heuristics(void **state) {
    (void)state;
    open_with((ejk_config_selector_options){.tuner = &tuner});
    const toy_args args = toy_call(x, y, 8, 8);
    expect_choice(&args, EJK_CHOICE_HEURISTICS, 24);
    expect_events("heuristics ");
    assert_non_null(strstr(fields, "\"op_id\":\"toy@v0\""));
    assert_non_null(strstr(fields, "\"cfg\":{\"params\":{\"rows\":24}}"));
    assert_non_null(strstr(fields, "\"platform\":\"cpu\""));
    assert_non_null(strstr(fields, "\"method\":null"));
    assert_int_equal(ejk_config_cache_size(ejk_config_selector_chain_cache(chain)), 0);
    assert_int_equal(tuned, 0); /* the default policy never measures */
    for (int i = 0; i < 3; i++) EXPECT_OK(ejk_call(context, &toy_kernel, &args));
    expect_events("heuristics "); /* once per plan */
    assert_int_equal(tuned, 0);
    close_all();
}

static void test_override(void **state) {
    (void)state;
    open_with((ejk_config_selector_options){.remember_override = false});
    toy_args args = toy_call(x, y, 8, 8);
    args.cfg.params.rows = ejk_int(40);
    expect_choice(&args, EJK_CHOICE_OVERRIDE, 40);
    expect_events("override ");
    args.cfg.params.rows = (ejk_opt_int){0};
    expect_choice(&args, EJK_CHOICE_HEURISTICS, 24);
    close_all();
    open_with((ejk_config_selector_options){.remember_override = true});
    args.cfg.params.rows = ejk_int(40);
    expect_choice(&args, EJK_CHOICE_OVERRIDE, 40);
    args.cfg.params.rows = (ejk_opt_int){0};
    expect_choice(&args, EJK_CHOICE_MEMORY, 40);
    expect_events("override cache_hit ");
    assert_non_null(strstr(fields, "\"level\":\"memory\""));
    close_all();
}

static void test_memory(void **state) {
    (void)state;
    open_with((ejk_config_selector_options){.tuner = NULL});
    ejk_config_cache *cache = ejk_config_selector_chain_cache(chain);
    const toy_args args = toy_call(x, y, 8, 8), other = toy_call(x, y, 4, 8);
    ejk_config_key_text room;
    ejk_config_key key = key_of(&args, &room);
    EXPECT_OK(ejk_call(context, &toy_kernel, &args));
    put(cache, &key, ROWS(32));
    expect_choice(&args, EJK_CHOICE_MEMORY, 32);
    expect_choice(&other, EJK_CHOICE_HEURISTICS, 24);
    expect_events("heuristics cache_hit heuristics ");
    EXPECT_OK(ejk_call(context, &toy_kernel, &args)); /* its plan was outdated */
    EXPECT_OK(ejk_call(context, &toy_kernel, &args));
    expect_events("cache_hit ");
    /* The documented three parts alone serve every strides class and number of threads. */
    bool found;
    EXPECT_OK(ejk_config_cache_remove(cache, &key, &found));
    key.layout = NULL;
    key.threads = 0;
    put(cache, &key, ROWS(56));
    expect_choice(&args, EJK_CHOICE_MEMORY, 56);
    close_all();
}

/* Calls that differ in strides alone are measured, kept and found apart. */
static void test_strides_are_part_of_the_key(void **state) {
    (void)state;
    char folder[] = "ejk_selector_XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/c.db", folder);
    ejk_persistent_cache *disk;
    EXPECT_OK(ejk_persistent_cache_open(&(ejk_persistent_options){.path = path}, &disk));
    const toy_args args = toy_call(x, y, 8, 4);
    toy_args spread = args;
    spread.x.strides[0] = 8; /* room behind each row */
    ejk_config_key_text rooms[2];
    const ejk_config_key key = key_of(&args, &rooms[0]), other = key_of(&spread, &rooms[1]);
    assert_string_equal(key.call_key, other.call_key);
    assert_string_not_equal(key.layout, other.layout);
    const ejk_config_selector_options options = {
        .persistent = disk, .policy = {.allow_autotune = EJK_TRUE}, .tuner = &tuner};
    open_with(options);
    expect_choice(&args, EJK_CHOICE_AUTOTUNE, 48);
    tuned_rows = 40;
    expect_choice(&spread, EJK_CHOICE_AUTOTUNE, 40);
    expect_choice(&args, EJK_CHOICE_MEMORY, 48);
    assert_int_equal(tuned, 2);
    close_all();
    open_with(options);
    expect_choice(&spread, EJK_CHOICE_PERSISTENT, 40);
    expect_choice(&args, EJK_CHOICE_PERSISTENT, 48);
    assert_int_equal(tuned, 0);
    close_all();
    ejk_persistent_cache_close(disk);
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_unusable_entries(void **state) {
    (void)state;
    open_with((ejk_config_selector_options){.tuner = NULL});
    ejk_config_cache *cache = ejk_config_selector_chain_cache(chain);
    const toy_args args = toy_call(x, y, 8, 8);
    ejk_config_key_text room;
    const ejk_config_key key = key_of(&args, &room);
    static const struct {
        const char *config, *implementation;
        int32_t version;
        const char *reason;
    } cases[] = {
        {ROWS(7), "", 0, "rows is 7"},
        {ROWS(72), "", 0, "rows is 72"},
        {"{\"params\":{\"rows\":\"many\"}}", "", 0, "rows"},
        {"{\"colour\":1}", "", 0, "colour"},
        {"[]", "", 0, ""},
        {ROWS(32), "f32/other", 3, "f32/other"},
        {ROWS(32), "f32/plain", 2, "version 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ejk_config_entry entry = {.config = (char *)(uintptr_t)cases[i].config,
                                  .implementation_version = cases[i].version};
        snprintf(entry.implementation, sizeof entry.implementation, "%s", cases[i].implementation);
        EXPECT_OK(ejk_config_cache_put(cache, &key, &entry));
        int64_t rows;
        assert_int_equal(step_of(&args, &rows), EJK_CHOICE_HEURISTICS);
        assert_int_equal(rows, 24);
        assert_non_null(strstr(rejected, cases[i].reason));
        assert_non_null(strstr(rejected, "\"level\":\"memory\""));
        expect_events("config_rejected heuristics ");
    }
    close_all();
}

static void test_persistent(void **state) {
    (void)state;
    char folder[] = "ejk_selector_XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/c.db", folder);
    ejk_persistent_cache *disk;
    EXPECT_OK(ejk_persistent_cache_open(&(ejk_persistent_options){.path = path}, &disk));
    const toy_args args = toy_call(x, y, 8, 8);
    const ejk_autotune_policy measure = {.allow_autotune = EJK_TRUE};
    open_with(
        (ejk_config_selector_options){.persistent = disk, .policy = measure, .tuner = &tuner});
    expect_choice(&args, EJK_CHOICE_AUTOTUNE, 48);
    expect_events("autotune_start autotune_finish ");
    expect_choice(&args, EJK_CHOICE_MEMORY, 48);
    close_all();
    open_with(
        (ejk_config_selector_options){.persistent = disk, .policy = measure, .tuner = &tuner});
    expect_choice(&args, EJK_CHOICE_PERSISTENT, 48);
    expect_choice(&args, EJK_CHOICE_MEMORY, 48); /* it was copied there */
    expect_events("cache_hit cache_hit ");
    assert_int_equal(tuned, 0);
    close_all();
    /* Nothing but tuned choices goes to the disk, and those only if wanted. */
    const toy_args other = toy_call(x, y, 4, 8);
    open_with((ejk_config_selector_options){.persistent = disk});
    expect_choice(&other, EJK_CHOICE_HEURISTICS, 24);
    close_all();
    open_with((ejk_config_selector_options){
        .persistent = disk, .policy = measure, .tuner = &tuner, .persist_autotune = EJK_FALSE});
    expect_choice(&other, EJK_CHOICE_AUTOTUNE, 48);
    close_all();
    int64_t rows;
    EXPECT_OK(ejk_persistent_cache_size(disk, &rows));
    assert_int_equal(rows, 1);
    ejk_persistent_cache_close(disk);
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void test_failed_tuning(void **state) {
    (void)state;
    const ejk_autotune_policy measure = {.allow_autotune = EJK_TRUE};
    const toy_args args = toy_call(x, y, 8, 8);
    open_with((ejk_config_selector_options){.policy = measure, .tuner = &tuner});
    tuner_answer = EJK_STATUS_OUT_OF_MEMORY;
    expect_choice(&args, EJK_CHOICE_HEURISTICS, 24);
    expect_events("autotune_start autotune_failed heuristics ");
    assert_int_equal(ejk_config_cache_size(ejk_config_selector_chain_cache(chain)), 0);
    close_all();
    ejk_autotune_policy strict = measure;
    strict.allow_heuristics = EJK_FALSE;
    open_with((ejk_config_selector_options){.policy = strict, .tuner = &tuner});
    tuner_answer = EJK_STATUS_OUT_OF_MEMORY;
    EXPECT_FAIL(OUT_OF_MEMORY, "", ejk_call(context, &toy_kernel, &args));
    expect_events("autotune_start autotune_failed ");
    close_all();
    strict.allow_autotune = EJK_FALSE;
    open_with((ejk_config_selector_options){.policy = strict, .tuner = &tuner});
    EXPECT_FAIL(UNAVAILABLE, "no configuration for toy@v0", ejk_call(context, &toy_kernel, &args));
    expect_events("error ");
    assert_non_null(strstr(fields, "\"reason\":\"no_config\""));
    close_all();
}

static void test_forbidden_again(void **state) {
    (void)state;
    const ejk_autotune_policy measure = {.allow_autotune = EJK_TRUE};
    const toy_args args = toy_call(x, y, 8, 8);
    for (int allowed = 0; allowed < 2; allowed++) {
        open_with(
            (ejk_config_selector_options){.policy = measure,
                                          .tuner = &tuner,
                                          .forbid_reautotune = allowed ? EJK_FALSE : EJK_UNSET});
        EXPECT_OK(ejk_call(context, &toy_kernel, &args));
        EXPECT_OK(ejk_config_cache_clear(ejk_config_selector_chain_cache(chain)));
        if (allowed)
            EXPECT_OK(ejk_call(context, &toy_kernel, &args));
        else
            EXPECT_FAIL(UNAVAILABLE, "forbidden", ejk_call(context, &toy_kernel, &args));
        assert_int_equal(tuned, 1 + allowed);
        close_all();
    }
}

/* ---- Scopes ----------------------------------------------------------------------------------------- */

static void *choose_elsewhere(void *rows) {
    const toy_args args = toy_call(x, y, 8, 8);
    (void)step_of(&args, rows);
    return NULL;
}

static void test_overlays(void **state) {
    (void)state;
    open_with((ejk_config_selector_options){.tuner = NULL});
    const toy_args args = toy_call(x, y, 8, 8);
    ejk_config_key_text room;
    const ejk_config_key key = key_of(&args, &room);
    ejk_config_cache *outer, *inner, *empty;
    EXPECT_OK(ejk_config_cache_create(0, &outer));
    EXPECT_OK(ejk_config_cache_create(0, &inner));
    EXPECT_OK(ejk_config_cache_create(0, &empty));
    put(outer, &key, ROWS(8));
    put(inner, &key, ROWS(16));
    ejk_overlay_scope a, b, c;
    EXPECT_OK(ejk_call(context, &toy_kernel, &args));
    expect_events("heuristics ");
    ejk_overlay_cache_begin(&a, outer);
    expect_choice(&args, EJK_CHOICE_OVERLAY, 8);
    ejk_overlay_cache_begin(&b, inner);
    ejk_overlay_cache_begin(&c, empty);
    expect_choice(&args, EJK_CHOICE_OVERLAY, 16);
    EXPECT_OK(ejk_call(context, &toy_kernel, &args)); /* not by the plan made outside */
    EXPECT_OK(ejk_call(context, &toy_kernel, &args));
    expect_events("overlay_hit overlay_hit overlay_hit ");
    put(inner, &key, ROWS(64)); /* a change within the scope is seen */
    EXPECT_OK(ejk_call(context, &toy_kernel, &args));
    expect_events("overlay_hit ");
    pthread_t thread;
    int64_t rows = 0;
    assert_int_equal(pthread_create(&thread, NULL, choose_elsewhere, &rows), 0);
    pthread_join(thread, NULL);
    assert_int_equal(rows, 24); /* other threads are not in the scope */
    ejk_overlay_cache_end(&b);  /* and with it the one inside */
    ejk_overlay_cache_end(&c);  /* ended already: nothing happens */
    expect_choice(&args, EJK_CHOICE_OVERLAY, 8);
    ejk_overlay_cache_end(&a);
    expect_choice(&args, EJK_CHOICE_HEURISTICS, 24);
    events[0] = 0;
    EXPECT_OK(ejk_call(context, &toy_kernel, &args));
    expect_events(""); /* the first plan is there still */
    assert_int_equal(ejk_config_cache_size(ejk_config_selector_chain_cache(chain)), 0);
    ejk_config_cache_destroy(outer);
    ejk_config_cache_destroy(inner);
    ejk_config_cache_destroy(empty);
    close_all();
}

static void test_policies(void **state) {
    (void)state;
    open_with((ejk_config_selector_options){.tuner = &tuner});
    const ejk_autotune_policy measure = {.allow_autotune = EJK_TRUE},
                              never = {.allow_autotune = EJK_FALSE};
    ejk_autotune_policy miss = measure;
    strcpy(miss.cache_miss_fallback, "heuristics");
    const toy_args args = toy_call(x, y, 8, 8), other = toy_call(x, y, 4, 8);
    ejk_policy_scope a, b;
    ejk_policy_override_begin(&a, NULL, &measure);
    ejk_policy_override_begin(&b, chain, &never);
    expect_choice(&args, EJK_CHOICE_HEURISTICS, 24);
    assert_int_equal(ejk_config_selector_chain_policy(chain).allow_autotune, EJK_FALSE);
    ejk_policy_override_end(&b);
    expect_choice(&args, EJK_CHOICE_AUTOTUNE, 48);
    ejk_policy_override_end(&a);
    expect_choice(&args, EJK_CHOICE_MEMORY, 48);
    expect_choice(&other, EJK_CHOICE_HEURISTICS, 24);
    ejk_policy_override_begin(&a, chain, &miss);
    expect_choice(&other, EJK_CHOICE_HEURISTICS, 24);
    ejk_policy_override_end(&a);
    ejk_config_selector_chain *stranger;
    EXPECT_OK(ejk_config_selector_chain_create(NULL, &stranger));
    ejk_policy_override_begin(&a, stranger, &measure); /* of another chain */
    expect_choice(&other, EJK_CHOICE_HEURISTICS, 24);
    ejk_policy_override_end(&a);
    ejk_config_selector_chain_destroy(stranger);
    assert_int_equal(tuned, 1);
    close_all();
}

/* ---- Threads ---------------------------------------------------------------------------------------- */

enum { THREADS = 8 };

static void drop(void *user, const char *event, const char *text) {
    (void)user;
    (void)event;
    (void)text;
}

static ejk_config_cache *overlaid; /* knows one of the calls */

static void *call_and_scope(void *failed) {
    float in[64] = {1}, out[64];
    for (int i = 0; i < 200; i++) {
        const toy_args args = toy_call(in, out, 1 + i % 5, 8);
        ejk_policy_scope scope;
        ejk_overlay_scope overlay;
        const ejk_autotune_policy never = {.allow_autotune = EJK_FALSE};
        if (i % 3 == 0) ejk_policy_override_begin(&scope, chain, &never);
        if (i % 4 == 0) ejk_overlay_cache_begin(&overlay, overlaid);
        if (ejk_call(context, &toy_kernel, &args) != EJK_OK || out[0] != 2 * in[0])
            atomic_fetch_add((_Atomic(int) *)failed, 1);
        if (i % 4 == 0) ejk_overlay_cache_end(&overlay);
        if (i % 3 == 0) ejk_policy_override_end(&scope);
    }
    return NULL;
}

static void test_threads_tune_once(void **state) {
    (void)state;
    const ejk_config_selector_options options = {
        .policy = {.allow_autotune = EJK_TRUE}, .tuner = &tuner, .on_event = drop};
    open_with(options);
    ejk_context_destroy(context);
    ejk_config_selector_chain_destroy(chain);
    EXPECT_OK(ejk_config_selector_chain_create(&options, &chain));
    const ejk_config_chooser chooser = ejk_config_selector_chain_chooser(chain);
    context = toy_context(&(ejk_context_options){.threads = 1, .chooser = &chooser});
    const toy_args known = toy_call(x, y, 1, 8);
    ejk_config_key_text room;
    const ejk_config_key key = key_of(&known, &room);
    EXPECT_OK(ejk_config_cache_create(0, &overlaid));
    put(overlaid, &key, ROWS(32));
    pthread_t threads[THREADS];
    _Atomic(int) failed = 0;
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, call_and_scope, &failed), 0);
    for (int t = 0; t < THREADS; t++) pthread_join(threads[t], NULL);
    assert_int_equal(failed, 0);
    assert_int_equal(tuned, 5); /* one measurement for each shape */
    ejk_config_cache_destroy(overlaid);
    close_all();
}

static void test_bad_arguments(void **state) {
    (void)state;
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_config_selector_chain_create(NULL, NULL));
    toy_config config;
    ejk_choice_step step;
    const ejk_invocation invocation = {.kernel = &toy_kernel};
    EXPECT_FAIL(INVALID_ARGUMENT, "chain",
                ejk_config_selector_chain_choose(NULL, &invocation, &config, &step));
    ejk_config_key key;
    EXPECT_FAIL(INVALID_ARGUMENT, "room", ejk_invocation_key(&invocation, NULL, &key));
    ejk_config_selector_chain_destroy(NULL);
    assert_null(ejk_config_selector_chain_cache(NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_heuristics),
        cmocka_unit_test(test_override),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_strides_are_part_of_the_key),
        cmocka_unit_test(test_unusable_entries),
        cmocka_unit_test(test_persistent),
        cmocka_unit_test(test_failed_tuning),
        cmocka_unit_test(test_forbidden_again),
        cmocka_unit_test(test_overlays),
        cmocka_unit_test(test_policies),
        cmocka_unit_test(test_threads_tune_once),
        cmocka_unit_test(test_bad_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
