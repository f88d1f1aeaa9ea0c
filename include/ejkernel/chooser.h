/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file chooser.h
 * Who decides on a call's configuration. A context asks its chooser once per plan; the library's own is the
 * chain of steps in selector.h, another may be put in its place.
 *
 * The functions here are what a chooser needs: the heuristic configuration of a call, its candidates, and
 * whether a configuration found somewhere may be used at all.
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
     * Fills `config` (zeroed, of kernel->config) and says which step it was. Fields left unset are filled by
     * nobody; the call's explicit configuration (invocation->override_cfg) is laid over it afterwards.
     * Called from any thread, also while others are.
     */
    ejk_status (*choose)(void *self, const ejk_invocation *invocation, void *config,
                         ejk_choice_step *step);
    /**
     * A number that is another whenever `choose` might answer otherwise than before, for the calling thread:
     * plans are found again only by calls with the same number. Asked at every call, so it must be quick.
     * NULL = always the same.
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

/** As many candidates of a call as a tuner looks at, the heuristic configuration among them. */
#define EJK_MOST_CANDIDATES 64

/**
 * Configurations worth measuring, the heuristic one first, up to `capacity` of them one after the other in
 * `configs`; *count is how many were written. From the kernel's candidate_cfgs, or derived from the bounds
 * of the implementation's parameters: each varied alone by factors of 2 and 4, and each two together by 2.
 * Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY, what candidate_cfgs answers.
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
