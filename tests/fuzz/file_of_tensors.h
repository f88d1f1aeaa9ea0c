/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes are a file of tensors or an error; every tensor of one lies within the bytes. FORMAT is gguf or
 * safetensors, whose functions have the same form.
 */
#include <ejkernel/ejkernel.h>
#include <stdlib.h>

#define JOINED(a, format, b) a##format##b
#define NAMED(a, format, b)  JOINED(a, format, b)
#define FUNCTION(name)       NAMED(ejk_, FORMAT, name)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void read_all(const ejk_tensor *tensor) {
    ejk_owned_tensor copy = {0};
    ejk_status status = ejk_owned_tensor_create(EJK_DTYPE_F32, tensor->rank, tensor->shape, &copy);
    if (status != EJK_OK || ejk_tensor_copy(tensor, &copy.tensor) != EJK_OK) abort();
    ejk_owned_tensor_close(&copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    NAMED(ejk_, FORMAT, ) *file = NULL;
    if (FUNCTION(_parse)(bytes, size, &file) != EJK_OK) return 0;
    for (int64_t i = 0; i < FUNCTION(_count)(file); i++) {
        ejk_tensor tensor = {0};
        ejk_status status = FUNCTION(_tensor)(file, FUNCTION(_name)(file, i), &tensor);
        if (status == EJK_OK)
            read_all(&tensor);
        else if (status == EJK_STATUS_UNKNOWN_NAME)
            abort();
    }
    FUNCTION(_close)(file);
    return 0;
}
