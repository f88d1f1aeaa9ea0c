/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes are a GGUF file or an error; every tensor of one lies within the bytes. */
#include <ejkernel/gguf.h>

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void read_all(const ejk_tensor *tensor) {
    ejk_owned_tensor copy = {0};
    ejk_status status = ejk_owned_tensor_create(EJK_DTYPE_F32, tensor->rank, tensor->shape, &copy);
    if (status != EJK_OK || ejk_tensor_copy(tensor, &copy.tensor) != EJK_OK) abort();
    ejk_owned_tensor_close(&copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    ejk_gguf *file = NULL;
    if (ejk_gguf_parse(bytes, size, &file) != EJK_OK) return 0;
    for (int64_t i = 0; i < ejk_gguf_count(file); i++) {
        ejk_tensor tensor = {0};
        ejk_status status = ejk_gguf_tensor(file, ejk_gguf_name(file, i), &tensor);
        if (status == EJK_OK)
            read_all(&tensor);
        else if (status == EJK_STATUS_UNKNOWN_NAME)
            abort();
    }
    ejk_gguf_close(file);
    return 0;
}
