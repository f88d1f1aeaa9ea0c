/* SPDX-License-Identifier: Apache-2.0 */
/* Random calls of the process functions, over every kind of mask. */
#ifndef TESTS_SPLASH_CALL_H
#define TESTS_SPLASH_CALL_H

#include "support/random.h"
#include "support/splash_masks.h"

struct splash_call {
    int64_t q, kv, bq, bkv, heads;
    ejk_splash_mask *mask;
    uint8_t *dense; /* [heads][q][kv] */
    ejk_process_mask_args args;
};

/* Any mask, logical ones nested up to `depth`; it is the caller's. */
ejk_splash_mask *splash_random_mask(struct random *r, int64_t q, int64_t kv, int depth);

/* Up to 4 heads of up to 60 rows and 40 columns. */
void splash_call_open(struct random *r, struct splash_call *call);
void splash_call_close(struct splash_call *call);

/* An entry of one of the grids. */
int64_t splash_at(const ejk_tensor *tensor, int64_t index);

/* The element at a row and a column that the result of a static call tells of, whose block is at `cell`. */
bool splash_told(const struct splash_call *call, const ejk_splash_mask_info *info, bool dkv,
                 int64_t cell, int64_t row, int64_t column);

/* Types, shapes and elements, or both are absent. */
void splash_expect_same(const ejk_tensor *a, const ejk_tensor *b);

#endif
