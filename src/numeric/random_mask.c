/* SPDX-License-Identifier: Apache-2.0 */
#include <ejkernel/numeric.h>

#include "base/base.h"
#include "numeric/array.h"
#include "numeric/random.h"

#include <math.h>

typedef struct fill {
    const ejk_tensor *out;
    ejk_random_key key;
    uint64_t bound; /* numbers below are true, of 2^32 */
} fill;

static void fill_part(void *argument, int64_t task) {
    const fill *f = argument;
    uint8_t values[EJKI_RUN];
    int64_t end = ejki_min((task + 1) * EJKI_TASK, ejk_tensor_count(f->out));
    for (int64_t at = task * EJKI_TASK; at < end; at += EJKI_RUN) {
        int64_t count = ejki_min(end - at, EJKI_RUN);
        for (int64_t i = 0; i < count; i++)
            values[i] = ejki_random_bits(f->key, (uint64_t)(at + i)) < f->bound;
        ejki_array_store(f->out, at, count, EJK_DTYPE_BOOL, values);
    }
}

ejk_status ejk_make_random_mask(ejk_random_key key, double sparsity, ejk_threads *threads,
                                const ejk_tensor *out) {
    EJKI_TRY(ejki_argument_output(out, "out"));
    if (out->dtype != EJK_DTYPE_BOOL)
        return ejki_fail(EJK_STATUS_INVALID_DTYPE, "out is %s, expected bool",
                         ejk_dtype_name(out->dtype));
    if (!(sparsity >= 0 && sparsity <= 1))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "sparsity is %g, expected 0 to 1", sparsity);
    if (ejk_tensor_count(out) == 0) return EJK_OK;
    ejk_tensor flat = ejki_array_flat(out);
    fill f = {.out = &flat, .key = key, .bound = (uint64_t)rint((1 - sparsity) * 0x1p32)};
    ejk_parallel_for(threads, ejki_cdiv(ejk_tensor_count(out), EJKI_TASK), fill_part, &f);
    return EJK_OK;
}
