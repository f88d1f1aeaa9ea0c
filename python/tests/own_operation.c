/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of a user's: numbers times a factor, with sums that are updated; and a list of tensors, added up. */
#include <ejkernel/ejkernel.h>

#define SCALE_ARGS(F, R)                                                                           \
    F(TENSOR, x, EJK_REQUIRED, "", "[n] float32", "what is scaled")                                \
    F(FLOAT, factor, EJK_OPTIONAL, "0", "", "by how much")                                         \
    F(TENSOR, total, EJK_INOUT, "none", "[n] float32", "sums so far")                              \
    F(INTS, places, EJK_OPTIONAL, "all", "", "where, if not everywhere")                           \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[n] float32", "the result")

EJK_RECORD_STRUCT(scale_args, SCALE_ARGS);
#define EJK_RECORD_SELF scale_args
EJK_RECORD_DEFINE(scale_args_record, scale_args, SCALE_ARGS);
#undef EJK_RECORD_SELF

static bool wanted(const ejk_ints *places, int64_t i) {
    for (int32_t k = 0; k < places->count; k++)
        if (places->value[k] == i) return true;
    return places->count == 0;
}

static ejk_status run(const ejk_hook_call *call) {
    const scale_args *a = call->args;
    const float *x = a->x.data;
    float *out = a->out.data, *total = a->total.data;
    for (int64_t i = 0; i < a->x.shape[0]; i++) {
        out[i] = wanted(&a->places, i) ? (float)a->factor * x[i] : 0;
        if (total) total[i] += out[i];
    }
    return EJK_OK;
}

static const ejk_hook hooks[] = {{.name = "run", .call = run}};

static const ejk_kernel scale = {.op_id = "scale_by",
                                 .doc = "numbers times a factor",
                                 .args = &scale_args_record,
                                 .hooks = hooks,
                                 .hook_count = 1};

/* ---- A list of tensors ------------------------------------------------------------------------------ */

#define SUM_ARGS(F, R)                                                                             \
    F(TENSORS, parts, EJK_REQUIRED, "", "[n#,D] float32", "rows that are added up")                \
    F(TENSOR, start, EJK_OPTIONAL, "0", "[D] float32", "what is added to")                         \
    F(TENSOR, out, EJK_REQUIRED_OUTPUT, "", "[n0+1,D] float32", "the sums in every row")

EJK_RECORD_STRUCT(sum_args, SUM_ARGS);
#define EJK_RECORD_SELF sum_args
EJK_RECORD_DEFINE(sum_args_record, sum_args, SUM_ARGS);
#undef EJK_RECORD_SELF

static ejk_status run_sum(const ejk_hook_call *call) {
    const sum_args *a = call->args;
    const ejk_tensor *out = &a->out;
    for (int64_t d = 0; d < out->shape[1]; d++) {
        float sum = a->start.dtype ? ((const float *)a->start.data)[d] : 0;
        for (int32_t k = 0; k < a->parts.count; k++) {
            const ejk_tensor *part = &a->parts.value[k];
            for (int64_t i = 0; i < part->shape[0]; i++)
                sum += ((const float *)part->data)[i * part->strides[0] + d];
        }
        for (int64_t i = 0; i < out->shape[0]; i++)
            ((float *)out->data)[i * out->strides[0] + d] = sum;
    }
    return EJK_OK;
}

static const ejk_hook sum_hooks[] = {{.name = "run", .call = run_sum}};

static const ejk_kernel sum = {.op_id = "sum_of_parts",
                               .doc = "sums over the rows of a list of tensors",
                               .args = &sum_args_record,
                               .hooks = sum_hooks,
                               .hook_count = 1};

EJK_API ejk_status add_own(ejk_context *context) {
    ejk_status status = ejk_context_add_kernel(context, &scale);
    return status == EJK_OK ? ejk_context_add_kernel(context, &sum) : status;
}
