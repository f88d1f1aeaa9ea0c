/* SPDX-License-Identifier: Apache-2.0 */
#include "support/tune_world.h"

#include "base/base.h"

#include <stdio.h>

static ejk_status run(void *user, int32_t index) {
    tune_world *w = user;
    const tune_script *s = &w->script[index];
    int32_t before = w->runs[index]++;
    const double seconds = s->later_from > 0 && before >= s->later_from ? s->later : s->seconds;
    w->now += seconds * (1 + s->noise * random_real(&w->random)) + (before == 0 ? s->first : 0);
    w->result = 1 + (before >= s->off_from ? s->off : 0);
    if (++w->all_runs == w->cancel_after) w->cancel = w->cancel_value;
    if (!s->fails || before < s->fails_from) return EJK_OK;
    if (s->silent) return EJK_STATUS_UNAVAILABLE;
    return ejki_fail(EJK_STATUS_UNAVAILABLE, "candidate %d has no luck", (int)index);
}

static ejk_status keep(void *user, int32_t index) {
    tune_world *w = user;
    (void)index;
    w->keeps++;
    w->kept = w->result;
    return EJK_OK;
}

/* As careless as a user's may be: NaN compares as not greater. */
static ejk_status check(void *user, int32_t index, bool *agrees, double *difference) {
    tune_world *w = user;
    w->checks[index]++;
    if (w->script[index].check_fails)
        return ejki_fail(EJK_STATUS_IO, "candidate %d cannot be checked", (int)index);
    *difference = w->result - w->kept;
    *agrees = !(*difference > 1e-3);
    return EJK_OK;
}

static int64_t memory_bytes(void *user, int32_t index) {
    return ((tune_world *)user)->script[index].bytes;
}

/* One buffer for all: it has to be copied at once. */
static const char *describe(void *user, int32_t index) {
    static _Thread_local char text[32];
    (void)user;
    snprintf(text, sizeof text, "{\"block\":%d}", (int)index);
    return text;
}

static double now(void *user) {
    return ((tune_world *)user)->now;
}

ejk_tune_problem tune_world_problem(tune_world *world, int32_t default_index) {
    return (ejk_tune_problem){.count = world->count,
                              .default_index = default_index,
                              .run = run,
                              .keep = keep,
                              .check = check,
                              .memory_bytes = memory_bytes,
                              .describe = describe,
                              .user = world};
}

ejk_clock tune_world_clock(tune_world *world) {
    return (ejk_clock){now, world};
}

ejk_tuner_options tune_world_options(tune_world *world) {
    return (ejk_tuner_options){.sample_s = ejk_float(0),
                               .time_s = 10,
                               .seed = 7,
                               .cancel = &world->cancel,
                               .clock = tune_world_clock(world)};
}
