/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over pages in vectors. The list of work is made from the lengths: an item is a sequence, a group of its
 * rows, some KV heads and, where the sequence decodes, a KV split of fixed length. What items of split sequences
 * leave is float32 and is merged in the order of splits. So the bits of a sequence follow from its own rows and
 * keys, the shapes and the parameters, and not from threads or neighbours.
 *
 * A prefix that all sequences share is one more sequence, which has the rows of all of them and no keys behind the
 * prefix: its parts come before those of a row's own sequence.
 *
 * Few rows (paged_rows.h) multiply with keys and values where they lie, as many heads at once as fit the first
 * cache, so that memory is read in its own order. Many rows (paged_tiles.h) have blocks of keys packed and go
 * through the register tiles of gemm_body.h. Elements of caches become floats in registers, whatever their type; scales
 * of rows go to scores and weights, others to the scale of the scores and to the result.
 *
 * Blocks of keys lie at absolute positions; maxima, rescaling and sums are each row's own, and a key that a row does
 * not see adds an exact 0. Where a value that another row sees is not finite, rows add key by key what has a weight.
 */
#include <ejkernel/device.h>

#include "kernels/declare.h"
#include "operations/paged/cpu/paged_rows.h"
#include "operations/paged/cpu/paged_tiles.h"
#include "operations/paged/cpu/suggest.h"

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

/* A tile of rows of all sequences, one KV head and a KV split of the prefix. */
static paged_job prefix_job(const paged_work *w, paged_size index) {
    const paged_problem *p = w->p;
    const paged_size rows = w->lists.prefix_rows * p->group, groups = ejki_cdiv(rows, w->plan.rows);
    paged_job j = {.work = w, .p = p, .heads = 1, .parts = prefix_parts(&w->plan), .prefix = true};
    paged_size unused;
    j.s = (paged_sequence){.rows = w->lists.prefix_rows, .keys = w->plan.prefix};
    while (paged_sequence_of(p, j.s.n).rows == 0) j.s.n++;
    j.entries = paged_entries(p, j.s.n, &unused);
    j.part = index / (groups * p->kv_heads);
    j.head = index / groups % p->kv_heads;
    j.first_row = index % groups * w->plan.rows;
    j.rows = paged_least(w->plan.rows, rows - j.first_row);
    j.low = j.part * w->plan.split;
    j.high = paged_least(w->plan.prefix, (j.part + 1) * w->plan.split);
    return j;
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
    j.low = paged_most(paged_low(p, &j.s, j.first_row / p->group), w->plan.prefix);
    j.high = paged_high(p, &j.s, last);
    if (j.parts > 1) {
        const paged_size split = w->plan.prefix / w->plan.split + j.part;
        j.low = paged_most(j.low, split * w->plan.split);
        j.high = paged_least(j.high, (split + 1) * w->plan.split);
    }
    return j;
}

#ifdef PAGED_AMX
/* Many rows by flash attention, if that knows all that the call wants. */
static bool attend_dense(const paged_job *j) {
    const paged_plan *t = &j->work->plan;
    const ejki_paged_prefill item = {.p = j->p,
                                     .s = j->s,
                                     .entries = j->entries,
                                     .head = j->head,
                                     .first_row = j->first_row,
                                     .rows = j->rows,
                                     .low = j->low,
                                     .high = j->high,
                                     .most_rows = t->rows,
                                     .keys = t->keys,
                                     .zeros = j->work->lists.zeros,
                                     .memory = (char *)j->memory};
    if (!t->prefills || j->s.rows <= SPLIT_ROWS) return false;
    ejki_paged_attend(&item);
    return true;
}
#else
static bool attend_dense(const paged_job *j) {
    (void)j;
    return false;
}
#endif

static void compute(void *argument, int64_t worker) {
    paged_work *w = argument;
    char *memory = (char *)w->run->workspace + w->plan.worker_at + worker * w->plan.worker_bytes;
    for (;;) {
        const paged_size index = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed);
        if (index >= w->count) return;
        paged_job j = index < w->lists.prefix_items ? prefix_job(w, index) : job_of(w, index);
        j.memory = (float *)(void *)memory;
        if (!j.prefix && is_few(w->p, &j.s))
            attend_few(&j);
        else if (!attend_dense(&j))
            attend_many(&j);
    }
}

/* Slots of a row's parts: `count` of them, `step` apart. */
typedef struct paged_slots {
    paged_size first, step, count;
} paged_slots;

static float largest(const paged_work *w, const paged_slots *at) {
    float most = -INFINITY;
    for (paged_size i = 0; i < at->count; i++)
        most = fmaxf(most, w->lists.state[3 * (at->first + i * at->step)]);
    return most;
}

/* Adds parts in their order; all->most is the largest score of all of them. */
static void add_parts(const paged_work *w, const paged_slots *at, paged_state *all, float *sums) {
    const paged_size width = w->plan.width;
    for (paged_size i = 0; i < at->count; i++) {
        const paged_size slot = at->first + i * at->step;
        paged_state own;
        memcpy(&own, w->lists.state + 3 * slot, sizeof own);
        if (own.most == -INFINITY && own.sum == 0) continue; /* it saw nothing; NaN counts */
        const float factor = all->most == -INFINITY ? 1 : exp2f(own.most - all->most);
        all->sum += own.sum * factor;
        all->total += own.total * factor;
        const float *part = w->lists.partial + slot * width;
        for (paged_size d = 0; d < width; d += VL)
            v_store(sums + d, v_fma(v_set1(factor), v_load(part + d), v_load(sums + d)));
    }
}

/* Merges the parts of one row of a sequence in their order, those of the prefix first. */
static void merge_row(const paged_work *w, const paged_sequence *s, paged_size at, float *sums) {
    const paged_size heads = w->p->heads, parts = parts_of(&w->plan, s);
    const paged_slots own = {w->lists.slots[s->n] + at, s->rows * heads, parts};
    const paged_slots prefix = {s->begin * heads + at, w->lists.prefix_rows * heads,
                                prefix_parts(&w->plan)};
    paged_state all = {.most = fmaxf(largest(w, &prefix), largest(w, &own))};
    for (paged_size d = 0; d < w->plan.width; d += VL) v_store(sums + d, v_zero());
    add_parts(w, &prefix, &all, sums);
    add_parts(w, &own, &all, sums);
    finish_row(w->p, s->begin + at / heads, at % heads, sums, all);
}

static void merge(void *argument, int64_t worker) {
    paged_work *w = argument;
    char *memory = (char *)w->run->workspace + w->plan.worker_at + worker * w->plan.worker_bytes;
    const paged_size count = paged_count(w->p);
    for (paged_size n = 0; n < count; n++) {
        const paged_sequence s = paged_sequence_of(w->p, n);
        const paged_size rows = s.rows * w->p->heads;
        if (!has_parts(&w->plan, &s)) continue;
        for (paged_size i = rows * worker / w->run->workers;
             i < rows * (worker + 1) / w->run->workers; i++)
            merge_row(w, &s, i, (float *)(void *)memory);
    }
}

/* Rows of no sequence. */
static void clear_rest(const paged_problem *p) {
    const paged_size count = paged_count(p);
    const paged_sequence last = count > 0 ? paged_sequence_of(p, count - 1) : (paged_sequence){0};
    const ejk_dtype dtype = (ejk_dtype)p->dtype;
    for (paged_size i = (last.begin + last.rows) * p->heads; i < p->tokens * p->heads; i++) {
        const paged_size token = i / p->heads, head = i % p->heads;
        char *out = element_at(dtype, p->out.data, paged_row_at(p, &p->out, token, head));
        if (p->value_dim > 0) memset(out, 0, (size_t)(p->value_dim * element_size(dtype)));
        if (p->lse.data)
            element_store(EJK_DTYPE_F32, p->lse.data, paged_row_at(p, &p->lse, token, head),
                          -INFINITY);
    }
}

static ejk_status attend_pages(const ejk_run *run) {
    paged_work w = {.run = run, .p = run->problem};
    EJKI_TRY(plan_of(w.p, run->parameters, run->workers, &w.plan));
    char *memory = run->workspace;
    w.lists.items = (paged_size *)(void *)memory;
    w.lists.slots = w.lists.items + w.p->sequences + 1;
    w.lists.partial = (float *)(void *)(memory + w.plan.slot_at);
    w.lists.state = w.lists.partial + w.plan.slots * w.plan.width;
    w.lists.zeros = memory + w.plan.zero_at;
    memset(memory + w.plan.zero_at, 0, (size_t)(w.plan.worker_at - w.plan.zero_at));
    w.count = list_work(w.p, &w.plan, &w.lists);
    clear_rest(w.p);
    if (w.p->status) memset(w.p->status, 0, sizeof *w.p->status);
    ejk_parallel_for(run->threads, run->workers, compute, &w);
    if (w.plan.slots > 0) ejk_parallel_for(run->threads, run->workers, merge, &w);
    return EJK_OK;
}

static ejk_status plan_pages(const void *problem, const int64_t *parameters, int32_t threads,
                             ejk_launch *launch) {
    paged_plan t;
    const paged_problem *p = problem;
    const paged_size most = p->sequences * paged_most(p->kv_heads, 1) * MOST_SPLITS + p->tokens;
    launch->workers = (int32_t)paged_most(1, paged_least(threads, most));
    EJKI_TRY(plan_of(p, parameters, launch->workers, &t));
    launch->workspace_bytes = (size_t)t.bytes;
    return EJK_OK;
}

/* ---- Implementation ----------------------------------------------------------------------------------- */

static bool is_operand(const paged_cache *c) {
#define IS_OPERAND(T) || c->dtype == (int)EJK_DTYPE_##T
    return false OPERAND_TYPES(IS_OPERAND);
#undef IS_OPERAND
}

static bool has_operands(const void *problem) {
    const paged_problem *p = problem;
    const bool sinks =
        p->sink_count == 0 || (p->sink_dtype != EJK_DTYPE_F64 && p->sink_dtype != EJK_DTYPE_UNSET);
    /* has_lost() does not know of scales */
    if (PAGED_PACK > 1 && p->value.scaled_rows && p->value.dtype == EJK_DTYPE_BF16) return false;
    return is_operand(&p->key) && is_operand(&p->value) && sinks &&
           (p->tail_dim == 0 || is_operand(&p->key_tail));
}

#ifdef PAGED_AMX
#define PAGED_SUGGEST ejki_paged_suggest_amx
#else
#define PAGED_SUGGEST ejki_paged_suggest
#endif

EJKI_DECLARE(EJKI_THIS_LINE, .version = 2, .parameters = page_parameters,
             .parameter_count = sizeof page_parameters / sizeof *page_parameters,
             .suggest = PAGED_SUGGEST, .applicable = has_operands,
             .needs = PAGED_PACK > 1 ? "caches of bf16 or 8 bits" : "caches of 8, 16 or 32 bits",
             .prepare = plan_pages, .run = attend_pages)
