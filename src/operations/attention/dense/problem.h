/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the steps of dense attention are given. The first is flash attention, whose problem comes first; the
 * second, "attention_weights", writes the weights and reads nothing that the first wrote.
 */
#ifndef EJKI_ATTENTION_PROBLEM_H
#define EJKI_ATTENTION_PROBLEM_H

#include "operations/attention/flash/problem.h"

typedef struct ejki_attention_problem {
    ejki_flash_problem flash;
    bool wants_weights;
    /* [B, Hq, T, S], of flash.dtype: strides of the first three axes; the last is contiguous. */
    struct {
        void *data;
        int64_t stride_b, stride_h, stride_t;
    } weights;
} ejki_attention_problem;

#endif
