/* SPDX-License-Identifier: Apache-2.0 */
/* New rows to a cache, an element at a time: element = value / scale, rounded once. */
#include "kernels/declare.h"
#include "operations/paged/shared/problem.cuh"
#include "tensor/access.h"

#include <math.h>

static double largest(ejk_dtype dtype) {
    if (dtype == EJK_DTYPE_I8) return 127;
    if (dtype == EJK_DTYPE_F8E4M3) return 448;
    return dtype == EJK_DTYPE_F8E5M2 ? 57344 : 0;
}

static void store(ejk_dtype dtype, void *data, paged_size at, double value) {
    if (dtype == EJK_DTYPE_I8)
        ejki_store_i64(dtype, data, at, isnan(value) ? 0 : (int64_t)fmin(fmax(rint(value), -128), 127));
    else
        ejki_store_f64(dtype, data, at, value);
}

/* The scale of a row of a head; one of its own follows from its values and is stored. */
static double scale_of(const paged_cache *c, const paged_rows *from, paged_size token,
                       paged_size page, paged_size row, paged_size h, paged_size dim) {
    const paged_size at = page * c->scale_page + row * c->scale_token + h * c->scale_head;
    if (!c->scaled) return (double)c->factor;
    if (!c->scaled_rows) return (double)c->factor * ejki_load_f64(EJK_DTYPE_F32, c->scale, at);
    double most = 0;
    for (paged_size d = 0; d < dim; d++)
        most = fmax(most, fabs(ejki_load_f64((ejk_dtype)from->dtype, from->data,
                                             token * from->token + h * from->head + d)));
    const double limit = largest((ejk_dtype)c->dtype);
    const float scale = limit > 0 && most > 0 && most < INFINITY ? (float)(most / limit) : 1;
    ejki_store_f64(EJK_DTYPE_F32, (void *)(uintptr_t)c->scale, at, (double)scale);
    return (double)scale;
}

static void put(const paged_problem *p, const paged_cache *c, const paged_rows *from,
                paged_size token, paged_size page, paged_size row, paged_size dim) {
    for (paged_size h = 0; h < p->kv_heads; h++) {
        const double scale = scale_of(c, from, token, page, row, h, dim);
        for (paged_size d = 0; d < dim; d++)
            store((ejk_dtype)c->dtype, c->data,
                  page * c->page + row * c->token + h * c->head + d,
                  ejki_load_f64((ejk_dtype)from->dtype, from->data,
                                token * from->token + h * from->head + d) /
                      scale);
    }
}

static ejk_status run(const ejk_run *run) {
    const paged_problem *p = run->problem;
    for (paged_size token = 0; token < p->tokens; token++) {
        paged_size page, row;
        if (!paged_target(p, token, &page, &row)) continue;
        put(p, &p->key, &p->new_key, token, page, row, p->dim);
        if (p->new_tail.data) {
            paged_cache tail = p->key;
            tail.data = p->key_tail.data;
            put(p, &tail, &p->new_tail, token, page, row, p->tail_dim);
        }
        if (p->has_new_value) put(p, &p->value, &p->new_value, token, page, row, p->value_dim);
    }
    return EJK_OK;
}

EJKI_DECLARE(update_kv_cache_reference, .version = 1, .run = run)
