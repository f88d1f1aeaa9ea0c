/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether results overlap other tensors, byte by byte: views of all strides at every distance, against the bytes
 * that they touch. What shares a byte is refused; what does not is accepted where spans are apart, or where
 * both lie in columns of their own of the same rows.
 */
#include "ops/core/core.h"
#include "support/expect.h"
#include "support/random.h"

#include <stdlib.h>

#define ARGS(F, R)                                                                                 \
    F(TENSOR, input, EJK_REQUIRED, "", "[n] number", "")                                           \
    F(TENSOR, result, EJK_REQUIRED_OUTPUT, "", "[n] number", "")
EJK_RECORD_STRUCT(overlap_args, ARGS);
#define EJK_RECORD_SELF overlap_args
EJK_RECORD_DEFINE(overlap_args_record, overlap_args, ARGS);
#undef EJK_RECORD_SELF

enum { ARENA = 8192, MIDDLE = ARENA / 2 };

static uint8_t arena[ARENA]; /* its addresses are used, never its bytes */

/* The bytes of a view relative to its first element. */
struct bytes {
    bool at[ARENA];
    int64_t low, end, count;
};

static void touch(const ejk_tensor *t, int32_t axis, int64_t place, struct bytes *bytes) {
    int64_t size = (int64_t)ejk_dtype_size(t->dtype);
    for (int64_t i = 0; axis < t->rank && i < t->shape[axis]; i++)
        touch(t, axis + 1, place + i * t->strides[axis] * size, bytes);
    if (axis < t->rank) return;
    for (int64_t i = place; i < place + size; i++) {
        bytes->count += !bytes->at[MIDDLE + i];
        bytes->at[MIDDLE + i] = true;
    }
    bytes->low = place < bytes->low ? place : bytes->low;
    bytes->end = place + size > bytes->end ? place + size : bytes->end;
}

static struct bytes bytes_of(const ejk_tensor *t) {
    struct bytes bytes = {.low = ARENA, .end = -ARENA};
    touch(t, 0, 0, &bytes);
    return bytes;
}

static bool share_a_byte(const struct bytes *a, const struct bytes *b, int64_t distance) {
    for (int64_t i = b->low; i < b->end; i++) {
        int64_t there = i + distance;
        if (b->at[MIDDLE + i] && there >= a->low && there < a->end && a->at[MIDDLE + there])
            return true;
    }
    return false;
}

/* Whether no byte of the two has the same place in rows of so many bytes. */
static bool share_no_column(const struct bytes *a, const struct bytes *b, int64_t distance,
                            int64_t row) {
    bool taken[64] = {false};
    for (int64_t i = a->low; i < a->end; i++)
        if (a->at[MIDDLE + i]) taken[(i + ARENA * row) % row] = true;
    for (int64_t i = b->low; i < b->end; i++)
        if (b->at[MIDDLE + i] && taken[(i + distance + ARENA * row) % row]) return false;
    return true;
}

/*
 * Moves the input over the result, a byte at a time. With a `row`, other columns of it are accepted. False if the
 * result's axes may step onto its own elements, which a call refuses.
 */
static bool compare_at_all_distances(overlap_args *args, int64_t row) {
    ejki_operands operands = {0};
    args->result.data = args->input.data = arena + MIDDLE;
    if (ejki_operands_create(&overlap_args_record, args, &operands) != EJK_OK) return false;
    const struct bytes result = bytes_of(&args->result), input = bytes_of(&args->input);
    assert_int_equal(result.count,
                     ejk_tensor_count(&args->result) * (int64_t)ejk_dtype_size(args->result.dtype));
    for (int64_t distance = result.low - input.end - 9; distance <= result.end - input.low + 9;
         distance++) {
        args->input.data = arena + MIDDLE + distance;
        const bool accepted = ejki_operands_check(&operands, args) == EJK_OK;
        const bool meet = share_a_byte(&result, &input, distance);
        const bool away = distance + input.end <= result.low ||
                          distance + input.low >= result.end ||
                          (row > 0 && share_no_column(&result, &input, distance, row));
        if (accepted && meet)
            fail_msg("at a distance of %d bytes an overlap is accepted", (int)distance);
        if (!accepted && away)
            fail_msg("at a distance of %d bytes tensors that are apart are refused", (int)distance);
    }
    ejki_operands_close(&operands);
    return true;
}

static ejk_dtype any_dtype(struct random *r) {
    static const ejk_dtype dtypes[] = {EJK_DTYPE_BOOL, EJK_DTYPE_F16, EJK_DTYPE_F32, EJK_DTYPE_F64};
    return dtypes[random_int(r, 0, 3)];
}

static ejk_tensor any_view(struct random *r) {
    ejk_tensor t = {.dtype = any_dtype(r), .rank = (int32_t)random_int(r, 1, 3)};
    for (int32_t i = 0; i < t.rank; i++) {
        t.shape[i] = random_int(r, 1, 4);
        t.strides[i] = random_int(r, -30, 30);
    }
    return t;
}

static void views_of_all_strides(void **state) {
    (void)state;
    struct random r = {71};
    int compared = 0;
    for (int round = 0; round < 600; round++) {
        overlap_args args = {.input = any_view(&r), .result = any_view(&r)};
        compared += compare_at_all_distances(&args, 0);
    }
    assert_in_range(compared, 200, 600);
}

/* Slices of rows of one buffer, with rows of one element and of all, and of the same step in bytes. */
static void slices_of_one_buffer(void **state) {
    (void)state;
    struct random r = {72};
    for (int round = 0; round < 300; round++) {
        const int64_t row = 8 * random_int(&r, 1, 6);
        overlap_args args;
        ejk_tensor *tensors[2] = {&args.input, &args.result};
        memset(&args, 0, sizeof args);
        for (int i = 0; i < 2; i++) {
            ejk_tensor *t = tensors[i];
            t->dtype = any_dtype(&r);
            const int64_t size = (int64_t)ejk_dtype_size(t->dtype);
            t->rank = 2;
            t->shape[0] = random_int(&r, 2, 5);
            t->shape[1] = random_int(&r, 1, row / size);
            t->strides[0] = row / size * (random_int(&r, 0, 1) ? 1 : -1);
            t->strides[1] = 1;
        }
        assert_true(compare_at_all_distances(&args, row));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views_of_all_strides),
        cmocka_unit_test(slices_of_one_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
