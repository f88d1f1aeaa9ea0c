/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small operation of a test's own: y = x * factor + shift, and z the same if asked for. Its only
 * implementation goes through the workspace and notices when two executions share one.
 */
#ifndef TESTS_SUPPORT_TOY_H
#define TESTS_SUPPORT_TOY_H

#include <ejkernel/ejkernel.h>

#define TOY_PARAMS(F, R)                                                                           \
    F(OPT_INT, rows, EJK_OPTIONAL, "unset", "rows", "rows at once")                                \
    F(OPT_INT, columns, EJK_OPTIONAL, "unset", "columns", "taken by no implementation")
EJK_RECORD_STRUCT(toy_params, TOY_PARAMS);

#define TOY_CONFIG(F, R)                                                                           \
    EJK_BASE_OPERATION_CONFIG(F, R)                                                                \
    R(toy_params, params, toy_params_record, "parameters")
EJK_RECORD_STRUCT(toy_config, TOY_CONFIG);

#define TOY_ARGS(F, R)                                                                             \
    F(TENSOR, x, EJK_REQUIRED, "", "[n,m] float", "input")                                         \
    F(FLOAT, factor, EJK_OPTIONAL, "0", "", "factor")                                              \
    F(OPT_INT, shift, EJK_OPTIONAL, "0", "", "summand")                                            \
    F(OPT_BOOL, flag, EJK_OPTIONAL, "false", "", "without effect")                                 \
    F(NAME, platform, EJK_OPTIONAL, "auto", "", "platform")                                        \
    R(toy_config, cfg, toy_config_record, "configuration")                                         \
    F(TENSOR, y, EJK_REQUIRED_OUTPUT, "", "[n,m] x", "result")                                     \
    F(TENSOR, z, EJK_OUTPUT, "not written", "[n,m] x", "the result again")
EJK_RECORD_STRUCT(toy_args, TOY_ARGS);

extern const ejk_record toy_params_record, toy_config_record, toy_args_record;
extern const ejk_kernel toy_kernel;

/* "reference", f32, takes rows = 8 … 64 in steps of 8, default 16; uses up to 4 workers if m is 4 or more. */
extern const ejk_implementation toy_implementation;

enum { TOY_WORKSPACE = 192 };

/* What toy_kernel's heuristic says about rows; unset at first. */
extern ejk_opt_int toy_advice;

/* Called by every run if not NULL. */
extern void (*toy_during)(const ejk_run *run);

/* Where a run reads from. */
const float *toy_input(const ejk_run *run);

/* A context that knows the operation. */
ejk_context *toy_context(const ejk_context_options *options);

/* A call over n*m elements from x to y. */
toy_args toy_call(float *x, float *y, int64_t n, int64_t m);

#endif
