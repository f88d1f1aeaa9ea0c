/* SPDX-License-Identifier: Apache-2.0 */
/* mean_pooling and its gradient as the formulas read, an element at a time, in double precision. */
#include "kernels/declare.h"
#include "operations/pooling/mean_pooling/problem.cuh"
#include "tensor/access.h"

static void mean(const pool_problem *p, pool_size b, pool_size row, pool_size run, pool_size d) {
    const pool_range range = pool_of_row(p, row);
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    double sum = 0;
    for (pool_size t = range.begin; t < range.end; t++)
        sum += ejki_load_f64(dtype, p->x.data, pool_start(p, &p->x, b, t, run) + d);
    if (range.end > range.begin) sum /= (double)(range.end - range.begin);
    ejki_store_f64(dtype, p->y.data, pool_start(p, &p->y, b, row, run) + d, sum);
}

static void share(const pool_problem *p, pool_size b, pool_size token, pool_size run, pool_size d) {
    const pool_range range = pool_of_token(p, token);
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    double value = 0;
    if (range.row >= 0)
        value = ejki_load_f64(dtype, p->y.data, pool_start(p, &p->y, b, range.row, run) + d) /
                (double)(range.end - range.begin);
    ejki_store_f64(dtype, p->x.data, pool_start(p, &p->x, b, token, run) + d, value);
}

static ejk_status run(const ejk_run *run) {
    const pool_problem *p = run->problem;
    const pool_size steps = p->gradient ? p->tokens : p->rows;
    for (pool_size b = 0; b < p->batch; b++)
        for (pool_size step = 0; step < steps; step++)
            for (pool_size i = 0; i < pool_runs(p); i++)
                for (pool_size d = 0; d < p->width; d++)
                    (p->gradient ? share : mean)(p, b, step, i, d);
    return EJK_OK;
}

EJKI_DECLARE(mean_pooling_reference, .version = 1, .run = run)
