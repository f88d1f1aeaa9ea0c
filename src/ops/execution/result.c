/* SPDX-License-Identifier: Apache-2.0 */
/* What a tuning of several calls chose, and its JSON both ways. */
#include "base/base.h"
#include "ops/execution/json.h"

#include <ejkernel/tuning.h>
#include <stdlib.h>
#include <string.h>

static json_t *parse(const char *text, json_error_t *error) {
    return json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, error);
}

static ejk_status check_entry(const ejk_entry *entry, int32_t index) {
    if (entry->op_id_v == NULL || entry->call_key == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "entries[%d]: op_id_v or call_key is NULL",
                         (int)index);
    if (entry->config == NULL) return EJK_OK;
    json_error_t error;
    json_t *config = parse(entry->config, &error);
    if (config == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "entries[%d]: config \"%.60s\" given, expected JSON (%s)", (int)index,
                         entry->config, error.text);
    json_decref(config);
    return EJK_OK;
}

static bool copy_entry(const ejk_entry *from, ejk_entry *to) {
    to->op_id_v = strdup(from->op_id_v);
    to->call_key = strdup(from->call_key);
    to->config = from->config != NULL ? strdup(from->config) : NULL;
    return to->op_id_v != NULL && to->call_key != NULL &&
           (to->config != NULL) == (from->config != NULL);
}

static ejk_autotuning_result *copy(const char *device, const ejk_entry *entries, int32_t count) {
    ejk_autotuning_result *result = calloc(1, sizeof *result);
    if (result == NULL) return NULL;
    ejk_entry *own = calloc((size_t)count + 1, sizeof *own);
    result->device = strdup(device);
    result->entries = own;
    bool whole = own != NULL && result->device != NULL;
    for (int32_t i = 0; whole && i < count; i++) {
        result->count = i + 1;
        whole = copy_entry(&entries[i], &own[i]);
    }
    if (whole) return result;
    ejk_autotuning_result_destroy(result);
    return NULL;
}

ejk_status ejk_autotuning_result_create(const char *device, const ejk_entry *entries, int32_t count,
                                        ejk_autotuning_result **out) {
    if (device == NULL || out == NULL || count < 0 || (entries == NULL && count > 0))
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_autotuning_result_create: device, entries or out is NULL, or count "
                         "(%d) negative",
                         (int)count);
    for (int32_t i = 0; i < count; i++) EJKI_TRY(check_entry(&entries[i], i));
    ejk_autotuning_result *result = copy(device, entries, count);
    if (result == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for %d entries could not be had",
                         (int)count);
    *out = result;
    return EJK_OK;
}

void ejk_autotuning_result_destroy(ejk_autotuning_result *result) {
    if (result == NULL) return;
    for (int32_t i = 0; i < result->count; i++) {
        free((char *)result->entries[i].op_id_v);
        free((char *)result->entries[i].call_key);
        free((char *)result->entries[i].config);
    }
    free((ejk_entry *)result->entries);
    free((char *)result->device);
    free(result);
}

/* ---- JSON --------------------------------------------------------------------------------------------- */

/* False: the text is not UTF-8. */
static bool is_text(const char *text) {
    json_t *value = json_string(text);
    json_decref(value);
    return value != NULL;
}

static ejk_status check_texts(const ejk_autotuning_result *result) {
    bool sound = is_text(result->device);
    for (int32_t i = 0; sound && i < result->count; i++)
        sound = is_text(result->entries[i].op_id_v) && is_text(result->entries[i].call_key);
    if (sound) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                     "result: a text of its device or entries is not UTF-8");
}

static bool write_entry(json_t *list, const ejk_entry *entry) {
    json_t *o = json_object();
    bool whole = ejki_json_set(o, "op_id_v", json_string(entry->op_id_v));
    whole &= ejki_json_set(o, "call_key", json_string(entry->call_key));
    whole &= ejki_json_set(o, "config", entry->config ? parse(entry->config, NULL) : json_null());
    return (json_array_append_new(list, o) == 0) & whole;
}

ejk_status ejk_autotuning_result_to_json(const ejk_autotuning_result *result, int flags,
                                         char **out) {
    if (result == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_autotuning_result_to_json: result or out is NULL");
    EJKI_TRY(check_texts(result));
    json_t *o = json_object(), *entries = json_array();
    bool whole = ejki_json_set(o, "device", json_string(result->device));
    for (int32_t i = 0; i < result->count; i++) whole &= write_entry(entries, &result->entries[i]);
    whole &= ejki_json_set(o, "entries", entries);
    return ejki_json_print(o, whole, flags, out);
}

/* The texts point into the JSON; that of the configuration is made here. */
static ejk_status read_entry(const json_t *json, int32_t index, ejk_entry *entry) {
    json_t *config = NULL;
    json_error_t error;
    if (json_unpack_ex((json_t *)json, &error, JSON_STRICT, "{s:s, s:s, s:o}", "op_id_v",
                       &entry->op_id_v, "call_key", &entry->call_key, "config", &config) != 0)
        return ejki_fail(EJK_STATUS_MALFORMED, "entries[%d]: %s", (int)index, error.text);
    if (json_is_null(config)) return EJK_OK;
    char *text = NULL;
    EJKI_TRY(ejki_json_print(json_incref(config), true, 0, &text));
    entry->config = text;
    return EJK_OK;
}

static ejk_status read_entries(const json_t *list, const char *device,
                               ejk_autotuning_result **out) {
    const size_t count = json_array_size(list);
    if (count > INT32_MAX)
        return ejki_fail(EJK_STATUS_MALFORMED, "entries: %zu given, more than can be counted",
                         count);
    ejk_entry *entries = calloc(count + 1, sizeof *entries);
    if (entries == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for %zu entries could not be had",
                         count);
    ejk_status status = EJK_OK;
    for (size_t i = 0; status == EJK_OK && i < count; i++)
        status = read_entry(json_array_get(list, i), (int32_t)i, &entries[i]);
    if (status == EJK_OK)
        status = ejk_autotuning_result_create(device, entries, (int32_t)count, out);
    for (size_t i = 0; i < count; i++) free((char *)entries[i].config);
    free(entries);
    return status;
}

ejk_status ejk_autotuning_result_from_json(const char *json, ejk_autotuning_result **out) {
    if (json == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_autotuning_result_from_json: json or out is NULL");
    json_error_t error;
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &error), *list = NULL;
    if (root == NULL)
        return ejki_fail(EJK_STATUS_MALFORMED, "json: line %d, column %d: %s", error.line,
                         error.column, error.text);
    const char *device = NULL;
    ejk_status status = EJK_OK;
    if (json_unpack_ex(root, &error, JSON_STRICT, "{s:s, s:o}", "device", &device, "entries",
                       &list) != 0)
        status = ejki_fail(EJK_STATUS_MALFORMED, "json: %s", error.text);
    else if (!json_is_array(list))
        status = ejki_fail(EJK_STATUS_MALFORMED, "entries: expected an array");
    else
        status = read_entries(list, device, out);
    json_decref(root);
    return status;
}
