/* SPDX-License-Identifier: Apache-2.0 */
/* One implementation at one call. */
#include "conformance/compare.h"
#include "conformance/suite.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MOST_PRINTED = 5 };

void trial_begin(struct trial *t, enum check check) {
    t->progress->tally[t->index].runs[check]++;
    t->progress->line = t->index;
    snprintf(t->progress->doing, sizeof t->progress->doing, "%s: %s %s %s: %s",
             t->line->kernel->op_id, t->line->implementation->algorithm,
             t->line->implementation->name, check_names[check], t->text);
}

void trial_fail(struct trial *t, enum check check, const char *why) {
    if (t->progress->tally[t->index].failures[check]++ >= MOST_PRINTED || t->suite->quiet) return;
    printf("FAIL %s: %s %s %s: %s [%s]\n", t->line->kernel->op_id,
           t->line->implementation->algorithm, t->line->implementation->name, check_names[check],
           why, t->text);
    fflush(stdout);
}

void trial_choose_parameters(struct trial *t, struct random *r) {
    const ejk_implementation *e = t->line->implementation;
    const double dice = random_real(r);
    size_t used = strlen(t->text);
    for (int32_t i = 0; i < e->parameter_count; i++) {
        const ejk_parameter *p = e->parameters + i;
        const int64_t steps = (p->maximum - p->minimum) / p->step;
        const double share = random_real(r);
        const double bent = pow(share, t->suite->gpu && steps > 100 ? 12 : 3);
        int64_t value = p->minimum + p->step * (int64_t)((double)steps * bent + 0.5);
        if (dice < 0.4) value = p->fallback;
        if (dice > 0.9 && !t->suite->gpu)
            value = share < 0.5 ? p->minimum : p->minimum + p->step * steps;
        t->parameters[i] = value;
        if (used < sizeof t->text)
            used += (size_t)snprintf(t->text + used, sizeof t->text - used, " %s=%" PRId64, p->name,
                                     value);
    }
}

/* Runs the call and takes what it wrote; false if there is nothing to compare. */
static bool run_whole(struct trial *t, ejk_threads *threads, enum check check,
                      struct taken *taken) {
    struct prepared prepared;
    char why[256];
    if (prepare_call(t->line->kernel, t->placement->args, &prepared) != EJK_OK) {
        trial_fail(t, check, ejk_last_error());
        return false;
    }
    if (!line_applies(t->line, &prepared)) return false; /* it looks at strides */
    const enum outcome outcome = run_line(t, &prepared, threads, check);
    if (!placement_take(t->placement, taken, why, sizeof why)) trial_fail(t, check, why);
    if (outcome != DONE) taken_close(taken);
    return outcome == DONE;
}

static bool same_bits(const struct trial *t, const struct taken *a, const struct taken *b,
                      char *why, size_t size) {
    const ejk_record *record = t->line->kernel->args;
    for (int32_t i = 0; i < record->count; i++) {
        if (!a->bytes[i]) continue;
        const ejk_tensor *tensor = field_tensor(&record->fields[i], t->call->args);
        const int64_t count = ejk_tensor_count(tensor);
        const int64_t n = first_difference(tensor->dtype, a->bytes[i], b->bytes[i], 0, count);
        if (n == count) continue;
        snprintf(why, size, "%s element %" PRId64 " has other bits", record->fields[i].name, n);
        return false;
    }
    return true;
}

static void check_again(struct trial *t, const struct taken *first, ejk_threads *threads,
                        enum check check) {
    struct taken taken;
    char why[256], more[320];
    if (!run_whole(t, threads, check, &taken)) return;
    if (!same_bits(t, first, &taken, why, sizeof why)) {
        snprintf(more, sizeof more, "with %d threads %s", (int)ejk_threads_count(threads), why);
        trial_fail(t, check, more);
    }
    taken_close(&taken);
}

void trial_run(struct trial *t) {
    struct random r = {.state = t->call->seed ^ UINT64_C(0x5bd1e9955bd1e995)};
    struct placement placement;
    struct taken taken;
    char why[512];
    t->placement = &placement;
    call_print(t->call, t->text, sizeof t->text);
    trial_choose_parameters(t, &r);
    placement_open(&placement, t->call, &r, t->suite->gpu);
    if (run_whole(t, NULL, ACCURACY, &taken)) {
        if (!compare_results(t->call, &taken, &t->progress->tally[t->index].worst, why, sizeof why))
            trial_fail(t, ACCURACY, why);
        const bool threads = random_chance(&r, 0.5);
        for (int32_t count = 2; threads && !t->suite->gpu && count <= 4; count++)
            check_again(t, &taken, t->suite->threads[count], THREADS);
        if (t->suite->gpu) check_again(t, &taken, NULL, AGAIN);
        check_slice(t, &taken, &r);
        if (!t->suite->gpu && random_chance(&r, 0.1)) check_refusal(t, &r);
        if (t->call->dtype == EJK_DTYPE_F64) check_derivative(t, &taken, &r);
        taken_close(&taken);
    }
    placement_close(&placement);
}
