/* SPDX-License-Identifier: Apache-2.0 */
/* Hooks of the recurrent family: contents of integers checked and made up, and costs. */
#include <math.h>

#include "base/base.h"
#include "kernels/tokens.cuh"
#include "operations/recurrent/shared/recurrent.h"
#include "tensor/access.h"

/* ---- Before a run ----------------------------------------------------------------------------------- */

ejk_status rec_validate(const void *problem) {
    const rec_problem *p = problem;
    const rec_view *v = &p->view[REC_INDICES];
    if (!v->present) return EJK_OK;
    return ejki_expect_distinct("state_indices", v->data, v->wide, p->sequences, p->slots);
}

/* ---- Contents --------------------------------------------------------------------------------------- */

static bool fillable(const ejk_tensor *t) {
    return t && ejk_tensor_present(t) && t->data;
}

/* Every element becomes f(element, with). */
static void change(const ejk_tensor *t, double (*f)(double, double), double with) {
    const int64_t count = ejk_tensor_count(t);
    for (int64_t n = 0; n < count; n++) {
        int64_t rest = n, at = 0;
        for (int32_t axis = t->rank - 1; axis >= 0; axis--) {
            at += rest % t->shape[axis] * t->strides[axis];
            rest /= t->shape[axis];
        }
        ejki_store_f64(t->dtype, t->data, at, f(ejki_load_f64(t->dtype, t->data, at), with));
    }
}
static double decay(double x, double with) {
    return -with * fabs(x);
}
static double rate(double x, double with) {
    return with / (1 + exp(-x));
}
static double times(double x, double with) {
    return x * with;
}

/* Random gates would let a state grow without end: decays fall, rates lie between 0 and 1, and what rank-one updates
 * add is smaller than the state. */
void rec_fill(const rec_call *c, const ejk_inputs *how) {
    static const int gates[] = {REC_G, REC_GK, REC_GV, REC_GAMMA};
    (void)how;
    for (int i = 0; i < 4; i++)
        if (fillable(c->tensor[gates[i]]) && !(i == 0 && fillable(c->tensor[REC_A_LOG])))
            change(c->tensor[gates[i]], decay, 0.1);
    if (fillable(c->tensor[REC_BETA]) && !c->beta_logits) change(c->tensor[REC_BETA], rate, 1);
    const double part =
        0.7 /
        sqrt((double)ejki_max(c->tensor[REC_QUERY]->shape[c->tensor[REC_QUERY]->rank - 1], 1));
    for (int role = REC_A; role <= REC_B; role++)
        if (fillable(c->tensor[role])) change(c->tensor[role], times, part);
    const ejk_tensor *ends = c->tensor[REC_ENDS], *rows = c->tensor[REC_INDICES];
    const ejk_tensor *q = c->tensor[REC_QUERY];
    if (ends && fillable(ends))
        for (int64_t n = 0; n < ends->shape[0]; n++)
            ejki_store_i64(ends->dtype, ends->data, n * ends->strides[0],
                           q->shape[q->rank - 3] * n / ejki_max(ends->shape[0] - 1, 1));
    if (rows && fillable(rows))
        for (int64_t n = 0; n < rows->shape[0]; n++)
            ejki_store_i64(rows->dtype, rows->data, n * rows->strides[0],
                           n < c->state->shape[0] ? n : -1);
}

/* ---- Costs ------------------------------------------------------------------------------------------ */

/* Multiplications and additions of the chunked form with chunks of 64, per token of a head: what is inside of a chunk,
 * triangles counted half, and what is done with the state. Gradients are three times that, or twice where they are
 * given states and errors. */
static double token_flops(const rec_problem *p) {
    const double dk = (double)p->key_size, dv = (double)p->value_size;
    const double chunk =
        (double)ejki_min(p->tokens / ejki_max(p->packed ? p->sequences : 1, 1), 64);
    const double add = chunk * (dk + dv) + 4 * dk * dv;
    if (p->update == REC_ADD) return add;
    return p->update == REC_DELTA ? chunk * (2 * dk + 2 * dv) + 6 * dk * dv
                                  : chunk * (4 * dk + 2 * dv) + 8 * dk * dv;
}

static double bytes_of(const rec_problem *p, int role) {
    const rec_view *v = &p->view[role];
    const double size = (double)ejk_dtype_size((ejk_dtype)v->dtype);
    const double tokens = (double)p->batch * (double)p->tokens;
    const double state = (double)p->heads * (double)p->key_size * (double)p->value_size;
    const int of = role >= REC_GRADIENT && role <= REC_D_OUT ? role - REC_GRADIENT : role;
    if (!v->present) return 0;
    switch (of) {
    case REC_QUERY: return size * tokens * (double)(p->query_heads * p->key_size);
    case REC_KEY: return size * tokens * (double)(p->key_heads * p->key_size);
    case REC_VALUE: return size * tokens * (double)(p->value_heads * p->value_size);
    case REC_A:
    case REC_B:
    case REC_GK: return size * tokens * (double)(p->heads * p->key_size);
    case REC_OUT:
    case REC_GV: return size * tokens * (double)(p->heads * p->value_size);
    case REC_G: return size * tokens * (double)(p->heads * (p->g_is_wide ? p->key_size : 1));
    case REC_BETA: return size * tokens * (double)p->heads;
    case REC_INITIAL:
    case REC_FINAL: return size * (double)p->sequences * state;
    case REC_STATES: return size * (double)p->batch * (double)p->kept_rows * state;
    case REC_ERRORS: return size * tokens * (double)(p->heads * p->value_size);
    default: return 0;
    }
}

void rec_cost(const void *problem, const void *args, ejk_cost *cost) {
    const rec_problem *p = problem;
    (void)args;
    const bool given = p->view[REC_STATES].present && p->view[REC_ERRORS].present;
    const double passes = !p->gradient ? 1 : given ? 2 : 3;
    cost->flops = (double)p->batch * (double)p->tokens * (double)p->heads * token_flops(p) * passes;
    cost->bytes = 0;
    for (int role = 0; role < REC_ROLES; role++) cost->bytes += bytes_of(p, role);
}
