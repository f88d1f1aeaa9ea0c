/* SPDX-License-Identifier: Apache-2.0 */
/* A call's arguments with memory to run on, for measuring. */
#ifndef EJKI_OPS_EXECUTION_OPERANDS_H
#define EJKI_OPS_EXECUTION_OPERANDS_H

#include <ejkernel/kernel.h>
#include <ejkernel/states.h>

#include "ops/core/request.h"

/* A copy of a call's arguments whose tensors lie in memory of its own where they have to. */
typedef struct ejki_operands_copy {
    const ejk_record *record;
    void *args;
    void **memory;      /* one per field; NULL where the caller's is used or there is no tensor */
    ejki_device place;  /* of the tensors, and so of the memory */
    ejk_states *states; /* what the call updates in place, as it was at first */
} ejki_operands_copy;

/*
 * Inputs that have data are used where they lie; those without get reproducible contents, as ejk_fill_inputs()
 * has them. Outputs always get memory of their own, of the same strides. Memory is where the tensors lie, on the
 * CPU or a GPU. Released by the caller also after a failure. OVERFLOW, OUT_OF_MEMORY, those of ejk_fill_inputs().
 */
ejk_status ejki_operands_copy_create(const ejk_kernel *kernel, const void *args,
                                     ejki_operands_copy *out);

/* Bytes that the inputs lie in. */
int64_t ejki_operands_input_bytes(const ejki_operands_copy *copy);

/*
 * The same call with inputs of the same contents in memory of its own; results go where `first` has them,
 * which must live as long. As above in all else.
 */
ejk_status ejki_operands_copy_inputs(const ejki_operands_copy *first, ejki_operands_copy *out);

void ejki_operands_copy_release(ejki_operands_copy *copy);

/* Puts back what runs have updated in place. */
ejk_status ejki_operands_restore(const ejki_operands_copy *copy);

/* Fills what is only written with what no operation writes: NaN, or bytes of ones. */
ejk_status ejki_operands_poison(const ejki_operands_copy *copy);

/* A copy that the CPU can read, row by row, of a tensor wherever it lies, once all work there is done. */
ejk_status ejki_tensor_fetch(const ejk_tensor *tensor, ejk_owned_tensor *out);

/* The same for comparing: all elements of a tensor of a GPU that has no gaps, in the order of memory. */
ejk_status ejki_tensor_fetch_flat(const ejk_tensor *tensor, ejk_owned_tensor *out);

/* Copies between two tensors of one shape, element type and place, of any strides. */
ejk_status ejki_tensor_move(const ejk_tensor *source, const ejk_tensor *target);

/* A row-major tensor in memory of that place. */
ejk_status ejki_tensor_create_at(ejki_device place, ejk_dtype dtype, int32_t rank,
                                 const int64_t *shape, ejk_owned_tensor *out);

/* True of a field that a call writes and that is there. */
bool ejki_is_output(const ejk_field *field, const void *args);

#endif
