/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as a request for a MaskInfo: an answer always comes. */
#include <ejkernel/splash_mask.h>
#include <stdlib.h>

static bool drop(void *user, const char *bytes, size_t count) {
    *(size_t *)user += count;
    return bytes != NULL;
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
    return 0;
}
