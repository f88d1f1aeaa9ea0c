/* SPDX-License-Identifier: Apache-2.0 */
/* An implementation on a call, without the planner: what is under test is what runs. */
#include "conformance/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *algorithm_of(const ejk_kernel *kernel) {
    return kernel->algorithm ? kernel->algorithm : kernel->op_id;
}

ejk_status prepare_call(const ejk_kernel *kernel, const void *args, struct prepared *out) {
    ejk_axes axes = {.count = 0};
    const ejk_status checked = ejk_record_check_tensors(kernel->args, args, &axes);
    if (checked != EJK_OK) return checked;
    memset(out->problem, 0, sizeof out->problem);
    out->given = kernel->problem_size ? out->problem : args;
    if (!kernel->prepare) return EJK_OK;
    const ejk_status status = kernel->prepare(args, &axes, out->problem);
    if (status == EJK_OK && kernel->bind) kernel->bind(args, out->problem);
    return status;
}

/* What runs one of the steps: the line's own, or the other. NULL: the call has no such step. */
static const ejk_implementation *step_of(const struct line *line, const void *problem, int step) {
    const char *algorithm = step == 0                  ? algorithm_of(line->kernel)
                            : line->kernel->afterwards ? line->kernel->afterwards(problem)
                                                       : NULL;
    if (!algorithm) return NULL;
    return strcasecmp(algorithm, line->implementation->algorithm) == 0 ? line->implementation
                                                                       : line->other;
}

bool line_applies(const struct line *line, const struct prepared *prepared) {
    const ejk_implementation *e = line->implementation;
    const void *problem = prepared->given;
    const bool mine = step_of(line, problem, 0) == e || step_of(line, problem, 1) == e;
    return mine && (!e->applicable || e->applicable(problem));
}

/* ---- Scratch memory ---------------------------------------------------------------------------------- */

enum { CANARY = 4096 };

struct scratch {
    struct guarded here;
    unsigned char *there;
    size_t bytes;
};

static void *scratch_create(struct scratch *s, size_t bytes, bool gpu) {
    *s = (struct scratch){.bytes = bytes};
    if (!gpu) {
        guarded_create(&s->here, bytes, GUARDED_END, (64 - bytes % 64) % 64);
        return s->here.data;
    }
    if (bytes == 0) return NULL;
    const size_t whole = bytes + 2 * CANARY;
    unsigned char *fill = malloc(whole);
    if (!fill) abort();
    memset(fill, GUARDED_FILL, whole);
    s->there = device_allocate(whole);
    device_put(s->there, fill, whole);
    free(fill);
    return s->there + CANARY;
}

/* False if what surrounds it has changed. */
static bool scratch_destroy(struct scratch *s) {
    bool intact = true;
    if (s->there) {
        unsigned char around[2 * CANARY];
        device_get(around, s->there, CANARY);
        device_get(around + CANARY, s->there + CANARY + s->bytes, CANARY);
        intact = is_poison(around, sizeof around);
        device_free(s->there);
    } else if (s->here.pages) {
        intact = guarded_intact(&s->here);
        guarded_destroy(&s->here);
    }
    return intact;
}

/* ---- Steps ------------------------------------------------------------------------------------------- */

static enum outcome run_step(struct trial *t, const ejk_implementation *e, const void *problem,
                             ejk_threads *threads, enum check check) {
    const int32_t offered = ejk_threads_count(threads);
    int64_t fallback[EJK_MAX_PARAMETERS];
    ejk_launch launch = {.workers = 1};
    char why[700];
    for (int32_t i = 0; i < e->parameter_count; i++) fallback[i] = e->parameters[i].fallback;
    const int64_t *parameters = e == t->line->implementation ? t->parameters : fallback;
    if (e->prepare && e->prepare(problem, parameters, offered, &launch) != EJK_OK) {
        snprintf(why, sizeof why, "prepare failed: %.600s", ejk_last_error());
        trial_fail(t, check, why);
        return FAILED;
    }
    if (launch.workers < 1 || launch.workers > offered) {
        snprintf(why, sizeof why, "prepare asks for %d workers of %d", (int)launch.workers,
                 (int)offered);
        trial_fail(t, check, why);
        return FAILED;
    }
    struct scratch scratch;
    const ejk_run run = {.problem = problem,
                         .parameters = parameters,
                         .workspace =
                             scratch_create(&scratch, launch.workspace_bytes, t->placement->gpu),
                         .threads = threads,
                         .workers = launch.workers,
                         .prepared = launch.prepared};
    ejk_status status = e->run(&run);
    /* Views of odd addresses are refused there, which is right. */
    const bool refused = t->placement->gpu && status == EJK_STATUS_INVALID_LAYOUT;
    if (status == EJK_OK && t->placement->gpu) {
        status = ejk_device_synchronise(0, NULL);
        if (status != EJK_OK) { /* after a fault nothing runs any more in this process */
            printf("FAIL %s\n", ejk_last_error());
            fflush(stdout);
            _Exit(EXIT_FAILURE);
        }
    }
    if (status != EJK_OK && !refused) {
        snprintf(why, sizeof why, "run failed: %.600s", ejk_last_error());
        trial_fail(t, check, why);
    }
    if (!scratch_destroy(&scratch)) {
        snprintf(why, sizeof why, "the %zu bytes of workspace were overrun",
                 launch.workspace_bytes);
        trial_fail(t, check, why);
        return FAILED;
    }
    return status == EJK_OK ? DONE : refused ? REFUSED : FAILED;
}

enum outcome run_line(struct trial *t, const struct prepared *prepared, ejk_threads *threads,
                      enum check check) {
    trial_begin(t, check);
    for (int step = 0; step < 2; step++) {
        const ejk_implementation *e = step_of(t->line, prepared->given, step);
        if (step == 1 && !e) break;
        const enum outcome outcome = run_step(t, e, prepared->given, threads, check);
        if (outcome != DONE) return outcome;
    }
    return DONE;
}
