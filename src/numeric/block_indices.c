/* SPDX-License-Identifier: Apache-2.0 */
#include <ejkernel/numeric.h>

#include "base/base.h"
#include "numeric/array.h"
#include "numeric/random.h"

#include <inttypes.h>
#include <stdlib.h>

/* What one task works with: groups from its number on, in steps of the number of tasks. */
typedef struct selection {
    const ejk_tensor *out;
    int64_t groups, blocks, block_size, heads, selected, tasks;
    ejk_random_key key;
    int32_t *order;  /* [tasks, blocks]: 0, 1, 2, … between groups */
    int32_t *swaps;  /* [tasks, selected]: places in the order that a group has changed */
    int32_t *chosen; /* [tasks, selected] */
} selection;

static int ascending(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Chooses among blocks 0 … `block`; numbers of the stream lie at the counters of `group`. */
static int32_t *choose(const selection *s, int64_t task, int64_t group, int64_t block) {
    int32_t *order = s->order + task * s->blocks, *swaps = s->swaps + task * s->selected;
    int32_t *chosen = s->chosen + task * s->selected;
    int64_t candidates = block + 1, found = ejki_min(candidates, s->selected);
    for (int64_t i = found; i < s->selected; i++) chosen[i] = -1;
    for (int64_t i = 0; i < found; i++) {
        uint64_t counter = (uint64_t)group * (uint64_t)s->selected + (uint64_t)i;
        /* The high part of a product spreads 32 bits over what is left, evenly to one in 2^32 / left. */
        uint64_t left = (uint64_t)(candidates - i);
        int64_t other = i + (int64_t)(left * ejki_random_bits(s->key, counter) >> 32);
        swaps[i] = (int32_t)other;
        chosen[i] = order[other];
        order[other] = order[i];
    }
    for (int64_t i = 0; i < found; i++) order[swaps[i]] = swaps[i];
    qsort(chosen, (size_t)s->selected, sizeof *chosen, ascending);
    return chosen;
}

static void fill_groups(void *argument, int64_t task) {
    const selection *s = argument;
    int64_t queries = s->blocks * s->block_size;
    for (int64_t i = 0; i < s->blocks; i++) s->order[task * s->blocks + i] = (int32_t)i;
    for (int64_t group = task; group < s->groups; group += s->tasks) {
        int64_t head = group % s->heads, block = group / s->heads % s->blocks;
        int64_t batch = group / s->heads / s->blocks;
        int32_t *chosen = choose(s, task, group, block);
        for (int64_t i = 0; i < s->block_size; i++) {
            int64_t row = (batch * queries + block * s->block_size + i) * s->heads + head;
            ejki_array_store(s->out, row * s->selected, s->selected, EJK_DTYPE_I32, chosen);
        }
    }
}

static ejk_status check(int64_t block_size, const ejk_tensor *out) {
    EJKI_TRY(ejki_argument_output(out, "out"));
    if (out->dtype != EJK_DTYPE_I32) {
        return ejki_fail(EJK_STATUS_INVALID_DTYPE, "out is %s, expected int32",
                         ejk_dtype_name(out->dtype));
    }
    if (out->rank != 4) {
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "out has rank %" PRId32 ", expected 4",
                         out->rank);
    }
    if (block_size < 1) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "block_size is %" PRId64 ", expected at least 1", block_size);
    }
    if (out->shape[1] % block_size == 0 && out->shape[1] / block_size <= INT32_MAX) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                     "axis 1 of out is %" PRId64 " long, expected a multiple of block_size %" PRId64
                     ", of fewer than 2^31 blocks",
                     out->shape[1], block_size);
}

/* `count` numbers for each task; NULL if there is no memory. */
static int32_t *numbers(const selection *s, int64_t count) {
    int64_t all;
    return ejki_mul(count, s->tasks, &all) ? calloc((size_t)all, sizeof(int32_t)) : NULL;
}

ejk_status ejk_generate_block_indices(ejk_random_key key, int64_t block_size, ejk_threads *threads,
                                      const ejk_tensor *out) {
    EJKI_TRY(check(block_size, out));
    if (ejk_tensor_count(out) == 0) return EJK_OK;
    selection s = {.out = out,
                   .blocks = out->shape[1] / block_size,
                   .block_size = block_size,
                   .heads = out->shape[2],
                   .selected = out->shape[3],
                   .key = key};
    s.groups = out->shape[0] * s.blocks * s.heads;
    s.tasks = ejki_min(ejk_threads_count(threads), s.groups);
    s.order = numbers(&s, s.blocks);
    s.swaps = numbers(&s, s.selected);
    s.chosen = numbers(&s, s.selected);
    bool room = s.order && s.swaps && s.chosen;
    if (room) ejk_parallel_for(threads, s.tasks, fill_groups, &s);
    free(s.order);
    free(s.swaps);
    free(s.chosen);
    if (room) return EJK_OK;
    return ejki_fail(EJK_STATUS_OUT_OF_MEMORY,
                     "no memory to choose %" PRId64 " of %" PRId64 " blocks", s.selected, s.blocks);
}
