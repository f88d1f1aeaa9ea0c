/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file context.h
 * A context holds threads, scratch memory, the registry and cached plans. Create one and share it: the library
 * has no global state.
 *
 * Thread-safety: every function but ejk_context_destroy() may be called from any thread at once.
 *
 * After fork(), a context may be used in the child too, provided that no other thread was inside one of its calls
 * at the time of the fork. The first parallel loop in the child starts new threads; a persistent cache that the
 * parent had opened is not used there. A caller's `parallel_for` must itself support fork(). If the parent had
 * used a GPU, calls on GPUs return UNAVAILABLE in the child: CUDA does not support fork().
 *
 * @since 0.1
 */
#ifndef EJKERNEL_CONTEXT_H
#define EJKERNEL_CONTEXT_H

#include <ejkernel/chooser.h>
#include <ejkernel/device.h>
#include <ejkernel/kernel.h>
#include <ejkernel/registry.h>
#include <ejkernel/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ejk_context ejk_context;

/**
 * Receives events: `event` is a name ("plan_created"), `fields` a JSON object. Called by the thread that makes
 * the call, at most once per plan, never during an execution.
 */
typedef void (*ejk_event_fn)(void *user, const char *event, const char *fields);

/** How a context is made. Zero means default everywhere. */
typedef struct ejk_context_options {
    int32_t threads; /**< 0 = ejk_threads_default() */
    ejk_parallel_for_fn
        parallel_for;        /**< the caller's own loop in place of a pool; `threads` ≥ 1 then
                                           says how many it runs at once */
    void *parallel_for_user; /**< its first argument */
    const char *isa;         /**< highest tier to use; NULL = ejk_isa_default() */
    ejk_event_fn on_event;   /**< NULL = events are dropped */
    void *on_event_user;     /**< its first argument */
    /**
     * Provides configurations; copied. NULL = the context's own selector chain (selector.h): it reads the
     * persistent cache at the default path, if there is one, and never measures unless EJKERNEL_AUTOTUNE_POLICY
     * is "autotune". Its events go to `on_event`.
     */
    const ejk_config_chooser *chooser;
    /**
     * The stream on which calls with tensors on a GPU enqueue their work: a `CUstream`, which is the same as a
     * `cudaStream_t`; NULL = the default stream of the tensors' device.
     */
    void *stream;
} ejk_context_options;

/**
 * Creates a context with the library's own kernels and implementations. NULL options = defaults.
 * Statuses: INVALID_ARGUMENT, UNKNOWN_NAME and UNAVAILABLE (`isa`, EJKERNEL_ISA), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_context_create(const ejk_context_options *options,
                                                    ejk_context **out);

/** Destroys it. None of its calls may be running, and none of its plans may be used afterwards. NULL is allowed. */
EJK_API void ejk_context_destroy(ejk_context *context);

/** Its parts, owned by it. */
EJK_API ejk_registry *ejk_context_registry(ejk_context *context);
EJK_API ejk_threads *ejk_context_threads(ejk_context *context);
EJK_API ejk_isa ejk_context_isa(const ejk_context *context);

/**
 * Registers a kernel by its name. Its records are checked. INVALID_ARGUMENT: the sentence says what is wrong with
 * it, or that the name is taken.
 */
EJK_API EJK_NODISCARD ejk_status ejk_context_add_kernel(ejk_context *context,
                                                        const ejk_kernel *kernel);

/** A kernel by its op_id. UNKNOWN_NAME lists those that exist; UNAVAILABLE: a name of a later version. */
EJK_API EJK_NODISCARD ejk_status ejk_context_find_kernel(const ejk_context *context,
                                                         const char *op_id, const ejk_kernel **out);

/** Kernels by index, in the order they were added; NULL out of range. */
EJK_API const ejk_kernel *ejk_context_kernel(const ejk_context *context, int32_t index);

/**
 * Calls a kernel. The plan for these arguments is taken from the context's cache, or created and cached (at most
 * 256 plans, in sets of 8, each of which evicts its least recently used). `args` is the struct that kernel->args
 * describes. A cached plan keeps its implementation, whatever is registered later.
 * For tensors on a GPU, see plan.h. While a stream is captured into a graph, only calls whose plans exist can be
 * made, since creating one allocates. A graph must not outlive the plan's workspace, so create plans for such
 * calls yourself.
 * Statuses: those of ejk_plan_create() and ejk_plan_execute().
 */
EJK_API EJK_NODISCARD ejk_status ejk_call(ejk_context *context, const ejk_kernel *kernel,
                                          const void *args);

/** The same on another stream than the context's. The stream is ignored if the tensors are on the CPU. */
EJK_API EJK_NODISCARD ejk_status ejk_call_on(ejk_context *context, const ejk_kernel *kernel,
                                             const void *args, void *stream);

#ifdef __cplusplus
}
#endif
#endif
