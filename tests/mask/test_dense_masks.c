/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dense masks processed in one pass, against the obvious: blocks of any size, rows apart from each other, bytes
 * of any truth, elements up to the end of what may be read, any number of threads.
 */
#include "base/bits.h"
#include "support/expect.h"
#include "support/guarded.h"
#include "support/random.h"
#include "support/test_threads.h"

#include <ejkernel/splash_mask.h>
#include <stdlib.h>

enum { HEADS = 2, THREADS = 3 };

struct shape {
    int64_t bq, bkv, rows, columns;
};

struct world {
    struct shape shape;
    int64_t q, kv, cells, size, stride;
    struct guarded memory[HEADS];
    uint8_t *truth[HEADS]; /* [q][kv], 0 and 1 */
    /* what is expected, of all heads */
    int32_t *states, *ids;
    uint8_t *blocks;
    int64_t count;
};

static const uint8_t *block_row(const struct world *w, int64_t cell, int64_t row) {
    int64_t within = cell % w->cells;
    return w->truth[cell / w->cells] + (within / w->shape.columns * w->shape.bq + row) * w->kv +
           within % w->shape.columns * w->shape.bkv;
}

/* Copies a block out, gives its state, and finds its like among those before. */
static void expect_block(struct world *w, int64_t cell) {
    uint8_t *block = w->blocks + w->count * w->size;
    int64_t bkv = w->shape.bkv;
    for (int64_t i = 0; i < w->shape.bq; i++)
        memcpy(block + i * bkv, block_row(w, cell, i), (size_t)bkv);
    bool any = memchr(block, 1, (size_t)w->size) != NULL;
    bool all = memchr(block, 0, (size_t)w->size) == NULL;
    w->states[cell] = all ? 2 : any;
    if (all || !any) return;
    int64_t id = 0;
    while (memcmp(w->blocks + id * w->size, block, (size_t)w->size) != 0) id++;
    w->ids[cell] = (int32_t)id;
    if (id == w->count) w->count++;
}

/* Blocks are drawn from few kinds, so that many are equal, next to each other and elsewhere. */
static void draw(struct world *w, struct random *r) {
    uint8_t kinds[5];
    for (int i = 0; i < 5; i++) kinds[i] = (uint8_t)random_int(r, 0, 5);
    for (int h = 0; h < HEADS; h++) {
        guarded_create(&w->memory[h], (size_t)((w->q - 1) * w->stride + w->kv),
                       random_chance(r, 0.5) ? GUARDED_START : GUARDED_END, 0);
        w->truth[h] = malloc((size_t)(w->q * w->kv));
        assert_non_null(w->truth[h]);
        for (int64_t c = 0; c < w->cells; c++) {
            int kind = kinds[random_int(r, 0, 4)];
            int64_t odd = random_int(r, 0, w->size - 1);
            uint8_t *to = w->truth[h] + (block_row(w, c, 0) - w->truth[0]);
            for (int64_t e = 0; e < w->size; e++) {
                int64_t i = e / w->shape.bkv, j = e % w->shape.bkv;
                bool value = kind == 0   ? false
                             : kind == 1 ? true
                             : kind == 2 ? (i + j) % 2 == 0
                             : kind == 3 ? e == w->size - 1
                             : kind == 4 ? e != odd
                                         : i >= j;
                to[i * w->kv + j] = value;
            }
        }
        for (int64_t i = 0; i < w->q; i++)
            for (int64_t j = 0; j < w->kv; j++)
                w->memory[h].data[i * w->stride + j] =
                    w->truth[h][i * w->kv + j] ? (uint8_t)random_int(r, 1, 255) : 0;
    }
}

static void open_world(struct world *w, struct random *r, struct shape shape) {
    *w = (struct world){.shape = shape};
    w->q = shape.bq * shape.rows;
    w->kv = shape.bkv * shape.columns;
    w->cells = shape.rows * shape.columns;
    w->size = shape.bq * shape.bkv;
    w->stride = w->kv + random_int(r, 0, 3);
    draw(w, r);
    w->states = calloc((size_t)(HEADS * w->cells), sizeof *w->states);
    w->ids = calloc((size_t)(HEADS * w->cells), sizeof *w->ids);
    w->blocks = malloc((size_t)((HEADS * w->cells + 1) * w->size));
    assert_true(w->states && w->ids && w->blocks);
    for (int64_t c = 0; c < HEADS * w->cells; c++) expect_block(w, c);
}

static void close_world(struct world *w) {
    for (int h = 0; h < HEADS; h++) {
        guarded_destroy(&w->memory[h]);
        free(w->truth[h]);
    }
    free(w->states);
    free(w->ids);
    free(w->blocks);
}

/* With `indirect`, the second head is NOT NOT of its elements: not known to be dense, equal to what is. */
static ejk_splash_mask *mask_of(const struct world *w, bool indirect) {
    ejk_splash_mask *heads[HEADS], *both = NULL;
    for (int h = 0; h < HEADS; h++) {
        ejk_tensor array = ejk_tensor_2d(w->memory[h].data, EJK_DTYPE_BOOL, w->q, w->kv);
        array.strides[0] = w->stride;
        EXPECT_OK(ejk_numpy_mask_borrow(&array, &heads[h]));
    }
    for (int i = 0; indirect && i < 2; i++) {
        ejk_splash_mask *plain = heads[1];
        EXPECT_OK(ejk_logical_not_create(plain, &heads[1]));
        ejk_splash_mask_release(plain);
    }
    EXPECT_OK(ejk_multi_head_mask_create((const ejk_splash_mask *const *)heads, HEADS, &both));
    for (int h = 0; h < HEADS; h++) ejk_splash_mask_release(heads[h]);
    return both;
}

/* Blocks of a result against those expected; for dkv they are [bkv][bq]. */
static void expect_blocks(const struct world *w, bool dkv, const uint8_t *got,
                          const uint8_t *wanted, int64_t count) {
    const struct shape *s = &w->shape;
    if (!dkv) {
        assert_memory_equal(got, wanted, (size_t)(count * w->size));
        return;
    }
    for (int64_t n = 0; n < count; n++, got += w->size, wanted += w->size)
        for (int64_t j = 0; j < s->bkv; j++)
            for (int64_t i = 0; i < s->bq; i++)
                if (got[j * s->bq + i] != wanted[i * s->bkv + j])
                    fail_msg("block %d: (%d, %d) is wrong", (int)n, (int)i, (int)j);
}

static void expect_result(const struct world *w, bool dkv, const ejk_splash_mask_info *info) {
    int64_t planes = info->block_mask.shape[0];
    const int32_t *states = info->block_mask.data, *next = info->mask_next.data;
    assert_int_equal(info->block_mask.dtype, EJK_DTYPE_I32);
    assert_int_equal(ejk_tensor_count(&info->block_mask), planes * w->cells);
    for (int64_t c = 0; c < planes * w->cells; c++) {
        assert_int_equal(states[c], w->states[c]);
        if (states[c] == 1) assert_int_equal(next[c], w->ids[c]);
    }
    if (w->count == 0) {
        assert_false(ejk_tensor_present(&info->partial_mask_blocks));
        return;
    }
    assert_int_equal(info->partial_mask_blocks.shape[0], w->count);
    assert_int_equal(info->partial_mask_blocks.shape[1], dkv ? w->shape.bkv : w->shape.bq);
    expect_blocks(w, dkv, info->partial_mask_blocks.data, w->blocks, w->count);
}

/* Of a mask that is known when the kernel runs all blocks are kept. */
static void check_dynamic(const struct world *w, bool dkv, ejk_threads *threads) {
    uint8_t *wanted = malloc((size_t)(w->cells * w->size));
    assert_non_null(wanted);
    for (int h = 0; h < HEADS; h++) {
        ejk_process_dynamic_mask_args args = {
            .mask = ejk_tensor_3d(w->memory[h].data, EJK_DTYPE_BOOL, 1, w->q, w->kv),
            .block_shape = {w->shape.bq, w->shape.bkv},
            .threads = threads};
        ejk_splash_mask_info info;
        args.mask.strides[0] = w->q * w->stride;
        args.mask.strides[1] = w->stride;
        EXPECT_OK(dkv ? ejk_process_dynamic_mask_dkv(&args, &info)
                      : ejk_process_dynamic_mask(&args, &info));
        const int8_t *states = info.block_mask.data;
        for (int64_t c = 0; c < w->cells; c++) {
            assert_int_equal(states[c], w->states[h * w->cells + c]);
            for (int64_t i = 0; i < w->shape.bq; i++)
                memcpy(wanted + c * w->size + i * w->shape.bkv, block_row(w, h * w->cells + c, i),
                       (size_t)w->shape.bkv);
        }
        expect_blocks(w, dkv, info.partial_mask_blocks.data, wanted, w->cells);
        ejk_splash_mask_info_close(&info);
    }
    free(wanted);
}

static void check(struct random *r, ejk_threads *const *threads, struct shape shape) {
    struct world w;
    open_world(&w, r, shape);
    for (int way = 0; way < 2 * THREADS; way++) {
        ejk_splash_mask *mask = mask_of(&w, way >= THREADS);
        ejk_splash_mask_info info;
        ejk_process_mask_args args = {.mask = mask,
                                      .block_shape = {shape.bq, shape.bkv},
                                      .shrink_grid = EJK_FALSE,
                                      .downcast_smem_data = EJK_FALSE,
                                      .head_shards = ejk_int(HEADS),
                                      .threads = threads[way % THREADS]};
        for (int dkv = 0; dkv < 2; dkv++) {
            EXPECT_OK(dkv ? ejk_process_mask_dkv(&args, &info) : ejk_process_mask(&args, &info));
            expect_result(&w, dkv, &info);
            ejk_splash_mask_info_close(&info);
            if (way < THREADS) check_dynamic(&w, dkv, threads[way]);
        }
        ejk_splash_mask_release(mask);
    }
    close_world(&w);
}

static void random_blocks(void **state) {
    struct random r = {31};
    for (int round = 0; round < 15; round++)
        check(&r, *state,
              (struct shape){random_int(&r, 1, 20), random_int(&r, 1, 150), random_int(&r, 1, 5),
                             random_int(&r, 1, 6)});
}

/*
 * Several strips of a block row, blocks that are copied in parts, more blocks in a row than are kept at hand, and
 * blocks wider than are compared with their neighbours.
 */
static void extreme_blocks(void **state) {
    static const struct shape shapes[] = {{70, 64, 2, 3},  {129, 67, 1, 4}, {2, 1, 3, 700},
                                          {3, 4200, 2, 3}, {1, 129, 40, 2}, {2, 3, 300, 1},
                                          {500, 600, 1, 2}};
    struct random r = {32};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int round = 0; round < 1; round++) check(&r, *state, shapes[i]);
}

/* The table is refused whole where it is larger than the caller allows. */
static void tables_have_limits(void **state) {
    ejk_threads *const *threads = *state;
    uint8_t bytes[8][8] = {{1}, {0, 0, 0, 0, 0, 1}};
    ejk_tensor array = ejk_tensor_2d(bytes, EJK_DTYPE_BOOL, 8, 8);
    ejk_splash_mask *one = NULL, *mask = NULL;
    EXPECT_OK(ejk_numpy_mask_borrow(&array, &one));
    EXPECT_OK(ejk_multi_head_mask_create((const ejk_splash_mask *const[]){one}, 1, &mask));
    ejk_process_mask_args args = {
        .mask = mask, .block_shape = {8, 4}, .threads = threads[1], .max_bytes = 63};
    ejk_splash_mask_info info = {.is_dynamic_mask = true};
    EXPECT_FAIL(OVERFLOW,
                "2 distinct partial blocks of 32 bytes are needed, more than the limit of 63",
                ejk_process_mask(&args, &info));
    assert_true(info.is_dynamic_mask);
    args.max_bytes = 64;
    EXPECT_OK(ejk_process_mask(&args, &info));
    assert_int_equal(info.partial_mask_blocks.shape[0], 2);
    ejk_splash_mask_info_close(&info);
    ejk_splash_mask_release(mask);
    ejk_splash_mask_release(one);
}

/* Rectangles of any size, turned beside bytes that stay. */
static void bytes_are_turned(void **state) {
    (void)state;
    static uint8_t from[90 * 108], to[100 * 98];
    struct random r = {31};
    for (int round = 0; round < 200; round++) {
        int64_t rows = random_int(&r, 0, 90), columns = random_int(&r, 0, 99);
        int64_t from_step = columns + random_int(&r, 0, 8), to_step = rows + random_int(&r, 0, 7);
        for (size_t i = 0; i < sizeof from; i++) from[i] = (uint8_t)random_bits(&r);
        memset(to, 0x5a, sizeof to);
        ejki_transpose_bytes(from, from_step, rows, columns, to, to_step);
        for (int64_t j = 0; j < columns; j++)
            for (int64_t i = 0; i < to_step; i++)
                assert_int_equal(to[j * to_step + i], i < rows ? from[i * from_step + j] : 0x5a);
        for (size_t i = (size_t)(columns * to_step); i < sizeof to; i++)
            assert_int_equal(to[i], 0x5a);
    }
}

int main(void) {
    static ejk_threads *threads[THREADS];
    threads[1] = test_threads_create(2);
    threads[2] = test_threads_create(3);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_turned),
        cmocka_unit_test_prestate(random_blocks, threads),
        cmocka_unit_test_prestate(extreme_blocks, threads),
        cmocka_unit_test_prestate(tables_have_limits, threads),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (int i = 0; i < THREADS; i++) ejk_threads_destroy(threads[i]);
    return failed;
}
