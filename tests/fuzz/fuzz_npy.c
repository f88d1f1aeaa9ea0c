/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes are a .npy file or an error; what is one can be read to the last element. */
#include <ejkernel/tensor.h>

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    ejk_owned_tensor read = {0}, copy = {0};
    if (ejk_npy_parse(bytes, size, &read) != EJK_OK) return 0;
    ejk_status status =
        ejk_owned_tensor_create(EJK_DTYPE_F32, read.tensor.rank, read.tensor.shape, &copy);
    if (status != EJK_OK || ejk_tensor_copy(&read.tensor, &copy.tensor) != EJK_OK) abort();
    ejk_owned_tensor_close(&copy);
    ejk_owned_tensor_close(&read);
    return 0;
}
