/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file selector.h
 * Selector chains: seven steps that are tried in order until one provides a call's configuration.
 *
 * | step | applies if | event (fields beside device, op_id, call_key) |
 * |---|---|---|
 * | override | the call has an explicit configuration | `override` {cfg} |
 * | overlay | a scope of this thread has one for the call, innermost first | `overlay_hit` {cfg} |
 * | memory | the chain's ConfigCache has one | `cache_hit` {level: "memory", cfg} |
 * | persistent | the chain's PersistentCache has one; it is copied to memory | `cache_hit` {level: "persistent", cfg} |
 * | autotune | the policy allows measuring and there is a tuner | `autotune_start`, `_finish`, `_failed`: below |
 * | heuristics | the policy allows them | `heuristics` {cfg, platform, method} |
 * | error | nothing else did | `error` {reason: "no_config"} |
 *
 * `autotune_start` has the fields {candidates, platform, method}, `autotune_finish` {cfg, platform, method},
 * `autotune_failed` {reason}.
 *
 * A configuration that cannot be used (parameters out of bounds, another kernel version, unreadable) is reported
 * as `config_rejected` {level, reason} and counts as a miss. Nothing is measured unless the policy allows it and
 * there is a tuner. A tuned configuration is kept in memory and, if enabled, on disk. A heuristic one is never
 * kept, so the call can still be tuned later; an override only with `remember_override`.
 *
 * The key of a configuration is the device's fingerprint, `op_id@vVERSION` and the call key (identity.h), plus the
 * class of strides (with the tier, if the context's is lower than the processor's) and the number of threads. A
 * configuration stored under the first three only, as those shipped with an application, applies to every class
 * and number.
 *
 * Scopes (overlays, policies) belong to the thread that began them, nest, and end in reverse order; other threads
 * do not see them. They are structs of the caller that must not move until they end.
 *
 * Thread-safety: a chain may be used by several threads at once. If several miss the same key at once, one
 * measures and the others wait for its result.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_SELECTOR_H
#define EJKERNEL_SELECTOR_H

#include <ejkernel/chooser.h>
#include <ejkernel/config.h>
#include <ejkernel/context.h>
#include <ejkernel/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What a chain does on a miss. A zeroed policy never measures. */
#define EJK_AUTOTUNE_POLICY(F, R)                                                                  \
    F(OPT_BOOL, allow_autotune, EJK_OPTIONAL, "false", "", "measure where nothing is known")       \
    F(OPT_BOOL, allow_heuristics, EJK_OPTIONAL, "true", "", "fall back to the kernel's rule")      \
    F(NAME, cache_miss_fallback, EJK_OPTIONAL, "autotune", "",                                     \
      "autotune: measure first if allowed; heuristics, or anything else: never")                   \
    F(OPT_BOOL, validate_backward, EJK_OPTIONAL, "false", "", "measure the backward pass too")

EJK_RECORD_STRUCT(ejk_autotune_policy, EJK_AUTOTUNE_POLICY);
extern EJK_API const ejk_record ejk_autotune_policy_record;

/** Measures for a chain; executor.h has a tuner of kernels. */
typedef struct ejk_config_tuner {
    void *self; /**< its first argument */
    /** Fills `config` (zeroed) with the candidate to use, and `measurement` with the measurement of it. */
    ejk_status (*tune)(void *self, const ejk_invocation *invocation,
                       const ejk_autotune_policy *policy, void *config,
                       ejk_config_measurement *measurement);
} ejk_config_tuner;

/** How a chain is made. Zero means default; what is pointed to must outlive the chain. */
typedef struct ejk_config_selector_options {
    ejk_config_cache *cache;          /**< NULL = one of its own, unbounded */
    ejk_persistent_cache *persistent; /**< NULL = none */
    ejk_autotune_policy policy;
    const ejk_config_tuner *tuner; /**< copied; NULL = none */
    ejk_opt_bool persist_autotune; /**< keep tuned configurations on disk; unset = true */
    ejk_opt_bool
        forbid_reautotune;  /**< a key that this chain tuned and that is no longer known is an error
                                         (UNAVAILABLE) in place of being tuned again; unset = true */
    bool remember_override; /**< keep explicit configurations for calls without */
    ejk_event_fn on_event;  /**< NULL = events are dropped */
    void *on_event_user;    /**< its first argument */
} ejk_config_selector_options;

/** A chain. */
typedef struct ejk_config_selector_chain ejk_config_selector_chain;

/** NULL options = defaults: memory and heuristics. Statuses: OUT_OF_MEMORY, INVALID_ARGUMENT. */
EJK_API EJK_NODISCARD ejk_status ejk_config_selector_chain_create(
    const ejk_config_selector_options *options, ejk_config_selector_chain **out);

/** NULL is allowed. No context or executor may use it any more. */
EJK_API void ejk_config_selector_chain_destroy(ejk_config_selector_chain *chain);

/** The chain as a chooser, for a context or an executor. */
EJK_API ejk_config_chooser ejk_config_selector_chain_chooser(ejk_config_selector_chain *chain);

/**
 * Asks the chain: fills `config` (of kernel->config) and `step`.
 * Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY, UNAVAILABLE (no configuration; see forbid_reautotune).
 */
EJK_API EJK_NODISCARD ejk_status ejk_config_selector_chain_choose(ejk_config_selector_chain *chain,
                                                                  const ejk_invocation *invocation,
                                                                  void *config,
                                                                  ejk_choice_step *step);

/**
 * Keeps a configuration for a call as if the chain had tuned it: in memory and, with `persist`, on disk.
 * NULL measurement = none. Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY, IO.
 */
EJK_API EJK_NODISCARD ejk_status ejk_config_selector_chain_remember(
    ejk_config_selector_chain *chain, const ejk_invocation *invocation, const void *config,
    const ejk_config_measurement *measurement, bool persist);

/** Its memory. */
EJK_API ejk_config_cache *ejk_config_selector_chain_cache(ejk_config_selector_chain *chain);

/** Its cache on disk; NULL = none. */
EJK_API ejk_persistent_cache *
ejk_config_selector_chain_persistent(ejk_config_selector_chain *chain);

/** The policy in force for the calling thread. */
EJK_API ejk_autotune_policy
ejk_config_selector_chain_policy(const ejk_config_selector_chain *chain);

/** Room for a call's key. */
typedef struct ejk_config_key_text {
    char device[256];
    char op_id[96];
    char call_key[96];
    char layout[32];
} ejk_config_key_text;

/**
 * The key under which a call's configuration is kept; its texts lie in `room`.
 * Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY, those of the kernel's key_builder.
 */
EJK_API EJK_NODISCARD ejk_status ejk_invocation_key(const ejk_invocation *invocation,
                                                    ejk_config_key_text *room, ejk_config_key *out);

/* ---- Scopes of a thread ----------------------------------------------------------------------------- */

/** A scope in which configurations of `cache` come before those of every chain. */
typedef struct ejk_overlay_scope {
    const ejk_config_cache *cache;
    struct ejk_overlay_scope *outer;
    uint64_t number;
} ejk_overlay_scope;

/** Begins and ends it. Ending any but the innermost ends those inside it as well. */
EJK_API void ejk_overlay_cache_begin(ejk_overlay_scope *scope, const ejk_config_cache *cache);
EJK_API void ejk_overlay_cache_end(ejk_overlay_scope *scope);

/** A scope in which fields set in `policy` replace those of a chain's own. */
typedef struct ejk_policy_scope {
    const ejk_config_selector_chain *chain; /**< NULL = every chain */
    ejk_autotune_policy policy;
    struct ejk_policy_scope *outer;
    uint64_t number;
} ejk_policy_scope;

/** Begins and ends it. Ending any but the innermost ends those inside it as well. */
EJK_API void ejk_policy_override_begin(ejk_policy_scope *scope,
                                       const ejk_config_selector_chain *chain,
                                       const ejk_autotune_policy *policy);
EJK_API void ejk_policy_override_end(ejk_policy_scope *scope);

#ifdef __cplusplus
}
#endif
#endif
