/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised matrices as packed.h has them. Streams are shared out to threads. */
#include "operations/matmul/shared/packed.h"

#include "kernels/declare.h"
#include "operations/matmul/prepack/problem.h"

static packed_form form_of(const prepack_problem *p) {
    return packed_form_of(&p->quant, p->rows, p->columns);
}

static mm_size streams_of(const prepack_problem *p) {
    return p->matrices * ejki_cdiv(p->rows, PACKED_COLUMNS);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    const prepack_problem *p = problem;
    launch->workers = (int32_t)ejki_max(1, ejki_min(threads, streams_of(p)));
    launch->workspace_bytes = (size_t)launch->workers * (size_t)p->matrices;
    return EJK_OK;
}

/* A worker notes for each matrix whether it met a NaN. */
static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const prepack_problem *p = run->problem;
    const packed_form f = form_of(p);
    const mm_size each = ejki_cdiv(p->rows, PACKED_COLUMNS), all = streams_of(p);
    char *nan = (char *)run->workspace + index * p->matrices;
    memset(nan, 0, (size_t)p->matrices);
    for (mm_size i = all * index / run->workers; i < all * (index + 1) / run->workers; i++) {
        char *at = p->packed + i / each * p->bytes + PACKED_HEADER + i % each * f.stream;
        if (ejki_packed_stream(&p->quant, i / each, &f, i % each, (uint8_t *)at)) nan[i / each] = 1;
    }
}

static ejk_status run(const ejk_run *run) {
    const prepack_problem *p = run->problem;
    const packed_form f = form_of(p);
    const char *nan = run->workspace;
    ejk_parallel_for(run->threads, run->workers, work, (void *)(uintptr_t)run);
    for (mm_size m = 0; m < p->matrices && p->bytes > 0; m++) {
        packed_header h = ejki_packed_header(&p->quant, p->rows, p->columns);
        const int64_t used = packed_bytes(&f);
        for (int32_t i = 0; i < run->workers; i++) h.has_nan |= nan[i * p->matrices + m];
        memcpy(p->packed + m * p->bytes, &h, sizeof h);
        memset(p->packed + m * p->bytes + used, 0, (size_t)(p->bytes - used));
    }
    return EJK_OK;
}

EJKI_DECLARE(prepack_reference, .version = 1, .prepare = prepare, .run = run)
