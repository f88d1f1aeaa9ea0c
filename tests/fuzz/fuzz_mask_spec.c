/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a request for a MaskInfo, which always gets an answer, and as a mask, which is written and drawn. */
#include <ejkernel/mask_drawing.h>
#include <ejkernel/splash_mask.h>
#include <ejkernel/status.h>
#include <stdlib.h>

static bool drop(void *user, const char *bytes, size_t count) {
    *(size_t *)user += count;
    return bytes != NULL;
}

static void use_mask(const char *text, size_t size) {
    ejk_splash_mask *mask = NULL;
    int64_t shape[3] = {0};
    size_t written = 0;
    if (ejk_splash_mask_from_json(text, size, &mask) != EJK_OK) return;
    if (!ejk_splash_mask_equal(mask, mask)) abort();
    if (ejk_splash_mask_to_json(mask, drop, &written) != EJK_OK || written == 0) abort();
    int32_t rank = ejk_splash_mask_shape(mask, shape);
    for (int f = EJK_MASK_DRAWING_TEXT; f <= EJK_MASK_DRAWING_HTML; f++) {
        char *bytes = NULL;
        if (shape[rank - 2] > 4096 || shape[rank - 1] > 4096) break;
        ejk_status status = ejk_mask_draw(mask, NULL, (ejk_mask_drawing_format)f, &bytes, &written);
        if (status != EJK_OK) abort();
        ejk_free(bytes);
    }
    ejk_splash_mask_release(mask);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint8_t nothing[1];
    const char *text = (const char *)(size > 0 ? data : nothing);
    ejk_splash_answer_options options = {.max_bytes = 1 << 20};
    size_t written = 0;
    bool is_result;
    if (ejk_splash_answer(text, size, &options, drop, &written, &is_result) != EJK_OK) abort();
    if (written == 0) abort();
    use_mask(text, size);
    return 0;
}
