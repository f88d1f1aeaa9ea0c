/* SPDX-License-Identifier: Apache-2.0 */
/* The memory that products of the tiled kernel prefetch ahead of time. */
#ifndef EJKI_TILE_PREFETCH_BODY_H
#define EJKI_TILE_PREFETCH_BODY_H

#include <ejkernel/device.h>

#include "operations/attention/cpu/tile/tile_blocks_body.h"

/* The most lines that look ahead at a product; the others are left to what it needs itself. */
#define TILE_PREFETCH_LINES 32
/* As many a product are no burden; where more are due before a task ends, they begin earlier. */
#define TILE_PREFETCH_EASY_LINES 8

/* Whether what is prefetched beside a bias should come into the first-level cache: where a Zen 5 prefetched into the
 * second, such calls took 15 % longer in many processes, and no shorter in others. */
static inline bool tile_prefetches_to_l1(void) {
    const ejk_cpu_info *cpu = ejk_cpu();
    return strcmp(cpu->vendor, "amd") == 0 && cpu->family >= 26;
}

/* Lists the lines that the next product is to prefetch. Short sequences spend a tenth of their time here if
 * the stream is not kept in registers meanwhile. */
static inline gemm_prefetch *tile_next_prefetch(tile_state *s) {
    tile_prefetch *a = &s->ahead;
    const float **line = a->lines.line;
    int64_t count = 0;
    a->credit += a->lines_each;
    while (a->credit > 0 && a->current < a->count && count < TILE_PREFETCH_LINES) {
        tile_stream *t = &a->stream[a->current];
        if (t->rows == 0) {
            a->current++;
            continue;
        }
        const int64_t lines = (t->width + 63) / 64, inner = t->inner;
        const int64_t step = t->inner_stride, wrap = t->outer_stride - inner * step;
        const char *row = t->row;
        int64_t at = t->at, rows = t->rows, credit = a->credit;
        for (; rows > 0 && credit > 0 && count < TILE_PREFETCH_LINES; rows--, credit -= lines) {
            for (int64_t n = 0; n < lines && count < TILE_PREFETCH_LINES; n++)
                line[count++] = (const float *)(const void *)(row + 64 * n);
            row += step;
            if (++at == inner) {
                at = 0;
                row += wrap;
            }
        }
        t->row = row;
        t->at = at;
        t->rows = rows;
        a->credit = credit;
    }
    a->lines.count = count;
    return &a->lines;
}

/* What flash_modify() will read beside the scores of a tile's rows. Rows lie far apart and every tile has
 * others, so that nothing else prefetches them in time. */
typedef struct tile_bias_prefetch {
    int count; /* of rows; 0 = nothing */
    const char *bias[TILE_ROWS];
    const uint8_t *mask[TILE_ROWS];
} tile_bias_prefetch;

static inline void tile_begin_bias_prefetch(tile_bias_prefetch *b, const tile_state *s, int64_t row,
                                            int count) {
    const ejki_flash_problem *p = s->problem;
    *b = (tile_bias_prefetch){.count = p->has_bias || p->has_mask ? count : 0};
    for (int i = 0; b->count > 0 && i < TILE_ROWS; i++) {
        const flash_row *r = &s->row[row + ejki_min(i, count - 1)];
        b->bias[i] = p->has_bias ? flash_bias_row(p, r) : NULL;
        b->mask[i] = p->has_mask ? flash_mask_row(p, r) : NULL;
    }
}

/* Adds its lines beside a panel of scores: always a whole tile's, for the sake of speed, of which some count. */
static inline void tile_prefetch_bias(const ejki_flash_problem *p, const tile_bias_prefetch *b,
                                      int64_t key, gemm_prefetch *lines) {
    const int64_t size = element_size(p->dtype), at = key * size;
    const int64_t bytes = ejki_min(TILE_COLUMNS, p->keys - key) * size;
    const float **line = lines->line + lines->count;
    _Static_assert(TILE_PREFETCH_LINES + TILE_ROWS * (TILE_COLUMNS * 4 / 64 + 2) <= GEMM_LINES, "");
    for (int64_t n = 0; p->has_bias && n < bytes; n += 64, line += b->count)
        for (int i = 0; i < TILE_ROWS; i++)
            line[i] = (const float *)(const void *)(b->bias[i] + at + n);
    if (p->has_mask) {
        for (int i = 0; i < TILE_ROWS; i++)
            line[i] = (const float *)(const void *)(b->mask[i] + key);
        line += b->count;
    }
    lines->count = line - lines->line;
}

/* A stream is left out where its rows have no elements. */
static void tile_stream_add(tile_prefetch *a, tile_stream stream) {
    if (stream.width > 0 && stream.rows > 0) a->stream[a->count++] = stream;
}

/* Rows [key, key + rows) of keys or values of a task's head. */
static tile_stream tile_stream_keys(const ejki_flash_problem *p, const ejki_bthd *tensor,
                                    const tile_task *task, int64_t key, int64_t rows,
                                    int64_t width) {
    const int64_t size = element_size(p->dtype);
    return (tile_stream){.row = flash_key_at(tensor, p->dtype, task->batch, task->kv_head, key),
                         .rows = width > 0 ? rows : 0,
                         .width = width * size,
                         .inner = 1,
                         .outer_stride = tensor->stride_t * size};
}

/* A task's rows of query or out. */
static void tile_stream_rows(const ejki_flash_problem *p, tile_prefetch *a, const tile_task *task,
                             const ejki_bthd *tensor, ejk_dtype dtype, int64_t width) {
    if (task->rows == 0) return;
    const int64_t size = element_size(dtype);
    const flash_row r = flash_row_of(p, task->batch, task->kv_head, task->first_row);
    tile_stream_add(a, (tile_stream){.row = flash_row_at(tensor, dtype, &r),
                                     .rows = task->rows,
                                     .width = width * size,
                                     .inner = p->group,
                                     .inner_stride = tensor->stride_h * size,
                                     .outer_stride = tensor->stride_t * size,
                                     .at = task->first_row % p->group});
}

/* Lists what the end of the task and the beginning of the next one will need. */
static void tile_begin_prefetch(tile_state *s, tile_task next) {
    const ejki_flash_problem *p = s->problem;
    tile_prefetch *a = &s->ahead;
    a->count = 2;
    tile_stream_rows(p, a, &s->task, &p->out, flash_out_dtype(p), p->value_dim);
    if (next.rows > 0) {
        const int64_t first = tile_first_key(p, s->plan, &next);
        const int64_t rows = ejki_min(s->plan->keys, p->keys - first);
        tile_stream_add(a, tile_stream_keys(p, &p->key, &next, first, rows, p->head_dim));
        tile_stream_add(a, tile_stream_keys(p, &p->value, &next, first, rows, p->value_dim));
    }
    tile_stream_rows(p, a, &next, &p->query, p->dtype, p->head_dim);
}

/* Products of the tiles that see anything of keys [first, end). */
static int64_t tile_products(const tile_state *s, int64_t first, int64_t end) {
    const tile_plan *t = s->plan;
    const int64_t panels = ejki_cdiv(t->width, TILE_COLUMNS);
    int64_t products = 0;
    for (int64_t i = 0; i < s->task.rows; i += TILE_ROWS) {
        const tile_extent *e = &s->extent[i / TILE_ROWS];
        const int64_t keys = ejki_min(e->high, end) - ejki_max(e->low, first);
        if (keys <= 0 || !e->visible) continue;
        products += ejki_cdiv(keys, TILE_COLUMNS) + panels * ejki_cdiv(keys, t->keys);
    }
    return products;
}

static int64_t tile_lines_of(const tile_stream *stream) {
    return stream->rows * ejki_cdiv(stream->width, 64);
}

/* Shares out what is prefetched during a block, which ends before the key `high` of the task's last. */
static void tile_plan_prefetch(tile_state *s, int64_t high) {
    const ejki_flash_problem *p = s->problem;
    const tile_plan *t = s->plan;
    tile_prefetch *a = &s->ahead;
    const int64_t next = s->following < s->mask_walk.end || s->mask_walk.count == 0
                             ? s->following
                             : block_mask_walk_next(&s->mask_walk, p);
    const int64_t key = ejki_min(next, high), rows = ejki_min(t->keys, high - key);
    a->stream[0] = tile_stream_keys(p, &p->key, &s->task, key, rows, p->head_dim);
    a->stream[1] = tile_stream_keys(p, &p->value, &s->task, key, rows, p->value_dim);
    int64_t due = 0;
    for (int32_t i = 2; i < a->count; i++) due += tile_lines_of(&a->stream[i]);
    if (rows > 0) due = ejki_max(0, due - TILE_PREFETCH_EASY_LINES * tile_products(s, key, high));
    due += tile_lines_of(&a->stream[0]) + tile_lines_of(&a->stream[1]);
    a->lines_each = 1 + due / ejki_max(1, tile_products(s, s->block, s->end));
    a->current = 0;
    a->credit = 0;
}

#endif
