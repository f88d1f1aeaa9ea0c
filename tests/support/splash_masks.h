/* SPDX-License-Identifier: Apache-2.0 */
/* Masks from a few words, and a mask's elements, for the tests of splash masks. */
#ifndef TESTS_SPLASH_MASKS_H
#define TESTS_SPLASH_MASKS_H

#include "support/expect.h"

#include <ejkernel/splash_mask.h>
#include <stdio.h>
#include <stdlib.h>

static const ejk_window no_window;

/* The bytes of a mask, row after row; freed by the caller. */
static inline uint8_t *splash_elements(const ejk_splash_mask *mask) {
    int64_t shape[3], zero[3] = {0, 0, 0};
    int32_t rank = ejk_splash_mask_shape(mask, shape);
    int64_t count = shape[0] * shape[1] * (rank == 3 ? shape[2] : 1);
    uint8_t *bytes = malloc((size_t)count);
    assert_non_null(bytes);
    ejk_tensor out = ejk_tensor_contiguous(bytes, EJK_DTYPE_BOOL, rank, shape);
    EXPECT_OK(ejk_splash_mask_read(mask, zero, shape, &out));
    return bytes;
}

/* A numpy mask of the caller's bytes. */
static inline ejk_splash_mask *splash_dense(uint8_t *bytes, int64_t q, int64_t kv) {
    ejk_splash_mask *mask = NULL;
    ejk_tensor array = ejk_tensor_contiguous(bytes, EJK_DTYPE_BOOL, 2, (int64_t[]){q, kv});
    EXPECT_OK(ejk_numpy_mask_create(&array, &mask));
    return mask;
}

/* "full", "causal o", "local l r o" (x = no limit), "chunk n"; a "~" before = the elements of it. */
static inline ejk_splash_mask *splash_mask(const char *text, int64_t q, int64_t kv) {
    ejk_splash_mask *mask = NULL;
    int64_t shape[2] = {q, kv};
    if (text[0] == '~') {
        ejk_splash_mask *lazy = splash_mask(text + 1, q, kv);
        EXPECT_OK(ejk_numpy_mask_of(lazy, &mask));
        ejk_splash_mask_release(lazy);
        return mask;
    }
    char left[16], right[16];
    int number;
    if (strcmp(text, "full") == 0) {
        EXPECT_OK(ejk_full_mask_create(shape, &mask));
    } else if (sscanf(text, "causal %d", &number) == 1) {
        EXPECT_OK(ejk_causal_mask_create(shape, number, NULL, &mask));
    } else if (sscanf(text, "local %15s %15s %d", left, right, &number) == 3) {
        ejk_window window = no_window;
        if (left[0] != 'x') window.left = ejk_int(atoi(left));
        if (right[0] != 'x') window.right = ejk_int(atoi(right));
        EXPECT_OK(ejk_local_mask_create(shape, window, number, NULL, &mask));
    } else if (sscanf(text, "chunk %d", &number) == 1) {
        EXPECT_OK(ejk_chunked_causal_mask_create(shape, number, NULL, &mask));
    } else {
        fail_msg("'%s' is no mask", text);
    }
    return mask;
}

#endif
