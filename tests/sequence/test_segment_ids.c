/* SPDX-License-Identifier: Apache-2.0 */
/* Segment ids to masks, masks to segment ids. */
#include "base/bits.h"
#include "sequence/patterns.h"
#include "support/expect.h"
#include "support/guarded.h"
#include "support/random.h"
#include "support/strided.h"
#include "support/test_threads.h"

#include <ejkernel/sequence.h>
#include <stdlib.h>

static const ejk_dtype index_types[] = {EJK_DTYPE_I32, EJK_DTYPE_I64};

static ejk_dtype any_type(struct random *r) {
    return (ejk_dtype)random_int(r, EJK_DTYPE_F64, EJK_DTYPE_BOOL);
}

#define SAME(got, ...)                                                                             \
    do {                                                                                           \
        static const int8_t wanted_[] = {__VA_ARGS__};                                             \
        expect_same((got), wanted_, (int)sizeof wanted_, __LINE__);                                \
    } while (0)

static void expect_same(ejk_tensor got, const int8_t *wanted, int count, int line) {
    int8_t numbers[64];
    ejk_tensor view = ejk_tensor_contiguous(numbers, EJK_DTYPE_I8, got.rank, got.shape);
    assert_int_equal(ejk_tensor_count(&got), count);
    EXPECT_OK(ejk_tensor_copy(&got, &view));
    for (int i = 0; i < count; i++) {
        if (numbers[i] != wanted[i]) {
            fail_msg("line %d: element %d is %d, expected %d", line, i, numbers[i], wanted[i]);
        }
    }
}

/* ---- Ids to masks: the examples of the documents ------------------------------------------------------ */

static void documented_self_attention(void **state) {
    (void)state;
    int32_t numbers[2][4] = {{1, 1, 2, 0}, {1, 2, 0, 0}};
    uint8_t truth[2][4][4];
    ejk_tensor ids = ejk_tensor_2d(numbers, EJK_DTYPE_I32, 2, 4);
    ejk_tensor mask = ejk_tensor_3d(truth, EJK_DTYPE_BOOL, 2, 4, 4);
    EXPECT_OK(ejk_segment_ids_to_mask(NULL, &ids, NULL, 1, NULL, NULL, &mask));
    SAME(mask, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, /**/ 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0,
         0, 0, 0, 0, 0);
    /* Inside the library, 0 is a segment like others. */
    mask = ejk_tensor_4d(truth, EJK_DTYPE_BOOL, 2, 1, 4, 4);
    EXPECT_OK(ejk_segment_ids_to_mask(NULL, &ids, NULL, 0, NULL, NULL, &mask));
    SAME(mask, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, /**/ 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1,
         1, 0, 0, 1, 1);
}

static void documented_cross_attention(void **state) {
    (void)state;
    int32_t q_numbers[] = {1, 1, 2, 0}, kv_numbers[] = {1, 2, 2, 0};
    float values[4][4], q_values[4], kv_values[4];
    ejk_tensor q = ejk_tensor_2d(q_numbers, EJK_DTYPE_I32, 1, 4);
    ejk_tensor kv = ejk_tensor_2d(kv_numbers, EJK_DTYPE_I32, 1, 4);
    ejk_tensor mask = ejk_tensor_3d(values, EJK_DTYPE_F32, 1, 4, 4);
    ejk_tensor q_mask = ejk_tensor_2d(q_values, EJK_DTYPE_F32, 1, 4);
    ejk_tensor kv_mask = ejk_tensor_2d(kv_values, EJK_DTYPE_F32, 1, 4);
    EXPECT_OK(ejk_segment_ids_to_mask(NULL, &q, &kv, 1, &q_mask, &kv_mask, &mask));
    SAME(mask, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0);
    SAME(q_mask, 1, 1, 1, 0);
    SAME(kv_mask, 1, 1, 1, 0);
    EXPECT_OK(ejk_segment_ids_to_mask(NULL, &q, &kv, 0, &q_mask, NULL, &mask));
    SAME(mask, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1);
    SAME(q_mask, 1, 1, 1, 1);
}

/* ---- Masks to ids: the examples of the documents ------------------------------------------------------ */

static void documented_numbering(void **state) {
    (void)state;
    int64_t truth[4][4] = {{1, 1, 0, 0}, {1, 1, 1, 0}, {0, 1, 1, 1}, {0, 0, 1, 1}};
    int32_t q_numbers[4], kv_numbers[4];
    ejk_tensor mask = ejk_tensor_3d(truth, EJK_DTYPE_I64, 1, 4, 4);
    ejk_tensor q = ejk_tensor_2d(q_numbers, EJK_DTYPE_I32, 1, 4);
    ejk_tensor kv = ejk_tensor_2d(kv_numbers, EJK_DTYPE_I32, 1, 4);
    EXPECT_OK(ejk_mask_to_segment_ids(NULL, &mask, false, 1, &q, &kv));
    SAME(q, 1, 2, 3, 4);
    SAME(kv, 1, 2, 3, 4);
    EXPECT_OK(ejk_mask_to_segment_ids(NULL, &mask, false, 0, &q, &kv));
    SAME(q, 0, 1, 2, 3);
    SAME(kv, 0, 1, 2, 3);
}

static void numberings_are_independent(void **state) {
    (void)state;
    uint8_t truth[2][2] = {{0, 1}, {1, 0}};
    int32_t q_numbers[2], kv_numbers[2];
    ejk_tensor mask = ejk_tensor_2d(truth, EJK_DTYPE_BOOL, 2, 2);
    ejk_tensor q = ejk_tensor_1d(q_numbers, EJK_DTYPE_I32, 2);
    ejk_tensor kv = ejk_tensor_1d(kv_numbers, EJK_DTYPE_I32, 2);
    EXPECT_OK(ejk_mask_to_segment_ids(NULL, &mask, false, 1, &q, &kv));
    SAME(q, 1, 2);
    SAME(kv, 1, 2);
}

/* Row 2 and column 2 are padding; true in one head only is dropped when heads are merged. */
static void heads(void **state) {
    (void)state;
    uint8_t truth[1][2][3][3] = {
        {{{1, 1, 0}, {1, 1, 0}, {0, 0, 0}}, {{1, 0, 0}, {1, 1, 0}, {0, 0, 0}}}};
    int32_t q_numbers[6], kv_numbers[6];
    ejk_tensor mask = ejk_tensor_4d(truth, EJK_DTYPE_BOOL, 1, 2, 3, 3);
    ejk_tensor q = ejk_tensor_3d(q_numbers, EJK_DTYPE_I32, 1, 2, 3);
    ejk_tensor kv = ejk_tensor_3d(kv_numbers, EJK_DTYPE_I32, 1, 2, 3);
    EXPECT_OK(ejk_mask_to_segment_ids(NULL, &mask, true, 1, &q, &kv));
    SAME(q, 1, 1, -1, 1, 2, -1);
    SAME(kv, 1, 1, -1, 1, 2, -1);
    q = ejk_tensor_2d(q_numbers, EJK_DTYPE_I32, 1, 3);
    kv = ejk_tensor_2d(kv_numbers, EJK_DTYPE_I32, 1, 3);
    EXPECT_OK(ejk_mask_to_segment_ids(NULL, &mask, false, 1, &q, &kv));
    SAME(q, 1, 2, -1);
    SAME(kv, 1, 2, -1);
}

static void empty_axes(void **state) {
    (void)state;
    int32_t numbers[3] = {7, 7, 7};
    ejk_tensor some = ejk_tensor_1d(numbers, EJK_DTYPE_I32, 3);
    ejk_tensor none = ejk_tensor_1d(NULL, EJK_DTYPE_I32, 0);
    ejk_tensor mask = ejk_tensor_2d(NULL, EJK_DTYPE_BOOL, 3, 0);
    EXPECT_OK(ejk_mask_to_segment_ids(NULL, &mask, false, 1, &some, &none));
    SAME(some, -1, -1, -1);
    numbers[1] = 7;
    mask = ejk_tensor_2d(NULL, EJK_DTYPE_BOOL, 0, 3);
    EXPECT_OK(ejk_mask_to_segment_ids(NULL, &mask, false, 1, &none, &some));
    SAME(some, -1, -1, -1);
    /* Over no heads, all heads agree. */
    mask = ejk_tensor_4d(NULL, EJK_DTYPE_BOOL, 1, 0, 3, 3);
    int32_t others[3];
    ejk_tensor q = ejk_tensor_2d(numbers, EJK_DTYPE_I32, 1, 3);
    ejk_tensor kv = ejk_tensor_2d(others, EJK_DTYPE_I32, 1, 3);
    EXPECT_OK(ejk_mask_to_segment_ids(NULL, &mask, false, 1, &q, &kv));
    SAME(q, 1, 1, 1);
    SAME(kv, 1, 1, 1);
    ejk_tensor ids = ejk_tensor_2d(NULL, EJK_DTYPE_I32, 2, 0);
    mask = ejk_tensor_3d(NULL, EJK_DTYPE_BOOL, 2, 0, 0);
    EXPECT_OK(ejk_segment_ids_to_mask(NULL, &ids, NULL, 1, NULL, NULL, &mask));
}

/* ---- Random tensors against the obvious ----------------------------------------------------------------- */

enum { MOST_MASK = 40000, MOST_IDS = 2000 };

static void random_ids(void **state) {
    ejk_threads *threads = *state;
    struct random r = {21};
    for (int round = 0; round < 300; round++) {
        static int64_t q_numbers[MOST_IDS], kv_numbers[MOST_IDS];
        static int8_t got[MOST_MASK];
        int64_t first_id = random_int(&r, 0, 1), batch = random_int(&r, 0, 3);
        bool self = random_chance(&r, 0.3);
        int64_t queries = random_int(&r, 0, 90), keys = self ? queries : random_int(&r, 0, 90);
        int64_t q_shape[] = {batch, queries}, kv_shape[] = {batch, keys};
        int64_t shape[] = {batch, queries, keys};
        for (int64_t i = 0; i < batch * queries; i++) q_numbers[i] = random_int(&r, -2, 3);
        for (int64_t i = 0; i < batch * keys; i++) {
            kv_numbers[i] = self ? q_numbers[i] : random_int(&r, -2, 3);
        }
        struct strided q, kv, q_mask, kv_mask, mask;
        strided_create(&q, &r, RANDOM_OF(&r, index_types), 2, q_shape);
        strided_put(&q, EJK_DTYPE_I64, q_numbers);
        strided_create(&kv, &r, RANDOM_OF(&r, index_types), 2, kv_shape);
        strided_put(&kv, EJK_DTYPE_I64, kv_numbers);
        strided_create(&q_mask, &r, any_type(&r), 2, q_shape);
        strided_create(&kv_mask, &r, any_type(&r), 2, kv_shape);
        strided_create(&mask, &r, any_type(&r), 3, shape);
        EXPECT_OK(ejk_segment_ids_to_mask(random_chance(&r, 0.5) ? threads : NULL, &q.view,
                                          self ? NULL : &kv.view, first_id, &q_mask.view,
                                          &kv_mask.view, &mask.view));
        strided_get(&mask, EJK_DTYPE_I8, got);
        for (int64_t i = 0; i < batch * queries * keys; i++) {
            int64_t q_id = q_numbers[i / keys], b = i / keys / queries;
            int64_t kv_id = kv_numbers[b * keys + i % keys];
            assert_int_equal(got[i], q_id == kv_id && q_id >= first_id);
        }
        strided_get(&q_mask, EJK_DTYPE_I8, got);
        for (int64_t i = 0; i < batch * queries; i++) {
            assert_int_equal(got[i], q_numbers[i] >= first_id);
        }
        strided_get(&kv_mask, EJK_DTYPE_I8, got);
        for (int64_t i = 0; i < batch * keys; i++) {
            assert_int_equal(got[i], kv_numbers[i] >= first_id);
        }
        struct strided *written[] = {&mask, &q_mask, &kv_mask};
        for (int i = 0; i < 3; i++) {
            assert_true(strided_gaps_untouched(written[i]));
            strided_destroy(written[i]);
        }
        strided_destroy(&q);
        strided_destroy(&kv);
    }
}

/* The algorithm of the document: each line with all before it. Lines are `step` apart, elements `inner`. */
static void obvious_numbering(const int8_t *mask, int64_t lines, int64_t step, int64_t length,
                              int64_t inner, int64_t first_id, int64_t *ids) {
    int64_t next = first_id;
    for (int64_t i = 0; i < lines; i++) {
        bool any = false;
        for (int64_t k = 0; k < length; k++) any = any || mask[i * step + k * inner];
        ids[i] = -1;
        for (int64_t j = 0; any && j < i && ids[i] < 0; j++) {
            bool same = true;
            for (int64_t k = 0; k < length && same; k++) {
                same = mask[i * step + k * inner] == mask[j * step + k * inner];
            }
            if (same) ids[i] = ids[j];
        }
        if (any && ids[i] < 0) ids[i] = next++;
    }
}

/* A mask of few patterns: of segments, causal, band, random, or sparse. */
static void draw_mask(struct random *r, int8_t *mask, int64_t queries, int64_t keys) {
    int64_t kind = random_int(r, 0, 4), a = random_int(r, 1, 70), b = random_int(r, 1, 70);
    for (int64_t i = 0; i < queries; i++) {
        for (int64_t j = 0; j < keys; j++) {
            bool seen = kind == 0   ? i / a == j / b
                        : kind == 1 ? j <= i
                        : kind == 2 ? j >= i - a && j <= i + b
                        : kind == 3 ? random_chance(r, 0.5)
                                    : (i * a + j) % b == 0 && random_chance(r, 0.9);
            mask[i * keys + j] = seen;
        }
    }
}

struct case_ {
    int64_t shape[4], q_shape[3], kv_shape[3], matrices, heads; /* heads: those merged */
    int32_t rank, ids_rank;
    bool per_head;
};

static struct case_ draw_case(struct random *r) {
    struct case_ c = {.rank = (int32_t)random_int(r, 2, 4), .per_head = random_chance(r, 0.5)};
    int64_t batch = random_int(r, 0, 3), count = random_int(r, 1, 3);
    int64_t queries = random_int(r, 0, 90), keys = random_int(r, 0, 90);
    if (random_chance(r, 0.1)) queries = random_int(r, 0, 200);
    int64_t all[] = {batch, count, queries, keys};
    if (c.rank == 3) all[1] = batch;
    for (int32_t i = 0; i < c.rank; i++) c.shape[i] = all[4 - c.rank + i];
    c.heads = c.rank == 4 && !c.per_head ? count : 1;
    c.ids_rank = c.rank == 4 && !c.per_head ? 2 : c.rank - 1;
    c.matrices = 1;
    for (int32_t i = 0; i < c.ids_rank - 1; i++) {
        c.q_shape[i] = c.kv_shape[i] = c.shape[i];
        c.matrices *= c.shape[i];
    }
    c.q_shape[c.ids_rank - 1] = queries;
    c.kv_shape[c.ids_rank - 1] = keys;
    return c;
}

static void check_case(ejk_threads *threads, struct random *r, const struct case_ *c) {
    static int8_t truth[9 * 200 * 90], merged[200 * 90];
    static int64_t got_q[9 * 200], got_kv[9 * 200], wanted[200];
    int64_t queries = c->shape[c->rank - 2], keys = c->shape[c->rank - 1], size = queries * keys;
    int64_t first_id = random_int(r, 0, 1);
    for (int64_t m = 0; m < c->matrices * c->heads; m++)
        draw_mask(r, truth + m * size, queries, keys);
    struct strided mask, q, kv;
    strided_create(&mask, r, any_type(r), c->rank, c->shape);
    strided_put(&mask, EJK_DTYPE_I8, truth);
    strided_create(&q, r, RANDOM_OF(r, index_types), c->ids_rank, c->q_shape);
    strided_create(&kv, r, RANDOM_OF(r, index_types), c->ids_rank, c->kv_shape);
    EXPECT_OK(
        ejk_mask_to_segment_ids(threads, &mask.view, c->per_head, first_id, &q.view, &kv.view));
    strided_get(&q, EJK_DTYPE_I64, got_q);
    strided_get(&kv, EJK_DTYPE_I64, got_kv);
    for (int64_t m = 0; m < c->matrices; m++) {
        for (int64_t i = 0; i < size; i++) {
            merged[i] = 1;
            for (int64_t h = 0; h < c->heads; h++)
                merged[i] &= truth[(m * c->heads + h) * size + i];
        }
        obvious_numbering(merged, queries, keys, keys, 1, first_id, wanted);
        for (int64_t i = 0; i < queries; i++) assert_int_equal(got_q[m * queries + i], wanted[i]);
        obvious_numbering(merged, keys, 1, queries, keys, first_id, wanted);
        for (int64_t k = 0; k < keys; k++) assert_int_equal(got_kv[m * keys + k], wanted[k]);
    }
    assert_true(strided_gaps_untouched(&q) && strided_gaps_untouched(&kv));
    strided_destroy(&q);
    strided_destroy(&kv);
    strided_destroy(&mask);
}

static void random_numberings(void **state) {
    ejk_threads *threads = *state;
    struct random r = {22};
    for (int round = 0; round < 500; round++) {
        struct case_ c = draw_case(&r);
        check_case(random_chance(&r, 0.7) ? threads : NULL, &r, &c);
    }
}

/* One mask large enough for its steps to be spread over threads: lower triangle, some rows and columns empty. */
static void large_on_threads(void **state) {
    ejk_threads *threads = *state;
    enum { N = 1500 };
    uint8_t *truth = malloc((size_t)N * N);
    int32_t *ids = malloc(2 * N * sizeof *ids);
    assert_true(truth != NULL && ids != NULL);
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++) truth[i * N + j] = j <= i && i % 7 != 3 && j % 5 != 2;
    }
    ejk_tensor mask = ejk_tensor_2d(truth, EJK_DTYPE_BOOL, N, N);
    ejk_tensor q = ejk_tensor_1d(ids, EJK_DTYPE_I32, N),
               kv = ejk_tensor_1d(ids + N, EJK_DTYPE_I32, N);
    EXPECT_OK(ejk_mask_to_segment_ids(threads, &mask, false, 0, &q, &kv));
    /* A row is known by its last true column, a column by its first true row. */
    int next_q = 0, next_kv = 0, last_column = -1, last_row = -1;
    for (int i = 0; i < N; i++) {
        int column = i - (i % 5 == 2), row = i + (i % 7 == 3);
        if (i % 7 != 3 && column != last_column) next_q++;
        if (i % 7 != 3) last_column = column;
        assert_int_equal(ids[i], i % 7 == 3 ? -1 : next_q - 1);
        if (row >= N || i % 5 == 2) {
            assert_int_equal(ids[N + i], -1);
            continue;
        }
        if (row != last_row) next_kv++;
        last_row = row;
        assert_int_equal(ids[N + i], next_kv - 1);
    }
    free(truth);
    free(ids);
}

/* ---- Parts ------------------------------------------------------------------------------------------------ */

/* Rows whose hashes are all the same are told apart by their bits. */
/*
 * Patterns that many rows and columns share, over several tasks and words, the mask's rows apart from each
 * other and its last element at the end of what may be read: the same ids on any number of threads.
 */
static void shared_patterns_on_threads(void **state) {
    struct random r = {24};
    for (int round = 0; round < 12; round++) {
        int64_t queries = random_int(&r, 150, 700), keys = random_int(&r, 60, 700);
        int64_t gap = random_int(&r, 0, 9), stride = keys + gap, kinds = random_int(&r, 1, 40);
        size_t size = (size_t)((queries - 1) * stride + keys);
        struct guarded memory;
        guarded_create(&memory, size, round % 2 ? GUARDED_START : GUARDED_END, 0);
        int8_t *plain = malloc((size_t)(queries * keys));
        int64_t *ids = malloc((size_t)(queries + keys) * 2 * sizeof *ids);
        assert_true(plain != NULL && ids != NULL);
        for (int64_t i = 0; i < queries; i++) {
            for (int64_t j = 0; j < keys; j++) {
                uint64_t mixed = (uint64_t)(i % kinds * 41 + j * j % kinds) * 0x9e3779b97f4a7c15u;
                plain[i * keys + j] = i % kinds != 3 && mixed >> 61 == 0;
                memory.data[i * stride + j] = (uint8_t)(plain[i * keys + j] ? 1 + j % 255 : 0);
            }
        }
        int64_t *wanted = ids + queries + keys;
        obvious_numbering(plain, queries, keys, keys, 1, 1, wanted);
        obvious_numbering(plain, keys, 1, queries, keys, 1, wanted + queries);
        ejk_tensor mask = ejk_tensor_2d(memory.data, EJK_DTYPE_BOOL, queries, keys);
        mask.strides[0] = stride;
        ejk_tensor q = ejk_tensor_1d(ids, EJK_DTYPE_I64, queries);
        ejk_tensor kv = ejk_tensor_1d(ids + queries, EJK_DTYPE_I64, keys);
        for (int i = 0; i < 2; i++) {
            EXPECT_OK(ejk_mask_to_segment_ids(i ? *state : NULL, &mask, false, 1, &q, &kv));
            assert_memory_equal(ids, wanted, (size_t)(queries + keys) * sizeof *ids);
        }
        free(plain);
        free(ids);
        guarded_destroy(&memory);
    }
}

static void collisions_are_verified(void **state) {
    (void)state;
    uint64_t words[6][2] = {{1, 2}, {1, 3}, {0, 0}, {1, 2}, {9, 2}, {1, 3}}, hashes[6];
    int64_t ids[6], representatives[6], table[16];
    for (int i = 0; i < 6; i++) hashes[i] = i == 2 ? 0 : 77;
    assert_int_equal(ejki_pattern_slots(6), 16);
    ejki_bit_rows rows = {words[0], 6, 2, 2};
    ejki_patterns patterns = {hashes, ids, representatives, table};
    assert_int_equal(ejki_number_patterns(&rows, 1, &patterns), 3);
    const int64_t wanted[] = {1, 2, -1, 1, 3, 2}, firsts[] = {0, 1, 4};
    assert_memory_equal(ids, wanted, sizeof wanted);
    assert_memory_equal(representatives, firsts, sizeof firsts);
}

static void bits_are_turned(void **state) {
    (void)state;
    struct random r = {23};
    uint64_t block[64], turned[64];
    for (int i = 0; i < 64; i++) turned[i] = block[i] = random_bits(&r);
    ejki_transpose_bits(turned);
    for (int i = 0; i < 64; i++) {
        for (int j = 0; j < 64; j++) assert_true((block[i] >> j & 1) == (turned[j] >> i & 1));
    }
}

/* ---- Errors ------------------------------------------------------------------------------------------------ */

static void wrong_masks(void **state) {
    (void)state;
    int32_t numbers[8] = {7, 7, 7, 7, 7, 7, 7, 7};
    int16_t narrow[4];
    uint8_t truth[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    ejk_tensor mask = ejk_tensor_2d(truth, EJK_DTYPE_BOOL, 2, 4);
    ejk_tensor q = ejk_tensor_1d(numbers, EJK_DTYPE_I32, 2);
    ejk_tensor kv = ejk_tensor_1d(numbers + 2, EJK_DTYPE_I32, 4);
    EXPECT_FAIL(INVALID_ARGUMENT, "first_id is 2, expected 0 or 1",
                ejk_mask_to_segment_ids(NULL, &mask, false, 2, &q, &kv));
    EXPECT_FAIL(INVALID_SHAPE, "q_ids_out has length 4 on axis 0, expected 2",
                ejk_mask_to_segment_ids(NULL, &mask, false, 1, &kv, &q));
    ejk_tensor bad = ejk_tensor_1d(numbers + 1, EJK_DTYPE_I32, 4);
    EXPECT_FAIL(INVALID_LAYOUT, "kv_ids_out at",
                ejk_mask_to_segment_ids(NULL, &mask, false, 1, &q, &bad));
    bad = ejk_tensor_1d(truth, EJK_DTYPE_I32, 2);
    EXPECT_FAIL(INVALID_LAYOUT, "mask at",
                ejk_mask_to_segment_ids(NULL, &mask, false, 1, &bad, &kv));
    bad = ejk_tensor_1d(narrow, EJK_DTYPE_I16, 4);
    EXPECT_FAIL(INVALID_DTYPE, "kv_ids_out has element type int16",
                ejk_mask_to_segment_ids(NULL, &mask, false, 1, &q, &bad));
    bad = ejk_tensor_1d(truth, EJK_DTYPE_BOOL, 8);
    EXPECT_FAIL(INVALID_SHAPE, "mask has rank 1",
                ejk_mask_to_segment_ids(NULL, &bad, false, 1, &q, &kv));
    bad = ejk_tensor_contiguous(truth, EJK_DTYPE_BOOL, 5, (const int64_t[]){1, 1, 1, 2, 4});
    EXPECT_FAIL(INVALID_SHAPE, "mask has rank 5",
                ejk_mask_to_segment_ids(NULL, &bad, true, 1, &q, &kv));
    bad = ejk_tensor_4d(truth, EJK_DTYPE_BOOL, 1, 1, 2, 4);
    EXPECT_FAIL(INVALID_SHAPE, "q_ids_out has rank 1, expected 3",
                ejk_mask_to_segment_ids(NULL, &bad, true, 1, &q, &kv));
    EXPECT_FAIL(INVALID_SHAPE, "q_ids_out has rank 1, expected 2",
                ejk_mask_to_segment_ids(NULL, &bad, false, 1, &q, &kv));
    for (int i = 0; i < 8; i++) assert_int_equal(numbers[i], 7);
}

static void wrong_ids(void **state) {
    (void)state;
    int32_t numbers[4] = {1, 1, 2, 2};
    float real[4] = {1, 1, 2, 2};
    uint8_t truth[16] = {9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}, side[4] = {9, 9, 9, 9};
    ejk_tensor ids = ejk_tensor_2d(numbers, EJK_DTYPE_I32, 1, 4);
    ejk_tensor mask = ejk_tensor_3d(truth, EJK_DTYPE_BOOL, 1, 4, 4);
    ejk_tensor q_mask = ejk_tensor_2d(side, EJK_DTYPE_BOOL, 1, 4);
    EXPECT_FAIL(INVALID_ARGUMENT, "first_id is -1",
                ejk_segment_ids_to_mask(NULL, &ids, NULL, -1, NULL, NULL, &mask));
    EXPECT_FAIL(INVALID_ARGUMENT, "mask_out is NULL",
                ejk_segment_ids_to_mask(NULL, &ids, NULL, 1, &q_mask, NULL, NULL));
    ejk_tensor bad = ejk_tensor_2d(real, EJK_DTYPE_F32, 1, 4);
    EXPECT_FAIL(INVALID_DTYPE, "q_ids has element type float32, expected int32 or int64",
                ejk_segment_ids_to_mask(NULL, &bad, NULL, 1, NULL, NULL, &mask));
    bad = ejk_tensor_2d(numbers, EJK_DTYPE_I32, 2, 2);
    EXPECT_FAIL(INVALID_SHAPE, "kv_ids has a batch of 2, expected 1",
                ejk_segment_ids_to_mask(NULL, &ids, &bad, 1, NULL, NULL, &mask));
    bad = ejk_tensor_4d(truth, EJK_DTYPE_BOOL, 1, 2, 4, 2);
    EXPECT_FAIL(INVALID_SHAPE, "mask_out has length 2 on axis 1, expected 1",
                ejk_segment_ids_to_mask(NULL, &ids, NULL, 1, NULL, NULL, &bad));
    bad = ejk_tensor_2d(truth + 3, EJK_DTYPE_BOOL, 1, 4);
    EXPECT_FAIL(INVALID_LAYOUT, "q_mask_out at",
                ejk_segment_ids_to_mask(NULL, &ids, NULL, 1, &bad, NULL, &mask));
    EXPECT_FAIL(INVALID_LAYOUT, "kv_mask_out at",
                ejk_segment_ids_to_mask(NULL, &ids, NULL, 1, &q_mask, &q_mask, &mask));
    bad = mask;
    bad.strides[1] = 3;
    EXPECT_FAIL(INVALID_LAYOUT, "mask_out has elements that overlap",
                ejk_segment_ids_to_mask(NULL, &ids, NULL, 1, NULL, NULL, &bad));
    for (int i = 0; i < 16; i++) assert_true(truth[i] == 9 && side[i % 4] == 9);
}

static int start_threads(void **state) {
    ejk_threads *threads;
    threads = test_threads_create(3);
    *state = threads;
    return 0;
}

static int end_threads(void **state) {
    ejk_threads_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documented_self_attention),
        cmocka_unit_test(documented_cross_attention),
        cmocka_unit_test(documented_numbering),
        cmocka_unit_test(numberings_are_independent),
        cmocka_unit_test(heads),
        cmocka_unit_test(empty_axes),
        cmocka_unit_test(random_ids),
        cmocka_unit_test(random_numberings),
        cmocka_unit_test(large_on_threads),
        cmocka_unit_test(shared_patterns_on_threads),
        cmocka_unit_test(collisions_are_verified),
        cmocka_unit_test(bits_are_turned),
        cmocka_unit_test(wrong_masks),
        cmocka_unit_test(wrong_ids),
    };
    return cmocka_run_group_tests(tests, start_threads, end_threads);
}
