/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors of a GPU as the CPU can read and write them. */
#ifndef EJKI_OPS_CORE_MIRROR_H
#define EJKI_OPS_CORE_MIRROR_H

#include <ejkernel/status.h>
#include <ejkernel/tensor.h>

/* The bytes of a tensor of a GPU in memory of the CPU, seen with the same strides. */
typedef struct ejki_mirror {
    ejk_tensor view;
    void *bytes; /* to be freed */
    int64_t low, size;
} ejki_mirror;

/* Zeros, or, once all work there is done, what the GPU has. OUT_OF_MEMORY, and what the device says. */
ejk_status ejki_mirror_open(const ejk_tensor *there, bool fetched, ejki_mirror *out);

/* Sends all bytes back to the tensor. */
ejk_status ejki_mirror_send(const ejki_mirror *m, const ejk_tensor *there);

#endif
