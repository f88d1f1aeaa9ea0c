/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The example's server: whatever arrives beside a request, it gets the bytes that it would get alone. `test_serve gpu`
 * serves on a GPU.
 */
#include "engine.h"

#include "support/expect.h"
#include "support/gpu_driver.h"
#include "support/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    TEXTS = 12, /* that requests are made of */
    PROMPT = 70,
    WRITTEN = 8,
    PAGES = 24,
    RUNNING = 6,
    SLOTS = RUNNING + ENGINE_PREFIXES,
    ROWS = 128
};

typedef struct sample {
    uint8_t bytes[PROMPT + WRITTEN];
    int prompt;
} sample;

/* A model, and texts with what follows them when they are alone. */
typedef struct world {
    bytemix *model;
    sample texts[TEXTS];
} world;

/* What all schedules together have to have seen. */
static struct { int preempted, shared, chunks, mixed; } seen;

static ejk_context *context;
static const char *device = "cpu";
static world worlds[2];

/* Below the models' folder, which may have been carried to another machine. */
static void data_path(char path[512], const char *name) {
    const char *data = getenv("EJK_TEST_DATA");
    snprintf(path, 512, "%s/%s", data ? data : EJK_SOURCE_DIR "/examples/data", name);
}

/* Chunks of prompts and batches round sums in other orders: 1e-4 at most. Bytes that are closer say nothing. */
static bool write_alone(bytemix *model, sample *s) {
    static float logits[PROMPT * BYTEMIX_VOCABULARY];
    float *row = &logits[(s->prompt - 1) * BYTEMIX_VOCABULARY];
    EXPECT_OK(bytemix_read(model, 0, s->bytes, s->prompt, logits));
    for (int at = s->prompt; at < s->prompt + WRITTEN; at++, row = logits) {
        const uint8_t best = bytemix_likeliest(row);
        const float likeliest = row[best];
        row[best] = -1e30F;
        if (likeliest - row[bytemix_likeliest(row)] < 1e-3F) return false;
        s->bytes[at] = best;
        EXPECT_OK(bytemix_read(model, at, &s->bytes[at], 1, logits));
    }
    return true;
}

/* Texts from somewhere in the model's prompt; half of them begin alike, and one is no more than that, full pages. */
static void make_texts(world *w, const char *folder, struct random *random) {
    char path[640];
    uint8_t all[1000];
    snprintf(path, sizeof path, "%s/prompt.txt", folder);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(all, 1, sizeof all, file), sizeof all);
    assert_int_equal(fclose(file), 0);
    for (int i = 0; i < TEXTS;) {
        sample *s = &w->texts[i];
        const int common = i == 1 ? 2 * BYTEMIX_PAGE : i % 2 ? 40 : 0;
        s->prompt = i == 1 ? common : (int)random_int(random, common + 1, PROMPT);
        memcpy(s->bytes, all, (size_t)common);
        memcpy(s->bytes + common, all + random_int(random, 0, 900), (size_t)(s->prompt - common));
        i += write_alone(w->model, s);
    }
}

static void submit(engine *e, const sample *s, int *which, int text, int *count, int wanted) {
    which[(*count)++] = text;
    EXPECT_OK(engine_submit(e, 0, s->bytes, s->prompt, wanted));
}

static void look(const engine *e) {
    const engine_view v = engine_look(e);
    const engine_event *events = v.events;
    for (int i = 0; i < v.event_count; i++) {
        seen.chunks += events[i].rows > 1 && !events[i].writes;
        for (int k = i; k-- > 0 && events[k].start == events[i].start;)
            seen.mixed += (events[k].rows == 1) != (events[i].rows == 1);
    }
}

/* Requests that arrive between the steps of an engine of random limits. */
static void run_schedule(const world *w, struct random *random) {
    const engine_options options = {
        .rows = RANDOM_OF(random, ((int[]){8, 24, ROWS})),
        .pages = (int)random_int(random, 6, PAGES),
        .running = (int)random_int(random, 1, RUNNING),
        .prefixes = random_chance(random, 0.75) ? (int)random_int(random, 1, 3) : 0};
    const int requests = (int)random_int(random, 2, 6);
    int which[8], count = 0;
    bool busy = true;
    engine *e;
    EXPECT_OK(engine_open(w->model, options, &e));
    while (count < requests || busy) {
        while (count < requests && (!busy || random_chance(random, 0.5))) {
            const int text = (int)random_int(random, 0, TEXTS - 1);
            submit(e, &w->texts[text], which, text, &count, (int)random_int(random, 1, WRITTEN));
            busy = true;
        }
        EXPECT_OK(engine_step(e, &busy));
    }
    const engine_view v = engine_look(e);
    assert_int_equal(v.request_count, requests);
    for (int i = 0; i < requests; i++) {
        const request *r = v.requests[i];
        assert_int_equal(r->state, REQUEST_DONE);
        assert_int_equal(r->length, r->end);
        assert_memory_equal(r->bytes, w->texts[which[i]].bytes, (size_t)r->end);
        seen.preempted += r->preempted;
        seen.shared += r->shared;
    }
    engine_drop_prefixes(e);
    assert_int_equal(engine_look(e).free_pages, options.pages);
    look(e);
    engine_close(e);
}

static void test_schedules(void **state) {
    (void)state;
    struct random random = {24};
    for (int i = 0; i < 200; i++) run_schedule(&worlds[i % 4 == 0], &random);
    /* Else the schedules were too easy. */
    assert_true(seen.preempted > 20 && seen.shared > 1000);
    assert_true(seen.chunks > 200 && seen.mixed > 200);
}

static void check_drawing(const engine *e) {
    char path[] = "timeline.XXXXXX", text[4096] = "";
    const int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    EXPECT_OK(engine_draw(e, path));
    const ssize_t size = read(descriptor, text, sizeof text - 1);
    assert_int_equal(close(descriptor), 0);
    assert_int_equal(unlink(path), 0);
    assert_memory_equal(text, "<svg ", 5);
    assert_string_equal(text + size - 7, "</svg>\n");
    assert_non_null(strstr(text, ">1 pages"));
}

static void test_refusals(void **state) {
    (void)state;
    const uint8_t *bytes = worlds[0].texts[0].bytes;
    bool busy = true;
    engine *e = NULL;
    const engine_options many = {.rows = ENGINE_ROWS + 1, .pages = 2, .running = 1};
    assert_int_equal(engine_open(worlds[0].model, many, &e), EJK_STATUS_INVALID_ARGUMENT);
    assert_null(e);
    EXPECT_OK(
        engine_open(worlds[0].model, (engine_options){.rows = 1, .pages = 2, .running = 1}, &e));
    assert_int_equal(engine_submit(e, 0, bytes, 0, 1), EJK_STATUS_INVALID_ARGUMENT);
    assert_int_equal(engine_submit(e, 0, bytes, 1, 0), EJK_STATUS_INVALID_ARGUMENT);
    assert_int_equal(engine_submit(e, 0, bytes, 30, 3), EJK_STATUS_INVALID_ARGUMENT);
    assert_int_equal(engine_submit(e, 0, bytes, 1, BYTEMIX_CONTEXT), EJK_STATUS_INVALID_ARGUMENT);
    EXPECT_OK(engine_step(e, &busy));
    assert_false(busy);
    busy = true;
    EXPECT_OK(engine_submit(e, 0, bytes, 1, 1));
    while (busy) EXPECT_OK(engine_step(e, &busy));
    check_drawing(e);
    assert_int_equal(engine_draw(e, "nowhere/timeline.svg"), EJK_STATUS_IO);
    engine_close(e);
    engine_close(NULL);
}

static int set_up(void **state) {
    (void)state;
    static const char *const names[] = {"bytemix", "bytelm"};
    struct random random = {9};
    EXPECT_OK(ejk_context_create(&(ejk_context_options){.threads = 1}, &context));
    for (int i = 0; i < 2; i++) {
        char folder[512];
        data_path(folder, names[i]);
        const bytemix_options options = {.folder = folder,
                                         .device = device,
                                         .rows = ROWS,
                                         .pages = BYTEMIX_TABLE,
                                         .slots = SLOTS};
        EXPECT_OK(bytemix_open(context, &options, &worlds[i].model));
        make_texts(&worlds[i], folder, &random);
    }
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) bytemix_close(worlds[i].model);
    ejk_context_destroy(context);
    return 0;
}

int main(int count, char **words) {
    if (count > 1 && strcmp(words[1], "gpu") == 0) device = "cuda";
    if (count > 1 && !gpu_is_here()) return GPU_SKIPPED;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_schedules),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
