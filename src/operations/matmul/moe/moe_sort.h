/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens by expert, in their order: lists of both products, in memory of the run. */
#ifndef EJKI_MOE_SORT_H
#define EJKI_MOE_SORT_H

#include "base/base.h"
#include "operations/matmul/moe/problem.h"
#include "tensor/access.h"

/* Bytes of the lists, and behind them of what lies between the products. */
static inline int64_t moe_list_bytes(const moe_problem *p) {
    return ejki_round_up((p->experts * 2 + p->tokens * p->each * 2) * 8, 64);
}
static inline int64_t moe_bytes(const moe_problem *p) {
    const mm_product *first = &p->products.product[MOE_FIRST];
    const int64_t element = (int64_t)ejk_dtype_size((ejk_dtype)first->out.dtype);
    return moe_list_bytes(p) + ejki_round_up(first->rows * first->columns * element, 64);
}

static inline mm_problem moe_sort(const moe_problem *p, void *memory) {
    const mm_size rows = p->tokens * p->each;
    mm_size *sizes = memory, *next = sizes + p->experts, *token = next + p->experts;
    char *weights = (char *)(token + rows);
    mm_problem sorted = p->products;
    mm_product *first = &sorted.product[MOE_FIRST], *second = &sorted.product[MOE_SECOND];
    const ejk_dtype type = (ejk_dtype)p->weight.dtype;
    memset(sizes, 0, (size_t)p->experts * sizeof *sizes);
    for (mm_size i = 0; i < rows; i++)
        sizes[mm_number(&p->index, i / p->each * p->index_row + i % p->each)]++;
    for (mm_size e = 0, at = 0; e < p->experts; at += sizes[e++]) next[e] = at;
    for (mm_size i = 0; i < rows; i++) {
        const mm_size t = i / p->each, a = i % p->each;
        const mm_size place = next[mm_number(&p->index, t * p->index_row + a)]++;
        token[place] = t;
        ejki_store_f64(type, weights, place,
                       ejki_load_f64(type, p->weight.data, t * p->weight.row + a));
    }
    first->sizes.data = second->sizes.data = sizes;
    first->gather.data = second->scatter.data = token;
    second->weight = weights;
    first->out.data = second->a.data = (char *)memory + moe_list_bytes(p);
    return sorted;
}

#endif
