/* SPDX-License-Identifier: Apache-2.0 */
/* The chain of steps. Each step is one function that answers whether it chose. */
#include <ejkernel/selector.h>

#include "base/base.h"
#include "ops/config/chain.h"
#include "ops/config/scopes.h"

#include <stdlib.h>
#include <string.h>

#define EJK_RECORD_SELF ejk_autotune_policy
EJK_RECORD_DEFINE(ejk_autotune_policy_record, ejk_autotune_policy, EJK_AUTOTUNE_POLICY);
#undef EJK_RECORD_SELF

ejk_status ejk_config_selector_chain_create(const ejk_config_selector_options *options,
                                            ejk_config_selector_chain **out) {
    if (!out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL, expected where to put it");
    ejk_config_selector_chain *chain = calloc(1, sizeof *chain);
    if (!chain) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a selector chain");
    if (options) chain->options = *options;
    if (chain->options.tuner) chain->tuner = *chain->options.tuner;
    pthread_mutex_init(&chain->tuning, NULL);
    chain->cache = chain->options.cache;
    ejk_status status = EJK_OK;
    if (!chain->cache) status = ejk_config_cache_create(0, &chain->own_cache);
    if (status == EJK_OK) status = ejk_config_cache_create(0, &chain->tuned);
    if (!chain->cache) chain->cache = chain->own_cache;
    if (status == EJK_OK)
        *out = chain;
    else
        ejk_config_selector_chain_destroy(chain);
    return status;
}

void ejk_config_selector_chain_destroy(ejk_config_selector_chain *chain) {
    if (!chain) return;
    ejk_config_cache_destroy(chain->own_cache);
    ejk_config_cache_destroy(chain->tuned);
    pthread_mutex_destroy(&chain->tuning);
    free(chain);
}

ejk_config_cache *ejk_config_selector_chain_cache(ejk_config_selector_chain *chain) {
    return chain ? chain->cache : NULL;
}

ejk_persistent_cache *ejk_config_selector_chain_persistent(ejk_config_selector_chain *chain) {
    return chain ? chain->options.persistent : NULL;
}

ejk_autotune_policy ejk_config_selector_chain_policy(const ejk_config_selector_chain *chain) {
    ejk_autotune_policy policy = chain ? chain->options.policy : (ejk_autotune_policy){0};
    ejk_autotune_policy fields = {0};
    /* From the innermost out: what an inner scope sets, an outer one cannot take back. */
    for (const ejk_policy_scope *scope = ejki_policy_scope(); scope; scope = scope->outer)
        if (!scope->chain || scope->chain == chain)
            ejk_record_merge(&ejk_autotune_policy_record, &scope->policy, &fields, &fields);
    ejk_record_merge(&ejk_autotune_policy_record, &policy, &fields, &policy);
    return policy;
}

/* ---- Steps ------------------------------------------------------------------------------------------ */

/* One question to the chain. */
typedef struct question {
    ejk_config_selector_chain *chain;
    const ejk_invocation *invocation;
    ejk_autotune_policy policy;
    ejk_config_key key; /* made by the first step that needs it */
    ejk_config_key_text room;
    bool has_key;
    void *config;
    ejk_choice_step *step;
} question;

/* Keys cost a hash: without caches to look into and a hook to tell, none is made. */
static ejk_status need_key(question *q) {
    if (q->has_key) return EJK_OK;
    EJKI_TRY(ejk_invocation_key(q->invocation, &q->room, &q->key));
    q->has_key = true;
    return EJK_OK;
}

static ejk_status answer(const question *q, ejk_choice_step step, bool *done) {
    *q->step = step;
    *done = true;
    return EJK_OK;
}

static void tell(question *q, const char *event, const char *name, const char *text,
                 bool with_config) {
    if (!q->chain->options.on_event || need_key(q) != EJK_OK) return;
    ejki_chain_emit(q->chain, event, &q->key, q->invocation, name, text,
                    with_config ? q->config : NULL);
}

static ejk_status step_override(question *q, bool *done) {
    if (!q->invocation->override_cfg) return EJK_OK;
    EJKI_TRY(ejk_invocation_heuristics(q->invocation, q->config));
    const ejk_record *record = q->invocation->kernel->config;
    ejk_record_merge(record, q->config, q->invocation->override_cfg, q->config);
    tell(q, "override", NULL, NULL, true);
    if (q->chain->options.remember_override) {
        EJKI_TRY(need_key(q));
        EJKI_TRY(ejki_chain_keep(q->chain, &q->key, q->invocation, q->config, NULL, true));
    }
    return answer(q, EJK_CHOICE_OVERRIDE, done);
}

/* Takes over an entry that was found, if it can be used. */
static ejk_status use(question *q, const ejk_config_entry *entry, const char *level, bool *usable) {
    char reason[256];
    *usable = ejki_entry_decode(entry, q->invocation, q->config, reason, sizeof reason) == EJK_OK;
    if (*usable) return EJK_OK;
    const ejk_record *record = q->invocation->kernel->config;
    memset(q->config, 0, record->size);
    ejki_chain_emit_rejected(q->chain, &q->key, level, reason);
    return EJK_OK;
}

static ejk_status step_overlay(question *q, bool *done) {
    if (ejki_overlay_scope()) EJKI_TRY(need_key(q));
    for (const ejk_overlay_scope *scope = ejki_overlay_scope(); scope; scope = scope->outer) {
        ejk_config_entry entry;
        bool found = false;
        if (scope->cache) EJKI_TRY(ejki_cache_find(scope->cache, &q->key, &found, &entry));
        if (!found) continue;
        EJKI_TRY(use(q, &entry, "overlay", &found));
        ejk_config_entry_release(&entry);
        if (!found) continue;
        tell(q, "overlay_hit", NULL, NULL, true);
        return answer(q, EJK_CHOICE_OVERLAY, done);
    }
    return EJK_OK;
}

static ejk_status step_memory(question *q, bool *done) {
    ejk_config_entry entry;
    bool found;
    if (ejk_config_cache_size(q->chain->cache) == 0) return EJK_OK;
    EJKI_TRY(need_key(q));
    EJKI_TRY(ejki_cache_find(q->chain->cache, &q->key, &found, &entry));
    if (!found) return EJK_OK;
    EJKI_TRY(use(q, &entry, "memory", &found));
    ejk_config_entry_release(&entry);
    if (!found) return EJK_OK;
    tell(q, "cache_hit", "level", "memory", true);
    return answer(q, EJK_CHOICE_MEMORY, done);
}

static ejk_status step_persistent(question *q, bool *done) {
    ejk_config_entry entry;
    bool found;
    if (!q->chain->options.persistent) return EJK_OK;
    EJKI_TRY(need_key(q));
    const ejk_status read =
        ejki_persistent_find(q->chain->options.persistent, &q->key, &found, &entry);
    if (read == EJK_STATUS_IO) { /* a file that stays locked makes no call fail */
        ejki_chain_emit_rejected(q->chain, &q->key, "persistent", ejk_last_error());
        return EJK_OK;
    }
    if (read != EJK_OK || !found) return read;
    EJKI_TRY(use(q, &entry, "persistent", &found));
    ejk_status status = EJK_OK;
    if (found) {
        tell(q, "cache_hit", "level", "persistent", true);
        status = ejk_config_cache_put(q->chain->cache, &q->key, &entry);
    }
    ejk_config_entry_release(&entry);
    if (status != EJK_OK || !found) return status;
    return answer(q, EJK_CHOICE_PERSISTENT, done);
}

/* How many candidates there will be is worked out only for somebody who listens. */
static ejk_status tell_start(const question *q) {
    int32_t count;
    if (!q->chain->options.on_event) return EJK_OK;
    void *list = calloc(EJK_MOST_CANDIDATES, q->invocation->kernel->config->size);
    if (!list) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for candidates");
    const ejk_status status =
        ejk_invocation_candidates(q->invocation, list, EJK_MOST_CANDIDATES, &count);
    free(list);
    if (status == EJK_OK) ejki_chain_emit_start(q->chain, &q->key, q->invocation, count);
    return status;
}

static ejk_status measure(question *q, bool *done) {
    ejk_config_selector_chain *chain = q->chain;
    const ejk_record *record = q->invocation->kernel->config;
    if (ejk_config_cache_contains(chain->tuned, &q->key) &&
        chain->options.forbid_reautotune != EJK_FALSE)
        return ejki_fail(
            EJK_STATUS_UNAVAILABLE,
            "the configuration of %.64s %.32s was tuned before and is no longer known; "
            "tuning it again is forbidden (forbid_reautotune)",
            q->key.op_id, q->key.call_key);
    ejk_config_measurement measurement = {0};
    EJKI_TRY(tell_start(q));
    const ejk_status status =
        chain->tuner.tune(chain->tuner.self, q->invocation, &q->policy, q->config, &measurement);
    if (status != EJK_OK) {
        memset(q->config, 0, record->size);
        tell(q, "autotune_failed", "reason", ejk_last_error(), false);
        return q->policy.allow_heuristics == EJK_FALSE ? status : EJK_OK;
    }
    EJKI_TRY(ejki_chain_keep(chain, &q->key, q->invocation, q->config, &measurement,
                             chain->options.persist_autotune != EJK_FALSE));
    EJKI_TRY(ejki_chain_keep_mark(chain->tuned, &q->key));
    tell(q, "autotune_finish", NULL, NULL, true);
    return answer(q, EJK_CHOICE_AUTOTUNE, done);
}

/* One thread measures; those that waited find its answer in memory. */
static ejk_status step_autotune(question *q, bool *done) {
    const char *fallback = q->policy.cache_miss_fallback;
    if (q->policy.allow_autotune != EJK_TRUE || !q->chain->tuner.tune ||
        (*fallback && strcmp(fallback, "autotune") != 0))
        return EJK_OK;
    EJKI_TRY(need_key(q));
    pthread_mutex_lock(&q->chain->tuning);
    ejk_status status = step_memory(q, done);
    if (status == EJK_OK && !*done) status = measure(q, done);
    pthread_mutex_unlock(&q->chain->tuning);
    return status;
}

static ejk_status step_heuristics(question *q, bool *done) {
    if (q->policy.allow_heuristics == EJK_FALSE) return EJK_OK;
    EJKI_TRY(ejk_invocation_heuristics(q->invocation, q->config));
    tell(q, "heuristics", NULL, NULL, true);
    return answer(q, EJK_CHOICE_HEURISTICS, done);
}

static ejk_status step_error(question *q, bool *done) {
    (void)done;
    EJKI_TRY(need_key(q));
    tell(q, "error", "reason", "no_config", false);
    return ejki_fail(
        EJK_STATUS_UNAVAILABLE,
        "no configuration for %.64s %.32s: none is known, and the policy allows neither "
        "measuring nor heuristics",
        q->key.op_id, q->key.call_key);
}

ejk_status ejk_config_selector_chain_choose(ejk_config_selector_chain *chain,
                                            const ejk_invocation *invocation, void *config,
                                            ejk_choice_step *step) {
    if (!chain || !invocation || !config || !step)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !chain        ? "chain"
                         : !invocation ? "invocation"
                         : !config     ? "config"
                                       : "step");
    static ejk_status (*const steps[])(question *, bool *) = {
        step_override, step_overlay,    step_memory, step_persistent,
        step_autotune, step_heuristics, step_error,
    };
    question q = {.chain = chain, .invocation = invocation, .config = config, .step = step};
    q.policy = ejk_config_selector_chain_policy(chain);
    bool done = false;
    for (size_t i = 0; i < sizeof steps / sizeof *steps && !done; i++)
        EJKI_TRY(steps[i](&q, &done));
    return EJK_OK;
}

ejk_status ejk_config_selector_chain_remember(ejk_config_selector_chain *chain,
                                              const ejk_invocation *invocation, const void *config,
                                              const ejk_config_measurement *measurement,
                                              bool persist) {
    if (!chain || !invocation || !config)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !chain        ? "chain"
                         : !invocation ? "invocation"
                                       : "config");
    ejk_config_key_text room;
    ejk_config_key key;
    EJKI_TRY(ejk_invocation_check_config(invocation, config));
    EJKI_TRY(ejk_invocation_key(invocation, &room, &key));
    return ejki_chain_keep(chain, &key, invocation, config, measurement, persist);
}

/* ---- As a chooser ----------------------------------------------------------------------------------- */

static ejk_status choose(void *self, const ejk_invocation *invocation, void *config,
                         ejk_choice_step *step) {
    return ejk_config_selector_chain_choose(self, invocation, config, step);
}

static uint64_t generation(void *self) {
    const ejk_config_selector_chain *chain = self;
    const uint64_t scopes = ejki_scopes_number();
    return ejk_config_cache_generation(chain->cache) + scopes;
}

ejk_config_chooser ejk_config_selector_chain_chooser(ejk_config_selector_chain *chain) {
    return (ejk_config_chooser){chain, choose, generation};
}
