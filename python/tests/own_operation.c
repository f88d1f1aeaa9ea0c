/* SPDX-License-Identifier: Apache-2.0 */
/* An operation of a user's: out[i] = x[i] * factor + add, where add is updated to out. */
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

EJK_API ejk_status add_scale(ejk_context *context) {
    return ejk_context_add_kernel(context, &scale);
}
