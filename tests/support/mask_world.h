/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of mask infos share: tensors of literals, elements of what was read. */
#ifndef TESTS_MASK_WORLD_H
#define TESTS_MASK_WORLD_H

#include "support/expect.h"
#include "support/random.h"

#include <ejkernel/mask_info.h>
#include <stdlib.h>

/* int32 [rows, length] of a list of numbers. */
#define IDS(rows, ...)                                                                             \
    ejk_tensor_2d((int32_t[]){__VA_ARGS__}, EJK_DTYPE_I32, rows,                                   \
                  (int64_t)(sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t) / (rows)))

/* All elements of an int32 or bool tensor, contiguous. */
#define HOLDS(tensor, ...)                                                                         \
    expect_elements(tensor, (const int64_t[]){__VA_ARGS__},                                        \
                    (int64_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), __LINE__)

static inline void expect_elements(ejk_tensor got, const int64_t *wanted, int64_t count, int line) {
    assert_int_equal(ejk_tensor_count(&got), count);
    int64_t *numbers = calloc((size_t)count + 1, sizeof *numbers);
    ejk_tensor view = ejk_tensor_contiguous(numbers, EJK_DTYPE_I64, got.rank, got.shape);
    EXPECT_OK(ejk_tensor_copy(&got, &view));
    for (int64_t i = 0; i < count; i++)
        if (numbers[i] != wanted[i])
            fail_msg("line %d: element %lld is %lld, expected %lld", line, (long long)i,
                     (long long)numbers[i], (long long)wanted[i]);
    free(numbers);
}

/* Element (b, h, i, j) of the attention mask. */
static inline bool mask_at(const ejk_mask_info *info, int64_t b, int64_t h, int64_t i, int64_t j) {
    ejk_tensor mask;
    EXPECT_OK(ejk_mask_info_get_or_compute_attention_mask(info, EJK_DTYPE_BOOL, &mask));
    const uint8_t *bytes = mask.data;
    return bytes[b * mask.strides[0] + h * mask.strides[1] + i * mask.strides[2] + j];
}

static inline ejk_mask_info *of_segments(ejk_tensor q, const ejk_tensor *kv) {
    ejk_mask_info *info = NULL;
    EXPECT_OK(ejk_mask_info_from_segments(&q, kv, false, NULL, &info));
    return info;
}

/* Random segments or elements of these lengths. */
static inline ejk_mask_info *random_info(struct random *r, int64_t b, int64_t h, int64_t q,
                                         int64_t k) {
    enum { MOST = 4096 };
    static _Thread_local int32_t ids[2][MOST];
    static _Thread_local uint8_t bytes[MOST * 4];
    ejk_mask_info *info = NULL;
    if (random_chance(r, 0.5)) {
        for (int i = 0; i < MOST; i++) {
            ids[0][i] = (int32_t)random_int(r, -1, 2);
            ids[1][i] = (int32_t)random_int(r, -1, 2);
        }
        ejk_tensor q_ids = ejk_tensor_2d(ids[0], EJK_DTYPE_I32, b, q);
        ejk_tensor kv_ids = ejk_tensor_2d(ids[1], EJK_DTYPE_I32, b, k);
        EXPECT_OK(ejk_mask_info_from_segments(&q_ids, &kv_ids, false, NULL, &info));
    } else {
        assert_true(b * h * q * k <= (int64_t)sizeof bytes);
        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (uint8_t)(random_chance(r, 0.6) * random_int(r, 1, 3));
        ejk_tensor mask = ejk_tensor_4d(bytes, EJK_DTYPE_U8, b, h, q, k);
        EXPECT_OK(ejk_mask_info_from_attention_mask(&mask, NULL, &info));
    }
    return info;
}

#endif
