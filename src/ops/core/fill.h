/* SPDX-License-Identifier: Apache-2.0 */
/* Reproducible contents for tensors that somebody wants to run on: problems, measurements. */
#ifndef EJKI_OPS_CORE_FILL_H
#define EJKI_OPS_CORE_FILL_H

#include <ejkernel/kernel.h>
#include <ejkernel/tensor.h>

/* S. Vigna's splitmix64 as a function of its position: any element's number without those before it. */
static inline uint64_t ejki_random_at(uint64_t key, uint64_t index) {
    uint64_t z = key + (index + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Elements to fill along an axis: with stride 0 they are all one. */
int64_t ejki_filled(const ejk_tensor *tensor, int32_t axis);

/* Puts an integer at an element counted from the first, whatever the integer type and the address. */
void ejki_element_set(const ejk_tensor *tensor, int64_t offset, int64_t value);

/* ejk_fill_inputs() of arguments that are there. */
ejk_status ejki_fill_inputs(const ejk_kernel *kernel, const void *args, const ejk_inputs *how);

/* The value of a wish; NULL if it is none. */
const char *ejki_wish(const ejk_inputs *how, const char *name);

#endif
