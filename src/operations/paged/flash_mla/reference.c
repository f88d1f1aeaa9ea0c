/* SPDX-License-Identifier: Apache-2.0 */
/* flash_mla in double precision: keys and values of all tokens, then the core's reference. */
#include "base/base.h"
#include "kernels/declare.h"
#include "operations/paged/flash_mla/problem.h"
#include "operations/paged/shared/reference.h"
#include "tensor/access.h"

#include <stdlib.h>

static void project(const mla_problem *m, const mla_weight *w, paged_size dim, double *to) {
    const paged_problem *p = &m->core;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    for (paged_size token = 0; token < p->tokens; token++)
        for (paged_size h = 0; h < p->kv_heads; h++)
            for (paged_size d = 0; d < dim; d++, to++) {
                double sum = 0;
                for (paged_size r = 0; r < m->latent; r++)
                    sum += ejki_load_f64(dtype, m->key_value.data,
                                         paged_row_at(p, &m->key_value, token, 0) + r) *
                           ejki_load_f64(dtype, w->data, r * w->latent + h * w->head + d);
                *to = sum;
            }
}

static ejk_status run(const ejk_run *run) {
    mla_problem m = *(const mla_problem *)run->problem;
    paged_problem *p = &m.core;
    const paged_size key_step = p->kv_heads * p->dim, value_step = p->kv_heads * p->value_dim;
    double *keys = malloc((size_t)(p->tokens * key_step + 1) * sizeof *keys);
    double *values = malloc((size_t)(p->tokens * value_step + 1) * sizeof *values);
    ejk_status status = EJK_OK;
    if (!keys || !values)
        status = ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for %lld keys", p->tokens);
    if (status == EJK_OK) {
        project(&m, &m.w_kc, p->dim, keys);
        project(&m, &m.w_vc, p->value_dim, values);
        mla_put_caches(&m, EJK_DTYPE_F64, keys, key_step, values, value_step);
        status = ejki_paged_reference(p);
    }
    free(keys);
    free(values);
    return status;
}

EJKI_DECLARE(flash_mla_reference, .version = 1, .run = run)
