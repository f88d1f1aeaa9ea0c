/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file plan.h
 * Plans: a call whose implementation, parameters and memory are settled, to be executed many times with
 * the same shapes and other pointers.
 *
 * Executing a plan neither allocates nor locks nor hashes: scratch memory is the caller's workspace, or a
 * buffer of the plan's own lock-free list (which grows only if more executions overlap than ever
 * before). A plan of one worker never enters the thread pool.
 *
 * A call runs where its tensors lie, all in one place. On a GPU (cuda.h) an execution enqueues its work on the
 * context's stream, or another, and returns; it neither waits nor allocates, and may be captured into a graph,
 * which then is good for as long as the plan. Workspace is memory of that GPU: the caller's, or the plan's own,
 * which is allocated when the plan is made and serves one stream, the context's, as work there is done one after
 * the other.
 *
 * Thread-safety: a plan is constant after creation and may be executed from any threads at once, with
 * different workspaces. It must be destroyed before its context.
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
 * Settles a call. Data pointers of `args` are not looked at (they may be NULL here); everything else is:
 * execution asks for the same shapes, strides, types and values. `args` is copied.
 * Statuses: INVALID_ARGUMENT, INVALID_SHAPE, INVALID_DTYPE, INVALID_LAYOUT, OVERFLOW (the call),
 * UNKNOWN_NAME (platform, backend or another name that nothing has), UNAVAILABLE (no implementation
 * fits; option of a later version; a GPU that cannot be used), OUT_OF_MEMORY, INTERNAL (a GPU's driver fails).
 * Tensors that do not all lie in one place are INVALID_ARGUMENT.
 */
EJK_API EJK_NODISCARD ejk_status ejk_plan_create(ejk_context *context, const ejk_kernel *kernel,
                                                 const void *args, ejk_plan **out);

/** NULL is allowed. No execution may be running. */
EJK_API void ejk_plan_destroy(ejk_plan *plan);

/** Bytes of workspace, to be aligned to 64, on a GPU to 256; 0 if none is needed. */
EJK_API size_t ejk_plan_workspace(const ejk_plan *plan);

/**
 * Computes. NULL workspace = the plan's own. Does nothing if results are asked for and all are empty.
 *
 * Results lie in memory of their own: none may share a byte with an input or another result, or hold an
 * element of its own twice. Views whose spans meet are told apart where it can be seen from their strides
 * (slices of one buffer along any axis, as out = x[…, 0:64] beside query = x[…, 64:128], or parts of a
 * packed [B,T,3,H,D]), and refused where it cannot: then the strides have no common grid. Inputs may
 * overlap each other freely.
 * Statuses: INVALID_ARGUMENT (a missing pointer; a signature that is not the plan's), INVALID_LAYOUT (an
 * output overlaps an input or another output; a workspace that is not aligned), WORKSPACE_TOO_SMALL,
 * OUT_OF_MEMORY (workspace NULL and more executions at once than ever before), INTERNAL (a GPU's driver fails).
 */
EJK_API EJK_NODISCARD ejk_status ejk_plan_execute(const ejk_plan *plan, const void *args,
                                                  void *workspace, size_t workspace_bytes);

/**
 * The same on a stream in place of the context's. It does not matter to tensors of the CPU. INVALID_ARGUMENT also:
 * another stream than the context's, and no workspace where one is needed.
 */
EJK_API EJK_NODISCARD ejk_status ejk_plan_execute_on(const ejk_plan *plan, const void *args,
                                                     void *workspace, size_t workspace_bytes,
                                                     void *stream);

/** What an ejk_plan_prebuild() met. */
typedef struct ejk_prebuilt {
    int32_t compiled; /**< kernels that were compiled and put into the cache */
    int32_t found;    /**< kernels that were there */
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

/** What the host does for an execution on a GPU, in seconds. */
typedef struct ejk_host_cost {
    double plan_s;   /**< an execution of a plan that was executed before, until it returns */
    double driver_s; /**< of this, within the driver's launches */
    double beyond_s; /**< the difference, the median of batches: what the library adds */
    double launches; /**< kernels of an execution */
} ejk_host_cost;

/**
 * Measures what executing a plan costs the host, on a GPU: batches of executions with these arguments, and the device
 * is waited for between them. It includes two looks at the clock for each launch, some 50 ns. INVALID_ARGUMENT (NULL;
 * a plan for the CPU), and what ejk_plan_execute() answers.
 */
EJK_API EJK_NODISCARD ejk_status ejk_plan_measure_host(const ejk_plan *plan, const void *args,
                                                       ejk_host_cost *out);

/** What the first call of a configuration costs on a GPU: seconds of making its plan. */
typedef struct ejk_first_use {
    double compile_s; /**< where no cache has its kernels */
    double load_s;    /**< where the disk has them; 0 = nothing could be kept there */
    int32_t kernels;  /**< that it takes */
} ejk_first_use;

/**
 * Measures it: plans are made once by the compiler and five times from the disk, and thrown away; the median counts.
 * Kernels that this process has already are not used, nor are caches of the compiler's. The time of loading the
 * driver and NVRTC, once in a process, is not part of it. Statuses: those of ejk_plan_create(), INVALID_ARGUMENT
 * (tensors on the CPU).
 */
EJK_API EJK_NODISCARD ejk_status ejk_plan_measure_first_use(ejk_context *context,
                                                            const ejk_kernel *kernel,
                                                            const void *args, ejk_first_use *out);

/** What was settled: of several steps the first one's. Where a hook runs, there is no implementation (NULL). */
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
 * Cost of one call of the plan, with its data in view: lengths of packed sequences, segment ids, blocks of a mask. Takes
 * as long as reading these. Integers without data: ejk_plan_cost(). Tensors of a GPU are copied, once all work there
 * is done. Statuses: INVALID_ARGUMENT (NULL; a signature that is not the plan's; data that a call would be refused
 * for), OUT_OF_MEMORY, INTERNAL (a GPU's driver fails).
 */
EJK_API EJK_NODISCARD ejk_status ejk_plan_cost_of(const ejk_plan *plan, const void *args,
                                                  ejk_cost *out);
/**
 * True if the call lives from memory: it is known to move bytes, and has fewer than 8 FLOPs for each. CPUs
 * break even at 15 to 30; decoding has 0.5 to 4, the shortest prefill of interest 30. Measured with inputs
 * that lie in a cache, such a call says little of how it will run.
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
 * "verdict","reason"}], and "algorithm" where the plan has several steps: then those of each. The verdict is "chosen", "fits" (but another one is preferred, or a hook ran before it) or
 * "does not fit"; the reason says why, as ejk_registry_explain() does. Freed with ejk_free().
 */
EJK_API EJK_NODISCARD ejk_status ejk_plan_explain(const ejk_plan *plan, char **out);

#ifdef __cplusplus
}
#endif
#endif
