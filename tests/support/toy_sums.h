/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small operation of a test's own on lists of tensors: sums of the columns of all parts, and one more for each time
 * that a list of picks names a column.
 */
#ifndef TESTS_SUPPORT_TOY_SUMS_H
#define TESTS_SUPPORT_TOY_SUMS_H

#include "support/toy.h"

#define TOY_SUMS_ARGS(F, R)                                                                        \
    F(TENSORS, parts, EJK_REQUIRED, "", "[n#,m] float", "what is added up")                        \
    F(TENSORS, picks, EJK_OPTIONAL, "none", "[k#] int in [0,m)", "columns that get one more")      \
    F(NAME, platform, EJK_OPTIONAL, "auto", "", "platform")                                        \
    R(toy_config, cfg, toy_config_record, "configuration")                                         \
    F(TENSOR, y, EJK_REQUIRED_OUTPUT, "", "[m] parts", "sums")
EJK_RECORD_STRUCT(toy_sums_args, TOY_SUMS_ARGS);

extern const ejk_record toy_sums_args_record;
extern const ejk_kernel toy_sums_kernel;

/* Picks that runs have seen outside of their columns, and runs, since a test set them to 0. */
extern int toy_sums_strays, toy_sums_runs;

/* Adds the operation and two implementations. */
ejk_status toy_sums_add(ejk_context *context);

#endif
