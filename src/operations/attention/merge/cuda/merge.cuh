/* SPDX-License-Identifier: Apache-2.0 */
/* What attention_merge and its gradients share. Constants: ELEMENT, of the parts, and those of rows.cuh. */
#ifndef EJKI_ATTENTION_MERGE_CUDA_MERGE_CUH
#define EJKI_ATTENTION_MERGE_CUDA_MERGE_CUH

#include "kernels/cuda/rows.cuh"
#include "operations/attention/merge/cuda/arguments.cuh"

typedef run_of<ELEMENT, VECTOR> part_run;

struct row {
    merge_size b, t, h;
};

DEVICE row row_of(const merge_arguments &a, merge_size n) {
    const merge_size tokens = n / a.heads;
    return {tokens / a.queries, tokens % a.queries, n % a.heads};
}

/* exp(score - largest); 0 for what nothing was seen of, also if all is so. */
DEVICE float weight(float score, float largest) {
    return score == NEG_INF ? 0 : expf(score - largest);
}

#endif
