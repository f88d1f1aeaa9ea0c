/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over pages in vectors. The list of work is made from the lengths: an item is a sequence, a group of its
 * rows, some key heads and, where the sequence decodes, a KV split of fixed length. What items of split sequences
 * leave is float32 and is merged in the order of splits. So the bits of a sequence follow from its own rows and
 * keys, the shapes and the parameters, and not from threads or neighbours.
 *
 * Few rows (paged_rows_body.h) multiply with keys and values where they lie, as many heads at once as fit the first
 * cache, so that memory is read in its own order. Many rows (paged_tiles_body.h) have blocks of keys packed and go
 * through the register tiles of gemm_body.h. Elements of caches become floats in registers, whatever their type; scales
 * of rows go to scores and weights, others to the scale of the scores and to the result.
 *
 * Blocks of keys lie at absolute positions; maxima, rescaling and sums are each row's own, and a key that a row does
 * not see adds an exact 0. Where a value that another row sees is not finite, rows add key by key what has a weight.
 */
#include <ejkernel/device.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/paged/shared/problem.cuh"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "operations/attention/cpu/tile/tile_shape.h"
#undef TILE_BF16_DOT /* what is multiplied are floats */
#include "kernels/simd/vec_math.h"
#include "kernels/simd/vec_bytes.h"
#include "kernels/simd/gemm_body.h"

#define LOG2E 1.4426950408889634
#define LN2   0.6931471805599453

enum {
    BLOCK = 64,         /* keys that few rows look at together */
    FEW_ROWS = 8,       /* of a key head: more go through tiles */
    ROWS_AT_ONCE = 64,  /* of all heads of an item of few rows */
    SPLIT_ROWS = 16,    /* sequences of more rows are not split */
    MOST_SPLITS = 16,   /* bounds the memory of partial results */
    TILE_KEYS = 512,    /* most keys of a block of many rows */
    SCORE_STRIDE = TILE_KEYS + 16,
};

/* What follows from shapes and parameters, and where things lie in memory, in floats. */
typedef struct paged_plan {
    paged_size split;           /* keys of a KV split */
    paged_size rows, keys;      /* of a tile's group, and of its blocks */
    paged_size depth, width;    /* of queries and of sums, rounded up to VL */
    paged_size sum_width;       /* and to TILE_COLUMNS */
    paged_size slots;           /* rows of partial results */
    paged_size list_at, slot_at, zero_at, worker_at; /* in bytes */
    paged_size worker_bytes, bytes;
} paged_plan;

/* What an item has of the list: sequences' first items and first slots. */
typedef struct paged_lists {
    paged_size *items, *slots;
    float *partial, *most; /* [slots][width]; [slots][2]: largest score in base 2, sum */
    const char *zeros;     /* a row of a cache */
} paged_lists;

/* What all items of a run share. */
typedef struct paged_work {
    const ejk_run *run;
    const paged_problem *p;
    paged_plan plan;
    paged_lists lists;
    paged_size count;
    atomic_llong next;
    bool merging;
} paged_work;

/* A row that an item computes. */
typedef struct paged_row {
    paged_size low, high; /* keys that it sees */
    paged_size token, head, r;
    float slope;          /* of alibi, in base 2 */
    float most;           /* largest score so far, in base 2 */
} paged_row;

/* An item. Row i of key head `head + i / rows` is row first_row + i % rows of T x G. */
typedef struct paged_job {
    const paged_work *work;
    const paged_problem *p;
    paged_sequence s;
    paged_size entries, head, heads, first_row, rows;
    paged_size part, parts; /* KV split, and how many the sequence has */
    paged_size low, high;   /* keys that any of the rows sees here */
    float *memory;          /* the worker's */
} paged_job;

static paged_size paged_bytes(int dtype) {
    return stored_size((ejk_dtype)dtype);
}

/* ---- Plans ------------------------------------------------------------------------------------------ */

static paged_size heads_at_once(const paged_problem *p, paged_size rows) {
    return paged_least(paged_most(p->kv_heads, 1), paged_most(ROWS_AT_ONCE / paged_most(rows, 1), 1));
}

static paged_size parts_of(const paged_plan *t, const paged_sequence *s) {
    return s->rows > SPLIT_ROWS ? 1 : paged_most(ejki_cdiv(s->keys, t->split), 1);
}

static bool is_few(const paged_problem *p, const paged_sequence *s) {
    return s->rows * p->group <= FEW_ROWS;
}

/* Items of a KV split of a sequence. */
static paged_size tiles_of(const paged_problem *p, const paged_plan *t, const paged_sequence *s) {
    const paged_size rows = s->rows * p->group;
    if (rows == 0 || p->kv_heads == 0) return 0;
    if (is_few(p, s)) return ejki_cdiv(p->kv_heads, heads_at_once(p, rows));
    return p->kv_heads * ejki_cdiv(rows, t->rows);
}

static paged_size floats_of_few(const paged_problem *p, const paged_plan *t) {
    const paged_size rows = paged_most(ROWS_AT_ONCE, FEW_ROWS);
    (void)p;
    return rows * (t->depth + t->width + VL + BLOCK + VL);
}

static paged_size floats_of_many(const paged_problem *p, const paged_plan *t) {
    const paged_size depth = p->dim + p->tail_dim;
    return t->rows * (depth + t->sum_width + VL) + t->keys * (depth + t->width) +
           TILE_ROWS * SCORE_STRIDE + t->width + 2 * TILE_KEYS;
}

static ejk_status plan_of(const paged_problem *p, const int64_t *parameters, int32_t workers,
                          paged_plan *t) {
    *t = (paged_plan){.rows = ejki_round_up(parameters[0], TILE_ROWS),
                      .keys = ejki_round_up(parameters[1], TILE_COLUMNS)};
    const paged_size most = p->tables == PAGED_LISTS ? paged_most(p->width, 1) : p->width;
    t->split = paged_most(parameters[2], ejki_round_up(ejki_cdiv(most * p->page, MOST_SPLITS), 256));
    t->depth = ejki_round_up(p->dim, VL) + ejki_round_up(p->tail_dim, VL);
    t->width = ejki_round_up(p->value_dim, VL);
    t->sum_width = ejki_round_up(p->value_dim, TILE_COLUMNS);
    const paged_size splits = ejki_cdiv(most * p->page, t->split);
    if (splits > 1)
        t->slots = paged_least(p->tokens, p->sequences * SPLIT_ROWS) * p->heads * splits;
    const paged_size row = (t->depth + t->width) * 4;
    t->slot_at = ejki_round_up(2 * (p->sequences + 1) * (paged_size)sizeof(paged_size), 64);
    t->zero_at = t->slot_at + ejki_round_up(t->slots * (t->width + 2) * 4, 64);
    t->worker_at = t->zero_at + ejki_round_up(row + 64, 64);
    t->worker_bytes = 4 * paged_most(floats_of_few(p, t), floats_of_many(p, t)) +
                      (paged_size)sizeof(paged_row) * t->rows + 64;
    t->worker_bytes = ejki_round_up(t->worker_bytes, 4096) + 576;
    t->bytes = t->worker_at + workers * t->worker_bytes;
    if (t->slots < INT64_C(1) << 40) return EJK_OK;
    return ejki_fail(EJK_STATUS_OVERFLOW, "%lld partial results cannot be held", t->slots);
}

/* Items and slots of the sequences before each; returns the number of items. */
static paged_size list_work(const paged_problem *p, const paged_plan *t, paged_lists *lists) {
    paged_size items = 0, slots = 0;
    const paged_size count = paged_count(p);
    for (paged_size n = 0; n < count; n++) {
        const paged_sequence s = paged_sequence_of(p, n);
        const paged_size parts = parts_of(t, &s);
        lists->items[n] = items;
        lists->slots[n] = slots;
        items += tiles_of(p, t, &s) * parts;
        if (parts > 1) slots += parts * s.rows * p->heads;
    }
    lists->items[count] = items;
    return items;
}

/* ---- Rows ------------------------------------------------------------------------------------------- */

static paged_row row_of(const paged_job *j, paged_size i) {
    const paged_problem *p = j->p;
    const paged_size at = j->first_row + i % j->rows, r = at / p->group;
    paged_row row = {.low = paged_low(p, &j->s, r),
                     .high = paged_high(p, &j->s, r),
                     .token = j->s.begin + r,
                     .head = (j->head + i / j->rows) * p->group + at % p->group,
                     .r = r,
                     .most = -INFINITY};
    row.low = paged_most(row.low, j->low);
    row.high = paged_least(row.high, j->high);
    if (p->has_alibi) row.slope = element_load(EJK_DTYPE_F32, p->alibi, row.head) * (float)LOG2E;
    return row;
}

static float scale_of(const paged_cache *c, paged_size page, paged_size at, paged_size head) {
    if (!c->scaled) return 1;
    return element_load(EJK_DTYPE_F32, c->scale,
                        page * c->scale_page + at * c->scale_token + head * c->scale_head);
}

/* What scores of a key head are multiplied by; of values likewise. Scales of rows come besides. */
static double factor_of(const paged_cache *c, paged_size head) {
    return (double)c->factor * (c->scaled_rows ? 1 : (double)scale_of(c, 0, 0, head));
}

/* A query row as floats, `depth` of them; with query_scale rounded as the cache is. */
static void load_query(const paged_problem *p, const paged_row *row, float *to, paged_size step) {
    const paged_rows *parts[2] = {&p->query, &p->query_tail};
    const paged_size sizes[2] = {p->dim, p->tail_dim};
    for (int i = 0; i < 2; i++) {
        const paged_size start = row->token * parts[i]->token + row->head * parts[i]->head;
        for (paged_size d = 0; d < sizes[i]; d++) {
            float v = element_load((ejk_dtype)p->dtype, parts[i]->data, start + d);
            if (p->query_scale != 0) {
                v = (float)((double)v / p->query_scale);
                if (p->key.dtype == EJK_DTYPE_I8)
                    v = fminf(fmaxf(rintf(v), -128), 127);
                else if (p->key.dtype == EJK_DTYPE_F8E4M3)
                    v = ejki_e4m3_to_f32(ejki_f32_to_e4m3(v));
                else if (p->key.dtype == EJK_DTYPE_F8E5M2)
                    v = ejki_e5m2_to_f32(ejki_f32_to_e5m2(v));
                else if (p->key.dtype == EJK_DTYPE_BF16)
                    v = ejki_bf16_to_f32(ejki_f32_to_bf16(v));
                else if (p->key.dtype == EJK_DTYPE_F16)
                    v = ejki_f16_to_f32(ejki_f32_to_f16(v));
            }
            to[d * step] = v;
        }
        to += (step == 1 ? ejki_round_up(sizes[i], VL) : sizes[i]) * step;
    }
}

/* Writes a row: sums of values, their largest score in base 2, the sum of their weights. */
static void finish_row(const paged_problem *p, paged_size token, paged_size head, const float *sums,
                       float most, float sum) {
    const paged_size sink = head / p->sink_group * p->sink_step;
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    float top = most, factor = 1;
    for (paged_size i = 0; i < p->sink_count; i++)
        top = fmaxf(top, element_load((ejk_dtype)p->sink_dtype, p->sinks, sink + i) * (float)LOG2E);
    if (top > most) {
        factor = exp2f(most - top);
        sum *= factor;
    }
    for (paged_size i = 0; i < p->sink_count; i++) {
        const float s = element_load((ejk_dtype)p->sink_dtype, p->sinks, sink + i) * (float)LOG2E;
        if (!(s == -INFINITY)) sum += exp2f(s - top);
    }
    const float by = (float)factor_of(&p->value, head / p->group);
    const vf scale = v_set1(sum == 0 ? 0 : factor / sum * by);
    char *out = element_at(dtype, p->out.data, token * p->out.token + head * p->out.head);
    for (paged_size d = 0; d < p->value_dim; d += VL)
        v_narrow_some(dtype, element_at(dtype, out, d), v_mul(v_load(sums + d), scale),
                      p->value_dim - d);
    if (!p->lse.data) return;
    const float lse = sum == 0 ? -INFINITY : (float)((double)top * LN2 + (double)logf(sum));
    element_store(EJK_DTYPE_F32, p->lse.data, token * p->lse.token + head * p->lse.head, lse);
}

/* A row of an item is complete. */
static void put_row(const paged_job *j, const paged_row *row, const float *sums, float sum) {
    const paged_lists *lists = &j->work->lists;
    if (j->parts == 1) {
        finish_row(j->p, row->token, row->head, sums, row->most, sum);
        return;
    }
    const paged_size width = j->work->plan.width;
    const paged_size slot = lists->slots[j->s.n] +
                            (j->part * j->s.rows + row->r) * j->p->heads + row->head;
    for (paged_size d = 0; d < width; d += VL)
        v_store(lists->partial + slot * width + d, v_load(sums + d));
    lists->most[2 * slot] = row->most;
    lists->most[2 * slot + 1] = sum;
}

#include "operations/paged/cpu/paged_scores_body.h"
#include "operations/paged/cpu/paged_rows_body.h"
#include "operations/paged/cpu/paged_tiles_body.h"

/* ---- Items ------------------------------------------------------------------------------------------ */

/* The sequence that an item is of: the last whose first item is not behind it. */
static paged_size find(const paged_size *items, paged_size count, paged_size index) {
    paged_size low = 0, high = count;
    while (high - low > 1) {
        const paged_size middle = (low + high) / 2;
        if (items[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static paged_job job_of(const paged_work *w, paged_size index) {
    const paged_problem *p = w->p;
    paged_job j = {.work = w, .p = p};
    paged_size unused;
    j.s = paged_sequence_of(p, find(w->lists.items, paged_count(p), index));
    j.entries = paged_entries(p, j.s.n, &unused);
    index -= w->lists.items[j.s.n];
    const paged_size tiles = tiles_of(p, &w->plan, &j.s), rows = j.s.rows * p->group;
    j.parts = parts_of(&w->plan, &j.s);
    j.part = index / tiles;
    index %= tiles;
    if (is_few(p, &j.s)) {
        const paged_size heads = heads_at_once(p, rows);
        j.head = index * heads;
        j.heads = paged_least(heads, p->kv_heads - j.head);
        j.rows = rows;
    } else {
        const paged_size groups = ejki_cdiv(rows, w->plan.rows);
        j.head = index / groups;
        j.heads = 1;
        j.first_row = (groups - 1 - index % groups) * w->plan.rows; /* the longest first */
        j.rows = paged_least(w->plan.rows, rows - j.first_row);
    }
    const paged_size last = (j.first_row + j.rows - 1) / p->group;
    j.low = paged_low(p, &j.s, j.first_row / p->group);
    j.high = paged_high(p, &j.s, last);
    if (j.parts > 1) {
        j.low = paged_most(j.low, j.part * w->plan.split);
        j.high = paged_least(j.high, (j.part + 1) * w->plan.split);
    }
    return j;
}

static void compute(void *argument, int64_t worker) {
    paged_work *w = argument;
    char *memory = (char *)w->run->workspace + w->plan.worker_at + worker * w->plan.worker_bytes;
    for (;;) {
        const paged_size index = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed);
        if (index >= w->count) return;
        paged_job j = job_of(w, index);
        j.memory = (float *)(void *)memory;
        if (is_few(w->p, &j.s))
            attend_few(&j);
        else
            attend_many(&j);
    }
}

/* Merges the parts of one row of a sequence in their order. */
static void merge_row(const paged_work *w, const paged_sequence *s, paged_size parts, paged_size at,
                      float *sums) {
    const paged_size width = w->plan.width, rows = s->rows * w->p->heads;
    const paged_size first = w->lists.slots[s->n] + at;
    float most = -INFINITY, sum = 0;
    for (paged_size i = 0; i < parts; i++) most = fmaxf(most, w->lists.most[2 * (first + i * rows)]);
    for (paged_size d = 0; d < width; d += VL) v_store(sums + d, v_zero());
    for (paged_size i = 0; i < parts; i++) {
        const paged_size slot = first + i * rows;
        const float own = w->lists.most[2 * slot], other = w->lists.most[2 * slot + 1];
        if (own == -INFINITY && other == 0) continue; /* it saw nothing; NaN counts */
        const float factor = most == -INFINITY ? 1 : exp2f(own - most);
        sum += other * factor;
        const float *part = w->lists.partial + slot * width;
        for (paged_size d = 0; d < width; d += VL)
            v_store(sums + d, v_fma(v_set1(factor), v_load(part + d), v_load(sums + d)));
    }
    finish_row(w->p, s->begin + at / w->p->heads, at % w->p->heads, sums, most, sum);
}

static void merge(void *argument, int64_t worker) {
    paged_work *w = argument;
    char *memory = (char *)w->run->workspace + w->plan.worker_at + worker * w->plan.worker_bytes;
    const paged_size count = paged_count(w->p);
    for (paged_size n = 0; n < count; n++) {
        const paged_sequence s = paged_sequence_of(w->p, n);
        const paged_size parts = parts_of(&w->plan, &s), rows = s.rows * w->p->heads;
        if (parts == 1) continue;
        for (paged_size i = rows * worker / w->run->workers;
             i < rows * (worker + 1) / w->run->workers; i++)
            merge_row(w, &s, parts, i, (float *)(void *)memory);
    }
}

/* Rows of no sequence. */
static void clear_rest(const paged_problem *p) {
    const paged_size count = paged_count(p);
    const paged_sequence last = count > 0 ? paged_sequence_of(p, count - 1) : (paged_sequence){0};
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    for (paged_size i = (last.begin + last.rows) * p->heads; i < p->tokens * p->heads; i++) {
        const paged_size token = i / p->heads, head = i % p->heads;
        char *out = element_at(dtype, p->out.data, token * p->out.token + head * p->out.head);
        if (p->value_dim > 0) memset(out, 0, (size_t)(p->value_dim * element_size(dtype)));
        if (p->lse.data)
            element_store(EJK_DTYPE_F32, p->lse.data, token * p->lse.token + head * p->lse.head,
                          -INFINITY);
    }
}

static ejk_status run(const ejk_run *run) {
    paged_work w = {.run = run, .p = run->problem};
    EJKI_TRY(plan_of(w.p, run->parameters, run->workers, &w.plan));
    char *memory = run->workspace;
    w.lists.items = (paged_size *)(void *)memory;
    w.lists.slots = w.lists.items + w.p->sequences + 1;
    w.lists.partial = (float *)(void *)(memory + w.plan.slot_at);
    w.lists.most = w.lists.partial + w.plan.slots * w.plan.width;
    w.lists.zeros = memory + w.plan.zero_at;
    memset(memory + w.plan.zero_at, 0, (size_t)(w.plan.worker_at - w.plan.zero_at));
    w.count = list_work(w.p, &w.plan, &w.lists);
    clear_rest(w.p);
    if (w.p->status) memset(w.p->status, 0, sizeof *w.p->status);
    ejk_parallel_for(run->threads, run->workers, compute, &w);
    if (w.plan.slots > 0) ejk_parallel_for(run->threads, run->workers, merge, &w);
    return EJK_OK;
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    paged_plan t;
    const paged_problem *p = problem;
    const paged_size most = p->sequences * paged_most(p->kv_heads, 1) * MOST_SPLITS + p->tokens;
    launch->workers = (int32_t)paged_most(1, paged_least(threads, most));
    EJKI_TRY(plan_of(p, parameters, launch->workers, &t));
    launch->workspace_bytes = (size_t)t.bytes;
    return EJK_OK;
}

static bool is_stored(int dtype) {
    return dtype != EJK_DTYPE_F64 && dtype != EJK_DTYPE_UNSET;
}

static bool applicable(const void *problem) {
    const paged_problem *p = problem;
    return is_stored(p->key.dtype) && is_stored(p->value.dtype) &&
           (!p->sink_count || is_stored(p->sink_dtype));
}

static const ejk_parameter parameters[] = {
    {"q_blocksize", 12, 768, 12, 192, "rows of a task that prefills"},
    {"kv_blocksize", 32, TILE_KEYS, 32, 128, "keys that these rows look at together"},
    {"blocksize_keys", 256, 1 << 20, 256, 2048, "keys of a split of a task that decodes"},
};

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .parameters = parameters,
             .parameter_count = sizeof parameters / sizeof *parameters, .applicable = applicable,
             .needs = "caches of 8, 16 or 32 bits", .prepare = prepare, .run = run)
