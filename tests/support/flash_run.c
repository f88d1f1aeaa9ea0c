/* SPDX-License-Identifier: Apache-2.0 */
#include "support/flash_run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Pointers move by elements. */
static void *moved(const void *data, int64_t elements, size_t size) {
    return data ? (char *)(uintptr_t)data + elements * (int64_t)size : NULL;
}

static void move_bthd(ejki_bthd *view, int64_t b, int64_t t, int64_t h, size_t size) {
    view->data =
        moved(view->data, b * view->stride_b + t * view->stride_t + h * view->stride_h, size);
}

static void move_bhts(ejki_bhts *view, int64_t b, int64_t h, int64_t t, size_t size) {
    view->data =
        moved(view->data, b * view->stride_b + h * view->stride_h + t * view->stride_t, size);
}

static void move_bht(ejki_bht *view, int64_t b, int64_t h, int64_t t) {
    view->data = moved(view->data, b * view->stride_b + h * view->stride_h + t * view->stride_t,
                       sizeof(float));
}

ejki_flash_problem flash_part_problem(const ejki_flash_problem *whole,
                                      const struct flash_part *part) {
    ejki_flash_problem p = *whole;
    const size_t element = ejk_dtype_size(p.dtype), id = p.segments_are_i64 ? 8 : 4;
    const int64_t b = part->b, t = part->t, kv = part->kv, h = kv * p.group;
    p.batch = part->b_end - b;
    p.queries = part->t_end - t;
    p.kv_heads = part->kv_end - kv;
    p.query_heads = p.kv_heads * p.group;
    move_bthd(&p.query, b, t, h, element);
    move_bthd(&p.key, b, 0, kv, element);
    move_bthd(&p.value, b, 0, kv, element);
    move_bthd(&p.out, b, t, h, p.normalize ? element : sizeof(float));
    move_bht(&p.lse, b, h, t);
    move_bht(&p.row_max, b, h, t);
    move_bht(&p.row_sum, b, h, t);
    move_bhts(&p.bias, b, h, t, element);
    move_bhts(&p.mask, b, h / p.mask_group, t, 1);
    p.query_segments.data = moved(p.query_segments.data, b * p.query_segments.stride_b + t, id);
    p.key_segments.data = moved(p.key_segments.data, b * p.key_segments.stride_b, id);
    p.sinks = moved(p.sinks, h / p.sink_group * p.sink_stride_h, element);
    const int64_t limit = INT64_C(1) << 61;
    if (p.first_offset > -limit) p.first_offset += t;
    if (p.last_offset < limit) p.last_offset += t;
    return p;
}

bool flash_part_has(const ejki_flash_problem *whole, const struct flash_part *part, int64_t b,
                    int64_t h, int64_t t) {
    const int64_t kv = h / whole->group;
    return b >= part->b && b < part->b_end && t >= part->t && t < part->t_end && kv >= part->kv &&
           kv < part->kv_end;
}

bool flash_run(const ejk_implementation *e, const ejki_flash_problem *problem,
               const int64_t *parameters, ejk_threads *threads, char *why, size_t size) {
    const int32_t offered = ejk_threads_count(threads);
    ejk_launch launch = {.workers = 1};
    if (e->prepare && e->prepare(problem, parameters, offered, &launch) != EJK_OK) {
        snprintf(why, size, "prepare failed: %s", ejk_last_error());
        return false;
    }
    if (launch.workers < 1 || launch.workers > offered) {
        snprintf(why, size, "prepare asks for %d workers of %d", (int)launch.workers, (int)offered);
        return false;
    }
    struct guarded workspace;
    guarded_create(&workspace, launch.workspace_bytes, GUARDED_END,
                   (64 - launch.workspace_bytes % 64) % 64);
    const ejk_run run = {.problem = problem,
                         .parameters = parameters,
                         .workspace = workspace.data,
                         .threads = threads,
                         .workers = launch.workers};
    const ejk_status status = e->run(&run);
    const bool intact = guarded_intact(&workspace);
    guarded_destroy(&workspace);
    if (status != EJK_OK)
        snprintf(why, size, "run failed: %s", ejk_last_error());
    else if (!intact)
        snprintf(why, size, "the %zu bytes of workspace were overrun", launch.workspace_bytes);
    return status == EJK_OK && intact;
}

/* ---- Results -------------------------------------------------------------------------------------- */

/* One output as [B, Hq, T] rows of bytes. */
struct view {
    unsigned char *data;
    int64_t b, h, t; /* strides in bytes */
    size_t row;
};

static struct view view_of(const ejki_flash_problem *p, int result) {
    if (result == 0) {
        const size_t element = p->normalize ? ejk_dtype_size(p->dtype) : sizeof(float);
        const int64_t e = (int64_t)element;
        return (struct view){p->out.data, p->out.stride_b * e, p->out.stride_h * e,
                             p->out.stride_t * e, (size_t)p->value_dim * element};
    }
    const ejki_bht *views[] = {NULL, &p->lse, &p->row_max, &p->row_sum};
    const ejki_bht *view = views[result];
    return (struct view){(unsigned char *)view->data, view->stride_b * 4, view->stride_h * 4,
                         view->stride_t * 4, sizeof(float)};
}

static void take_rows(const ejki_flash_problem *p, const struct view *view, unsigned char *target) {
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->query_heads; h++)
            for (int64_t t = 0; t < p->queries; t++) {
                unsigned char *row = view->data + b * view->b + h * view->h + t * view->t;
                memcpy(target, row, view->row);
                memset(row, GUARDED_FILL, view->row);
                target += view->row;
            }
}

bool flash_take(struct flash_case *c, struct flash_written *written, char *why, size_t size) {
    static const char *const names[] = {"out", "lse", "row_max", "row_sum"};
    const ejki_flash_problem *p = &c->problem;
    *written = (struct flash_written){.rows = p->batch * p->query_heads * p->queries};
    bool clean = true;
    for (int i = 0; i < FLASH_RESULTS; i++) {
        const struct view view = view_of(p, i);
        struct guarded *memory = &c->memory[FLASH_FIRST_OUTPUT + i];
        written->row[i] = view.row;
        if (!memory->pages) continue;
        written->bytes[i] = malloc((size_t)written->rows * view.row + 1);
        if (!written->bytes[i]) abort();
        if (written->rows > 0 && view.row > 0) take_rows(p, &view, written->bytes[i]);
        if (guarded_blank(memory)) continue;
        guarded_fill(memory);
        if (clean) snprintf(why, size, "something beside the elements of %s was written", names[i]);
        clean = false;
    }
    return clean;
}

void flash_written_destroy(struct flash_written *written) {
    for (int i = 0; i < FLASH_RESULTS; i++) free(written->bytes[i]);
    *written = (struct flash_written){.rows = 0};
}

bool flash_row_blank(const struct flash_written *written, int result, int64_t row) {
    const unsigned char *bytes = written->bytes[result] + (size_t)row * written->row[result];
    for (size_t i = 0; i < written->row[result]; i++)
        if (bytes[i] != GUARDED_FILL) return false;
    return true;
}

/* Equal bits; of NaN, whose bits tell only which operand came first, any are equal. */
static bool same_bits(const unsigned char *a, const unsigned char *b, size_t bytes,
                      ejk_dtype dtype) {
    if (memcmp(a, b, bytes) == 0) return true;
    const size_t element = ejk_dtype_size(dtype);
    for (size_t i = 0; i < bytes; i += element)
        if (memcmp(a + i, b + i, element) != 0 &&
            !(isnan(flash_load(dtype, a + i, 0)) && isnan(flash_load(dtype, b + i, 0))))
            return false;
    return true;
}

bool flash_written_agree(const ejki_flash_problem *p, const struct flash_written *a,
                         const struct flash_written *b, const struct flash_part *part, bool only,
                         char *why, size_t size) {
    static const char *const names[FLASH_RESULTS] = {"out", "lse", "row_max", "row_sum"};
    for (int i = 0; i < FLASH_RESULTS; i++) {
        if (!a->bytes[i] || a->row[i] == 0) continue;
        const ejk_dtype dtype = i == 0 && p->normalize ? p->dtype : EJK_DTYPE_F32;
        for (int64_t row = 0; row < a->rows; row++) {
            const int64_t q = row % p->queries, h = row / p->queries % p->query_heads;
            const int64_t batch = row / p->queries / p->query_heads;
            const size_t bytes = a->row[i], at = (size_t)row * bytes;
            const bool inside = !part || flash_part_has(p, part, batch, h, q);
            const bool good = inside ? same_bits(a->bytes[i] + at, b->bytes[i] + at, bytes, dtype)
                                     : !only || flash_row_blank(b, i, row);
            if (good) continue;
            snprintf(why, size, "%s of row b=%" PRId64 " h=%" PRId64 " i=%" PRId64 " %s", names[i],
                     batch, h, q, inside ? "has other bits" : "was written");
            return false;
        }
    }
    return true;
}
