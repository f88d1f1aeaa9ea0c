/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call of any operation whose tensors lie on the CPU, made again with tensors on a GPU: each in memory of its own
 * between canaries, with strides of its own, what lies between its elements and all results NaN beforehand. Under
 * EJK_TEST_EXACT without canaries, for compute-sanitizer.
 */
#ifndef TESTS_GPU_CALL_H
#define TESTS_GPU_CALL_H

#include "support/random.h"

#include <ejkernel/ejkernel.h>

enum { GPU_CALL_TENSORS = 48 };

struct gpu_call {
    const ejk_record *record;
    void *args; /* the call's, with tensors of the GPU */
    struct gpu_call_tensor {
        const ejk_field *field;
        ejk_tensor here;      /* the caller's */
        unsigned char *image; /* as all its memory was before */
        unsigned char *there; /* on the GPU */
        size_t bytes, start;
        bool is_result;
    } tensors[GPU_CALL_TENSORS];
    int count;
};

/* Copies arguments and all tensors that are present. Exits the process where the GPU has no memory. */
void gpu_call_open(struct gpu_call *c, const ejk_record *record, const void *args,
                   struct random *random);
/* Makes the call; the sentence of a failure is ejk_last_error()'s. */
ejk_status gpu_call_run(struct gpu_call *c, ejk_context *context, const ejk_kernel *kernel);
/*
 * Waits, and copies results into `results`, a struct as the arguments whose result tensors are the caller's to be
 * written; false, with a sentence, if anything beside them was written.
 */
bool gpu_call_take(struct gpu_call *c, void *results, char *why, size_t size);
/* Copies all memory of result tensors as it is, unless `to` is NULL, and answers how many bytes it is. */
size_t gpu_call_copy_results(const struct gpu_call *c, unsigned char *to);
void gpu_call_close(struct gpu_call *c);

#endif
