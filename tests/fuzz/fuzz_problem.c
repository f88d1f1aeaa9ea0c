/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any text as a list of problems. What is read must come out as a line that means the same and is written
 * as the same line again; small problems are given memory, which the sanitizer then watches.
 */
#include <ejkernel/ejkernel.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ejk_context *context;

static void require(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "%s: %s\n", what, ejk_last_error());
    abort();
}

static bool is_small(const ejk_problem *problem) {
    const ejk_record *record = ejk_problem_kernel(problem)->args;
    for (int32_t i = 0; i < record->count; i++) {
        const ejk_field *field = &record->fields[i];
        if (field->kind != EJK_FIELD_TENSOR) continue;
        const char *args = ejk_problem_args(problem);
        const ejk_tensor *tensor = (const ejk_tensor *)(const void *)(args + field->offset);
        int64_t low = 0, high = 0;
        if (ejk_tensor_present(tensor)) ejk_tensor_span(tensor, &low, &high);
        if (high - low > 4096 || (high > low && ejk_tensor_count(tensor) > 4096)) return false;
    }
    return true;
}

static ejk_status take(void *user, int64_t line, ejk_problem *problem) {
    (void)user;
    (void)line;
    const ejk_kernel *kernel = ejk_problem_kernel(problem);
    char *first, *second;
    const ejk_status status = ejk_problem_to_text(kernel, ejk_problem_args(problem), &first);
    if (status == EJK_STATUS_OVERFLOW) return EJK_OK; /* its longer form does not fit a line */
    require(status == EJK_OK, "write");
    ejk_problem *again;
    require(ejk_problem_parse(context, first, &again) == EJK_OK, first);
    require(ejk_problem_to_text(kernel, ejk_problem_args(again), &second) == EJK_OK, "write again");
    require(strcmp(first, second) == 0, first);
    ejk_free(first);
    ejk_free(second);
    ejk_problem_destroy(again);
    if (is_small(problem)) require(ejk_problem_allocate(problem, 1) == EJK_OK, "allocate");
    return EJK_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!context) require(ejk_context_create(NULL, &context) == EJK_OK, "context");
    (void)!ejk_problem_read_text(context, "list", (const char *)data, size, take, NULL);
    return 0;
}
