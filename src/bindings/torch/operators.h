/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators of PyTorch, registered in C from 2.10 on. No header of PyTorch's is needed: its stable C functions are
 * looked up in the library that the process has loaded. Those of 2.9 do for calls, but not for operators, which have to
 * be registered in Python there.
 *
 * All operators have one kernel. Their arguments are tensors (ejk_torch_form) and, last, the text of the call
 * (calls.h), which names those that are given; they return the results. Failures are PyTorch's RuntimeError with
 * "STATUS: sentence".
 */
#ifndef EJKI_BINDINGS_TORCH_OPERATORS_H
#define EJKI_BINDINGS_TORCH_OPERATORS_H

#include <stdbool.h>
#include <stdint.h>

#include <ejkernel/status.h>

/*
 * Looks the functions up in PyTorch's library of this path, and in that of CUDA, which need not be there: NULL, or not
 * loaded. `defines`: whether ejk_torch_define() works. UNAVAILABLE: the first is not loaded, or has not even what calls
 * need.
 */
EJK_API EJK_NODISCARD ejk_status ejk_torch_start(const char *path, const char *cuda_path,
                                                 bool *defines);

/*
 * Runs a call of these operands, handles of PyTorch's (AtenTensorHandle) that become the library's. Handles of the
 * results, as many as `made` says, become the caller's; `results` has room for 64. Statuses: UNAVAILABLE (not started),
 * those of calls (calls.h).
 */
EJK_API EJK_NODISCARD ejk_status ejk_torch_call(const char *text, void *const *operands,
                                                int32_t count, void **results, int32_t *made);

/* How an operator takes tensors and returns results; one by one is how PyTorch wants results of what updates. */
typedef enum ejk_torch_form {
    EJK_TORCH_VALUES = 0,  /* an optional tensor each, results one by one */
    EJK_TORCH_RESULTS = 1, /* an optional tensor each, a list of results */
    EJK_TORCH_LISTS = 2,   /* a list of those that are given, a list of results */
} ejk_torch_form;

/*
 * Defines libejkernel::name with a schema of this form, for tensors of CPU and CUDA. Statuses: INVALID_ARGUMENT,
 * UNAVAILABLE (not started, or an old PyTorch), INTERNAL (PyTorch refuses it).
 */
EJK_API EJK_NODISCARD ejk_status ejk_torch_define(const char *name, const char *schema,
                                                  ejk_torch_form form);

#endif
