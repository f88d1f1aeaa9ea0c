/* SPDX-License-Identifier: Apache-2.0 */
/* Masks as bits, 64 elements a word. */
#include "base/bits.h"
#include "sequence/sequence.h"

enum { CHUNK = 4096 };

void ejki_pack_row(const ejk_tensor *row, uint64_t *words) {
    int64_t count = row->shape[0];
    if (ejk_dtype_size(row->dtype) == 1 && row->strides[0] == 1) {
        ejki_pack_bytes(row->data, count, words);
        return;
    }
    unsigned char truth[CHUNK];
    for (int64_t done = 0; done < count; done += CHUNK) {
        int64_t length = ejki_min(CHUNK, count - done);
        ejk_tensor part = ejk_tensor_slice(*row, 0, done, length);
        ejk_tensor bytes = ejk_tensor_1d(truth, EJK_DTYPE_BOOL, length);
        if (ejk_tensor_copy(&part, &bytes) != EJK_OK) memset(truth, 0, sizeof truth); /* never */
        ejki_pack_bytes(truth, length, words + done / 64);
    }
}
