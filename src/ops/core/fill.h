/* SPDX-License-Identifier: Apache-2.0 */
/* Reproducible numbers for tensors that somebody wants to run on: problems, measurements. */
#ifndef EJKI_OPS_CORE_FILL_H
#define EJKI_OPS_CORE_FILL_H

#include <ejkernel/tensor.h>

/*
 * Fills tensor number `index` of a call. Numbers depend on seed, index and the element's place only, not on
 * strides: floats uniform in [-1, 1), a mask true nine times in ten. Other types are left alone.
 */
void ejki_fill(const ejk_tensor *tensor, uint64_t seed, int32_t index, bool mask);

/* Elements to fill along an axis: with stride 0 they are all one. */
int64_t ejki_filled(const ejk_tensor *tensor, int32_t axis);

#endif
