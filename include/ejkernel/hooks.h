/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file hooks.h
 * Hooks: functions of a kernel of your own, in place of or beside implementations in the registry.
 *
 * A hook's name says what it does and where it applies:
 *
 *     method [_shard_map] [_platform or _backend]
 *
 * The methods are `run` (computes), `fwd_with_residuals` (computes and keeps what the backward pass needs),
 * `vjp` (gradients from cotangents; also `custom_vjp`), `heuristic_cfg` (a configuration without measuring)
 * and `candidate_cfgs` (configurations worth measuring; also `config_space`). A platform is an
 * implementation technology (`run_simd`, `run_cuda`, `run_triton`, …), a backend a kind of hardware
 * (`run_cpu`, `run_gpu`, `run_tpu`). The most specific hook of a kernel is used, in the order
 *
 *     method+context+platform, method+context+backend, method+context,
 *     method+platform, method+backend, method
 *
 * where the context is `shard_map` if the call is made by that method. On a CPU the platform `auto` tries
 * simd, then reference. If the tensors are on a GPU, the backend is gpu, `auto` tries cuda, and `run` hooks
 * without this backend or a GPU platform in their name are ignored, since they could not read the tensors.
 *
 * Thread-safety: hooks may be called from any threads at once.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_HOOKS_H
#define EJKERNEL_HOOKS_H

#include <ejkernel/device.h>
#include <ejkernel/registry.h>
#include <ejkernel/status.h>
#include <ejkernel/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ejk_kernel;
struct ejk_invocation;

/** What a hook that computes is given. */
typedef struct ejk_hook_call {
    const struct ejk_kernel *kernel;
    const void *args; /**< the call's arguments; of a plan's execution, with that one's pointers */
    const void *config;   /**< the configuration chosen; NULL if the kernel has none */
    ejk_threads *threads; /**< for ejk_parallel_for() */
    void *residuals; /**< struct of kernel->residuals: written by fwd_with_residuals, read by vjp */
    /** One per output tensor of the arguments, in their order; of vjp only. */
    const ejk_tensor *cotangents;
    int32_t cotangent_count;
    /** One per input tensor of the arguments, in their order; without dtype = not wanted. Of vjp only. */
    const ejk_tensor *gradients;
    int32_t gradient_count;
    void *stream; /**< of tensors on a GPU: where work is to be enqueued; a `CUstream` */
} ejk_hook_call;

/** One hook: its name, and the one function that fits it. */
typedef struct ejk_hook {
    const char *name;                              /**< "run_simd" */
    ejk_status (*call)(const ejk_hook_call *call); /**< run, fwd_with_residuals, vjp */
    void (*heuristic_cfg)(const struct ejk_invocation *invocation, void *config);
    /** Writes up to `capacity` configurations, one after the other; *count is how many there are. */
    ejk_status (*candidate_cfgs)(const struct ejk_invocation *invocation, void *configs,
                                 int32_t capacity, int32_t *count);
} ejk_hook;

/**
 * The hook of a kernel for a method, as "run"; NULL if it has none. `context` is NULL or "shard_map". Platform AUTO
 * means simd, then reference if the backend is CPU or ANY, cuda if it is GPU, and none otherwise.
 */
EJK_API const ejk_hook *ejk_hook_resolve(const struct ejk_kernel *kernel, const char *method,
                                         const char *context, ejk_platform platform,
                                         ejk_backend backend);

#ifdef __cplusplus
}
#endif
#endif
