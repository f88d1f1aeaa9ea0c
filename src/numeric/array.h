/* SPDX-License-Identifier: Apache-2.0 */
/* What the functions over tensors share: walking views in runs. */
#ifndef EJKI_NUMERIC_ARRAY_H
#define EJKI_NUMERIC_ARRAY_H

#include <ejkernel/device.h>
#include <ejkernel/tensor.h>

#include "tensor/argument.h"

/* Elements that are converted at once, and those of one task of a parallel loop: whole runs. */
enum { EJKI_RUN = 512, EJKI_TASK = 128 * EJKI_RUN };

bool ejki_dtype_is_floating(ejk_dtype dtype);

/* ejki_argument_output() of a floating type. */
ejk_status ejki_array_floating_output(const ejk_tensor *tensor, const char *name);

/* The axis counted from the front, if there is one of `rank`. */
ejk_status ejki_array_axis(int32_t axis, int32_t rank, int32_t *out);

/* The same memory as one axis where that is possible: contiguous views are walked in longer runs. */
ejk_tensor ejki_array_flat(const ejk_tensor *tensor);

/*
 * Converts `count` elements, from number `at` in row-major order on, into `values` of `dtype`, and back.
 */
void ejki_array_load(const ejk_tensor *tensor, int64_t at, int64_t count, ejk_dtype dtype,
                     void *values);
void ejki_array_store(const ejk_tensor *tensor, int64_t at, int64_t count, ejk_dtype dtype,
                      void *values);

/* Where element number `at` in row-major order lies: one number per axis. */
void ejki_array_index(const ejk_tensor *tensor, int64_t at, int64_t *index_out);

#endif
