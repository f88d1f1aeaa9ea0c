/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over 6 keys for 6 queries, 4 query heads that share 2 heads of keys and values. */
#include <ejkernel/ejkernel.h>

#include <math.h>
#include <stdio.h>

enum { B = 1, T = 6, HQ = 4, HKV = 2, D = 16 };

static float query[B * T * HQ * D], key[B * T * HKV * D], value[B * T * HKV * D];
static float out[B * T * HQ * D], lse[B * HQ * T];

static void fill(float *array, int count, double step) {
    for (int i = 0; i < count; i++) array[i] = (float)sin(step * i);
}

int main(void) {
    fill(query, B * T * HQ * D, 0.7);
    fill(key, B * T * HKV * D, 0.3);
    fill(value, B * T * HKV * D, 0.1);

    ejk_flash_attention_args args = {.causal = true}; /* zero means default everywhere else */
    args.query = ejk_tensor_4d(query, EJK_DTYPE_F32, B, T, HQ, D);
    args.key = ejk_tensor_4d(key, EJK_DTYPE_F32, B, T, HKV, D);
    args.value = ejk_tensor_4d(value, EJK_DTYPE_F32, B, T, HKV, D);
    args.out = ejk_tensor_4d(out, EJK_DTYPE_F32, B, T, HQ, D);
    args.lse = ejk_tensor_3d(lse, EJK_DTYPE_F32, B, HQ, T);

    ejk_context *context = NULL;
    ejk_status status = ejk_context_create(NULL, &context);
    if (status == EJK_OK) status = ejk_flash_attention(context, &args);
    if (status != EJK_OK) fprintf(stderr, "%s: %s\n", ejk_status_name(status), ejk_last_error());
    ejk_context_destroy(context);
    for (int t = 0; t < T && status == EJK_OK; t++)
        printf("query %d: out %9.6f %9.6f ..., lse %9.6f\n", t, (double)out[t * HQ * D],
               (double)out[t * HQ * D + 1], (double)lse[t]);
    return status == EJK_OK ? 0 : 1;
}
