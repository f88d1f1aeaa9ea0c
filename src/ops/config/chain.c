/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/config/chain.h"

#include <ejkernel/cuda.h>
#include <ejkernel/identity.h>
#include <ejkernel/record.h>

#include "base/base.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Keys ------------------------------------------------------------------------------------------- */

/* The fingerprint of where the call runs. */
static ejk_status write_device(const ejk_invocation *invocation, char *text, size_t size) {
    if (invocation->device_type != EJK_DEVICE_CUDA) {
        snprintf(text, size, "%s", ejk_device_fingerprint());
        return EJK_OK;
    }
    ejk_gpu_info gpu;
    EJKI_TRY(ejk_device_info(invocation->device_index, &gpu));
    snprintf(text, size, "%s", gpu.fingerprint);
    return EJK_OK;
}

ejk_status ejk_invocation_key(const ejk_invocation *invocation, ejk_config_key_text *room,
                              ejk_config_key *out) {
    if (!invocation || !room || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !invocation ? "invocation"
                         : !room     ? "room"
                                     : "out");
    const ejk_kernel *kernel = invocation->kernel;
    ejk_config_key_text text;
    const bool on_gpu = invocation->device_type == EJK_DEVICE_CUDA;
    EJKI_TRY(write_device(invocation, text.device, sizeof text.device));
    const int length = snprintf(text.op_id, sizeof text.op_id, "%s@v%s", kernel->op_id,
                                kernel->version ? kernel->version : "0");
    if (length >= (int)sizeof text.op_id)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "op_id and version of '%.64s' take %d bytes, expected fewer than %zu",
                         kernel->op_id, length, sizeof text.op_id);
    if (kernel->key_builder)
        EJKI_TRY(kernel->key_builder(invocation, text.call_key, sizeof text.call_key));
    else
        EJKI_TRY(ejk_call_key(kernel, invocation->args, invocation->method, NULL, text.call_key));
    EJKI_TRY(ejk_layout_key(kernel->args, invocation->args, text.layout));
    /* A context that was told to use a lower tier than this processor's has choices of its own. */
    const ejk_isa isa = invocation->context ? ejk_context_isa(invocation->context) : ejk_cpu()->isa;
    if (isa != ejk_cpu()->isa && !on_gpu)
        snprintf(text.layout + strlen(text.layout), sizeof text.layout - strlen(text.layout), "@%s",
                 ejk_isa_name(isa));
    *room = text;
    *out = (ejk_config_key){.device = room->device,
                            .op_id = room->op_id,
                            .call_key = room->call_key,
                            .layout = room->layout,
                            .threads = on_gpu ? 1 : invocation->threads,
                            .direction = invocation->backward ? EJK_BACKWARD : EJK_FORWARD};
    return EJK_OK;
}

/* The key under which configurations for every strides class and number of threads are put. */
static ejk_config_key general(const ejk_config_key *key) {
    return (ejk_config_key){.device = key->device,
                            .op_id = key->op_id,
                            .call_key = key->call_key,
                            .direction = key->direction};
}

ejk_status ejki_cache_find(const ejk_config_cache *cache, const ejk_config_key *key, bool *found,
                           ejk_config_entry *out) {
    EJKI_TRY(ejk_config_cache_get(cache, key, out, found));
    if (*found) return EJK_OK;
    const ejk_config_key wide = general(key);
    return ejk_config_cache_get(cache, &wide, out, found);
}

ejk_status ejki_persistent_find(ejk_persistent_cache *cache, const ejk_config_key *key, bool *found,
                                ejk_config_entry *out) {
    EJKI_TRY(ejk_persistent_cache_get(cache, key, out, found));
    if (*found) return EJK_OK;
    const ejk_config_key wide = general(key);
    return ejk_persistent_cache_get(cache, &wide, out, found);
}

/* ---- Entries ---------------------------------------------------------------------------------------- */

/* A configuration is of use only to the implementation it was measured with: another may have other
 * parameters by the same names. */
static ejk_status check_implementation(const ejk_config_entry *entry,
                                       const ejk_implementation *chosen) {
    if (!entry->implementation[0] || !chosen) return EJK_OK;
    if (strcmp(entry->implementation, chosen->name) != 0)
        return ejki_fail(EJK_STATUS_MISMATCH, "it is for %.64s, the call runs %.64s",
                         entry->implementation, chosen->name);
    if (entry->implementation_version && entry->implementation_version != chosen->version)
        return ejki_fail(EJK_STATUS_MISMATCH, "it is for version %d of %.64s, which is now %d",
                         (int)entry->implementation_version, chosen->name, (int)chosen->version);
    return EJK_OK;
}

static ejk_status decode(const ejk_config_entry *entry, const ejk_invocation *invocation,
                         void *config) {
    EJKI_TRY(check_implementation(entry, invocation->implementation));
    EJKI_TRY(ejk_record_from_json(invocation->kernel->config, entry->config, config));
    return ejk_invocation_check_config(invocation, config);
}

ejk_status ejki_entry_decode(const ejk_config_entry *entry, const ejk_invocation *invocation,
                             void *config, char *reason, size_t size) {
    const ejk_status status = decode(entry, invocation, config);
    if (status != EJK_OK) snprintf(reason, size, "%s", ejk_last_error());
    return status;
}

static ejk_status encode(const ejk_invocation *invocation, const void *config,
                         const ejk_config_measurement *measurement, ejk_config_entry *out) {
    const ejk_implementation *chosen = invocation->implementation;
    ejk_config_entry entry = {0};
    if (measurement) entry.measurement = *measurement;
    if (chosen) {
        snprintf(entry.implementation, sizeof entry.implementation, "%s", chosen->name);
        entry.implementation_version = chosen->version;
    }
    EJKI_TRY(
        ejk_record_to_json(invocation->kernel->config, config, EJK_JSON_SET_ONLY, &entry.config));
    *out = entry;
    return EJK_OK;
}

ejk_status ejki_chain_keep(ejk_config_selector_chain *chain, const ejk_config_key *key,
                           const ejk_invocation *invocation, const void *config,
                           const ejk_config_measurement *measurement, bool persist) {
    ejk_config_entry entry;
    EJKI_TRY(encode(invocation, config, measurement, &entry));
    ejk_status status = ejk_config_cache_put(chain->cache, key, &entry);
    if (status == EJK_OK && persist && chain->options.persistent)
        status = ejk_persistent_cache_put(chain->options.persistent, key, &entry);
    if (status == EJK_STATUS_IO) {
        ejki_chain_emit_rejected(chain, key, "persistent", ejk_last_error());
        status = EJK_OK;
    }
    ejk_config_entry_release(&entry);
    return status;
}

ejk_status ejki_chain_keep_mark(ejk_config_cache *cache, const ejk_config_key *key) {
    char text[] = "null";
    return ejk_config_cache_put(cache, key, &(ejk_config_entry){.config = text});
}

/* ---- Events ----------------------------------------------------------------------------------------- */

/* Calls the hook with the key and what is in `fields`, which it takes over. */
static void tell(const ejk_config_selector_chain *chain, const char *event,
                 const ejk_config_key *key, json_t *fields) {
    if (fields && !json_object_set_new(fields, "device", json_string(key->device)) &&
        !json_object_set_new(fields, "op_id", json_string(key->op_id)) &&
        !json_object_set_new(fields, "call_key", json_string(key->call_key))) {
        char *text = json_dumps(fields, JSON_COMPACT | JSON_SORT_KEYS);
        if (text) chain->options.on_event(chain->options.on_event_user, event, text);
        free(text);
    }
    json_decref(fields);
}

/* Where a call runs: in the events of steps that had to decide on it. */
static void add_place(json_t *fields, const ejk_invocation *invocation) {
    const ejk_implementation *chosen = invocation->implementation;
    const ejk_backend backend = chosen && chosen->backend != EJK_BACKEND_ANY ? chosen->backend
                                : invocation->device_type == EJK_DEVICE_CUDA ? EJK_BACKEND_GPU
                                                                             : EJK_BACKEND_CPU;
    json_object_set_new(fields, "platform", json_string(ejk_backend_name(backend)));
    json_object_set_new(fields, "method",
                        invocation->method ? json_string(invocation->method) : json_null());
}

static bool has_place(const char *event) {
    return strcmp(event, "heuristics") == 0 || strncmp(event, "autotune", 8) == 0;
}

void ejki_chain_emit(const ejk_config_selector_chain *chain, const char *event,
                     const ejk_config_key *key, const ejk_invocation *invocation, const char *name,
                     const char *text, const void *config) {
    if (!chain->options.on_event) return;
    json_t *fields = json_object();
    if (fields && name) json_object_set_new(fields, name, json_string(text));
    if (fields && invocation && has_place(event)) add_place(fields, invocation);
    char *cfg = NULL;
    if (fields && invocation && config &&
        ejk_record_to_json(invocation->kernel->config, config, EJK_JSON_SET_ONLY, &cfg) == EJK_OK)
        json_object_set_new(fields, "cfg", json_loads(cfg, 0, NULL));
    ejk_free(cfg);
    tell(chain, event, key, fields);
}

void ejki_chain_emit_rejected(const ejk_config_selector_chain *chain, const ejk_config_key *key,
                              const char *level, const char *reason) {
    if (!chain->options.on_event) return;
    tell(chain, "config_rejected", key, json_pack("{s:s, s:s}", "level", level, "reason", reason));
}

void ejki_chain_emit_start(const ejk_config_selector_chain *chain, const ejk_config_key *key,
                           const ejk_invocation *invocation, int32_t candidates) {
    if (!chain->options.on_event) return;
    json_t *fields = json_pack("{s:i}", "candidates", (int)candidates);
    if (fields) add_place(fields, invocation);
    tell(chain, "autotune_start", key, fields);
}
