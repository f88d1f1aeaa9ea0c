/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan.h
 * Plans: calls with a fixed implementation, parameters and memory, to be executed many times with new pointers.
 *
 * Executing a plan neither allocates nor locks nor hashes: scratch memory is the caller's workspace, or a buffer
 * from the plan's lock-free list, which grows only when more executions overlap than ever before. A plan with one
 * worker never enters the thread pool.
 *
 * A call runs on the device of its tensors, which must all be on the same one. On a GPU (cuda.h), an execution
 * enqueues its work on the context's stream, or on another, and returns. It neither waits nor allocates, and may
 * be captured into a graph, which is valid as long as the plan. Workspace is memory of that GPU: the caller's, or
 * the plan's own, which is allocated when the plan is created and may only be used on the context's stream, where
 * work runs in order.
 *
 * Thread-safety: a plan is constant after creation and may be executed by several threads at once, with
 * different workspaces. It must be destroyed before its context.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_PLAN_H
#define EJKERNEL_PLAN_H

#include <ejkernel/context.h>
#include <ejkernel/kernel.h>
#include <ejkernel/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ejk_plan ejk_plan;

/**
 * Creates the plan of a call. Data pointers of `args` are ignored (they may be NULL here); shapes, strides, types
 * and values are fixed: executions must have the same. `args` is copied.
 * Statuses: INVALID_ARGUMENT, INVALID_SHAPE, INVALID_DTYPE, INVALID_LAYOUT, OVERFLOW (the call),
 * UNKNOWN_NAME (platform, backend or another name that nothing has), UNAVAILABLE (no implementation
 * fits; option of a later version; a GPU that cannot be used), OUT_OF_MEMORY, INTERNAL (a GPU's driver fails).
 * Tensors on different devices are INVALID_ARGUMENT.
 */
EJK_API EJK_NODISCARD ejk_status ejk_plan_create(ejk_context *context, const ejk_kernel *kernel,
                                                 const void *args, ejk_plan **out);

/**
 * The same for a call whose results have no memory yet. `results` names them, separated by commas ("out,lse"); what
 * else is given in `args` is the call. On success their views in `args` have shape, type and row-major strides, but no
 * address. Shapes and types follow from units and the kernel's `result` hook; where these leave a choice, the first
 * that the call's own checks accept is taken: of floats the type that the call asks for by a field, else that of its
 * first such tensor, else float32. A type that a result's view has already is kept. On failure views are zeros.
 * Statuses: also UNKNOWN_NAME (no result of the operation), those of ejk_field_shape() and ejk_field_dtype().
 * @since 0.1
 */
EJK_API EJK_NODISCARD ejk_status ejk_plan_create_for_results(ejk_context *context,
                                                             const ejk_kernel *kernel, void *args,
                                                             const char *results, ejk_plan **out);

/** NULL is allowed. No execution may be running. */
EJK_API void ejk_plan_destroy(ejk_plan *plan);

/** Bytes of workspace, to be aligned to 64, on a GPU to 256; 0 if none is needed. */
EJK_API size_t ejk_plan_workspace(const ejk_plan *plan);

/**
 * Executes the plan. NULL workspace = the plan's own. Does nothing if all requested results are empty.
 *
 * A result must not share a byte with an input or another result, nor contain an address twice. Interleaved views
 * are accepted if their strides show that they are disjoint: slices of one buffer along any axis, as out = x[…,
 * 0:64] and query = x[…, 64:128], or parts of a packed [B,T,3,H,D]. If the strides have no common divisor that
 * shows it, they are refused. Inputs may overlap each other.
 * Statuses: INVALID_ARGUMENT (a missing pointer; a signature that is not the plan's), INVALID_LAYOUT (an
 * output overlaps an input or another output; a workspace that is not aligned), WORKSPACE_TOO_SMALL,
 * OUT_OF_MEMORY (workspace NULL and more executions at once than ever before), INTERNAL (a GPU's driver fails).
 */
EJK_API EJK_NODISCARD ejk_status ejk_plan_execute(const ejk_plan *plan, const void *args,
                                                  void *workspace, size_t workspace_bytes);

/**
 * The same on another stream than the context's; ignored if the tensors are on the CPU. Also INVALID_ARGUMENT: the
 * stream is not the context's, and no workspace is given although one is needed.
 */
EJK_API EJK_NODISCARD ejk_status ejk_plan_execute_on(const ejk_plan *plan, const void *args,
                                                     void *workspace, size_t workspace_bytes,
                                                     void *stream);

/** Counts of ejk_plan_prebuild(). */
typedef struct ejk_prebuilt {
    int32_t compiled; /**< kernels that were compiled and put into the cache */
    int32_t found;    /**< kernels that the cache had already */
} ejk_prebuilt;

/**
 * Compiles what a call on a GPU of an architecture, as "sm_90a", needs, and keeps it in the cache on disk (cuda.h),
 * so that the first call does not have to. No GPU is needed, but NVRTC is. Where the tensors of `args` lie does
 * not matter. Adds to the counts of *out. Statuses: those of ejk_plan_create(), INVALID_ARGUMENT (an architecture
 * that is not known; the sentence lists those that are).
 */
EJK_API EJK_NODISCARD ejk_status ejk_plan_prebuild(ejk_context *context, const ejk_kernel *kernel,
                                                   const void *args, const char *architecture,
                                                   ejk_prebuilt *out);

/** Host time of an execution on a GPU, in seconds. */
typedef struct ejk_host_cost {
    double plan_s;   /**< an execution of a plan that was executed before, until it returns */
    double driver_s; /**< of this, within the driver's launches */
    double beyond_s; /**< the difference, the median of batches: what the library adds */
    double launches; /**< kernels of an execution */
} ejk_host_cost;

/**
 * Measures the host time of a plan for a GPU, by batches of executions with these arguments; between batches it waits
 * for the device. The times include two clock reads for each launch, about 50 ns. Statuses: INVALID_ARGUMENT (NULL; a
 * plan for the CPU), those of ejk_plan_execute().
 */
EJK_API EJK_NODISCARD ejk_status ejk_plan_measure_host(const ejk_plan *plan, const void *args,
                                                       ejk_host_cost *out);

/** Time to create the plan of a configuration on a GPU for the first time. */
typedef struct ejk_first_use {
    double compile_s; /**< if no cache has its kernels */
    double load_s;    /**< if they are cached on disk; 0 = the disk cache is not usable */
    int32_t kernels;  /**< how many kernels it needs */
} ejk_first_use;

/**
 * Measures it: the plan is created once with the compiler and five times from the disk cache (median). Kernels
 * that this process has loaded already and the compiler's own caches are not used. Loading the driver and NVRTC,
 * once per process, is not included. Statuses: those of ejk_plan_create(), INVALID_ARGUMENT (tensors on the CPU).
 */
EJK_API EJK_NODISCARD ejk_status ejk_plan_measure_first_use(ejk_context *context,
                                                            const ejk_kernel *kernel,
                                                            const void *args, ejk_first_use *out);

/** The parts of a plan, of several steps those of the first. If a hook runs, there is no implementation (NULL). */
EJK_API const ejk_kernel *ejk_plan_kernel(const ejk_plan *plan);
EJK_API const ejk_implementation *ejk_plan_implementation(const ejk_plan *plan);
EJK_API int32_t ejk_plan_workers(const ejk_plan *plan);
/** Which step chose the configuration. */
EJK_API ejk_choice_step ejk_plan_step(const ejk_plan *plan);
/** The configuration, of kernel->config, owned by the plan; NULL if the kernel has none. */
EJK_API const void *ejk_plan_config(const ejk_plan *plan);
/** Cost as the kernel counts it without data; zeros if it does not. */
EJK_API ejk_cost ejk_plan_cost(const ejk_plan *plan);
/**
 * Cost of one call of the plan, with its data in view: lengths of packed sequences, segment ids, blocks of a
 * mask. Takes as long as reading these. Integers without data: ejk_plan_cost(). Tensors of a GPU are copied,
 * once all work there is done. Statuses: INVALID_ARGUMENT (NULL; a signature that is not the plan's; data
 * that a call would be refused for), OUT_OF_MEMORY, INTERNAL (a GPU's driver fails).
 */
EJK_API EJK_NODISCARD ejk_status ejk_plan_cost_of(const ejk_plan *plan, const void *args,
                                                  ejk_cost *out);
/**
 * True if the call is limited by memory bandwidth: its cost is known, with fewer than 8 FLOPs per byte. CPUs break
 * even at 15 to 30; decoding has 0.5 to 4, the shortest prefill of interest 30. Measure such calls with cold
 * inputs: a time with inputs in a cache does not predict their speed.
 */
EJK_API bool ejk_plan_is_memory_bound(const ejk_plan *plan);

/**
 * The plan as JSON: {"op","version","implementation","platform","backend","isa","dtype",
 * "implementation_version","step","parameters":{…},"chosen_by":{name:step},"workers","workspace_bytes",
 * "config":{…}}, and "device":"cuda:0" where the tensors lie on a GPU. "step", one of chooser.h, is where the
 * configuration came from, "chosen_by" where each parameter did. Where a hook runs, its name stands for the
 * implementation's. An operation of several steps (ejk_kernel.steps) has all that run in "steps":
 * [{"algorithm","implementation","platform","backend","isa","implementation_version","parameters","chosen_by",
 * "workers"}], the first of which is told above, too.
 * Freed with ejk_free().
 */
EJK_API EJK_NODISCARD ejk_status ejk_plan_describe(const ejk_plan *plan, char **out);

/**
 * All implementations of the plan's algorithm as JSON, in the order of preference: [{"implementation","platform",
 * "verdict","reason"}], and "algorithm" where the plan has several steps: then those of each. The verdict is
 * "chosen", "fits" (but another one is preferred, or a hook ran before it) or "does not fit"; the reason says
 * why, as ejk_registry_explain() does. Freed with ejk_free().
 */
EJK_API EJK_NODISCARD ejk_status ejk_plan_explain(const ejk_plan *plan, char **out);

#ifdef __cplusplus
}
#endif
#endif
