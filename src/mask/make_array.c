/* SPDX-License-Identifier: Apache-2.0 */
/* The elements of a mask straight into the caller's tensor, which also says the shape. */
#include "base/base.h"
#include "mask/mask.h"

enum { PIECE = 1 << 20 }; /* elements of a task, or one row */

static ejk_status check(const ejk_tensor *out) {
    if (out == NULL) return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT, "out is NULL");
    if (out->rank == 2) return EJK_OK;
    return REFUSE(INVALID_SHAPE, ARRAY_NOT_2D, "out has %d axes, expected 2", (int)out->rank);
}

typedef struct writing {
    const ejk_splash_mask *mask;
    const ejk_tensor *out;
    int64_t rows; /* of a task */
} writing;

static void write_rows(void *argument, int64_t index) {
    const writing *w = argument;
    int64_t end = ejki_min((index + 1) * w->rows, w->out->shape[0]);
    for (int64_t i = index * w->rows; i < end; i++)
        ejki_mask_row(w->mask, i, 0, w->out->shape[1],
                      (uint8_t *)w->out->data + i * w->out->strides[0]);
}

/* Takes the mask over, if it was made. */
static ejk_status write(ejk_status made, ejk_splash_mask *mask, ejk_threads *threads,
                        const ejk_tensor *out) {
    static const int64_t start[2];
    EJKI_TRY(made);
    writing w = {mask, out, ejki_max(1, PIECE / out->shape[1])};
    ejk_status status = ejki_mask_read_check(mask, start, out->shape, out);
    if (status == EJK_OK)
        ejk_parallel_for(threads, ejki_cdiv(out->shape[0], w.rows), write_rows, &w);
    ejk_splash_mask_release(mask);
    return status;
}

ejk_status ejk_make_causal_mask(int64_t offset, ejk_threads *threads, const ejk_tensor *out) {
    ejk_splash_mask *mask = NULL;
    EJKI_TRY(check(out));
    ejk_status made = ejk_causal_mask_create(out->shape, offset, NULL, &mask);
    return write(made, mask, threads, out);
}

ejk_status ejk_make_local_attention_mask(ejk_window window_size, int64_t offset,
                                         ejk_threads *threads, const ejk_tensor *out) {
    ejk_splash_mask *mask = NULL;
    EJKI_TRY(check(out));
    ejk_status made = ejk_local_mask_create(out->shape, window_size, offset, NULL, &mask);
    return write(made, mask, threads, out);
}

ejk_status ejk_make_chunk_attention_mask(int64_t chunk_size, ejk_threads *threads,
                                         const ejk_tensor *out) {
    ejk_splash_mask *mask = NULL;
    EJKI_TRY(check(out));
    ejk_status made = ejk_chunked_causal_mask_create(out->shape, chunk_size, NULL, &mask);
    return write(made, mask, threads, out);
}
