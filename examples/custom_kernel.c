/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel of one's own, from outside the library: out = table transposed. It is described once and then has
 * what the library's own kernels have: checked arguments, a registry of implementations, parameters that a
 * configuration sets, plans.
 */
#include <ejkernel/ejkernel.h>

#include <stdio.h>

/* ---- The description: configuration and arguments -------------------------------------------------- */

#define TRANSPOSE_CONFIG(F, R)                                                                     \
    EJK_BASE_OPERATION_CONFIG(F, R)                                                                \
    F(OPT_INT, block, EJK_OPTIONAL, "unset", "elements", "edge of the squares copied at a time")

#define TRANSPOSE_ARGS(F, R)                                                                       \
    F(TENSOR, table, EJK_REQUIRED, "", "[rows,columns] float32", "what is transposed")             \
    R(transpose_config, cfg, transpose_config_record, "explicit configuration")                    \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[columns,rows] float32", "the result")

EJK_RECORD_STRUCT(transpose_config, TRANSPOSE_CONFIG);
#define EJK_RECORD_SELF transpose_config
EJK_RECORD_DEFINE(transpose_config_record, transpose_config, TRANSPOSE_CONFIG);
#undef EJK_RECORD_SELF

EJK_RECORD_STRUCT(transpose_args, TRANSPOSE_ARGS);
#define EJK_RECORD_SELF transpose_args
EJK_RECORD_DEFINE(transpose_args_record, transpose_args, TRANSPOSE_ARGS);
#undef EJK_RECORD_SELF

static void cost(const void *problem, const void *data, ejk_cost *out) {
    (void)data; /* the same whatever the numbers are */
    const transpose_args *args = problem;
    out->flops = 0;
    out->bytes = 2.0 * sizeof(float) * (double)ejk_tensor_count(&args->table);
}

/* No problem of its own: the arguments, checked against their record, are what implementations get. */
static const ejk_kernel transpose = {
    .op_id = "transpose",
    .doc = "rows to columns",
    .args = &transpose_args_record,
    .config = &transpose_config_record,
    .config_field = "cfg",
    .parameters_field = "",
    .cost = cost,
};

/* ---- Two implementations --------------------------------------------------------------------------- */

static void copy_square(const transpose_args *args, int64_t row, int64_t column, int64_t edge) {
    const ejk_tensor *table = &args->table, *out = &args->out;
    const float *from = table->data;
    float *to = out->data;
    for (int64_t r = row; r < row + edge && r < table->shape[0]; r++)
        for (int64_t c = column; c < column + edge && c < table->shape[1]; c++)
            to[c * out->strides[0] + r] = from[r * table->strides[0] + c];
}

static ejk_status run_reference(const ejk_run *run) {
    const transpose_args *args = run->problem;
    for (int64_t r = 0; r < args->table.shape[0]; r++)
        for (int64_t c = 0; c < args->table.shape[1]; c++) copy_square(args, r, c, 1);
    return EJK_OK;
}

static ejk_status run_blocked(const ejk_run *run) {
    const transpose_args *args = run->problem;
    int64_t block = run->parameters[0];
    for (int64_t r = 0; r < args->table.shape[0]; r += block)
        for (int64_t c = 0; c < args->table.shape[1]; c += block) copy_square(args, r, c, block);
    return EJK_OK;
}

static const ejk_parameter blocked_parameters[] = {
    {"block", 8, 256, 8, 32, "edge of a square, in elements"}};

static const ejk_implementation implementations[] = {
    {.algorithm = "transpose",
     .name = "f32/reference",
     .platform = EJK_PLATFORM_REFERENCE,
     .dtype = EJK_DTYPE_F32,
     .version = 1,
     .run = run_reference},
    {.algorithm = "transpose",
     .name = "f32/blocked",
     .platform = EJK_PLATFORM_SIMD,
     .dtype = EJK_DTYPE_F32,
     .version = 1,
     .parameters = blocked_parameters,
     .parameter_count = 1,
     .run = run_blocked},
};

/* ---- Using it -------------------------------------------------------------------------------------- */

enum { ROWS = 300, COLUMNS = 200 };

static float table[ROWS * COLUMNS], out[COLUMNS * ROWS];

static ejk_status add_to(ejk_context *context) {
    ejk_status status = ejk_context_add_kernel(context, &transpose);
    for (int i = 0; i < 2 && status == EJK_OK; i++)
        status = ejk_registry_register(ejk_context_registry(context), &implementations[i]);
    return status;
}

static ejk_status describe(ejk_context *context, const transpose_args *args) {
    ejk_plan *plan;
    ejk_status status = ejk_plan_create(context, &transpose, args, &plan);
    if (status != EJK_OK) return status;
    char *text;
    status = ejk_plan_describe(plan, &text);
    if (status == EJK_OK) {
        puts(text);
        ejk_free(text);
    }
    ejk_plan_destroy(plan);
    return status;
}

/* Calls once with the library's choice and once with an explicit configuration. */
static ejk_status call(ejk_context *context) {
    transpose_args args = {.table = ejk_tensor_2d(table, EJK_DTYPE_F32, ROWS, COLUMNS)};
    args.out = ejk_tensor_2d(out, EJK_DTYPE_F32, COLUMNS, ROWS);
    ejk_status status = ejk_call(context, &transpose, &args);
    if (status == EJK_OK) status = describe(context, &args);
    args.cfg.block = ejk_int(64);
    if (status == EJK_OK) status = ejk_call(context, &transpose, &args);
    if (status == EJK_OK) status = describe(context, &args);
    return status;
}

int main(void) {
    for (int i = 0; i < ROWS * COLUMNS; i++) table[i] = (float)i;
    ejk_context *context = NULL;
    ejk_status status = ejk_context_create(NULL, &context);
    if (status == EJK_OK) status = add_to(context);
    if (status == EJK_OK) status = call(context);
    if (status != EJK_OK) fprintf(stderr, "%s: %s\n", ejk_status_name(status), ejk_last_error());
    ejk_context_destroy(context);
    int wrong = 0;
    for (int i = 0; i < ROWS * COLUMNS; i++)
        wrong += out[i % COLUMNS * ROWS + i / COLUMNS] != table[i];
    printf("%d elements of %d are wrong\n", wrong, ROWS * COLUMNS);
    return status == EJK_OK && wrong == 0 ? 0 : 1;
}
