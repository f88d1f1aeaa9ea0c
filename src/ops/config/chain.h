/* SPDX-License-Identifier: Apache-2.0 */
/* A chain's parts, and what its steps share: finding, keeping and decoding entries, telling events. */
#ifndef EJKI_OPS_CONFIG_CHAIN_H
#define EJKI_OPS_CONFIG_CHAIN_H

#include <ejkernel/selector.h>

#include <pthread.h>

struct ejk_config_selector_chain {
    ejk_config_selector_options options;
    ejk_config_tuner tuner;
    ejk_config_cache *cache, *own_cache;
    ejk_config_cache *tuned; /* keys that this chain has tuned */
    pthread_mutex_t tuning;  /* held while it measures */
};

/* An entry under the key, or under the key without strides and threads. Released by the caller if found. */
ejk_status ejki_cache_find(const ejk_config_cache *cache, const ejk_config_key *key, bool *found,
                           ejk_config_entry *out);
ejk_status ejki_persistent_find(ejk_persistent_cache *cache, const ejk_config_key *key, bool *found,
                                ejk_config_entry *out);

/* Reads an entry's configuration; if it cannot be used for the call, `reason` says why. */
ejk_status ejki_entry_decode(const ejk_config_entry *entry, const ejk_invocation *invocation,
                             void *config, char *reason, size_t size);

/* Keeps a configuration in memory, and on disk if asked and there is one. NULL measurement = none. */
ejk_status ejki_chain_keep(ejk_config_selector_chain *chain, const ejk_config_key *key,
                           const ejk_invocation *invocation, const void *config,
                           const ejk_config_measurement *measurement, bool persist);
/* Notes a key. */
ejk_status ejki_chain_keep_mark(ejk_config_cache *cache, const ejk_config_key *key);

/* Calls the chain's hook: key, then `name`: `text` if not NULL, platform and method if there is an
 * invocation and the event has them, and the configuration if not NULL. */
void ejki_chain_emit(const ejk_config_selector_chain *chain, const char *event,
                     const ejk_config_key *key, const ejk_invocation *invocation, const char *name,
                     const char *text, const void *config);
void ejki_chain_emit_rejected(const ejk_config_selector_chain *chain, const ejk_config_key *key,
                              const char *level, const char *reason);
void ejki_chain_emit_start(const ejk_config_selector_chain *chain, const ejk_config_key *key,
                           const ejk_invocation *invocation, int32_t candidates);

#endif
