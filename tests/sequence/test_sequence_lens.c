/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths, positions and chunks of packed sequences. */
#include "support/expect.h"
#include "support/random.h"
#include "support/strided.h"
#include "support/test_threads.h"

#include <ejkernel/sequence.h>
#include <stdlib.h>

enum { MOST = 600 };

static ejk_tensor of_i32(int32_t *numbers, int64_t count) {
    return ejk_tensor_1d(numbers, EJK_DTYPE_I32, count);
}
#define OF(array) of_i32(array, (int64_t)(sizeof(array) / sizeof((array)[0])))
#define SAME(got, ...)                                                                             \
    do {                                                                                           \
        const int32_t wanted_[] = {__VA_ARGS__};                                                   \
        assert_memory_equal(got, wanted_, sizeof wanted_);                                         \
    } while (0)

/* ---- The examples of the documents ------------------------------------------------------------------- */

static void documented_lens(void **state) {
    (void)state;
    int32_t numbers[] = {0, 5, 12, 18}, lens[3];
    ejk_tensor cu = OF(numbers), out = OF(lens);
    EXPECT_OK(ejk_prepare_lens(&cu, &out));
    SAME(lens, 5, 7, 6);
}

static void documented_masks(void **state) {
    (void)state;
    int64_t numbers[2][4] = {{1, 1, 1, 0}, {1, 1, 0, 0}};
    int32_t lens[2], ends[3];
    ejk_tensor mask = ejk_tensor_2d(numbers, EJK_DTYPE_I64, 2, 4), out = OF(lens);
    EXPECT_OK(ejk_prepare_lens_from_mask(NULL, &mask, &out));
    SAME(lens, 3, 2);
    out = OF(ends);
    EXPECT_OK(ejk_prepare_cu_seqlens_from_mask(NULL, &mask, &out));
    SAME(ends, 0, 3, 5);
    int64_t wide[3];
    out = ejk_tensor_1d(wide, EJK_DTYPE_I64, 3);
    EXPECT_OK(ejk_prepare_cu_seqlens_from_mask(NULL, &mask, &out));
    assert_true(wide[0] == 0 && wide[1] == 3 && wide[2] == 5);
}

static void documented_packing(void **state) {
    (void)state;
    int32_t numbers[] = {0, 3, 4, 8, 10}, tokens[10], pairs[10][2], chunks[6][2], offsets[5];
    ejk_tensor cu = OF(numbers), out = OF(tokens);
    EXPECT_OK(ejk_prepare_position_ids(NULL, &cu, &out));
    SAME(tokens, 0, 1, 2, 0, 0, 1, 2, 3, 0, 1);
    EXPECT_OK(ejk_prepare_sequence_ids(NULL, &cu, &out));
    SAME(tokens, 0, 0, 0, 1, 2, 2, 2, 2, 3, 3);
    out = ejk_tensor_2d(pairs, EJK_DTYPE_I32, 10, 2);
    EXPECT_OK(ejk_prepare_token_indices(NULL, &cu, &out));
    SAME(pairs, 0, 0, 0, 1, 0, 2, 1, 0, 2, 0, 2, 1, 2, 2, 2, 3, 3, 0, 3, 1);
    int64_t count = -1;
    EXPECT_OK(ejk_prepare_chunk_count(&cu, 2, &count));
    assert_int_equal(count, 6);
    out = ejk_tensor_2d(chunks, EJK_DTYPE_I32, 6, 2);
    EXPECT_OK(ejk_prepare_chunk_indices(NULL, &cu, 2, &out));
    SAME(chunks, 0, 0, 0, 1, 1, 0, 2, 0, 2, 1, 3, 0);
    out = OF(offsets);
    EXPECT_OK(ejk_prepare_chunk_offsets(&cu, 2, &out));
    SAME(offsets, 0, 2, 3, 5, 6);
}

/* Where the earlier system numbered restarts: an empty sequence keeps its number. */
static void empty_sequences_keep_their_number(void **state) {
    (void)state;
    int32_t numbers[] = {0, 3, 3, 5}, tokens[5];
    ejk_tensor cu = OF(numbers), out = OF(tokens);
    EXPECT_OK(ejk_prepare_sequence_ids(NULL, &cu, &out));
    SAME(tokens, 0, 0, 0, 2, 2);
}

static void nothing_at_all(void **state) {
    (void)state;
    int32_t zero[] = {0}, offset[] = {-7};
    ejk_tensor cu = OF(zero), none = of_i32(NULL, 0), out = OF(offset);
    EXPECT_OK(ejk_prepare_lens(&cu, &none));
    EXPECT_OK(ejk_prepare_position_ids(NULL, &cu, &none));
    EXPECT_OK(ejk_prepare_chunk_offsets(&cu, 4, &out));
    assert_int_equal(offset[0], 0);
    ejk_tensor pairs = ejk_tensor_2d(NULL, EJK_DTYPE_I32, 0, 2);
    EXPECT_OK(ejk_prepare_token_indices(NULL, &cu, &pairs));
    ejk_tensor mask = ejk_tensor_2d(NULL, EJK_DTYPE_BOOL, 0, 5);
    offset[0] = -7;
    EXPECT_OK(ejk_prepare_cu_seqlens_from_mask(NULL, &mask, &out));
    assert_int_equal(offset[0], 0);
    mask = ejk_tensor_2d(NULL, EJK_DTYPE_BOOL, 1, 0);
    offset[0] = -7;
    EXPECT_OK(ejk_prepare_lens_from_mask(NULL, &mask, &out));
    assert_int_equal(offset[0], 0);
}

/* ---- Random lengths and strides ----------------------------------------------------------------------- */

static const ejk_dtype index_types[] = {EJK_DTYPE_I32, EJK_DTYPE_I64};

struct packing {
    int64_t sequences, ends[20], chunk;
    struct strided cu;
};

static void make_packing(struct packing *p, struct random *r) {
    p->sequences = random_int(r, 0, 12);
    p->chunk = random_int(r, 1, 9);
    p->ends[0] = 0;
    for (int64_t n = 0; n < p->sequences; n++) {
        int64_t length = random_chance(r, 0.3) ? 0 : random_int(r, 1, 40);
        p->ends[n + 1] = p->ends[n] + length;
    }
    int64_t count = p->sequences + 1;
    strided_create(&p->cu, r, RANDOM_OF(r, index_types), 1, &count);
    strided_put(&p->cu, EJK_DTYPE_I64, p->ends);
}

/* What the calls on `out` gave, against `wanted`. */
static void expect_numbers(struct strided *out, const int64_t *wanted) {
    int64_t got[2 * MOST];
    strided_get(out, EJK_DTYPE_I64, got);
    assert_memory_equal(got, wanted, (size_t)ejk_tensor_count(&out->view) * sizeof *got);
    assert_true(strided_gaps_untouched(out));
    strided_destroy(out);
}

/* The obvious: for every sequence, for every piece of `size` tokens. */
static int64_t list_pieces(const struct packing *p, int64_t size, int64_t (*rows)[2]) {
    int64_t count = 0;
    for (int64_t n = 0; n < p->sequences; n++) {
        for (int64_t t = p->ends[n], i = 0; t < p->ends[n + 1]; t += size, i++) {
            rows[count][0] = n;
            rows[count++][1] = i;
        }
    }
    return count;
}

static void check_listings(const struct packing *p, struct random *r) {
    int64_t rows[MOST][2], column[MOST], count = list_pieces(p, 1, rows), shape[] = {count, 2};
    struct strided out;
    strided_create(&out, r, RANDOM_OF(r, index_types), 2, shape);
    EXPECT_OK(ejk_prepare_token_indices(NULL, &p->cu.view, &out.view));
    expect_numbers(&out, rows[0]);
    for (int which = 0; which < 2; which++) {
        for (int64_t i = 0; i < count; i++) column[i] = rows[i][which];
        strided_create(&out, r, RANDOM_OF(r, index_types), 1, &count);
        EXPECT_OK(which == 0 ? ejk_prepare_sequence_ids(NULL, &p->cu.view, &out.view)
                             : ejk_prepare_position_ids(NULL, &p->cu.view, &out.view));
        expect_numbers(&out, column);
    }
    int64_t chunks;
    shape[0] = list_pieces(p, p->chunk, rows);
    EXPECT_OK(ejk_prepare_chunk_count(&p->cu.view, p->chunk, &chunks));
    assert_int_equal(chunks, shape[0]);
    strided_create(&out, r, RANDOM_OF(r, index_types), 2, shape);
    EXPECT_OK(ejk_prepare_chunk_indices(NULL, &p->cu.view, p->chunk, &out.view));
    expect_numbers(&out, rows[0]);
}

static void check_lengths(const struct packing *p, struct random *r) {
    int64_t lens[20], offsets[20] = {0}, count = p->sequences + 1;
    for (int64_t n = 0; n < p->sequences; n++) {
        lens[n] = p->ends[n + 1] - p->ends[n];
        offsets[n + 1] = offsets[n] + (lens[n] + p->chunk - 1) / p->chunk;
    }
    struct strided out;
    strided_create(&out, r, RANDOM_OF(r, index_types), 1, &p->sequences);
    EXPECT_OK(ejk_prepare_lens(&p->cu.view, &out.view));
    expect_numbers(&out, lens);
    strided_create(&out, r, RANDOM_OF(r, index_types), 1, &count);
    EXPECT_OK(ejk_prepare_chunk_offsets(&p->cu.view, p->chunk, &out.view));
    expect_numbers(&out, offsets);
}

static void random_packings(void **state) {
    (void)state;
    struct random r = {11};
    for (int round = 0; round < 400; round++) {
        struct packing p;
        make_packing(&p, &r);
        check_listings(&p, &r);
        check_lengths(&p, &r);
        strided_destroy(&p.cu);
    }
}

/* Enough tokens for many tasks, that end in the middle of sequences and of runs of empty ones. */
static void large_packings_by_threads(void **state) {
    (void)state;
    enum { SEQUENCES = 4000, TOKENS = 150000 };
    static int64_t ends[SEQUENCES + 1];
    struct random r = {14};
    for (int64_t n = 0; n < SEQUENCES; n++)
        ends[n + 1] = ends[n] + (random_chance(&r, 0.4) ? 0 : random_int(&r, 1, 80));
    ends[SEQUENCES] = TOKENS;
    assert_true(ends[SEQUENCES - 1] < TOKENS);
    ejk_tensor cu = ejk_tensor_1d(ends, EJK_DTYPE_I64, SEQUENCES + 1);
    int64_t *alone = malloc(2 * TOKENS * sizeof *alone),
            *shared = malloc(2 * TOKENS * sizeof *shared);
    ejk_threads *threads;
    threads = test_threads_create(4);
    ejk_tensor wanted = ejk_tensor_2d(alone, EJK_DTYPE_I64, TOKENS, 2);
    ejk_tensor got = ejk_tensor_2d(shared, EJK_DTYPE_I64, TOKENS, 2);
    EXPECT_OK(ejk_prepare_token_indices(NULL, &cu, &wanted));
    EXPECT_OK(ejk_prepare_token_indices(threads, &cu, &got));
    assert_memory_equal(shared, alone, 2 * TOKENS * sizeof *alone);
    for (int64_t n = 0, at = 0; n < SEQUENCES; n++)
        for (int64_t i = 0; i < ends[n + 1] - ends[n]; i++, at++)
            assert_true(alone[2 * at] == n && alone[2 * at + 1] == i);
    got = ejk_tensor_1d(shared, EJK_DTYPE_I64, TOKENS);
    EXPECT_OK(ejk_prepare_sequence_ids(threads, &cu, &got));
    for (int64_t i = 0; i < TOKENS; i++) assert_int_equal(shared[i], alone[2 * i]);
    EXPECT_OK(ejk_prepare_position_ids(threads, &cu, &got));
    for (int64_t i = 0; i < TOKENS; i++) assert_int_equal(shared[i], alone[2 * i + 1]);
    int64_t chunks;
    EXPECT_OK(ejk_prepare_chunk_count(&cu, 2, &chunks));
    assert_true(chunks > 2 * 64 * 512 && chunks < TOKENS);
    wanted.shape[0] = chunks;
    got = ejk_tensor_2d(shared, EJK_DTYPE_I64, chunks, 2);
    EXPECT_OK(ejk_prepare_chunk_indices(NULL, &cu, 2, &wanted));
    EXPECT_OK(ejk_prepare_chunk_indices(threads, &cu, 2, &got));
    assert_memory_equal(shared, alone, (size_t)chunks * 2 * sizeof *alone);
    ejk_threads_destroy(threads);
    free(alone);
    free(shared);
}

static void random_masks(void **state) {
    (void)state;
    struct random r = {12};
    ejk_threads *threads;
    threads = test_threads_create(3);
    for (int round = 0; round < 300; round++) {
        static int8_t truth[70 * MOST];
        int64_t shape[] = {random_int(&r, 0, 70), random_int(&r, 0, MOST)};
        int64_t lens[70] = {0}, ends[71] = {0}, count = shape[0] + 1;
        for (int64_t b = 0; b < shape[0]; b++) {
            for (int64_t s = 0; s < shape[1]; s++) {
                truth[b * shape[1] + s] = random_chance(&r, 0.5);
                lens[b] += truth[b * shape[1] + s];
            }
            ends[b + 1] = ends[b] + lens[b];
        }
        struct strided mask, out;
        strided_create(&mask, &r, (ejk_dtype)random_int(&r, EJK_DTYPE_F64, EJK_DTYPE_BOOL), 2,
                       shape);
        strided_put(&mask, EJK_DTYPE_I8, truth);
        strided_create(&out, &r, RANDOM_OF(&r, index_types), 1, shape);
        EXPECT_OK(ejk_prepare_lens_from_mask(threads, &mask.view, &out.view));
        expect_numbers(&out, lens);
        strided_create(&out, &r, RANDOM_OF(&r, index_types), 1, &count);
        EXPECT_OK(ejk_prepare_cu_seqlens_from_mask(threads, &mask.view, &out.view));
        expect_numbers(&out, ends);
        strided_destroy(&mask);
    }
    ejk_threads_destroy(threads);
}

/* Any byte but 0 is true, in a row that ends anywhere. */
static void every_byte_counts(void **state) {
    (void)state;
    uint8_t bytes[256];
    int32_t length;
    for (int i = 0; i < 256; i++) bytes[i] = (uint8_t)i;
    ejk_tensor out = of_i32(&length, 1);
    for (int64_t size = 1; size <= 256; size++) {
        ejk_tensor mask = ejk_tensor_2d(bytes, EJK_DTYPE_BOOL, 1, size);
        EXPECT_OK(ejk_prepare_lens_from_mask(NULL, &mask, &out));
        assert_int_equal(length, size - 1);
    }
}

/* ---- Errors -------------------------------------------------------------------------------------------- */

static void hostile_lengths(void **state) {
    (void)state;
    int32_t late[] = {1, 5}, falling[] = {0, 5, 3}, negative[] = {0, -1}, lens[2] = {-7, -7};
    ejk_tensor cu = OF(late), one = of_i32(lens, 1), two = OF(lens);
    EXPECT_FAIL(INVALID_ARGUMENT, "cu_seqlens[0] is 1, expected 0", ejk_prepare_lens(&cu, &one));
    cu = OF(falling);
    EXPECT_FAIL(INVALID_ARGUMENT, "cu_seqlens[2] is 3, less than 5", ejk_prepare_lens(&cu, &two));
    EXPECT_FAIL(INVALID_ARGUMENT, "cu_seqlens[2] is 3", ejk_prepare_position_ids(NULL, &cu, &two));
    EXPECT_FAIL(INVALID_ARGUMENT, "cu_seqlens[2] is 3", ejk_prepare_chunk_offsets(&cu, 2, &two));
    cu = OF(negative);
    EXPECT_FAIL(INVALID_ARGUMENT, "cu_seqlens[1] is -1", ejk_prepare_lens(&cu, &one));
    int64_t ends[] = {0, INT64_C(1) << 40}, count = -7;
    cu = ejk_tensor_1d(ends, EJK_DTYPE_I64, 2);
    EXPECT_FAIL(OVERFLOW, "lens_out is int32 but has to hold 1099511627776",
                ejk_prepare_lens(&cu, &one));
    EXPECT_FAIL(INVALID_ARGUMENT, "chunk_size is 0", ejk_prepare_chunk_count(&cu, 0, &count));
    EXPECT_FAIL(INVALID_ARGUMENT, "chunk_size is -1",
                ejk_prepare_chunk_indices(NULL, &cu, -1, &one));
    EXPECT_FAIL(INVALID_ARGUMENT, "chunk_size is 0", ejk_prepare_chunk_offsets(&cu, 0, &two));
    EXPECT_FAIL(INVALID_ARGUMENT, "count_out is NULL", ejk_prepare_chunk_count(&cu, 1, NULL));
    assert_int_equal(count, -7);
    SAME(lens, -7, -7);
    ends[1] = INT64_MAX;
    EXPECT_OK(ejk_prepare_chunk_count(&cu, 2, &count));
    assert_true(count == INT64_C(1) << 62);
}

static void wrong_tensors(void **state) {
    (void)state;
    int32_t numbers[] = {0, 1, 2}, lens[4] = {-7, -7, -7, -7};
    float real[3] = {0};
    uint8_t truth[2] = {1, 1};
    ejk_tensor cu = OF(numbers), out = of_i32(lens, 2), bad = ejk_tensor_1d(real, EJK_DTYPE_F32, 3);
    EXPECT_FAIL(INVALID_DTYPE, "cu_seqlens has element type float32", ejk_prepare_lens(&bad, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "cu_seqlens is NULL", ejk_prepare_lens(NULL, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "lens_out is NULL", ejk_prepare_lens(&cu, NULL));
    bad = of_i32(lens, 3);
    EXPECT_FAIL(INVALID_SHAPE, "lens_out has length 3 on axis 0, expected 2",
                ejk_prepare_lens(&cu, &bad));
    EXPECT_FAIL(INVALID_SHAPE, "indices_out has rank 1",
                ejk_prepare_token_indices(NULL, &cu, &out));
    bad = ejk_tensor_2d(numbers, EJK_DTYPE_I32, 1, 3);
    EXPECT_FAIL(INVALID_SHAPE, "cu_seqlens has rank 2", ejk_prepare_lens(&bad, &out));
    bad = of_i32(numbers, 0);
    EXPECT_FAIL(INVALID_SHAPE, "0 elements", ejk_prepare_lens(&bad, &out));
    bad = of_i32(numbers + 1, 2);
    EXPECT_FAIL(INVALID_LAYOUT, "lens_out at", ejk_prepare_lens(&cu, &bad));
    bad = out;
    bad.strides[0] = 0;
    EXPECT_FAIL(INVALID_LAYOUT, "overlap or interleave", ejk_prepare_lens(&cu, &bad));
    bad = out;
    bad.device_type = EJK_DEVICE_CUDA;
    EXPECT_FAIL(UNAVAILABLE, "lens_out lies on", ejk_prepare_lens(&cu, &bad));
    bad = ejk_tensor_1d(truth, EJK_DTYPE_BOOL, 2);
    EXPECT_FAIL(INVALID_SHAPE, "mask has rank 1", ejk_prepare_lens_from_mask(NULL, &bad, &out));
    bad = ejk_tensor_2d(truth, EJK_DTYPE_BOOL, 2, 1);
    EXPECT_FAIL(INVALID_SHAPE, "cu_seqlens_out has length 2 on axis 0, expected 3",
                ejk_prepare_cu_seqlens_from_mask(NULL, &bad, &out));
    SAME(lens, -7, -7, -7, -7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documented_lens),
        cmocka_unit_test(documented_masks),
        cmocka_unit_test(documented_packing),
        cmocka_unit_test(empty_sequences_keep_their_number),
        cmocka_unit_test(nothing_at_all),
        cmocka_unit_test(random_packings),
        cmocka_unit_test(large_packings_by_threads),
        cmocka_unit_test(random_masks),
        cmocka_unit_test(every_byte_counts),
        cmocka_unit_test(hostile_lengths),
        cmocka_unit_test(wrong_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
