/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operators of PyTorch, registered in C. No header of PyTorch's is needed: its stable C functions (2.10 or later) are
 * looked up in the library that the process has loaded.
 *
 * All operators have one kernel. Their arguments are optional tensors and, last, the text of the call (calls.h), which
 * names those that are given; they return the results, as a list or, where PyTorch wants it so, one by one. Failures
 * are PyTorch's RuntimeError with "STATUS: sentence".
 */
#ifndef EJKI_BINDINGS_TORCH_OPERATORS_H
#define EJKI_BINDINGS_TORCH_OPERATORS_H

#include <ejkernel/status.h>

/*
 * Looks the functions up in PyTorch's library of this path, and in that of CUDA, which need not be there: NULL, or not
 * loaded. UNAVAILABLE: the first is not loaded, or has none of a name.
 */
EJK_API EJK_NODISCARD ejk_status ejk_torch_start(const char *path, const char *cuda_path);

/*
 * Defines libejkernel::name with a schema, for tensors of CPU and CUDA; `as_list` if it returns a list. Statuses:
 * UNAVAILABLE (not started), INTERNAL (PyTorch refuses it).
 */
EJK_API EJK_NODISCARD ejk_status ejk_torch_define(const char *name, const char *schema,
                                                  bool as_list);

#endif
