/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How gradients of attention are shared out, in units of work: a pair of a query and a key that it sees counts one.
 * Workers take the tasks in their order, each the next one when it is free, and a block of keys adds to a block of
 * rows after those before it of the same head. On vectors, and on AMX with row blocks of its own.
 */
#include "operations/attention/cpu/amx_backward/amx_vjp_tasks.h"
#include "support/expect.h"
#include "support/random.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 128, COLUMNS = 32, ROWS = 96, MOST_HEADS = 8, MOST_WORKERS = 4, MOST_TURNS = 10000 };

struct world {
    int64_t ends[MOST + 1]; /* of queries and of keys */
    ejki_flash_problem problem;
    ejki_vjp_sequence sequence[MOST];
    int64_t order[MOST];
    ejki_vjp_tasks tasks;
    bool matrix;
};

static struct world *world_of(const int64_t *lengths, int64_t count, int64_t heads, bool causal,
                              int64_t block, bool matrix) {
    static struct world w;
    memset(&w, 0, sizeof w);
    for (int64_t n = 0; n < count; n++) w.ends[n + 1] = w.ends[n] + lengths[n];
    w.problem = (ejki_flash_problem){.batch = count,
                                     .queries = w.ends[count],
                                     .keys = w.ends[count],
                                     .query_heads = heads,
                                     .kv_heads = heads,
                                     .group = 1,
                                     .layout = EJKI_FLASH_TOKENS,
                                     .sums_are_i64 = true,
                                     .query_sums = w.ends,
                                     .key_sums = w.ends,
                                     .last_offset = causal ? 0 : INT64_C(1) << 61};
    w.tasks.sequence = w.sequence;
    w.tasks.order = w.order;
    w.matrix = matrix;
    const ejki_vjp_blocks blocks = {.rows = ROWS, .keys = block, .columns = COLUMNS};
    if (matrix)
        amx_vjp_cut(&w.tasks, &w.problem, 256, 2 * block, false);
    else
        ejki_vjp_cut(&w.tasks, &w.problem, &blocks, false);
    return &w;
}

/* Pairs that rows [first, end) see of the task's keys. */
static double work_of(const struct world *w, const ejki_vjp_task *task, int64_t first,
                      int64_t end) {
    const ejki_vjp_sequence *s = &w->sequence[task->sequence];
    const int64_t key = task->key_block * s->block, keys = key + s->block;
    double pairs = 0;
    for (int64_t row = first; row < end; row++) {
        const int64_t most = w->problem.last_offset == 0 ? row + 1 : s->keys;
        const int64_t seen = (most < keys ? most : keys) - key;
        if (seen > 0) pairs += (double)(s->keys - key < seen ? s->keys - key : seen);
    }
    return pairs;
}

/* A task beginning at `now`: blocks of rows from the last to the first. Returns its end. */
static double end_of(const struct world *w, const ejki_vjp_task *task, double now, double *progress,
                     double *work) {
    const ejki_vjp_sequence *s = &w->sequence[task->sequence];
    const int64_t rows = w->matrix ? amx_vjp_row_block_size(s->rows, 256) : ROWS;
    for (int64_t block = s->row_blocks - 1; block >= 0; block--) {
        const int64_t end = (block + 1) * rows < s->rows ? (block + 1) * rows : s->rows;
        const double own = work_of(w, task, block * rows, end);
        if (own == 0) continue;
        now = now + own > progress[block] ? now + own : progress[block];
        progress[block] = now;
        *work += own;
    }
    return now;
}

/* How many times faster `workers` workers are than one. */
static double speedup(const struct world *w, int64_t workers) {
    static double progress[MOST_TURNS];
    static int64_t blocks[MOST][MOST_HEADS];
    double free_at[MOST_WORKERS] = {0}, all = 0, end = 0, expected = 0;
    ejki_vjp_task task = {.at = 0};
    memset(progress, 0, sizeof progress);
    memset(blocks, 0, sizeof blocks);
    for (int64_t n = 0; n < w->tasks.count; n++) {
        ejki_vjp_go(&w->tasks, n, workers, &task);
        const ejki_vjp_sequence *s = &w->sequence[task.sequence];
        int first = 0;
        for (int i = 1; i < workers; i++)
            if (free_at[i] < free_at[first]) first = i;
        /* Every block of a head comes once, after those before it. */
        assert_int_equal(blocks[task.sequence][task.kv_head]++, task.key_block);
        free_at[first] = end_of(w, &task, free_at[first],
                                progress + s->first_row_block + task.kv_head * s->row_blocks, &all);
        if (free_at[first] > end) end = free_at[first];
    }
    for (int64_t n = 0; n < w->problem.batch; n++) {
        const double length = (double)(w->ends[n + 1] - w->ends[n]);
        expected += (double)w->problem.kv_heads *
                    (w->problem.last_offset == 0 ? length * (length + 1) / 2 : length * length);
        for (int64_t h = 0; h < w->problem.kv_heads; h++)
            assert_int_equal(blocks[n][h], w->sequence[n].key_blocks);
    }
    assert_true(all == expected);
    return all / end;
}

static void one_long_sequence_is_shared(void **state) {
    (void)state;
    static const int64_t heads[] = {1, 2, 3, 8}, longs[] = {300, 512, 777, 2048, 5000};
    for (uint64_t seed = 0; seed < 400; seed++) {
        struct random r = {seed * 7 + 1};
        random_bits(&r);
        int64_t lengths[MOST];
        const int64_t count = random_int(&r, 20, 100);
        for (int64_t n = 0; n < count; n++)
            lengths[n] = random_chance(&r, 0.1) ? 0 : random_int(&r, 1, 64);
        /* 300 queries are too few row blocks on AMX for one worker to follow another closely */
        lengths[random_int(&r, 0, count - 1)] = longs[random_int(&r, seed % 2, 4)];
        const struct world *w =
            world_of(lengths, count, RANDOM_OF(&r, heads), random_chance(&r, 0.5), 256, seed % 2);
        assert_true(speedup(w, 1) == 1);
        const double two = speedup(w, 2);
        if (two < 1.8) fail_msg("seed %d: two workers are %g times faster", (int)seed, two);
    }
}

static void random_lengths_are_shared(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct random r = {seed * 13 + 5};
        random_bits(&r);
        int64_t lengths[64];
        for (int64_t n = 0; n < 64; n++) lengths[n] = random_int(&r, 1, 2048);
        const struct world *w = world_of(lengths, 64, 1, random_chance(&r, 0.5), 256, seed % 2);
        const double two = speedup(w, 2), four = speedup(w, 4);
        if (two < (seed % 2 ? 1.9 : 1.97) || four < 3.8)
            fail_msg("seed %d: %g and %g times", (int)seed, two, four);
    }
}

/* Blocks of a sequence follow from its own length: its neighbours change no bit of it. */
static void check_neighbours(bool matrix) {
    const int64_t alone[] = {777}, among[] = {5, 0, 777, 3000, 12};
    struct world *w = world_of(alone, 1, 2, false, 256, matrix);
    const int64_t block = w->sequence[0].block;
    w = world_of(among, 5, 2, false, 256, matrix);
    assert_int_equal(w->sequence[2].block, block);
    assert_int_equal(block % COLUMNS, 0);
    assert_int_equal(w->order[0], 3);
    assert_int_equal(w->order[1], 2);
    assert_int_equal(w->sequence[1].key_blocks, 0);
    w = world_of(among, 0, 2, false, 256, matrix);
    assert_int_equal(w->tasks.count, 0);
}

static void neighbours_change_no_block(void **state) {
    (void)state;
    check_neighbours(false);
    check_neighbours(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_long_sequence_is_shared),
        cmocka_unit_test(random_lengths_are_shared),
        cmocka_unit_test(neighbours_change_no_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
