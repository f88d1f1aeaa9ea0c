/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small operation with a state of a test's own: running sums down the rows of x, each row of y what the
 * state is after it. The state is read and updated in place.
 */
#ifndef TESTS_SUPPORT_TOY_SCAN_H
#define TESTS_SUPPORT_TOY_SCAN_H

#include "support/toy.h"

#define TOY_SCAN_ARGS(F, R)                                                                        \
    F(TENSOR, x, EJK_REQUIRED, "", "[n,m] float32", "what is added up")                            \
    F(TENSOR, state, EJK_REQUIRED_INOUT, "", "[m] float32", "sums so far")                         \
    F(TENSOR, last, EJK_INOUT, "not kept", "[m] float32", "the last row; added before the first")  \
    F(NAME, platform, EJK_OPTIONAL, "auto", "", "platform")                                        \
    R(toy_config, cfg, toy_config_record, "configuration")                                         \
    F(TENSOR, y, EJK_REQUIRED_OUTPUT, "", "[n,m] float32", "sums")
EJK_RECORD_STRUCT(toy_scan_args, TOY_SCAN_ARGS);

extern const ejk_record toy_scan_args_record;
extern const ejk_kernel toy_scan_kernel;
extern const ejk_implementation
    toy_scan_implementations[2]; /* "simd" takes rows, "reference" nothing */

/* The largest number in a state that a run began with since a test set this to 0. */
extern float toy_scan_most;

/* Adds the operation and both implementations. */
ejk_status toy_scan_add(ejk_context *context);

/* A call over n rows of m elements. */
toy_scan_args toy_scan_call(float *x, float *state, float *y, int64_t n, int64_t m);

#endif
