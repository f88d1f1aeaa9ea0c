/* SPDX-License-Identifier: Apache-2.0 */
/* All cases, and their kernels in the same order: for who goes through them. */
#ifndef TESTS_CONFORMANCE_ALL_CASES_H
#define TESTS_CONFORMANCE_ALL_CASES_H

#include "conformance/cases.h"

static const struct operation *const cases[] = {
#define EJKI_OPERATION(name) &name##_case,
#include "operations.inc"
#undef EJKI_OPERATION
};
static const ejk_kernel *const kernels[] = {
#define EJKI_OPERATION(name) &ejk_##name##_kernel,
#include "operations.inc"
#undef EJKI_OPERATION
};

#endif
