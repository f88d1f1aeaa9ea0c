/* SPDX-License-Identifier: Apache-2.0 */
/* Pages copied a head's row at a time, or in longer runs where rows lie side by side. */
#include <ejkernel/device.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/paged/copy/problem.cuh"

static void copy_page(const paged_copy_problem *p, const paged_copied *part, paged_size from,
                      paged_size to) {
    const bool heads_join = p->heads < 2 || part->head == part->bytes;
    const paged_size bytes = heads_join ? p->heads * part->bytes : part->bytes;
    const bool rows_join = heads_join && (p->rows < 2 || part->row == bytes);
    const paged_size rows = rows_join ? 1 : p->rows, heads = heads_join ? 1 : p->heads;
    const paged_size run = rows_join ? p->rows * bytes : bytes;
    for (paged_size row = 0; run > 0 && row < rows; row++)
        for (paged_size h = 0; h < heads; h++) {
            char *first = part->data + row * part->row + h * part->head;
            memcpy(first + to * part->page, first + from * part->page, (size_t)run);
        }
}

static void work(void *argument, int64_t index) {
    const ejk_run *run = argument;
    const paged_copy_problem *p = run->problem;
    for (paged_size i = p->copies * index / run->workers;
         i < p->copies * (index + 1) / run->workers; i++) {
        const paged_size from = paged_int(&p->mapping, i * p->mapping_step);
        const paged_size to = paged_int(&p->mapping, i * p->mapping_step + 1);
        for (int k = 0; k < 4; k++)
            if (p->part[k].data) copy_page(p, &p->part[k], from, to);
    }
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    (void)parameters;
    launch->workers =
        (int32_t)ejki_max(1, ejki_min(threads, ((const paged_copy_problem *)problem)->copies));
    return EJK_OK;
}

EJKI_DEFINE_RUN(work)

EJKI_DECLARE(kv_cache_copy_reference, .version = 1, .prepare = prepare, .run = run)
