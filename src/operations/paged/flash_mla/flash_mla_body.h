/* SPDX-License-Identifier: Apache-2.0 */
/* flash_mla in vectors: keys and values in the workspace, to which unified_attention's line of this tier attends. */
#include "operations/paged/cpu/paged_parameters.h"
#include "operations/paged/cpu/suggest.h"
#include "operations/paged/flash_mla/flash_mla_project.h"

EJKI_DECLARE_OTHER(attention, EJKI_LINE_OF(unified_attention))

typedef struct mla_forward {
    mla_plan keys;
    ejk_launch core;
    paged_size core_at;
} mla_forward;

static ejk_status mla_plan_of(const mla_problem *m, const int64_t *parameters, int32_t threads,
                              mla_forward *t) {
    t->core_at = 0;
    EJKI_TRY(attention->prepare(&m->core, parameters, threads, &t->core));
    t->keys = mla_place(m, threads, &t->core_at);
    return EJK_OK;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    mla_forward t;
    EJKI_TRY(mla_plan_of(problem, parameters, threads, &t));
    launch->workers = t.core.workers;
    launch->workspace_bytes = (size_t)t.core_at + t.core.workspace_bytes;
    return EJK_OK;
}

static ejk_status run(const ejk_run *run) {
    mla_problem m = *(const mla_problem *)run->problem;
    mla_forward t;
    EJKI_TRY(mla_plan_of(&m, run->parameters, run->workers, &t));
    mla_work w = {.plan = t.keys};
    mla_project(&w, &m, run);
    mla_put_caches(&m, EJK_DTYPE_F32, w.keys, w.plan.key_step, w.values, w.plan.value_step);
    ejk_run core = *run;
    core.problem = &m.core;
    core.workspace = (char *)run->workspace + t.core_at;
    return attention->run(&core);
}

static void suggest(const void *problem, int32_t threads, ejk_opt_int *values) {
    ejki_paged_suggest(&((const mla_problem *)problem)->core, threads, values);
}

EJKI_DECLARE(EJKI_THIS_LINE, .version = 2, .parameters = page_parameters,
             .parameter_count = sizeof page_parameters / sizeof *page_parameters,
             .suggest = suggest, .prepare = prepare, .run = run)
