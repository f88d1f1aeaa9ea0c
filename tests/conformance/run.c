/* SPDX-License-Identifier: Apache-2.0 */
/* An implementation on a call, without the planner: what is under test is what runs. */
#include "conformance/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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

/* What runs one of the steps: the line's own, or another. NULL: the call has no such step. */
static const ejk_implementation *step_of(const struct line *line, const void *problem,
                                         int32_t step) {
    const ejk_kernel *kernel = line->kernel;
    if (!kernel->steps) return step == 0 ? line->implementation : NULL;
    if (kernel->steps[step].wanted && !kernel->steps[step].wanted(problem)) return NULL;
    const bool own =
        strcasecmp(kernel->steps[step].algorithm, line->implementation->algorithm) == 0;
    return own ? line->implementation : line->other[step];
}

static int32_t steps_of(const ejk_kernel *kernel) {
    return kernel->steps ? kernel->step_count : 1;
}

bool line_applies(const struct line *line, const struct prepared *prepared) {
    const ejk_implementation *e = line->implementation;
    bool mine = false;
    for (int32_t i = 0; i < steps_of(line->kernel); i++)
        mine = mine || step_of(line, prepared->given, i) == e;
    return mine && (!e->applicable || e->applicable(prepared->given));
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
                             void *shared, ejk_threads *threads, enum check check) {
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
                         .shared = shared,
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

/* All steps; what they share has canaries of its own. */
static enum outcome run_steps(struct trial *t, const void *given, ejk_threads *threads,
                              enum check check) {
    const ejk_kernel *kernel = t->line->kernel;
    _Alignas(64) unsigned char own[EJK_MAX_PROBLEM_SIZE];
    const void *problem = kernel->problem_size ? memcpy(own, given, kernel->problem_size) : given;
    const size_t bytes = kernel->shared_bytes ? kernel->shared_bytes(problem) : 0;
    struct scratch scratch = {.bytes = 0};
    void *shared = bytes ? scratch_create(&scratch, bytes, t->placement->gpu) : NULL;
    enum outcome outcome = DONE;
    if (bytes && kernel->bind_shared) kernel->bind_shared(own, shared);
    for (int32_t i = 0; i < steps_of(kernel) && outcome == DONE; i++) {
        const ejk_implementation *e = step_of(t->line, problem, i);
        if (e) outcome = run_step(t, e, problem, shared, threads, check);
    }
    if (bytes && !scratch_destroy(&scratch)) {
        trial_fail(t, check, "what steps share was overrun");
        return FAILED;
    }
    return outcome;
}

enum outcome run_line(struct trial *t, const struct prepared *prepared, ejk_threads *threads,
                      enum check check) {
    const ejk_kernel *kernel = t->line->kernel;
    trial_begin(t, check);
    if (kernel->validate && !t->placement->gpu && kernel->validate(prepared->given) != EJK_OK) {
        trial_fail(t, check, ejk_last_error());
        return FAILED;
    }
    return run_steps(t, prepared->given, threads, check);
}
