/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file chooser.h
 * Provides the configuration of a call. A context calls its chooser once per plan. The default is the chain of
 * steps in selector.h; an application may install its own.
 *
 * The functions here help to write a chooser: they give the heuristic configuration of a call and its
 * candidates, and check whether a stored configuration can be used.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_CHOOSER_H
#define EJKERNEL_CHOOSER_H

#include <ejkernel/kernel.h>
#include <ejkernel/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Steps of a choice, in the order in which they are asked: name, text. */
#define EJK_CHOICE_LIST(X)                                                                         \
    X(OVERRIDE, "override")     /* the call's own configuration */                                 \
    X(OVERLAY, "overlay")       /* a scope of this thread */                                       \
    X(MEMORY, "memory")         /* remembered in this process */                                   \
    X(PERSISTENT, "persistent") /* remembered on disk */                                           \
    X(AUTOTUNE, "autotune")     /* measured now */                                                 \
    X(HEURISTICS, "heuristics") /* the kernel's rule */                                            \
    X(DEFAULT, "default")       /* the implementation's own value of a parameter */

/** Which step chose. */
typedef enum ejk_choice_step {
#define EJK_CHOICE_ENUM(name, text) EJK_CHOICE_##name,
    EJK_CHOICE_LIST(EJK_CHOICE_ENUM)
#undef EJK_CHOICE_ENUM
} ejk_choice_step;

/** "override", "overlay", …; "unknown" for no step. Static text. */
EJK_API const char *ejk_choice_step_name(ejk_choice_step step);

/** Decides on configurations. Lives as long as the context that was given it. */
typedef struct ejk_config_chooser {
    void *self; /**< first argument of both */
    /**
     * Fills `config` (zeroed, of kernel->config) and says which step it was. Fields left unset stay unset. The
     * call's explicit configuration (invocation->override_cfg) is merged over the result afterwards. May be called
     * from several threads at once.
     */
    ejk_status (*choose)(void *self, const ejk_invocation *invocation, void *config,
                         ejk_choice_step *step);
    /**
     * A number that changes whenever `choose` might answer differently than before, for the calling thread. Plans
     * are reused only by calls with the same number. It is read in every call, so it must be fast. NULL = constant.
     */
    uint64_t (*generation)(void *self);
} ejk_config_chooser;

/**
 * The kernel's heuristic configuration of a call, into `config` (zeroed by this function). Parameters that the
 * implementation does not take, or not with this value, are left unset. Without a heuristic nothing is set.
 * Statuses: INVALID_ARGUMENT (NULL; a kernel without configuration).
 */
EJK_API EJK_NODISCARD ejk_status ejk_invocation_heuristics(const ejk_invocation *invocation,
                                                           void *config);

/** The most candidates of a call that a tuner considers, including the heuristic configuration. */
#define EJK_MOST_CANDIDATES 64

/**
 * Configurations worth measuring, the heuristic one first, up to `capacity` of them one after the other in
 * `configs`; *count is how many were written. From the kernel's candidate_cfgs, or derived from the bounds
 * of the implementation's parameters: each varied alone by factors of 2 and 4, and each two together by 2.
 * Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY, those of candidate_cfgs.
 */
EJK_API EJK_NODISCARD ejk_status ejk_invocation_candidates(const ejk_invocation *invocation,
                                                           void *configs, int32_t capacity,
                                                           int32_t *count);

/**
 * OK if the invocation's implementation takes every parameter that is set in `config`; INVALID_ARGUMENT with
 * the first that it refuses, its value and its bounds.
 */
EJK_API EJK_NODISCARD ejk_status ejk_invocation_check_config(const ejk_invocation *invocation,
                                                             const void *config);

#ifdef __cplusplus
}
#endif
#endif
