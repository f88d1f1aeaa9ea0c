/* SPDX-License-Identifier: Apache-2.0 */
#include "operations/matmul/shared/product_call.h"

#include "base/base.h"

#include <string.h>

mm_view ejki_mm_matrix(const ejk_tensor *t) {
    mm_view v = {.present = ejk_tensor_present(t), .dtype = (int)t->dtype};
    if (!v.present) return v;
    v.group = t->rank > 2 ? t->strides[0] : 0;
    v.row = t->strides[t->rank - 2];
    v.column = 1;
    return v;
}

mm_view ejki_mm_transposed(const ejk_tensor *t) {
    mm_view v = ejki_mm_matrix(t);
    v.column = v.row;
    v.row = 1;
    v.flipped = 1;
    return v;
}

mm_view ejki_mm_vector(const ejk_tensor *t) {
    mm_view v = {.present = ejk_tensor_present(t), .dtype = (int)t->dtype, .column = 1};
    if (v.present) v.group = t->rank > 1 ? t->strides[0] : 0;
    return v;
}

mm_list ejki_mm_list(const ejk_tensor *t) {
    return (mm_list){.present = ejk_tensor_present(t), .wide = t->dtype == EJK_DTYPE_I64};
}

mm_product ejki_mm_product(mm_size rows, mm_size depth, mm_size columns) {
    return (mm_product){.rows = rows,
                        .a_rows = rows,
                        .depth = depth,
                        .columns = columns,
                        .groups = 1,
                        .held = 1,
                        .split = MM_EVEN,
                        .has_out = 1,
                        .alpha = 1,
                        .limit = 7};
}

static const struct {
    const char *name;
    unsigned char number, gated;
} known[] = {
#define KNOWN(activation, number, gated) {#activation, number, gated},
    MM_ACTIVATIONS(KNOWN)
#undef KNOWN
};
enum { KNOWN_COUNT = sizeof known / sizeof *known };

/* Its place in the list; KNOWN_COUNT: it is none. */
static size_t find_activation(const char *name) {
    size_t i = 0;
    while (name[0] && i < KNOWN_COUNT && strcmp(known[i].name, name) != 0) i++;
    return i;
}

bool ejki_mm_gated(const char *name) {
    const size_t i = find_activation(name);
    return i < KNOWN_COUNT && known[i].gated;
}

ejk_status ejki_mm_activation(const char *name, bool interleaved, const ejk_opt_float *limit,
                              mm_size columns_b, mm_product *p) {
    const size_t i = find_activation(name);
    if (i == KNOWN_COUNT)
        return ejki_fail(EJK_STATUS_UNKNOWN_NAME,
                         "activation is \"%s\", expected none, relu, silu, gelu, gelu_tanh, "
                         "swiglu, geglu, geglu_tanh or swiglu_clamped",
                         name);
    p->activation = known[i].number;
    p->gated = known[i].gated;
    p->interleaved = interleaved && p->gated;
    if (limit->set) p->limit = limit->value;
    if (limit->set && !(limit->value > 0))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "limit is %g, expected more than 0",
                         limit->value);
    if (columns_b != mm_columns_of_b(p))
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "rhs has %lld columns, expected %lld: those of out%s", columns_b,
                         mm_columns_of_b(p), p->gated ? " twice, with a gate" : "");
    return EJK_OK;
}

ejk_status ejki_mm_check_out(ejk_dtype preferred, const ejk_tensor *lhs, const ejk_tensor *out) {
    const ejk_dtype wanted = preferred != EJK_DTYPE_UNSET ? preferred : lhs->dtype;
    if (out->dtype == wanted) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_DTYPE, "out: %s given, expected %s as %s",
                     ejk_dtype_name(out->dtype), ejk_dtype_name(wanted),
                     preferred != EJK_DTYPE_UNSET ? "preferred_element_type says" : "lhs");
}

static double bytes_of(const mm_view *v, double count) {
    return v->present ? count * (double)ejk_dtype_size((ejk_dtype)v->dtype) : 0;
}

void ejki_mm_cost(const void *problem_, const void *args, ejk_cost *cost) {
    (void)args;
    const mm_problem *problem = problem_;
    cost->flops = cost->bytes = 0;
    for (int n = 0; n < problem->count; n++) {
        const mm_product *p = &problem->product[n];
        const double groups = p->split == MM_EVEN ? (double)p->groups : 1;
        const double rows = groups * (double)p->rows, columns = (double)mm_columns_of_b(p);
        const double b = (double)p->depth * columns *
                         (p->split == MM_ROWS ? (double)ejki_min(p->held, p->rows)
                          : p->b.group        ? groups
                                              : 1);
        const bool adds_up = p->scatter.present || p->fold.present;
        const double out = (double)(adds_up ? p->out_rows : p->rows) * groups * (double)p->columns *
                           (p->split == MM_DEPTH ? (double)p->held : 1);
        const double bits = p->quant.bits + 16.0 / (double)ejki_max(p->quant.size, 1);
        if (!p->has_out) continue;
        cost->flops += 2 * rows * (double)p->depth * columns;
        cost->bytes += bytes_of(&p->a, rows * (double)p->depth) +
                       (p->quant.present ? b * bits / 8 : bytes_of(&p->b, b)) +
                       bytes_of(&p->out, out) + bytes_of(&p->add, out) +
                       (p->fold_by ? rows * columns * bits / 8 : 0);
    }
}
