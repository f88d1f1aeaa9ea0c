/* SPDX-License-Identifier: Apache-2.0 */
/* Every case, one line each: whoever adds an operation adds it here. */
#ifndef TESTS_CONFORMANCE_CASES_H
#define TESTS_CONFORMANCE_CASES_H

#include "conformance/call.h"

#define CASES(X)                                                                                   \
    X(flash_attention)                                                                             \
    X(flash_attention_vjp)

#define DECLARE_CASE(op) extern const struct operation op##_case;
CASES(DECLARE_CASE)
#undef DECLARE_CASE

#endif
