/* SPDX-License-Identifier: Apache-2.0 */
/* Candidates whose runs update what they read: every sample begins with what was there at first. */
#include "support/expect.h"
#include "support/tune_world.h"

#include <math.h>
#include <stdlib.h>

#define MS 1e-3

/* A state that each run adds to, and what it was at the end of the last run. */
typedef struct counter {
    tune_world world;
    ejk_tune_problem inner;
    int32_t state, kept, most, restored;
    int32_t last; /* candidate of the last restoring */
} counter;

static ejk_status count_run(void *user, int32_t index) {
    counter *c = user;
    assert_int_equal(c->last, index); /* no run goes on where another candidate ended */
    if (++c->state > c->most) c->most = c->state;
    return c->inner.run(&c->world, index);
}

static ejk_status count_restore(void *user, int32_t index) {
    counter *c = user;
    c->state = 0;
    c->last = index;
    c->restored++;
    c->world.now += index == 0 ? 0 : 50; /* is not timed */
    return index == 3 ? EJK_STATUS_IO : EJK_OK;
}

static ejk_status count_keep(void *user, int32_t index) {
    counter *c = user;
    (void)index;
    c->kept = c->state;
    return EJK_OK;
}

static ejk_status count_check(void *user, int32_t index, bool *agrees, double *difference) {
    const counter *c = user;
    (void)index;
    *difference = abs(c->state - c->kept);
    *agrees = c->state == c->kept;
    return EJK_OK;
}

static double count_now(void *user) {
    return ((counter *)user)->world.now;
}

static void states_are_put_back(void **state) {
    (void)state;
    counter c = {.world = {.count = 4,
                           .script = {{.seconds = 4 * MS},
                                      {.seconds = 1 * MS},
                                      {.seconds = 6 * MS},
                                      {.seconds = 1 * MS}}},
                 .last = -1};
    c.inner = tune_world_problem(&c.world, 0);
    const ejk_tune_problem problem = {.count = 4,
                                      .run = count_run,
                                      .keep = count_keep,
                                      .check = count_check,
                                      .restore = count_restore,
                                      .user = &c};
    ejk_tuner_options options = tune_world_options(&c.world);
    options.clock = (ejk_clock){count_now, &c};
    options.time_s = 1e6;
    options.warmup = ejk_int(4);
    options.sample_s = ejk_float(8 * MS);
    ejk_tune_report *report = NULL;
    EXPECT_OK(ejk_tune(&problem, &options, &report));
    assert_int_equal(report->chosen, 1);
    assert_int_equal(report->candidates[2].verdict, EJK_TUNE_VERDICT_SLOWER);
    assert_int_equal(report->candidates[3].verdict, EJK_TUNE_VERDICT_FAILED);
    assert_int_equal(report->candidates[3].status, EJK_STATUS_IO);
    EXPECT_NEAR(report->candidates[1].median_s, 1 * MS, 1e-6);
    assert_true(c.restored > 4 * report->rounds);
    assert_true(c.most >= 8); /* runs of a sample follow each other */
    ejk_tune_report_destroy(report);

    ejk_autotune_data data;
    c.last = -1;
    EXPECT_OK(ejk_autotuner_autotune(&(ejk_autotuner){.clock = options.clock}, &problem, &data));
    EXPECT_NEAR(data.measurements[1].seconds, 1 * MS, 1e-6);
    EXPECT_NEAR(data.measurements[2].seconds, 6 * MS, 1e-6);
    assert_true(isinf(data.measurements[3].seconds));
    ejk_autotune_data_close(&data);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(states_are_put_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
