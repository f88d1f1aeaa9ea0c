/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flash attention forward in bf16 on AMX tiles.
 *
 * The rows of a KV head, T queries times G query heads, are cut into groups; a group is one task. A worker packs the
 * group's queries, then walks over blocks of keys at absolute positions. A block is packed once and used by all row
 * tiles of the group, 32 rows each: for each chunk of 32 keys scores = query · keysᵀ, while the vector units make
 * weights of the chunk before; then, over all chunks of the block, sums += weights · values. A column of ones beside
 * the values sums the weights as they were rounded.
 *
 * Softmax. A row's shift is the largest score of the first chunk with a key visible to it, and stays: weights are
 * 2^(z − shift), whose exponents bf16 holds as f32 does. A chunk with a weight from 2^40 on raises the shift of that
 * row: its weights are made again, and sums and earlier weights are rescaled by a power of two, which is exact.
 *
 * Fast path: where a bound on queries and keys, or a soft cap, keeps all scores in the range of amx_row_weights(),
 * weights are made beside the products, soft cap and bias included. Slow path: row by row, with the same bits where
 * both apply. Weights of hidden keys are cleared. Log-sum-exp, row_max and row_sum have f32 accuracy: weights are
 * then computed in f32. Without normalisation, where out is f32 too, the rounding error of the weights is a second
 * left operand.
 *
 * AMX flushes subnormal numbers to 0. Chunks with values that are so small, too large, or not finite are added key by
 * key, which is slow; subnormal sums are kept apart from the products that follow. Such queries and keys count as 0.
 *
 * Results do not depend on tiles: blocks, chunks and lanes lie at absolute key positions, a hidden key adds an exact
 * 0, and softmax shifts are decided by the row alone.
 *
 * Tasks of packed sequences and of a block mask are handed out with the longest first, so that workers end together.
 */
#include <ejkernel/registry.h>

#include "base/base.h"
#include "kernels/declare.h"
#include "operations/attention/cpu/amx/amx_task.h"
#include "operations/attention/shared/sequences.h"
#include "operations/attention/shared/suggest.h"

#include <math.h>
#include <stdatomic.h>

#define AMX_KEYS       2048 /* of a block at most */
#define AMX_LEAST_ROWS 128  /* of a task that is cut only because it is long */

/* What the workers of one run share. */
typedef struct amx_shared {
    const ejki_flash_problem *problem;
    amx_plan plan;
    char *workspace;
    /* Of packed sequences: these in the order in which their tasks are handed out, the first task of each and the
     * number of all, and the most scores of a task if it can be cut. */
    int64_t *order, *first;
    double most;
    int32_t workers;
    _Atomic int64_t next;
} amx_shared;

/* A worker takes tasks until none is left. */
static void amx_worker(void *argument, int64_t worker) {
    amx_shared *shared = argument;
    const amx_plan *t = &shared->plan;
    amx_state state;
    amx_bind(&state, shared->problem, t, shared->workspace + worker * t->bytes);
    amx_open();
    for (;;) {
        const int64_t index = atomic_fetch_add_explicit(&shared->next, 1, memory_order_relaxed);
        if (index >= t->tasks) break;
        amx_group(&state, amx_task_of(shared->problem, t, index), index);
    }
    amx_close();
}

/* Sorts items by falling weight, a power of two from 0 to 63; equal ones keep their order. */
static void amx_sort(const amx_shared *s, int64_t count,
                     int32_t (*weight)(const amx_shared *s, int64_t item), int64_t *order) {
    int64_t place[64] = {0}, before = 0;
    for (int64_t n = 0; n < count; n++) place[weight(s, n)]++;
    for (int32_t w = 63; w >= 0; w--) {
        const int64_t own = place[w];
        place[w] = before;
        before += own;
    }
    for (int64_t n = 0; n < count; n++) order[place[weight(s, n)]++] = n;
}

static int32_t amx_group_weight(const amx_shared *s, int64_t group) {
    return block_mask_weight(s->problem, s->plan.groups, s->plan.region_groups, group);
}

/* ---- Packed sequences --------------------------------------------------------------------------------- */

/* Rows of a KV head of a packed sequence, and the most keys that one of them has in its window. */
static void amx_sequence_sizes(const ejki_flash_problem *p, int64_t sequence, int64_t *rows,
                               int64_t *keys) {
    ejki_flash_part_lengths(p, sequence, rows, keys);
    *rows *= p->group;
    *keys = ejki_max(1, ejki_min(*keys, p->last_offset - p->first_offset + 1));
}

/* A sequence's plan: that of the whole call, with groups of at most as many rows. */
static amx_plan amx_sequence_plan(const amx_shared *s, int64_t sequence) {
    const ejki_flash_problem *p = s->problem;
    amx_plan own = s->plan;
    int64_t rows, keys;
    amx_sequence_sizes(p, sequence, &rows, &keys);
    const double most = fmin(s->most / (double)keys, (double)own.rows);
    const int64_t limit = ejki_max(ejki_min(AMX_LEAST_ROWS, own.rows), (int64_t)most);
    own.rows = ejki_cdiv(rows, ejki_max(1, ejki_cdiv(rows, limit)));
    own.rows = ejki_round_up(ejki_max(1, own.rows), AMX_ROWS);
    own.groups = own.region_groups = ejki_cdiv(rows, own.rows);
    own.region_rows = rows;
    own.whole = own.tasks = own.groups * p->kv_heads;
    ejki_flash_part_lengths(p, sequence, &rows, &keys);
    own.slots = own.chunks * AMX_CHUNK >= keys ? 1 : own.rows / AMX_ROWS;
    return own;
}

/* Scores of a task of a sequence: 1 + the power of two. */
static int32_t amx_sequence_weight(const amx_shared *s, int64_t sequence) {
    int64_t rows, keys;
    amx_sequence_sizes(s->problem, sequence, &rows, &keys);
    const double scores = (double)ejki_min(rows, s->plan.rows) * (double)keys;
    return scores < 1 ? 0 : (int32_t)ejki_min(63, 1 + ilogb(scores));
}

/* Sorts the sequences and counts their tasks; in every run, since lengths are data. */
static void amx_share_out(amx_shared *s) {
    const ejki_flash_problem *p = s->problem;
    const int64_t sequences = ejki_flash_parts(p);
    double scores = 0;
    for (int64_t n = 0; n < sequences; n++) {
        int64_t rows, keys;
        amx_sequence_sizes(p, n, &rows, &keys);
        scores += (double)rows * (double)keys;
    }
    s->most = s->workers == 1 ? INFINITY : scores * (double)p->kv_heads / (8 * s->workers);
    amx_sort(s, sequences, amx_sequence_weight, s->order);
    s->first[0] = 0;
    for (int64_t n = 0; n < sequences; n++)
        s->first[n + 1] = s->first[n] + amx_sequence_plan(s, s->order[n]).tasks;
}

/* Tasks one by one, of whatever sequence: its problem and plan stand for those of the whole call. */
static void amx_packed_worker(void *argument, int64_t worker) {
    amx_shared *shared = argument;
    const int64_t sequences = ejki_flash_parts(shared->problem);
    ejki_flash_problem problem;
    amx_plan plan;
    amx_state state;
    amx_bind(&state, shared->problem, &shared->plan,
             shared->workspace + worker * shared->plan.bytes);
    amx_open();
    for (int64_t at = -1;;) {
        const int64_t index = atomic_fetch_add_explicit(&shared->next, 1, memory_order_relaxed);
        if (index >= shared->first[sequences]) break;
        if (at < 0 || index >= shared->first[at + 1]) {
            do at++;
            while (index >= shared->first[at + 1]);
            problem = ejki_flash_part(shared->problem, shared->order[at]);
            plan = amx_sequence_plan(shared, shared->order[at]);
            amx_set_problem(&state, &problem, &plan);
        }
        amx_group(&state, amx_task_of(&problem, &plan, index - shared->first[at]), index);
    }
    amx_close();
}

/* ---- The implementation ------------------------------------------------------------------------------- */

static ejk_status amx_prepare(const void *problem, const int64_t *parameters, int32_t threads,
                              ejk_launch *launch) {
    const ejki_flash_problem *p = problem;
    const amx_plan t = amx_plan_of(p, parameters, threads);
    if (t.bytes >= (int64_t)1 << 50 || t.order_bytes >= (int64_t)1 << 50) return flash_too_large(p);
    const int64_t groups = p->batch * p->kv_heads * t.groups;
    launch->workers = flash_is_light(p) ? 1 : (int32_t)ejki_max(1, ejki_min(threads, groups));
    launch->workspace_bytes = (size_t)(t.bytes * launch->workers + t.order_bytes);
    if (p->layout != EJKI_FLASH_DENSE)
        launch->workspace_bytes += (size_t)(2 * ejki_flash_parts(p) + 1) * sizeof(int64_t);
    return EJK_OK;
}

static ejk_status amx_run(const ejk_run *run) {
    amx_shared shared = {
        .problem = run->problem, .workspace = run->workspace, .workers = run->workers};
    const ejki_flash_problem *p = shared.problem;
    shared.plan = amx_plan_of(p, run->parameters, run->workers);
    void (*worker)(void *, int64_t) = amx_worker;
    shared.order = (int64_t *)(void *)(shared.workspace + shared.plan.bytes * run->workers);
    if (p->layout != EJKI_FLASH_DENSE) {
        shared.first = shared.order + ejki_flash_parts(p);
        amx_share_out(&shared);
        worker = amx_packed_worker;
    } else if (shared.plan.order_bytes > 0) {
        amx_sort(&shared, p->batch * p->kv_heads * shared.plan.groups, amx_group_weight,
                 shared.order);
        shared.plan.order = shared.order;
    }
    if (run->workers == 1)
        worker(&shared, 0);
    else
        ejk_parallel_for(run->threads, run->workers, worker, &shared);
    return EJK_OK;
}

/* True if tiles would be nearly empty: sequences of a few rows and keys on average. Vectors take them faster. */
static bool amx_is_tiny(const ejki_flash_problem *p) {
    const int64_t sequences = p->layout == EJKI_FLASH_TOKENS ? ejki_max(1, p->batch) : 1;
    return p->queries / sequences * p->group < 16 && p->keys / sequences < 64;
}

/* Block masks and packed sequences exclude each other; dropout draws keys by fours, which mask blocks need not be. */
static bool amx_applicable(const void *problem) {
    const ejki_flash_problem *p = problem;
    if (ejki_block_mask_is_empty(&p->block_mask)) return !amx_is_tiny(p);
    return p->layout == EJKI_FLASH_DENSE && p->dropout == 0;
}

static const ejk_parameter amx_parameters[] = {
    {"q_blocksize", 1, 65536, 1, 1024, "query rows of a task"},
    {"kv_blocksize", 1, AMX_KEYS, 1, 1024, "keys packed at a time"},
};

EJKI_DECLARE(flash_attention_matrix_amx, .priority = 5, .version = 1, .parameters = amx_parameters,
             .suggest = ejki_amx_suggest, .parameter_count = 2, .applicable = amx_applicable,
             .prepare = amx_prepare, .run = amx_run)
