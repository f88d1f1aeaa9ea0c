/* SPDX-License-Identifier: Apache-2.0 */
#include "support/toy.h"

#include "support/expect.h"

#define EJK_RECORD_SELF toy_params
EJK_RECORD_DEFINE(toy_params_record, toy_params, TOY_PARAMS);
#undef EJK_RECORD_SELF
#define EJK_RECORD_SELF toy_config
EJK_RECORD_DEFINE(toy_config_record, toy_config, TOY_CONFIG);
#undef EJK_RECORD_SELF
#define EJK_RECORD_SELF toy_args
EJK_RECORD_DEFINE_WITH(toy_args_record, toy_args, TOY_ARGS, "n=1,m", NULL);
#undef EJK_RECORD_SELF

ejk_opt_int toy_advice;
void (*toy_during)(const ejk_run *run);

typedef struct toy_problem {
    int64_t n, m, step_x, step_y, step_z;
    double factor, shift;
    const float *x;
    float *y, *z;
} toy_problem;

static ejk_status prepare(const void *arguments, const ejk_axes *axes, void *problem) {
    const toy_args *args = arguments;
    assert_null(args->x.data); /* pointers are none of its business */
    *(toy_problem *)problem = (toy_problem){.n = ejk_axes_get(axes, "n"),
                                            .m = ejk_axes_get(axes, "m"),
                                            .step_x = args->x.strides[0],
                                            .step_y = args->y.strides[0],
                                            .step_z = args->z.strides[0],
                                            .factor = args->factor,
                                            .shift = (double)args->shift.value};
    return EJK_OK;
}

static void bind(const void *arguments, void *problem) {
    const toy_args *args = arguments;
    toy_problem *p = problem;
    p->x = args->x.data;
    p->y = args->y.data;
    p->z = args->z.dtype ? args->z.data : NULL;
}

static void advise(const ejk_invocation *invocation, void *config) {
    assert_ptr_equal(invocation->implementation->run, toy_implementation.run);
    assert_ptr_equal(invocation->kernel, &toy_kernel);
    ((toy_config *)config)->params.rows = toy_advice;
}

static void cost(const void *problem, const void *args, ejk_cost *out) {
    (void)args;
    const toy_problem *p = problem;
    *out = (ejk_cost){2 * (double)(p->n * p->m), 8 * (double)(p->n * p->m)};
}

const ejk_kernel toy_kernel = {
    .op_id = "toy",
    .doc = "scales",
    .args = &toy_args_record,
    .config = &toy_config_record,
    .config_field = "cfg",
    .parameters_field = "params",
    .problem_size = sizeof(toy_problem),
    .prepare = prepare,
    .bind = bind,
    .heuristic_cfg = advise,
    .cost = cost,
};

static ejk_status launch(const void *problem, const int64_t *parameters, int32_t threads,
                         ejk_launch *out) {
    const toy_problem *p = problem;
    assert_int_equal(parameters[0] % 8, 0);
    out->workspace_bytes = TOY_WORKSPACE;
    out->workers = p->m < 4 || threads == 1 ? 1 : threads < 4 ? threads : 4;
    return EJK_OK;
}

/* Each worker takes every workers-th row. */
static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const toy_problem *p = run->problem;
    for (int64_t i = index; i < p->n; i += run->workers)
        for (int64_t k = 0; k < p->m; k++) {
            float value = (float)(p->x[i * p->step_x + k] * p->factor + p->shift);
            p->y[i * p->step_y + k] = value;
            if (p->z) p->z[i * p->step_z + k] = value;
        }
}

static ejk_status compute(const ejk_run *run) {
    const ejk_run **owner = run->workspace;
    if ((uintptr_t)run->workspace % 64) return EJK_STATUS_INTERNAL;
    *owner = run;
    if (toy_during) toy_during(run);
    ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);
    return *owner == run ? EJK_OK : EJK_STATUS_INTERNAL;
}

const float *toy_input(const ejk_run *run) {
    return ((const toy_problem *)run->problem)->x;
}

static const ejk_parameter parameters[] = {{"rows", 8, 64, 8, 16, "rows at once"}};

const ejk_implementation toy_implementation = {
    .algorithm = "toy",
    .name = "f32/plain",
    .platform = EJK_PLATFORM_REFERENCE,
    .backend = EJK_BACKEND_CPU,
    .dtype = EJK_DTYPE_F32,
    .version = 3,
    .parameters = parameters,
    .parameter_count = 1,
    .prepare = launch,
    .run = compute,
};

ejk_context *toy_context(const ejk_context_options *options) {
    ejk_context *context;
    toy_advice = (ejk_opt_int){0};
    toy_during = NULL;
    EXPECT_OK(ejk_context_create(options, &context));
    EXPECT_OK(ejk_context_add_kernel(context, &toy_kernel));
    EXPECT_OK(ejk_registry_register(ejk_context_registry(context), &toy_implementation));
    return context;
}

toy_args toy_call(float *x, float *y, int64_t n, int64_t m) {
    return (toy_args){.x = ejk_tensor_2d(x, EJK_DTYPE_F32, n, m),
                      .y = ejk_tensor_2d(y, EJK_DTYPE_F32, n, m),
                      .factor = 2};
}
