/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors that a function on the CPU is given: each check fails with a sentence that names the argument. */
#ifndef EJKI_TENSOR_ARGUMENT_H
#define EJKI_TENSOR_ARGUMENT_H

#include "tensor/view.h"

/* A view that can be read here: not NULL, sound and on the CPU. INVALID_ARGUMENT, UNAVAILABLE, ejk_tensor_check()'s. */
ejk_status ejki_argument_input(const ejk_tensor *tensor, const char *name);

/* The same of a rank. INVALID_SHAPE. */
ejk_status ejki_argument_of_rank(const ejk_tensor *tensor, const char *name, int32_t rank);

/* A view that can be written here: each element has a place of its own. INVALID_LAYOUT. */
ejk_status ejki_argument_output(const ejk_tensor *tensor, const char *name);

/* INVALID_LAYOUT: an output shares bytes with another argument. */
ejk_status ejki_argument_apart(const ejk_tensor *output, const char *output_name,
                               const ejk_tensor *other, const char *other_name);

#endif
