/* SPDX-License-Identifier: Apache-2.0 */
/* Masks as objects: their elements by their formulas, equality and hashes, errors, references. */
#include "support/random.h"
#include "support/splash_masks.h"

#include <pthread.h>

static ejk_splash_mask *const untouched = (ejk_splash_mask *)8;

#define EXPECT_REASON(reason) assert_int_equal(ejk_splash_last_reason(), EJK_SPLASH_REASON_##reason)

/* Refused with status, reason and words; out stays as it was. */
#define EXPECT_REFUSED(status, reason, words, call)                                                \
    do {                                                                                           \
        ejk_splash_mask *out = untouched;                                                          \
        EXPECT_FAIL(status, words, call);                                                          \
        EXPECT_REASON(reason);                                                                     \
        assert_ptr_equal(out, untouched);                                                          \
    } while (0)

static bool is_even(void *user, int64_t q, int64_t kv) {
    return (q + kv + *(const int *)user) % 2 == 0;
}

/* The formulas as they are written in the header, with no thought of speed. */
static void elements_follow_their_formulas(void **state) {
    (void)state;
    struct random r = {5};
    for (int round = 0; round < 2000; round++) {
        int32_t order[20];
        int64_t shape[2] = {random_int(&r, 1, 20), random_int(&r, 1, 20)};
        int64_t o = random_int(&r, -9, 9), left = random_int(&r, -3, 6), s = random_int(&r, 1, 9);
        int64_t right = random_int(&r, -3, 6);
        int even = 1;
        ejk_computable_mask_options options = {.q_sequence = order, .q_sequence_length = shape[0]};
        for (int64_t i = 0; i < shape[0]; i++) order[i] = (int32_t)random_int(&r, 0, 25);
        ejk_splash_mask *masks[4];
        EXPECT_OK(ejk_causal_mask_create(shape, o, &options, &masks[0]));
        EXPECT_OK(ejk_local_mask_create(shape, ejk_window_of(left, right), o, &options, &masks[1]));
        EXPECT_OK(ejk_chunked_causal_mask_create(shape, s, &options, &masks[2]));
        EXPECT_OK(ejk_function_mask_create(shape, is_even, &even, &options, &masks[3]));
        for (int m = 0; m < 4; m++) {
            uint8_t *bytes = splash_elements(masks[m]);
            for (int64_t t = 0; t < shape[0]; t++)
                for (int64_t c = 0; c < shape[1]; c++) {
                    int64_t q = order[t];
                    bool wanted = m == 0   ? q + o >= c
                                  : m == 1 ? q + o - left <= c && q + o + right >= c
                                  : m == 2 ? q / s == c / s && q >= c
                                           : (q + c + 1) % 2 == 0;
                    assert_int_equal(bytes[t * shape[1] + c], wanted);
                    assert_int_equal(ejk_splash_mask_call(masks[m], q, c), wanted);
                }
            free(bytes);
            ejk_splash_mask_release(masks[m]);
        }
    }
}

/* Sums of offset and window that do not fit in 64 bits. */
static void extreme_numbers_do_not_wrap(void **state) {
    (void)state;
    int64_t shape[2] = {3, 3};
    const int64_t ends[] = {INT64_MIN, INT64_MAX};
    for (int i = 0; i < 8; i++) {
        int64_t o = ends[i & 1], left = ends[i >> 1 & 1], right = ends[i >> 2];
        ejk_splash_mask *mask = NULL;
        EXPECT_OK(ejk_local_mask_create(shape, ejk_window_of(left, right), o, NULL, &mask));
        uint8_t *bytes = splash_elements(mask);
        for (int t = 0; t < 9; t++) {
            long double centre = (long double)(t / 3) + (long double)o;
            assert_int_equal(bytes[t], centre - (long double)left <= t % 3 &&
                                           centre + (long double)right >= t % 3);
        }
        free(bytes);
        ejk_splash_mask_release(mask);
    }
}

/* Every mask equals itself made anew, and none of the others. */
static void masks_equal_their_likes_only(void **state) {
    (void)state;
    static const char *const texts[] = {"full",        "~full",       "causal 0",    "causal 1",
                                        "~causal 0",   "local 1 1 0", "local x 1 0", "local 1 x 0",
                                        "local 1 1 2", "local x x 0", "chunk 2",     "chunk 3"};
    enum { COUNT = sizeof texts / sizeof *texts };
    for (int i = 0; i < COUNT; i++)
        for (int j = 0; j < COUNT; j++) {
            ejk_splash_mask *a = splash_mask(texts[i], 4, 6), *b = splash_mask(texts[j], 4, 6);
            ejk_splash_mask *taller = splash_mask(texts[j], 5, 6), *ab = NULL, *ba = NULL;
            assert_int_equal(ejk_splash_mask_equal(a, b), i == j);
            assert_int_equal(ejk_splash_mask_hash(a) == ejk_splash_mask_hash(b), i == j);
            assert_false(ejk_splash_mask_equal(a, taller));
            EXPECT_OK(ejk_logical_or_create(a, b, &ab));
            EXPECT_OK(ejk_logical_or_create(b, a, &ba));
            assert_int_equal(ejk_splash_mask_equal(ab, ba), i == j);
            ejk_splash_mask_release(a);
            ejk_splash_mask_release(b);
            ejk_splash_mask_release(ab);
            ejk_splash_mask_release(ba);
            ejk_splash_mask_release(taller);
        }
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    int64_t shape[2] = {8, 4}, none[2] = {8, 0};
    int32_t order[3] = {0, 1, 2};
    uint8_t bytes[32] = {0};
    ejk_computable_mask_options three = {.shard_count = ejk_int(3)};
    ejk_computable_mask_options brief = {.q_sequence = order, .q_sequence_length = 3};
    ejk_tensor flat = ejk_tensor_1d(bytes, EJK_DTYPE_BOOL, 32);
    ejk_tensor numbers = ejk_tensor_2d(bytes, EJK_DTYPE_U8, 8, 4);
    ejk_splash_mask *a = splash_mask("full", 8, 4), *b = splash_mask("full", 4, 4), *heads = NULL;
    EXPECT_REFUSED(INVALID_ARGUMENT, INVALID_ARGUMENT, "(8, 0)", ejk_full_mask_create(none, &out));
    EXPECT_REFUSED(INVALID_ARGUMENT, SHARD_COUNT, "shard_count is 3",
                   ejk_causal_mask_create(shape, 0, &three, &out));
    EXPECT_REFUSED(INVALID_ARGUMENT, INVALID_ARGUMENT, "3 entries",
                   ejk_causal_mask_create(shape, 0, &brief, &out));
    EXPECT_REFUSED(INVALID_ARGUMENT, CHUNK_SIZE, "chunk_size is 0",
                   ejk_chunked_causal_mask_create(shape, 0, NULL, &out));
    EXPECT_REFUSED(INVALID_ARGUMENT, INVALID_ARGUMENT, "function is NULL",
                   ejk_function_mask_create(shape, NULL, NULL, NULL, &out));
    EXPECT_REFUSED(INVALID_SHAPE, ARRAY_NOT_2D, "1 axes", ejk_numpy_mask_create(&flat, &out));
    EXPECT_REFUSED(INVALID_DTYPE, ARRAY_NOT_BOOL, "uint8", ejk_numpy_mask_create(&numbers, &out));
    EXPECT_REFUSED(INVALID_SHAPE, SHAPE_MISMATCH, "same shape", ejk_logical_and_create(a, b, &out));
    EXPECT_REFUSED(INVALID_ARGUMENT, NO_MASKS, "at least 1",
                   ejk_multi_head_mask_create(NULL, 0, &out));
    const ejk_splash_mask *different[2] = {a, b};
    EXPECT_REFUSED(INVALID_SHAPE, SHAPE_MISMATCH, "masks[1]",
                   ejk_multi_head_mask_create(different, 2, &out));
    const ejk_splash_mask *one[1] = {a};
    EXPECT_OK(ejk_multi_head_mask_create(one, 1, &heads));
    one[0] = heads;
    EXPECT_REFUSED(INVALID_ARGUMENT, NESTED_MULTI_HEAD, "multi-head",
                   ejk_multi_head_mask_create(one, 1, &out));
    EXPECT_FAIL(INVALID_ARGUMENT, "two axes", ejk_splash_mask_check(heads));
    ejk_splash_mask_release(a);
    ejk_splash_mask_release(b);
    ejk_splash_mask_release(heads);
}

/* A mask's numbers and its elements agree on the first row that sees nothing. */
static void rows_that_see_nothing(void **state) {
    (void)state;
    int refused = 0;
    for (int kind = 0; kind < 5; kind++)
        for (int left = -4; left <= 4; left++)
            for (int right = -4; right <= 4; right++) {
                char words[48] = "~", sentence[256] = "";
                static const char *const forms[] = {"local %d %d 0", "local %d x %d",
                                                    "local x %d %d", "causal %d", "full"};
                snprintf(words + 1, sizeof words - 1, forms[kind], left, right);
                for (int64_t q = 1; q <= 9; q++) {
                    ejk_splash_mask *elements = splash_mask(words, q, 4),
                                    *numbers = splash_mask(words + 1, q, 4);
                    ejk_status status = ejk_splash_mask_check(elements);
                    if (status != EJK_OK)
                        snprintf(sentence, sizeof sentence, "%s", ejk_last_error());
                    assert_int_equal(ejk_splash_mask_check(numbers), status);
                    if (status != EJK_OK) assert_string_equal(ejk_last_error(), sentence);
                    refused += status != EJK_OK;
                    ejk_splash_mask_release(elements);
                    ejk_splash_mask_release(numbers);
                }
            }
    assert_in_range(refused, 500, 3000);
}

static void nesting_has_an_end(void **state) {
    (void)state;
    ejk_splash_mask *mask = splash_mask("causal 0", 2, 2), *next = NULL;
    ejk_status status = EJK_OK;
    int depth = 1;
    for (; depth < 10000; depth++) {
        status = ejk_logical_not_create(mask, &next);
        if (status != EJK_OK) break;
        ejk_splash_mask_release(mask);
        mask = next;
    }
    assert_int_equal(status, EJK_STATUS_OVERFLOW);
    assert_int_equal(depth, 2048);
    uint8_t *bytes = splash_elements(mask);
    assert_memory_equal(bytes, ((uint8_t[]){0, 1, 0, 0}), 4);
    free(bytes);
    ejk_splash_mask_release(mask);
}

/* Numbers of a mask that follow from its kind; what they do not say is left alone. */
static void masks_of_structure_tell_their_numbers(void **state) {
    (void)state;
    const int64_t shape[2] = {6, 9};
    ejk_window got = {ejk_int(77), ejk_int(77)};
    int64_t chunk = 77;
    ejk_splash_mask *mask = NULL;
    EXPECT_OK(ejk_full_mask_create(shape, &mask));
    assert_false(ejk_splash_mask_interval(mask, &got, &chunk));
    assert_true(got.left.value == 77 && chunk == 77);
    assert_string_equal(ejk_splash_mask_kind_name(ejk_splash_mask_kind_of(mask)), "full");
    ejk_splash_mask_release(mask);
    EXPECT_OK(ejk_causal_mask_create(shape, -3, NULL, &mask));
    assert_true(ejk_splash_mask_interval(mask, &got, &chunk));
    assert_true(!got.left.set && got.right.set && got.right.value == -3 && chunk == 0);
    assert_string_equal(ejk_splash_mask_kind_name(ejk_splash_mask_kind_of(mask)), "causal");
    ejk_splash_mask_release(mask);
    EXPECT_OK(ejk_local_mask_create(shape, ejk_window_of(5, 2), 4, NULL, &mask));
    assert_true(ejk_splash_mask_interval(mask, &got, &chunk));
    assert_true(got.left.value == 1 && got.right.value == 6 && chunk == 0);
    ejk_splash_mask_release(mask);
    EXPECT_OK(
        ejk_local_mask_create(shape, ejk_window_of(INT64_MAX, INT64_MAX), INT64_MIN, NULL, &mask));
    assert_true(ejk_splash_mask_interval(mask, &got, &chunk));
    assert_true(got.left.value == INT64_MAX && got.right.value == -1);
    ejk_splash_mask_release(mask);
    EXPECT_OK(ejk_chunked_causal_mask_create(shape, 4, NULL, &mask));
    assert_true(ejk_splash_mask_interval(mask, &got, &chunk));
    assert_true(!got.left.set && got.right.value == 0 && chunk == 4);
    ejk_splash_mask_release(mask);
    assert_false(ejk_splash_mask_interval(NULL, &got, &chunk));
    assert_string_equal(ejk_splash_reason_name(EJK_SPLASH_REASON_Q_BLOCK_SIZE), "q_block_size");
    assert_non_null(ejk_splash_reason_name((ejk_splash_reason)-5));
    assert_non_null(ejk_splash_mask_kind_name((ejk_splash_mask_kind)-5));
}

static void *use(void *mask_) {
    const ejk_splash_mask *mask = mask_;
    for (int i = 0; i < 500; i++) {
        ejk_splash_mask *mine = ejk_splash_mask_retain(mask);
        if (!ejk_splash_mask_call(mine, 3, 2)) return mask_;
        ejk_splash_mask_release(mine);
    }
    return NULL;
}

static void threads_share_a_mask(void **state) {
    (void)state;
    ejk_splash_mask *mask = splash_mask("causal 0", 4, 4);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, use, mask), 0);
    for (int i = 0; i < 4; i++) {
        void *fault = mask;
        assert_int_equal(pthread_join(threads[i], &fault), 0);
        assert_null(fault);
    }
    ejk_splash_mask_release(mask);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_follow_their_formulas),
        cmocka_unit_test(extreme_numbers_do_not_wrap),
        cmocka_unit_test(masks_equal_their_likes_only),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(rows_that_see_nothing),
        cmocka_unit_test(nesting_has_an_end),
        cmocka_unit_test(masks_of_structure_tell_their_numbers),
        cmocka_unit_test(threads_share_a_mask),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
