/* SPDX-License-Identifier: Apache-2.0 */
/* Results of a call of any operation, by its record: which they are, and memory of their own for them. */
#ifndef TESTS_CALL_RESULTS_H
#define TESTS_CALL_RESULTS_H

#include <ejkernel/ejkernel.h>

/* True of results; the tensor of a field. */
bool call_writes(const ejk_field *field);
ejk_tensor *call_tensor(const void *args, const ejk_field *field);

/* A copy of arguments whose results have memory of their own, contiguous, NaN at first. */
void *call_results(const ejk_record *record, const void *args);
void call_free_results(const ejk_record *record, void *own);

/* The call on the CPU by the reference, which computes in double precision. */
ejk_status call_reference(ejk_context *context, const ejk_kernel *kernel, const void *args);

#endif
