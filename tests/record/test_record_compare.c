/* SPDX-License-Identifier: Apache-2.0 */
/* Records beside each other: equality, hash, signature, merging. */
#include "support/expect.h"
#include "support/random.h"
#include "support/sample_record.h"

#include <math.h>
#include <stdlib.h>

static double real_of(struct random *r) {
    const double reals[] = {0.0, -0.0, (double)NAN, -(double)NAN, 1.5, (double)INFINITY};
    return RANDOM_OF(r, reals);
}

/* Few values each, so that two random tensors are often equal; what does not count is noise. */
static ejk_tensor random_tensor(struct random *r, void *memory) {
    ejk_tensor tensor;
    memset(&tensor, (int)random_int(r, 0, 255), sizeof tensor);
    tensor.dtype = random_chance(r, 0.4) ? EJK_DTYPE_UNSET : EJK_DTYPE_F32;
    tensor.data = (char *)memory + random_int(r, 0, 1);
    tensor.rank = (int32_t)random_int(r, 0, 2);
    for (int32_t i = 0; i < tensor.rank; i++) {
        tensor.shape[i] = random_int(r, 1, 2);
        tensor.strides[i] = random_int(r, 1, 2);
    }
    tensor.device_type = tensor.device_index = 0;
    return tensor;
}

static sample random_sample(struct random *r, void *memory) {
    sample object = {.query = random_tensor(r, memory),
                     .causal = random_chance(r, 0.5),
                     .dropout = real_of(r),
                     .exact = (ejk_opt_bool)random_int(r, 0, 2),
                     .splits = {random_int(r, 0, 1), random_chance(r, 0.5)},
                     .softmax_scale = {real_of(r), random_chance(r, 0.5)},
                     .window = {.left = {random_int(r, 0, 1), random_chance(r, 0.5)}},
                     .shape = {.rows = {random_int(r, 0, 1), random_chance(r, 0.5)}}};
    object.chunk_sizes.count = (int32_t)random_int(r, 0, 2);
    for (int i = 0; i < 3; i++) object.chunk_sizes.value[i] = random_int(r, 0, 1);
    object.parts.count = (int32_t)random_int(r, 0, 2);
    for (int i = 0; i < 3; i++)
        object.parts.value[i] =
            ejk_tensor_contiguous(NULL, EJK_DTYPE_F32, 1, (int64_t[]){random_int(r, 1, 2)});
    object.platform[0] = random_chance(r, 0.5) ? 'a' : '\0';
    object.platform[2] = (char)random_int(r, 0, 1); /* behind the closing zero */
    return object;
}

static bool real_equal(double a, double b) {
    return (a <= b && a >= b) || (isnan(a) && isnan(b));
}

static bool int_equal(ejk_opt_int a, ejk_opt_int b) {
    return a.set == b.set && (!a.set || a.value == b.value);
}

static bool ints_equal(const ejk_ints *a, const ejk_ints *b) {
    if (a->count != b->count) return false;
    for (int32_t i = 0; i < a->count; i++)
        if (a->value[i] != b->value[i]) return false;
    return true;
}

static bool tensor_equal(const ejk_tensor *a, const ejk_tensor *b) {
    if (a->dtype == EJK_DTYPE_UNSET && b->dtype == EJK_DTYPE_UNSET) return true;
    if (a->dtype != b->dtype || a->rank != b->rank) return false;
    for (int32_t i = 0; i < a->rank; i++)
        if (a->shape[i] != b->shape[i] || a->strides[i] != b->strides[i]) return false;
    return true;
}

static bool tensors_equal(const ejk_tensors *a, const ejk_tensors *b) {
    if (a->count != b->count) return false;
    for (int32_t i = 0; i < a->count; i++)
        if (!tensor_equal(&a->value[i], &b->value[i])) return false;
    return true;
}

/* What the documentation says, spelled out for the fields that random_sample() fills. */
static bool oracle(const sample *a, const sample *b) {
    return tensor_equal(&a->query, &b->query) && a->causal == b->causal &&
           real_equal(a->dropout, b->dropout) && a->exact == b->exact &&
           int_equal(a->splits, b->splits) && a->softmax_scale.set == b->softmax_scale.set &&
           (!a->softmax_scale.set || real_equal(a->softmax_scale.value, b->softmax_scale.value)) &&
           ints_equal(&a->chunk_sizes, &b->chunk_sizes) && tensors_equal(&a->parts, &b->parts) &&
           int_equal(a->window.left, b->window.left) && a->platform[0] == b->platform[0] &&
           int_equal(a->shape.rows, b->shape.rows);
}

/* Changes one field: pairs that differ in none or in one are the ones that tell. */
static sample neighbour(struct random *r, sample a, void *memory) {
    sample other = random_sample(r, memory);
    switch (random_int(r, 0, 11)) {
    case 11: a.parts = other.parts; break;
    case 10: a.chunk_sizes = other.chunk_sizes; break;
    case 0: a.query = other.query; break;
    case 1: a.causal = other.causal; break;
    case 2: a.dropout = other.dropout; break;
    case 3: a.exact = other.exact; break;
    case 4: a.splits = other.splits; break;
    case 5: a.softmax_scale = other.softmax_scale; break;
    case 6: a.window = other.window; break;
    case 7: memcpy(a.platform, other.platform, sizeof a.platform); break;
    case 8: a.shape = other.shape; break;
    default: a = other; break;
    }
    return a;
}

static void equality_and_hash_follow_the_documentation(void **state) {
    (void)state;
    struct random r = {20};
    char memory[2];
    int equal = 0, total = 40000;
    for (int i = 0; i < total; i++) {
        sample a = random_sample(&r, memory), b = neighbour(&r, a, memory);
        bool same = oracle(&a, &b);
        bool data = a.query.dtype == EJK_DTYPE_UNSET || a.query.data == b.query.data;
        equal += same;
        assert_int_equal(ejk_record_same_signature(&sample_record, &a, &b), same);
        assert_int_equal(ejk_record_same_signature(&sample_record, &b, &a), same);
        assert_int_equal(ejk_record_equal(&sample_record, &a, &b), same && data);
        assert_int_equal(ejk_record_signature(&sample_record, &a) ==
                             ejk_record_signature(&sample_record, &b),
                         same);
        assert_int_equal(ejk_record_hash(&sample_record, &a) == ejk_record_hash(&sample_record, &b),
                         same && data);
    }
    assert_true(equal > total / 10 && equal < total * 9 / 10);
}

static void every_word_of_a_tensor_counts(void **state) {
    (void)state;
    const int64_t shape[] = {2, 3, 4, 5, 6, 7, 8, 9};
    char memory;
    sample a = {.query = ejk_tensor_contiguous(&memory, EJK_DTYPE_F32, 8, shape)}, b;
#define DIFFERS(...)                                                                               \
    do {                                                                                           \
        b = a;                                                                                     \
        __VA_ARGS__;                                                                               \
        assert_false(ejk_record_same_signature(&sample_record, &a, &b));                           \
        assert_false(ejk_record_equal(&sample_record, &a, &b));                                    \
        assert_true(ejk_record_signature(&sample_record, &a) !=                                    \
                    ejk_record_signature(&sample_record, &b));                                     \
    } while (0)
    for (int i = 0; i < EJK_MAX_RANK; i++) {
        DIFFERS(b.query.shape[i]++);
        DIFFERS(b.query.strides[i]++);
        DIFFERS(b.query.shape[i] ^= INT64_MIN);
    }
    DIFFERS(b.query.dtype = EJK_DTYPE_I32);
    DIFFERS(b.query.rank--);
    DIFFERS(b.query.device_type = EJK_DEVICE_CUDA);
    DIFFERS(b.query.device_index = 1);
    DIFFERS(b.out = a.query; b.query = (ejk_tensor){0});
    DIFFERS(b.query = (ejk_tensor){0});
#undef DIFFERS
    b = a;
    b.query.data = NULL;
    assert_true(ejk_record_same_signature(&sample_record, &a, &b));
    assert_false(ejk_record_equal(&sample_record, &a, &b));
    /* A rank from hostile hands leads nowhere outside the view. */
    a.query.rank = b.query.rank = INT32_MAX;
    assert_true(ejk_record_same_signature(&sample_record, &a, &b));
    assert_true(ejk_record_signature(&sample_record, &a) ==
                ejk_record_signature(&sample_record, &b));
}

static int compare_words(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Shapes and scalars as calls have them, all different: their 64-bit hashes must be, too, and in both halves evenly. */
static void signatures_of_neighbouring_calls_do_not_collide(void **state) {
    (void)state;
    enum { TOTAL = 32768 };
    uint64_t *words = calloc(TOTAL, sizeof *words);
    assert_non_null(words);
    int64_t low = 0, high = 0;
    for (int i = 0; i < TOTAL; i++) {
        sample call = {.seed = i & 7};
        const int64_t shape[] = {1 + (i >> 3 & 7), 1 + (i >> 6 & 31), 1 + (i >> 11 & 3),
                                 8 << (i >> 13)};
        call.query = ejk_tensor_contiguous(NULL, EJK_DTYPE_F32, 4, shape);
        words[i] = ejk_record_signature(&sample_record, &call);
        low += (int64_t)(words[i] & 1);
        high += (int64_t)(words[i] >> 63);
    }
    qsort(words, TOTAL, sizeof *words, compare_words);
    for (int i = 1; i < TOTAL; i++) assert_true(words[i] != words[i - 1]);
    assert_in_range(low, TOTAL * 47 / 100, TOTAL * 53 / 100);
    assert_in_range(high, TOTAL * 47 / 100, TOTAL * 53 / 100);
    free(words);
}

static void null_counts_as_nothing_set(void **state) {
    (void)state;
    sample zero = {0}, some = {.shape = {.pinned = true}};
    assert_true(ejk_record_equal(&sample_record, NULL, &zero));
    assert_true(ejk_record_equal(&sample_record, NULL, NULL));
    assert_false(ejk_record_equal(&sample_record, &some, NULL));
    assert_true(ejk_record_hash(&sample_record, NULL) == ejk_record_hash(&sample_record, &zero));
    assert_true(ejk_record_hash(&sample_record, NULL) != ejk_record_hash(&sample_record, &some));
    assert_true(ejk_record_hash(NULL, &some) == ejk_record_hash(NULL, &some));
    assert_false(ejk_record_equal(NULL, &some, &zero));
}

static void the_override_wins_where_it_is_set(void **state) {
    (void)state;
    sample base = full_sample(), override = {.seed = 9, .shape = {.pinned = true}}, out;
    override.splits.value = 77; /* not set */
    memset(&out, 0xa5, sizeof out);
    ejk_record_merge(&sample_record, &base, &override, &out);
    sample wanted = base;
    wanted.seed = 9;
    wanted.shape.pinned = true; /* rows from base, pinned from override: field by field */
    assert_true(ejk_record_equal(&sample_record, &out, &wanted));

    ejk_record_merge(&sample_record, &base, &override, &override);
    assert_true(ejk_record_equal(&sample_record, &override, &wanted));
    override = (sample){.seed = 9, .shape = {.pinned = true}};
    ejk_record_merge(&sample_record, &base, &override, &base);
    assert_true(ejk_record_equal(&sample_record, &base, &wanted));

    sample zero = {0};
    memset(&out, 0xa5, sizeof out);
    ejk_record_merge(&sample_record, NULL, NULL, &out);
    assert_true(ejk_record_equal(&sample_record, &out, &zero));
    ejk_record_merge(&sample_record, NULL, &base, &out);
    assert_true(ejk_record_equal(&sample_record, &out, &base));
    ejk_record_merge(&sample_record, &base, NULL, &out);
    assert_true(ejk_record_equal(&sample_record, &out, &base));
    ejk_record_merge(&sample_record, &base, NULL, NULL);
    ejk_record_merge(NULL, &base, NULL, &out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equality_and_hash_follow_the_documentation),
        cmocka_unit_test(every_word_of_a_tensor_counts),
        cmocka_unit_test(signatures_of_neighbouring_calls_do_not_collide),
        cmocka_unit_test(null_counts_as_nothing_set),
        cmocka_unit_test(the_override_wins_where_it_is_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
