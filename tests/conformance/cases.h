/* SPDX-License-Identifier: Apache-2.0 */
/* The case of each operation of the lists of kernels, <operation>_case: one without does not link. */
#ifndef TESTS_CONFORMANCE_CASES_H
#define TESTS_CONFORMANCE_CASES_H

#include "conformance/call.h"

#define EJKI_OPERATION(op) extern const struct operation op##_case;
#include "operations.inc"
#undef EJKI_OPERATION

#endif
