/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for the tensors of a problem, and reproducible numbers in it. */
#include "ops/core/fill.h"
#include "ops/core/problem_text.h"

#include <string.h>
#include <unistd.h>

/* Bytes to write, which strides that make elements one may let be more than there are; saturated. */
static int64_t written_bytes(const ejk_tensor *tensor) {
    int64_t bytes = ejk_dtype_bytes(tensor->dtype, 1);
    for (int32_t i = 0; i < tensor->rank; i++)
        if (!ejki_mul(bytes, ejki_filled(tensor, i), &bytes)) return INT64_MAX;
    return bytes;
}

/* Systems promise more than they have, and end who takes it. */
static ejk_status check_total(const ejk_problem *problem) {
    const int64_t most = (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE);
    int64_t total = 0;
    for (int32_t i = 0; i < problem->slots.count; i++) {
        const ejk_tensor *tensor = ejki_slot_tensor(&problem->slots.list[i], problem->args);
        int64_t low = 0, high = 0, bytes = 0;
        if (ejk_tensor_present(tensor)) {
            ejk_tensor_span(tensor, &low, &high);
            bytes = ejki_max(high - low, written_bytes(tensor));
        }
        if (!ejki_add(total, bytes, &total) || total >= most)
            return ejki_fail(EJK_STATUS_OUT_OF_MEMORY,
                             "the tensors of %s need more than the %lld bytes of this machine",
                             problem->kernel->op_id, (long long)most);
    }
    return EJK_OK;
}

/* Memory of a tensor and its view's address in it: strides may lead to before the first element. */
static ejk_status place_tensor(ejk_problem *problem, int32_t index) {
    ejk_tensor *tensor = ejki_slot_tensor(&problem->slots.list[index], problem->args);
    ejk_owned_tensor *memory = &problem->memory[index];
    int64_t low, high;
    if (!ejk_tensor_present(tensor) || memory->owner) return EJK_OK;
    ejk_tensor_span(tensor, &low, &high);
    const int64_t bytes = high - low;
    EJKI_TRY(ejk_owned_tensor_create(EJK_DTYPE_U8, 1, &bytes, memory));
    tensor->data = (char *)memory->tensor.data - low;
    return EJK_OK;
}

static void take_back(ejk_problem *problem) {
    for (int32_t i = 0; i < problem->slots.count; i++) {
        ejk_owned_tensor_close(&problem->memory[i]);
        ejki_slot_tensor(&problem->slots.list[i], problem->args)->data = NULL;
    }
}

ejk_status ejk_problem_allocate(ejk_problem *problem, uint64_t seed) {
    if (!problem) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "problem is NULL, expected one");
    EJKI_TRY(check_total(problem));
    ejk_status status = EJK_OK;
    for (int32_t i = 0; i < problem->slots.count && status == EJK_OK; i++)
        status = place_tensor(problem, i);
    if (status != EJK_OK) {
        take_back(problem);
        return status;
    }
    for (int32_t i = 0; i < problem->slots.count; i++) {
        const ejk_tensor *memory = &problem->memory[i].tensor;
        if (ejk_tensor_present(ejki_slot_tensor(&problem->slots.list[i], problem->args)))
            memset(memory->data, 0, (size_t)memory->shape[0]);
    }
    return ejki_fill_inputs(problem->kernel, problem->args, &(ejk_inputs){.seed = seed});
}
