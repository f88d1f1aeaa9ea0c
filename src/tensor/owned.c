/* SPDX-License-Identifier: Apache-2.0 */
#include "tensor/owned.h"

#include "base/base.h"
#include "tensor/view.h"

#include <inttypes.h>
#include <stdlib.h>

enum { ALIGNMENT = 64 };

static void release_memory(ejki_owner *self) {
    free(self);
}

ejk_status ejk_owned_tensor_create(ejk_dtype dtype, int32_t rank, const int64_t *shape,
                                   ejk_owned_tensor *out) {
    if (out == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL");
    if (rank > 0 && shape == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "shape is NULL");
    ejk_tensor tensor = ejk_tensor_contiguous(NULL, dtype, rank, shape);
    int64_t low, bytes, total;
    EJKI_TRY(ejki_tensor_extent(&tensor, "tensor", &low, &bytes));
    /* One block: the owner, then the elements from the next aligned address. calloc leaves large zeros to
       the kernel, which hands them out page by page. */
    if (!ejki_add(bytes, (int64_t)sizeof(ejki_owner) + ALIGNMENT, &total)) {
        return ejki_fail(EJK_STATUS_OVERFLOW,
                         "tensor needs %" PRId64 " bytes, more than can be asked for", bytes);
    }
    ejki_owner *owner = calloc(1, (size_t)total);
    if (owner == NULL) {
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a tensor of %" PRId64 " bytes",
                         bytes);
    }
    owner->release = release_memory;
    uintptr_t address = (uintptr_t)(owner + 1);
    tensor.data = (char *)(owner + 1) + (ALIGNMENT - address % ALIGNMENT) % ALIGNMENT;
    *out = (ejk_owned_tensor){tensor, owner};
    return EJK_OK;
}

void ejk_owned_tensor_close(ejk_owned_tensor *owned) {
    if (owned == NULL) return;
    ejki_owner *owner = owned->owner;
    if (owner != NULL) owner->release(owner);
    *owned = (ejk_owned_tensor){0};
}
