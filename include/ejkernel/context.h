/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file context.h
 * A context: threads, scratch memory, registry, plans found again. Make one per user of the library and
 * share it; nothing of the library is global.
 *
 * Thread-safety: every function but ejk_context_destroy() may be called from any thread at once.
 *
 * After fork() a context may be used in the child too, if no other thread was in a call of it during the fork: the
 * child's first parallel loop starts threads of its own, and a persistent cache that was open is not written any
 * more. `parallel_for` of the caller must itself work in the child. Calls on GPUs answer UNAVAILABLE in the child
 * if the parent had used a GPU, since CUDA does not work in both.
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
 * Where events go: `event` is a name ("plan_created"), `fields` a JSON object. Called from the thread
 * that makes the call, at most once per plan, never during an execution.
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
     * Who decides on configurations; copied. NULL = a selector chain (selector.h) of the context's own: it
     * knows the persistent cache of the default path if there is one, and never measures unless
     * EJKERNEL_AUTOTUNE_POLICY is "autotune". Its events go to `on_event`.
     */
    const ejk_config_chooser *chooser;
    /**
     * Where calls with tensors on a GPU enqueue their work: a `CUstream`, which is a `cudaStream_t`; NULL = the
     * default stream of the tensors' device.
     */
    void *stream;
} ejk_context_options;

/**
 * Makes a context with the library's own kernels and implementations. NULL options = defaults.
 * Statuses: INVALID_ARGUMENT, UNKNOWN_NAME and UNAVAILABLE (`isa`, EJKERNEL_ISA), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_context_create(const ejk_context_options *options,
                                                    ejk_context **out);

/** Ends it. No call of it may be running, no plan of it may be used afterwards. NULL is allowed. */
EJK_API void ejk_context_destroy(ejk_context *context);

/** Its parts, owned by it. */
EJK_API ejk_registry *ejk_context_registry(ejk_context *context);
EJK_API ejk_threads *ejk_context_threads(ejk_context *context);
EJK_API ejk_isa ejk_context_isa(const ejk_context *context);

/**
 * Makes a kernel known by name. Its records are checked. INVALID_ARGUMENT: the sentence says what is
 * wrong with it, or that the name is taken.
 */
EJK_API EJK_NODISCARD ejk_status ejk_context_add_kernel(ejk_context *context,
                                                        const ejk_kernel *kernel);

/** A kernel by its op_id. UNKNOWN_NAME lists those that exist; UNAVAILABLE: a name of a later version. */
EJK_API EJK_NODISCARD ejk_status ejk_context_find_kernel(const ejk_context *context,
                                                         const char *op_id, const ejk_kernel **out);

/** Kernels by index, in the order they were added; NULL out of range. */
EJK_API const ejk_kernel *ejk_context_kernel(const ejk_context *context, int32_t index);

/**
 * Calls a kernel: the plan for these arguments is found in the context, or made and kept there (at most
 * 256; the plans longest unused give way, in sets of 8). `args` is the struct that kernel->args
 * describes. A plan that was made keeps its implementation, whatever is registered later.
 * Tensors on a GPU: see plan.h. While a stream is captured into a graph, only calls whose plans exist can be
 * made, as making one allocates; and a graph must not outlive the plan's workspace, so plan such calls yourself.
 * Statuses: those of ejk_plan_create() and ejk_plan_execute().
 */
EJK_API EJK_NODISCARD ejk_status ejk_call(ejk_context *context, const ejk_kernel *kernel,
                                          const void *args);

/** The same on a stream in place of the context's. It does not matter to tensors of the CPU. */
EJK_API EJK_NODISCARD ejk_status ejk_call_on(ejk_context *context, const ejk_kernel *kernel,
                                             const void *args, void *stream);

#ifdef __cplusplus
}
#endif
#endif
