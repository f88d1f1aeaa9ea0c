/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of what objects hold, on GPUs. */
#include "mask_info/info.h"

#include <ejkernel/cuda.h>
#include <stdlib.h>

void ejki_copies_close(ejki_copy *copies) {
    while (copies != NULL) {
        ejki_copy *next = copies->next;
        ejk_owned_tensor_close(&copies->there);
        free(copies);
        copies = next;
    }
}

static bool same_view(const ejk_tensor *a, const ejk_tensor *b) {
    bool same = a->dtype == b->dtype && a->rank == b->rank;
    for (int32_t i = 0; same && i < a->rank; i++) same = a->shape[i] == b->shape[i];
    return same;
}

static ejki_copy *find(const ejk_mask_info *info, int32_t device, const ejk_tensor *view) {
    for (ejki_copy *copy = info->copies; copy != NULL; copy = copy->next)
        if (copy->source == view->data && copy->there.tensor.device_index == device &&
            same_view(&copy->there.tensor, view))
            return copy;
    return NULL;
}

static ejk_status add(ejk_mask_info *info, int32_t device, const ejk_tensor *view,
                      ejki_copy **out) {
    ejki_copy *copy = calloc(1, sizeof *copy);
    if (copy == NULL) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a mask info");
    copy->source = view->data;
    ejk_status status =
        ejk_device_tensor_create(device, view->dtype, view->rank, view->shape, &copy->there);
    if (status == EJK_OK) status = ejk_device_copy(view, &copy->there.tensor, NULL);
    if (status != EJK_OK) {
        ejki_copies_close(copy);
        return status;
    }
    copy->next = info->copies;
    info->copies = copy;
    *out = copy;
    return EJK_OK;
}

ejk_status ejk_mask_info_on_device(const ejk_mask_info *info, int32_t device, ejk_tensor *view) {
    NEED(info);
    NEED(view);
    if (!ejk_tensor_present(view)) return EJK_OK;
    ejk_mask_info *filled = (ejk_mask_info *)(uintptr_t)info; /* only copies are added */
    pthread_mutex_lock(&filled->lock);
    ejki_copy *copy = find(info, device, view);
    const ejk_status status = copy ? EJK_OK : add(filled, device, view, &copy);
    pthread_mutex_unlock(&filled->lock);
    if (status == EJK_OK) *view = copy->there.tensor;
    return status;
}
