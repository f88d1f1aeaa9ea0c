/* SPDX-License-Identifier: Apache-2.0 */
/* Grouped products, under the names that they are documented by, and tgmm. */
#include <ejkernel/grouped_matmul.h>

#include "base/base.h"
#include "ops/core/fill.h"
#include "operations/matmul/grouped_matmul/grouped.h"
#include "tensor/access.h"

#define EJK_RECORD_SELF ejk_grouped_matmul_config
EJK_RECORD_DEFINE(ejk_grouped_matmul_config_record, ejk_grouped_matmul_config,
                  EJK_GROUPED_MATMUL_CONFIG);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_grouped_matmul_args
EJK_RECORD_DEFINE_WITH(ejk_grouped_matmul_args_record, ejk_grouped_matmul_args,
                       EJK_GROUPED_MATMUL_ARGS, "L,K,E,N,C=N,G=E,M=L,O=M,Q=1", NULL);
#undef EJK_RECORD_SELF

#define EJK_RECORD_SELF ejk_tgmm_args
EJK_RECORD_DEFINE_WITH(ejk_tgmm_args_record, ejk_tgmm_args, EJK_TGMM_ARGS, "M,K,E,N,G=E", NULL);
#undef EJK_RECORD_SELF

ejk_status ejki_grouped_check(const ejk_tensor *sizes, const ejk_tensor *offset, mm_size held) {
    const mm_size groups = sizes->shape[0];
    if (held == groups || (held < groups && ejk_tensor_present(offset))) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                     "group_sizes has %lld groups, expected %lld as there are matrices%s", groups,
                     held, held < groups ? ", or group_offset" : "");
}

void ejki_grouped_split(const ejk_tensor *sizes, const ejk_tensor *offset, mm_size held, int split,
                        mm_product *p) {
    p->split = (unsigned char)split;
    p->groups = sizes->shape[0];
    p->held = held;
    p->sizes = ejki_mm_list(sizes);
    p->offset = ejki_mm_list(offset);
}

mm_view ejki_grouped_scale(const ejk_tensor *t) {
    mm_view v = {.present = ejk_tensor_present(t), .dtype = (int)t->dtype, .column = 1};
    if (v.present) v.group = t->strides[0], v.row = t->strides[1];
    return v;
}

/* Depth of a block of scales. */
mm_size ejki_grouped_block(const ejk_tensor *scale, mm_size depth) {
    const mm_size blocks = ejk_tensor_present(scale) ? scale->shape[1] : 0;
    return blocks > 0 ? ejki_max(1, ejki_cdiv(depth, blocks)) : ejki_max(1, depth);
}

ejk_status ejki_grouped_check_scale(const ejk_tensor *scale, mm_size depth) {
    if (!ejk_tensor_present(scale) || scale->shape[1] > 0 || depth == 0) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "rhs_scale has 0 blocks, expected at least 1");
}

/* ---- grouped_matmul --------------------------------------------------------------------------------- */

static ejk_status check_lengths(const ejk_grouped_matmul_args *args, mm_size rows) {
    const bool gathers = ejk_tensor_present(&args->lhs_indices);
    const bool scatters = ejk_tensor_present(&args->out_indices);
    if (!gathers && args->lhs.shape[0] != rows)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "lhs has %lld rows, expected %lld",
                         (long long)args->lhs.shape[0], rows);
    if (!scatters && args->out.shape[0] != rows)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "out has %lld rows, expected %lld",
                         (long long)args->out.shape[0], rows);
    if (ejk_tensor_present(&args->out_weights) && !scatters)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out_weights are given without out_indices");
    return EJK_OK;
}

static mm_size rows_of(const ejk_grouped_matmul_args *args) {
    if (ejk_tensor_present(&args->lhs_indices)) return args->lhs_indices.shape[0];
    return args->lhs.shape[0];
}

static ejk_status check_matrices(const ejk_grouped_matmul_args *args, mm_size depth) {
    const mm_size own = args->rhs.shape[args->transpose_rhs ? 2 : 1];
    if (own == depth) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE, "rhs has depth %lld, expected %lld as lhs", own,
                     depth);
}

static ejk_status prepare(const void *args_, const ejk_axes *axes, void *problem_) {
    (void)axes;
    const ejk_grouped_matmul_args *args = args_;
    mm_problem *problem = problem_;
    const mm_size rows = rows_of(args), depth = args->lhs.shape[1], columns = args->out.shape[1];
    const mm_size columns_b = args->rhs.shape[args->transpose_rhs ? 1 : 2];
    mm_product p = ejki_mm_product(rows, depth, columns);
    int64_t bytes;
    EJKI_TRY(ejki_mm_check_out(args->preferred_element_type, &args->lhs, &args->out));
    EJKI_TRY(check_lengths(args, rows));
    EJKI_TRY(check_matrices(args, depth));
    EJKI_TRY(ejki_grouped_check(&args->group_sizes, &args->group_offset, args->rhs.shape[0]));
    EJKI_TRY(ejki_grouped_check_scale(&args->rhs_scale, depth));
    EJKI_TRY(ejki_mm_activation(args->activation, args->interleaved, &args->limit, columns_b, &p));
    if (!ejki_mul(args->out.shape[0], columns, &bytes) || !ejki_mul(bytes, 64, &bytes))
        return ejki_fail(EJK_STATUS_OVERFLOW, "the elements of out cannot be counted");
    ejki_grouped_split(&args->group_sizes, &args->group_offset, args->rhs.shape[0], MM_ROWS, &p);
    p.a = ejki_mm_matrix(&args->lhs);
    p.b = args->transpose_rhs ? ejki_mm_transposed(&args->rhs) : ejki_mm_matrix(&args->rhs);
    p.out = ejki_mm_matrix(&args->out);
    p.add = ejki_mm_matrix(&args->existing_out);
    p.bias = ejki_mm_vector(&args->rhs_bias);
    p.scale = ejki_grouped_scale(&args->rhs_scale);
    p.block = ejki_grouped_block(&args->rhs_scale, depth);
    p.gather = ejki_mm_list(&args->lhs_indices);
    p.a_rows = args->lhs.shape[0];
    p.scatter = ejki_mm_list(&args->out_indices);
    p.weight_type = (int)args->out_weights.dtype;
    p.out_rows = args->out.shape[0];
    problem->count = 1;
    problem->product[0] = p;
    return EJK_OK;
}

static void bind(const void *args_, void *problem_) {
    const ejk_grouped_matmul_args *args = args_;
    mm_product *p = &((mm_problem *)problem_)->product[0];
    p->a.data = args->lhs.data;
    p->b.data = args->rhs.data;
    p->out.data = args->out.data;
    p->add.data = args->existing_out.data;
    p->bias.data = args->rhs_bias.data;
    p->scale.data = args->rhs_scale.data;
    p->sizes.data = args->group_sizes.data;
    p->offset.data = args->group_offset.data;
    p->gather.data = args->lhs_indices.data;
    p->scatter.data = args->out_indices.data;
    p->weight = args->out_weights.data;
}

/* ---- tgmm ------------------------------------------------------------------------------------------- */

static ejk_status prepare_tgmm(const void *args_, const ejk_axes *axes, void *problem_) {
    (void)axes;
    const ejk_tgmm_args *args = args_;
    mm_problem *problem = problem_;
    mm_product p = ejki_mm_product(args->lhs.shape[1], args->lhs.shape[0], args->rhs.shape[1]);
    EJKI_TRY(ejki_mm_check_out(args->preferred_element_type, &args->lhs, &args->out));
    EJKI_TRY(ejki_grouped_check(&args->group_sizes, &args->group_offset, args->out.shape[0]));
    ejki_grouped_split(&args->group_sizes, &args->group_offset, args->out.shape[0], MM_DEPTH, &p);
    p.a = ejki_mm_transposed(&args->lhs);
    p.b = ejki_mm_matrix(&args->rhs);
    p.out = ejki_mm_matrix(&args->out);
    p.add = ejki_mm_matrix(&args->existing_out);
    problem->count = 1;
    problem->product[0] = p;
    return EJK_OK;
}

static void bind_tgmm(const void *args_, void *problem_) {
    const ejk_tgmm_args *args = args_;
    mm_product *p = &((mm_problem *)problem_)->product[0];
    p->a.data = args->lhs.data;
    p->b.data = args->rhs.data;
    p->out.data = args->out.data;
    p->add.data = args->existing_out.data;
    p->sizes.data = args->group_sizes.data;
    p->offset.data = args->group_offset.data;
}

/* ---- Descriptions ----------------------------------------------------------------------------------- */

const ejk_input_option ejki_grouped_input_options[1] = {
    {"sizes", "rows of the groups, as 40+97+3+0; without it rows are dealt out evenly"}};

/* The next of numbers joined by +, -1 where there is none. */
static int64_t next_size(const char **at) {
    int64_t size = 0;
    if (**at < '0' || **at > '9') return -1;
    for (; **at >= '0' && **at <= '9'; (*at)++)
        if (!ejki_mul(size, 10, &size) || !ejki_add(size, **at - '0', &size)) return -1;
    if (**at == '+') (*at)++;
    return size;
}

/* Rows dealt out evenly, or as is wished. */
ejk_status ejki_grouped_inputs(const ejk_tensor *sizes, int64_t rows, const ejk_inputs *how) {
    const char *text = ejki_wish(how, "sizes"), *at = text;
    int64_t left = rows;
    if (!sizes->data) return EJK_OK;
    for (int64_t g = 0; g < sizes->shape[0]; g++) {
        const int64_t own =
            text ? next_size(&at) : rows * (g + 1) / sizes->shape[0] - rows * g / sizes->shape[0];
        if (own < 0 || own > left) left = -1;
        if (left < 0) break;
        left -= own;
        ejki_store_i64(sizes->dtype, sizes->data, g, own);
    }
    if (left >= 0 && (!text || *at == 0)) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "sizes is '%.60s', expected the rows of %lld groups, %lld together, joined "
                     "by +",
                     text, (long long)sizes->shape[0], (long long)rows);
}

static ejk_status inputs(void *args_, const ejk_axes *axes, const ejk_inputs *how) {
    const ejk_grouped_matmul_args *args = args_;
    const ejk_tensor *lists[] = {&args->lhs_indices, &args->out_indices};
    const int64_t most[] = {args->lhs.shape[0], args->out.shape[0]};
    (void)axes;
    for (int n = 0; n < 2; n++)
        for (int64_t i = 0; lists[n]->data && most[n] > 0 && i < lists[n]->shape[0]; i++)
            ejki_store_i64(lists[n]->dtype, lists[n]->data, i, i * 7 % most[n]);
    return ejki_grouped_inputs(&args->group_sizes, rows_of(args), how);
}

static ejk_status inputs_tgmm(void *args_, const ejk_axes *axes, const ejk_inputs *how) {
    const ejk_tgmm_args *args = args_;
    (void)axes;
    return ejki_grouped_inputs(&args->group_sizes, args->lhs.shape[0], how);
}

#define GROUPED_KERNEL(name, version_text)                                                         \
    const ejk_kernel ejk_##name##_kernel = {                                                       \
        .op_id = #name,                                                                            \
        .version = version_text,                                                                   \
        .doc = "products of rows with the matrix of their group",                                  \
        .args = &ejk_grouped_matmul_args_record,                                                   \
        .config = &ejk_grouped_matmul_config_record,                                               \
        .config_field = "cfg",                                                                     \
        .problem_size = sizeof(mm_problem),                                                        \
        .prepare = prepare,                                                                        \
        .bind = bind,                                                                              \
        .inputs = inputs,                                                                          \
        .input_options = ejki_grouped_input_options,                                               \
        .input_option_count = 1,                                                                   \
        .cost = ejki_mm_cost,                                                                      \
        .algorithm = "matmul",                                                                     \
    };                                                                                             \
    ejk_status ejk_##name(ejk_context *context, const ejk_grouped_matmul_args *args) {             \
        return ejk_call(context, &ejk_##name##_kernel, args);                                      \
    }

GROUPED_KERNEL(grouped_matmul, "0")
GROUPED_KERNEL(grouped_matmulv2, "0")
GROUPED_KERNEL(grouped_matmulv3, "0")

const ejk_kernel ejk_tgmm_kernel = {
    .op_id = "tgmm",
    .version = "0",
    .doc = "a product for each group of rows: transposed rows of one side times those of the other",
    .args = &ejk_tgmm_args_record,
    .config = &ejk_grouped_matmul_config_record,
    .config_field = "cfg",
    .problem_size = sizeof(mm_problem),
    .prepare = prepare_tgmm,
    .bind = bind_tgmm,
    .inputs = inputs_tgmm,
    .input_options = ejki_grouped_input_options,
    .input_option_count = 1,
    .cost = ejki_mm_cost,
    .algorithm = "matmul",
};

ejk_status ejk_tgmm(ejk_context *context, const ejk_tgmm_args *args) {
    return ejk_call(context, &ejk_tgmm_kernel, args);
}
