/* SPDX-License-Identifier: Apache-2.0 */
/* What stands behind ejk_owned_tensor.owner, whoever made the tensor. */
#ifndef EJKI_TENSOR_OWNED_H
#define EJKI_TENSOR_OWNED_H

/* The first member of every owner; release() frees the owner itself too. */
typedef struct ejki_owner {
    void (*release)(struct ejki_owner *self);
} ejki_owner;

#endif
