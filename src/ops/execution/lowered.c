/* SPDX-License-Identifier: Apache-2.0 */
/* From the labels of a lowered program to configurations, and to recorded calls that are tuned. */
#include <ejkernel/lowered.h>

#include <ejkernel/config.h>
#include <ejkernel/device.h>

#include "base/base.h"
#include "ops/execution/executor.h"

#include <stdlib.h>
#include <string.h>

/* ---- Calls that labels name ------------------------------------------------------------------------- */

/* One label taken apart, with texts of its own, and the best configuration found for it so far. */
typedef struct named {
    char *label, *op_id, *call_key, *config;
    int32_t rank; /* of the configuration, see rank_of() */
    bool recorded;
} named;

typedef struct named_list {
    named *calls;
    int64_t count;
} named_list;

static void close_list(named_list *list) {
    for (int64_t i = 0; i < list->count; i++) {
        named *n = &list->calls[i];
        free(n->label);
        free(n->op_id);
        free(n->call_key);
        free(n->config);
    }
    free(list->calls);
    *list = (named_list){0};
}

/* Adds a label to a list that has room for it; one that names no call is passed over. */
static ejk_status add_label(named_list *list, const ejk_label_match *match) {
    ejk_label_parts parts;
    if (match->json) return EJK_OK;
    char *prefix = strndup(match->text, match->prefix_length);
    if (!prefix) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a label");
    const ejk_status status = ejk_parse_label(match->text, prefix, &parts);
    free(prefix);
    if (status == EJK_STATUS_MALFORMED) return EJK_OK;
    EJKI_TRY(status);
    named *n = &list->calls[list->count++];
    n->label = strdup(match->text);
    n->op_id = strndup(parts.op_id, parts.op_id_length);
    n->call_key = strdup(parts.key);
    return n->label && n->op_id && n->call_key
               ? EJK_OK
               : ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a label");
}

static ejk_status open_list(const ejk_labels *labels, named_list *out) {
    const int64_t count = ejk_labels_count(labels);
    named_list list = {.calls = calloc((size_t)count + 1, sizeof(named))};
    if (!list.calls) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for labels");
    ejk_status status = EJK_OK;
    for (int64_t i = 0; i < count && status == EJK_OK; i++)
        status = add_label(&list, ejk_labels_get(labels, i));
    if (status == EJK_OK)
        *out = list;
    else
        close_list(&list);
    return status;
}

/* ---- Configurations --------------------------------------------------------------------------------- */

typedef struct search {
    named_list *list;
    const char *device;
    bool out_of_memory;
} search;

/* Of configurations for one call, the higher rank is meant; 0 is none. */
static int32_t rank_of(const ejk_config_key *key) {
    if (key->threads == 0 && (!key->layout || !*key->layout)) return INT32_MAX;
    return key->threads > 0 && key->threads < INT32_MAX - 1 ? key->threads + 1 : 1;
}

static bool offer(void *user, const ejk_config_key *key, const ejk_config_entry *entry) {
    search *s = user;
    const int32_t rank = rank_of(key);
    if (key->direction != EJK_FORWARD || !key->device || !key->op_id ||
        strcmp(key->device, s->device) != 0)
        return true;
    for (int64_t i = 0; i < s->list->count; i++) {
        named *n = &s->list->calls[i];
        if (n->rank >= rank || strcmp(n->call_key, key->call_key) != 0 ||
            strcmp(n->op_id, key->op_id) != 0)
            continue;
        char *config = strdup(entry->config);
        s->out_of_memory = s->out_of_memory || !config;
        if (!config) return false;
        free(n->config);
        n->config = config;
        n->rank = rank;
    }
    return true;
}

/* Fills `configs`, which has room for all, and takes the list's texts over. */
static void hand_over(named_list *list, const bool *in_memory, ejk_label_config *configs) {
    for (int64_t i = 0; i < list->count; i++) {
        named *n = &list->calls[i];
        configs[i] = (ejk_label_config){n->label, n->op_id, n->call_key, n->config,
                                        in_memory[i] ? EJK_CHOICE_MEMORY : EJK_CHOICE_PERSISTENT};
        *n = (named){0};
    }
}

/* What memory knows is out of reach of what is then found on disk. */
static void resolve(named_list *list, bool *in_memory) {
    for (int64_t i = 0; i < list->count; i++) {
        in_memory[i] = list->calls[i].rank > 0;
        if (in_memory[i]) list->calls[i].rank = INT32_MAX;
    }
}

static ejk_status look_up(named_list *list, ejk_config_selector_chain *chain, bool *in_memory) {
    search s = {.list = list, .device = ejk_device_fingerprint()};
    ejk_persistent_cache *persistent = ejk_config_selector_chain_persistent(chain);
    EJKI_TRY(ejk_config_cache_keys(ejk_config_selector_chain_cache(chain), offer, &s));
    resolve(list, in_memory);
    if (persistent && !s.out_of_memory)
        EJKI_TRY(ejk_persistent_cache_each(persistent, &(ejk_config_filter){.device = s.device},
                                           offer, &s));
    return s.out_of_memory ? ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a configuration")
                           : EJK_OK;
}

ejk_status ejk_labels_to_configs(const ejk_labels *labels, ejk_config_selector_chain *chain,
                                 ejk_label_configs **out) {
    if (!labels || !chain || !out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         !labels  ? "labels"
                         : !chain ? "chain"
                                  : "out");
    named_list list;
    EJKI_TRY(open_list(labels, &list));
    ejk_label_configs *result = calloc(1, sizeof *result);
    ejk_label_config *configs = calloc((size_t)list.count + 1, sizeof *configs);
    bool *in_memory = calloc((size_t)list.count + 1, sizeof *in_memory);
    const ejk_status status =
        result && configs && in_memory
            ? look_up(&list, chain, in_memory)
            : ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for configurations");
    if (status == EJK_OK) {
        hand_over(&list, in_memory, configs);
        *result = (ejk_label_configs){configs, list.count};
        *out = result;
    } else {
        free(result);
        free(configs);
    }
    free(in_memory);
    close_list(&list);
    return status;
}

ejk_status ejk_labels_to_configs_ex(const char *path, const ejk_label_options *options,
                                    ejk_config_selector_chain *chain, ejk_label_configs **out) {
    ejk_labels *labels;
    EJKI_TRY(ejk_find_labels_in_lowered(path, options, &labels));
    const ejk_status status = ejk_labels_to_configs(labels, chain, out);
    ejk_labels_free(labels);
    return status;
}

void ejk_label_configs_destroy(ejk_label_configs *configs) {
    if (!configs) return;
    for (int64_t i = 0; i < configs->count; i++) {
        const ejk_label_config *c = &configs->configs[i];
        free((char *)(uintptr_t)c->label);
        free((char *)(uintptr_t)c->op_id);
        free((char *)(uintptr_t)c->call_key);
        free((char *)(uintptr_t)c->config);
    }
    free((ejk_label_config *)(uintptr_t)configs->configs);
    free(configs);
}

/* ---- Tuning ----------------------------------------------------------------------------------------- */

static bool is_named(void *user, const ejk_recorded_invocation *call) {
    named_list *list = user;
    bool found = false;
    for (int64_t i = 0; i < list->count; i++) {
        named *n = &list->calls[i];
        if (strcmp(n->call_key, call->call_key) != 0 || strcmp(n->op_id, call->op_id_v) != 0)
            continue;
        found = n->recorded = true;
    }
    return found;
}

/* Each label once, however often it stands there. */
static void tell_unrecorded(const named_list *list, const ejk_lowered_options *options) {
    for (int64_t i = 0; i < list->count; i++) {
        bool told = list->calls[i].recorded;
        for (int64_t k = 0; k < i && !told; k++)
            told = strcmp(list->calls[k].label, list->calls[i].label) == 0;
        if (!told)
            options->skipped(options->user, list->calls[i].label,
                             "no recorded call has this operation and key");
    }
}

ejk_status ejk_autotune_lowered(ejk_executor *executor, const char *path,
                                const ejk_lowered_options *options, ejk_autotuning_result **out) {
    static const ejk_lowered_options defaults;
    if (!executor || !path)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL, expected one",
                         executor ? "path" : "executor");
    if (!options) options = &defaults;
    ejk_recording *recording = options->recording ? options->recording : executor->recording;
    if (!recording)
        return ejki_fail(EJK_STATUS_UNAVAILABLE,
                         "there is no recording: neither in the options nor of the executor");
    ejk_labels *labels;
    EJKI_TRY(ejk_find_labels_in_lowered(path, &options->labels, &labels));
    named_list list;
    ejk_status status = open_list(labels, &list);
    ejk_labels_free(labels);
    EJKI_TRY(status);
    status = ejki_autotune_series_run(&(ejki_autotune_series){.executor = executor,
                                                              .recording = recording,
                                                              .options = options->autotune,
                                                              .wanted = is_named,
                                                              .wanted_user = &list,
                                                              .told = options->told,
                                                              .skipped = options->skipped,
                                                              .user = options->user},
                                      out);
    if (status == EJK_OK && options->skipped) tell_unrecorded(&list, options);
    close_list(&list);
    return status;
}
