/* SPDX-License-Identifier: Apache-2.0 */
/* A call's arguments with memory to run on, for measuring. */
#ifndef EJKI_OPS_EXECUTION_OPERANDS_H
#define EJKI_OPS_EXECUTION_OPERANDS_H

#include <ejkernel/kernel.h>

/* A copy of a call's arguments whose tensors lie in memory of its own where they have to. */
typedef struct ejki_operands_copy {
    const ejk_record *record;
    void *args;
    void **memory; /* one per field; NULL where the caller's is used or there is no tensor */
} ejki_operands_copy;

/*
 * Inputs that have data are used where they lie; those without get reproducible random numbers: floats in
 * [-1, 1), truth values true nine times in ten, integers 0. Outputs always get memory of their own, of the
 * same strides. Released by the caller also after a failure. OVERFLOW, OUT_OF_MEMORY.
 */
ejk_status ejki_operands_copy_create(const ejk_record *record, const void *args,
                                     ejki_operands_copy *out);

/* Bytes that the inputs lie in. */
int64_t ejki_operands_input_bytes(const ejki_operands_copy *copy);

/*
 * The same call with inputs of the same contents in memory of its own; results go where `first` has them,
 * which must live as long. As above in all else.
 */
ejk_status ejki_operands_copy_inputs(const ejki_operands_copy *first, ejki_operands_copy *out);

void ejki_operands_copy_release(ejki_operands_copy *copy);

/* Fills the outputs with what no operation writes: NaN, or bytes of ones. */
void ejki_operands_poison(const ejki_operands_copy *copy);

/* True of a field that holds a result that is there. */
bool ejki_is_output(const ejk_field *field, const void *args);

#endif
