/* SPDX-License-Identifier: Apache-2.0 */
/* The elements of a mask straight into the caller's tensor, which also says the shape. */
#include "mask/mask.h"

static ejk_status check(const ejk_tensor *out) {
    if (out == NULL) return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT, "out is NULL");
    if (out->rank == 2) return EJK_OK;
    return REFUSE(INVALID_SHAPE, ARRAY_NOT_2D, "out has %d axes, expected 2", (int)out->rank);
}

/* Takes the mask over, if it was made. */
static ejk_status write(ejk_status made, ejk_splash_mask *mask, const ejk_tensor *out) {
    static const int64_t start[2];
    EJKI_TRY(made);
    ejk_status status = ejk_splash_mask_read(mask, start, out->shape, out);
    ejk_splash_mask_release(mask);
    return status;
}

ejk_status ejk_make_causal_mask(int64_t offset, const ejk_tensor *out) {
    ejk_splash_mask *mask = NULL;
    EJKI_TRY(check(out));
    ejk_status made = ejk_causal_mask_create(out->shape, offset, NULL, &mask);
    return write(made, mask, out);
}

ejk_status ejk_make_local_attention_mask(ejk_window window_size, int64_t offset,
                                         const ejk_tensor *out) {
    ejk_splash_mask *mask = NULL;
    EJKI_TRY(check(out));
    ejk_status made = ejk_local_mask_create(out->shape, window_size, offset, NULL, &mask);
    return write(made, mask, out);
}

ejk_status ejk_make_chunk_attention_mask(int64_t chunk_size, const ejk_tensor *out) {
    ejk_splash_mask *mask = NULL;
    EJKI_TRY(check(out));
    ejk_status made = ejk_chunked_causal_mask_create(out->shape, chunk_size, NULL, &mask);
    return write(made, mask, out);
}
