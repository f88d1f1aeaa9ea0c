/* SPDX-License-Identifier: Apache-2.0 */
/* The profiler: scopes, intervals of devices, times by the documented rules, traces, markers. */
#include "support/expect.h"

#include <ejkernel/profiler.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* NVTX as a process sees it that has loaded it: this program exports these two. */
EJK_API int nvtxRangePushA(const char *name);
EJK_API int nvtxRangePop(void);
static char ranges[256];
static int depth;

int nvtxRangePushA(const char *name) {
    const size_t used = strlen(ranges);
    snprintf(ranges + used, sizeof ranges - used, "<%s", name);
    return depth++;
}

int nvtxRangePop(void) {
    const size_t used = strlen(ranges);
    snprintf(ranges + used, sizeof ranges - used, ">");
    return --depth;
}

/* Keeps everything unless told otherwise. */
static ejk_profiler *profiler_of(ejk_profiler_options options) {
    ejk_profiler *profiler;
    if (!options.min_duration_ns.set) options.min_duration_ns = ejk_int(0);
    if (!options.marker_path) options.marker_path = "";
    if (!options.nvtx) options.nvtx = EJK_FALSE;
    EXPECT_OK(ejk_profiler_create(&options, &profiler));
    return profiler;
}

#define PROFILER(...) profiler_of((ejk_profiler_options){__VA_ARGS__})

static void add(ejk_profiler *profiler, const char *track, const char *name, double start,
                double end) {
    EXPECT_OK(ejk_profiler_add(profiler, track, name, start, end));
}

/* The time of one name under a query. */
static ejk_profiler_time time_of(const ejk_profiler *profiler, const ejk_profiler_query *query,
                                 const char *name) {
    ejk_profiler_time *times, found = {.count = -1};
    int64_t count;
    EXPECT_OK(ejk_profiler_times(profiler, query, &times, &count));
    for (int64_t i = 0; i < count; i++)
        if (strcmp(times[i].name, name) == 0) found = times[i];
    ejk_free(times);
    if (found.count < 0) fail_msg("no times of %s", name);
    return found;
}

static int64_t names_of(const ejk_profiler *profiler, const ejk_profiler_query *query) {
    ejk_profiler_time *times;
    int64_t count;
    EXPECT_OK(ejk_profiler_times(profiler, query, &times, &count));
    ejk_free(times);
    return count;
}

static void expect_close(double got, double wanted) {
    if (!(fabs(got - wanted) <= 1e-12 * fabs(wanted)))
        fail_msg("%.17g, expected %.17g", got, wanted);
}

/* ---- Scopes ---------------------------------------------------------------------------------------- */

static void scopes_nest(void **state) {
    (void)state;
    ejk_profiler *profiler = PROFILER(.prefix_filter = NULL);
    const double before = ejk_profiler_now();
    EXPECT_OK(ejk_profiler_begin(profiler, "outer"));
    EXPECT_OK(ejk_profiler_begin(profiler, "inner"));
    EXPECT_OK(ejk_profiler_end(profiler, "inner"));
    EXPECT_OK(ejk_profiler_begin(profiler, "inner"));
    EXPECT_OK(ejk_profiler_end(profiler, NULL));
    EXPECT_OK(ejk_profiler_end(profiler, "outer"));
    const double after = ejk_profiler_now();
    ejk_profiler_event *events;
    int64_t count;
    EXPECT_OK(ejk_profiler_events(profiler, &events, &count));
    assert_int_equal(count, 3);
    const char *const names[] = {"outer", "inner", "inner"};
    for (int i = 0; i < 3; i++) {
        assert_string_equal(events[i].name, names[i]);
        assert_int_equal(events[i].depth, i > 0);
        assert_false(events[i].device);
        assert_true(before <= events[i].start_s && events[i].start_s <= events[i].end_s &&
                    events[i].end_s <= after);
        assert_true(events[i].start_s >= events[0].start_s && events[i].end_s <= events[0].end_s);
        assert_non_null(strrchr(events[i].track, ' '));
        assert_int_equal(atoi(strrchr(events[i].track, ' ')), getpid()); /* of the main thread */
    }
    assert_true(events[1].end_s <= events[2].start_s);
    ejk_free(events);
    ejk_profiler_destroy(profiler);
}

static void unbalanced_ends_are_errors(void **state) {
    (void)state;
    ejk_profiler *profiler = PROFILER(.prefix_filter = NULL);
    EXPECT_FAIL(INVALID_ARGUMENT, "none is open", ejk_profiler_end(profiler, "a"));
    EXPECT_OK(ejk_profiler_begin(profiler, "a"));
    EXPECT_OK(ejk_profiler_begin(profiler, "b"));
    EXPECT_FAIL(INVALID_ARGUMENT, "'a' is to end, but the innermost one open on this thread is 'b'",
                ejk_profiler_end(profiler, "a"));
    EXPECT_OK(ejk_profiler_end(profiler, "b"));
    EXPECT_OK(ejk_profiler_end(profiler, "a"));
    EXPECT_FAIL(INVALID_ARGUMENT, "none is open", ejk_profiler_end(profiler, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "name", ejk_profiler_begin(profiler, NULL));
    assert_int_equal(ejk_profiler_count(profiler).events, 2);
    ejk_profiler_destroy(profiler);
}

static void too_many_open_scopes_are_counted_and_still_balance(void **state) {
    (void)state;
    ejk_profiler *profiler = PROFILER(.prefix_filter = NULL);
    for (int i = 0; i < EJK_PROFILER_MAX_DEPTH; i++) EXPECT_OK(ejk_profiler_begin(profiler, "s"));
    EXPECT_FAIL(OVERFLOW, "number 65 open", ejk_profiler_begin(profiler, "t"));
    EXPECT_FAIL(OVERFLOW, "number 66 open", ejk_profiler_begin(profiler, "t"));
    for (int i = 0; i < EJK_PROFILER_MAX_DEPTH + 2; i++)
        EXPECT_OK(ejk_profiler_end(profiler, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "none is open", ejk_profiler_end(profiler, NULL));
    assert_int_equal(ejk_profiler_count(profiler).events, EJK_PROFILER_MAX_DEPTH);
    assert_int_equal(ejk_profiler_count(profiler).dropped, 2);
    ejk_profiler_destroy(profiler);
}

static void no_profiler_is_off(void **state) {
    (void)state;
    EXPECT_OK(ejk_profiler_begin(NULL, "a"));
    EXPECT_OK(ejk_profiler_end(NULL, "b"));
    EXPECT_OK(ejk_profiler_end(NULL, NULL));
    EXPECT_OK(ejk_profiler_add(NULL, NULL, NULL, 1, 0));
    assert_int_equal(ejk_profiler_count(NULL).tracks, 0);
    ejk_profiler_destroy(NULL);
}

static void room_is_bounded_and_short_ones_take_none(void **state) {
    (void)state;
    ejk_profiler *profiler = PROFILER(.max_events = ejk_int(3), .min_duration_ns = ejk_int(1000));
    for (int i = 0; i < 5; i++) {
        add(profiler, "gpu", "short", i, i + 0.999e-6);
        add(profiler, "gpu", "long", i, i + 1e-6);
        add(profiler, "other", "long", i, i + 1);
    }
    const ejk_profiler_counts counts = ejk_profiler_count(profiler);
    assert_int_equal(counts.tracks, 2);
    assert_int_equal(counts.events, 6);
    assert_int_equal(counts.brief, 5);
    assert_int_equal(counts.dropped, 4);
    assert_int_equal(names_of(profiler, NULL), 1);
    ejk_profiler_destroy(profiler);
    /* The documented default: a microsecond. */
    EXPECT_OK(ejk_profiler_create(NULL, &profiler));
    add(profiler, "gpu", "short", 1, 1 + 0.999e-6);
    add(profiler, "gpu", "long", 1, 1 + 1e-6);
    assert_int_equal(ejk_profiler_count(profiler).events, 1);
    for (int i = 0; i < 10001; i++) add(profiler, "gpu", "long", i, i + 1);
    assert_int_equal(ejk_profiler_count(profiler).events, 10000);
    assert_int_equal(ejk_profiler_count(profiler).dropped, 2);
    ejk_profiler_destroy(profiler);
}

/* ---- Times ----------------------------------------------------------------------------------------- */

static void intervals_inside_an_event_are_united(void **state) {
    (void)state;
    static const double inside[][2] = {{10, 20}, {15, 30}, {30, 40}, {90, 120}, {100, 100}};
    ejk_profiler *profiler = PROFILER(.event_filter_regex = "^kernel_[a-z]$");
    add(profiler, "gpu 0", "jit_step", 0, 100);
    for (int i = 4; i >= 0; i--) add(profiler, "gpu 0", "kernel_a", inside[i][0], inside[i][1]);
    const ejk_profiler_query own = {.event_regex = "jit_step"}, parts = {.event_regex = "a|step"};
    assert_true(time_of(profiler, NULL, "jit_step").latest_s == 30);
    assert_true(time_of(profiler, &own, "jit_step").latest_s == 0); /* its own name is left out */
    assert_true(time_of(profiler, &parts, "jit_step").latest_s == 30);
    /* Another track, a name that does not match, and what begins before do not count. */
    add(profiler, "gpu 1", "kernel_b", 50, 60);
    add(profiler, "gpu 0", "kernel_1", 50, 60);
    add(profiler, "gpu 0", "kernel_b", -1, 60);
    assert_true(time_of(profiler, NULL, "jit_step").latest_s == 30);
    /* What begins or ends with it does. */
    add(profiler, "gpu 0", "kernel_b", 0, 1);
    add(profiler, "gpu 0", "kernel_c", 99, 100);
    assert_true(time_of(profiler, NULL, "jit_step").latest_s == 32);
    add(profiler, "gpu 0", "kernel_d", 0, 100);
    assert_true(time_of(profiler, NULL, "jit_step").latest_s == 100);
    ejk_profiler_destroy(profiler);
}

static void statistics_leave_out_the_extremes(void **state) {
    (void)state;
    ejk_profiler *profiler = PROFILER(.prefix_filter = NULL);
    /* Seconds of each name, in the order of starts. */
    static const struct {
        const char *name;
        double seconds[5];
        int count;
        double mean, deviation, latest;
    } cases[] = {
        {"one", {3}, 1, 3, 0, 3},
        {"two", {3, 5}, 2, 4, 1, 5},
        {"three", {9, 1, 4}, 3, 4, 0, 4},
        {"equal", {2, 2, 2}, 3, 2, 0, 2},
        {"five", {1, 100, 4, 8, 6}, 5, 6, 1.6329931618554521, 6},
    };
    double start = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < cases[i].count; k++, start += 1000)
            add(profiler, "gpu", cases[i].name, start, start + cases[i].seconds[k]);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ejk_profiler_time t = time_of(profiler, NULL, cases[i].name);
        double sum = 0;
        for (int k = 0; k < cases[i].count; k++) sum += cases[i].seconds[k];
        assert_int_equal(t.count, cases[i].count);
        expect_close(t.mean_s, cases[i].mean);
        expect_close(t.std_s, cases[i].deviation);
        assert_true(t.latest_s == cases[i].latest && t.total_s == sum && t.union_s == sum);
    }
    ejk_profiler_destroy(profiler);
}

static void the_union_of_a_name_counts_time_once(void **state) {
    (void)state;
    ejk_profiler *profiler = PROFILER(.prefix_filter = NULL);
    add(profiler, "gpu 1", "k", 5, 15); /* overlaps the next on another track */
    add(profiler, "gpu 0", "k", 0, 10);
    add(profiler, "gpu 0", "k", 15, 16); /* touches */
    add(profiler, "gpu 0", "k", 20, 20);
    add(profiler, "gpu 0", "k", 1, 2); /* inside */
    const ejk_profiler_time t = time_of(profiler, NULL, "k");
    assert_true(t.union_s == 16 && t.total_s == 22 && t.latest_s == 0);
    ejk_profiler_destroy(profiler);
}

static void prefix_and_track_choose(void **state) {
    (void)state;
    ejk_profiler *profiler = PROFILER(.prefix_filter = "jit_");
    add(profiler, "GPU 0", "jit_a", 0, 1);
    add(profiler, "GPU 0", "other", 0, 1);
    add(profiler, "tpu 0", "jit_b", 0, 1);
    assert_int_equal(names_of(profiler, NULL), 2);
    const ejk_profiler_query gpu = {.track = "gpu"}, all = {.prefix = ""},
                             both = {.track = "PU 0", .prefix = "o"}, none = {.track = "cpu"},
                             broken = {.event_regex = "("};
    assert_int_equal(names_of(profiler, &gpu), 1);
    assert_int_equal(names_of(profiler, &all), 3);
    assert_int_equal(names_of(profiler, &both), 1);
    ejk_profiler_time *times = NULL;
    int64_t count = 7;
    EXPECT_FAIL(UNKNOWN_NAME, "these exist: GPU 0, tpu 0",
                ejk_profiler_times(profiler, &none, &times, &count));
    EXPECT_FAIL(INVALID_ARGUMENT, "event_filter_regex is '('",
                ejk_profiler_times(profiler, &broken, &times, &count));
    EXPECT_FAIL(INVALID_ARGUMENT, "profiler", ejk_profiler_times(NULL, NULL, &times, &count));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_profiler_times(profiler, NULL, NULL, &count));
    EXPECT_FAIL(INVALID_ARGUMENT, "count", ejk_profiler_times(profiler, NULL, &times, NULL));
    assert_null(times);
    assert_int_equal(count, 7);
    ejk_profiler_destroy(profiler);
}

static void wrong_intervals_and_options_are_refused(void **state) {
    (void)state;
    ejk_profiler *profiler = PROFILER(.prefix_filter = NULL), *none = NULL;
    EXPECT_FAIL(INVALID_ARGUMENT, "end", ejk_profiler_add(profiler, "t", "n", 1, 0.5));
    EXPECT_FAIL(INVALID_ARGUMENT, "nan", ejk_profiler_add(profiler, "t", "n", (double)NAN, 1));
    EXPECT_FAIL(INVALID_ARGUMENT, "inf", ejk_profiler_add(profiler, "t", "n", 0, HUGE_VAL));
    EXPECT_FAIL(INVALID_ARGUMENT, "1e+10", ejk_profiler_add(profiler, "t", "n", 0, 1e10));
    EXPECT_FAIL(INVALID_ARGUMENT, "track", ejk_profiler_add(profiler, NULL, "n", 0, 1));
    EXPECT_FAIL(INVALID_ARGUMENT, "name", ejk_profiler_add(profiler, "t", NULL, 0, 1));
    assert_int_equal(ejk_profiler_count(profiler).tracks, 0);
    ejk_profiler_destroy(profiler);
#define REFUSED(status, words, ...)                                                                \
    do {                                                                                           \
        const ejk_profiler_options options = {__VA_ARGS__};                                        \
        EXPECT_FAIL(status, words, ejk_profiler_create(&options, &none));                          \
        assert_null(none);                                                                         \
    } while (0)
    REFUSED(INVALID_ARGUMENT, "min_duration_ns is -1", .min_duration_ns = ejk_int(-1));
    REFUSED(INVALID_ARGUMENT, "max_events is 0", .max_events = ejk_int(0));
    REFUSED(INVALID_ARGUMENT, "max_events", .max_events = ejk_int(INT64_MAX));
    REFUSED(INVALID_ARGUMENT, "event_filter_regex is '['", .event_filter_regex = "[");
    REFUSED(IO, "no/such/folder", .marker_path = "no/such/folder/markers");
    REFUSED(IO, "'.'", .marker_path = ".");
    REFUSED(IO, "no regular file", .marker_path = "/dev/null");
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_profiler_create(NULL, NULL));
}

/* ---- Export ---------------------------------------------------------------------------------------- */

static json_t *trace_of(const ejk_profiler *profiler) {
    char *text;
    EXPECT_OK(ejk_profiler_to_chrome_json(profiler, &text));
    json_error_t error;
    json_t *trace = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!trace) fail_msg("%s in %s", error.text, text);
    ejk_free(text);
    return trace;
}

static const char *text_at(const json_t *event, const char *key) {
    const char *text = json_string_value(json_object_get(event, key));
    if (!text) fail_msg("no %s", key);
    return text;
}

static void a_trace_reads_back(void **state) {
    (void)state;
    ejk_profiler *profiler = PROFILER(.max_events = ejk_int(2));
    add(profiler, "gpu 0", "k", 1.5, 2.25);
    add(profiler, "gpu 0", "k", 3, 4);
    add(profiler, "gpu 0", "k", 5, 6);
    EXPECT_OK(ejk_profiler_begin(profiler, "host"));
    EXPECT_OK(ejk_profiler_end(profiler, "host"));
    json_t *trace = trace_of(profiler), *events = json_object_get(trace, "traceEvents");
    assert_int_equal(json_array_size(events), 3 + 3);
    const char *const names[] = {"process_name", "thread_name", "thread_name", "k", "k", "host"};
    for (size_t i = 0; i < 6; i++) {
        const json_t *event = json_array_get(events, i);
        assert_string_equal(text_at(event, "name"), names[i]);
        assert_string_equal(text_at(event, "ph"), i < 3 ? "M" : "X");
        assert_int_equal(json_integer_value(json_object_get(event, "pid")), getpid());
        assert_true(json_is_integer(json_object_get(event, "tid")));
    }
    assert_string_equal(text_at(json_object_get(json_array_get(events, 1), "args"), "name"),
                        "gpu 0");
    assert_true(json_equal(json_object_get(json_array_get(events, 1), "tid"),
                           json_object_get(json_array_get(events, 3), "tid")));
    assert_int_equal(json_integer_value(json_object_get(json_array_get(events, 5), "tid")),
                     getpid());
    assert_true(json_number_value(json_object_get(json_array_get(events, 3), "ts")) == 1.5e6);
    assert_true(json_number_value(json_object_get(json_array_get(events, 3), "dur")) == 0.75e6);
    const json_t *other = json_object_get(trace, "otherData");
    assert_int_equal(json_integer_value(json_object_get(other, "dropped")), 1);
    json_decref(trace);
    ejk_profiler_destroy(profiler);
}

static void odd_names_stay_one_line_of_text(void **state) {
    (void)state;
    ejk_profiler *profiler = PROFILER(.prefix_filter = NULL);
    char endless[300], umlauts[300] = "x", wanted[EJK_PROFILER_NAME_SIZE];
    memset(endless, 'e', sizeof endless - 1);
    endless[sizeof endless - 1] = '\0';
    for (int i = 0; i < 100; i++) strcat(umlauts, "\xc3\xa4");
    const struct {
        const char *given, *kept;
    } names[] = {
        {"", ""},
        {"\"}],\\ </script>", "\"}],\\ </script>"},
        {"a\nb\tc\x7f\x1b[0m", "a?b?c??[0m"},
        {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8e\x89", "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8e\x89"},
        {"\xff\xc3)\xe2\x82", "?"
                              "?)?"
                              "?"}, /* not UTF-8, cut short */
        {"\xc0\xaf\xed\xa0\x80\xf5\x80\x80\x80",
         "?????????"},      /* too long, a surrogate, too large */
        {"\xc2\x85", "??"}, /* a control character of two bytes */
        {endless, wanted},
    };
    memset(wanted, 'e', sizeof wanted - 1);
    wanted[sizeof wanted - 1] = '\0';
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        EXPECT_OK(ejk_profiler_begin(profiler, names[i].given));
        EXPECT_OK(ejk_profiler_end(profiler, names[i].given));
        add(profiler, names[i].given, names[i].given, (double)i, (double)i + 1);
    }
    json_t *trace = trace_of(profiler), *events = json_object_get(trace, "traceEvents");
    const size_t count = sizeof names / sizeof *names,
                 metadata = json_array_size(events) - 2 * count;
    for (size_t i = 0; i < count; i++)
        assert_string_equal(text_at(json_array_get(events, metadata + i), "name"), names[i].kept);
    json_decref(trace);
    /* Cut at a whole character. */
    add(profiler, "z", umlauts, 0, 1);
    const ejk_profiler_query cut = {.prefix = "x\xc3\xa4"};
    ejk_profiler_time *times;
    int64_t found;
    EXPECT_OK(ejk_profiler_times(profiler, &cut, &times, &found));
    assert_int_equal(found, 1);
    assert_int_equal(strlen(times->name), EJK_PROFILER_NAME_SIZE - 1);
    ejk_free(times);
    json_decref(trace_of(profiler));
    ejk_profiler_destroy(profiler);
}

static void the_table_has_the_largest_first(void **state) {
    (void)state;
    ejk_profiler *profiler = PROFILER(.prefix_filter = "t");
    add(profiler, "gpu", "tiny", 0, 0.001);
    add(profiler, "gpu", "t\xc3\xa4ler", 0, 2);
    add(profiler, "gpu", "other", 0, 9);
    char *text = NULL;
    EXPECT_OK(ejk_profiler_table(profiler, &text));
    assert_string_equal(
        text, "name      count      mean ms       std ms     total ms     union ms\n"
              "t\xc3\xa4ler         1  2000.000000     0.000000  2000.000000  2000.000000\n"
              "tiny          1     1.000000     0.000000     1.000000     1.000000\n"
              "3 events on 1 tracks; 0 shorter than 0 ns left out, 0 dropped for want of room\n");
    ejk_free(text);
    EXPECT_FAIL(INVALID_ARGUMENT, "profiler", ejk_profiler_table(NULL, &text));
    EXPECT_FAIL(INVALID_ARGUMENT, "out", ejk_profiler_table(profiler, NULL));
    EXPECT_FAIL(INVALID_ARGUMENT, "profiler", ejk_profiler_to_chrome_json(NULL, &text));
    ejk_profiler_destroy(profiler);
}

/* ---- Other tools ----------------------------------------------------------------------------------- */

static void expect_lines(const char *path, const char *const *wanted, int count) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char line[256], name[128];
    long long ns, last = 0, thread;
    for (int i = 0; i < count; i++) {
        char kind;
        assert_non_null(fgets(line, sizeof line, file));
        assert_int_equal(sscanf(line, "%lld %c %lld %127[^\n]", &ns, &kind, &thread, name), 4);
        assert_true(ns >= last && kind == wanted[i][0] && thread == getpid());
        assert_string_equal(name, wanted[i] + 1);
        last = ns;
    }
    assert_null(fgets(line, sizeof line, file));
    fclose(file);
}

static void markers_go_to_a_file(void **state) {
    (void)state;
    char path[] = "ejk-markers-XXXXXX";
    const int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    static const char *const lines[] = {"Ba", "Bb ? c", "Eb ? c", "Ea", "Ba", "Ea"};
    ejk_profiler *profiler = PROFILER(.marker_path = path);
    EXPECT_OK(ejk_profiler_begin(profiler, "a"));
    EXPECT_OK(ejk_profiler_begin(profiler, "b \n c"));
    EXPECT_OK(ejk_profiler_end(profiler, "b \n c"));
    EXPECT_OK(ejk_profiler_end(profiler, "a"));
    assert_int_equal(ejk_profiler_count(profiler).lost_markers, 0);
    ejk_profiler_destroy(profiler);
    expect_lines(path, lines, 4);
    /* The environment names the file where the options do not; lines are appended. */
    assert_int_equal(setenv("EJKERNEL_MARKERS", path, 1), 0);
    EXPECT_OK(ejk_profiler_create(NULL, &profiler));
    EXPECT_OK(ejk_profiler_begin(profiler, "a"));
    EXPECT_OK(ejk_profiler_end(profiler, "a"));
    ejk_profiler_destroy(profiler);
    profiler = PROFILER(.marker_path = "");
    EXPECT_OK(ejk_profiler_begin(profiler, "b"));
    EXPECT_OK(ejk_profiler_end(profiler, "b"));
    ejk_profiler_destroy(profiler);
    unsetenv("EJKERNEL_MARKERS");
    expect_lines(path, lines, 6);
    unlink(path);
}

static void nvtx_ranges_are_pushed_where_it_is_loaded(void **state) {
    (void)state;
    for (int on = 1; on >= 0; on--) {
        ejk_profiler *profiler = PROFILER(.nvtx = on ? EJK_TRUE : EJK_FALSE);
        ranges[0] = '\0';
        EXPECT_OK(ejk_profiler_begin(profiler, "a"));
        EXPECT_OK(ejk_profiler_begin(profiler, "b"));
        EXPECT_FAIL(INVALID_ARGUMENT, "innermost", ejk_profiler_end(profiler, "a"));
        EXPECT_OK(ejk_profiler_end(profiler, "b"));
        EXPECT_OK(ejk_profiler_end(profiler, "a"));
        assert_string_equal(ranges, on ? "<a<b>>" : "");
        assert_int_equal(depth, 0);
        ejk_profiler_destroy(profiler);
    }
}

/* ---- Threads --------------------------------------------------------------------------------------- */

enum { THREADS = 4, SCOPES = 500 };

static void *record(void *argument) {
    ejk_profiler *profiler = argument;
    for (int i = 0; i < SCOPES; i++) {
        bool sound = ejk_profiler_begin(profiler, "outer") == EJK_OK;
        sound &= ejk_profiler_begin(profiler, "inner") == EJK_OK;
        sound &= ejk_profiler_end(profiler, "inner") == EJK_OK;
        sound &= ejk_profiler_add(profiler, "gpu", "kernel", i, i + 1) == EJK_OK;
        sound &= ejk_profiler_end(profiler, "outer") == EJK_OK;
        if (!sound) return profiler;
    }
    return NULL;
}

static void threads_record_while_others_read(void **state) {
    (void)state;
    ejk_profiler *profiler = PROFILER(.prefix_filter = NULL);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, record, profiler), 0);
    for (int i = 0; i < 10; i++) {
        json_decref(trace_of(profiler));
        ejk_profiler_event *events;
        int64_t count;
        EXPECT_OK(ejk_profiler_events(profiler, &events, &count));
        for (int64_t k = 0; k < count; k++) assert_true(events[k].name[0] != '\0');
        ejk_free(events);
        names_of(profiler, NULL);
    }
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(ejk_profiler_count(profiler).tracks, THREADS + 1);
    assert_int_equal(ejk_profiler_count(profiler).events, 3 * THREADS * SCOPES);
    static const char *const names[] = {"outer", "inner", "kernel"};
    for (int i = 0; i < 3; i++)
        assert_int_equal(time_of(profiler, NULL, names[i]).count, THREADS * SCOPES);
    ejk_profiler_destroy(profiler);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scopes_nest),
        cmocka_unit_test(unbalanced_ends_are_errors),
        cmocka_unit_test(too_many_open_scopes_are_counted_and_still_balance),
        cmocka_unit_test(no_profiler_is_off),
        cmocka_unit_test(room_is_bounded_and_short_ones_take_none),
        cmocka_unit_test(intervals_inside_an_event_are_united),
        cmocka_unit_test(statistics_leave_out_the_extremes),
        cmocka_unit_test(the_union_of_a_name_counts_time_once),
        cmocka_unit_test(prefix_and_track_choose),
        cmocka_unit_test(wrong_intervals_and_options_are_refused),
        cmocka_unit_test(a_trace_reads_back),
        cmocka_unit_test(odd_names_stay_one_line_of_text),
        cmocka_unit_test(the_table_has_the_largest_first),
        cmocka_unit_test(markers_go_to_a_file),
        cmocka_unit_test(nvtx_ranges_are_pushed_where_it_is_loaded),
        cmocka_unit_test(threads_record_while_others_read),
    };
    return cmocka_run_group_tests_name("profiler", tests, NULL, NULL);
}
