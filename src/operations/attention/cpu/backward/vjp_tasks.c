/* SPDX-License-Identifier: Apache-2.0 */
#include "operations/attention/cpu/backward/vjp_tasks.h"

#include "base/base.h"
#include "operations/attention/shared/sequences.h"

#include <math.h>

/* Sequences are sorted by these. */
enum { SIZES = 128 };

static int size_of(const ejki_vjp_sequence *s) {
    return s->rows > 0 && s->keys > 0 ? ilogb((double)s->rows * (double)s->keys) : 0;
}

static void sort(ejki_vjp_tasks *tasks) {
    int64_t before[SIZES] = {0}, sum = 0;
    for (int64_t n = 0; n < tasks->batch; n++) before[size_of(&tasks->sequence[n])]++;
    for (int i = SIZES - 1; i >= 0; i--) {
        const int64_t count = before[i];
        before[i] = sum;
        sum += count;
    }
    for (int64_t n = 0; n < tasks->batch; n++)
        tasks->order[before[size_of(&tasks->sequence[n])]++] = n;
}

static ejki_vjp_sequence *at(const ejki_vjp_tasks *tasks, int64_t place) {
    return &tasks->sequence[tasks->order[place]];
}

/* Sequences with as many blocks follow each other; their heads are interleaved. */
static void count(ejki_vjp_tasks *tasks) {
    tasks->count = 0;
    for (int64_t first = 0, end; first < tasks->batch; first = end) {
        ejki_vjp_sequence *s = at(tasks, first);
        for (end = first + 1; end < tasks->batch && at(tasks, end)->key_blocks == s->key_blocks;)
            end++;
        s->same_blocks = end - first;
        s->first_task = tasks->count;
        tasks->count += s->same_blocks * tasks->kv_heads * s->key_blocks;
    }
}

/* A sequence's own steps: an eighth of its keys, but at least 64; a whole block if that cannot be cut. */
static int64_t step_of(const ejki_vjp_blocks *blocks, int64_t keys) {
    const int64_t share = ejki_round_up(ejki_max(64, ejki_cdiv(keys, 8)), blocks->columns);
    return blocks->keys % blocks->columns ? blocks->keys : ejki_min(blocks->keys, share);
}

void ejki_vjp_cut(ejki_vjp_tasks *tasks, const ejki_flash_problem *p, const ejki_vjp_blocks *blocks,
                  bool alike) {
    const bool dense = p->layout == EJKI_FLASH_DENSE;
    const int64_t heads = ejki_max(1, ejki_min(p->kv_heads, 8));
    int64_t first_row = 0, first_row_block = 0;
    tasks->batch = p->batch;
    tasks->kv_heads = p->kv_heads;
    for (int64_t n = 0; n < p->batch; n++) {
        ejki_vjp_sequence *s = &tasks->sequence[n];
        int64_t queries;
        *s = (ejki_vjp_sequence){.first_row = first_row, .first_row_block = first_row_block};
        ejki_flash_part_lengths(p, n, &queries, &s->keys);
        s->rows = queries * p->group;
        s->step = dense || alike ? blocks->keys : step_of(blocks, s->keys);
        s->block = s->step * ejki_max(1, ejki_min(heads, blocks->keys / s->step));
        s->row_blocks = dense ? blocks->row_blocks : ejki_cdiv(s->rows, blocks->rows);
        s->key_blocks = dense ? blocks->key_blocks : ejki_cdiv(s->keys, s->block);
        first_row += p->kv_heads * s->rows;
        first_row_block += p->kv_heads * s->row_blocks;
    }
    sort(tasks);
    count(tasks);
}

void ejki_vjp_go(const ejki_vjp_tasks *tasks, int64_t index, int64_t workers, ejki_vjp_task *task) {
    const ejki_vjp_sequence *s = at(tasks, task->at);
    while (index >= s->first_task + s->same_blocks * tasks->kv_heads * s->key_blocks) {
        task->at += s->same_blocks;
        s = at(tasks, task->at);
    }
    index -= s->first_task;
    const int64_t first = index / (workers * s->key_blocks) * workers;
    const int64_t heads = ejki_min(workers, s->same_blocks * tasks->kv_heads - first);
    index -= first * s->key_blocks;
    const int64_t head = first + index % heads;
    task->sequence = tasks->order[task->at + head / tasks->kv_heads];
    task->kv_head = head % tasks->kv_heads;
    task->key_block = index / heads;
}
